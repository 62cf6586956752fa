"""A body that begins as an earlier one did is looked at no less, only sooner."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.exceptions import EnvelopeError
from holdfast.wire import body_content, outgoing

ROOTS = [
    "<a>",
    "<a xmlns='urn:a'>",
    '<p:a xmlns:p="urn:p" xmlns:xml="http://www.w3.org/XML/1998/namespace">',
    "<a b='>'>",
]
INSIDE = st.text("ab &<>'\"=/:é\ufffe\x01", max_size=6) | st.sampled_from(
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


@settings(max_examples=600)
@given(st.sampled_from(ROOTS), st.lists(INSIDE, max_size=3).map("".join), st.sampled_from(["", " ", "<c/>", "x"]))
def test_what_stands_behind_a_known_start_tag_is_taken_or_refused_as_behind_an_unknown_one(
    root: str, inside: str, behind: str
) -> None:
    name = root[1:].split(">")[0].split(" ")[0]
    data = f"{root}{inside}</{name}>{behind}".encode()
    outgoing._known_roots.clear()
    unknown = outcome(data)
    outgoing._known_roots.clear()
    body_content(f"{root}</{name}>".encode())
    assert outgoing._known_roots
    assert outcome(data) == unknown


def test_how_many_start_tags_are_remembered_is_bounded() -> None:
    outgoing._known_roots.clear()
    for number in range(outgoing._MAX_ROOTS + 2):
        body_content(b"<a%d/>" % number)
    assert len(outgoing._known_roots) <= outgoing._MAX_ROOTS
    body_content(b"<a b='" + b"c" * outgoing._MAX_ROOT + b"'/>")
    assert max(map(len, outgoing._known_roots)) <= outgoing._MAX_ROOT
