"""Which alternatives of two policies go together."""

from __future__ import annotations

import pytest
from policy_expressions import names, normal

from holdfast.wire.policy.expressions import Policy
from holdfast.wire.policy.intersection import intersect


def policy(inside: str) -> Policy:
    return normal(f"<subject><wsp:Policy>{inside}</wsp:Policy></subject>")


def one_of(*alternatives: str) -> str:
    inner = "".join(f"<wsp:All>{one}</wsp:All>" for one in alternatives)
    return f"<wsp:ExactlyOne>{inner}</wsp:ExactlyOne>"


def nested(name: str, inside: str) -> str:
    return f"<{name}><wsp:Policy>{inside}</wsp:Policy></{name}>"


IGNORABLE = '<I wsp:Ignorable="true"/>'


@pytest.mark.parametrize(
    ("one", "other", "lax", "strict"),
    [
        ("", "", [""], [""]),
        ("<A/>", "<A/>", ["A A"], ["A A"]),
        ("<A/>", "<B/>", [], []),
        ("<A/>", "", [], []),
        ('<A xmlns="urn:b"/>', "<A/>", [], []),
        ('<A p="1"><P/></A>', '<A p="2"/>', ["A A"], ["A A"]),
        (one_of("<A/>", "<B/>"), one_of("<B/>", "<C/>"), ["B B"], ["B B"]),
        (one_of("<A/>", "<A/><B/>"), '<A/><B wsp:Optional="true"/>', ["A A", "A B A B"], ["A A", "A B A B"]),
        (f"<A/>{IGNORABLE}", "<A/>", ["A I A"], []),
        (f"<A/>{IGNORABLE}", f"<A/>{IGNORABLE}", ["A I A I"], ["A I A I"]),
        (nested("A", "<B/>"), nested("A", "<B/>"), ["A[B] A[B]"], ["A[B] A[B]"]),
        (nested("A", "<B/>"), nested("A", "<C/>"), [], []),
        (nested("A", one_of("<B/>", "<C/>")), nested("A", "<C/>"), ["A[B|C] A[C]"], ["A[B|C] A[C]"]),
        (nested("A", "<wsp:ExactlyOne/>"), nested("A", ""), [], []),
        ("<A/>", nested("A", ""), ["A A[]"], ["A A[]"]),
        ("<A/>", nested("A", "<B/>"), [], []),
        (nested("A", IGNORABLE), "<A/>", ["A[I] A"], []),
        ("<wsp:ExactlyOne/>", "", [], []),
    ],
)
def test_alternatives_go_together_if_each_assertion_has_its_like(
    one: str, other: str, lax: list[str], strict: list[str]
) -> None:
    assert names(intersect(policy(one), policy(other))) == lax
    assert names(intersect(policy(one), policy(other), is_lax=False)) == strict
    assert len(intersect(policy(other), policy(one))) == len(lax), "in both directions"
