"""What anyone can send who knows only what is public: it takes neither time nor room from those who may send."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import served_destination
import symmetric_messages
from saml import ISSUER, signed, unsigned
from signers import authority, issue
from symmetric_messages import creation, protected

from holdfast import (
    X509,
    Destination,
    EndorsingCertificates,
    MessageContext,
    ProcessingError,
    Processor,
    SamlTokenValidator,
    UsernameTokenValidator,
)
from holdfast.core.messages import Envelope
from holdfast.core.versions import SOAP
from holdfast.security.certificates import Credential
from holdfast.security.header import Invalid, Token
from holdfast.security.names import DS, EXCLUSIVE_C14N
from holdfast.security.nonces import FileNonces, RefusedSignatures
from holdfast.security.signature import MOST_STEPS, check_cost
from holdfast.security.signed_message import SUITES, Signing, sign
from holdfast.wire import encode, parse_element

ALICE, SHOP = issue("CN=alice,O=Example", authority()), issue("CN=shop,O=Example", authority())
IDP = issue("CN=idp,O=Example")

# --- canonical forms that take minutes --------------------------------------------------------------------------------


def wide() -> str:
    """One element with many attributes, which are sorted by insertion."""
    return "<b:x xmlns:b='urn:b' " + " ".join(f"a{number}=''" for number in range(15_000)) + "/>"


def many_declarations() -> str:
    """Many elements under many namespaces."""
    spaces = " ".join(f"xmlns:p{number}='urn:{number}'" for number in range(900))
    return f"<b:x xmlns:b='urn:b' {spaces}>" + "<y/>" * 9000 * 26 + "</b:x>"


def many_prefixes() -> str:
    """Many elements, and many namespaces that a signature lists."""
    spaces = " ".join(f"xmlns:p{number}='urn:{number}'" for number in range(64))
    listed = " ".join(f"p{number}" for number in range(64))
    inclusive = f"<e:InclusiveNamespaces xmlns:e='{EXCLUSIVE_C14N}' PrefixList='{listed}'/>"
    return f"<b:x xmlns:b='urn:b' {spaces}>{inclusive}" + "<y/>" * 9000 * 6 + "</b:x>"


def alike(attributes: int, length: int, elements: int = 1) -> str:
    """Elements with attributes in two namespaces, whose names differ at their end: they are compared to sort these."""
    spaces = " ".join(f"xmlns:q{number}='urn:{'x' * length}{number}'" for number in range(2))
    each = " ".join(f"q{number % 2}:a{attributes - number}=''" for number in range(attributes))
    return f"<b:x xmlns:b='urn:b' {spaces}>" + f"<b:y {each}/>" * elements + "</b:x>"


def alike_namespaces() -> str:
    return alike(4000, 2000)


BOMBS: dict[str, Callable[[], str]] = {
    one.__name__: one for one in (wide, many_declarations, many_prefixes, alike_namespaces)
}
every_bomb = pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)


@every_bomb
def test_a_bomb_is_refused_before_it_is_canonicalized(bomb: Callable[[], str]) -> None:
    data = bomb().encode()
    with pytest.raises(Invalid, match="canonical form takes some"):
        check_cost(data, parse_element(data))


def test_the_attributes_of_many_narrow_elements_are_counted() -> None:
    data = alike(60, 2000, 1800).encode()
    with pytest.raises(Invalid, match="canonical form takes some"):
        check_cost(data, parse_element(data))


@pytest.mark.parametrize("attributes", [2, 1500])
def test_the_names_of_namespaces_are_as_short_as_those_of_plain_messages(attributes: int) -> None:
    """Of encrypted ones, nothing else has looked at them yet."""
    data = alike(attributes, 50_000).encode()
    with pytest.raises(Invalid, match="longer than 2048 characters"):
        check_cost(data, parse_element(data))


def test_declarations_behind_a_quotation_mark_are_counted() -> None:
    spaces = " ".join(f"xmlns:p{number}='urn:{number}'" for number in range(900))
    data = f"""<b:x xmlns:b='urn:b' a='xmlns="' {spaces} z='"'>{"<y/>" * 9000 * 26}</b:x>""".encode()
    with pytest.raises(Invalid, match="canonical form takes some"):
        check_cost(data, parse_element(data))


def test_what_looks_like_a_long_declaration_in_a_text_is_none() -> None:
    data = f"""<x>xmlns:a="{"text" * 1000}"</x>""".encode()
    check_cost(data, parse_element(data))


@pytest.mark.parametrize(
    "usual",
    [
        "<x>" + "<item sku='1' count='2'>text</item>" * 100_000 + "</x>",
        "<x>" + "<y:item xmlns:y='urn:y' y:sku='1'>text</y:item>" * 50_000 + "</x>",
        "<x " + " ".join(f"xmlns:p{number}='urn:{number}'" for number in range(60)) + ">" + "<p1:y/>" * 9000 + "</x>",
        f"<x {' '.join(f'xmlns:p{number}={number!r}' for number in map(str, range(10)))}>"
        f"<e:InclusiveNamespaces xmlns:e='{EXCLUSIVE_C14N}' PrefixList='p0 p1 p2 p3'/>"
        + "<row id='1'><a>1</a></row>" * 300_000
        + "</x>",
        "<x xmlns:p='urn:p'>" + "=C3=A4=F6" * 1_000_000 + "</x>",
        "<x>" + f"<row {' '.join(f'column{number}={number!r}' for number in map(str, range(200)))}/>" * 1000 + "</x>",
    ],
    ids=[
        "many elements",
        "a namespace declared in each",
        "sixty namespaces",
        "ten namespaces and four listed",
        "quoted-printable text",
        "rows of two hundred columns",
    ],
)
def test_large_messages_of_usual_programs_are_canonicalized(usual: str) -> None:
    data = usual.encode()
    check_cost(data, parse_element(data))


def test_the_steps_of_a_message_without_attributes_are_counted_too() -> None:
    for count, spaces in ((100_000, 300), (700_000, 300)):
        declared = " ".join(f"xmlns:p{number}='urn:{number}'" for number in range(spaces))
        data = f"<x {declared}>{'<y/>' * count}</x>".encode()
        if count * spaces > MOST_STEPS:
            with pytest.raises(Invalid):
                check_cost(data, parse_element(data))
        else:
            check_cost(data, parse_element(data))


def in_a_signed_message(directory: Path) -> tuple[Processor, bytes]:
    """A message of a stranger who has the certificate of alice: it is in every message of hers."""
    processor = X509(*SHOP.files(directory), trusted=ALICE.files(directory).certificate)
    signing = Signing(Credential(*ALICE.files(directory)), "token", SUITES["rsa-sha256"], 300.0)
    data = sign(creation(), SOAP.V1_2, signing, time.time(), must_understand=True)
    return processor, data


def in_a_message_with_a_new_key(directory: Path) -> tuple[Processor, bytes]:
    """A message of a stranger who has the certificate of the service, and makes a key."""
    served = symmetric_messages.Served(directory)
    return served.validator, protected(creation(), user=None)


def in_an_endorsed_message(directory: Path) -> tuple[Processor, bytes]:
    clients = EndorsingCertificates(ALICE.files(directory).certificate, clock=lambda: symmetric_messages.NOW)
    served = symmetric_messages.Served(directory, clients=clients)
    return served.validator, protected(creation(), user=None)


def in_an_assertion(directory: Path) -> tuple[Processor, bytes]:
    checks = SamlTokenValidator({ISSUER: IDP.files(directory).certificate}, audience=None)
    assertion = signed(unsigned("2.0", time.time()), IDP, "_a1").decode()
    space = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-secext-1.0.xsd"
    security = f'<o:Security xmlns:o="{space}">{assertion}</o:Security></s:Header>'
    return checks, creation().replace(b"</s:Header>", security.encode())


PLACES: dict[str, Callable[[Path], tuple[Processor, bytes]]] = {
    "X509": in_a_signed_message,
    "SymmetricBinding": in_a_message_with_a_new_key,
    "endorsed": in_an_endorsed_message,
    "SAML": in_an_assertion,
}


@every_bomb
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
async def test_no_stranger_keeps_a_destination_busy(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    bomb: Callable[[], str],
    place: Callable[[Path], tuple[Processor, bytes]],
) -> None:
    made = bomb()
    processor, data = place(tmp_path)
    request = re.sub(rb"(<s:Body[^>]*>)", lambda found: found[1] + made.encode(), data, count=1)
    app = Destination(":memory:", processors=[processor])
    async with served_destination.Served(app) as served:
        answer = await served.post(request)
        assert answer.status_code in (400, 500)
        assert b"processing the Security header" in answer.content
        assert not served.sequences
    assert "its canonical form takes some" in caplog.text


async def test_no_stranger_keeps_a_destination_of_sessions_busy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A token need not be known: what is unknown is checked as well."""
    space = "http://docs.oasis-open.org/ws-sx/ws-secureconversation/200512"
    utility = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-utility-1.0.xsd"
    wsse = utility.replace("utility", "secext")
    security = (
        f'<o:Security xmlns:o="{wsse}" xmlns:u="{utility}"><u:Timestamp u:Id="t"><u:Created>{{}}</u:Created>'
        f'<u:Expires>{{}}</u:Expires></u:Timestamp><c:SecurityContextToken xmlns:c="{space}"><c:Identifier>urn:1'
        f'</c:Identifier></c:SecurityContextToken><Signature xmlns="{DS}"><SignedInfo>{wide()}</SignedInfo></Signature>'
        "</o:Security></s:Header>"
    )
    stamps = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + more)) for more in (0, 60)]
    request = creation().replace(b"</s:Header>", security.format(*stamps).encode())
    app = Destination(":memory:", processors=[UsernameTokenValidator({"alice": "secret"})])
    async with served_destination.Served(app) as served:
        answer = await served.post(request)
        assert answer.status_code in (400, 500)
    assert "its canonical form takes some" in caplog.text


@every_bomb
def test_what_another_wrote_is_not_signed_at_any_price(tmp_path: Path, bomb: Callable[[], str]) -> None:
    """A forwarder signs the bodies of the broker's senders."""
    context = MessageContext(Envelope(SOAP.V1_2), "outbound", "source", {}, is_answer=False, to="http://shop/")
    signer = X509(*ALICE.files(tmp_path), trusted=SHOP.files(tmp_path).certificate)
    envelope = Envelope(SOAP.V1_2, action="urn:a", body=bomb().encode())
    with pytest.raises(ProcessingError, match="cannot be signed: its canonical form"):
        signer.encoded(context, encode(envelope))


# --- memories ---------------------------------------------------------------------------------------------------------


def wrong_password(_: int) -> bytes:
    return protected(creation(), user=Token("alice", "wrong", is_digest=False))


def no_user(_: int) -> bytes:
    return protected(creation(), user=None)


def no_sense(_: int) -> bytes:
    data = protected(creation())
    at = data.rindex(b"</xenc:CipherValue>") - 8
    return data[:at] + (b"A" if data[at : at + 1] != b"A" else b"B") + data[at + 1 :]


def other_parts(_: int) -> bytes:
    """A message in which a part is not signed."""
    header = b'<r:AckRequested xmlns:r="http://docs.oasis-open.org/ws-rx/wsrm/200702"><r:Identifier>urn:1'
    return protected(creation()).replace(b"</s:Header>", header + b"</r:Identifier></r:AckRequested></s:Header>")


@pytest.mark.parametrize("confirm", [True, False])
@pytest.mark.parametrize("attack", [wrong_password, no_user, no_sense, other_parts], ids=lambda one: one.__name__)
async def test_strangers_fill_no_memory_of_a_destination_with_symmetric_keys(
    tmp_path: Path, attack: Callable[[int], bytes], confirm: bool
) -> None:
    async with symmetric_messages.Served(tmp_path, confirm=confirm) as served:
        nonces = served.users.nonces = FileNonces(None, most=4)
        for number in range(5):
            answer = await served.post(attack(number))
            assert answer.status_code in (400, 500)
        assert not nonces.is_full
        assert (await served.post(protected(creation()))).status_code == 200
        assert len(served.sequences) == 1


async def test_strangers_fill_no_memory_of_a_destination_with_endorsements(tmp_path: Path) -> None:
    clients = EndorsingCertificates(ALICE.files(tmp_path).certificate, clock=lambda: symmetric_messages.NOW)
    nonces = clients.nonces = FileNonces(None, most=4)
    async with symmetric_messages.Served(tmp_path, clients=clients) as served:
        for attack in (no_user, no_sense, other_parts) * 2:
            assert (await served.post(attack(0))).status_code in (400, 500)
        assert nonces._count == 0


def test_refused_signatures_are_bounded_and_the_oldest_are_forgotten() -> None:
    refused = RefusedSignatures(most=3)
    for number in range(100):
        refused.add(bytes([number]))
        refused.add(bytes([number]))
    assert [number for number in range(100) if bytes([number]) in refused] == [97, 98, 99]
