"""SymmetricBindingValidator at a socket: what a client proves, whose a Sequence is, and attacks on its messages.

Covers security/symmetric/protected_message.py.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lxml import etree
from symmetric_messages import (
    ALICE,
    CBC,
    KEY,
    NOW,
    OTHER,
    SHOP,
    Served,
    creation,
    encrypted_key,
    plain,
    protected,
    signature_of,
)

from holdfast import ConfigurationError, SecureConversation, Source, SymmetricBindingValidator
from holdfast import UsernameTokenValidator as Users
from holdfast.core.versions import SOAP
from holdfast.security.certificates import Certificate
from holdfast.security.conversation.contexts import SecurityContext
from holdfast.security.conversation.trust import FORMS
from holdfast.security.conversation.trust import write_token as write_context_token
from holdfast.security.encryption import Replacing, key_in_message, write_encrypted_key
from holdfast.security.header import Token, write_token
from holdfast.security.names import CIPHERS, CONVERSATION_1_3, FAILED_AUTHENTICATION, INVALID_SECURITY, WSSE, WSSE11
from holdfast.security.signature import TOKEN_ID
from holdfast.security.signed_message import elements_of, read_secured
from holdfast.security.symmetric.message_keys import MessageKeys, sha1_name
from holdfast.security.symmetric.protected_message import (
    SUITES,
    Protecting,
    check_sealed,
    confirmations_in,
    open_sealed,
    protect,
)
from holdfast.wire import parse_element

Change = Callable[[bytes], bytes]


def code_of(data: bytes) -> str:
    """The subcode of a fault."""
    element = parse_element(data)
    (value,) = element.iterfind(".//{*}Subcode/{*}Value")
    prefix, _, local = (value.text or "").partition(":")
    return f"{{{value.nsmap[prefix]}}}{local}"


def decrypted(data: bytes, request: bytes, suite: Any = "Basic256Sha256") -> tuple[etree._Element, list[str]]:
    """An answer to a request of ours, opened with its key, and what it confirms."""
    wrapped = read_secured(request, SOAP.V1_2).security.element.find(".//{*}EncryptedKey//{*}CipherValue")
    assert wrapped is not None
    digest = hashlib.sha1(base64.b64decode(wrapped.text or "")).digest()
    secured = read_secured(data, SOAP.V1_2)
    sealed = check_sealed(secured, MessageKeys({sha1_name(digest): KEY}), suite, {CBC})
    opened = open_sealed(sealed, data, SOAP.V1_2, suite)
    return opened.message.envelope, confirmations_in(opened.message)


@pytest.mark.parametrize(
    ("suite", "derives"), [("Basic256Sha256", False), ("Basic256Sha256", True), ("Basic256", True)]
)
async def test_an_answer_has_the_key_of_its_request_and_confirms_its_signature(
    tmp_path: Path, derives: bool, suite: Any
) -> None:
    async with Served(tmp_path, suite=suite) as served:
        request = protected(creation(), derives=derives, suite=SUITES[suite])
        assert b"CreateSequence>" not in request
        assert b"secret" not in request
        answer = await served.post(request)
        assert answer.status_code == 200
        assert b":Identifier>" not in answer.content
        assert (b"DerivedKeyToken" in answer.content) == derives
        found, confirmed = decrypted(answer.content, request, suite)
        assert found.find(".//{*}CreateSequenceResponse/{*}Identifier") is not None
        assert confirmed == [signature_of(request).decode()]
        assert len(served.sequences) == 1


@pytest.mark.parametrize(
    ("cipher", "accepted"),
    [("aes256-cbc", ["aes256-cbc", "aes256-gcm"]), ("aes128-cbc", ["aes128-cbc", "aes256-gcm"])],
)
async def test_ciphers_are_those_of_the_setting_and_the_safest(
    tmp_path: Path, cipher: Any, accepted: list[str]
) -> None:
    async with Served(tmp_path, cipher=cipher) as served:
        for name, uri in CIPHERS.items():
            key = KEY[: 32 if "256" in name else 16]
            answer = await served.post(protected(creation(), key=key, cipher=uri))
            assert (answer.status_code == 200) == (name in accepted), name


def without_security(data: bytes) -> bytes:
    return re.sub(rb"<wsse:Security.*</wsse:Security>", b"", data, flags=re.DOTALL)


def replaced(old: str, new: str, count: int = 1) -> Change:
    def change(data: bytes) -> bytes:
        found = re.sub(old.encode(), new.encode(), data, count=count, flags=re.DOTALL)
        assert found != data, old
        return found

    return change


def other_body(data: bytes) -> bytes:
    """The signed Body in a header block of the attacker's, and another in its place."""
    (body,) = re.findall(rb"<s:Body.*</s:Body>", data, flags=re.DOTALL)
    false = re.sub(rb" wsu:Id=\"[^\"]+\"", b"", re.sub(rb"<xenc:EncryptedData.*</xenc:EncryptedData>", b"<x/>", body))
    wrapper = b'<w:Wrap xmlns:w="urn:w">' + body + b"</w:Wrap></s:Header>"
    return data.replace(body, false).replace(b"</s:Header>", wrapper)


def changed_body(data: bytes) -> bytes:
    """The last block of the Body's ciphertext, changed."""
    at = data.rindex(b"</xenc:CipherValue>") - 8
    return data[:at] + (b"A" if data[at : at + 1] != b"A" else b"B") + data[at + 1 :]


ATTACKS: dict[str, Change] = {
    "no security": without_security,
    "no signature": replaced("<ds:Signature .*</ds:Signature>", ""),
    "no encrypted key": replaced("<xenc:EncryptedKey.*</xenc:EncryptedKey>", ""),
    "another key": replaced("<xenc:EncryptedKey.*</xenc:EncryptedKey>", encrypted_key(bytes(32))[1]),
    "a key for another certificate": replaced(
        "<xenc:EncryptedKey.*</xenc:EncryptedKey>",
        write_encrypted_key(Certificate(OTHER.found), "thumbprint", Certificate(OTHER.found).wrap(KEY), "_x"),
    ),
    "two keys": replaced("<xenc:EncryptedKey(.*)</xenc:EncryptedKey>", r"<xenc:EncryptedKey\1</xenc:EncryptedKey>" * 2),
    "a broken key": replaced("<xenc:CipherValue>[^<]{8}", "<xenc:CipherValue>AAAAAAAA"),
    "rsa 1.5": replaced("xmlenc#rsa-oaep-mgf1p", "xmlenc#rsa-1_5"),
    "a truncated signature": replaced(
        "(<ds:SignatureMethod[^>]*)/>", r"\1><ds:HMACOutputLength>8</ds:HMACOutputLength></ds:SignatureMethod>"
    ),
    "a signature by a certificate": replaced("xmldsig#hmac-sha1", "xmldsig#rsa-sha1"),
    "another transform": replaced(
        '<ds:Transform Algorithm="[^"]+"', '<ds:Transform Algorithm="http://www.w3.org/TR/1999/REC-xslt-19991116"'
    ),
    "the body moved": other_body,
    "the body changed": changed_body,
    "a header added": replaced("</s:Header>", "<a:From><a:Address>urn:x</a:Address></a:From></s:Header>"),
    "a Sequence added": replaced(
        "</s:Header>",
        "<r:Sequence><r:Identifier>urn:x</r:Identifier><r:MessageNumber>1</r:MessageNumber></r:Sequence></s:Header>",
    ),
    "the action changed": replaced("/CreateSequence<", "/TerminateSequence<"),
    "the timestamp changed": replaced("<wsu:Expires>20", "<wsu:Expires>21"),
    "a plain user name": replaced(
        "<ds:Signature ", write_token(Token("bob", "hidden", is_digest=False)) + "<ds:Signature ", 1
    ),
    "the signature of an answer": replaced(
        "<ds:Signature ", f'<w:SignatureConfirmation xmlns:w="{WSSE11}"/><ds:Signature '
    ),
    "a part that the list omits": replaced("<xenc:DataReference [^>]+>", ""),
    "a part of another key": replaced(r'(<xenc:EncryptedData.*?URI="#)_x-k"', r'\1_y-k"'),
}


async def test_a_message_that_was_changed_is_refused_alike_and_leaves_nothing(tmp_path: Path) -> None:
    async with Served(tmp_path) as served:
        answers = set[str]()
        for attack, change in ATTACKS.items():
            answer = await served.post(change(protected(creation())))
            assert answer.status_code in (400, 500), attack
            assert code_of(answer.content) == INVALID_SECURITY, attack
            answers.add(re.sub("urn:uuid:[0-9a-f-]+", "", answer.text))
            assert not served.sequences, attack
        assert len(answers) == 1, "nothing tells one refusal from another"
        assert not served.got
        assert (await served.post(protected(creation()))).status_code == 200


async def test_a_message_counts_once_also_if_it_was_changed(tmp_path: Path) -> None:
    async with Served(tmp_path) as served:
        request = protected(creation())
        assert (await served.post(changed_body(request))).status_code == 500
        assert (await served.post(request)).status_code == 503, "no second try with the same signature"
        again = protected(creation())
        assert (await served.post(again)).status_code == 200
        assert (await served.post(again)).status_code == 503
        assert len(served.sequences) == 1


@pytest.mark.parametrize("seconds", [-400, 100])
async def test_an_old_message_and_one_of_the_future_are_refused(tmp_path: Path, seconds: int) -> None:
    async with Served(tmp_path) as served:
        answer = await served.post(protected(creation(), now=NOW + seconds))
        assert code_of(answer.content) == INVALID_SECURITY
        assert (await served.post(protected(creation(), now=NOW + seconds / 10))).status_code == 200


@pytest.mark.parametrize("user", [Token("alice", "wrong", is_digest=False), Token("eve", "secret", is_digest=False)])
async def test_a_wrong_password_is_told_under_the_key_of_the_message_only(tmp_path: Path, user: Token) -> None:
    async with Served(tmp_path) as served:
        request = protected(creation(), user=user)
        answer = await served.post(request)
        assert answer.status_code in (400, 500)
        assert b"FailedAuthentication" not in answer.content
        found, _ = decrypted(answer.content, request)
        assert code_of(etree.tostring(found)) == FAILED_AUTHENTICATION
        assert not served.sequences


async def test_the_log_names_the_attachments_of_a_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    media = 'multipart/related; type="application/soap+xml"; boundary="b"; start="<r>"'
    package = (
        b"--b\r\nContent-Type: application/soap+xml\r\nContent-ID: <r>\r\n\r\n"
        + protected(creation())
        + b"\r\n--b\r\nContent-ID: <x>\r\n\r\ndata\r\n--b--\r\n"
    )
    async with Served(tmp_path) as served:
        answer = await served.post(package, {"Content-Type": media})
        assert code_of(answer.content) == INVALID_SECURITY
        assert not served.sequences
    assert "SOAP with Attachments), which are not supported in signed messages" in caplog.text


async def test_a_message_without_a_user_name_is_refused(tmp_path: Path) -> None:
    async with Served(tmp_path) as served:
        request = protected(creation(), user=None)
        found, _ = decrypted((await served.post(request)).content, request)
        assert code_of(etree.tostring(found)) == INVALID_SECURITY
        assert not served.sequences


async def test_a_user_name_that_is_not_signed_is_refused(tmp_path: Path) -> None:
    """A client's own key, and the user name added after signing: as one would who could copy it from elsewhere."""
    async with Served(tmp_path) as served:
        envelope = parse_element(protected(creation(), user=None))
        security = next(envelope.iter(f"{{{WSSE}}}Security"))
        security.extend(elements_of(write_token(ALICE, "u")))
        replacing = Replacing(CBC, KEY, key_in_message("_x"), "_y")
        replacing.element(security[-1], "token")
        (listed,) = security.iterfind("{*}ReferenceList")
        listed.extend(parse_element(replacing.list().encode()))
        request = etree.tostring(envelope)
        answer = await served.post(request)
        assert code_of(answer.content) == INVALID_SECURITY
        assert not served.sequences


async def test_an_answer_that_is_sent_back_is_no_request(tmp_path: Path) -> None:
    async with Served(tmp_path) as served:
        answer = await served.post(protected(creation(), confirms=(b"signature",)))
        assert code_of(answer.content) == INVALID_SECURITY
        assert not served.sequences


async def test_an_answer_that_confirms_nothing_is_no_request_either(tmp_path: Path) -> None:
    async with Served(tmp_path, conversation=True, confirm=False) as served:
        token = known_token(served, "urn:t:1", KEY)
        answer = await served.post(under(token, KEY, creation()))
        assert b"SignatureConfirmation" not in answer.content
        sent_back = answer.content.replace(b"<c:DerivedKeyToken", token.encode() + b"<c:DerivedKeyToken", 1)
        assert (await served.post(sent_back)).status_code == 503, "received before"


async def test_header_blocks_that_are_not_signed_are_removed(tmp_path: Path) -> None:
    async with Served(tmp_path) as served:
        assert (await served.post(protected(creation()))).status_code == 200
        (sequence,) = served.sequences
        header = f"<r:Sequence><r:Identifier>{sequence}</r:Identifier><r:MessageNumber>1</r:MessageNumber></r:Sequence>"
        ours, theirs = '<m:Mine xmlns:m="urn:m">1</m:Mine>', '<m:Theirs xmlns:m="urn:m">1</m:Theirs>'
        request = protected(plain(headers=header + ours)).replace(b"</s:Header>", theirs.encode() + b"</s:Header>")
        assert (await served.post(request)).status_code == 200
        await served.app.handled()
        (message,) = served.got
        assert [etree.QName(one).localname for one in message.headers] == ["Mine"]
        assert message.user == "alice"


async def test_a_sequence_belongs_to_its_user(tmp_path: Path) -> None:
    async with Served(tmp_path) as served:
        assert (await served.post(protected(creation()))).status_code == 200
        (sequence,) = served.sequences
        header = f"<r:Sequence><r:Identifier>{sequence}</r:Identifier><r:MessageNumber>1</r:MessageNumber></r:Sequence>"
        request = protected(plain(headers=header), user=Token("bob", "hidden", is_digest=False))
        found, _ = decrypted((await served.post(request)).content, request)
        assert b"UnknownSequence" in etree.tostring(found)
        assert (await served.post(protected(plain(headers=header)))).status_code in (200, 202)
        await served.app.handled()
        assert [message.user for message in served.got] == ["alice"]


async def test_a_sequence_cannot_name_a_token_that_did_not_protect_it(tmp_path: Path) -> None:
    async with Served(tmp_path) as served:
        reference = f'<o:SecurityTokenReference xmlns:o="{WSSE}"><o:Reference URI="urn:t"/></o:SecurityTokenReference>'
        request = protected(creation(reference))
        found, _ = decrypted((await served.post(request)).content, request)
        assert code_of(etree.tostring(found)) == INVALID_SECURITY
        assert not served.sequences


def known_token(served: Served, name: str, key: bytes, until: float = NOW + 1000) -> str:
    """A token of WS-SecureConversation that the destination has issued to alice, as messages have it."""
    proof = served.users.sessions._proof("alice", key)
    served.users.sessions._contexts.add(SecurityContext(name, "", "alice", key, until, proof))
    return write_context_token(FORMS[1], name, "")


def under(token: str, key: bytes, data: bytes) -> bytes:
    """A request that is protected by the key of a token."""
    reference = f'<wsse:Reference URI="#{TOKEN_ID}" ValueType="{FORMS[1].token_type}"/>'
    named = f"<wsse:SecurityTokenReference>{reference}</wsse:SecurityTokenReference>"
    made = Protecting(key, named, SUITES["Basic256Sha256"], CBC, 300, token=token, derives_in=CONVERSATION_1_3)
    return protect(data, SOAP.V1_2, made, NOW, must_understand=True)[0]


async def test_a_sequence_belongs_to_the_token_that_created_it(tmp_path: Path) -> None:
    async with Served(tmp_path, conversation=True) as served:
        other_key = bytes(range(32, 64))
        mine, other = known_token(served, "urn:t:1", KEY), known_token(served, "urn:t:2", other_key)
        assert (await served.post(under(mine, KEY, creation()))).status_code == 200
        (sequence,) = served.sequences
        header = f"<r:Sequence><r:Identifier>{sequence}</r:Identifier><r:MessageNumber>1</r:MessageNumber></r:Sequence>"
        assert (await served.post(under(other, other_key, plain(headers=header)))).status_code >= 400
        assert (await served.post(protected(plain(headers=header)))).status_code >= 400, "of the same user"
        assert (await served.post(under(mine, KEY, plain(headers=header)))).status_code in (200, 202)
        await served.app.handled()
        assert [message.user for message in served.got] == ["alice"]


async def test_a_token_counts_with_its_key_until_it_expires(tmp_path: Path) -> None:
    async with Served(tmp_path, conversation=True) as served:
        mine, old = known_token(served, "urn:t:1", KEY), known_token(served, "urn:t:2", KEY, NOW - 100)
        for token, key in ((mine, bytes(32)), (old, KEY), (mine.replace("urn:t:1", "urn:t:3"), KEY)):
            answer = await served.post(under(token, key, creation()))
            assert code_of(answer.content) == INVALID_SECURITY
        assert not served.sequences
        assert (await served.post(under(mine, KEY, creation()))).status_code == 200


async def test_a_request_for_a_token_needs_the_setting(tmp_path: Path) -> None:
    async with Served(tmp_path, clock=time.time) as served:
        conversation = SecureConversation("alice", "secret", certificate=served.files.certificate)
        with pytest.raises(Exception, match="Security"):
            async with Source(served.url, ":memory:", processors=[conversation]) as source:
                await source.request("<order/>", action="urn:shop/order", timeout=60)
        assert not served.got


@pytest.mark.parametrize(("setting", "value"), [("suite", "rsa-sha256"), ("cipher", "des")])
def test_an_unknown_setting_is_refused(tmp_path: Path, setting: Any, value: str) -> None:
    options: dict[str, Any] = {setting: value}
    with pytest.raises(ConfigurationError, match=value):
        SymmetricBindingValidator(*SHOP.files(tmp_path), users=Users({"alice": "secret"}), **options)
