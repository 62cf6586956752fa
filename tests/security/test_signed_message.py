"""Signed messages: captures of CXF and Metro, what we write, and the published attacks on XML signatures."""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
from lxml import etree
from signers import authority, content_of, issue

from holdfast.core.messages import Envelope, Sequence
from holdfast.core.versions import RM, SOAP, Addressing
from holdfast.exceptions import EnvelopeError
from holdfast.security.certificates import Credential, Trust
from holdfast.security.header import Invalid, Unproven
from holdfast.security.names import (
    DS,
    EXCLUSIVE_C14N,
    EXCLUSIVE_C14N_WITH_COMMENTS,
    RSA_SHA1,
    RSA_SHA256,
    SECURITY,
    SHA256,
    WSSE,
    WSU,
    X509_V3,
    Kind,
    SuiteName,
)
from holdfast.security.signature import ID, canonical
from holdfast.security.signed_message import (
    MAX_REFERENCES,
    SUITES,
    Signing,
    Suite,
    check_signed,
    read_secured,
    read_signature,
    sign,
    unsigned_headers,
)
from holdfast.wire import decode, encode

CAPTURES = Path(__file__).parents[1] / "data" / "vectors" / "cxf-secured"
NOW = 1_800_000_000.0
S = "{http://www.w3.org/2003/05/soap-envelope}"
A = "{http://www.w3.org/2005/08/addressing}"
R = "{http://docs.oasis-open.org/ws-rx/wsrm/200702}"
D = f"{{{DS}}}"
ALICE, SHOP = issue("CN=alice,O=Example", authority()), issue("CN=shop,O=Example", authority())
KINDS: tuple[Kind, ...] = ("token", "subject-key-identifier", "issuer-serial", "thumbprint")


@functools.cache
def keys(directory: Path) -> tuple[Credential, Trust]:
    """Alice's, and whom the shop trusts."""
    shop = Credential(*SHOP.files(directory)).certificate
    alice = ALICE.files(directory)
    return Credential(*alice), Trust([authority().files(directory).certificate, alice.certificate], shop)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


def plain(body: bytes = b"<order xmlns='urn:shop'>7</order>") -> bytes:
    envelope = Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1, action="urn:shop/order", to="http://shop/", body=body)
    envelope.message_id = "urn:m:1"
    envelope.sequence = Sequence("urn:s:1", 7)
    envelope.headers = (b'<t:Tenant xmlns:t="urn:tenants">a</t:Tenant>',)
    return encode(envelope)


def signed(directory: Path, data: bytes, suite: Suite = SUITES["rsa-sha256"], kind: Kind = "token") -> bytes:
    signing = Signing(keys(directory)[0], kind, suite, 300.0)
    return sign(data, SOAP.V1_2, signing, NOW, must_understand=True)


def check(directory: Path, data: bytes, suite: SuiteName = "rsa-sha256") -> Suite:
    """Check what the shop checks of a message, except the times."""
    envelope = decode(data)
    message = read_signature(read_secured(data, envelope.soap))
    trusted = keys(directory)[1]
    certificate = trusted.find(message.key)
    trusted.check(certificate, NOW)
    return check_signed(message, certificate, suite)


# --- captures --------------------------------------------------------------------------------------------------------

RECORDED = [
    path
    for case in ("sign", "sign-retransmitted", "metro-sign", "python-signed")
    for path in sorted((CAPTURES / case).iterdir())
    if path.suffix in (".http", ".xml") and "fault" not in path.name and content_of(path)
]


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_recorded_signature_is_verified(path: Path) -> None:
    data = content_of(path)
    recorded = CAPTURES / "keys"
    client, server = (Credential(recorded / f"{one}.crt", recorded / f"{one}.key") for one in ("client", "server"))
    signer, other = (client, server) if "req" in path.name else (server, client)
    trusted = Trust([recorded / ("client.crt" if signer is client else "server.crt")], other.certificate)
    message = read_signature(read_secured(data, decode(data).soap))
    assert trusted.find(message.key) == signer.certificate
    assert check_signed(message, signer.certificate, "Basic256Sha256") == SUITES["Basic256Sha256"]
    assert unsigned_headers(message) == set()
    if path.parent.name != "python-signed":
        with pytest.raises(Invalid, match="algorithm"):
            check_signed(message, signer.certificate, "rsa-sha256")


def test_a_recorded_fault_without_a_signature_is_not_accepted() -> None:
    data = (CAPTURES / "python-signed" / "fault-security-error.xml").read_bytes()
    with pytest.raises(Invalid):
        read_signature(read_secured(data, decode(data).soap))


# --- what we write ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suite", SUITES)
def test_what_we_sign_is_accepted_with_its_suite(directory: Path, kind: Kind, suite: SuiteName) -> None:
    data = signed(directory, plain(), SUITES[suite], kind)
    assert check(directory, data, suite) == SUITES[suite]
    message = read_signature(read_secured(data, SOAP.V1_2))
    assert message.key.kind == kind
    assert not unsigned_headers(message)
    assert decode(data).sequence == Sequence("urn:s:1", 7), "and it is the same message"


@pytest.mark.parametrize(
    ("written", "accepted"),
    [("Basic256Sha256", "rsa-sha256"), ("Basic256", "rsa-sha256"), ("Basic256", "Basic256Sha256")],
)
def test_sha_1_is_refused_unless_the_suite_allows_it(directory: Path, written: str, accepted: SuiteName) -> None:
    with pytest.raises(Invalid, match="algorithm"):
        check(directory, signed(directory, plain(), SUITES[written]), accepted)


def test_a_message_without_a_header_gets_one(directory: Path) -> None:
    data = f'<e:Envelope xmlns:e="{S[1:-1]}"><e:Body/></e:Envelope>'.encode()
    check(directory, signed(directory, data))


def test_no_two_signatures_of_a_message_are_the_same(directory: Path) -> None:
    values = {read_signature(read_secured(signed(directory, plain()), SOAP.V1_2)).value for _ in range(3)}
    assert len(values) == 3


@pytest.mark.parametrize("form", [EXCLUSIVE_C14N, EXCLUSIVE_C14N_WITH_COMMENTS])
def test_a_comment_is_in_no_digest_of_a_part_with_an_id(directory: Path, form: str) -> None:
    """XML Signature 1.1, section 4.4.3.3: so other implementations sign, whichever of the two forms they name."""
    with_comment = signed(directory, plain(b"<a>1<!-- one -->2</a>"))
    digests = [
        {one.get("URI"): one.findtext(f"{D}DigestValue") for one in etree.fromstring(data).iter(f"{D}Reference")}
        for data in (with_comment, with_comment.replace(b"<!-- one -->", b""))
    ]
    assert digests[0] == digests[1]
    envelope = etree.fromstring(with_comment)
    for transform in envelope.iter(f"{D}Transform"):
        transform.set("Algorithm", form)
    RESIGNERS[:] = [keys(directory)[0]]
    resign(envelope)
    check(directory, etree.tostring(envelope))


def test_text_beyond_ascii_survives(directory: Path) -> None:
    body = "<a b='&#13;&#9;\"'>žluťoučký 🐎 &amp; &#13;</a>".encode()
    data = signed(directory, plain(body))
    check(directory, data)
    found = etree.fromstring(decode(data).body)
    assert found.text == "žluťoučký 🐎 & \r"


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


EVIL = {f"{R}Sequence": "urn:s:evil", f"{{{WSU}}}Timestamp": "2027-01-15T08:00:01.000Z"}
"""What the attacker writes into a part, where it is not an address."""


def evil(element: etree._Element, *, keeps_id: bool = False) -> etree._Element:
    """A copy of a part, with the attacker's content."""
    copy = deepcopy(element)
    if not keeps_id:
        del copy.attrib[ID]
    leaf = next(one for one in copy.iter() if not len(one))
    leaf.text = EVIL.get(str(copy.tag), "http://evil/")
    copy.tail = None
    return copy


def swap(element: etree._Element, other: etree._Element) -> None:
    parent = element.getparent()
    assert parent is not None
    parent.replace(element, other)


def wrap(envelope: etree._Element, path: str, into: etree._Element, *, keeps_id: bool = False) -> None:
    """Move a signed part into another element, and put the attacker's in its place."""
    element = part(envelope, path)
    swap(element, evil(element, keeps_id=keeps_id))
    into.append(element)


WRAPPED = {
    "Body": f"{S}Body",
    "To": f"{S}Header/{A}To",
    "Action": f"{S}Header/{A}Action",
    "MessageID": f"{S}Header/{A}MessageID",
    "Sequence": f"{S}Header/{R}Sequence",
    "Timestamp": f"{S}Header/{SECURITY}/{{{WSU}}}Timestamp",
}
PLACES: dict[str, Callable[[etree._Element], etree._Element]] = {
    "a header": lambda envelope: etree.SubElement(head(envelope), "{urn:x}Wrapper"),
    "the Security header": lambda envelope: etree.SubElement(security_of(envelope), "{urn:x}Wrapper"),
    "an Object of the signature": lambda envelope: etree.SubElement(
        part(security_of(envelope), f"{D}Signature"), f"{D}Object"
    ),
    "the Body": lambda envelope: etree.SubElement(part(envelope, f"{S}Body"), "{urn:x}Wrapper"),
}


def wrapping(path: str, place: str, *, keeps_id: bool) -> Attack:
    def act(envelope: etree._Element) -> None:
        wrap(envelope, path, PLACES[place](envelope), keeps_id=keeps_id)

    return act


for _name, _path in WRAPPED.items():
    for _place in PLACES:
        for _keeps in (False, True):
            if (_name, _place) != ("Body", "the Body"):
                _words = f"the signed {_name} in {_place}{', with its Id twice' if _keeps else ''}"
                ATTACKS[_words] = wrapping(_path, _place, keeps_id=_keeps)


def leaving_out(path: str, *, of_signature: bool) -> Attack:
    """Drop a part, or sign without it, as a peer would that has a key and signs less than it should."""

    def act(envelope: etree._Element) -> None:
        element = part(envelope, path)
        if not of_signature:
            parent = element.getparent()
            assert parent is not None
            parent.remove(element)
            return
        for reference in envelope.iter(f"{D}Reference"):
            if reference.get("URI") == f"#{element.get(ID)}":
                part(envelope, f".//{D}SignedInfo").remove(reference)
        resign(envelope)

    return act


def resign(envelope: etree._Element) -> None:
    """Make the signature again over the SignedInfo as it is now."""
    signature = part(security_of(envelope), f"{D}Signature")
    algorithm = part(signature, f"{D}SignedInfo/{D}SignatureMethod").get("Algorithm", "")
    credential = RESIGNERS[0]
    value = credential.sign(canonical(signature[0]), algorithm if algorithm in (RSA_SHA1, RSA_SHA256) else RSA_SHA256)
    part(signature, f"{D}SignatureValue").text = base64.b64encode(value).decode()


RESIGNERS: list[Credential] = []
for _name, _path in WRAPPED.items():
    ATTACKS[f"{_name} is there and not signed, by the owner of the key"] = leaving_out(_path, of_signature=True)
    ATTACKS[f"no {_name}"] = leaving_out(_path, of_signature=False)


@attack("the signature is taken away")
def _(envelope: etree._Element) -> None:
    security_of(envelope).remove(part(security_of(envelope), f"{D}Signature"))


@attack("the Security header is taken away")
def _(envelope: etree._Element) -> None:
    head(envelope).remove(security_of(envelope))


@attack("two Security headers")
def _(envelope: etree._Element) -> None:
    head(envelope).append(deepcopy(security_of(envelope)))


@attack("the Security header is for somebody else")
def _(envelope: etree._Element) -> None:
    security_of(envelope).set(f"{S}role", "urn:else")


@attack("two signatures")
def _(envelope: etree._Element) -> None:
    security_of(envelope).append(deepcopy(part(security_of(envelope), f"{D}Signature")))


@attack("two Timestamps")
def _(envelope: etree._Element) -> None:
    security_of(envelope).append(evil(part(envelope, WRAPPED["Timestamp"])))


@attack("two Bodies")
def _(envelope: etree._Element) -> None:
    envelope.append(evil(part(envelope, f"{S}Body")))


@attack("a false Body before the signed one")
def _(envelope: etree._Element) -> None:
    envelope.insert(1, evil(part(envelope, f"{S}Body")))


@attack("something behind the Body")
def _(envelope: etree._Element) -> None:
    etree.SubElement(envelope, "{urn:x}Trailer")


@attack("two Headers")
def _(envelope: etree._Element) -> None:
    envelope.insert(0, etree.Element(f"{S}Header"))


for _header in (f"{A}RelatesTo", f"{A}ReplyTo", f"{A}FaultTo", f"{A}From", f"{R}AckRequested"):

    def _add(envelope: etree._Element, name: str = _header) -> None:
        child = etree.SubElement(head(envelope), name)
        if name.endswith("Requested"):
            etree.SubElement(child, f"{R}Identifier").text = "urn:s:1"
        elif name.endswith("RelatesTo"):
            child.text = "urn:m:0"
        else:
            etree.SubElement(child, f"{A}Address").text = "http://evil/"

    ATTACKS[f"an unsigned {etree.QName(_header).localname} is added"] = _add


@attack("an unsigned SequenceAcknowledgement is added")
def _(envelope: etree._Element) -> None:
    acknowledgement = etree.SubElement(head(envelope), f"{R}SequenceAcknowledgement")
    etree.SubElement(acknowledgement, f"{R}Identifier").text = "urn:s:2"
    etree.SubElement(acknowledgement, f"{R}AcknowledgementRange", Lower="1", Upper="9")


@attack("the Id of the Body as an attribute without a namespace, elsewhere")
def _(envelope: etree._Element) -> None:
    etree.SubElement(head(envelope), "{urn:x}Other").set("Id", part(envelope, f"{S}Body").get(ID, ""))


for _attribute in ("Id", "ID", "id", "{http://www.w3.org/XML/1998/namespace}id", "{urn:x}Id"):

    def _rename(envelope: etree._Element, name: str = _attribute) -> None:
        body = part(envelope, f"{S}Body")
        body.set(name, body.attrib.pop(ID))

    ATTACKS[f"the Id of the Body is in the attribute {_attribute}"] = _rename


def references(envelope: etree._Element) -> list[etree._Element]:
    return list(envelope.iter(f"{D}Reference"))


for _uri in ("", "#xpointer(/)", "#xpointer(id('a'))", "http://127.0.0.1:9/", "cid:a", "#"):

    def _point(envelope: etree._Element, uri: str = _uri) -> None:
        references(envelope)[0].set("URI", uri)
        resign(envelope)

    ATTACKS[f"a reference to {_uri!r}"] = _point


@attack("a reference without a URI")
def _(envelope: etree._Element) -> None:
    del references(envelope)[0].attrib["URI"]
    resign(envelope)


@attack("a signature of nothing")
def _(envelope: etree._Element) -> None:
    for reference in references(envelope):
        part(envelope, f".//{D}SignedInfo").remove(reference)
    resign(envelope)


@attack("a reference bomb: one part many times")
def _(envelope: etree._Element) -> None:
    body = part(envelope, f"{S}Body").get(ID)
    (reference,) = [one for one in references(envelope) if one.get("URI") == f"#{body}"]
    for _count in range(20):
        reference.addnext(deepcopy(reference))
    resign(envelope)


@attack("a reference bomb: many parts")
def _(envelope: etree._Element) -> None:
    signed_info = part(envelope, f".//{D}SignedInfo")
    for number in range(MAX_REFERENCES):
        signed_info.append(deepcopy(references(envelope)[0]))
        signed_info[-1].set("URI", f"#n{number}")
    resign(envelope)


TRANSFORMS = {
    "XSLT": "http://www.w3.org/TR/1999/REC-xslt-19991116",
    "XPath": "http://www.w3.org/TR/1999/REC-xpath-19991116",
    "XPath 2": "http://www.w3.org/2002/06/xmldsig-filter2",
    "base64": DS + "base64",
    "enveloped": DS + "enveloped-signature",
    "inclusive": "http://www.w3.org/TR/2001/REC-xml-c14n-20010315",
    "STR": "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-soap-message-security-1.0#STR-Transform",
}
for _name, _uri in TRANSFORMS.items():
    for _is_second in (False, True):

        def _transform(envelope: etree._Element, uri: str = _uri, is_second: bool = _is_second) -> None:
            for transforms in envelope.iter(f"{D}Transforms"):
                if is_second:
                    etree.SubElement(transforms, f"{D}Transform", Algorithm=uri)
                else:
                    transforms[0].set("Algorithm", uri)
            resign(envelope)

        ATTACKS[f"the transform {_name}{', as well' if _is_second else ''}"] = _transform


@attack("no transform")
def _(envelope: etree._Element) -> None:
    transforms = part(references(envelope)[0], f"{D}Transforms")
    transforms.remove(transforms[0])
    resign(envelope)


@attack("parameters of a transform")
def _(envelope: etree._Element) -> None:
    etree.SubElement(part(envelope, f".//{D}Transform"), f"{D}XPath").text = "1"
    resign(envelope)


@attack("a thousand prefixes")
def _(envelope: etree._Element) -> None:
    inclusive = etree.SubElement(part(envelope, f".//{D}Transform"), f"{{{EXCLUSIVE_C14N}}}InclusiveNamespaces")
    inclusive.set("PrefixList", " ".join(f"p{number}" for number in range(1_000)))
    resign(envelope)


@attack("the canonical form of the signature is another")
def _(envelope: etree._Element) -> None:
    part(envelope, f".//{D}CanonicalizationMethod").set("Algorithm", TRANSFORMS["inclusive"])


ALGORITHMS = {
    "rsa-sha1": RSA_SHA1,
    "rsa-md5": "http://www.w3.org/2001/04/xmldsig-more#rsa-md5",
    "dsa-sha1": DS + "dsa-sha1",
    "none": "",
}
for _name, _uri in ALGORITHMS.items():

    def _sign_with(envelope: etree._Element, uri: str = _uri) -> None:
        part(envelope, f".//{D}SignatureMethod").set("Algorithm", uri)
        resign(envelope)

    ATTACKS[f"downgraded: the signature algorithm {_name}"] = _sign_with


@attack("downgraded: the digest SHA-1")
def _(envelope: etree._Element) -> None:
    for reference in references(envelope):
        target = next(one for one in envelope.iter() if f"#{one.get(ID)}" == reference.get("URI"))
        part(reference, f"{D}DigestMethod").set("Algorithm", DS + "sha1")
        part(reference, f"{D}DigestValue").text = base64.b64encode(hashlib.sha1(canonical(target)).digest()).decode()
    resign(envelope)


@attack("key confusion: an HMAC with the public key")
def _(envelope: etree._Element) -> None:
    signature = part(security_of(envelope), f"{D}Signature")
    part(signature, f".//{D}SignatureMethod").set("Algorithm", "http://www.w3.org/2001/04/xmldsig-more#hmac-sha256")
    value = hmac.digest(ALICE.pem, canonical(signature[0]), "sha256")
    part(signature, f"{D}SignatureValue").text = base64.b64encode(value).decode()


@attack("key confusion: an HMAC cut to one byte")
def _(envelope: etree._Element) -> None:
    method = part(envelope, f".//{D}SignatureMethod")
    method.set("Algorithm", DS + "hmac-sha1")
    etree.SubElement(method, f"{D}HMACOutputLength").text = "8"
    part(envelope, f".//{D}SignatureValue").text = "AA=="


def key_info(content: str) -> Attack:
    def act(envelope: etree._Element) -> None:
        info = part(envelope, f".//{D}KeyInfo")
        for child in info:
            info.remove(child)
        text = f'<k xmlns:ds="{DS}" xmlns:wsse="{WSSE}">{content}</k>'
        info.extend(list(etree.fromstring(text)))

    return act


_MODULUS = base64.b64encode(ALICE.key.public_key().public_numbers().n.to_bytes(256, "big")).decode()
_STR = "<wsse:SecurityTokenReference>{}</wsse:SecurityTokenReference>"
KEY_INFOS = {
    "KeyValue": f"<ds:KeyValue><ds:RSAKeyValue><ds:Modulus>{_MODULUS}</ds:Modulus><ds:Exponent>AQAB</ds:Exponent>"
    "</ds:RSAKeyValue></ds:KeyValue>",
    "KeyName": "<ds:KeyName>alice</ds:KeyName>",
    "RetrievalMethod": '<ds:RetrievalMethod URI="http://127.0.0.1:9/"/>',
    "nothing": "",
    "an empty reference": _STR.format(""),
    "a token elsewhere": _STR.format('<wsse:Reference URI="http://127.0.0.1:9/"/>'),
    "a token of another name": _STR.format('<wsse:Reference URI="#other"/>'),
    "an identifier of no certificate": _STR.format(
        '<wsse:KeyIdentifier ValueType="http://docs.oasis-open.org/wss/oasis-wss-soap-message-security-1.1#ThumbprintSHA1">'
        "AAAA</wsse:KeyIdentifier>"
    ),
    "an identifier of another type": _STR.format('<wsse:KeyIdentifier ValueType="urn:x">AAAA</wsse:KeyIdentifier>'),
    "an identifier that is not base64": _STR.format(
        '<wsse:KeyIdentifier ValueType="http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-x509-token-profile-1.0'
        '#X509SubjectKeyIdentifier">!!!</wsse:KeyIdentifier>'
    ),
    "a number that is none": _STR.format(
        "<ds:X509Data><ds:X509IssuerSerial><ds:X509IssuerName>CN=a</ds:X509IssuerName>"
        "<ds:X509SerialNumber>seven</ds:X509SerialNumber></ds:X509IssuerSerial></ds:X509Data>"
    ),
    "an embedded token": _STR.format("<wsse:Embedded/>"),
}
for _name, _content in KEY_INFOS.items():
    ATTACKS[f"KeyInfo with {_name}"] = key_info(_content)


@attack("two tokens")
def _(envelope: etree._Element) -> None:
    token = part(security_of(envelope), f"{{{WSSE}}}BinarySecurityToken")
    token.addnext(deepcopy(token))


@attack("the token of another who is trusted")
def _(envelope: etree._Element) -> None:
    bob = issue("CN=bob,O=Example", authority())
    token = part(security_of(envelope), f"{{{WSSE}}}BinarySecurityToken")
    token.text = b"".join(bob.pem.splitlines()[1:-1]).decode()


@attack("a token that is a path of certificates")
def _(envelope: etree._Element) -> None:
    token = part(security_of(envelope), f"{{{WSSE}}}BinarySecurityToken")
    token.set("ValueType", X509_V3.replace("X509v3", "X509PKIPathv1"))


@attack("a token of a megabyte")
def _(envelope: etree._Element) -> None:
    part(security_of(envelope), f"{{{WSSE}}}BinarySecurityToken").text = "AAAA" * 250_000


@attack("the value of the signature is changed")
def _(envelope: etree._Element) -> None:
    value = part(envelope, f".//{D}SignatureValue")
    value.text = base64.b64encode(bytes(256)).decode()


@attack("the value of the signature is empty")
def _(envelope: etree._Element) -> None:
    part(envelope, f".//{D}SignatureValue").text = ""


for _name, _path in WRAPPED.items():

    def _change(envelope: etree._Element, path: str = _path) -> None:
        element = part(envelope, path)
        swap(element, evil(element, keeps_id=True))

    ATTACKS[f"{_name} is changed"] = _change


@attack("a comment cuts a signed text in two")
def _(envelope: etree._Element) -> None:
    identifier = part(envelope, f".//{R}Identifier")
    text = identifier.text or ""
    identifier.text = text[:5]
    identifier.append(etree.Comment("x"))
    identifier[0].tail = text[5:]


@attack("a comment in the Header")
def _(envelope: etree._Element) -> None:
    head(envelope).append(etree.Comment("x"))


@attack("a comment in SignedInfo")
def _(envelope: etree._Element) -> None:
    part(envelope, f".//{D}SignedInfo").append(etree.Comment("x"))
    resign(envelope)


@attack("the order of the parts of the signature is another")
def _(envelope: etree._Element) -> None:
    signature = part(security_of(envelope), f"{D}Signature")
    signature.append(signature[1])


@pytest.mark.parametrize("what", ATTACKS)
def test_a_forged_message_is_refused(directory: Path, what: str) -> None:
    RESIGNERS[:] = [keys(directory)[0]]
    good = signed(directory, plain())
    check(directory, good)
    envelope = etree.fromstring(good)
    ATTACKS[what](envelope)
    with pytest.raises((Invalid, Unproven, EnvelopeError)):
        check(directory, etree.tostring(envelope))


def test_what_the_tests_sign_again_is_otherwise_right(directory: Path) -> None:
    RESIGNERS[:] = [keys(directory)[0]]
    envelope = etree.fromstring(signed(directory, plain()))
    resign(envelope)
    check(directory, etree.tostring(envelope))


def test_a_declaration_of_another_encoding_does_not_change_what_is_signed(directory: Path) -> None:
    data = signed(directory, plain("<a>é</a>".encode()))
    check(directory, b"<?xml version='1.0' encoding='utf-8'?>" + data)
    with pytest.raises(Unproven):
        check(directory, b"<?xml version='1.0' encoding='iso-8859-1'?>" + data)
    check(
        directory,
        "\ufeff<?xml version='1.0' encoding='utf-16'?>".encode("utf-16-le") + data.decode().encode("utf-16-le"),
    )


def test_a_document_type_is_refused(directory: Path) -> None:
    data = b'<!DOCTYPE e [<!ENTITY a "b">]>' + signed(directory, plain())
    with pytest.raises(Invalid):
        read_signature(read_secured(data, SOAP.V1_2))


def test_headers_of_others_need_no_signature_and_are_named(directory: Path) -> None:
    envelope = etree.fromstring(signed(directory, plain()))
    etree.SubElement(head(envelope), "{urn:tenants}Tenant").text = "b"
    etree.SubElement(head(envelope), "{urn:trace}Trace").text = "1"
    data = etree.tostring(envelope)
    check(directory, data)
    assert unsigned_headers(read_signature(read_secured(data, SOAP.V1_2))) == {
        "{urn:tenants}Tenant",
        "{urn:trace}Trace",
    }


def test_ids_of_an_application_may_be_repeated(directory: Path) -> None:
    check(directory, signed(directory, plain(b"<a><b id='1'/><c id='1'/></a>")))


@pytest.mark.parametrize("more", [1, 2])
def test_metro_names_a_part_two_or_three_times(directory: Path, more: int) -> None:
    RESIGNERS[:] = [keys(directory)[0]]
    envelope = etree.fromstring(signed(directory, plain()))
    for _ in range(more):
        references(envelope)[0].addnext(deepcopy(references(envelope)[0]))
    resign(envelope)
    check(directory, etree.tostring(envelope))


def test_prefixes_of_a_peer_are_honoured(directory: Path) -> None:
    """As CXF writes them: the namespaces of these prefixes belong to the canonical form."""
    RESIGNERS[:] = [keys(directory)[0]]
    envelope = etree.fromstring(signed(directory, plain()))
    prefix = next(prefix for prefix, uri in envelope.nsmap.items() if uri == S[1:-1] and prefix)
    body = part(envelope, f"{S}Body")
    for reference in references(envelope):
        target = next(one for one in envelope.iter() if f"#{one.get(ID)}" == reference.get("URI"))
        inclusive = etree.SubElement(part(reference, f".//{D}Transform"), f"{{{EXCLUSIVE_C14N}}}InclusiveNamespaces")
        inclusive.set("PrefixList", f"{prefix} absent")
        digest = hashlib.sha256(canonical(target, [prefix, "absent"])).digest()
        part(reference, f"{D}DigestValue").text = base64.b64encode(digest).decode()
        assert part(reference, f"{D}DigestMethod").get("Algorithm") == SHA256
    resign(envelope)
    check(directory, etree.tostring(envelope))
    assert re.search(rb"xmlns:" + prefix.encode(), canonical(body[0], [prefix]))
