"""Circuits: one for each destination address, shared by all its outboxes.

If a destination asks for a pause, no outbox sends to it. For forwarders the circuit does more: their destination may be
down for days while they have thousands of Sequences to it. After enough consecutive attempts without an answer the
circuit opens; then one outbox probes with one message, with increasing delays, and the others get no turn. The first
answer lets in two more, each answer to those two more, and each begins with a window of one message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.deadlines import Deadlines
from holdfast.core.events import Effect, Incident, Transmit
from holdfast.core.policy import CircuitPolicy
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.states.outbox import CIRCUIT_TABLE, CircuitAction, CircuitEvent, CircuitState
from holdfast.core.states.table import step

MOST_REFUSED = 4.0
"""Maximum seconds between two attempts that find no listener, without the jitter. Such an attempt costs nothing, and a
requester behind the broker soon stops waiting: WCF's client after a minute."""

_CLOSED = CircuitState.CLOSED  # an enum's members are slow to look up by its class


@dataclass(slots=True, eq=False)
class Circuit:
    """State of one address that forwarders send to.

    Args:
        policy: When it opens, and how often it is probed.
        state: Whether outboxes may send.
        failures: Consecutive attempts without an answer.
        answered_at: When the last answer arrived in this run; None: none did.
        reason: Why the last attempt had no answer.
        is_refused: Whether no connection was made.
        tries: Number of failed probes.
        prober: The key of the outbox that probes; None: none does.
        has_tried: Whether its message was sent.
        room: How many outboxes may send while it ramps.
        let_in: Keys of the outboxes that may.
        held: Keys of outboxes that wait, in the order of their turns.
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
        action, self.state = step(CIRCUIT_TABLE, self.state, event, f"the circuit of {self.to}")
        return action


class Circuits:
    """The circuits of all destination addresses."""

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
        """Address -> when the pause that it requested ends."""
        self._pauses = Deadlines()
        """When each of these may be forgotten."""
        self._circuits: dict[str, Circuit] = {}
        """Address of a forwarder's destination -> its circuit."""

    def know(self, to: str, policy: CircuitPolicy) -> None:
        """Register an address that a forwarder sends to."""
        circuit = self._circuits.setdefault(to, Circuit(to, policy))
        circuit.policy = policy

    def leave(self, outbox: Outbox) -> None:
        """Remove an outbox that no longer sends there; the next one that waits gets its turn."""
        # An outbox of answers on back-channels has no address, and so no circuit.
        circuit = self._circuits.get(outbox.to or "")
        if circuit is not None:
            circuit.held.pop(outbox.key, None)
            circuit.let_in.discard(outbox.key)
            self._pass_on(circuit, outbox.key)
            self._wake_first(circuit)

    def __getitem__(self, to: str) -> Circuit:
        return self._circuits[to]

    def paused_until(self, to: str) -> float:
        """Return until when an address asks to be left alone; 0 if it does not."""
        return self._paused.get(to, 0.0)

    # --- permission to send ---------------------------------------------------------------------------------------

    def holds(self, outbox: Outbox, now: float) -> bool:
        """Whether the outbox may send nothing now; it is woken when it may."""
        # Only forwarders have thousands of outboxes to one address. Any other respects a requested pause alone.
        circuit = self._circuits.get(outbox.to or "") if outbox.forwarding is not None else None
        if circuit is not None:
            return circuit.state is not _CLOSED and self._is_held(circuit, outbox, now)
        if not self._paused:
            return False
        until = self._paused.get(outbox.to or "")
        if until is None or until <= now:
            return False
        self._deadlines.want(outbox.key, until)
        return True

    def _is_held(self, circuit: Circuit, outbox: Outbox, now: float) -> bool:
        key = outbox.key
        # An outbox that sends nothing must neither probe nor keep its place in the line.
        if outbox.lifecycle.stopped or outbox.lifecycle.suspended is not None:
            circuit.held.pop(key, None)
            self._pass_on(circuit, key)
            self._wake_first(circuit)
            return False  # it sends nothing on its own
        if circuit.state is CircuitState.RAMPING:
            if now >= circuit.probe_at:  # an outbox that was let in may have nothing to send
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
        """Wake the first outbox that waits when the next probe, or the next admission, is due."""
        while circuit.held:
            key = next(iter(circuit.held))
            if key in self._outboxes:
                self._deadlines.want(key, circuit.probe_at)
                return
            del circuit.held[key]

    def _probe(self, circuit: Circuit, outbox: Outbox, now: float) -> None:
        action = circuit.handle(CircuitEvent.PROBE_DUE)
        assert action is CircuitAction.PROBE, circuit  # it waits for the next probe only while it is open or probed
        circuit.prober, circuit.has_tried = outbox.key, False
        circuit.held.pop(outbox.key, None)
        # If no result is reported, another outbox probes.
        circuit.probe_at = now + max(circuit.policy.cap, self._delay(circuit))
        self._wake_first(circuit)
        source = outbox.source
        if source is not None:
            # One message: the destination may have just come back, and every other outbox waits for it.
            source.pace.window.narrow()
            # The probe is its oldest message that may leave, or else the request that its state calls for.
            entry = next((one for one in source.flight.values() if not one.is_parked), None)
            if entry is not None:
                source.flight.hurry(entry, now)
            else:
                source.control.hurry(now)

    def pumped(self, outbox: Outbox, told: int) -> None:
        """Note the outbox's turn; a prober with nothing to send lets another one probe.

        Args:
            told: The number of effects before its turn.
        """
        circuit = self._circuits.get(outbox.to or "")
        if circuit is None or circuit.state is _CLOSED or circuit.prober != outbox.key:
            return
        circuit.has_tried = circuit.has_tried or any(isinstance(one, Transmit) for one in self._effects[told:])
        if not circuit.has_tried and outbox.records.is_empty:
            self._pass_on(circuit, outbox.key)

    def _pass_on(self, circuit: Circuit, key: str) -> None:
        if circuit.prober == key and not circuit.has_tried and circuit.state is CircuitState.PROBING:
            circuit.handle(CircuitEvent.PROBE_UNUSED)
            circuit.prober, circuit.probe_at = None, 0.0  # at once, as soon as an outbox has a message
            self._wake_first(circuit)

    def _let_in(self, circuit: Circuit, key: str, now: float) -> None:
        circuit.let_in.add(key)
        circuit.held.pop(key, None)
        outbox = self._outboxes.get(key)
        if outbox is not None and outbox.source is not None:
            outbox.source.life.heard(now)  # the silence was not its own
            outbox.source.pace.window.narrow()
        self._ready[key] = None

    def hurry(self, to: str | None, now: float) -> None:
        """Send to an address again now, whatever pause it has."""
        self._paused.pop(to or "", None)
        circuit = self._circuits.get(to or "")
        if circuit is not None and circuit.state is CircuitState.OPEN:
            circuit.probe_at = min(circuit.probe_at, now)
            self._wake_first(circuit)

    # --- results --------------------------------------------------------------------------------------------------

    def answered(self, to: str, now: float) -> None:
        """Record an answer of the destination."""
        circuit = self._circuits.get(to)
        if circuit is None:
            return
        circuit.answered_at = now
        # Nearly every answer: there is nothing to change.
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
        # Two more for each answer, so the load doubles from round trip to round trip, as in slow start.
        circuit.room += 2
        while circuit.held and len(circuit.let_in) < circuit.room:
            self._let_in(circuit, next(iter(circuit.held)), now)
        self._wake_first(circuit)
        if not circuit.held:
            circuit.handle(CircuitEvent.ALL_LET_IN)
            circuit.let_in.clear()

    def failed(self, to: str, reason: str, now: float, *, has_left: bool = True) -> None:
        """Record an attempt without an answer; ``has_left``: whether anything was sent."""
        circuit = self._circuits.get(to)
        if circuit is None:
            return
        circuit.failures += 1
        circuit.reason = reason
        circuit.is_refused = not has_left
        # Parallel attempts fail together: five failures within one moment are not yet an absence.
        is_silent = circuit.answered_at is None or now - circuit.answered_at >= circuit.policy.silence
        is_enough = circuit.failures >= circuit.policy.failures and is_silent
        self._stay_away(circuit, circuit.handle(CircuitEvent.FAILED_OFTEN if is_enough else CircuitEvent.FAILED), now)

    def pause(self, to: str, seconds: float, now: float) -> None:
        """Apply a pause that the destination requested (Retry-After)."""
        # Peers choose addresses of replies, so an address may never be sent to again.
        for ended in self._pauses.due(now):
            if self._paused[ended] <= now:
                del self._paused[ended]
            else:
                self._pauses.want(ended, self._paused[ended])
        # A later answer with a shorter pause does not end an earlier one.
        self._paused[to] = max(self._paused.get(to, now), now + seconds)
        self._pauses.want(to, self._paused[to])
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
                circuit.held[circuit.prober] = None  # another outbox makes the next probe
        else:
            return
        circuit.prober = None
        circuit.probe_at = now + (self._delay(circuit) if seconds is None else seconds)
        self._wake_first(circuit)

    def _delay(self, circuit: Circuit) -> float:
        delay = self.pause_after(circuit.policy, circuit.tries)
        # A refused connection costs nothing, so its pause stays short.
        most = MOST_REFUSED * (1.0 + circuit.policy.jitter * self._jitter()) if circuit.is_refused else delay
        return min(delay, most)

    def pause_after(self, policy: CircuitPolicy, tries: int) -> float:
        """Return the seconds until the next probe, after ``tries`` failed ones."""
        # The exponent is bounded, because a float overflows long before a counter.
        growing = min(policy.cap, policy.first * 2.0 ** min(tries, 30))
        return growing * (1.0 + policy.jitter * self._jitter())

    # --- reports --------------------------------------------------------------------------------------------------

    @staticmethod
    def _incident(name: str, circuit: Circuit, detail: dict[str, Any]) -> Incident:
        return Incident(name, level="warning", detail={"to": circuit.to, "outboxes": len(circuit.held), **detail})

    def describe(self, now: float) -> list[dict[str, Any]]:
        """Describe each address that forwarders send to.

        The result has its state, since when and why it is open, when the next probe is due (seconds from now), and how
        many outboxes wait for it.
        """
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
