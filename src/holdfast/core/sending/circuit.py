"""Circuits: which addresses nothing is sent to for a while. One for each address, shared by all outboxes to it.

A destination that asks to be left alone is, by everybody. For forwarders there is more: what they send to may be away
for days while they have thousands of Sequences to it. As many attempts in a row without an answer open the circuit;
then one of them tries with one message, again and again, less and less often, and all others are not looked at. The
first answer lets in two more, each answer to those two more, and each begins with a window of one message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.deadlines import Deadlines
from holdfast.core.events import Effect, Incident, Transmit
from holdfast.core.policy import CircuitPolicy
from holdfast.core.sending.outbox import Outbox
from holdfast.core.states import CIRCUIT_TABLE, CircuitAction, CircuitEvent, CircuitState, absent

MOST_REFUSED = 4.0
"""Seconds at most between two attempts where nobody listens, besides the jitter. Such an attempt costs nothing, and who
waits for a reply behind the broker gives up soon: WCF's client after a minute."""

_CLOSED = CircuitState.CLOSED  # an enum's members are slow to look up by its class


@dataclass(slots=True, eq=False)
class Circuit:
    """What is known of one address that forwarders send to.

    Args:
        to: The address.
        policy: When it opens, and how often it is tried.
        state: Whether anything is sent there.
        failures: Attempts without an answer, in a row.
        answered_at: When the last answer came in this run; None: none did.
        reason: Why the last one had none.
        is_refused: Whether that was for want of a connection.
        opened_at: When it opened.
        probe_at: When it is tried, or tried once more.
        tries: How often it was tried in vain.
        prober: The key of the outbox that tries; None: none does.
        has_tried: Whether its message has left.
        room: How many outboxes may send while it ramps.
        let_in: Keys of those that do.
        held: Keys of outboxes that wait, in the order in which they get their turn.
    """

    to: str
    policy: CircuitPolicy
    state: CircuitState = _CLOSED
    failures: int = 0
    answered_at: float | None = None
    reason: str = ""
    is_refused: bool = False
    opened_at: float = 0.0
    probe_at: float = 0.0
    tries: int = 0
    prober: str | None = None
    has_tried: bool = False
    room: int = 0
    let_in: set[str] = field(default_factory=set)
    held: dict[str, None] = field(default_factory=dict)

    def handle(self, event: CircuitEvent) -> CircuitAction | None:
        """Move by the table.

        Raises:
            NoSuchMove: there is no such cell, and it was we who did it.
        """
        cell = CIRCUIT_TABLE.get((self.state, event))
        if cell is None:
            absent(f"the circuit of {self.to}", self.state, event)
            return None
        self.state = cell[1]
        return cell[0]


class Circuits:
    """Every address that something is sent to.

    Args:
        outboxes: By key.
        deadlines: Where an outbox is woken that waits for its address.
        ready: Keys of those to look at.
        effects: Where is told what opens and closes.
        jitter: A number in [0, 1), another at each call.
    """

    def __init__(
        self,
        outboxes: dict[str, Outbox],
        deadlines: Deadlines,
        ready: dict[str, None],
        effects: list[Effect],
        jitter: Callable[[], float],
    ) -> None:
        self._outboxes = outboxes
        self._deadlines = deadlines
        self._ready = ready
        self._effects = effects
        self._jitter = jitter
        self._paused: dict[str, float] = {}
        """Address -> when it wants to be asked again."""
        self._circuits: dict[str, Circuit] = {}
        """Address -> what is known of it, of those that forwarders send to."""

    def know(self, to: str, policy: CircuitPolicy) -> None:
        """A forwarder sends to that address."""
        circuit = self._circuits.setdefault(to, Circuit(to, policy))
        circuit.policy = policy

    def leave(self, outbox: Outbox) -> None:
        """It sends there no more: whoever waits behind it is looked at in its place."""
        circuit = self._circuits.get(outbox.to or "")
        if circuit is not None:
            circuit.held.pop(outbox.key, None)
            circuit.let_in.discard(outbox.key)
            self._pass_on(circuit, outbox.key)
            self._wake_first(circuit)

    def __getitem__(self, to: str) -> Circuit:
        """That of an address that a forwarder sends to."""
        return self._circuits[to]

    # --- whether something goes -----------------------------------------------------------------------------------

    def holds(self, outbox: Outbox, now: float) -> bool:
        """Whether nothing may go out of that outbox now; it is woken when it may."""
        circuit = self._circuits.get(outbox.to or "") if outbox.forwarding is not None else None
        if circuit is not None:
            return circuit.state is not _CLOSED and self._is_held(circuit, outbox, now)
        if not self._paused:
            return False
        until = self._paused.get(outbox.to or "")
        if until is None:
            return False
        if until <= now:
            del self._paused[outbox.to or ""]
            return False
        self._deadlines.want(outbox.key, until)
        return True

    def _is_held(self, circuit: Circuit, outbox: Outbox, now: float) -> bool:
        key = outbox.key
        if outbox.stopped or outbox.suspended is not None:
            circuit.held.pop(key, None)
            self._pass_on(circuit, key)
            self._wake_first(circuit)
            return False  # nothing goes out of it by itself
        if circuit.state is CircuitState.RAMPING:
            if now >= circuit.probe_at:  # who was let in may have nothing to send
                circuit.room, circuit.probe_at = 2 * circuit.room, now + circuit.policy.first
            if key not in circuit.let_in and len(circuit.let_in) < circuit.room:
                self._let_in(circuit, key, now)
            if key in circuit.let_in:
                return False
        elif key == circuit.prober and not circuit.has_tried:
            return False
        elif now >= circuit.probe_at:
            self._probe(circuit, outbox, now)
            return False
        circuit.held[key] = None
        self._wake_first(circuit)
        return True

    def _wake_first(self, circuit: Circuit) -> None:
        """Let the first of those that wait be looked at when it is time to try, or to let more in."""
        while circuit.held:
            key = next(iter(circuit.held))
            if key in self._outboxes:
                self._deadlines.want(key, circuit.probe_at)
                return
            del circuit.held[key]

    def _probe(self, circuit: Circuit, outbox: Outbox, now: float) -> None:
        circuit.handle(CircuitEvent.PROBE_DUE)
        circuit.prober, circuit.has_tried = outbox.key, False
        circuit.held.pop(outbox.key, None)
        # If nobody ever says what became of it, another one tries.
        circuit.probe_at = now + max(circuit.policy.cap, self._delay(circuit))
        self._wake_first(circuit)
        source = outbox.source
        if source is not None:
            source.narrow()
            entry = next((one for one in source.flight.values() if not one.is_parked), None)
            if entry is not None:
                source.flight.hurry(entry, now)
            elif source.due is not None:
                source.due = min(source.due, now)

    def pumped(self, outbox: Outbox, told: int) -> None:
        """It was that outbox's turn. One that was to try, and has nothing to send, lets another one try.

        Args:
            outbox: Which.
            told: How many effects there were before.
        """
        circuit = self._circuits.get(outbox.to or "")
        if circuit is None or circuit.state is _CLOSED or circuit.prober != outbox.key:
            return
        circuit.has_tried = circuit.has_tried or any(isinstance(one, Transmit) for one in self._effects[told:])
        if not circuit.has_tried and outbox.is_empty:
            self._pass_on(circuit, outbox.key)

    def _pass_on(self, circuit: Circuit, key: str) -> None:
        """Who was to try does not."""
        if circuit.prober == key and not circuit.has_tried and circuit.state is CircuitState.PROBING:
            circuit.handle(CircuitEvent.PROBE_UNUSED)
            circuit.prober, circuit.probe_at = None, 0.0  # at once, as soon as somebody has something
            self._wake_first(circuit)

    def _let_in(self, circuit: Circuit, key: str, now: float) -> None:
        circuit.let_in.add(key)
        circuit.held.pop(key, None)
        outbox = self._outboxes.get(key)
        if outbox is not None and outbox.source is not None:
            outbox.source.be_patient(now)  # the silence was not its own
            outbox.source.narrow()
        self._ready[key] = None

    # --- what comes of it -----------------------------------------------------------------------------------------

    def answered(self, to: str, now: float) -> None:
        """The destination there answered."""
        circuit = self._circuits.get(to)
        if circuit is None:
            return
        circuit.answered_at = now
        if circuit.state is _CLOSED and not circuit.failures:
            return
        action = circuit.handle(CircuitEvent.ANSWERED)
        if action is CircuitAction.FORGET:
            circuit.failures = 0
        elif action is CircuitAction.LET_IN:
            self._effects.append(self._incident("circuit.closed", circuit, {"seconds": now - circuit.opened_at}))
            circuit.failures, circuit.room, circuit.probe_at = 0, 1, now + circuit.policy.first
            if circuit.prober is not None:
                self._let_in(circuit, circuit.prober, now)
            circuit.prober = None
            self._let_more_in(circuit, now)
        elif action is CircuitAction.LET_IN_MORE:
            circuit.failures = 0
            self._let_more_in(circuit, now)

    def _let_more_in(self, circuit: Circuit, now: float) -> None:
        circuit.room += 2
        while circuit.held and len(circuit.let_in) < circuit.room:
            self._let_in(circuit, next(iter(circuit.held)), now)
        self._wake_first(circuit)
        if not circuit.held:
            circuit.handle(CircuitEvent.ALL_LET_IN)
            circuit.let_in.clear()

    def failed(self, to: str, reason: str, now: float, *, has_left: bool = True) -> None:
        """An attempt to send there brought no answer, and why; ``has_left``: whether anything was sent."""
        circuit = self._circuits.get(to)
        if circuit is None:
            return
        circuit.failures += 1
        circuit.reason = reason
        circuit.is_refused = not has_left
        is_silent = circuit.answered_at is None or now - circuit.answered_at >= circuit.policy.silence
        is_enough = circuit.failures >= circuit.policy.failures and is_silent
        self._stay_away(circuit, circuit.handle(CircuitEvent.FAILED_OFTEN if is_enough else CircuitEvent.FAILED), now)

    def pause(self, to: str, seconds: float, now: float) -> None:
        """The destination there asks not to be asked again for so long (Retry-After)."""
        self._paused[to] = max(self._paused.get(to, now), now + seconds)
        circuit = self._circuits.get(to)
        if circuit is not None and seconds > 0:
            circuit.reason = f"it asks to be left alone for {seconds:.0f} s"
            self._stay_away(circuit, circuit.handle(CircuitEvent.ASKS_FOR_PAUSE), now, seconds)

    def _stay_away(
        self, circuit: Circuit, action: CircuitAction | None, now: float, seconds: float | None = None
    ) -> None:
        if action is CircuitAction.OPEN:
            circuit.opened_at, circuit.tries = now, 0
            circuit.let_in.clear()
            detail = {"failures": circuit.failures, "reason": circuit.reason}
            self._effects.append(self._incident("circuit.opened", circuit, detail))
        elif action is CircuitAction.POSTPONE:
            circuit.tries += 1
            if circuit.prober is not None:
                circuit.held[circuit.prober] = None  # the next time another one tries
        else:
            return
        circuit.prober = None
        circuit.probe_at = now + (self._delay(circuit) if seconds is None else seconds)
        self._wake_first(circuit)

    def _delay(self, circuit: Circuit) -> float:
        delay = self.pause_after(circuit.policy, circuit.tries)
        most = MOST_REFUSED * (1.0 + circuit.policy.jitter * self._jitter()) if circuit.is_refused else delay
        return min(delay, most)

    def pause_after(self, policy: CircuitPolicy, tries: int) -> float:
        """Seconds until a destination is tried once more, after so many tries in vain."""
        growing = min(policy.cap, policy.first * 2.0 ** min(tries, 30))
        return growing * (1.0 + policy.jitter * self._jitter())

    # --- for people -----------------------------------------------------------------------------------------------

    @staticmethod
    def _incident(name: str, circuit: Circuit, detail: dict[str, Any]) -> Incident:
        return Incident(name, level="warning", detail={"to": circuit.to, "outboxes": len(circuit.held), **detail})

    def describe(self, now: float) -> list[dict[str, Any]]:
        """Each address that forwarders send to: whether it is sent to, since when not and why, when it is tried next
        (seconds from now), and how many outboxes wait for it."""
        return [
            {
                "to": one.to,
                "state": one.state.value,
                "failures": one.failures,
                "reason": one.reason if one.failures or one.state is not _CLOSED else "",
                "open_for": None if one.state in (_CLOSED, CircuitState.RAMPING) else now - one.opened_at,
                "next_try": max(0.0, one.probe_at - now) if one.state is CircuitState.OPEN else None,
                "waiting": len(one.held),
            }
            for one in self._circuits.values()
        ]
