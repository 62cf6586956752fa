"""The choice of an alternative: the first that the Source meets, and otherwise the reasons."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from holdfast.exceptions import ConfigurationError
from holdfast.wire.policy.assertions import NET_HTTP, SECURITY, TABLE, Ability, Row, words_of_unknown
from holdfast.wire.policy.expressions import Alternative, Assertion, Policy

_SECURITY_REMEDY = (
    'Name another port, or ask for one with transport security alone (WCF: <security mode="Transport" /> or "None").'
)
_OTHER_REMEDY = "Name another port, or ask the service's owner for one without it."
_UNKNOWN_REMEDY = (
    "Name another port, or ask the service's owner what it means. If messages need nothing for it, save the WSDL, add "
    'wsp:Ignorable="true" to the assertion, and use that file.'
)


@dataclass(frozen=True, slots=True)
class Need:
    """A demand of a policy that depends on how the Source was made, or that Holdfast cannot meet.

    Attributes:
        assertion: The assertion.
        words: What it demands.
        remedy: What to do about it.
        ability: What the Source must do; None if Holdfast cannot meet the demand.
    """

    assertion: Assertion
    words: str
    remedy: str
    ability: Ability | None = None

    def __str__(self) -> str:
        return f"{self.assertion.local_name} ({self.words}), {self.assertion.place}"


def needs_of(alternative: Alternative, table: Mapping[str, Row] = TABLE) -> list[Need]:
    """Return the demands of an alternative that depend on the Source, or that Holdfast cannot meet.

    Of a nested policy, the alternative with the fewest counts. Ignorable assertions count only if Holdfast can meet
    them: this is the lax mode of WS-Policy 1.5, 4.5.
    """
    return [need for assertion in alternative for need in _needs(assertion, table)]


def _needs(assertion: Assertion, table: Mapping[str, Row], *, is_open: bool = False) -> Iterator[Need]:
    row = table.get(assertion.name)
    if row is None:
        if not is_open and not assertion.is_ignorable:
            remedy = _SECURITY_REMEDY if _is_security(assertion) else _UNKNOWN_REMEDY
            yield Need(assertion, words_of_unknown(assertion.name), remedy)
        return
    found = list(_needs_of_row(assertion, row))
    if not assertion.is_ignorable or all(need.ability is not None for need in found):
        yield from found


def _needs_of_row(assertion: Assertion, row: Row) -> Iterator[Need]:
    if row.lacks:
        yield Need(assertion, row.lacks, _SECURITY_REMEDY if _is_security(assertion) else _OTHER_REMEDY)
        return
    for ability in row.abilities(assertion):
        yield Need(assertion, ability.words, ability.remedy, ability)
    for parameter in assertion.parameters:
        yield from _needs(parameter, row.within, is_open=row.is_open)
    if assertion.nested is not None:
        inner = [
            [need for one in alternative for need in _needs(one, row.within, is_open=row.is_open)]
            for alternative in assertion.nested
        ]
        if not inner:
            yield Need(assertion, "one of no alternatives", _OTHER_REMEDY)
        else:
            yield from min(inner, key=_weight)


def _is_security(assertion: Assertion) -> bool:
    return assertion.name.removeprefix("{").startswith((*SECURITY, NET_HTTP))


def _weight(needs: list[Need]) -> tuple[int, int]:
    return sum(need.ability is None for need in needs), len(needs)


def choose(policy: Policy, abilities: Collection[Ability] | None, port: str) -> list[Alternative]:
    """Return the alternatives that the Source meets.

    Args:
        policy: The policy of a port, or of one of its operations.
        abilities: What the Source does; None: whatever a Source can do.
        port: The name of the port, for the error.

    Raises:
        ConfigurationError: The Source meets no alternative. The error names each unmet assertion of the nearest one,
            with its line.
    """
    lacking: list[list[Need]] = []
    found = []
    for alternative in policy:
        unmet = [need for need in needs_of(alternative) if not _is_met(need, abilities)]
        if unmet:
            lacking.append(unmet)
        else:
            found.append(alternative)
    if found:
        return found
    if not lacking:
        raise ConfigurationError(
            f"the policy of the port {port} has no alternative, so no client can satisfy it",
            remedy="Name another port, or check the WSDL.",
        )
    raise _unmet(min(lacking, key=_weight), len(lacking), port)


def _is_met(need: Need, abilities: Collection[Ability] | None) -> bool:
    return need.ability is not None and (abilities is None or need.ability in abilities)


def _unmet(needs: list[Need], alternatives: int, port: str) -> ConfigurationError:
    hopeless = [need for need in needs if need.ability is None]
    told: dict[tuple[str, str], list[str]] = {}
    for need in hopeless or needs:
        told.setdefault((need.words, need.assertion.place), []).append(need.assertion.local_name)
    listed = "; ".join(
        f"{', '.join(dict.fromkeys(names))} ({words}), {place}" for (words, place), names in told.items()
    )
    remedies = dict.fromkeys(need.remedy for need in hopeless or needs)
    which = ", which Holdfast does not support" if hopeless else ""
    others = f" None of its {alternatives} alternatives can be met; this is the nearest." if alternatives > 1 else ""
    return ConfigurationError(
        f"the port {port} requires {listed}{which}.{others}",
        remedy=" ".join(remedies),
    )
