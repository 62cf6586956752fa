"""Policy expressions and their normal form, with the limits that a hostile policy meets.

Covers wire/policy/attachment.py.
"""

from __future__ import annotations

import pytest
from policy_expressions import WSP_1_2, WSP_1_5, names, normal

from holdfast.exceptions import ConfigurationError
from holdfast.wire.policy.expressions import MOST_DEPTH


def refused(text: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        normal(text)
    return caught.value.message


@pytest.mark.parametrize("wsp", [WSP_1_5, WSP_1_2])
@pytest.mark.parametrize(
    ("inside", "alternatives"),
    [
        ("", [""]),
        ("<A/><B/>", ["A B"]),
        ("<wsp:All><A/><wsp:All><B/></wsp:All></wsp:All>", ["A B"]),
        ("<wsp:ExactlyOne/>", []),
        ("<A/><wsp:ExactlyOne/>", []),
        ("<wsp:ExactlyOne><A/><B/></wsp:ExactlyOne>", ["A", "B"]),
        ("<wsp:ExactlyOne><wsp:All/><A/></wsp:ExactlyOne>", ["", "A"]),
        ("<A/><wsp:ExactlyOne><B/><wsp:All><C/><D/></wsp:All></wsp:ExactlyOne>", ["A B", "A C D"]),
        ('<A wsp:Optional="true"/><B/>', ["A B", "B"]),
        ('<A wsp:Optional=" 1 "/>', ["A", ""]),
        ('<A wsp:Optional="false"/>', ["A"]),
        ("<A><wsp:Policy/></A>", ["A[]"]),
        ("<A><wsp:Policy><wsp:ExactlyOne><B/><C/></wsp:ExactlyOne></wsp:Policy></A>", ["A[B|C]"]),
        ('<A><wsp:Policy><B wsp:Optional="true"><wsp:Policy><C/></wsp:Policy></B></wsp:Policy></A>', ["A[B[C]|]"]),
        ("<A><P/><wsp:Policy><B/></wsp:Policy></A>", ["A[B]"]),
        ("<wsp:Policy><A/></wsp:Policy>", ["A"]),
    ],
)
def test_an_expression_has_one_normal_form(inside: str, alternatives: list[str], wsp: str) -> None:
    assert names(normal(f"<subject><wsp:Policy>{inside}</wsp:Policy></subject>", wsp)) == alternatives


def test_the_policies_of_one_subject_apply_together() -> None:
    policy = '<wsp:Policy wsu:Id="x"><X/></wsp:Policy>'
    subject = (
        '<subject wsp:PolicyURIs="#x urn:y"><wsp:Policy><A/></wsp:Policy><wsp:Policy><B/></wsp:Policy>'
        '<wsp:PolicyReference URI="#z"/></subject><wsp:Policy Name="urn:y"><Y/></wsp:Policy>'
        '<wsp:Policy xml:id="z"><Z/></wsp:Policy>'
    )
    assert names(normal(policy + subject)) == ["A B Z X Y"]
    assert names(normal("<subject/>")) == [""]


def test_a_reference_finds_the_policy_of_its_own_document_first() -> None:
    own, other = '<wsp:Policy wsu:Id="p"><Own/></wsp:Policy>', '<wsp:Policy wsu:Id="p"><Other/></wsp:Policy>'
    by_id = '<subject><wsp:PolicyReference URI="#p"/></subject>'
    assert names(normal(by_id + own, other=other)) == ["Own"]
    assert names(normal(by_id, other=other)) == ["Other"]
    by_place = '<subject><wsp:PolicyReference URI="other#p"/></subject>'
    assert names(normal(by_place + own, other=other)) == ["Other"]
    with pytest.raises(ConfigurationError, match="line 1 of http://host/main refers to the policy 'else#p', which"):
        normal('<subject><wsp:PolicyReference URI="else#p"/></subject>', other=other)


def test_a_policy_of_an_unsupported_version_is_no_demand_to_pass_over() -> None:
    old = "http://schemas.xmlsoap.org/ws/2002/12/policy"
    with pytest.raises(ConfigurationError, match=f"line 1 of .*a version that Holdfast does not support: {old}"):
        normal("<subject><wsp:Policy><A/></wsp:Policy></subject>", old)
    assert "Surely, which is no element of WS-Policy" in refused(
        "<subject><wsp:Policy><wsp:Surely><A/></wsp:Surely></wsp:Policy></subject>"
    )


def chained(count: int, each: str) -> str:
    """Policies p1 to pN, of which each refers to the next."""
    later = "".join(
        f'<wsp:Policy wsu:Id="p{number}">{each.format(next=number + 1)}</wsp:Policy>' for number in range(1, count)
    )
    return f'<subject><wsp:PolicyReference URI="#p1"/></subject>{later}<wsp:Policy wsu:Id="p{count}"><A/></wsp:Policy>'


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("<subject><wsp:Policy>" + '<A wsp:Optional="true"/>' * 64 + "</wsp:Policy></subject>", "256 alternatives"),
        (
            "<subject><wsp:Policy><wsp:ExactlyOne>" + "<A/>" * 300 + "</wsp:ExactlyOne></wsp:Policy></subject>",
            "256 alternatives",
        ),
        (
            "<subject><wsp:Policy>" + '<A wsp:Optional="true"/>' * 8 + "<B/>" * 100 + "</wsp:Policy></subject>",
            "10,000 assertions",
        ),
        (
            "<subject>" + "<wsp:Policy><A>" * MOST_DEPTH + "</A></wsp:Policy>" * MOST_DEPTH + "</subject>",
            "100 levels",
        ),
        (f"<subject><wsp:Policy>{'<A>' * 200}{'</A>' * 200}</wsp:Policy></subject>", "100 levels"),
        (chained(60, '<wsp:PolicyReference URI="#p{next}"/>'), "100 levels"),
        (chained(30, '<wsp:PolicyReference URI="#p{next}"/>' * 2), "10,000 assertions"),
    ],
    ids=["optional", "alternatives", "assertions", "nested", "parameters", "references", "doubled references"],
)
def test_a_policy_beyond_a_limit_is_refused_not_expanded(text: str, limit: str) -> None:
    assert f"the policy has more than {limit}" in refused(text)


def test_a_policy_that_refers_to_itself_is_refused() -> None:
    circle = '<wsp:Policy wsu:Id="p1"><A><wsp:PolicyReference URI="#p2"/></A></wsp:Policy>'
    circle += '<wsp:Policy wsu:Id="p2"><wsp:PolicyReference URI="#p1"/></wsp:Policy>'
    assert "the policy '#p1' refers to itself" in refused(
        f'<subject><wsp:PolicyReference URI="#p1"/></subject>{circle}'
    )


def test_a_policy_is_read_once_however_many_refer_to_it() -> None:
    """Many empty policies, each of which refers twice to the next: 2^40 steps, if each reference was followed."""
    text = chained(40, '<wsp:PolicyReference URI="#p{next}"/>' * 2).replace("<A/>", "")
    assert names(normal(text)) == [""]
