"""A Security header of a known form is read as the elements of it would be; comments of a checked Body are removed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from holdfast import MessageContext
from holdfast.core.messages import Envelope, Fault, TerminateSequence
from holdfast.core.versions import SOAP, Addressing
from holdfast.security import header
from holdfast.security.header import (
    Invalid,
    PlainSecurity,
    Security,
    drop_comments,
    read_security,
    read_security_of,
    remove_security,
)
from holdfast.security.names import PASSWORD_DIGEST, PASSWORD_TEXT, WSSE, WSU
from holdfast.wire import decode, encode

BLOCK = (
    f'<o:Security xmlns:o="{WSSE}" xmlns:u="{WSU}" xmlns:s="http://www.w3.org/2003/05/soap-envelope" '
    's:mustUnderstand="1"><u:Timestamp u:Id="T-1"><u:Created>2026-11-28T11:18:13.123Z</u:Created>'
    "<u:Expires>2026-11-28T11:23:13Z</u:Expires></u:Timestamp>\n"
    f'<o:UsernameToken u:Id="U-1"><o:Username>alice</o:Username><o:Password Type="{PASSWORD_DIGEST}">c2VjcmV0'
    "</o:Password><o:Nonce>AAEC</o:Nonce><u:Created>2026-11-28T11:18:13Z</u:Created></o:UsernameToken></o:Security>"
)
OTHER = b'<t:Tenant xmlns:t="urn:t">acme</t:Tenant>'


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header, "_forms", header._Forms())


def received(*blocks: bytes, soap: SOAP = SOAP.V1_2) -> MessageContext:
    made = Envelope(soap)
    made.headers = blocks
    return MessageContext(made, "inbound", "destination", {}, is_answer=False)


def learn(block: str = BLOCK) -> None:
    for _ in range(2):
        read_security(received(block.encode()))


def read(block: str) -> tuple[object, bool]:
    """Return the parts of a header, or why it is refused, as both ways say; and whether its form is known."""
    context = received(OTHER, block.encode())
    found: list[object] = []
    is_known = False
    for way in (read_security, lambda one: read_security_of(one.headers, SOAP.V1_2)):
        try:
            security = way(context)
            is_known = is_known or isinstance(security, PlainSecurity)
            assert isinstance(security, Security | PlainSecurity)
            assert security.timestamp is not None
            found.append((security.timestamp.created, security.timestamp.expires, security.token))
        except Invalid as error:
            found.append(str(error))
    assert found[0] == found[1]
    return found[0], is_known


def test_a_form_is_known_when_it_occurs_the_third_time() -> None:
    assert not read(BLOCK)[1]
    assert not read(BLOCK.replace("alice", "bob").replace("U-1", "U-2").replace("13.123Z", "14Z"))[1]
    assert read(BLOCK.replace("AAEC", "AAED"))[1]


def message(block: str) -> MessageContext:
    """Return a message as its wire reads it."""
    envelope = Envelope(SOAP.V1_2, Addressing.V2005_08, action="urn:a", message_id="urn:m", body=b"<a/>")
    envelope.headers = (block.encode(),)
    return MessageContext(decode(encode(envelope)), "inbound", "destination", {}, is_answer=False)


def test_texts_that_the_wire_has_read_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(5):
        read_security(message(BLOCK))
    monkeypatch.setattr(header._Form, "texts", None)
    context = message(BLOCK.replace("alice", "bob"))
    security = read_security(context)
    assert isinstance(security, PlainSecurity)
    assert security.token is not None
    assert (security.token.name, security.token.nonce) == ("bob", b"\0\1\2")
    remove_security(context, security)
    assert context.envelope.known_block is None


def test_texts_of_a_block_that_a_processor_has_replaced_are_not_used() -> None:
    for _ in range(5):
        read_security(message(BLOCK))
    context = message(BLOCK)
    context.envelope.headers = (BLOCK.replace("alice", "bob").encode(),)
    security = read_security(context)
    assert security is not None
    assert security.token is not None
    assert security.token.name == "bob"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("alice", ""),
        ("alice", "x" * 2000),
        ("alice", " alice "),
        ("alice", "al&amp;ice"),
        ("alice", "al<!-- -->ice"),
        ("alice", "älice"),
        ("c2VjcmV0", ""),
        ("AAEC", "A A\nEC"),
        ("AAEC", "-"),
        ("AAEC", "AAAA" * 200),
        ("AAEC", ""),
        ("2026-11-28T11:18:13Z", "yesterday"),
        ("2026-11-28T11:18:13Z", " 2026-11-28T11:18:13Z "),
        ("2026-11-28T11:23:13Z", ""),
        ("T-1", "U-1"),
    ],
)
def test_every_value_is_read_or_refused_alike(old: str, new: str) -> None:
    learn()
    read(BLOCK.replace(old, new))


def test_the_type_of_a_password_belongs_to_the_form() -> None:
    learn()
    learn(BLOCK.replace(PASSWORD_DIGEST, PASSWORD_TEXT))
    for block in (BLOCK, BLOCK.replace(PASSWORD_DIGEST, PASSWORD_TEXT)):
        token = read_security(received(block.encode()))
        assert isinstance(token, PlainSecurity)
        assert token.token is not None
        assert token.token.is_digest == (block is BLOCK)


@pytest.mark.parametrize(
    "extra",
    ["<u:Timestamp/>", "<o:UsernameToken/>", "<x/>", "<u:Timestamp><u:Created/></u:Timestamp>", "<!-- -->"],
)
def test_headers_with_other_parts_have_no_form(extra: str) -> None:
    block = BLOCK.replace("</o:Security>", f"{extra}</o:Security>")
    for _ in range(3):
        context = received(block.encode())
        try:
            assert isinstance(read_security(context), Security)
        except Invalid:
            pass


def test_a_second_security_header_is_refused_though_the_first_is_known() -> None:
    learn()
    with pytest.raises(Invalid, match="two Security headers"):
        read_security(received(BLOCK.encode(), BLOCK.encode()))


def test_a_header_for_another_role_is_not_read_as_one_for_us() -> None:
    learn()
    other = BLOCK.replace('s:mustUnderstand="1"', 's:mustUnderstand="1" s:role="urn:other"')
    for _ in range(3):
        assert read_security(received(other.encode())) is None


def test_a_form_of_one_soap_version_is_none_of_the_other() -> None:
    learn()
    assert isinstance(read_security(received(BLOCK.encode(), soap=SOAP.V1_1)), Security)


def test_only_the_security_header_is_removed() -> None:
    learn()
    context = received(OTHER, BLOCK.encode())
    remove_security(context, read_security(context))
    assert context.envelope.headers == (OTHER,)


def test_the_known_forms_are_bounded() -> None:
    for number in range(header._MAX_FORMS + 2):
        learn(BLOCK.replace("<o:Security ", f'<o:Security n="{number}" '))
    assert len(header._forms._known) <= header._MAX_FORMS
    for number in range(header._MAX_FORMS_ALIKE + 2):
        learn(BLOCK.replace("<o:Username>", f'<o:Username n="{number}">'))
    assert max(map(len, header._forms._known.values())) == header._MAX_FORMS_ALIKE
    for number in range(header._MAX_FORMS + 2):
        read_security(received(BLOCK.replace("<o:Username>", f'<o:Username m="{number}">').encode()))
    assert len(header._forms._once) <= header._MAX_FORMS
    ((form, *_), *_) = header._forms._known.values()
    for _ in range(header._MAX_FORMS + 2):
        header._forms._remember(object(), form)
    assert len(header._forms._of_wire) <= header._MAX_FORMS


# --- comments --------------------------------------------------------------------------------------------------------

COMMENTS = ["<!-- < & -->", "<!---->", "<!-- <![CDATA[ -->", "<!-- <?p -->", "<!-- ]]> -->"]
OTHERS = ["7", "é", "<i/>", "<i b='-->'>x</i>", "&lt;!--", "<![CDATA[<!-- x -->]]>", "<![CDATA[]]>", "<?p <!-- --> ?>"]


def commented(body: bytes) -> tuple[MessageContext, etree._Element]:
    """A message, and its Body."""
    context = MessageContext(Envelope(SOAP.V1_2, body=body), "inbound", "destination", {}, is_answer=False)
    return context, etree.fromstring(b"<e>%b</e>" % body)


@given(st.lists(st.sampled_from(COMMENTS + OTHERS), max_size=8))
def test_the_body_of_a_checked_message_has_no_comments_and_is_otherwise_the_same(pieces: list[str]) -> None:
    context, content = commented(f"<a>{''.join(pieces)}</a>".encode())
    drop_comments(context, content)
    assert context.envelope.body.decode() == f"<a>{''.join(one for one in pieces if one not in COMMENTS)}</a>"


def test_a_comment_in_what_the_endpoint_itself_has_read_is_refused() -> None:
    for envelope in (
        Envelope(SOAP.V1_2, control=TerminateSequence("urn:s:1")),
        Envelope(SOAP.V1_2, fault=Fault("Sender", "wrong")),
    ):
        context, content = commented(b"<a>urn:<!-- x -->s:1</a>")
        context.envelope = envelope
        with pytest.raises(Invalid):
            drop_comments(context, content)
