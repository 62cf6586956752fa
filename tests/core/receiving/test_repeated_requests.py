"""A request on several exchanges at once: one gets the reply, the others get it when that one has been read.

A client may read two exchanges of a request into one object (CXF), and any of them may be cut without a word.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from asked import Endpoint, ranges

from holdfast.core.messages import (
    ANONYMOUS_EPR,
    Acknowledge,
    AckRequested,
    CloseSequence,
    Envelope,
    Fault,
    Offer,
    Sequence,
    SequenceAcknowledgement,
    TerminateSequence,
)
from holdfast.core.receiving.replies import APART
from holdfast.core.records import Record
from holdfast.core.versions import Addressing

SOON = 0.6 * APART
"""Less than an exchange waits for; twice this is more."""


def tell(request: Record, fault: Fault, _addressing: Addressing) -> Record:
    return Record("", 0, "urn:fault", fault.reason.encode(), 0.0)


@dataclass
class Repeated:
    """A requester that sends its request on one exchange after the other, and reads them all."""

    rm: str = "1.1"
    is_offered: bool = True
    has_reply_to: bool = True
    exchanges: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.endpoint = Endpoint(self.rm, tell=tell)
        self.identifier = self.endpoint.create(**({"offer": Offer("urn:o")} if self.is_offered else {}))

    def repeat(self, number: int = 1, *, asks: bool = False) -> None:
        endpoint, exchange = self.endpoint, object()
        envelope = endpoint.envelope(
            sequence=Sequence(self.identifier, number),
            action="urn:a",
            body=b"<m/>",
            message_id=f"urn:m{number}",
            reply_to=ANONYMOUS_EPR if self.has_reply_to else None,
            ack_requested=(AckRequested(self.identifier),) if asks else (),
        )
        endpoint.protocol.receive(envelope, exchange, endpoint.now)
        endpoint.settle()
        self.exchanges.append(exchange)

    def reply(self, number: int = 1, *, is_fault: bool = False) -> None:
        endpoint = self.endpoint
        record = next(record for record in endpoint.records() if record.message_number == number)
        answer = Record("", 0, "urn:reply", b"<r/>", 0.0)
        if is_fault:
            answer = tell(record, Fault("Sender", "no"), Addressing.V2005_08)
        if self.has_reply_to:
            endpoint.protocol.replies.reply(record, answer, endpoint.now)
        else:
            assert endpoint.protocol.replies.keep(record, answer, endpoint.now)
        endpoint.settle()

    @property
    def heard(self) -> list[bytes | None]:
        """Of each exchange in turn the body of its answer: None while it is open."""
        return [self._heard(exchange) for exchange in self.exchanges]

    def _heard(self, exchange: object) -> bytes | None:
        if exchange not in self.endpoint.answers:
            return None
        answer = self.endpoint.answers[exchange]
        return b"202" if answer is None else answer.body

    def answer(self, index: int) -> Envelope | None:
        return self.endpoint.answers[self.exchanges[index]]


kinds = pytest.mark.parametrize(
    ("rm", "is_offered"), [(rm, is_offered) for rm in ("1.0", "1.1") for is_offered in (True, False)]
)


@kinds
@pytest.mark.parametrize("is_fault", [False, True])
def test_the_oldest_open_exchange_gets_the_reply_alone_and_the_others_a_moment_later(
    rm: str, is_offered: bool, is_fault: bool
) -> None:
    client = Repeated(rm, is_offered)
    for _ in range(3):
        client.repeat()
        client.endpoint.pass_time(1.0)
    client.reply(is_fault=is_fault)
    text = b"no" if is_fault else b"<r/>"
    assert client.heard == [text, None, None]
    client.endpoint.pass_time(SOON)
    assert client.heard == [text, None, None]
    client.endpoint.pass_time(SOON)
    assert client.heard == [text] * 3
    answers = [client.answer(index) for index in range(3)]
    assert [answer and answer.sequence for answer in answers] == [Sequence("urn:o", 1) if is_offered else None] * 3
    assert [ranges(answer) for answer in answers] == [((1, 1),)] * 3


@kinds
@pytest.mark.parametrize("has_reply_to", [True, False])
def test_a_repeat_that_crosses_the_reply_gets_it_a_moment_later(rm: str, is_offered: bool, has_reply_to: bool) -> None:
    client = Repeated(rm, is_offered, has_reply_to)
    client.repeat()
    client.reply()
    if not has_reply_to:
        client.endpoint.pass_time(1.0)
        client.repeat()
    client.endpoint.pass_time(SOON)
    client.repeat()
    assert client.heard[-2:] == [b"<r/>", None]
    client.endpoint.pass_time(SOON)
    assert client.heard[-2:] == [b"<r/>"] * 2
    client.endpoint.pass_time(APART)
    client.repeat()
    assert client.heard[-1] == b"<r/>"


def test_a_request_does_not_wait_for_the_repeats_of_another() -> None:
    client = Repeated()
    for number in (1, 2):
        client.repeat(number)
        client.repeat(number)
    client.reply(1)
    client.reply(2)
    assert client.heard == [b"<r/>", None, b"<r/>", None]
    client.endpoint.pass_time(APART)
    assert client.heard == [b"<r/>"] * 4


@pytest.mark.parametrize("asks", [False, True])
def test_an_exchange_after_its_acknowledged_reply_gets_only_what_it_requests(
    asks: bool,
) -> None:
    client = Repeated()
    client.repeat()
    client.repeat(asks=asks)
    client.reply()
    client.endpoint.ask(control=Acknowledge(), acknowledgements=(SequenceAcknowledgement("urn:o", ((1, 1),)),))
    client.endpoint.pass_time(APART)
    assert client.heard == [b"<r/>", b"" if asks else b"202"]
    assert not asks or ranges(client.answer(1)) == ((1, 1),)


@pytest.mark.parametrize("rm", ["1.0", "1.1"])
@pytest.mark.parametrize("is_closed", [False, True])
def test_an_exchange_that_waits_is_answered_although_its_sequence_ends(rm: str, is_closed: bool) -> None:
    client = Repeated(rm)
    client.repeat()
    client.repeat()
    client.reply()
    is_closed = is_closed and rm == "1.1"
    control = CloseSequence(client.identifier, 1) if is_closed else TerminateSequence(client.identifier)
    client.endpoint.ask(control=control, message_id="urn:end")
    client.endpoint.pass_time(APART)
    assert client.heard[0] == b"<r/>"
    assert client.heard[1] is not None


def test_however_many_exchanges_wait_they_wait_only_once() -> None:
    client = Repeated()
    for _ in range(50):
        client.repeat()
    client.reply()
    client.endpoint.pass_time(APART)
    assert client.heard == [b"<r/>"] * 50


def test_when_replies_were_sent_is_forgotten_a_moment_later() -> None:
    client = Repeated()
    for number in range(1, 20):
        client.repeat(number)
        client.reply(number)
        client.endpoint.pass_time(APART)
    assert len(client.endpoint.protocol.replies._replied_at) == 1
