"""A source whose store was set back to an older copy: no message that it accepted after that is lost.

Covers core/sending/outboxes/outdated_copy.py.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
from sending import Sending, sequence_of

from examples import examples
from holdfast.core.events import Incident, Transmit
from holdfast.core.messages import (
    Acknowledge,
    CloseSequence,
    CloseSequenceResponse,
    CreateSequence,
    CreateSequenceResponse,
    SequenceAcknowledgement,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.policy import Assurance, Delivery
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.rm_source.message_numbers import MessageNumbers
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.outboxes.outdated_copy import OUTDATED
from holdfast.core.sending.outboxes.peer_answers import RETRACTED
from holdfast.store import MemoryStore

LOCAL = "http://here/answers"
AT_LEAST_ONCE, EXACTLY_ONCE = (
    Assurance(one, in_order=False) for one in (Delivery.AT_LEAST_ONCE, Delivery.EXACTLY_ONCE)
)


class World:
    """A source with a store that is copied and set back, and a destination that drops duplicates by their numbers."""

    def __init__(self, seed: int, *, is_posting: bool = False, says: str = "ack", **policy: Any) -> None:
        self.random = random.Random(seed)
        self.policy = {"initial_window": 4, "window": 8, "mark_ahead": 8, "keep_alive": 1e9} | policy
        self.local = {"local": LOCAL} if is_posting else {}
        self.says = says
        """What answers AckRequested: an acknowledgement, nothing, or a fault."""
        self.runs: list[Sending] = []
        self.there: dict[str, dict[int, bytes]] = {}
        """Sequence -> number -> the body that came first."""
        self.granted: dict[str, str] = {}
        self.owed: set[bytes] = set()
        """Everything in the present store that was accepted, or in a copy of it."""
        self.count = 0
        self.saved: tuple[MemoryStore, set[bytes]] | None = None
        self.is_restored = False
        self.start(MemoryStore())

    def start(self, store: MemoryStore) -> None:
        now = self.runs[-1].now + 1.0 if self.runs else 100.0
        self.runs.append(Sending(store, now=now, **self.local, **self.policy))
        self.outbox.lifecycle.choices = self.outbox.lifecycle.choices[:1]

    @property
    def run(self) -> Sending:
        return self.runs[-1]

    @property
    def outbox(self) -> Outbox:
        return self.run.open()

    def submit(self) -> None:
        bodies = [f"{self.count + number}" for number in range(self.random.choice([1, 1, 2, 5, 20]))]
        self.count += len(bodies)
        self.owed |= {body.encode() for body in bodies}
        self.run.submit(self.outbox, *bodies)

    def crash(self) -> None:
        self.start(self.run.store)

    def back_up(self) -> None:
        self.saved = copy.deepcopy(self.run.store), set(self.owed)

    def restore(self) -> None:
        if self.saved is not None:
            store, self.owed = self.saved
            self.owed = set(self.owed)
            self.start(copy.deepcopy(store))
            self.is_restored = True

    def go(self, lost: float = 0.2) -> None:
        """What left arrives, or is lost, or its answer is."""
        self.run.now += 0.2
        for sent in self.run.take():
            if self.random.random() < lost:
                self.run.lose(sent)
            else:
                self.arrive(sent, is_answered=self.random.random() >= lost)

    def arrive(self, sent: Transmit, *, is_answered: bool) -> None:
        envelope, control = sent.envelope, sent.envelope.control
        answer: dict[str, Any] = {}
        identifier = ""
        if isinstance(control, CreateSequence):
            identifier = self.granted.setdefault(envelope.message_id or "", f"urn:s:{len(self.granted)}")
            self.there.setdefault(identifier, {})
            answer["control"] = CreateSequenceResponse(identifier)
        elif isinstance(control, CloseSequence | TerminateSequence):
            identifier = control.identifier
            is_close = isinstance(control, CloseSequence)
            answer["control"] = (CloseSequenceResponse if is_close else TerminateSequenceResponse)(identifier)
            answer["acknowledgements"] = (self.acknowledgement(identifier, final=True),)
        else:
            identifier = sequence_of(sent)
            if sent.number:
                assert envelope.body is not None
                self.there[identifier].setdefault(sent.number, bytes(envelope.body))
            elif self.says == "nothing":
                self.run.protocol.received(sent, None, self.run.now) if is_answered else self.run.lose(sent)
                return
            elif self.says == "fault":
                self.run.refuse(sent, "Busy", is_rm=False) if is_answered else self.run.lose(sent)
                return
            answer |= {"control": Acknowledge(), "acknowledgements": (self.acknowledgement(identifier),)}
            if self.local and is_answered:
                self.run.protocol.received(sent, None, self.run.now)
                self.run.settle()
                self.run.answer(None, **answer)
                return
        if is_answered:
            self.run.answer(sent, **answer)
        else:
            self.run.lose(sent)

    def acknowledgement(self, identifier: str, *, final: bool = False) -> SequenceAcknowledgement:
        ranges = AcknowledgementRanges((number, number) for number in sorted(self.there[identifier]))
        return SequenceAcknowledgement(identifier, ranges.as_pairs(), final=final)

    def finish(self) -> None:
        """The operator resumes whatever stopped, until everything is acknowledged."""
        for _ in range(1000):
            if self.outbox.records.is_empty:
                return
            if self.outbox.lifecycle.stopped:
                self.outbox.resume([*self.run.choices[:1]], self.run.now)
            self.go(0.0)
            self.run.now += 5.0
        raise AssertionError("it never ends")

    def play(self, steps: int, *, restores: bool) -> None:
        known = [self.submit, self.submit, self.go, self.go, self.go, self.crash, self.back_up]
        ways: list[Callable[[], None]] = known + ([self.restore] if restores else [])
        for _ in range(steps):
            self.random.choice(ways)()
        self.finish()

    @property
    def arrived(self) -> list[bytes]:
        return [body for numbers in self.there.values() for body in numbers.values()]

    def incidents(self, name: str) -> list[Incident]:
        return [one for run in self.runs for one in run.incidents(name)]


DESTINATIONS = [(posts, says) for posts in (False, True) for says in ("ack", "nothing", "fault")]


@pytest.mark.parametrize(("posts", "says"), DESTINATIONS)
@pytest.mark.parametrize("assurance", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_whenever_the_store_is_set_back_what_it_accepts_after_that_arrives(
    assurance: Assurance, posts: bool, says: str
) -> None:
    outdated = sum(set_back(seed, assurance, posts=posts, says=says) for seed in range(examples(40)))
    assert outdated, "the worlds hardly show the case"


def set_back(seed: int, assurance: Assurance, *, posts: bool = False, says: str = "ack") -> int:
    """How often a source in such a world found that its copy is an older one."""
    world = World(seed, is_posting=posts, says=says, assurance=assurance)
    world.play(30, restores=True)
    assert world.owed <= set(world.arrived), (seed, world.owed - set(world.arrived))
    assert not world.incidents(RETRACTED), seed
    assert len(world.granted) <= 2 * len(world.runs), "a new Sequence for each restore, and none without end"
    return len(world.incidents(OUTDATED))


@pytest.mark.parametrize(("posts", "says"), DESTINATIONS)
def test_a_crash_never_looks_like_a_restore(posts: bool, says: str) -> None:
    for seed in range(examples(40)):
        world = World(seed, is_posting=posts, says=says, assurance=EXACTLY_ONCE)
        world.play(30, restores=False)
        assert sorted(world.arrived) == sorted(world.owed), (seed, "each message arrives once")
        assert not world.incidents(OUTDATED) and not world.incidents(RETRACTED), seed
        assert says != "ack" or len(world.granted) == 1, "the Sequence continues"


@pytest.mark.parametrize("mistake", ["forgets what is new", "does not wait", "does not notice"])
def test_a_planted_mistake_is_noticed(monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    resume = MessageNumbers.resume

    def forgets(self: MessageNumbers, stored: int, _withheld: Any) -> None:
        resume(self, stored, None)

    def does_not_wait(self: MessageNumbers, stored: int, withheld: Any) -> None:
        resume(self, stored, withheld)
        self.is_word_awaited = False
        self.may_leave_new()

    if mistake == "forgets what is new":
        monkeypatch.setattr(MessageNumbers, "resume", forgets)
    elif mistake == "does not wait":
        monkeypatch.setattr(MessageNumbers, "resume", does_not_wait)
    else:
        monkeypatch.setattr(MessageNumbers, "is_outdated_by", lambda _self, _ack: False)
    with pytest.raises(AssertionError):
        list(map(set_back, range(200), itertools.repeat(EXACTLY_ONCE)))


def test_what_this_run_sent_before_the_proof_is_sent_again_or_reported() -> None:
    """A destination that first leaves out what it has, as one that acknowledges only what is in order."""
    world = World(0, assurance=AT_LEAST_ONCE)
    for step in (world.submit, world.go, world.go, world.go, world.back_up):
        step()
    known = world.outbox.records.end
    assert world.outbox.records.is_empty
    world.restore()
    run, outbox = world.run, world.outbox
    run.submit(outbox, "new 1", "new 2")
    (asked,) = run.take()
    run.acknowledge(asked, (1, known))
    first, second = run.take()
    run.acknowledge(first, (1, known + 1))
    run.acknowledge(second, (1, known + 1), (known + 9, known + 9))
    (told,) = run.incidents(OUTDATED)
    assert told.detail is not None and (told.detail["known"], told.detail["acknowledged"]) == (known, known + 9)
    (lost,) = run.incidents(RETRACTED)
    assert lost.detail is not None and lost.detail["messages"] == str(known + 1)
    world.finish()
    assert [body for body in world.arrived if body.startswith(b"new")] == [b"new 2"]


def test_with_exactly_once_the_operator_decides_about_what_was_sent_before_the_proof() -> None:
    world = World(0, assurance=EXACTLY_ONCE)
    for step in (world.submit, world.go, world.go, world.go, world.back_up, world.restore):
        step()
    known, run, outbox = world.outbox.records.end, world.run, world.outbox
    run.submit(outbox, "new")
    (asked,) = run.take()
    run.acknowledge(asked, (1, known))
    (sent,) = run.take()
    run.acknowledge(sent, (1, known + 9))
    (stopped,) = run.stopped
    assert stopped.in_doubt == f"{known + 1}-{known + 1}"
