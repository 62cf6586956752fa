"""Derived keys: computed as CXF and Metro do, bounded, and of the message's own token only."""

from __future__ import annotations

import hashlib

import pytest
from lxml import etree

from holdfast.security.header import Invalid
from holdfast.security.names import CONVERSATION_1_3, CONVERSATION_2005, DS, ENCRYPTED_KEY_SHA1, WSSE, WSU
from holdfast.security.symmetric.message_keys import (
    MAX_DERIVED,
    MAX_LABEL,
    MAX_OFFSET,
    MessageKeys,
    derived,
    name_of,
    sha1_name,
    to_encrypted_key,
    write_derived,
)
from holdfast.wire import parse_element

KEY = bytes(range(32))
REFERENCE = '<o:SecurityTokenReference><o:Reference URI="#root"/></o:SecurityTokenReference>'
NONCE = "<c:Nonce>AAECAwQFBgcICQoLDA0ODw==</c:Nonce>"


def security(content: str, namespace: str = CONVERSATION_1_3) -> etree._Element:
    spaces = f'xmlns:o="{WSSE}" xmlns:wsse="{WSSE}" xmlns:u="{WSU}" xmlns:wsu="{WSU}" xmlns:c="{namespace}"'
    return parse_element(f'<o:Security {spaces} xmlns:ds="{DS}">{content}</o:Security>'.encode())


def token(content: str = REFERENCE + NONCE, name: str = "one", more: str = "") -> str:
    return f'<c:DerivedKeyToken u:Id="{name}"{more}>{content}</c:DerivedKeyToken>'


def to(name: str) -> etree._Element:
    return security(f'<o:SecurityTokenReference><o:Reference URI="{name}"/></o:SecurityTokenReference>')[0]


@pytest.mark.parametrize("namespace", [CONVERSATION_2005, CONVERSATION_1_3])
def test_a_derived_key_that_is_written_is_read(namespace: str) -> None:
    named = '<wsse:SecurityTokenReference><wsse:Reference URI="#root"/></wsse:SecurityTokenReference>'
    key, written, reference = write_derived(KEY, named, namespace, "one", 24)
    keys = MessageKeys({"#root": KEY})
    keys.derive(security(written))
    assert keys.find(security(reference)[0]) == key
    assert len(key) == 24
    assert keys.derives_in == namespace


def test_offset_and_length_cut_one_stream_of_bytes() -> None:
    whole = derived(KEY, "label", b"nonce", 0, 64)
    assert derived(KEY, "label", b"nonce", 24, 32) == whole[24:56]
    keys = MessageKeys({"#root": KEY})
    cut = f"{REFERENCE}<c:Offset>24</c:Offset><c:Length>16</c:Length><c:Label>label</c:Label>{NONCE}"
    keys.derive(security(token(cut)))
    assert keys.find(to("#one")) == derived(KEY, "label", bytes(range(16)), 24, 16)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (token() * 2, "Id"),
        (token(name="root"), "Id"),
        (token(name=""), "Id"),
        ("".join(token(name=f"n{n}") for n in range(MAX_DERIVED + 1)), "9 derived keys"),
        (token(NONCE), "other parts"),
        (token(REFERENCE), "other parts"),
        (token(REFERENCE + NONCE * 2), "other parts"),
        (token(REFERENCE + "<c:Generation>1</c:Generation>" + NONCE), "other parts"),
        (token(REFERENCE + "<c:Properties/>" + NONCE), "other parts"),
        (token(more=' Algorithm="urn:mine"'), "derived with 'urn:mine'"),
        (token(REFERENCE.replace("#root", "#other") + NONCE), "another than that"),
        (token() + token(REFERENCE.replace("#root", "#one") + NONCE, "two"), "another than that"),
        (token(f"{REFERENCE}<c:Length>15</c:Length>{NONCE}"), "very long, or short"),
        (token(f"{REFERENCE}<c:Length>65</c:Length>{NONCE}"), "very long, or short"),
        (token(f"{REFERENCE}<c:Length>x</c:Length>{NONCE}"), "not a number"),
        (token(f"{REFERENCE}<c:Length>-1</c:Length>{NONCE}"), "not a number"),
        (token(f"{REFERENCE}<c:Offset>999999999</c:Offset>{NONCE}"), "not a number"),
        (token(f"{REFERENCE}<c:Offset>{MAX_OFFSET + 1}</c:Offset>{NONCE}"), "very long, or short"),
        (token(f"{REFERENCE}<c:Label>{'x' * (MAX_LABEL + 1)}</c:Label>{NONCE}"), "very long, or short"),
        (token(f"{REFERENCE}<c:Nonce>AAEC</c:Nonce>"), "very long, or short"),
        (token(f"{REFERENCE}<c:Nonce>{'AAAA' * 43}</c:Nonce>"), "very long, or short"),
        (token(f"{REFERENCE}<c:Nonce>?</c:Nonce>"), "not base64"),
    ],
)
def test_a_derived_key_of_another_shape_is_refused(content: str, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        MessageKeys({"#root": KEY}).derive(security(content))


def test_a_key_that_is_not_the_messages_is_not_found() -> None:
    with pytest.raises(Invalid, match="not the message's"):
        MessageKeys({"#root": KEY}).find(to("#elsewhere"))


def test_an_encrypted_key_is_named_by_the_sha1_of_its_bytes() -> None:
    reference = security(to_encrypted_key(b"encrypted"))[0]
    assert name_of(reference) == sha1_name(hashlib.sha1(b"encrypted").digest())
    keys = MessageKeys({name_of(reference): KEY})
    assert keys.find(reference) == KEY


@pytest.mark.parametrize(
    "content",
    [
        "",
        '<o:Reference URI="#a"/><o:Reference URI="#b"/>',
        "<o:Reference/>",
        '<o:KeyIdentifier ValueType="urn:other">AAAA</o:KeyIdentifier>',
        f'<o:KeyIdentifier ValueType="{ENCRYPTED_KEY_SHA1}" EncodingType="urn:hex">AAAA</o:KeyIdentifier>',
        f'<o:KeyIdentifier ValueType="{ENCRYPTED_KEY_SHA1}"><o:x/></o:KeyIdentifier>',
        f'<o:KeyIdentifier ValueType="{ENCRYPTED_KEY_SHA1}">?</o:KeyIdentifier>',
    ],
)
def test_a_reference_of_another_form_is_refused(content: str) -> None:
    with pytest.raises(Invalid):
        name_of(security(f"<o:SecurityTokenReference>{content}</o:SecurityTokenReference>")[0])
