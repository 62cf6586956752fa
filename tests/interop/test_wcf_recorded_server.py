"""What a real WCF server was recorded to answer to our source: each answer leads to the state that it must lead to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sending import Sending
from wcf.vectors import SERVER, Recorded, cases, course, load

from holdfast import Assurance
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
    """Our source's core in a recorded session: it sends what was sent, and gets the answers that came. Only the names
    of messages and of the offered Sequence, which our source chooses, are those of now.

    Args:
        exchanges: Of the session.
        identifiers: Its Sequence, and those in which our source continued after the server had ended the one before.
        policy: Of the source.
    """

    def __init__(self, exchanges: list[Recorded], identifiers: Sequence[str], **policy: Any) -> None:
        self.sending = Sending(**policy)
        self.requests = {one.number: decode(one.request) for one in exchanges}
        creations = [one for identifier in identifiers for one in exchanges if _grants(one, identifier)]
        create = self.requests[creations[0].number]
        assert isinstance(create.control, CreateSequence) and create.rm is not None and create.addressing is not None
        versions = Versions(create.rm.value, create.addressing.value, create.soap.value)
        self.sending.choices = [(versions, create.control.offer is not None)]
        self.outbox = self.sending.open()
        self.left: dict[int | type, Transmit] = {}
        """The last transmission of each message by its number, of each other request by its kind. One that stays
        without an answer is none: our source transmits it again."""
        self._messages: list[Envelope] = []
        self._first: dict[str, int] = {}
        for identifier in identifiers:
            sent = self._sent_in(identifier)
            # The last message of the Sequence before was refused: it is the first one of this one.
            self._first[identifier] = len(self._messages) - bool(self._messages)
            self._messages[self._first[identifier] :] = sent
        self._submit(identifiers[0], 1)
        self.offered = ""
        self._names: dict[str, str] = {}

    def _sent_in(self, identifier: str) -> list[Envelope]:
        """The messages of a Sequence, each once, in order."""
        found = {
            request.sequence.message_number: request
            for request in reversed(self.requests.values())
            if request.sequence is not None and request.sequence.identifier == identifier and request.body
        }
        return [found[number] for number in sorted(found)]

    def _submit(self, identifier: str, number: int) -> None:
        """Every message up to this one of the Sequence, as it was sent in the session."""
        for place in range(self.outbox.records.end, self._first[identifier] + number):
            request = self._messages[place]
            record = Record("a", 0, request.action, request.body, self.sending.now, f"urn:m:{place + 1}")
            record.wants_reply = request.reply_to is not None
            self.sending.protocol.submit(self.outbox, record, self.sending.now)
        self._look()

    def _look(self) -> list[Transmit]:
        taken = self.sending.take()
        for sent in taken:
            self.left[_name(sent)] = sent
        return taken

    def sent(self, request: Envelope, patience: int = 60) -> Transmit:
        """The request as our source sends it now, or within so many seconds.

        Raises:
            KeyError: it does not send that.
        """
        name = _name_of(request)
        if isinstance(name, int):
            assert request.sequence is not None
            self._submit(request.sequence.identifier, name)
        if name in ENDS and name not in self.left:
            self.outbox.want_end(self.sending.now)
            self._look()
        for _ in range(patience):
            if name in self.left:
                break
            self.sending.now += 1.0
            self._look()
        return self.left[name]

    def answer(self, exchange: Recorded, sent: Transmit) -> tuple[Envelope | None, list[Transmit]]:
        """Answer what was sent as the exchange was answered: with what, and what our source sends then."""
        request = self.requests[exchange.number]
        if isinstance(request.control, CreateSequence) and request.control.offer is not None:
            ours = sent.envelope.control
            assert isinstance(ours, CreateSequence) and ours.offer is not None
            self.offered = ours.offer.identifier
            self._names[request.control.offer.identifier] = self.offered
        names = self._names | ({request.message_id: sent.envelope.message_id or ""} if request.message_id else {})
        data = exchange.response
        for theirs, ours_ in names.items():
            data = data.replace(theirs.encode(), ours_.encode())
        answer = decode(data) if data else None
        if sent.envelope.control is not None:
            del self.left[_name(sent)]
        self.sending.protocol.received(sent, answer, self.sending.now)
        return answer, self._look()

    def fail(self, sent: Transmit, *, has_left: bool) -> list[Transmit]:
        """Leave it without an answer: what our source sends then."""
        if self.left.get(_name(sent)) is sent:
            del self.left[_name(sent)]
        self.sending.protocol.failed(sent, self.sending.now, "the connection broke", has_left=has_left)
        return self._look()

    def end_answered(self, sent: Transmit) -> None:
        """Answer a TerminateSequence of which there is no recording: our source continues in a new Sequence."""
        end = sent.envelope.control
        assert isinstance(end, TerminateSequence)
        del self.left[TerminateSequence]
        self.sending.answer(sent, control=TerminateSequenceResponse(end.identifier))
        assert [type(one.envelope.control) for one in self._look()] == [CreateSequence]

    def repeats(self, sent: Transmit) -> bool:
        """Whether our source transmits it again within a minute."""
        for _ in range(60):
            if self.left.get(_name(sent), sent) is not sent:
                return True
            self.sending.now += 1.0
            self._look()
        return False


def _name_of(request: Envelope) -> int | type:
    """What ``Session.left`` calls a recorded request."""
    if request.control is not None and not (request.sequence and request.body):
        return type(request.control)
    assert request.sequence is not None
    return request.sequence.message_number


def _name(sent: Transmit) -> int | type:
    """What ``Session.left`` calls a transmission."""
    control = sent.envelope.control
    return sent.number if control is None else type(control)


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
    pytest.param(case, one.number, id=f"{case}-{one.number:04}") for case in cases(SERVER) for one in load(case, SERVER)
]


@pytest.mark.parametrize(("case", "number"), EXCHANGES)
def test_each_recorded_answer_leads_to_the_state_that_it_must_lead_to(case: str, number: int) -> None:
    exchanges = {one.number: one for one in load(case, SERVER)}
    about = _sessions(list(exchanges.values()))
    seen = course(case)
    is_unanswered = (number, "answer") not in seen
    session = Session([one for one in exchanges.values() if about[one.number] == about[number]], [about[number]])
    for one in exchanges.values():
        is_before = one.number < number and about[one.number] == about[number] and (one.number, "answer") in seen
        if is_unanswered:
            is_before = is_before and seen.index((one.number, "answer")) < seen.index((number, "request"))
        if is_before and not _is_refusal(one):
            session.answer(one, session.sent(session.requests[one.number]))
    sent = session.sent(session.requests[number])
    if is_unanswered:
        session.fail(sent, has_left=(number, "refused") not in seen)
        _unanswered(session, sent)
    else:
        _answered(session, exchanges[number], sent)


@pytest.mark.parametrize("case", cases(SERVER))
def test_each_recorded_case_is_replayed_from_its_first_exchange_to_its_last(case: str) -> None:
    Replay(case).run()


@pytest.mark.parametrize(
    ("case", "in_doubt"),
    [
        ("inactivity-after-a-reply-rm10", "7-7"),
        ("restart-after-a-reply-rm10", "2-5"),
        ("restart-after-a-reply-rm11-at-least-once", ""),
    ],
)
def test_a_session_that_the_server_lost_ends_with_its_answer_to_a_message_alone(case: str, in_doubt: str) -> None:
    replay = Replay(case)
    replay.run()
    (session,) = set(replay.sessions.values())
    sending, source = session.sending, session.outbox.source
    assert source is not None
    for number in list(source.flight):
        repeat = session.left[number]
        assert repeat.envelope.acknowledgements == ()
        sending.refuse(repeat, "UnknownSequence", identifier=source.identifier)
    if in_doubt:
        assert [one.in_doubt for one in sending.stopped] == [in_doubt]
    else:
        assert not sending.stopped
        assert CreateSequence in [type(one.envelope.control) for one in sending.take()]


class Replay:
    """A recorded case: our source in each of its sessions, and the exchanges that are open."""

    def __init__(self, case: str) -> None:
        exchanges = load(case, SERVER)
        policy = {"assurance": Assurance.parse("at-least-once in-order")} if "at-least-once" in case else {}
        self._exchanges = {one.number: one for one in exchanges}
        self._about = _sessions(exchanges)
        self._course = course(case)
        self._answered = {number for number, what in self._course if what == "answer"}
        self.sessions: dict[str, Session] = {}
        for chain in _chains(exchanges, self._about):
            session = Session([one for one in exchanges if self._about[one.number] in chain], chain, **policy)
            self.sessions |= dict.fromkeys(chain, session)
        self._open: dict[int, Transmit] = {}
        self._early: list[int] = []
        """Exchanges whose answer came for a message that our source has not sent yet. It used to send more messages at
        once, which overtook each other."""

    def run(self) -> None:
        """Replay the case from its first exchange to its last, and check each state."""
        for number, what in self._course:
            if what == "request":
                self.request(number)
            elif what == "refused":
                self.fail(number, has_left=False)
            else:
                self.answer(number)
        assert self._early == []
        for number in list(self._open):
            self.fail(number)

    def _session(self, number: int) -> Session:
        return self.sessions[self._about[number]]

    def request(self, number: int) -> None:
        """Take what our source sends, after it has learnt that what it repeats had no answer."""
        session = self._session(number)
        mine = [one for one in self._open if self._about[one] == self._about[number]]
        repeated = [one for one in mine if self._name(one) == self._name(number)]
        for one in repeated:
            if one not in self._answered:
                self.fail(one)
        with contextlib.suppress(KeyError):
            self._open[number] = session.sent(session.requests[number], patience=0 if mine and not repeated else 60)

    def _name(self, number: int) -> int | type:
        return _name_of(self._session(number).requests[number])

    def fail(self, number: int, *, has_left: bool = True) -> None:
        """Leave an exchange without an answer, and check the state that this leads to."""
        session, sent = self._session(number), self._open.pop(number)
        session.fail(sent, has_left=has_left)
        if session.outbox.source is not None:  # else a repeat was answered
            _unanswered(session, sent)

    def answer(self, number: int) -> None:
        """Answer an exchange, or later, and check the state that this leads to. A message behind a gap that our source
        does not send so early was dropped: there is nothing to answer."""
        session, exchange = self._session(number), self._exchanges[number]
        if number not in self._open and exchange.response:
            self._early.append(number)
        elif number in self._open:
            _answered(session, exchange, self._open.pop(number))
        for early in list(self._early):
            session = self._session(early)
            try:
                sent = session.sent(session.requests[early], patience=0)
            except KeyError:
                continue
            self._early.remove(early)
            _answered(session, self._exchanges[early], sent)


def _chains(exchanges: list[Recorded], about: dict[int, str]) -> list[list[str]]:
    """The Sequences of a case, each with those in which our source continued: they begin with the refused message."""
    first: dict[str, bytes] = {}
    refused: dict[bytes, str] = {}
    for one in exchanges:
        request = decode(one.request)
        if request.body and request.sequence is not None:
            first.setdefault(about[one.number], request.body)
            if _is_refusal(one):
                refused[request.body] = about[one.number]
    chains: dict[str, list[str]] = {}
    for identifier, body in first.items():
        chain = chains.get(refused.get(body, ""), []) if refused.get(body) != identifier else []
        chain.append(identifier)
        chains[identifier] = chain
    return [chain for identifier, chain in chains.items() if chain[0] == identifier]


def _answered(session: Session, exchange: Recorded, sent: Transmit) -> None:
    """Answer what was sent, and check the state that this leads to."""
    before = len(session.sending.told)
    answer, then = session.answer(exchange, sent)
    told = session.sending.told[before:]
    if answer is None:
        _nothing(session, sent)
    elif answer.fault is not None and answer.fault.is_rm:
        _refused(session, sent, answer, then)
    elif answer.control is not None:
        _KINDS[type(answer.control)](session, sent, answer, then)
    else:
        _spoken(session, sent, answer, told)


def _unanswered(session: Session, sent: Transmit) -> None:
    """No answer: what was sent is to be sent again."""
    source = session.outbox.source
    assert source is not None
    if sent.number:
        assert sent.number in source.flight and sent.number not in source.acknowledged
    assert not session.sending.stopped
    assert session.repeats(sent)


def _nothing(session: Session, sent: Transmit) -> None:
    """202, and nothing in it: what came early was dropped, and is still to be sent."""
    assert session.outbox.source is not None
    assert sent.number in session.outbox.source.flight


def _refused(session: Session, sent: Transmit, answer: Envelope, then: list[Transmit]) -> None:
    assert answer.fault is not None
    if answer.fault.identifier == session.offered:
        # The Sequence of its replies is unknown to it. What it thinks of ours it says to a message that does not
        # acknowledge that one: so the same goes again without, and at once if this one acknowledged it.
        if any(one.identifier == session.offered for one in sent.envelope.acknowledgements):
            assert [_name(one) for one in then] == [_name(sent)]
        assert session.repeats(sent) and session.left[_name(sent)].envelope.acknowledgements == ()
        return
    source = session.outbox.source
    others = [] if source is None else [one for one in source.flight if one != sent.number]
    if answer.fault.code == SEQUENCE_CLOSED:
        (end,) = then
        assert isinstance(end.envelope.control, TerminateSequence), "its acknowledgement is the last word"
        session.end_answered(end)
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
            assert source is None or number in source.acknowledged or number in source.waiting.unreplied


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
