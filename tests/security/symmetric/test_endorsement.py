"""Endorsing certificates at sockets: who sent a message, who owns a Sequence, and attacks on the two signatures."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from lxml import etree
from signers import Issued, authority, issue
from symmetric_messages import ALICE as PASSWORD
from symmetric_messages import NOW, SHOP, Exchange, Served, creation, plain, protected

from holdfast import (
    ConfigurationError,
    EndorsedSymmetricBinding,
    EndorsingCertificates,
    PeerFault,
    ProcessingError,
    Source,
    SymmetricBinding,
    SymmetricBindingValidator,
)
from holdfast.core.versions import Versions
from holdfast.security.certificates import Certificate, Credential
from holdfast.security.names import DS, HMAC_SHA1, WSSE, WSU
from holdfast.security.signature import token_reference
from holdfast.security.signed_message import SUITES as RSA_SUITES
from holdfast.security.signed_message import add_signature, elements_of, write_key_reference
from holdfast.security.symmetric.endorsement import Endorsing
from holdfast.testing.proxy import Faults, LossyProxy
from holdfast.wire import parse_element

ALICE, BOB = issue("CN=alice,O=Example", authority()), issue("CN=bob,O=Example", authority())
STRANGER = issue("CN=alice,O=Example")
OLD = issue("CN=old,O=Example", authority(), until=datetime(2021, 1, 1, tzinfo=UTC))
RM = "http://docs.oasis-open.org/ws-rx/wsrm/200702"
SIGNATURE = f"{{{DS}}}Signature"
Change = Callable[[etree._Element], None]


def clients(directory: Path, **options: Any) -> EndorsingCertificates:
    return EndorsingCertificates(authority().files(directory).certificate, **{"clock": lambda: NOW, **options})


def endorsed(data: bytes, directory: Path, by: Issued = ALICE, **changed: Any) -> bytes:
    """A request that a certificate endorses, as it is on the wire."""
    endorsing = Endorsing(Credential(*by.files(directory)), "Basic256Sha256")
    return protected(data, **{"user": None, "endorsing": endorsing, **changed})


def client(directory: Path, one: Issued = ALICE, **options: Any) -> EndorsedSymmetricBinding:
    return EndorsedSymmetricBinding(*one.files(directory), SHOP.files(directory).certificate, **options)


def changed(data: bytes, change: Change) -> bytes:
    envelope = parse_element(data)
    (security,) = envelope.iterfind(f".//{{{WSSE}}}Security")
    change(security)
    return etree.tostring(envelope)


@pytest.mark.parametrize(
    "options", [{}, {"derived_keys": True, "reference": "issuer-serial"}, {"suite": "Basic256"}], ids=str
)
@pytest.mark.parametrize("signed", [False, True])
async def test_a_source_calls_a_destination_and_its_user_is_the_owner(
    tmp_path: Path, options: dict[str, Any], signed: bool
) -> None:
    suite = {key: options[key] for key in options if key == "suite"}
    accepts = clients(tmp_path, signed=signed, clock=time.time)
    async with (
        Served(tmp_path, clients=accepts, **suite) as served,
        LossyProxy(served.url, Faults(lose_request=0.2, lose_response=0.2, double=0.1), seed=4) as proxy,
        Source(proxy.url, ":memory:", processors=[client(tmp_path, **options)]) as source,
    ):
        for _ in range(3):
            reply = await source.request("<order xmlns='urn:shop'/>", action="urn:shop/order", timeout=240)
            assert reply.body.tag == "taken"
        assert [message.user for message in served.got] == ["CN=alice,O=Example"] * 3


async def test_the_policy_is_published_and_met_by_the_client_of_that_kind_alone(tmp_path: Path) -> None:
    for signed in (False, True):
        accepts = clients(tmp_path, signed=signed, clock=time.time)
        async with Served(tmp_path / str(signed), clients=accepts) as served:
            url = f"{served.url}?wsdl"
            kind = f"{'Signed' * signed}EndorsingSupportingTokens"
            assert kind in (await served.client.get(url)).text
            async with await Source.from_wsdl(url, ":memory:", processors=[client(tmp_path)]) as source:
                await source.request("<order/>", action="urn:shop/order", timeout=240)
            other = SymmetricBinding("alice", "secret", SHOP.files(tmp_path).certificate)
            with pytest.raises(ConfigurationError, match=r"EndorsedSymmetricBinding"):
                await Source.from_wsdl(url, ":memory:", processors=[other])


async def test_a_sequence_belongs_to_the_owner_of_the_certificate(tmp_path: Path) -> None:
    """Also under a renewed certificate; another owner of the same issuer may not use it."""
    renewed = issue("CN=alice,O=Example", authority(), serial=77)
    async with Served(tmp_path, clients=clients(tmp_path)) as served:
        assert (await served.post(endorsed(creation(), tmp_path))).status_code == 200
        (identifier,) = served.sequences
        for number, (who, status) in enumerate([(BOB, 500), (renewed, 200), (ALICE, 200)]):
            inside = f"<r:Identifier>{identifier}</r:Identifier><r:MessageNumber>{number or 1}</r:MessageNumber>"
            message = plain(headers=f"<r:Sequence>{inside}</r:Sequence>").replace(b"urn:m:1", b"urn:m:%d" % number)
            assert (await served.post(endorsed(message, tmp_path, who))).status_code == status
        assert [message.user for message in served.got] == ["CN=alice,O=Example"] * 2


@pytest.mark.parametrize("versions", [Versions("1.0", "2005/08", "1.1"), Versions("1.1", "2005/08", "1.2")], ids=str)
async def test_a_source_names_its_certificate_and_a_destination_may_demand_it(
    tmp_path: Path, versions: Versions
) -> None:
    """CreateSequence contains a reference to the certificate (WS-RM 6.1)."""
    async with Served(tmp_path, clients=clients(tmp_path, clock=time.time)) as served:
        served.validator.bind_sequences()
        async with Source(served.url, ":memory:", processors=[client(tmp_path)], versions=versions) as source:
            with pytest.raises(PeerFault, match="InvalidSecurity"):
                await source.request("<order/>", action="urn:shop/order", timeout=240)
        binding = [client(tmp_path).bind_sequences()]
        async with Source(served.url, ":memory:", processors=binding, versions=versions) as source:
            await source.request("<order/>", action="urn:shop/order", timeout=240)
        assert [message.user for message in served.got] == ["CN=alice,O=Example"]
        url = f"{served.url}?wsdl"
        assert "SequenceSTR" in (await served.client.get(url)).text
        with pytest.raises(ConfigurationError, match=r"bind_sequences\(\)"):
            await Source.from_wsdl(url, ":memory:", processors=[client(tmp_path)])
        async with await Source.from_wsdl(url, ":memory:", processors=binding) as source:
            await source.request("<order/>", action="urn:shop/order", timeout=240)


async def test_a_certificate_that_is_not_trusted_stops_the_source(tmp_path: Path) -> None:
    """The fault has the key of the request, so the source believes it. It does not tell the cause."""
    async with Served(tmp_path, clients=clients(tmp_path, clock=time.time)) as served:
        async with Source(served.url, ":memory:", processors=[client(tmp_path, STRANGER)]) as source:
            with pytest.raises(PeerFault, match="could not be authenticated"):
                await source.request("<order/>", action="urn:shop/order", timeout=240)
        assert not served.got


def test_an_answer_confirms_both_signatures_of_the_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Else it may be for another request, or for one that a thief has endorsed."""
    exchange = Exchange(tmp_path, client(tmp_path, clock=lambda: NOW))
    first, second = exchange.signatures
    for confirmed in ((), (first,), (second,), (first, first), (first, b"other"), (first, second, b"other")):
        caplog.clear()
        with pytest.raises(ProcessingError):
            exchange.take(exchange.answer(confirms=confirmed))
        assert "does not confirm" in caplog.text
    assert b"<taken " in exchange.take(exchange.answer())


# --- attacks ------------------------------------------------------------------------------------------------------


def remove_endorsement(security: etree._Element) -> None:
    security.remove(security.findall(SIGNATURE)[1])


def repeat_endorsement(security: etree._Element) -> None:
    security.append(copy.deepcopy(security.findall(SIGNATURE)[1]))


def endorse_by(one: Issued, directory: Path, *, over: str = SIGNATURE, keep: bool = False) -> Change:
    """Replace the endorsement by one of another certificate, which is added."""

    def change(security: etree._Element) -> None:
        first, second = security.findall(SIGNATURE)
        if not keep:
            security.remove(second)
        part = security.find(over)
        assert part is not None
        endorsing = Endorsing(Credential(*one.files(directory)), "Basic256Sha256")
        security.insert(0, elements_of(endorsing.token("_evil"))[0])
        if over == SIGNATURE:
            security.append(first)
            endorsing.add(security, "_evil")
            return
        named = '<wsse:SecurityTokenReference><wsse:Reference URI="#_evil-c"/></wsse:SecurityTokenReference>'
        sign = endorsing.credential.sign
        suite = RSA_SUITES["Basic256Sha256"]
        add_signature(security, [part], suite, named, lambda data: sign(data, suite.signature))

    return change


def name_other_token(directory: Path, one: Issued) -> Change:
    """Let the message contain the certificate of another."""

    def change(security: etree._Element) -> None:
        (token,) = security.findall(f"{{{WSSE}}}BinarySecurityToken")
        (other,) = elements_of(Endorsing(Credential(*one.files(directory)), "Basic256Sha256").token("_x"))
        token.text = other.text

    return change


def transplant(directory: Path) -> Change:
    """Put the endorsement of a message into another, of which the attacker knows the key. Hide the signature that it is
    over in another header."""
    theirs = parse_element(endorsed(creation(), directory))
    first, second = theirs.findall(f".//{SIGNATURE}")
    (token,) = theirs.iterfind(f".//{{{WSSE}}}BinarySecurityToken")

    def change(security: etree._Element) -> None:
        own, ours = security.findall(SIGNATURE)
        security.remove(ours)
        security.insert(0, token)
        header = security.getparent()
        assert header is not None
        etree.SubElement(header, "{urn:any}Any").append(first)
        own.set("Id", first.get("Id", ""))
        security.append(second)

    return change


class Impostor(Endorsing):
    """Has the certificate of another, and its own key."""

    def __init__(self, directory: Path, own: Issued, other: Issued) -> None:
        credential = Credential(*own.files(directory))
        credential.certificate = Certificate(other.found)
        super().__init__(credential, "Basic256Sha256")


def name_by_thumbprint(by: Issued, directory: Path) -> Change:
    """Endorse by a certificate that the message does not contain."""

    def change(security: etree._Element) -> None:
        first, second = security.findall(SIGNATURE)
        security.remove(second)
        (named,) = elements_of(token_reference(write_key_reference(Certificate(by.found), "thumbprint")[0]))
        sign, suite = Credential(*by.files(directory)).sign, RSA_SUITES["Basic256Sha256"]
        reference = etree.tostring(named).decode()
        add_signature(security, [first], suite, reference, lambda data: sign(data, suite.signature))

    return change


def certificate_alone(security: etree._Element) -> None:
    security.remove(security.findall(SIGNATURE)[0])


def claim_symmetric_key(security: etree._Element) -> None:
    """Let the endorsement have an algorithm for which the attacker would know the key: the certificate."""
    (method,) = security.findall(SIGNATURE)[1].iterfind(f".//{{{DS}}}SignatureMethod")
    method.set("Algorithm", HMAC_SHA1)


def named(one: Issued) -> str:
    """A SecurityTokenReference in CreateSequence."""
    return token_reference(write_key_reference(Certificate(one.found), "thumbprint")[0])


ATTACKS: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "no endorsement": (lambda d: protected(creation(), user=None), "no certificate of a client"),
    "removed": (lambda d: changed(endorsed(creation(), d), remove_endorsement), "no certificate of a client"),
    "twice": (lambda d: changed(endorsed(creation(), d), repeat_endorsement), "3 signatures"),
    "by a stranger": (lambda d: endorsed(creation(), d, STRANGER), "not of a trusted issuer"),
    "by one that has expired": (lambda d: endorsed(creation(), d, OLD), "not valid now"),
    "by the shop itself": (lambda d: endorsed(creation(), d, SHOP), "our own certificate"),
    "with the certificate of another": (
        lambda d: changed(endorsed(creation(), d), name_other_token(d, BOB)),
        "was changed",
    ),
    "over the Timestamp": (
        lambda d: changed(endorsed(creation(), d), endorse_by(BOB, d, over=f"{{{WSU}}}Timestamp")),
        "is not signed",
    ),
    "from another message": (lambda d: changed(endorsed(creation(), d, BOB), transplant(d)), "was changed"),
    "with the certificate of another from the start": (
        lambda d: protected(creation(), user=None, endorsing=Impostor(d, BOB, ALICE)),
        "another key, or changed",
    ),
    "by a certificate alone": (lambda d: changed(endorsed(creation(), d), certificate_alone), "algorithm"),
    "by a key that is no secret": (lambda d: changed(endorsed(creation(), d), claim_symmetric_key), "2 of them"),
    "with a user name": (lambda d: endorsed(creation(), d, user=PASSWORD), "besides the certificate"),
    "naming another certificate": (
        lambda d: endorsed(creation(named(BOB)), d),
        "binds the Sequence to a token that did not sign it",
    ),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_message_is_refused_unless_a_client_has_endorsed_its_signature(
    tmp_path: Path, attack: str, signed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    make, why = ATTACKS[attack]
    async with Served(tmp_path, clients=clients(tmp_path, signed=signed)) as served:
        answer = await served.post(make(tmp_path))
        assert answer.status_code in (400, 500)
        assert not served.sequences
        assert why in caplog.text
        assert why not in answer.text
        assert (await served.post(endorsed(creation(), tmp_path))).status_code == 200


async def test_anothers_endorsement_counts_only_if_certificates_need_not_be_signed(tmp_path: Path) -> None:
    """Without ``signed``, the message is Bob's, who cannot read it or its answer."""
    stolen = changed(endorsed(creation(), tmp_path), endorse_by(BOB, tmp_path))
    for signed, status in ((False, 200), (True, 500)):
        async with Served(tmp_path / str(signed), clients=clients(tmp_path, signed=signed)) as served:
            answer = await served.post(stolen)
            assert answer.status_code == status
            assert len(served.sequences) == (status == 200)
            assert not any(one.encode() in answer.content for one in served.sequences), "it is encrypted"


async def test_a_certificate_need_not_be_in_the_message_where_it_need_not_be_signed(tmp_path: Path) -> None:
    accepts = {"trusted": ALICE.files(tmp_path).certificate}
    message = changed(endorsed(creation(), tmp_path), name_by_thumbprint(ALICE, tmp_path))
    for signed, status in ((False, 200), (True, 500)):
        trusting = EndorsingCertificates(**accepts, signed=signed, clock=lambda: NOW)
        async with Served(tmp_path / str(signed), clients=trusting) as served:
            assert (await served.post(message)).status_code == status


ATTRIBUTES = ("Algorithm", "URI")


def mutations(make: Callable[[], bytes]) -> Iterator[tuple[str, bytes]]:
    """New messages, each with an element or attribute of its endorsement removed, repeated or changed."""
    count = sum(1 for _ in parse_element(make()).findall(f".//{SIGNATURE}")[1].iter())
    for number, how in itertools.product(range(count), ("remove", "repeat", "text", *ATTRIBUTES)):
        envelope = parse_element(make())
        one = list(envelope.findall(f".//{SIGNATURE}")[1].iter())[number]
        parent = one.getparent()
        assert parent is not None
        if how == "remove":
            parent.remove(one)
        elif how == "repeat":
            one.addnext(copy.deepcopy(one))
        elif how == "text" and one.text and one.text.strip():
            one.text = one.text[::-1]
        elif how in one.attrib:
            one.set(how, f"{one.get(how)}x")
        else:
            continue
        yield f"{how} {etree.QName(one).localname}", etree.tostring(envelope)


async def test_an_endorsement_counts_as_it_was_made_or_not_at_all(tmp_path: Path) -> None:
    seen = list[str]()
    async with Served(tmp_path, clients=clients(tmp_path, signed=False)) as served:
        for what, message in mutations(lambda: endorsed(creation(), tmp_path)):
            answer = await served.post(message)
            seen.append(what)
            assert answer.status_code == 500, what
            assert not served.sequences, what
    assert len(seen) > 30


async def test_a_signature_counts_once_also_with_another_endorsement(tmp_path: Path) -> None:
    message = endorsed(creation(), tmp_path)
    async with Served(tmp_path, clients=clients(tmp_path)) as served:
        assert (await served.post(message)).status_code == 200
        assert (await served.post(message)).status_code == 503
        assert (await served.post(changed(message, endorse_by(BOB, tmp_path)))).status_code == 503


async def test_only_named_clients_of_an_issuer_are_accepted(tmp_path: Path) -> None:
    accepts = clients(tmp_path, subjects=["CN=bob, O=Example"])
    async with Served(tmp_path, clients=accepts) as served:
        assert (await served.post(endorsed(creation(), tmp_path))).status_code == 500
        assert (await served.post(endorsed(creation(), tmp_path, BOB))).status_code == 200


@pytest.mark.parametrize("by", ["certificate", "user name"])
async def test_what_is_protected_for_another_address_is_refused(tmp_path: Path, by: str) -> None:
    """A service with the same key may have received it."""
    is_endorsed = by == "certificate"
    data = endorsed(creation(), tmp_path) if is_endorsed else protected(creation())
    for address, status in (("http://other/", 500), ("http://shop/", 200)):
        accepts = clients(tmp_path) if is_endorsed else None
        async with Served(tmp_path / str(status), clients=accepts, addresses=address) as served:
            assert (await served.post(data)).status_code == status
            assert bool(served.sequences) == (status == 200)


async def test_a_destination_with_user_names_accepts_no_endorsement(tmp_path: Path) -> None:
    async with Served(tmp_path) as served:
        answer = await served.post(endorsed(creation(), tmp_path, user=PASSWORD))
        assert answer.status_code == 500
        assert not served.sequences


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"conversation": True}, "needs user names"),
        ({"users": {"alice": "secret"}}, "users cannot be of the type dict"),
        ({"subjects": "CN=alice"}, "single name"),
        ({"trusted": "key"}, "no certificate in PEM"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(tmp_path: Path, options: dict[str, Any], what: str) -> None:
    files = SHOP.files(tmp_path)
    trusted = files.key if options.pop("trusted", "") else authority().files(tmp_path).certificate

    def make() -> None:
        users = options.pop("users", None) or EndorsingCertificates(trusted, subjects=options.pop("subjects", None))
        SymmetricBindingValidator(*files, users=users, **options)

    with pytest.raises(ConfigurationError, match=what):
        make()
