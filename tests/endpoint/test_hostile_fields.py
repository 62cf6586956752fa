"""Every field of every message, with every malformed value: a fault or a sentence, and nothing else is harmed.

``hostile_samples`` has a message of each kind, and ``hostile_values`` changes each of its places. The first tests fail
if the code reads a field or a name that no sample has.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hostile_samples import fields_of, samples, values_of
from hostile_values import changes, names_in, names_read, places_in
from one_side import Side, element

from holdfast.core.versions import ALL_VERSIONS, TRIED_VERSIONS, Versions
from holdfast.store.memory import MemoryStore
from holdfast.wire import decode
from holdfast.wire.names import ADDRESSING_LOCALS

WIRE = (
    *("wire/rm.py", "wire/addressing.py", "wire/make_connection.py", "wire/faults.py", "wire/decoding"),
    "wire/names.py",
)
STEP, NIGHTLY_STEP = 100, 120
"""Every so many-th copy is made, others in each version: so each value has its turn at some places. The default suite
tries three versions, the nightly suite all twelve."""


# --- what there is ---------------------------------------------------------------------------------------------------


def test_the_samples_have_every_field_that_a_decoded_message_can_have() -> None:
    found = set[str]()
    for versions in ALL_VERSIONS:
        for data in samples(versions, "urn:known", "urn:outbound").values():
            found |= values_of(decode(data))
    assert set(fields_of()) - found == set()


def test_the_samples_have_every_name_that_the_decoder_reads() -> None:
    found = set[str]()
    for versions in ALL_VERSIONS:
        for data in samples(versions, "urn:known", "urn:outbound").values():
            found |= names_in(data)
    wanted = names_read(*WIRE) | set(ADDRESSING_LOCALS)
    assert wanted - found == set()


# --- reliable messaging, addressing and polls ------------------------------------------------------------------------


class Watched(Side):
    """A side with a second peer, whose Sequence no hostile message names."""

    def __init__(self, versions: Versions) -> None:
        store = MemoryStore()
        super().__init__(Path(), versions, lambda _: store)
        self.bystander = "urn:bystander"
        if versions.rm.can.creates:
            before = set(self.protocol.inbound.destinations)
            self.say(samples(versions, "", "")["CreateSequence"].replace(b"urn:offered-here", b"urn:offered-too"))
            (self.bystander,) = set(self.protocol.inbound.destinations) - before
        self.send(1)

    def say(self, data: bytes, *, is_answer: bool = False) -> None:
        assert self.hear(data, is_answer) is None

    def send(self, number: int) -> None:
        """Send a message in the Sequence of the second peer."""
        before = len(self.records())
        header = element("r:Identifier", self.bystander) + element("r:MessageNumber", str(number))
        content = element("a:Action", "urn:a") + element("r:Sequence", header)
        self.say(self.envelope(content, f"<n>{number}</n>"))
        assert len(self.records()) == before + 1

    def records(self) -> list[bytes]:
        return [
            record.body for partition in range(2) for _, record in self.store.read("inbox", partition, 0, 1_000_000)
        ]

    def state(self) -> dict[str, str]:
        return {key: str(state) for key, state in self.store.load().sequences.items()}

    @property
    def is_usable(self) -> bool:
        """Whether both Sequences that a message may name are still open."""
        states = {one["identifier"]: one["state"] for one in self.store.load().sequences.values()}
        return states.get(self.known) == states.get(self.outbound) == "created"


def hear_and_check(side: Watched, data: bytes, is_answer: bool, told: str) -> None:
    before, records = side.state(), side.records()
    side.answered.clear()
    error = side.hear(data, is_answer)
    after = side.state()
    if error is not None:
        assert error.message, told
        assert after == before, told
    for answer in side.answered:
        assert answer.fault is None or (answer.fault.code and answer.fault.reason), told
    assert side.records()[: len(records)] == records or set(records) <= set(side.records()), told
    theirs = [key for key, state in before.items() if side.bystander in state]
    assert theirs and all(after[key] == before[key] for key in theirs), told
    grown = sum(map(len, after.values())) - sum(map(len, before.values()))
    assert grown <= 4 * len(data) + 8192, told
    assert len(side.answered) <= 4, (told, len(side.answered))


KINDS = sorted({kind for versions in ALL_VERSIONS for kind in samples(versions, "urn:k", "urn:o")})


def copies_of(kind: str, versions: Versions, *, step: int) -> None:
    side, start, number = Watched(versions), KINDS.index(kind) * 7 + ALL_VERSIONS.index(versions), 1
    for is_answer in (False, True):
        data = samples(versions, side.known, side.outbound).get(kind)
        if data is None:
            return
        for told, copy in changes(data, places_in(data), step=step, start=start + is_answer * step // 2):
            if not side.is_usable:
                side.send(number := number + 1)
                side.reopen()
                side, number = Watched(versions), 1
            hear_and_check(side, copy, is_answer, f"{kind} ({versions}, answer: {is_answer}): {told}")
    side.send(number + 1)
    side.reopen()


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_with_a_malformed_part_is_refused_or_harmless(kind: str) -> None:
    for versions in (ALL_VERSIONS[0], TRIED_VERSIONS[0], ALL_VERSIONS[-1]):
        copies_of(kind, versions, step=STEP)


@pytest.mark.nightly
@pytest.mark.parametrize("versions", ALL_VERSIONS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_every_message_with_every_malformed_part_is_refused_or_harmless(kind: str, versions: Versions) -> None:
    copies_of(kind, versions, step=NIGHTLY_STEP)
