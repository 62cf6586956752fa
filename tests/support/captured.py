"""Captures that no honest recorder makes, and a plain model of what comes of them."""

from __future__ import annotations

import gzip
from collections import defaultdict
from dataclasses import dataclass, field
from random import Random
from typing import Any

from holdfast.core.messages import (
    ANONYMOUS_EPR,
    AckRequested,
    CloseSequence,
    CreateSequenceResponse,
    Envelope,
    LastMessage,
    Sequence,
    SequenceAcknowledgement,
    TerminateSequence,
)
from holdfast.core.versions import ALL_VERSIONS, Versions
from holdfast.wire.encoding.envelopes import encode

Key = tuple[str, str]
"""Identifier and WS-RM version."""


@dataclass(frozen=True)
class Captured:
    """One envelope, or what stands in its place, where it lies, and what it says."""

    content: bytes
    source: str
    position: int
    captured_at: int
    key: Key | None = None
    number: int = 0
    body: bytes = b""
    marker: bool = False
    last: int = 0
    ended: str = ""
    ranges: tuple[tuple[int, int], ...] = ()
    why: str = ""

    @property
    def row(self) -> tuple[str, int, int, bytes]:
        """As a row of a capture."""
        return self.source, self.position, self.captured_at, self.content

    @property
    def place(self) -> tuple[int, str, int]:
        return self.captured_at, self.source, self.position


@dataclass
class Outcome:
    """What is to come of one Sequence."""

    first: dict[int, Captured] = field(default_factory=dict)
    conflicts: list[int] = field(default_factory=list)
    seen: int = 0
    last: int = 0
    acknowledged: set[int] = field(default_factory=set)
    ended: str = ""

    @property
    def messages(self) -> list[tuple[int, bytes]]:
        return [(number, one.body) for number, one in sorted(self.first.items()) if not one.marker]

    @property
    def missing(self) -> list[int]:
        return sorted(set(range(1, (self.last or max(self.first, default=0)) + 1)) - self.first.keys())

    @property
    def not_captured(self) -> list[int]:
        return sorted(self.acknowledged - self.first.keys())

    @property
    def state(self) -> str:
        if self.missing or self.not_captured:
            return "incomplete"
        return "complete" if self.last else "tail unknown"


def outcomes(capture: list[Captured]) -> dict[Key, Outcome]:
    """The plain model."""
    found: dict[Key, Outcome] = defaultdict(Outcome)
    for one in sorted(capture, key=lambda one: one.place):
        if one.key is None:
            continue
        outcome = found[one.key]
        outcome.last = max(outcome.last, one.last)
        outcome.ended = max(outcome.ended, one.ended)  # "" < "closed" < "terminated"
        outcome.acknowledged |= {number for lower, upper in one.ranges for number in range(lower, upper + 1)}
        if one.number:
            outcome.seen += 1
            first = outcome.first.setdefault(one.number, one)
            if (first.body, first.marker) != (one.body, one.marker):
                outcome.conflicts.append(one.number)
    return dict(found)


def wild_capture(seed: int, *, size: int = 120, sequences: int = 5, conflicts: bool = True) -> list[Captured]:
    """Messages of several Sequences in every version, lost, doubled and out of order, what is said of them, and
    rubbish. All at places of their own, which are the order of arrival."""
    random = Random(seed)
    makers = [_Maker(random, number, conflicts) for number in range(sequences)]
    made: list[dict[str, Any]] = []
    for _ in range(size):
        made += [random.choice(makers).something()] * random.choice((1, 1, 1, 2))
    random.shuffle(made)
    return [Captured(source=f"f{at % 3}", position=at, captured_at=at // 4, **one) for at, one in enumerate(made)]


class _Maker:
    """Makes what is captured of one Sequence."""

    def __init__(self, random: Random, number: int, conflicts: bool) -> None:
        self.random = random
        self.versions: Versions = random.choice(ALL_VERSIONS)
        self.identifier = f"urn:uuid:s{number // 2}" if random.random() < 0.2 else f"urn:uuid:s-{number}&é"
        self.length = random.choice((1, 5, 12, 40))
        self.conflicts = conflicts

    @property
    def key(self) -> Key:
        return self.identifier, self.versions.rm.value

    def something(self) -> dict[str, Any]:
        if self.random.random() < 0.8:
            return self.message()
        created = self.created if self.versions.rm.can.creates else self.asked
        rest = [self.end, self.acknowledgement, self.asked, created, self.rubbish, self.plain]
        return self.random.choice(rest)()

    def envelope(self, action: str = "urn:put") -> Envelope:
        versions = self.versions
        envelope = Envelope(versions.soap, versions.addressing, versions.rm, action=action, to="http://x/y?a=1&b=2")
        envelope.message_id = f"urn:uuid:{self.random.getrandbits(64)}"
        envelope.reply_to = ANONYMOUS_EPR
        return envelope

    def say(self, envelope: Envelope, **says: Any) -> dict[str, Any]:
        content = encode(envelope)
        dress = self.random.randrange(6)
        if dress == 0:
            content = b"POST /y HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content)
        elif dress == 1:
            half = len(content) // 2
            chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (content[:half], content[half:]))
            content = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
        elif dress == 2:
            content = gzip.compress(content)
        return {"content": content, "key": self.key, **says}

    def message(self) -> dict[str, Any]:
        number = self.random.randint(1, self.length)
        envelope = self.envelope()
        variant = self.random.randrange(2) if self.conflicts and self.random.random() < 0.05 else 0
        body = f'<o:put xmlns:o="urn:o">{number} {variant} é&amp;</o:put>'.encode()
        is_last = number == self.length and self.random.random() < 0.5 and self.versions.rm.can.marks_last
        envelope.sequence = Sequence(self.identifier, number, is_last)
        has_marker = is_last and self.versions.rm.can.has_last_message
        marker = has_marker and (not self.conflicts or self.random.random() < 0.5) and number % 2 == 0
        if marker:
            envelope.control, envelope.action, body = LastMessage(), "", b""
        envelope.body = body
        last = number if is_last else 0
        return self.say(envelope, number=number, body=body, marker=marker, last=last)

    def end(self) -> dict[str, Any]:
        envelope = self.envelope("")
        last = self.length if self.versions.rm.can.names_last_number and self.random.random() < 0.7 else None
        closes = self.versions.rm.can.closes and self.random.random() < 0.5
        envelope.control = (CloseSequence if closes else TerminateSequence)(self.identifier, last)
        return self.say(envelope, last=last or 0, ended="closed" if closes else "terminated")

    def acknowledgement(self) -> dict[str, Any]:
        upper = self.random.randint(1, self.length)
        lower = self.random.randint(1, upper)
        envelope = self.envelope("urn:reply")
        final = self.versions.rm.can.has_final and self.random.random() < 0.2
        envelope.acknowledgements = (SequenceAcknowledgement(self.identifier, ((lower, upper),), (), final),)
        return self.say(envelope, ranges=((lower, upper),), ended="closed" if final else "")

    def asked(self) -> dict[str, Any]:
        envelope = self.envelope()
        envelope.ack_requested = (AckRequested(self.identifier),)
        return self.say(envelope)

    def created(self) -> dict[str, Any]:
        envelope = self.envelope("")
        envelope.control = CreateSequenceResponse(self.identifier)
        return self.say(envelope)

    def plain(self) -> dict[str, Any]:
        envelope = self.envelope("urn:nothing")
        envelope.rm = None
        envelope.body = b"<x/>"
        return {**self.say(envelope), "key": None, "why": "plain"}

    def rubbish(self) -> dict[str, Any]:
        whole = self.message()["content"]
        content = self.random.choice(
            [
                b"<s:Envelope",
                b"\xff\xfe\0",
                self.random.randbytes(40),
                b"POST / HTTP/1.1\r\nContent-Length: 99\r\n\r\n<",
                b"<a>" * 100,
                whole[: len(whole) // 2],
                b"\x1f\x8b\x08" + self.random.randbytes(20),
                whole.replace(b"MessageNumber>", b"MessageNumbed>"),
            ]
        )
        if content == whole:  # packed
            content = b"<nothing/>"
        return {"content": content, "why": "unreadable"}
