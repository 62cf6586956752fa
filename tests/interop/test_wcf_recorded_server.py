"""What a real WCF server was recorded to answer to our source: each answer leads to the state that it must lead to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sending import Sending
from wcf.vectors import SERVER, Recorded, cases, load

from holdfast.core.events import Declined, Delivered, Transmit
from holdfast.core.faults import SEQUENCE_CLOSED
from holdfast.core.messages import (
    Acknowledge,
    CloseSequence,
    CloseSequenceResponse,
    CreateSequence,
    CreateSequenceResponse,
    Envelope,
    LastMessage,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.records import Record
from holdfast.core.versions import Versions
from holdfast.wire import decode

pytestmark = pytest.mark.interop

ENDS = (LastMessage, CloseSequence, TerminateSequence)


def _session_of(request: Envelope) -> str:
    """The Sequence that a request of ours is about; "" for a CreateSequence."""
    if request.sequence is not None:
        return request.sequence.identifier
    if isinstance(request.control, CloseSequence | TerminateSequence):
        return request.control.identifier
    return request.ack_requested[0].identifier if request.ack_requested else ""


class Session:
    """Our source's core in one recorded session, up to an exchange. It asks what was asked then, and is told what the
    server answered then, but for what leads to another state: the names of messages and of the offered Sequence."""

    def __init__(self, exchanges: list[Recorded], identifier: str) -> None:
        self.sending = Sending()
        self.requests = {one.number: decode(one.request) for one in exchanges}
        (self.creation,) = [one for one in exchanges if _grants(one, identifier)]
        create = self.requests[self.creation.number]
        assert isinstance(create.control, CreateSequence) and create.rm is not None and create.addressing is not None
        versions = Versions(create.rm.value, create.addressing.value, create.soap.value)
        self.sending.choices = [(versions, create.control.offer is not None)]
        self.outbox = self.sending.open()
        self.left: dict[int | type, Transmit] = {}
        """The last transmission of each message by its number, of each other request by its kind."""
        self._messages = {
            request.sequence.message_number: request
            for request in reversed(self.requests.values())
            if request.sequence is not None and request.sequence.identifier == identifier and request.body
        }
        self._submit(1)
        ours = self.left[CreateSequence].envelope.control
        assert isinstance(ours, CreateSequence)
        self.offered = ours.offer.identifier if ours.offer is not None else ""
        theirs = create.control.offer.identifier if create.control.offer is not None else ""
        self._names = {theirs: self.offered} if theirs else {}

    def _submit(self, number: int) -> None:
        """Every message up to ``number``, as it was sent in the session."""
        for one in range(self.outbox.end + 1, number + 1):
            request = self._messages[one]
            record = Record("a", 0, request.action, request.body, self.sending.now, f"urn:m:{one}")
            record.wants_reply = request.reply_to is not None
            self.sending.protocol.submit(self.outbox, record, self.sending.now)
        self._look()

    def _look(self) -> list[Transmit]:
        taken = self.sending.take()
        for sent in taken:
            kind = sent.envelope.control
            self.left[sent.number if kind is None else type(kind)] = sent
        return taken

    def sent(self, request: Envelope) -> Transmit:
        """The request as our source sends it now."""
        name: int | type
        if request.control is not None and not (request.sequence and request.body):
            name = type(request.control)
        else:
            assert request.sequence is not None
            name = request.sequence.message_number
            self._submit(name)
        if name in ENDS and name not in self.left:
            self.sending.protocol.outbound.want_end(self.outbox, self.sending.now)
            self._look()
        for _ in range(20):
            if name in self.left:
                break
            self.sending.now += 1.0
            self._look()
        return self.left[name]

    def replay(self, exchange: Recorded) -> tuple[Transmit, Envelope | None, list[Transmit]]:
        """Answer it as it was answered: to what, with what, and what our source sends then."""
        request = self.requests[exchange.number]
        sent = self.sent(request)
        names = self._names | ({request.message_id: sent.envelope.message_id or ""} if request.message_id else {})
        data = exchange.response
        for theirs, ours in names.items():
            data = data.replace(theirs.encode(), ours.encode())
        answer = decode(data) if data else None
        self.sending.protocol.received(sent, answer, self.sending.now)
        return sent, answer, self._look()


def _grants(exchange: Recorded, identifier: str) -> bool:
    control = decode(exchange.response).control if exchange.response else None
    return isinstance(control, CreateSequenceResponse) and control.identifier == identifier


def _is_refusal(exchange: Recorded) -> bool:
    fault = decode(exchange.response).fault if exchange.response else None
    return fault is not None and fault.is_rm


def _sessions(exchanges: list[Recorded]) -> dict[int, str]:
    """The Sequence that each exchange is about."""
    found = {}
    for one in exchanges:
        control = decode(one.response).control if one.response else None
        granted = control.identifier if isinstance(control, CreateSequenceResponse) else ""
        found[one.number] = granted or _session_of(decode(one.request))
    return found


EXCHANGES = [
    pytest.param(case, one.number, id=f"{case}-{one.number:04}")
    for case in cases(SERVER)
    for one in load(case, SERVER)
    if one.response_head
]


@pytest.mark.parametrize(("case", "number"), EXCHANGES)
def test_each_recorded_answer_leads_to_the_state_that_it_must_lead_to(case: str, number: int) -> None:
    exchanges = [one for one in load(case, SERVER) if one.response_head]
    about = _sessions(exchanges)
    mine = [one for one in exchanges if one.number <= number and about[one.number] == about[number]]
    session = Session([one for one in exchanges if about[one.number] == about[number]], about[number])
    for one in mine[:-1]:
        if not _is_refusal(one):
            session.replay(one)
    before = len(session.sending.told)
    sent, answer, then = session.replay(mine[-1])
    told = session.sending.told[before:]
    if answer is None:
        _nothing(session, sent)
    elif answer.fault is not None and answer.fault.is_rm:
        _refused(session, sent, answer, then)
    elif answer.control is not None:
        _KINDS[type(answer.control)](session, sent, answer, then)
    else:
        _spoken(session, sent, answer, told)


def _nothing(session: Session, sent: Transmit) -> None:
    """202, and nothing in it: what came early was dropped, and is still to be sent."""
    assert session.outbox.source is not None
    assert sent.number in session.outbox.source.flight


def _refused(session: Session, sent: Transmit, answer: Envelope, then: list[Transmit]) -> None:
    assert answer.fault is not None
    if answer.fault.identifier == session.offered:
        # The Sequence of its replies is unknown to it. What it thinks of ours it says to a message that does not
        # acknowledge that one: so the same goes again at once, without.
        (again,) = [
            one
            for one in then
            if one.number == sent.number and type(one.envelope.control) is type(sent.envelope.control)
        ]
        assert again.envelope.acknowledgements == ()
        return
    source = session.outbox.source
    others = [] if source is None else [one for one in source.flight if one != sent.number]
    if answer.fault.code == SEQUENCE_CLOSED:
        assert [type(one.envelope.control) for one in then] == [TerminateSequence], (
            "its acknowledgement is the last word"
        )
    elif not others:
        assert [type(one.envelope.control) for one in then] == [CreateSequence], "it goes on: nothing is in doubt"
    else:
        assert then == [] and not session.sending.stopped, "it waits for the answers to the others"


def _granted(session: Session, _sent: Transmit, answer: Envelope, then: list[Transmit]) -> None:
    source = session.outbox.source
    assert isinstance(answer.control, CreateSequenceResponse) and source is not None
    assert source.identifier == answer.control.identifier
    if session.offered:
        assert (
            answer.control.accept_acks_to is not None
            and session.offered in session.sending.protocol.inbound.destinations
        )
    assert [one.number for one in then][:1] == [1]


def _acknowledged(session: Session, _sent: Transmit, answer: Envelope, _then: list[Transmit]) -> None:
    source = session.outbox.source
    (acknowledgement,) = answer.acknowledgements
    for lower, upper in acknowledgement.ranges:
        for number in range(lower, upper + 1):
            assert source is None or number in source.acknowledged or number in source.unreplied


def _closed(session: Session, _sent: Transmit, answer: Envelope, then: list[Transmit]) -> None:
    assert any(isinstance(one.envelope.control, TerminateSequence) for one in then)


def _ended(session: Session, _sent: Transmit, answer: Envelope, then: list[Transmit]) -> None:
    assert session.outbox.source is None and then == []


def _spoken(session: Session, sent: Transmit, answer: Envelope, told: list[object]) -> None:
    """A message of the Sequence that was offered: a reply, a fault in its place, or one about a one-way message."""
    assert answer.sequence is not None and session.outbox.source is not None
    if sent.envelope.reply_to is not None:
        (delivered,) = [one for one in told if isinstance(one, Delivered)]
        assert delivered.record.relates_to == sent.envelope.message_id and delivered.record.body == answer.body
        assert sent.number in session.outbox.source.acknowledged
    else:
        (declined,) = [one for one in told if isinstance(one, Declined)]
        assert (declined.fault, declined.message_id) == (answer.fault, sent.envelope.message_id)
    assert answer.sequence.message_number in session.sending.protocol.inbound.destinations[session.offered].accepted


_KINDS: dict[type, Callable[[Session, Transmit, Envelope, list[Transmit]], None]] = {
    Acknowledge: _acknowledged,
    CreateSequenceResponse: _granted,
    LastMessage: _closed,
    CloseSequenceResponse: _closed,
    TerminateSequence: _ended,
    TerminateSequenceResponse: _ended,
}
