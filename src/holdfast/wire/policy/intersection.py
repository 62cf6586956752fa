"""The intersection of two policies: what both sides can meet."""

from __future__ import annotations

from holdfast.wire.policy.expressions import NO_DEMANDS, Alternative, Assertion, Policy


def intersect(one: Policy, other: Policy, *, is_lax: bool = True) -> Policy:
    """Return the alternatives that are compatible, each with the assertions of both sides (WS-Policy 1.5, 4.5).

    Two assertions are compatible if they have the same name and their nested policies are compatible; their parameters
    do not take part. An assertion without a nested policy counts as one with an empty one, since peers write both.

    Args:
        one: A policy.
        other: The policy of the other side.
        is_lax: Whether assertions marked as ignorable may be missing on the other side.
    """
    return tuple((*left, *right) for left in one for right in other if is_compatible(left, right, is_lax=is_lax))


def is_compatible(one: Alternative, other: Alternative, *, is_lax: bool = True) -> bool:
    """Whether each assertion of one alternative is compatible with one of the other, in both directions."""
    return _has_all(one, other, is_lax) and _has_all(other, one, is_lax)


def _has_all(one: Alternative, other: Alternative, is_lax: bool) -> bool:
    return all(
        (is_lax and assertion.is_ignorable) or any(_fits(assertion, found, is_lax) for found in other)
        for assertion in one
    )


def _fits(one: Assertion, other: Assertion, is_lax: bool) -> bool:
    if one.name != other.name:
        return False
    left = NO_DEMANDS if one.nested is None else one.nested
    right = NO_DEMANDS if other.nested is None else other.nested
    return any(is_compatible(mine, theirs, is_lax=is_lax) for mine in left for theirs in right)
