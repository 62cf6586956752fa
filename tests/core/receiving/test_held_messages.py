"""Held messages: they enter their queues in blocks, a crash in between continues, and their bytes are bounded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reads import take_effects

from examples import examples
from holdfast.core.events import Delivered, Respond
from holdfast.core.messages import (
    ANONYMOUS_EPR,
    CreateSequence,
    Envelope,
    IncompleteSequenceBehavior,
    Sequence,
    TerminateSequence,
)
from holdfast.core.origin import Origin
from holdfast.core.policy import DestinationPolicy
from holdfast.core.protocol import RMProtocol
from holdfast.core.protocol_settings import Environment, MessageRules, Policies
from holdfast.core.queues.queue import Queue
from holdfast.core.receiving import held_messages as held
from holdfast.core.versions import Versions
from holdfast.store import MemoryStore

NEW = Versions("1.1")
BODY = 100_000
BLOCK = held.BLOCK_BYTES
A_BLOCK = -(-BLOCK // (BODY + held.ROW_BYTES))
"""Messages of a block."""
DISCARD = IncompleteSequenceBehavior


class Node:
    """An endpoint with one queue. :meth:`commit` makes one batch durable, :meth:`settle` all."""

    def __init__(self, store: MemoryStore | None = None, policy: DestinationPolicy | None = None) -> None:
        self.store = store or MemoryStore()
        self.queue = Queue("inbox")
        self.effects: list[object] = []
        self.moved: list[int] = []
        """Bytes that each batch released."""
        self.made = 0
        self.protocol = RMProtocol(
            self.queue,
            Environment(self.store.read, self._new_identifier, lambda: 0.0),
            policies=Policies(destination=policy or DestinationPolicy()),
            rules=MessageRules(replies=lambda _action: False),
        )
        self.protocol.recover(self.store.load(), 1.0)

    def _new_identifier(self) -> str:
        self.made += 1
        return f"urn:id:{self.made}"

    def commit(self, now: float = 1.0) -> bool:
        self.effects += take_effects(self.protocol, self.store, now)
        if not self.protocol.wants_commit:
            return False
        batch = self.protocol.take_batch()
        ours = {(sequence, number): len(record.body) for sequence, number, record in batch.holds}
        there = self.store._held
        self.moved.append(sum(ours.get(key[:2]) or len(there[key[0]][key[1]]) for key in batch.releases))
        self.store.commit(batch)
        self.protocol.batch_durable(now)
        self.effects += take_effects(self.protocol, self.store, now)
        return True

    def settle(self, now: float = 1.0) -> None:
        while self.commit(now):
            pass

    def create(self, party: str = "") -> str:
        envelope = Envelope(NEW.soap, NEW.addressing, NEW.rm, "urn:create", message_id=f"urn:create:{self.made}")
        envelope.control = CreateSequence(ANONYMOUS_EPR, None, None)
        self.protocol.receive(envelope, object(), 1.0, origin=Origin(party=party))
        self.settle()
        return f"urn:id:{self.made}"

    def come(self, number: int, identifier: str = "urn:id:1", body: int = BODY) -> None:
        envelope = Envelope(NEW.soap, NEW.addressing, NEW.rm, "urn:a", message_id=f"urn:m:{identifier}:{number}")
        envelope.body, envelope.sequence = b"x" * body, Sequence(identifier, number, False)
        self.protocol.receive(envelope, object(), 1.0)

    def terminate(self, last: int | None = None, identifier: str = "urn:id:1") -> None:
        envelope = Envelope(NEW.soap, NEW.addressing, NEW.rm, "urn:end", message_id=f"urn:end:{identifier}")
        envelope.control = TerminateSequence(identifier, last)
        self.protocol.receive(envelope, object(), 1.0)

    def content(self, identifier: str = "urn:id:1") -> list[int]:
        end = self.store._bounds.get(("inbox", 0), (0, 0))[1]
        found = [self.store.read("inbox", 0, at, at + 1)[0][1] for at in range(end)]
        return [record.message_number for record in found if record.sequence == identifier]

    @property
    def told(self) -> list[int]:
        return [one.offset for one in self.effects if isinstance(one, Delivered)]

    @property
    def acknowledged(self) -> tuple[tuple[int, int], ...]:
        answers = [one.envelope for one in self.effects if isinstance(one, Respond) and one.envelope is not None]
        return tuple(answers[-1].acknowledgements[0].ranges)

    def held_there(self, identifier: str = "urn:id:1") -> list[int]:
        return self.store.load().held.get(identifier, [])


def _held(count: int, policy: DestinationPolicy | None = None) -> Node:
    """Messages 2 to ``count`` are held, 1 is missing."""
    node = Node(policy=policy)
    node.create()
    for number in range(2, count + 1):
        node.come(number)
    node.settle()
    node.moved.clear()
    return node


def test_a_closed_gap_releases_what_is_held_in_blocks():
    node = _held(35)
    node.come(1)
    node.settle()
    assert node.content() == list(range(1, 36)) and not node.held_there()
    assert max(node.moved) <= BLOCK + 2 * BODY and sum(size > 0 for size in node.moved) == -(-34 // A_BLOCK)
    assert node.told == list(range(35)), "each is told when it is durable, in its order"


def test_a_few_small_messages_leave_with_the_one_that_closed_the_gap():
    node = Node()
    node.create()
    for number in (2, 3, 4):
        node.come(number, body=100)
    node.settle()
    node.moved.clear()
    node.come(1)
    node.commit()
    assert node.content() == [1, 2, 3, 4] and not node.protocol.wants_commit


def test_what_closes_the_gap_is_acknowledged_before_all_that_was_held_has_moved():
    node = _held(35)
    node.come(1)
    node.commit()
    assert node.acknowledged == ((1, 35),) and len(node.held_there()) == 34 - A_BLOCK


@pytest.mark.parametrize("batches", range(6))
def test_a_crash_between_two_blocks_continues_with_the_next(batches: int):
    node = _held(35)
    node.come(1)
    for _ in range(batches):
        node.commit()
    again = Node(node.store)
    if not batches:
        again.come(1)
    again.settle()
    assert again.content() == list(range(1, 36)) and not again.held_there()
    assert all(size <= BLOCK + 2 * BODY for size in again.moved)
    assert again.protocol.inbound.held.bytes == 0


def test_what_arrives_while_a_block_moves_stays_behind_the_rest():
    node = _held(35)
    node.come(1)
    node.commit()
    node.come(36)
    node.come(38)
    node.commit()
    assert 36 in node.held_there()
    node.come(37)
    node.settle()
    assert node.content() == list(range(1, 39)) and not node.held_there()


def test_many_sequences_that_release_at_once_share_one_block_for_each_batch():
    node = Node()
    identifiers = [node.create() for _ in range(5)]
    for identifier in identifiers:
        for number in range(2, 20):
            node.come(number, identifier)
    node.settle()
    node.moved.clear()
    for identifier in identifiers:
        node.come(1, identifier)
    node.settle()
    assert max(node.moved) <= BLOCK + 2 * BODY
    for identifier in identifiers:
        assert node.content(identifier) == list(range(1, 20))


@pytest.mark.parametrize("batches", range(5))
def test_a_sequence_that_ends_with_a_gap_releases_in_blocks_and_a_crash_continues(batches: int):
    node = _held(35)
    node.terminate()
    for _ in range(batches):
        node.commit()
    again = Node(node.store)
    if not batches:
        again.terminate()
    again.settle()
    assert again.content() == list(range(2, 36)) and not again.held_there()
    assert all(size <= BLOCK + 2 * BODY for size in [*node.moved, *again.moved])


def test_a_sequence_that_discards_at_a_gap_holds_no_bytes_after_its_end():
    policy = DestinationPolicy(incomplete_sequence_behavior=DISCARD.DISCARD_FOLLOWING_FIRST_GAP)
    node = _held(35, policy)
    node.terminate()
    node.settle()
    assert node.content() == [] and not node.held_there()
    assert node.protocol.inbound.held.bytes == 0


def test_a_sequence_that_holds_everything_releases_all_of_it_in_blocks_at_its_end():
    policy = DestinationPolicy(incomplete_sequence_behavior=DISCARD.DISCARD_ENTIRE_SEQUENCE)
    node = _held(35, policy)
    node.come(1)
    node.settle()
    assert node.content() == []
    node.terminate(35)
    node.settle()
    assert node.content() == list(range(1, 36)) and max(node.moved) <= BLOCK + 2 * BODY


def test_an_end_is_answered_when_all_that_was_held_is_in_the_queue():
    """A source that promises order sends its next Sequence then, of which nothing may come before."""
    node = _held(35)
    answers = sum(isinstance(one, Respond) for one in node.effects)
    node.terminate()
    while node.commit():
        is_answered = sum(isinstance(one, Respond) for one in node.effects) > answers
        assert is_answered == (node.content() == list(range(2, 36)))
    assert is_answered and sum(size > 0 for size in node.moved) > 2


def test_an_end_is_answered_at_once_while_nothing_can_move():
    node = _held(35)
    answers = sum(isinstance(one, Respond) for one in node.effects)
    node.protocol.inbound.held._trouble = lambda: "the disk is nearly full"
    node.terminate()
    node.settle()
    assert sum(isinstance(one, Respond) for one in node.effects) == answers + 1


def test_a_sequence_is_not_forgotten_before_all_that_it_holds_has_moved():
    policy = DestinationPolicy(max_remembered=1, remember_terminated=0.0)
    node = _held(35, policy)
    second = node.create()
    node.terminate()
    node.commit()
    node.protocol.pump(1.0)
    node.terminate(identifier=second)
    node.commit()
    assert "urn:id:1" in node.protocol.inbound.destinations
    node.settle()
    node.protocol.pump(1.0)
    node.settle()
    assert node.content() == list(range(2, 36))
    assert not node.protocol.inbound.destinations and node.protocol.inbound.held.bytes == 0


def test_nothing_moves_while_the_store_has_no_room_for_anything_new():
    node = _held(35)
    why = ["the disk is nearly full"]
    node.protocol.inbound.held._trouble = lambda: why[0]
    node.come(1)
    node.settle()
    left = len(node.held_there())
    assert left == 34 - A_BLOCK
    why[0] = ""
    deadline = node.protocol.deadline()
    assert deadline is not None and deadline <= 1.0 + held.LOOK_AGAIN
    node.protocol.pump(1.0 + held.LOOK_AGAIN)
    node.settle(1.0 + held.LOOK_AGAIN)
    assert node.content() == list(range(1, 36))


def test_an_endpoint_that_stops_moves_no_further_block_and_the_next_start_continues():
    node = _held(35)
    node.come(1)
    node.commit()
    node.protocol.stop()  # the second block is in the open batch by now
    node.settle()
    assert len(node.held_there()) == 34 - 2 * A_BLOCK
    again = Node(node.store)
    again.settle()
    assert again.content() == list(range(1, 36))


# --- bytes ----------------------------------------------------------------------------------------------------------


def _size(count: int) -> int:
    return count * (BODY + held.ROW_BYTES)


def test_a_message_beyond_the_bytes_of_its_sequence_is_not_accepted_yet():
    node = _held(20, DestinationPolicy(buffer_bytes=_size(8)))
    assert node.acknowledged == ((2, 9),)
    assert node.protocol.acknowledging.acknowledgement("urn:id:1").buffer_remaining == 1  # type: ignore[union-attr]
    node.come(1)
    node.settle()
    assert node.acknowledged == ((1, 9),), "what closes the gap is always accepted"
    node.come(11)
    node.settle()
    assert node.acknowledged == ((1, 9), (11, 11))


def test_a_party_holds_only_its_share_and_another_one_the_rest():
    policy = DestinationPolicy(max_party_buffer_bytes=_size(8), max_buffer_bytes=_size(12))
    node = Node(policy=policy)
    mine, other, third = node.create("address 192.0.2.1"), node.create("address 192.0.2.1"), node.create("b")
    for number in range(2, 8):
        node.come(number, mine)
    node.settle()
    for number in range(2, 8):
        node.come(number, other)
    node.settle()
    assert node.acknowledged == ((2, 3),), "two Sequences of one party share"
    for number in range(2, 8):
        node.come(number, third)
    node.settle()
    assert node.acknowledged == ((2, 5),), "all parties together"
    node.come(1, mine)
    node.settle()
    for number in range(2, 8):
        node.come(number, third)
    node.settle()
    assert node.acknowledged == ((2, 7),), "what has left makes room"


def test_the_bytes_that_are_held_are_counted_again_after_a_restart():
    node = _held(20, policy := DestinationPolicy(buffer_bytes=_size(10)))
    again = Node(node.store, policy)
    assert again.protocol.inbound.held.bytes == node.protocol.inbound.held.bytes == _size(10)
    again.come(15)
    again.settle()
    assert again.acknowledged == ((2, 11),)


def test_a_store_of_an_older_version_that_saved_no_sizes_continues():
    node = _held(6)
    state = dict(node.store.load().sequences["urn:id:1"])
    del state["held"]
    batch = node.protocol.take_batch()
    batch.sequences["urn:id:1"] = state
    node.store.commit(batch)
    again = Node(node.store)
    again.come(1)
    again.settle()
    assert again.content() == list(range(1, 7)) and again.protocol.inbound.held.bytes == 0


def test_while_a_release_is_under_way_a_fast_sender_cannot_make_it_endless():
    node = _held(9, policy := DestinationPolicy(buffer_bytes=_size(8)))
    node.come(1, body=BLOCK)
    assert node.protocol.inbound.sequences.policy is policy
    before = node.protocol.inbound.held.bytes
    for number in range(10, 40):
        node.come(number)
    assert node.protocol.inbound.held.bytes <= max(before, policy.buffer_bytes)
    node.settle()
    assert node.content()[:9] == list(range(1, 10))


@settings(max_examples=examples(80), deadline=None)
@given(st.permutations(range(1, 13)), st.lists(st.booleans(), min_size=12, max_size=12), st.integers(0, 40), st.data())
def test_whatever_the_order_sizes_and_crashes_all_arrive_once_in_order(numbers, are_large, crash_at, data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held, "BLOCK_BYTES", 3_000)
        policy = replace(DestinationPolicy(), buffer_bytes=data.draw(st.sampled_from([4_000, 1 << 30])))
        node, steps = Node(policy=policy), 0
        node.create()
        for _ in range(14):  # what was not accepted yet is sent again
            for number in numbers:
                node.come(number, body=2_000 if are_large[number - 1] else 10)
                if data.draw(st.booleans()):
                    node.commit()
                steps += 1
                if steps == crash_at:
                    node = Node(node.store, policy)
            node.settle()
            node.settle()
            inbound = node.protocol.inbound
            assert inbound.held.bytes == sum(one.held_bytes for one in inbound.destinations.values())
            if len(node.content()) == 12:
                break
        assert node.content() == list(range(1, 13)) and not node.held_there()
        assert node.protocol.inbound.held.bytes == 0
