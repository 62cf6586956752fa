"""All policies of a port together: what a source must be to meet them, or why none does."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

from holdfast.exceptions import ConfigurationError
from holdfast.wire.policy.assertions import RM_ASSERTIONS, Ability
from holdfast.wire.policy.choice import (
    Need,
    check_excess,
    choose,
    has_transport_binding,
    mentioned,
    needs_of,
    refusal_of,
)
from holdfast.wire.policy.expressions import Alternative, Policy, size_of
from holdfast.wire.policy.source_kinds import Kind, kinds_for

MOST_COMPARED = 200_000
"""Maximum number of assertions that are compared with kinds of sources. The largest known policies need 20,000."""
_CONTRADICTION = "Name another port, or ask the service's owner for a policy that demands only one of them."


@dataclass(frozen=True)
class PortPolicies:
    """The policies of a port.

    Args:
        owner: The port, for errors: "the port Orders".
        policies: That of the endpoint, and then those of its operations and messages.
        messages: Each message in words, with the policies that apply to it, that of the endpoint first.
    """

    owner: str
    policies: list[Policy]
    messages: list[tuple[str, list[Policy]]]

    def alternatives(self, abilities: Collection[Ability] | None) -> list[Alternative]:
        """Return the alternatives of the endpoint that a source meets; only the reliable ones if there are any.

        Args:
            abilities: What the source does; None: whatever a source can do.

        Raises:
            ConfigurationError: It does not meet the policies. The error names what it lacks of the nearest kind of
                source that does, with the lines. Or no source meets them, and why.
        """
        if abilities is None:
            return self._of_any_source()
        try:
            return self._met(abilities)
        except ConfigurationError as error:
            refusal = error
        if not self._is_comparable:
            raise refusal
        self._met(None)  # reports what no source supports
        if not self._possible:
            raise self._contradiction()
        kind = min(self._possible, key=lambda one: self._distance(one, abilities))
        raise self._lacking(kind, abilities) or ConfigurationError(
            refusal.message, remedy=" ".join(kind.remedies((), abilities)) or refusal.remedy
        )

    def _of_any_source(self) -> list[Alternative]:
        found = self._met(None)
        if not self._is_comparable:
            return found
        if not self._possible:
            raise self._contradiction()
        possible = [one for kind in self._possible for one in self._met(kind.abilities)]
        return [one for one in found if one in possible] or list(dict.fromkeys(possible))

    def _met(self, abilities: Collection[Ability] | None) -> list[Alternative]:
        """Return the alternatives of the endpoint.

        An assertion of reliable messaging at a message counts as the endpoint's (WS-RM Policy 1.2, 2.3).
        """
        endpoint = choose(self.policies[0], abilities, self.owner)
        met: dict[int, list[Alternative]] = {id(self.policies[0]): endpoint}
        is_transport = all(map(has_transport_binding, endpoint))
        for policy in self.policies[1:]:
            if id(policy) not in met:
                met[id(policy)] = choose(policy, abilities, self.owner, is_transport=is_transport)
        check_excess(self.owner, self.messages, abilities)
        reliable = [one for one in endpoint if is_reliable(one)]
        if reliable:
            return reliable
        messages = [one for policy in self.policies[1:] for one in met[id(policy)] if is_reliable(one)]
        return [(*one, *messages[0]) for one in endpoint] if messages else endpoint

    # --- kinds of sources -----------------------------------------------------------------------------------------

    @cached_property
    def _distinct(self) -> list[Policy]:
        return list({id(one): one for one in self.policies}.values())

    @cached_property
    def _kinds(self) -> list[Kind]:
        return kinds_for(mentioned(self._distinct))

    @property
    def _is_comparable(self) -> bool:
        size = sum(map(size_of, self._distinct)) + sum(size_of(one) for _, many in self.messages for one in many)
        return size * len(self._kinds) <= MOST_COMPARED

    @cached_property
    def _possible(self) -> list[Kind]:
        return [kind for kind in self._kinds if self._is_met_by(kind)]

    def _is_met_by(self, kind: Kind) -> bool:
        try:
            self._met(kind.abilities)
        except ConfigurationError:
            return False
        return True

    def _needs(self, policy: Policy, kind: Kind, abilities: Collection[Ability]) -> tuple[list[Need], list[Need]]:
        """Return the needs of an alternative that a kind of source meets, or nearly; and those that a source lacks."""
        endpoint = self.policies[0]
        is_transport = policy is not endpoint and all(map(has_transport_binding, endpoint))
        ranked = []
        for alternative in policy:
            needs = needs_of(alternative, kind.abilities, is_transport=is_transport)
            missing = sum(one.ability not in kind.abilities for one in needs)
            lacking = [one for one in needs if one.ability not in abilities]
            ranked.append((missing, len(lacking), needs, lacking))
        _, _, needs, lacking = min(ranked, key=lambda one: one[:2])
        return needs, lacking

    def _distance(self, kind: Kind, abilities: Collection[Ability]) -> int:
        """Return how much a source must change to be of a kind."""
        lacking = {need.ability for policy in self._distinct for need in self._needs(policy, kind, abilities)[1]}
        return len(lacking) + sum(one not in kind.abilities for one in abilities if one.excess)

    def _lacking(self, kind: Kind, abilities: Collection[Ability]) -> ConfigurationError | None:
        for policy in self._distinct:
            _, lacking = self._needs(policy, kind, abilities)
            if lacking:
                told = kind.remedies([need.ability for need in lacking if need.ability is not None], abilities)
                return refusal_of(lacking, len(policy), self.owner, told)
        return None

    def _contradiction(self) -> ConfigurationError:
        """Return the error that no source meets the policies. It names two demands that none meets together."""
        found = []
        for kind in self._kinds:
            needs = [need for policy in self._distinct for need in self._needs(policy, kind, kind.abilities)[0]]
            found.append((sum(need.ability not in kind.abilities for need in needs), needs, kind))
        _, needs, nearest = min(found, key=lambda one: one[0])
        missing = [need for need in needs if need.ability not in nearest.abilities]
        if not missing:
            return self._unequal(nearest)
        first = missing[0]
        if not any(first.ability in kind.abilities for kind in self._kinds):
            return ConfigurationError(
                f"{self.owner} requires {first}, which Holdfast does not support", remedy=first.remedy
            )
        others = [need for need in needs if not self._is_together(need, first)] or [
            need for need in needs if need.ability != first.ability
        ]
        named = _named([*others[:1], first]) if not self._is_together(others[0], first) else _named([*others, first])
        return ConfigurationError(
            f"{self.owner} requires {named}, which Holdfast does not support together", remedy=_CONTRADICTION
        )

    def _is_together(self, one: Need, other: Need) -> bool:
        return any({one.ability, other.ability} <= kind.abilities for kind in self._kinds)

    def _unequal(self, kind: Kind) -> ConfigurationError:
        try:
            check_excess(self.owner, self.messages, kind.abilities)
        except ConfigurationError as error:
            excess = error.message.partition(", but the Source")[0]
            return ConfigurationError(
                f"{excess}, but another of its demands needs that: Holdfast protects all messages in the same way",
                remedy="Name another port, or ask the service's owner for a policy that is the same for all messages.",
            )
        raise AssertionError("the kind meets all policies")


def is_reliable(alternative: Alternative) -> bool:
    """Whether an alternative demands WS-ReliableMessaging."""
    return any(one.name in RM_ASSERTIONS for one in alternative)


def _named(needs: Iterable[Need]) -> str:
    return "; and ".join(dict.fromkeys(map(str, needs)))
