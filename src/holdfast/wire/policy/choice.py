"""The choice of an alternative: the first that the Source meets, and otherwise the reasons."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.exceptions import ConfigurationError
from holdfast.wire.policy.assertions import (
    BASIC_256_SHA_256,
    ENCRYPTION,
    ENDORSEMENT,
    MET,
    NET_HTTP,
    SECURITY,
    SIGNATURES,
    SYMMETRIC_KEY,
    TABLE,
    WITHOUT_SYMMETRIC_KEY,
    Ability,
    Row,
    rows,
    words_of_unknown,
)
from holdfast.wire.policy.expressions import Alternative, Assertion, Policy

_SECURITY_REMEDY = (
    'Name another port, or ask for one with transport security alone (WCF: <security mode="Transport" /> or "None").'
)
_OTHER_REMEDY = "Name another port, or ask the service's owner for one without it."
_UNKNOWN_REMEDY = (
    "Name another port, or ask the service's owner what it means. If messages need nothing for it, save the WSDL, add "
    'wsp:Ignorable="true" to the assertion, and use that file.'
)


_TRANSPORT_BINDING = frozenset(rows(SECURITY, TransportBinding=MET))
_BINDING = frozenset(rows(SECURITY, AsymmetricBinding=MET, SymmetricBinding=MET))
_OTHER_BINDINGS = frozenset(rows(SECURITY, TransportBinding=MET, AsymmetricBinding=MET))
_BY_TRANSPORT = frozenset(
    rows(
        SECURITY,
        SignedParts=MET,
        SignedElements=MET,
        EncryptedParts=MET,
        EncryptedElements=MET,
        ContentEncryptedElements=MET,
    )
)
"""Assertions that https meets if the binding is the transport (SecurityPolicy 1.2, 4 and 7.3): it signs and encrypts
the whole message. WCF writes them next to its TransportBinding."""


@dataclass(frozen=True, slots=True)
class Need:
    """A demand of a policy that depends on how the Source was made, or that Holdfast cannot meet.

    Attributes:
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


class _Demands:
    """Reads the demands of assertions, with regard to what the Source does, and to the binding of the endpoint."""

    def __init__(self, abilities: Collection[Ability] | None, *, is_transport: bool = False) -> None:
        self._abilities = abilities
        self._is_transport = is_transport

    def of(self, alternative: Alternative, table: Mapping[str, Row], *, is_open: bool = False) -> list[Need]:
        """Return the demands of an alternative whose assertions have their rows in the table."""
        if has_transport_binding(alternative) or (self._is_transport and table is TABLE):
            alternative = tuple(one for one in alternative if one.name not in _BY_TRANSPORT)
        if table is TABLE and (self._is_transport or not _OTHER_BINDINGS.isdisjoint(one.name for one in alternative)):
            table = {**table, **WITHOUT_SYMMETRIC_KEY}
        return [need for assertion in alternative for need in self._of_assertion(assertion, table, is_open)]

    def unmet(self, needs: list[Need]) -> list[Need]:
        return [need for need in needs if need.ability is None or not self._has(need.ability)]

    def weight(self, needs: list[Need]) -> tuple[int, int, int]:
        """Return a number that is lower the nearer the Source is to meeting the needs."""
        return sum(need.ability is None for need in needs), len(self.unmet(needs)), len(needs)

    def _has(self, ability: Ability) -> bool:
        return self._abilities is None or ability in self._abilities

    def _of_assertion(self, assertion: Assertion, table: Mapping[str, Row], is_open: bool) -> list[Need]:
        row = table.get(assertion.name)
        if row is None:
            if is_open or assertion.is_ignorable:
                return []
            remedy = _SECURITY_REMEDY if _is_security(assertion) else _UNKNOWN_REMEDY
            return [Need(assertion, words_of_unknown(assertion.name), remedy)]
        found = self._of_row(assertion, row)
        # WS-Policy 1.5, 4.5: an ignorable assertion that cannot be met is no demand.
        return [] if assertion.is_ignorable and self.unmet(found) else found

    def _of_row(self, assertion: Assertion, row: Row) -> list[Need]:
        if row.lacks:
            return [Need(assertion, row.lacks, _SECURITY_REMEDY if _is_security(assertion) else _OTHER_REMEDY)]
        # A nested policy without alternatives cannot be satisfied (WS-Policy 1.5, 4.3.2).
        if assertion.nested == ():
            return [Need(assertion, "one of no alternatives", _OTHER_REMEDY)]
        inner = (self._of_nested(assertion, row, alternative) for alternative in assertion.nested or ((),))
        return self.of(assertion.parameters, row.within, is_open=row.is_open) + min(inner, key=self.weight)

    def _of_nested(self, assertion: Assertion, row: Row, nested: Alternative) -> list[Need]:
        own = [Need(assertion, ability.words, ability.remedy, ability) for ability in row.abilities(assertion, nested)]
        return own + self.of(nested, row.within, is_open=row.is_open)


def _is_security(assertion: Assertion) -> bool:
    return assertion.name.removeprefix("{").startswith((*SECURITY, NET_HTTP))


def has_transport_binding(alternative: Alternative) -> bool:
    """Whether https protects the messages, and no other binding does (SecurityPolicy 1.2, 7)."""
    names = {one.name for one in alternative}
    return not names.isdisjoint(_TRANSPORT_BINDING) and names.isdisjoint(_BINDING)


def needs_of(
    alternative: Alternative, abilities: Collection[Ability] | None, *, is_transport: bool = False
) -> list[Need]:
    """Return the demands of an alternative that depend on the Source, or that Holdfast cannot meet.

    Of a nested policy, the nearest alternative counts. Ignorable assertions count only if the Source meets them: this
    is the lax mode of WS-Policy 1.5, 4.5.

    Args:
        abilities: What the Source does; None: whatever a Source can do.
        is_transport: Whether the policy of its endpoint has a TransportBinding.
    """
    return _Demands(abilities, is_transport=is_transport).of(alternative, TABLE)


def choose(
    policy: Policy, abilities: Collection[Ability] | None, owner: str, *, is_transport: bool = False
) -> list[Alternative]:
    """Return the alternatives that the Source meets.

    Raises:
        ConfigurationError: The Source meets no alternative. The error names each unmet assertion of the nearest one,
            with its line.
    """
    demands = _Demands(abilities, is_transport=is_transport)
    lacking: list[list[Need]] = []
    found = []
    for alternative in policy:
        unmet = demands.unmet(demands.of(alternative, TABLE))
        if unmet:
            lacking.append(unmet)
        else:
            found.append(alternative)
    if found:
        return found
    if not lacking:
        raise ConfigurationError(
            f"the policy of {owner} has no alternative, so no client can satisfy it",
            remedy="Name another port, or check the WSDL.",
        )
    # The error names what the nearest alternative lacks: that is the shortest way to a fix.
    raise refusal_of(min(lacking, key=demands.weight), len(lacking), owner)


def mentioned(policies: Iterable[Policy]) -> set[Ability]:
    """Return what the policies may demand of a source, in any alternative."""
    found: set[Ability] = set()
    for policy in policies:
        for assertion in (one for alternative in policy for top in alternative for one in top.walk()):
            for row in _ROWS.get(assertion.name, ()):
                for nested in assertion.nested or ((),):
                    found.update(row.abilities(assertion, nested))
    return found


def _rows_by_name(*tables: Mapping[str, Row]) -> dict[str, list[Row]]:
    found: dict[str, dict[int, Row]] = {}
    # Many rows share the table within them: each is read once, or this would take a second of every start.
    waiting, read = list(tables), set[int]()
    while waiting:
        table = waiting.pop()
        if id(table) in read:
            continue
        read.add(id(table))
        for name, row in table.items():
            found.setdefault(name, {})[id(row)] = row
            waiting.append(row.within)
    return {name: list(rows_of.values()) for name, rows_of in found.items()}


_ROWS = _rows_by_name(TABLE, WITHOUT_SYMMETRIC_KEY)
"""The rows of each assertion, wherever it may be."""


def check_excess(
    owner: str, messages: Iterable[tuple[str, list[Policy]]], abilities: Collection[Ability] | None
) -> None:
    """Check that the Source does nothing to signed messages that their service does not expect.

    A service that demands signatures states what else it expects (SecurityPolicy 1.2, 4.2): it does not encrypt its
    answers if they need not be encrypted, and may refuse encrypted requests.

    Args:
        owner: What the policies belong to, for the error: "the port Orders".
        messages: Each message in words, with the policies that apply to it, that of the endpoint first.
        abilities: What the Source does; None: whatever a Source can do.

    Raises:
        ConfigurationError: It does. The error names the first such message.
    """
    excess = [one for one in abilities or () if one.excess]
    if not excess:
        return
    for where, policies in messages:
        alternatives = [alternative for policy in policies for alternative in policy]
        https = all(map(has_transport_binding, policies[0]))
        demanded = {need.ability for one in alternatives for need in needs_of(one, abilities, is_transport=https)}
        extra = [one for one in excess if one not in demanded]
        if extra and (SIGNATURES in demanded or SYMMETRIC_KEY in extra):
            words = ", ".join(one.words for one in extra)
            raise ConfigurationError(
                f"the policy of {owner} does not ask for {words} in {where}, but the Source sends and expects that",
                remedy=" ".join(one.excess for one in extra),
            )


def refusal_of(needs: list[Need], alternatives: int, owner: str, told: Sequence[str] = ()) -> ConfigurationError:
    """Return the error about unmet needs. It recommends no X509 beside a class that signs with a symmetric key.

    Args:
        needs: What is not met of one alternative.
        alternatives: The number of alternatives.
        owner: What the policy belongs to.
        told: What to do about them; empty: what each says.
    """
    hopeless = [need for need in needs if need.ability is None]
    found: dict[tuple[str, str], list[str]] = {}
    for need in hopeless or needs:
        found.setdefault((need.words, need.assertion.place), []).append(need.assertion.local_name)
    listed = "; ".join(
        f"{', '.join(dict.fromkeys(names))} ({words}), {place}" for (words, place), names in found.items()
    )
    demanded = {need.ability for need in needs}
    implied: set[Ability | None] = {SIGNATURES, ENCRYPTION, BASIC_256_SHA_256} if SYMMETRIC_KEY in demanded else set()
    if ENDORSEMENT in demanded:
        implied.add(SYMMETRIC_KEY)
    remedies = told or [need.remedy for need in hopeless or needs if need.ability not in implied]
    which = ", which Holdfast does not support" if hopeless else ""
    others = f" None of its {alternatives} alternatives can be met; this is the nearest." if alternatives > 1 else ""
    return ConfigurationError(
        f"{owner} requires {listed}{which}.{others}",
        remedy=" ".join(dict.fromkeys(remedies)),
    )
