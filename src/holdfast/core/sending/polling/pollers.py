"""Pollers: the polls of this side, and what their answers mean (WS-MakeConnection 3.2, 3.3).

A client behind a firewall gives its destination an address that contains an identifier of its own, and polls for the
messages that go there. The address is saved with each Sequence that has it. So a later process polls for the same
address, and gets what waits there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.core.deadlines import Deadlines
from holdfast.core.events import Effect, Incident, Respond, Transmit
from holdfast.core.faults import ACTION_NOT_SUPPORTED, MUST_UNDERSTAND, REFUSES_ACCOUNT, WSRM_REQUIRED
from holdfast.core.messages import (
    MC_ANONYMOUS,
    MC_NS,
    CloseSequence,
    Control,
    CreateSequence,
    Envelope,
    Fault,
    MakeConnection,
    RequestAcknowledgement,
    TerminateSequence,
    is_polled,
)
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.outbound_sequences import OutboundSequences
from holdfast.core.sending.polling.poller import Poller
from holdfast.core.sending.reasons import NOT_POLLED
from holdfast.core.states.poller import PollerAction, PollerEvent, PollerState

if TYPE_CHECKING:
    from holdfast.core.sending.composer import Offered
    from holdfast.core.sending.outboxes.outbox import Outbox

MOST_ACKNOWLEDGED = 8
"""Sequences of replies that one poll acknowledges."""
_REFUSALS = frozenset({"Sender", "Client", MUST_UNDERSTAND, ACTION_NOT_SUPPORTED})
"""Codes of SOAP and WS-Addressing with which a receiver refuses a message that it does not know."""


class Posted:
    """The back-channel of a request that came in the answer to a poll: the answer is posted to its sender."""

    __slots__ = ("to",)

    def __init__(self, to: str) -> None:
        self.to = to


def is_request(control: Control | None) -> bool:
    """Whether a protocol message that waited for a poll wants an answer."""
    return isinstance(control, CreateSequence | CloseSequence | TerminateSequence | RequestAcknowledgement)


def is_poll(sent: Transmit) -> bool:
    """Whether a transmission is a poll of this side."""
    return type(sent.envelope.control) is MakeConnection


class Pollers:
    """The polls of one endpoint.

    Args:
        jitter: Returns a number in [0, 1), another at each call.
        pause_of: Returns until when a destination asks to be left alone; 0 if it does not.
    """

    def __init__(
        self,
        effects: list[Effect],
        sequences: OutboundSequences,
        offered: Offered,
        new_identifier: Callable[[], str],
        jitter: Callable[[], float],
        pause_of: Callable[[str], float],
    ) -> None:
        self._effects = effects
        self._sequences = sequences
        self._offered = offered
        self._new_identifier = new_identifier
        self._jitter = jitter
        self._pause_of = pause_of
        self._pollers: dict[str, Poller] = {}
        """Address -> its poller. They stay: a destination has one address in each run, and those of earlier runs."""
        self._addresses: dict[str, str] = {}
        """Destination -> address of its further Sequences."""
        self._unacknowledged: dict[str, dict[str, None]] = {}
        """Address -> Identifiers of the Sequences of replies that the next poll acknowledges."""
        self._deadlines = Deadlines()

    # --- which there are ------------------------------------------------------------------------------------------

    def address_for(self, to: str) -> str:
        """Return the address for messages from a destination, known or new (WS-MakeConnection 3.1)."""
        address = self._addresses.get(to)
        if address is None:
            unique = self._new_identifier().rpartition(":")[2]
            address = self._addresses[to] = MC_ANONYMOUS + unique
        return address

    def add(self, outbox: Outbox, source: RMSource) -> None:
        """Register a Sequence, new or recovered, if its address is one of this side that is polled."""
        if is_polled(source.address) and outbox.to is not None:
            self._addresses.setdefault(outbox.to, source.address)
            poller = self._pollers.get(source.address)
            if poller is None:
                poller = self._pollers[source.address] = Poller(outbox.to, source.address)
            poller.add(source)

    def remove(self, source: RMSource) -> None:
        poller = self._pollers.get(source.address)
        if poller is not None:
            poller.remove(source)

    # --- what may come --------------------------------------------------------------------------------------------

    def see(self, outbox: Outbox, now: float) -> None:
        """Note what the Sequence of an outbox expects, after a turn or an event that may have changed it."""
        source = outbox.source
        poller = self._pollers.get(source.address) if source is not None else None
        if source is None or poller is None:
            return
        if poller.see(source, now, is_held_back=outbox.lifecycle.is_held_back):
            self._happen(poller, PollerEvent.EXPECTED, now)

    def expect(self, source: RMSource, now: float) -> None:
        """Note that a request leaves for the first time: its reply may be ready soon, whatever else is awaited."""
        poller = self._pollers.get(source.address)
        if poller is not None:
            self._happen(poller, PollerEvent.EXPECTED, now)

    def asked(self, source: RMSource) -> None:
        """Note that the exchange of a request that begins or ends a Sequence is over: the answer may come by a poll."""
        poller = self._pollers.get(source.address)
        if poller is not None:
            poller.asked.add(source.local_id)

    def owe(self, sent: Transmit, identifier: str) -> None:
        """Note that a message of a Sequence of replies came: the next poll acknowledges it."""
        owed = self._unacknowledged.setdefault(_address(sent), {})
        owed[identifier] = None
        if len(owed) > MOST_ACKNOWLEDGED:
            del owed[next(iter(owed))]  # its source gives its message again

    # --- when -----------------------------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """Return when :meth:`pump` must be called next; None: not before an event."""
        return self._deadlines.next()

    def pump(self, now: float) -> None:
        for address in self._deadlines.due(now):
            poller = self._pollers[address]
            # A destination that asks for a pause (Retry-After) is not polled either.
            until = max(poller.due, self._pause_of(poller.to))
            if now < until:
                self._deadlines.want(address, until)
            elif self._happen(poller, poller.due_event(now), now) is PollerAction.POLL:
                self._poll(poller)

    def _happen(self, poller: Poller, event: PollerEvent, now: float) -> PollerAction | None:
        action = poller.happen(event, self._jitter(), now)
        self._deadlines.forget(poller.address)
        if poller.state in _TIMED:
            self._deadlines.want(poller.address, poller.due)
        return action

    def _poll(self, poller: Poller) -> None:
        versions = next(reversed(poller.sources.values())).versions
        envelope = Envelope(versions.soap, versions.addressing, versions.rm, to=poller.to)
        envelope.message_id = self._new_identifier()
        envelope.control = MakeConnection(poller.address)
        owed = self._unacknowledged.pop(poller.address, {})
        found = [self._offered.acknowledgement(identifier) for identifier in owed]
        envelope.acknowledgements = tuple(one for one in found if one is not None and one.ranges)
        self._effects.append(Transmit(poller.to, envelope))

    # --- answers --------------------------------------------------------------------------------------------------

    def answered(self, sent: Transmit, envelope: Envelope | None, now: float) -> None:
        """Process the answer to a poll, after its content (WS-MakeConnection 3.3, 4.1, 4.2)."""
        poller = self._pollers.get(_address(sent))
        if poller is None:
            return
        fault = envelope.fault if envelope is not None else None
        if envelope is None:
            event = PollerEvent.EMPTY
        elif fault is not None and _is_of_poll(sent, envelope, fault):
            event = PollerEvent.REFUSED if _is_refusal(fault) else PollerEvent.FAILED
        else:
            # WS-MakeConnection 3.3: MessagePending says that another poll finds a message at once.
            event = PollerEvent.MORE if envelope.message_pending else PollerEvent.MESSAGE
        if self._happen(poller, event, now) is PollerAction.STOP and fault is not None:
            self._stop(poller, fault, now)

    def failed(self, sent: Transmit, now: float) -> None:
        """Process a poll that got no answer."""
        poller = self._pollers.get(_address(sent))
        if poller is not None:
            self._happen(poller, PollerEvent.FAILED, now)

    def _stop(self, poller: Poller, fault: Fault, now: float) -> None:
        """Stop the outboxes that a destination cannot answer: it has no MakeConnection, or refuses the credentials."""
        detail = {"to": poller.to, "code": fault.code, "reason": fault.reason}
        self._effects.append(Incident("polls.refused", level="warning", detail=detail))
        for local_id in list(poller.sources):
            outbox = self._sequences.by_local_id[local_id]
            if not outbox.lifecycle.is_held_back and fault.code in REFUSES_ACCOUNT:
                outbox.stop(fault.code, fault.reason, now)
            elif not outbox.lifecycle.is_held_back:
                outbox.stop(NOT_POLLED, f"{fault.code}: {fault.reason}", now)
            self.see(outbox, now)

    def outboxes(self, sent: Transmit) -> list[Outbox]:
        poller = self._pollers.get(_address(sent))
        return [] if poller is None else [self._sequences.by_local_id[name] for name in poller.sources]

    # --- who may say what -----------------------------------------------------------------------------------------

    def misdirected(self, sent: Transmit, envelope: Envelope) -> str:
        """Return why the answer to a poll is ignored: it is for another endpoint that polls; "" if it is for this."""
        # A faulty destination, or another's message: it would be accepted under the wrong authority.
        if envelope.to is None or not is_polled(envelope.to) or envelope.to == _address(sent):
            return ""
        return f"the answer to a poll for {_address(sent)} is a message for {envelope.to}"

    def only_from(self, identifier: str) -> str | None:
        """Return the destination that alone may send in a Sequence of replies; None: this room sets no limit."""
        outbox = self._sequences.by_offer.get(identifier)
        source = outbox.source if outbox is not None else None
        return outbox.to if outbox is not None and source is not None and source.address in self._pollers else None

    def posted(self, effects: list[Effect]) -> list[Effect]:
        """Return the effects with every answer to a polled request as a message that is posted to its sender."""
        return [one for effect in effects for one in _posted(effect)] if self._pollers else effects


_TIMED = frozenset({PollerState.WAITING, PollerState.POLLING})


def _address(sent: Transmit) -> str:
    poll = sent.envelope.control
    return poll.address if type(poll) is MakeConnection else ""


def _is_of_poll(sent: Transmit, envelope: Envelope, fault: Fault) -> bool:
    """Whether a fault is about the poll itself, not a message that waited for one."""
    if envelope.sequence is not None or (fault.is_rm and fault.identifier is not None):
        return False
    return envelope.relates_to in (None, sent.envelope.message_id)


def _is_refusal(fault: Fault) -> bool:
    """Whether a destination will never answer polls, as far as its fault tells."""
    # WS-MakeConnection 4.1, 4.2: a receiver that wants another selection. Any other one does not know the message.
    if fault.code_namespace == MC_NS or fault.code == WSRM_REQUIRED or fault.code in REFUSES_ACCOUNT:
        return True
    return not fault.code_namespace and (fault.sender or fault.is_addressing) and fault.code in _REFUSALS


def _posted(effect: Effect) -> list[Effect]:
    channel: object = effect.back_channel if type(effect) is Respond else None
    if type(effect) is not Respond or type(channel) is not Posted:
        return [effect]
    if effect.envelope is None:
        return []
    effect.envelope.to = channel.to
    return [Transmit(channel.to, effect.envelope)]
