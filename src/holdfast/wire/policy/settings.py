"""What the assertions of reliable messaging state about a service, and the settings of a source that follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from holdfast.core.policy import Assurance, Delivery, SourcePolicy
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.exceptions import ConfigurationError
from holdfast.wire.policy.assertions import EARLY, METRO, METRO_2006, NET_RMP_1_0, NET_RMP_1_1, RMP_1_0, RMP_1_1
from holdfast.wire.policy.expressions import Alternative, Assertion

DELIVERIES = {
    f"{{{RMP_1_1}}}AtMostOnce": Delivery.AT_MOST_ONCE,
    f"{{{RMP_1_1}}}AtLeastOnce": Delivery.AT_LEAST_ONCE,
    f"{{{RMP_1_1}}}ExactlyOnce": Delivery.EXACTLY_ONCE,
}
_EARLY_DELIVERIES = {name.rpartition("}")[2]: delivery for name, delivery in DELIVERIES.items()}
LONGEST_INTERVAL = 3600.0
"""Seconds; longest interval between two transmissions that a policy may state. A message lost once would arrive later
than that, so a longer one is a mistake."""
SHORTEST_INTERVAL = 0.1
"""Seconds; a source does not retransmit sooner, whatever a policy states."""
SHORTEST_KEEP_ALIVE = 1.0
"""Seconds; a source does not keep a Sequence alive more often, whatever a policy states."""
MARGIN = 0.3
"""Seconds from the latest acknowledgement that a policy permits to the first retransmission: for the way there and
back."""


@dataclass(frozen=True, slots=True)
class StatedSettings:
    """What a service states about its Sequences. Times are in seconds; None: it states none.

    Args:
        assurance: The delivery assurance of the destination.
        inactivity_timeout: Time without traffic after which the service ends a Sequence.
        retransmission_interval: Time for which a source waits for an acknowledgement before it retransmits.
        has_backoff: Whether that time doubles with each retransmission.
        acknowledgement_interval: Time for which the service may delay an acknowledgement.
        request_interval: Shortest time between two AckRequested headers.
        buffer: Number of messages that the service holds.
    """

    assurance: Assurance | None = None
    inactivity_timeout: float | None = None
    retransmission_interval: float | None = None
    has_backoff: bool = False
    acknowledgement_interval: float | None = None
    request_interval: float | None = None
    buffer: int | None = None


def stated(alternative: Alternative) -> StatedSettings:
    """Read the settings of an alternative.

    Raises:
        ConfigurationError: A value is missing or wrong, or two contradict each other. The error names the assertion and
            its line.
    """
    parts: dict[str, list[Assertion]] = {}
    for one in alternative:
        for part in one.walk():
            parts.setdefault(part.name, []).append(part)

    def of(*names: str) -> Iterator[Assertion]:
        return (part for name in names for part in parts.get(name, ()))

    timers = (RMP_1_0, NET_RMP_1_1, *EARLY)
    retransmission = (*_in(timers, "BaseRetransmissionInterval"), f"{{{METRO}}}Interval")
    retransmission += (f"{{{METRO_2006[1]}}}ResendInterval",)
    requests = (f"{{{METRO}}}AckRequestInterval", f"{{{METRO_2006[1]}}}AckRequestInterval")
    return StatedSettings(
        _assurance(alternative, next(of(*DELIVERIES), None))
        or _metro_assurance(parts)
        or _early_assurance(list(of(*_in(EARLY, "DeliveryAssurance")))),
        _least(of(*_in(timers, "InactivityTimeout")), _seconds),
        _greatest(of(*retransmission), _interval),
        any(True for _ in of(*_in(timers, "ExponentialBackoff"))) or any(map(_doubles, of(f"{{{METRO}}}Algorithm"))),
        _greatest(of(*_in(timers, "AcknowledgementInterval")), _interval),
        _greatest(of(*requests), _interval),
        min((_count(one) for one in of(f"{{{NET_RMP_1_0}}}MaxReceiveBufferSize")), default=None),
    )


def for_source(settings: StatedSettings, policy: SourcePolicy) -> SourcePolicy:
    """Return a source's policy with the settings that a service states.

    - The assurance is that of the service.
    - InactivityTimeout: an idle Sequence is kept alive at least twice in that time.
    - BaseRetransmissionInterval: the first retransmission comes after that time, and none sooner.
    - ExponentialBackoff: that time doubles with each retransmission, up to the policy's ``cap``, instead of staying the
      same for the first ones.
    - AcknowledgementInterval: no retransmission comes before the service must have acknowledged.
    - Metro's AckRequestInterval: requests for acknowledgements are at least that far apart.
    - .NET's MaxReceiveBufferSize: at most so many messages are in flight.
    """
    retransmission = _retransmission(settings, policy.retransmission)
    changed = replace(policy, retransmission=retransmission, assurance=settings.assurance or policy.assurance)
    if settings.request_interval is not None:
        apart = max(policy.poll_interval, settings.request_interval)
        changed = replace(changed, poll_interval=apart, keep_alive=max(policy.keep_alive, settings.request_interval))
    if settings.inactivity_timeout is not None:
        # Half of the timeout, so that one lost question does not end the Sequence.
        often = max(SHORTEST_KEEP_ALIVE, settings.inactivity_timeout / 2)
        changed = replace(changed, keep_alive=min(changed.keep_alive, often))
    if settings.buffer is not None:
        window = min(policy.window, settings.buffer)
        changed = replace(changed, window=window, initial_window=min(policy.initial_window, window))
    return changed


def _retransmission(settings: StatedSettings, policy: RetransmissionPolicy) -> RetransmissionPolicy:
    initial, floor = policy.initial, policy.floor
    if settings.retransmission_interval is not None:
        initial = floor = max(SHORTEST_INTERVAL, settings.retransmission_interval)
    if settings.acknowledgement_interval is not None:
        # An acknowledgement may be that late, and is no sign of a loss.
        floor = max(floor, settings.acknowledgement_interval + MARGIN)
    initial = max(initial, floor)
    steady = 1 if settings.has_backoff else policy.steady
    return replace(policy, initial=initial, floor=floor, cap=max(policy.cap, floor), steady=steady)


def _in(namespaces: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(f"{{{namespace}}}{name}" for namespace in namespaces)


_ORDER = f"{{{RMP_1_1}}}InOrder"
_STRENGTH = (Delivery.AT_MOST_ONCE, Delivery.AT_LEAST_ONCE, Delivery.EXACTLY_ONCE)
_Words = frozenset[str]


def _assurance(alternative: Alternative, first: Assertion | None) -> Assurance | None:
    """Return the delivery assurance of the destination (WS-RM Policy 1.2, 2.4): the strongest of the alternatives."""
    if first is None:
        return None
    found = _assurances(alternative)
    single = [words for words in found if len(words - {_ORDER}) == 1]
    if single:
        strength = {words: (_STRENGTH.index(_delivery(words)), _ORDER in words) for words in single}
        best = max(single, key=strength.__getitem__)
        return Assurance(_delivery(best), _ORDER in best)
    if all(words - {_ORDER} for words in found):
        names = " and ".join(sorted(name.rpartition("}")[2] for name in min(found, key=len) - {_ORDER}))
        raise _wrong(first, f"contradicts another delivery assurance: {names}")
    return None


def _delivery(words: _Words) -> Delivery:
    (name,) = words - {_ORDER}
    return DELIVERIES[name]


def _assurances(alternative: Alternative) -> set[_Words]:
    """Return the names of the assurances in each combination of nested alternatives, at most sixteen."""
    found: set[_Words] = {frozenset()}
    for assertion in alternative:
        own = frozenset({assertion.name} & {*DELIVERIES, _ORDER})
        nested = {one for inner in assertion.nested or ((),) for one in _assurances(inner)}
        stated = {own | one | other for one in nested for other in _assurances(assertion.parameters)}
        found = {one | other for one in found for other in stated}
    return found


def _metro_assurance(parts: dict[str, list[Assertion]]) -> Assurance | None:
    """The same in the assertions of Metro for RM 1.0, which state only deviations from exactly-once."""
    ordered, repeated = (f"{{{METRO_2006[0]}}}{name}" in parts for name in ("Ordered", "AllowDuplicates"))
    if not ordered and not repeated:
        return None
    return Assurance(Delivery.AT_LEAST_ONCE if repeated else Delivery.EXACTLY_ONCE, ordered)


def _early_assurance(stated: list[Assertion]) -> Assurance | None:
    """The same before WS-RM 1.0, where each DeliveryAssurance has one value; InOrder is one of them."""
    values = {one.element.get("Value", "").strip().rpartition(":")[2] for one in stated}
    deliveries = {_EARLY_DELIVERIES[value] for value in values if value in _EARLY_DELIVERIES}
    if stated and (len(deliveries) > 1 or values - {*_EARLY_DELIVERIES, "InOrder"}):
        raise _wrong(stated[-1], f"states {' and '.join(sorted(map(repr, values)))}, which is not one assurance")
    return Assurance(deliveries.pop() if deliveries else Delivery.EXACTLY_ONCE, "InOrder" in values) if stated else None


def _least(found: Iterator[Assertion], read: Callable[[Assertion], float]) -> float | None:
    return min(map(read, found), default=None)


def _greatest(found: Iterator[Assertion], read: Callable[[Assertion], float]) -> float | None:
    return max(map(read, found), default=None)


def _seconds(assertion: Assertion) -> float:
    text = assertion.element.get("Milliseconds", "").strip()
    if not text.isascii() or not text.isdecimal() or len(text) > 20:  # xs:unsignedLong
        raise _wrong(assertion, f"needs Milliseconds, a whole number, and has {text[:40]!r}")
    if int(text) == 0 and assertion.local_name != "AcknowledgementInterval":
        raise _wrong(assertion, "states 0 milliseconds")
    return int(text) / 1000


def _interval(assertion: Assertion) -> float:
    seconds = _seconds(assertion)
    if seconds > LONGEST_INTERVAL:
        raise _wrong(assertion, f"states {seconds:g} seconds, which is more than {LONGEST_INTERVAL:g}")
    return seconds


def _count(assertion: Assertion) -> int:
    text = (assertion.element.text or "").strip()
    if not text.isascii() or not text.isdecimal() or len(text) > 20 or int(text) == 0:
        raise _wrong(assertion, f"needs a number of messages, and has {text[:40]!r}")
    return int(text)


def _doubles(algorithm: Assertion) -> bool:
    return "exponential" in (algorithm.element.text or "").lower()


def _wrong(assertion: Assertion, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{assertion.local_name}, {assertion.place}, {what}",
        remedy="Correct it in a copy of the WSDL, or create the Source with the URL of the service and a policy.",
    )
