"""AcknowledgementHistory: an acknowledgement that is taken back is noticed, and one that was only overtaken is not."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from sending import NEW, Sending

from holdfast.core.events import Incident
from holdfast.core.messages import Acknowledge, Envelope, SequenceAcknowledgement
from holdfast.core.origin import Origin
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.rm_source.acknowledgement_history import MOST_RANGES, AcknowledgementHistory
from holdfast.core.sending.outboxes.peer_answers import RETRACTED


def test_less_than_before_is_a_loss_if_asked_after_the_wider_acknowledgement() -> None:
    history = AcknowledgementHistory()
    assert history.hear(((1, 100),), 1.0, 2.0) == ()
    assert history.hear(((1, 55),), 3.0, 4.0) == ((56, 100),)


def test_an_older_answer_that_was_overtaken_is_none() -> None:
    history = AcknowledgementHistory()
    history.hear(((1, 100),), 1.0, 2.0)
    assert history.hear(((1, 55),), 2.0, 2.5) == (), "it left no later than the other was heard"
    assert history.hear(((1, 55),), None, 9.0) == (), "nobody knows when it was asked for"


def test_a_loss_is_reported_once_and_a_further_one_by_itself() -> None:
    history = AcknowledgementHistory()
    history.hear(((1, 100),), 1.0, 2.0)
    assert history.hear(((1, 55),), 3.0, 4.0) == ((56, 100),)
    assert history.hear(((1, 55), (101, 103)), 5.0, 6.0) == ()
    assert history.hear(((1, 40), (101, 103)), 7.0, 8.0) == ((41, 55),)


def test_it_is_noticed_within_two_round_trips_while_many_are_on_their_way() -> None:
    history = AcknowledgementHistory()
    now, known, lost = 0.0, 0, ()
    for step in range(60):
        now += 0.01  # an answer each 10 ms, each to a request that left 100 ms before
        known += 1
        if step == 40:
            known = 20
        lost = history.hear(((1, known),), now - 0.1, now)
        if lost:
            break
    assert lost and 40 <= step < 60


def test_more_ranges_than_some_destinations_write_prove_nothing() -> None:
    history = AcknowledgementHistory()
    history.hear(((1, 3), (100, 200)), 1.0, 2.0)
    many = tuple((number, number) for number in range(1, 2 * MOST_RANGES + 3, 2))
    assert history.hear(many, 3.0, 4.0) == ()


def test_what_an_earlier_run_heard_counts() -> None:
    history = AcknowledgementHistory()
    history.hear(((1, 9),), 1.0, 2.0)
    again = AcknowledgementHistory([(1, 9)], 10.0)
    assert again.to_state() == history.to_state() == [1, 9]
    assert again.hear(((1, 5),), 11.0, 12.0) == ((6, 9),)


def test_no_order_of_answers_of_an_honest_destination_is_a_loss() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        history, now, has = AcknowledgementHistory(), 0.0, 0
        under_way: list[tuple[float, int]] = []
        for _ in range(60):
            now += chance.random()
            if chance.random() < 0.6 or not under_way:
                has += chance.randint(0, 3)
                under_way.append((now, has))  # it is answered at once, and the answer takes its time
            else:
                asked_at, upper = under_way.pop(chance.randrange(len(under_way)))
                assert history.hear(((1, upper),) if upper else (), asked_at, now) == (), seed


NAMES = ["submit", "submit", "arrive", "arrive", "arrive", "hear", "hear", "wait", "restart"]
STEPS = st.tuples(st.sampled_from(NAMES), st.integers(0, 99))


@given(st.lists(STEPS, min_size=30, max_size=60), st.integers(2, 8))
def test_no_order_of_posts_of_an_honest_destination_is_a_loss(steps: list[tuple[str, int]], window: int) -> None:
    sending = Sending(local="http://here/answers", initial_window=window)
    outbox, under_way = sending.opened("a", "first")
    has, posts, told = AcknowledgementRanges(), list[tuple[tuple[int, int], ...]](), []
    for step, (name, choice) in enumerate(steps):
        sending.now += 0.1
        if name == "submit":
            sending.submit(outbox, f"m{step}", wants_reply=choice % 4 > 0)  # a request stays in flight
        elif name == "arrive" and under_way:
            has.add(under_way[-1 - choice % min(4, len(under_way))].number)  # perhaps once more, as it stays under way
            posts.append(has.as_pairs())
        elif name == "hear" and posts:
            assert outbox.source is not None
            what = SequenceAcknowledgement("urn:s:a", posts.pop(-1 - choice % min(4, len(posts))))
            envelope = Envelope(NEW.soap, NEW.addressing, NEW.rm, control=Acknowledge(), acknowledgements=(what,))
            sending.protocol.receive(envelope, object(), sending.now, origin=Origin(secret=outbox.source.secret))
        elif name == "wait":
            sending.now += 2.0
        elif name == "restart":
            told += sending.told
            sending = Sending(sending.store, now=sending.now, local="http://here/answers", initial_window=window)
            outbox = sending.protocol.outbound.outboxes["a"]
        for sent in sending.take():
            sending.protocol.received(sent, None, sending.now)
            under_way += [sent] if sent.number else []
        sending.settle()
    assert not [one for one in told + sending.told if isinstance(one, Incident) and one.name == RETRACTED]
