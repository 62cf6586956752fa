"""Lifecycle of an outbox: whether it sends, why not, and how it asks for its next Sequence."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.events import Stopped
from holdfast.core.records import State
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.core.rm_source.acknowledgement_history import Retractions
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.outboxes.forwarder_state import HeldBack
from holdfast.core.states.outbox import OUTBOX_TABLE, OutboxAction, OutboxEvent, OutboxState
from holdfast.core.states.table import step
from holdfast.core.versions import Versions

Choice = tuple[Versions, bool]
"""Variant of CreateSequence: its versions, and whether it has an Offer."""

_ENDING = (OutboxState.ENDING, OutboxState.SUSPENDED_ENDING, OutboxState.STOPPED_ENDING)


@dataclass(frozen=True, slots=True, eq=False)
class Unwelcome:
    """A destination that grants no Sequence, in whatever way it is asked.

    Args:
        first_at: When it had refused every way first.
        reason: What was said last.
        times: How often it has refused every way.
    """

    first_at: float
    reason: str = ""
    times: int = 0


class OutboxLifecycle:
    """The state of an outbox, and what it knows about asking for a Sequence."""

    def __init__(self, key: str):
        self._key = key
        self.choices: list[Choice] = []
        """Variants of CreateSequence to try, in order. All outboxes of one address share them."""
        self.refused: set[Choice] = set()
        """Variants refused since the destination last granted a Sequence, or since the operator resumed the outbox."""
        self.put_off = False
        """Whether any of them was refused for a cause that may pass."""
        self.state = OutboxState.OPEN
        self.stopped = ""
        """Why the outbox sends nothing until an operator resumes it, as a code; empty: it sends."""
        self.stopped_for = ""
        """The same in words."""
        self.refused_message: tuple[str, int] | None = None
        """The Sequence and the number of the message that it stopped for; None: it did not stop for a message."""
        self.in_doubt: str | None = None
        """The numbers of the lost Sequence that may have arrived, "" if unknown; None: it lost no Sequence."""
        self.retracted = Retractions()
        self.suspended: str | None = None
        """The operator's reason to suspend the outbox; None: it is not suspended."""
        self.held_back: HeldBack | None = None
        """Set while nothing is sent and requesters may wait."""
        self.ignored_offers = 0
        """Sequences in a row for which the destination did not accept the Offer, after a repeated CreateSequence."""
        self.cut_creations = 0
        """Times in a row that a connection ended without an answer to CreateSequence."""
        self.unaccepted_creations = 0
        """Times in a row that no answer to a CreateSequence of the present variant was accepted."""
        self.recovered_creation = ""
        """``local_id`` of the Sequence for which an earlier run may have sent CreateSequence."""
        self.unwelcome: Unwelcome | None = None
        """Set while the destination grants no Sequence, and is asked again without an operator."""
        self.fruitless = 0
        """Sequences in a row that ended soon, with nothing acknowledged."""
        self.begins_at = 0.0
        """When the next Sequence may be asked for."""

    def handle(self, event: OutboxEvent) -> OutboxAction | None:
        action, self.state = step(OUTBOX_TABLE, self.state, event, f"the outbox {self._key!r}")
        return action

    def suspend(self, reason: str) -> OutboxAction | None:
        """Send nothing until the operator resumes the outbox. A stopped outbox stays stopped."""
        action = self.handle(OutboxEvent.SUSPEND)
        if action is OutboxAction.HOLD_BACK:
            self.suspended = reason
        return action

    def stop(
        self, code: str, reason: str = "", refused: tuple[str, int] | None = None, in_doubt: str | None = None
    ) -> OutboxAction | None:
        """Enter the state in which nothing is sent; :meth:`Outbox.stop` also saves and reports it."""
        self.stopped, self.stopped_for, self.refused_message, self.in_doubt = code, reason, refused, in_doubt
        self.suspended = self.held_back = None
        return self.handle(OutboxEvent.STOP)

    @property
    def as_stopped(self) -> Stopped:
        """Why it is stopped, as it was reported when it stopped; without the offsets in doubt, which are not saved."""
        first, last = (1, 0) if self.in_doubt is None else (0, 0)
        reason = self.stopped_for or "no reason is stored"
        return Stopped(self._key, self.stopped, reason, first, last, self.refused_message, self.in_doubt or "")

    def resume(self) -> OutboxAction | None:
        """Leave that state, and forget what was refused; :meth:`Outbox.resume` also saves it."""
        self.stopped = self.stopped_for = ""
        self.refused_message = self.in_doubt = None
        self.suspended = self.held_back = None
        self.refused.clear()
        self.put_off, self.unwelcome = False, None
        self.unaccepted_creations = 0
        self.fruitless, self.begins_at = 0, 0.0
        return self.handle(OutboxEvent.RESUME)

    @property
    def is_held_back(self) -> bool:
        """Whether the outbox sends nothing until an operator resumes it."""
        return bool(self.stopped) or self.suspended is not None

    @property
    def is_ending(self) -> bool:
        """Whether nothing more will be put in."""
        return self.state in _ENDING

    @property
    def next_choice(self) -> Choice | None:
        """Return the variant for the next CreateSequence; None if the destination refused all."""
        return next((choice for choice in self.choices if choice not in self.refused), None)

    def is_repeated_creation(self, source: RMSource) -> bool:
        """Whether the CreateSequence of the present Sequence was sent more than once, perhaps by an earlier run."""
        # The first repeat clears the time, because its answer measures no round trip.
        return source.control.request_sent_at is None or self.recovered_creation == source.local_id

    def refuse(self, choice: Choice) -> None:
        """Note that the peer refused a choice. From now on the others come first, for every outbox to its address. No
        choice is excluded permanently, because the peer may refuse another Sequence for another reason."""
        self.refused.add(choice)
        if choice in self.choices:
            self.choices.remove(choice)
            self.choices.append(choice)

    def ask_later(self, unwelcome: Unwelcome, at: float) -> None:
        """Try every variant again, from a time on."""
        self.unwelcome, self.begins_at, self.put_off = unwelcome, at, False
        self.refused.clear()

    def pause_after(self, source: RMSource, policy: RetransmissionPolicy, now: float) -> float:
        """Return the seconds until the next Sequence may be asked for, after one that is over. A destination that ends
        each Sequence before it acknowledges anything would be asked again without a pause."""
        # It acknowledged something, or lived for longer than the longest pause: no loop.
        if len(source.acknowledged) or now - source.created_at > policy.cap:
            self.fruitless = 0
            return 0.0
        self.fruitless += 1
        # The first such end costs no pause: a destination that restarts ends every Sequence once.
        pause = 0.0 if self.fruitless == 1 else min(policy.cap, policy.floor * 2.0 ** min(self.fruitless - 2, 30))
        self.begins_at = now + pause
        return pause

    def to_state(self) -> State:
        choices = [[v.rm.value, v.addressing.value, v.soap.value, offer] for v, offer in self.choices]
        state: State = {"choices": choices, "stopped": self.stopped}
        if self.stopped_for:
            state["stopped_for"] = self.stopped_for
        if self.refused_message is not None:
            state["refused_message"] = [*self.refused_message]
        if self.in_doubt is not None:
            state["in_doubt"] = self.in_doubt
        if (retracted := self.retracted.to_state()) is not None:
            state["retracted"] = retracted
        return state if self.suspended is None else state | {"suspended": self.suspended}

    def restore(self, state: State) -> None:
        self.retracted.restore(state.get("retracted"))
        if state.get("stopped"):
            identifier, number = state.get("refused_message") or ("", 0)
            refused = (identifier, number) if number else None
            self.stop(state["stopped"], state.get("stopped_for", ""), refused, state.get("in_doubt"))
        elif isinstance(state.get("suspended"), str):
            self.suspend(state["suspended"])
        # Only a peer's request opens an outbox of replies again, so the outbox must know its versions.
        self.choices = [
            (Versions(rm, addressing, soap), offer) for rm, addressing, soap, offer in state.get("choices", ())
        ]
