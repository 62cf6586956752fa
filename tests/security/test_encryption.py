"""Encrypted messages: captures of CXF and Metro, what we write, both ends of a socket, and attacks on decryption."""

from __future__ import annotations

import base64
import functools
import re
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from lxml import etree
from signers import Issued, authority, content_of, issue

from holdfast import (
    X509,
    ConfigurationError,
    Encryption,
    MessageContext,
    MessageFlowError,
    ProcessingError,
    Source,
    sync,
)
from holdfast.core.messages import Envelope, Fault, Sequence
from holdfast.core.versions import RM, SOAP, Addressing
from holdfast.http.exchange import Request
from holdfast.security.certificates import Certificate, Credential
from holdfast.security.encryption import (
    KEY_BYTES,
    MAX_PARTS,
    Encrypting,
    decrypt,
    encrypt,
    read_encrypted,
    sign_and_encrypt,
)
from holdfast.security.freshness import Freshness
from holdfast.security.names import (
    CIPHERS,
    DS,
    ENCRYPTED_HEADER,
    INVALID_SECURITY,
    SECURITY,
    SHA256,
    WSSE,
    WSU,
    X509_V3,
    XENC,
    XENC11,
    CipherName,
    Kind,
)
from holdfast.security.signature import ID, canonical
from holdfast.security.signed_message import (
    SUITES,
    Signing,
    check_part,
    check_signed,
    check_value,
    read_secured,
    read_signature,
    unsigned_headers,
)
from holdfast.wire import decode
from holdfast.wire import encode as written

CAPTURES = Path(__file__).parents[1] / "data" / "vectors" / "cxf-secured"
LONG = 1e9
"""Seconds that the clock of a capture may be behind."""
S = "{http://www.w3.org/2003/05/soap-envelope}"
X, D = f"{{{XENC}}}", f"{{{DS}}}"
TENANT = "{urn:tenants}Tenant"
ALICE, SHOP = issue("CN=alice,O=Example", authority()), issue("CN=shop,O=Example", authority())
BARE = issue("CN=bare,O=Example", authority(), has_identifier=False)
SETTINGS = {
    "signed first": Encryption(),
    "encrypted first": Encryption(before_signing=True),
    "the signature": Encryption(signature=True),
    "a header": Encryption(headers=[TENANT]),
    "a header, encrypted first": Encryption(headers=[TENANT], before_signing=True),
    "all": Encryption(headers=[TENANT], signature=True, cipher="aes128-gcm"),
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@functools.cache
def credential(one: Issued, directory: Path) -> Credential:
    return Credential(*one.files(directory))


SHOPS: dict[str, X509] = {}
"""The processors made so far: to read a private key takes long. Each signature is another one."""


def shop(directory: Path, encrypt: Encryption | None) -> X509:
    """The shop's processor, which trusts alice."""
    name = f"{directory} {encrypt}"
    if name not in SHOPS:
        SHOPS[name] = X509(*SHOP.files(directory), trusted=ALICE.files(directory).certificate, encrypt=encrypt)
    return SHOPS[name]


def plain(body: bytes = b"<order xmlns='urn:shop'>7</order>") -> bytes:
    envelope = Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1, action="urn:shop/order", to="http://shop/", body=body)
    envelope.message_id = "urn:m:1"
    envelope.sequence = Sequence("urn:s:1", 7)
    envelope.headers = (b'<t:Tenant xmlns:t="urn:tenants">secret</t:Tenant>',)
    return written(envelope)


def secured(directory: Path, data: bytes, settings: Encryption, at: float | None = None, **changed: Any) -> bytes:
    """A message of alice for the shop."""
    signing = Signing(credential(ALICE, directory), "token", SUITES["rsa-sha256"], 300.0)
    given: dict[str, Any] = {
        "certificate": Certificate(SHOP.found),
        "cipher": CIPHERS[settings.cipher],
        "reference": "subject-key-identifier",
        "headers": settings.headers,
        "signature": settings.signature,
        "before_signing": settings.before_signing,
    }
    when = time.time() if at is None else at
    return sign_and_encrypt(data, SOAP.V1_2, signing, Encrypting(**given | changed), when, must_understand=True)


def taken(processor: X509, data: bytes, *, is_answer: bool = False) -> Envelope:
    """What an endpoint takes of a message: it is read, decrypted, read again and checked."""
    notes: dict[str, Any] = {}
    request = None if is_answer else Request("POST", "/", {}, data, "peer", False)
    role: Any = "source" if is_answer else "destination"

    def context(envelope: Envelope) -> MessageContext:
        return MessageContext(
            envelope, "inbound", role, notes, is_answer=is_answer, data=data, to="http://shop/", request=request
        )

    envelope = decode(data)
    opened = processor.received(context(envelope), data)
    envelope = envelope if opened is data else decode(opened)
    processor.inbound(context(envelope))
    return envelope


def refusal(processor: X509, data: bytes) -> str:
    with pytest.raises(ProcessingError) as raised:
        taken(processor, data)
    assert raised.value.code == INVALID_SECURITY
    return raised.value.message


# --- captures --------------------------------------------------------------------------------------------------------

RECORDED = [path for path in sorted((CAPTURES / "sign-encrypt").glob("*.http")) if content_of(path)]
METRO = sorted((CAPTURES / "metro-sc").glob("*.http"))


def sides(path: Path) -> tuple[Path, Path]:
    """Who received a recorded message, and who sent it."""
    client, server = CAPTURES / "keys" / "client.crt", CAPTURES / "keys" / "server.crt"
    return (server, client) if "req" in path.name else (client, server)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_every_recorded_message_of_cxf_is_decrypted(path: Path) -> None:
    data = content_of(path)
    own, other = sides(path)
    options: dict[str, Any] = {"trusted": other, "suite": "Basic256Sha256", "freshness": Freshness(LONG, LONG)}
    processor = X509(own, own.with_suffix(".key"), encrypt=Encryption(), **options)
    envelope = taken(processor, data, is_answer="res" in path.name)
    assert not envelope.contradiction
    assert b"EncryptedData" not in envelope.body
    if "echo" in envelope.action:
        assert b"urn:live:seq" in envelope.body
    else:
        assert envelope.control is not None


@pytest.mark.parametrize("path", METRO, ids=lambda path: path.stem)
def test_the_body_of_metro_has_the_prefixes_that_were_signed(path: Path) -> None:
    """Its decrypted elements have other prefixes than its envelope for the same namespaces. They must keep them."""
    data = content_of(path)
    own, other = (Credential(side, side.with_suffix(".key")) for side in sides(path))
    message = read_secured(data, SOAP.V1_2)
    encrypted = read_encrypted(message, own.certificate, CIPHERS.values())
    check_value(read_signature(message), other.certificate, "Basic256Sha256")
    decrypted = encrypted.decrypt(message, own)
    assert decrypted.is_right
    found = read_signature(read_secured(decrypted.data, SOAP.V1_2))
    check_part(found, found.body, "Basic256Sha256")
    assert b"RequestSecurityToken" in decode(decrypted.data).body


# --- what we write ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", SETTINGS)
@pytest.mark.parametrize("cipher", CIPHERS)
def test_what_we_encrypt_is_decrypted(directory: Path, what: str, cipher: CipherName) -> None:
    settings = SETTINGS[what]
    settings = Encryption(cipher=cipher, headers=settings.headers, signature=settings.signature)
    data = secured(directory, plain(), settings)
    assert b"order>" not in data
    assert (b"secret" in data) is not bool(settings.headers)
    assert (b"SignatureValue" in data) is not settings.signature
    envelope = taken(shop(directory, settings), data)
    assert envelope.sequence == Sequence("urn:s:1", 7)
    assert etree.fromstring(envelope.body).text == "7"
    assert [etree.fromstring(one).text for one in envelope.headers] == ["secret"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        "<a b='&#13;&#9;\"'>žluťoučký 🐎 &amp; &#13;</a>".encode(),
        b"<a>1<!-- one -->2<![CDATA[<3>]]></a>",
        b"<p:a xmlns:p='urn:p' xmlns:q='urn:q' t='q:name'><b xmlns='urn:p'/><p:c/></p:a>",
        b"<a xmlns='http://www.w3.org/2003/05/soap-envelope'/>",
        b"<a>" + b"x" * 100_000 + b"</a>",
    ],
    ids=["nothing", "characters", "comments", "prefixes", "namespace of SOAP", "large"],
)
@pytest.mark.parametrize("what", SETTINGS)
def test_the_content_of_a_body_survives_without_its_comments(directory: Path, what: str, body: bytes) -> None:
    settings = SETTINGS[what]
    found = taken(shop(directory, settings), secured(directory, plain(body), settings)).body
    if body:
        assert canonical(etree.fromstring(found)) == canonical(etree.fromstring(body))
        assert next(etree.fromstring(found).iter(etree.Comment), None) is None
    else:
        assert found == b""


@pytest.mark.parametrize("kind", ["subject-key-identifier", "issuer-serial", "thumbprint"])
def test_each_reference_to_the_receiver_is_written_and_read(directory: Path, kind: Kind) -> None:
    assert taken(shop(directory, Encryption()), secured(directory, plain(), Encryption(), reference=kind))


def test_the_receivers_certificate_may_be_in_the_message(directory: Path) -> None:
    """As CXF writes it with DirectReference: next to that of the signer."""
    envelope = etree.fromstring(secured(directory, plain(), Encryption()))
    security = security_of(envelope)
    der = base64.b64encode(Certificate(SHOP.found).der).decode()
    token = etree.Element(f"{{{WSSE}}}BinarySecurityToken", {ID: "ours", "ValueType": X509_V3})
    token.text = der
    security.insert(1, token)
    named = part(envelope, f".//{X}EncryptedKey/{D}KeyInfo/*")
    del named[:]
    etree.SubElement(named, f"{{{WSSE}}}Reference", URI="#ours", ValueType=X509_V3)
    assert taken(shop(directory, Encryption()), etree.tostring(envelope)).body
    named[0].set("URI", f"#{part(security, f'{{{WSSE}}}BinarySecurityToken[2]').get(ID)}")
    refusal(shop(directory, Encryption()), etree.tostring(envelope))


def test_no_two_messages_have_the_same_key_or_content(directory: Path) -> None:
    values = [re.findall(rb"CipherValue>([^<]+)<", secured(directory, plain(), Encryption())) for _ in range(3)]
    assert len({value for one in values for value in one}) == 6


def test_oaep_with_sha_256_is_read(directory: Path) -> None:
    """RSA-OAEP of XML Encryption 1.1, as newer peers write it."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    cipher = CIPHERS["aes256-cbc"]
    for mask, algorithm in ((hashes.SHA256(), "mgf1sha256"), (hashes.SHA1(), "mgf1sha1")):
        envelope = etree.fromstring(secured(directory, plain(), Encryption()))
        key = bytes(32)
        wrapped = SHOP.key.public_key().encrypt(key, padding.OAEP(padding.MGF1(mask), hashes.SHA256(), None))
        method = part(envelope, f".//{X}EncryptedKey/{X}EncryptionMethod")
        method.set("Algorithm", XENC11 + "rsa-oaep")
        etree.SubElement(method, f"{D}DigestMethod", Algorithm=SHA256)
        etree.SubElement(method, f"{{{XENC11}}}MGF", Algorithm=XENC11 + algorithm)
        put(part(envelope, f".//{X}EncryptedKey"), wrapped)
        body = part(envelope, f"{S}Body/{X}EncryptedData")
        content = b'<order xmlns="urn:shop">7</order>'
        put(body, encrypt(cipher, key, content))
        assert taken(shop(directory, Encryption()), etree.tostring(envelope)).body


@pytest.mark.parametrize("cipher", CIPHERS.values())
def test_bytes_of_every_length_are_encrypted(cipher: str) -> None:
    key = bytes(KEY_BYTES[cipher])
    for length in range(34):
        assert decrypt(cipher, key, encrypt(cipher, key, b"x" * length)) == (b"x" * length, True)
        assert not decrypt(cipher, key, b"x" * length)[1] or "gcm" not in cipher
    assert decrypt(cipher, key, b"") == (b"", False)


# --- attacks ---------------------------------------------------------------------------------------------------------

Attack = Callable[[etree._Element], None]
ATTACKS: dict[str, Attack] = {}


def attack(what: str) -> Callable[[Attack], Attack]:
    def add(function: Attack) -> Attack:
        ATTACKS[what] = function
        return function

    return add


def part(envelope: etree._Element, path: str) -> etree._Element:
    found = envelope.find(path)
    assert found is not None, path
    return found


def head(envelope: etree._Element) -> etree._Element:
    return part(envelope, f"{S}Header")


def security_of(envelope: etree._Element) -> etree._Element:
    return part(envelope, f"{S}Header/{SECURITY}")


def put(holder: etree._Element, value: bytes) -> None:
    part(holder, f"{X}CipherData/{X}CipherValue").text = base64.b64encode(value).decode()


def body_of(envelope: etree._Element) -> etree._Element:
    return part(envelope, f"{S}Body")


def data_of(envelope: etree._Element) -> etree._Element:
    return part(envelope, f"{S}Body/{X}EncryptedData")


def key_of(envelope: etree._Element) -> etree._Element:
    return part(security_of(envelope), f"{X}EncryptedKey")


def list_of(envelope: etree._Element) -> etree._Element:
    return part(key_of(envelope), f"{X}ReferenceList")


def evil() -> etree._Element:
    return etree.fromstring("<order xmlns='urn:shop'>evil</order>")


PLACES: dict[str, Callable[[etree._Element], etree._Element]] = {
    "a header": lambda envelope: etree.SubElement(head(envelope), "{urn:x}Wrapper"),
    "an EncryptedHeader": lambda envelope: etree.SubElement(head(envelope), ENCRYPTED_HEADER),
    "the Security header": security_of,
    "an element of the Security header": lambda envelope: etree.SubElement(security_of(envelope), "{urn:x}Wrapper"),
    "the Header": head,
    "an element of the Body": lambda envelope: etree.SubElement(body_of(envelope), "{urn:x}Wrapper"),
    "the EncryptedKey": key_of,
}
for _place in PLACES:
    for _fills in (True, False):

        def _wrap(envelope: etree._Element, place: str = _place, fills: bool = _fills) -> None:
            data = data_of(envelope)
            body_of(envelope).remove(data)
            PLACES[place](envelope).append(data)
            if fills:
                body_of(envelope).append(evil())

        ATTACKS[f"the encrypted content is moved to {_place}{', and another in its place' if _fills else ''}"] = _wrap


@attack("another element next to the encrypted content")
def _(envelope: etree._Element) -> None:
    body_of(envelope).append(evil())


@attack("the encrypted content twice")
def _(envelope: etree._Element) -> None:
    body_of(envelope).append(deepcopy(data_of(envelope)))


@attack("the encrypted content twice, with another Id")
def _(envelope: etree._Element) -> None:
    copy = deepcopy(data_of(envelope))
    copy.set("Id", "other")
    body_of(envelope).append(copy)
    etree.SubElement(list_of(envelope), f"{X}DataReference", URI="#other")


for _attribute in ("Id", "ID", "{http://www.w3.org/XML/1998/namespace}id", ID):

    def _repeat(envelope: etree._Element, name: str = _attribute) -> None:
        etree.SubElement(head(envelope), "{urn:x}Other").set(name, data_of(envelope).get("Id", ""))

    ATTACKS[f"the Id of the encrypted content elsewhere, as {_attribute.rpartition('}')[2]} {_attribute[:3]}"] = _repeat


@attack("two keys")
def _(envelope: etree._Element) -> None:
    security_of(envelope).insert(1, deepcopy(key_of(envelope)))


@attack("a key bomb")
def _(envelope: etree._Element) -> None:
    for number in range(200):
        copy = deepcopy(key_of(envelope))
        copy.set("Id", f"k{number}")
        security_of(envelope).insert(1, copy)


@attack("no list of encrypted parts")
def _(envelope: etree._Element) -> None:
    key_of(envelope).remove(list_of(envelope))


@attack("two lists of encrypted parts")
def _(envelope: etree._Element) -> None:
    security_of(envelope).append(deepcopy(list_of(envelope)))


@attack("an empty list of encrypted parts")
def _(envelope: etree._Element) -> None:
    del list_of(envelope)[:]


@attack("a reference bomb: one part many times")
def _(envelope: etree._Element) -> None:
    list_of(envelope).extend([deepcopy(list_of(envelope)[0]) for _ in range(1_000)])


@attack("a reference bomb: one part twice")
def _(envelope: etree._Element) -> None:
    list_of(envelope).append(deepcopy(list_of(envelope)[0]))


@attack("a bomb of parts")
def _(envelope: etree._Element) -> None:
    for number in range(MAX_PARTS):
        copy = deepcopy(data_of(envelope))
        copy.set("Id", f"d{number}")
        copy.set("Type", XENC + "Element")
        etree.SubElement(head(envelope), ENCRYPTED_HEADER).append(copy)
        etree.SubElement(list_of(envelope), f"{X}DataReference", URI=f"#d{number}")


for _uri in ("", "#", "#other", "#xpointer(/)", "http://127.0.0.1:9/", "cid:a"):

    def _point(envelope: etree._Element, uri: str = _uri) -> None:
        list_of(envelope)[0].set("URI", uri)

    ATTACKS[f"a reference to {_uri!r}"] = _point


@attack("a cycle: the list names the key")
def _(envelope: etree._Element) -> None:
    list_of(envelope)[0].set("URI", f"#{key_of(envelope).get('Id')}")


@attack("a cycle: the list names the key as a key")
def _(envelope: etree._Element) -> None:
    list_of(envelope)[0].tag = f"{X}KeyReference"
    list_of(envelope)[0].set("URI", f"#{key_of(envelope).get('Id')}")


@attack("a cycle: the content names itself as its key")
def _(envelope: etree._Element) -> None:
    part(data_of(envelope), f".//{{{WSSE}}}Reference").set("URI", f"#{data_of(envelope).get('Id')}")


@attack("the content names no key, and the key has no name")
def _(envelope: etree._Element) -> None:
    part(data_of(envelope), f".//{{{WSSE}}}Reference").set("URI", "#")
    del key_of(envelope).attrib["Id"]


@attack("the key is elsewhere")
def _(envelope: etree._Element) -> None:
    head(envelope).append(key_of(envelope))


@attack("the key is in the content")
def _(envelope: etree._Element) -> None:
    key_info = part(data_of(envelope), f"{D}KeyInfo")
    del key_info[:]
    key_info.append(key_of(envelope))


for _holder in ("key", "content"):
    for _tag in ("CipherReference", "CipherValue"):

        def _refer(envelope: etree._Element, holder: str = _holder, tag: str = _tag) -> None:
            data = part(key_of(envelope) if holder == "key" else data_of(envelope), f"{X}CipherData")
            if tag == "CipherValue":
                data.append(deepcopy(data[0]))
            else:
                data[0].tag = f"{X}{tag}"
                data[0].set("URI", "http://127.0.0.1:9/")

        ATTACKS[f"the {_holder} has {'two values' if _tag == 'CipherValue' else 'a value elsewhere'}"] = _refer

VALUES = {"nothing": "", "no base64": "!!!", "a byte": "AA==", "a block": "A" * 20 + "AA==", "an element": "<"}
for _holder in ("key", "content"):
    for _name, _value in VALUES.items():

        def _spoil(envelope: etree._Element, holder: str = _holder, value: str = _value) -> None:
            found = part(key_of(envelope) if holder == "key" else data_of(envelope), f"{X}CipherData/{X}CipherValue")
            if value == "<":
                etree.SubElement(found, "{urn:x}x")
            else:
                found.text = value

        ATTACKS[f"the value of the {_holder} is {_name}"] = _spoil

TYPES = {"Element": XENC + "Element", "none": None, "another": "http://www.isi.edu/in-notes/iana/assignments/text/xml"}
for _name, _type in TYPES.items():

    def _retype(envelope: etree._Element, given: str | None = _type) -> None:
        data_of(envelope).attrib.pop("Type")
        if given:
            data_of(envelope).set("Type", given)

    ATTACKS[f"the type of the content is {_name}"] = _retype

WRAPPINGS = {
    "rsa-1_5": XENC + "rsa-1_5",
    "a symmetric key": XENC + "kw-aes256",
    "none": "",
}
for _name, _uri in WRAPPINGS.items():

    def _rewrap(envelope: etree._Element, uri: str = _uri) -> None:
        part(key_of(envelope), f"{X}EncryptionMethod").set("Algorithm", uri)

    ATTACKS[f"downgraded: the key is encrypted with {_name}"] = _rewrap

BAD_CIPHERS = {
    "tripledes-cbc": XENC + "tripledes-cbc",
    "aes128-cbc": CIPHERS["aes128-cbc"],
    "aes192-cbc": XENC + "aes192-cbc",
    "none": "",
    "a stream": XENC + "arcfour",
}
for _name, _uri in BAD_CIPHERS.items():

    def _recipher(envelope: etree._Element, uri: str = _uri) -> None:
        part(data_of(envelope), f"{X}EncryptionMethod").set("Algorithm", uri)

    ATTACKS[f"downgraded: the content is encrypted with {_name}"] = _recipher

PARAMETERS = {
    "a label": f"{X}OAEPparams",
    "a size": f"{X}KeySize",
    "another digest": f"{D}DigestMethod",
    "a mask": f"{{{XENC11}}}MGF",
}
for _name, _tag in PARAMETERS.items():

    def _parameter(envelope: etree._Element, tag: str = _tag) -> None:
        etree.SubElement(part(key_of(envelope), f"{X}EncryptionMethod"), tag, Algorithm="urn:md5").text = "AAAA"

    ATTACKS[f"the key is encrypted with {_name}"] = _parameter


@attack("the content is encrypted with parameters")
def _(envelope: etree._Element) -> None:
    etree.SubElement(part(data_of(envelope), f"{X}EncryptionMethod"), f"{X}KeySize").text = "8"


KEY_INFOS = {
    "KeyName": f'<ds:KeyName xmlns:ds="{DS}">shop</ds:KeyName>',
    "RetrievalMethod": f'<ds:RetrievalMethod xmlns:ds="{DS}" URI="http://127.0.0.1:9/"/>',
    "an identifier of another": f'<o:SecurityTokenReference xmlns:o="{WSSE}"><o:KeyIdentifier ValueType="'
    'http://docs.oasis-open.org/wss/oasis-wss-soap-message-security-1.1#ThumbprintSHA1">AAAA</o:KeyIdentifier>'
    "</o:SecurityTokenReference>",
    "nothing": f'<o:SecurityTokenReference xmlns:o="{WSSE}"/>',
}
for _name, _content in KEY_INFOS.items():

    def _name_key(envelope: etree._Element, content: str = _content) -> None:
        key_info = part(key_of(envelope), f"{D}KeyInfo")
        del key_info[:]
        key_info.append(etree.fromstring(content))

    ATTACKS[f"the key is for {_name}"] = _name_key


@attack("the key is that of another message")
def _(envelope: etree._Element) -> None:
    put(key_of(envelope), Certificate(SHOP.found).wrap(bytes(32)))


@attack("the key has another length")
def _(envelope: etree._Element) -> None:
    put(key_of(envelope), Certificate(SHOP.found).wrap(bytes(16)))


@attack("the key is for another certificate, under our name")
def _(envelope: etree._Element) -> None:
    put(key_of(envelope), Certificate(ALICE.found).wrap(bytes(32)))


@attack("the key follows the signature")
def _(envelope: etree._Element) -> None:
    security_of(envelope).append(key_of(envelope))


@attack("the signature is taken away")
def _(envelope: etree._Element) -> None:
    security_of(envelope).remove(part(security_of(envelope), f"{D}Signature"))


@attack("the Timestamp is changed")
def _(envelope: etree._Element) -> None:
    created = part(security_of(envelope), f"{{{WSU}}}Timestamp/{{{WSU}}}Created")
    created.text = (created.text or "").replace("Z", "1Z")


@attack("an unsigned header")
def _(envelope: etree._Element) -> None:
    etree.SubElement(head(envelope), "{http://www.w3.org/2005/08/addressing}RelatesTo").text = "urn:x"


@pytest.mark.parametrize("what", ATTACKS)
def test_a_forged_message_is_refused(directory: Path, what: str) -> None:
    processor = shop(directory, Encryption())
    assert taken(processor, secured(directory, plain(), Encryption())).body
    envelope = etree.fromstring(secured(directory, plain(), Encryption()))
    ATTACKS[what](envelope)
    assert refusal(processor, etree.tostring(envelope)) == refusal(processor, plain())


CONTENTS = {
    "no XML": b"order",
    "an open element": b"<order>",
    "an end of the Body, and another": b"</s:Body><s:Body>",
    "an end of an element around it": b"</content><content>",
    "a document type": b'<!DOCTYPE a [<!ENTITY e "evil">]><a>&e;</a>',
    "an entity": b"<a>&e;</a>",
    "an external entity": b'<!DOCTYPE a SYSTEM "http://127.0.0.1:9/"><a/>',
    "a declaration": b"<?xml version='1.0'?><a/>",
    "bytes that are not UTF-8": b"<a>\xff</a>",
    "another encoding": "<a/>".encode("utf-16"),
    "a control character": b"<a>\x00</a>",
    "an unknown prefix": b"<nobody:a/>",
    "encrypted content": f'<e:EncryptedData xmlns:e="{XENC}"/>'.encode(),
    "an encrypted key": f'<e:EncryptedKey xmlns:e="{XENC}"/>'.encode(),
    "nothing": b"",
    "another content": b"<order xmlns='urn:shop'>8</order>",
    "very deep elements": b"<a>" * 5_000 + b"</a>" * 5_000,
}


def sealed(directory: Path, content: bytes, settings: Encryption, place: str = "body") -> bytes:
    """A message of alice with another content of an encrypted part, under another key."""
    cipher = CIPHERS[settings.cipher]
    key = bytes(KEY_BYTES[cipher])
    envelope = etree.fromstring(secured(directory, plain(), settings))
    put(part(envelope, f".//{X}EncryptedKey"), Certificate(SHOP.found).wrap(key))
    paths = {
        "body": f"{S}Body/{X}EncryptedData",
        "header": f"{S}Header/{ENCRYPTED_HEADER}/{X}EncryptedData",
        "signature": f"{S}Header/{SECURITY}/{X}EncryptedData",
    }
    put(part(envelope, paths[place]), encrypt(cipher, key, content))
    return etree.tostring(envelope)


@pytest.mark.parametrize("place", ["body", "header", "signature"])
@pytest.mark.parametrize("cipher", ["aes256-cbc", "aes256-gcm"])
def test_content_that_makes_no_sense_is_refused_like_a_wrong_key(
    directory: Path, place: str, cipher: CipherName
) -> None:
    settings = Encryption(headers=[TENANT], signature=place == "signature", cipher=cipher)
    processor = shop(directory, settings)
    told = {what: refusal(processor, sealed(directory, content, settings, place)) for what, content in CONTENTS.items()}
    assert set(told.values()) == {refusal(processor, plain())}, told


@pytest.mark.parametrize(
    "content", [b"<a:x xmlns:a='urn:a'/><a:y xmlns:a='urn:a'/>", b"text", b"<x/>", b"<!-- comment -->", b" <x/>"]
)
@pytest.mark.parametrize("place", ["header", "signature"])
def test_a_header_and_a_signature_are_one_element_of_their_name(directory: Path, content: bytes, place: str) -> None:
    settings = Encryption(headers=[TENANT], signature=True)
    refusal(shop(directory, settings), sealed(directory, content, settings, place))


def test_a_decrypted_header_is_no_other_security_header(directory: Path) -> None:
    settings = Encryption(headers=[TENANT], signature=True)
    for name in (SECURITY, ENCRYPTED_HEADER):
        block = etree.tostring(etree.Element(name))
        refusal(shop(directory, settings), sealed(directory, block, settings, "header"))


def changed(data: bytes, path: str, at: int) -> bytes:
    """A message with another byte of an encrypted value."""
    envelope = etree.fromstring(data)
    holder = part(envelope, path)
    value = bytearray(base64.b64decode(part(holder, f"{X}CipherData/{X}CipherValue").text or ""))
    value[at] ^= 1
    put(holder, bytes(value))
    return etree.tostring(envelope)


KEY, BODY = f".//{X}EncryptedKey", f"{S}Body/{X}EncryptedData"


@pytest.mark.every(5)
@pytest.mark.parametrize("what", SETTINGS)
@pytest.mark.parametrize("cipher", ["aes256-cbc", "aes256-gcm"])
def test_each_changed_byte_is_refused_in_the_same_words(
    directory: Path, what: str, cipher: CipherName, caplog: pytest.LogCaptureFixture
) -> None:
    """Padding, the initialization vector, the tag, the wrapped key: the log, too, says nearly the same of all."""
    kept = SETTINGS[what]
    settings = Encryption(None, cipher, kept.headers, kept.signature, kept.before_signing)
    processor = shop(directory, settings)
    body = b"<a>" + b"x" * 61 + b"</a>"
    wanted = canonical(etree.fromstring(body))
    told = set[str]()
    for at in [*range(0, 112, 7), *range(-20, 0, 2)]:
        for path in (KEY, BODY):
            data = changed(secured(directory, plain(body), settings), path, at)
            try:
                found = taken(processor, data).body
            except ProcessingError as error:
                told.add(error.message)
            else:  # a prefix that nothing uses, or what fills the last block: neither is signed
                assert (cipher, path) == ("aes256-cbc", BODY)
                assert canonical(etree.fromstring(found)) == wanted
    assert len(told) == 1
    reasons = {reason for record in caplog.records for reason in re.findall(r"why='([^']*)'", record.getMessage())}
    if not settings.before_signing:
        assert reasons <= {"it cannot be decrypted with our key, or was changed", "Body was changed"}


@pytest.mark.parametrize("what", ["signed first", "the signature"])
def test_changes_of_a_message_cannot_be_tried_one_after_the_other(directory: Path, what: str) -> None:
    """A signature counts once, so an attacker learns nothing from the second answer, as attacks on CBC need."""
    settings = SETTINGS[what]
    processor = shop(directory, settings)
    good = secured(directory, plain(), settings)
    refusal(processor, changed(good, BODY, -17))
    answers = set[str]()
    for data in [good, *(changed(good, BODY, at) for at in range(-32, 0))]:
        with pytest.raises((MessageFlowError, ProcessingError)) as raised:
            taken(processor, data)
        answers.add(str(raised.value))
    assert len(answers) == 1
    assert taken(processor, secured(directory, plain(), settings)).body, "the sender signs again"


@pytest.mark.parametrize("what", SETTINGS)
def test_a_captured_message_is_remembered_at_one_time_only(
    directory: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Timestamp, changed again and again, gives neither another attempt nor fills the memory."""
    settings = SETTINGS[what]
    processor = X509(*SHOP.files(directory), trusted=ALICE.files(directory).certificate, encrypt=settings)
    good = secured(directory, plain(), settings)
    remembered = list[tuple[float, bytes]]()

    def is_new(at: float, digest: bytes, until: float, now: float) -> bool:
        remembered.append((at, digest))
        return True

    monkeypatch.setattr(processor._nonces, "is_new", is_new)
    for digit in range(10):
        data = re.sub(rb"(Created>[^<]+\.)\d\d\dZ", rb"\g<1>%d00Z" % digit, changed(good, BODY, -17))
        refusal(processor, data)
    assert len(set(remembered)) <= 1
    assert taken(processor, good).body


def test_nothing_of_a_stranger_is_decrypted(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No chosen content reaches the private key: not of a stranger, nor in an old or a changed message of a friend."""
    uses: list[bytes] = []
    unwrap = Credential.unwrap

    def counting(self: Credential, wrapped: bytes, length: int, **options: Any) -> bytes:
        uses.append(wrapped)
        return unwrap(self, wrapped, length, **options)

    monkeypatch.setattr(Credential, "unwrap", counting)
    settings = Encryption()
    processor = shop(directory, settings)
    good = secured(directory, plain(), settings)
    taken(processor, good)
    assert len(uses) == 1
    with pytest.raises(MessageFlowError):
        taken(processor, good)
    stranger = X509(*SHOP.files(directory), trusted=BARE.files(directory).certificate, encrypt=settings)
    envelope = etree.fromstring(good)
    created = part(envelope, f".//{{{WSU}}}Created")
    created.text = (created.text or "").replace("Z", "1Z")
    unsigned = etree.fromstring(good)
    part(unsigned, f".//{D}SignatureValue").text = base64.b64encode(bytes(256)).decode()
    for one, data in (
        (stranger, good),
        (processor, etree.tostring(envelope)),
        (processor, etree.tostring(unsigned)),
        (processor, secured(directory, plain(), settings, at=time.time() - 400)),
    ):
        refusal(one, data)
    assert len(uses) == 1
    changed = etree.fromstring(secured(directory, plain(), Encryption(before_signing=True)))
    put(data_of(changed), bytes(64))
    refusal(shop(directory, Encryption(before_signing=True)), etree.tostring(changed))
    assert len(uses) == 1, "the signature is over the encrypted content"


# --- what must be encrypted ------------------------------------------------------------------------------------------

HARDER = {
    "a Body that is not": (Encryption(), None),
    "a header that is not": (Encryption(headers=[TENANT]), Encryption()),
    "a header that is not, encrypted first": (
        Encryption(headers=[TENANT], before_signing=True),
        Encryption(before_signing=True),
    ),
    "a signature that is not": (Encryption(signature=True), Encryption()),
    "a signature that is, and need not be": (Encryption(), Encryption(signature=True)),
    "a message signed first": (Encryption(before_signing=True), Encryption()),
    "a message encrypted first": (Encryption(), Encryption(before_signing=True)),
    "a shorter key": (Encryption(), Encryption(cipher="aes128-cbc")),
    "another mode": (Encryption(cipher="aes256-gcm"), Encryption(cipher="aes256-cbc")),
    "any encryption, where none is agreed": (None, Encryption()),
}


@pytest.mark.parametrize("what", HARDER)
def test_less_than_was_agreed_is_refused(directory: Path, what: str) -> None:
    demanded, given = HARDER[what]
    if given is None:
        signer = X509(*ALICE.files(directory), trusted=SHOP.files(directory).certificate)
        envelope = decode(plain())
        context = MessageContext(envelope, "outbound", "source", {}, is_answer=False, to="http://shop/")
        data = signer.encoded(context, plain())
    else:
        data = secured(directory, plain(), given)
    assert refusal(shop(directory, demanded), data) == refusal(shop(directory, Encryption()), plain())


def test_the_strongest_cipher_is_always_accepted(directory: Path) -> None:
    data = secured(directory, plain(), Encryption(cipher="aes256-gcm"))
    assert taken(shop(directory, Encryption(cipher="aes128-cbc")), data).body


def test_an_encrypted_header_must_be_signed(directory: Path) -> None:
    settings = Encryption(headers=[TENANT], before_signing=True)
    envelope = etree.fromstring(secured(directory, plain(), settings))
    del part(envelope, f"{S}Header/{ENCRYPTED_HEADER}").attrib[ID]
    refusal(shop(directory, settings), etree.tostring(envelope))


def test_a_signed_fault_need_not_be_encrypted(directory: Path) -> None:
    """Who refuses a message may not know for whom: it is accepted if it is signed."""
    files = ALICE.files(directory)
    source = X509(*files, trusted=SHOP.files(directory).certificate, encrypt=Encryption())
    destination = X509(*SHOP.files(directory), trusted=authority().files(directory).certificate, encrypt=Encryption())
    envelope = Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1, fault=Fault("Sender", "No."))
    context = MessageContext(envelope, "outbound", "destination", {}, is_answer=True)
    data = destination.encoded(context, written(envelope))
    assert b"EncryptedData" not in data
    assert taken(source, data, is_answer=True).fault is not None
    with pytest.raises(ProcessingError):
        taken(source, written(envelope), is_answer=True)
    envelope = Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1, action="urn:x", body=b"<x/>")
    context = MessageContext(envelope, "outbound", "destination", {}, is_answer=False, to="http://alice/")
    with pytest.raises(ProcessingError, match="certificate of the receiver is not known") as raised:
        destination.encoded(context, written(envelope))
    assert "Encryption(certificate=…)" in raised.value.remedy


def test_a_source_that_does_not_know_the_receiver_is_refused_when_it_is_made(directory: Path) -> None:
    files, shop = ALICE.files(directory), SHOP.files(directory).certificate
    trusted = authority().files(directory).certificate
    for encryption in (Encryption(), Encryption(peers={"https://other.example/": shop})):
        for make in (Source, sync.Source):
            with pytest.raises(ConfigurationError, match="certificate of the receiver is not known") as raised:
                make(
                    "https://shop.example/", ":memory:", processors=[X509(*files, trusted=trusted, encrypt=encryption)]
                )
            assert "Encryption(certificate=…)" in raised.value.remedy
    for encryption in (Encryption(shop), Encryption(peers={"https://shop.example/": shop})):
        Source("https://shop.example/", ":memory:", processors=[X509(*files, trusted=trusted, encrypt=encryption)])


def test_a_receiver_without_an_identifier_is_named_by_its_issuer(directory: Path) -> None:
    source = X509(*ALICE.files(directory), trusted=BARE.files(directory).certificate, encrypt=Encryption())
    context = MessageContext(decode(plain()), "outbound", "source", {}, is_answer=False, to="http://shop/")
    data = source.encoded(context, plain())
    assert b"X509IssuerSerial" in data
    bare = X509(*BARE.files(directory), trusted=ALICE.files(directory).certificate, encrypt=Encryption())
    assert taken(bare, data).body


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"cipher": "aes192-cbc"}, "cipher cannot be 'aes192-cbc'"),
        ({"headers": TENANT}, "a single name"),
        ({"headers": ["Tenant"]}, "not the name of a header"),
        ({"headers": [SECURITY]}, "not the name of a header"),
        ({"headers": [ENCRYPTED_HEADER]}, "not the name of a header"),
        ({"signature": True, "before_signing": True}, "signature=True and before_signing=True"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        Encryption(**options)


def test_a_file_without_a_certificate_is_refused(directory: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        shop(directory, Encryption(directory / "none.pem"))


def test_the_parts_of_a_checked_message_are_still_those_that_were_signed(directory: Path) -> None:
    settings = Encryption(headers=[TENANT])
    data = secured(directory, plain(), settings)
    own = credential(SHOP, directory)
    message = read_secured(data, SOAP.V1_2)
    decrypted = read_encrypted(message, own.certificate, CIPHERS.values()).decrypt(message, own)
    found = read_signature(read_secured(decrypted.data, SOAP.V1_2))
    check_signed(found, Certificate(ALICE.found), "rsa-sha256")
    assert unsigned_headers(found) == set()
    assert {found.header[at].tag for at in decrypted.headers} == {TENANT}
