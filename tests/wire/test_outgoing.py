"""A body that begins as an earlier one did is looked at no less, only sooner."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from holdfast.exceptions import EnvelopeError
from holdfast.wire import body_content, known_contents
from holdfast.wire.encoding import outgoing

ROOTS = [
    "<a>",
    "<a xmlns='urn:a'>",
    '<p:a xmlns:p="urn:p" xmlns:xml="http://www.w3.org/XML/1998/namespace">',
    "<a b='>'>",
]
INSIDE = st.text(max_size=3) | st.text("ab &<>'\"=/:é\ufffe\x01", max_size=6) | st.sampled_from(
    ["<b/>", "<p:b/>", "<q:b xmlns:q='urn:q'/>", "<b xmlns=''/>", "<b xml:id='1'/>", "<b xml:id='c'/><b xml:id='c'/>",
     "<b xmlns:p=''/>", "<p:b:c/>", "<b p:c='1' c='2'/>", "<b c='1' c='2'/>", "<b p:c='1' p:c='2'/>", "<p:b p:b=''/>",
     "&#1;", "&#xFFFE;", "&#65;", "&amp;", "&a;", "]]>", "<![CDATA[]]>", "<!-- - -->", "<!-- -- -->", "<?pi?>",
     "<!DOCTYPE a>", "<b xmlns:xmlns='urn:x'/>", "<b xmlns:q='http://www.w3.org/2000/xmlns/'/>", "<:b/>", "<b:/>",
     "<b a='<'/>", "<b a=1/>", "</b>", "\r\n", "<1/>", "<b\n/>", "< b/>"]
)  # fmt: skip


def outcome(data: bytes) -> bytes | None:
    try:
        return body_content(data)
    except EnvelopeError:
        return None


@settings(max_examples=examples(600))
@given(st.sampled_from(ROOTS), st.lists(INSIDE, max_size=3).map("".join), st.sampled_from(["", " ", "<c/>", "x"]))
def test_text_behind_a_known_start_tag_is_read_as_behind_an_unknown_one(root: str, inside: str, behind: str) -> None:
    assert_known_is_as_unknown(root, f"{inside}</{name_of(root)}>{behind}".encode(errors="surrogatepass"))


def name_of(root: str) -> str:
    return root[1:].split(">")[0].split(" ")[0]


def assert_known_is_as_unknown(root: str, behind: bytes) -> None:
    data = root.encode() + behind
    outgoing._known_roots.clear()
    unknown = outcome(data)
    outgoing._known_roots.clear()
    body_content(f"{root}</{name_of(root)}>".encode())
    assert outgoing._known_roots
    assert outcome(data) == unknown


OCTETS = st.lists(st.sampled_from([*range(0x7E, 0x100), 0x01, 0x41, 0x3C, 0x3E, 0x3D, 0x27]), max_size=4).map(bytes)


@settings(max_examples=examples(600))
@given(st.sampled_from(ROOTS), OCTETS, st.sampled_from([b"%b", b"<%b/>", b"<b%b/>", b"<b %b='1'/>", b"<b c='%b'/>"]))
def test_octets_that_are_no_text_are_refused_behind_a_known_start_tag_too(
    root: str, octets: bytes, where: bytes
) -> None:
    assert_known_is_as_unknown(root, where % octets + f"</{name_of(root)}>".encode())


def test_how_many_start_tags_are_remembered_is_bounded() -> None:
    outgoing._known_roots.clear()
    for number in range(outgoing._MAX_ROOTS + 2):
        body_content(b"<a%d/>" % number)
    assert len(outgoing._known_roots) <= outgoing._MAX_ROOTS
    body_content(b"<a b='" + b"c" * outgoing._MAX_ROOT + b"'/>")
    assert max(map(len, outgoing._known_roots)) <= outgoing._MAX_ROOT


SPLIT = [
    ["<a><!-- </a>", "<a> --></a>"],
    ["<a><![CDATA[</a>", "<a>]]></a>"],
    ["<a><?p </a>", "<a> ?></a>"],
    ["<a><b></a>", "<a></b></a>"],
    ["<a><a></a>", "<a></a></a>"],
    ["<a><b c='</a>", "<a>'/></a>"],
    ["<a></a><a></a>", "<a></a>"],
    ["<a></a ><a></a>", "<a></a>"],
    ["<a></all><all></a>", "<a></a>"],
    ["<a b='>'/><a></a>", "<a b='>'></a>"],
]
"""Bodies that are none by themselves, or more than one, though one behind the other they may look right."""
PIECES = INSIDE | st.sampled_from(
    ["<!--", "-->", "<![CDATA[", "]]>", "<b>", "<a>", "</a>", "<a/>", "</all>", "<all>", "<b c='", "'>"]
)
PARTS = st.tuples(st.sampled_from(ROOTS[:3]), st.lists(PIECES, max_size=3).map("".join))


def known(*bodies: str) -> list[bool]:
    """What is known of bodies whose start tags were seen before."""
    outgoing._known_roots.clear()
    for root in ROOTS:
        body_content(f"{root}</{root[1:-1].split(' ')[0]}>".encode())
    return known_contents([body.encode(errors="surrogatepass") for body in bodies])


@pytest.mark.parametrize("bodies", SPLIT, ids=" ".join)
def test_bodies_that_are_right_only_one_behind_the_other_are_not_taken(bodies: list[str]) -> None:
    assert known(*bodies) == [False, False]


@settings(max_examples=examples(600))
@given(
    st.lists(st.tuples(st.sampled_from(ROOTS[:3]), st.lists(PIECES, max_size=3).map("".join)), min_size=1, max_size=4)
)
def test_whatever_is_taken_for_content_together_is_content_by_itself(parts: list[tuple[str, str]]) -> None:
    bodies = [f"{root}{inside}</{root[1:-1].split(' ')[0]}>" for root, inside in parts]
    for body, is_known in zip(bodies, known(*bodies), strict=True):
        if is_known:
            outgoing._known_roots.clear()
            data = body.encode(errors="surrogatepass")
            assert body_content(data) == data


def test_bodies_beside_a_bad_one_are_known_if_they_are_parsed_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good = [f"<a>{number}<b/></a>" for number in range(40)]
    assert known(*good) == [True] * 40
    assert known(*good[:20], "<a><b></a>", "<c/>", *good) == [False] * 62
    monkeypatch.setattr(outgoing, "_TOGETHER", 10 * len(good[0]))
    assert known(*good[:20], "<a><b></a>", "<c/>", *good) == [True] * 20 + [False] * 11 + [True] * 31
    others = [b"<a></a>", "<a></a>", None, b"", 7, b"<d></d>", "<a>\u00e9</a>".encode()]
    assert known_contents(others) == [True, *[False] * 5, True]
