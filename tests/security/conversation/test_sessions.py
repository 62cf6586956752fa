"""Security sessions (WS-SecureConversation): WCF's recordings, a scripted client, and what must be refused.

Covers security/conversation/contexts.py, security/signature.py and security/conversation/trust.py.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest
import served_destination
from lxml import etree

from holdfast import ConfigurationError, Destination, UsernameTokenValidator
from holdfast.security.conversation.contexts import SecurityContext, SecurityContexts
from holdfast.security.conversation.trust import FORMS, Form, p_sha1
from holdfast.security.header import Token, write_timestamp, write_token
from holdfast.security.names import DS, EXCLUSIVE_C14N, WSSE, WSU
from holdfast.security.signature import canonical, check_signature
from holdfast.security.times import read_time

RECORDED = Path(__file__).parents[2] / "data" / "vectors" / "wcf-secured"
CASES = [path.name for path in sorted(RECORDED.iterdir()) if (path / "002-req.xml").exists()]
SIGNED = [case for case in CASES if case != "pair-no-rm-username"]
NOW = 1_800_000_000.0
SOAP = "http://www.w3.org/2003/05/soap-envelope"
WSA = "http://www.w3.org/2005/08/addressing"
RM = "http://docs.oasis-open.org/ws-rx/wsrm/200702"


def found(data: bytes, local: str, namespace: str = "{*}") -> etree._Element:
    element = etree.fromstring(data).find(f".//{namespace}{local}")
    assert element is not None, local
    return element


def secret_in(data: bytes) -> bytes:
    return base64.b64decode(found(data, "BinarySecret").text or "")


# --- recordings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", SIGNED)
def test_every_recorded_signature_of_wcf_is_right(case: str) -> None:
    key = p_sha1(*(secret_in((RECORDED / case / f"001-{leg}.xml").read_bytes()) for leg in ("req", "res")), 32)
    count = 0
    for path in sorted((RECORDED / case).glob("*-req.xml"))[1:]:
        security = found(path.read_bytes(), "Security")
        timestamp, token = security.find(f"{{{WSU}}}Timestamp"), security.find("{*}SecurityContextToken")
        assert timestamp is not None and token is not None
        assert check_signature(security, timestamp, token, key), path
        assert not check_signature(security, timestamp, token, bytes(32))
        count += 1
    assert count >= 3


@pytest.mark.parametrize("case", [case for case in SIGNED if case.startswith("client")])
async def test_the_recorded_messages_of_wcf_are_answered_and_handled(tmp_path: Path, case: str) -> None:
    """They are posted as they were recorded: with that token and key, at the times of their Timestamps."""
    folder = RECORDED / case
    issued = (folder / "001-res.xml").read_bytes()
    key = p_sha1(secret_in((folder / "001-req.xml").read_bytes()), secret_in(issued), 32)
    identifier = found(issued, "Identifier").text or ""
    async with Served(tmp_path / "in", nonces=tmp_path / "nonces") as served:
        proof = served.validator.sessions._proof("alice", key)
        served.validator.sessions._contexts.add(SecurityContext(identifier, "", "alice", key, 2e9, proof))
        names: dict[bytes, bytes] = {}
        for path in sorted(folder.glob("*-req.xml"))[1:]:
            body = path.read_bytes()
            served.now = read_time(found(body, "Created").text or "") or NOW
            for theirs, ours in names.items():
                body = body.replace(theirs, ours)
            answer = await served.post(body)
            assert answer.status_code in (200, 202), (path, answer.text)
            if answer.status_code == 200:
                assert b"Timestamp" in answer.content
            if path.name.startswith("002"):
                recorded = found(path.with_name("002-res.xml").read_bytes(), "Identifier").text or ""
                names[recorded.encode()] = (found(answer.content, "Identifier").text or "").encode()
        await served.app.handled()
        assert {message.user for message in served.got} == {"alice"}
        assert served.validator.sessions._contexts.find(identifier, "") is None, "cancelled at the end"


# --- a scripted client -----------------------------------------------------------------------------------------------


class Served(served_destination.Served):
    """A destination at a socket. The test sets its clock."""

    def __init__(self, store: Path, **options: Any) -> None:
        self.now = NOW
        self.passwords = {"alice": "secret", "bob": "hunter2"}
        options.setdefault("passwords", self.passwords)
        self.validator = UsernameTokenValidator(clock=lambda: self.now, **options)
        super().__init__(Destination(store, processors=[self.validator]))


class Client:
    """Asks for a token and signs with it, as WCF's client does."""

    def __init__(self, served: Served, form: Form = FORMS[1], user: str = "alice", password: str = "secret") -> None:
        self.served, self.form = served, form
        self.password = write_token(Token(user, password, False))
        self.identifier = self.instance = ""
        self.key = b""
        self.sequence = ""

    # --- what it sends

    def envelope(self, action: str, body: str, security: str, headers: str = "") -> str:
        return (
            f'<s:Envelope xmlns:s="{SOAP}" xmlns:a="{WSA}" xmlns:r="{RM}" xmlns:o="{WSSE}" xmlns:u="{WSU}" '
            f'xmlns:wsse="{WSSE}" xmlns:c="{self.form.conversation}"><s:Header>{headers}<a:Action>{action}</a:Action>'
            f"<a:MessageID>{uuid.uuid4().urn}</a:MessageID><a:To>{self.served.service.url}</a:To>"
            f'<o:Security s:mustUnderstand="1">{security}</o:Security></s:Header><s:Body>{body}</s:Body></s:Envelope>'
        )

    @property
    def timestamp(self) -> str:
        return (
            write_timestamp(self.served.now, 300)
            .replace("wsu:", "u:")
            .replace("<u:Timestamp>", '<u:Timestamp u:Id="_0">')
        )

    @property
    def token(self) -> str:
        which = f"<c:Instance>{self.instance}</c:Instance>" if self.instance else ""
        return (
            f'<c:SecurityContextToken u:Id="t"><c:Identifier>{self.identifier}</c:Identifier>{which}'
            "</c:SecurityContextToken>"
        )

    def signed(self, timestamp: str = "", key: bytes | None = None, sha: str = "sha1") -> str:
        """A Timestamp, the token and the signature."""
        timestamp = timestamp or self.timestamp
        return timestamp + self.token + self.signature(timestamp, self.key if key is None else key, sha)

    def signature(self, timestamp: str, key: bytes, sha: str = "sha1") -> str:
        parsed = etree.fromstring(f'<x xmlns:u="{WSU}">{timestamp}</x>')[0]
        digest = base64.b64encode(hashlib.new(sha, canonical(parsed)).digest()).decode()
        kinds = {
            "sha1": (DS + "hmac-sha1", DS + "sha1"),
            "sha256": (
                "http://www.w3.org/2001/04/xmldsig-more#hmac-sha256",
                "http://www.w3.org/2001/04/xmlenc#sha256",
            ),
        }
        method, digest_method = kinds[sha]
        info = (
            f'<SignedInfo xmlns="{DS}"><CanonicalizationMethod Algorithm="{EXCLUSIVE_C14N}"></CanonicalizationMethod>'
            f'<SignatureMethod Algorithm="{method}"></SignatureMethod><Reference URI="#_0"><Transforms>'
            f'<Transform Algorithm="{EXCLUSIVE_C14N}"></Transform></Transforms>'
            f'<DigestMethod Algorithm="{digest_method}"></DigestMethod><DigestValue>{digest}</DigestValue></Reference>'
            "</SignedInfo>"
        )
        value = base64.b64encode(hmac.digest(key, info.encode(), sha)).decode()
        return (
            f'<Signature xmlns="{DS}">{info.replace(f" xmlns={chr(34)}{DS}{chr(34)}", "")}'
            f"<SignatureValue>{value}</SignatureValue><KeyInfo><o:SecurityTokenReference>"
            '<o:Reference URI="#t"/></o:SecurityTokenReference></KeyInfo></Signature>'
        )

    # --- exchanges

    def request(self, kind: str = "Issue", **parts: str) -> str:
        """The body of a request for a token."""
        asked = {
            "TokenType": self.form.token_type,
            "RequestType": f"{self.form.trust}/{kind}",
            "Entropy": f"<t:BinarySecret>{base64.b64encode(b'e' * 32).decode()}</t:BinarySecret>",
            "KeySize": "256",
        } | parts
        if kind != "Issue":
            asked[f"{kind}Target"] = self.reference
        content = "".join(f"<t:{name}>{value}</t:{name}>" for name, value in asked.items() if value)
        return f'<t:RequestSecurityToken xmlns:t="{self.form.trust}">{content}</t:RequestSecurityToken>'

    @property
    def reference(self) -> str:
        return f'<o:SecurityTokenReference><o:Reference URI="{self.identifier}"/></o:SecurityTokenReference>'

    async def ask(self, kind: Any = "Issue", security: str = "", **parts: str) -> httpx.Response:
        security = security or self.timestamp + self.password
        answer = await self.served.post(
            self.envelope(self.form.action("RST", kind), self.request(kind, **parts), security)
        )
        if answer.status_code == 200 and kind != "Cancel":
            token = found(answer.content, "SecurityContextToken")
            self.identifier = token.findtext("{*}Identifier") or ""
            self.instance = token.findtext("{*}Instance") or ""
            self.key = p_sha1(b"e" * 32, secret_in(answer.content), 32)
        return answer

    async def create(self, security: str = "", binds: str | None = None, headers: str = "") -> httpx.Response:
        binds = self.reference if binds is None else binds
        body = (
            f"<r:CreateSequence><r:AcksTo><a:Address>{WSA}/anonymous</a:Address></r:AcksTo>{binds}</r:CreateSequence>"
        )
        headers = headers or '<r:UsesSequenceSTR s:mustUnderstand="1"/>'
        answer = await self.served.post(self.envelope(f"{RM}/CreateSequence", body, security or self.signed(), headers))
        if answer.status_code == 200:
            self.sequence = found(answer.content, "Identifier", f"{{{RM}}}").text or ""
        return answer

    async def send(self, number: int = 1, security: str = "") -> httpx.Response:
        sequence = (
            f"<r:Sequence><r:Identifier>{self.sequence}</r:Identifier>"
            f"<r:MessageNumber>{number}</r:MessageNumber></r:Sequence>"
        )
        return await self.served.post(
            self.envelope("urn:note", f"<n xmlns='urn:n'>{number}</n>", security or self.signed(), sequence)
        )


def fault_of(answer: httpx.Response) -> str:
    assert answer.status_code in (400, 500), answer.text
    return " ".join(found(answer.content, "Fault").itertext())


every_form = pytest.mark.parametrize("form", FORMS, ids=["2005", "1.3"])


@every_form
@pytest.mark.parametrize("sha", ["sha1", "sha256"])
async def test_a_client_gets_a_token_and_sends_under_it(tmp_path: Path, form: Form, sha: str) -> None:
    async with Served(tmp_path / "in") as served:
        client = Client(served, form)
        answer = await client.ask()
        assert answer.status_code == 200, answer.text
        assert found(answer.content, "Action").text == form.action("RSTR", "Issue")
        body = found(answer.content, "Body")[0]
        assert (etree.QName(body).localname.endswith("Collection")) == form.collects
        assert (await client.create(client.signed(sha=sha))).status_code == 200
        assert (await client.send(1, client.signed(sha=sha))).status_code == 200
        await served.app.handled()
        (message,) = served.got
        assert message.user == "alice"
        assert not message.header_bytes, "neither the token nor the signature is stored"


async def test_a_token_survives_a_restart(tmp_path: Path) -> None:
    async with Served(tmp_path / "in", nonces=tmp_path / "nonces") as served:
        client = Client(served)
        await client.ask()
        await client.create()
        assert (await client.send(1)).status_code == 200
    async with Served(tmp_path / "in", nonces=tmp_path / "nonces") as served:
        client.served = served
        assert (await client.send(2)).status_code == 200
    assert oct((tmp_path / "nonces").stat().st_mode & 0o777) == "0o600", "it holds keys"


async def test_without_a_file_a_token_ends_with_the_process(tmp_path: Path) -> None:
    async with Served(tmp_path / "in") as served:
        client = Client(served)
        await client.ask()
        await client.create()
    async with Served(tmp_path / "in") as served:
        client.served = served
        assert "could not be authenticated" in fault_of(await client.send(1))


@every_form
async def test_a_renewed_token_has_a_new_key_and_its_sequences(tmp_path: Path, form: Form) -> None:
    async with Served(tmp_path / "in", session=1_000) as served:
        client = Client(served, form)
        await client.ask()
        await client.create()
        old = client.signed()
        served.now += 900
        identifier = client.identifier
        assert (await client.ask("Renew", client.signed() + client.password)).status_code == 200
        assert client.identifier == identifier and client.instance
        assert (await client.send(1)).status_code == 200
        client.instance, instance = "", client.instance
        assert "could not be authenticated" in fault_of(await client.send(2)), "the new key, and the old name"
        client.instance = instance
        served.now += 900
        assert (await client.send(2)).status_code == 200
        assert "Security header" in fault_of(await client.send(2, old)), "an old Timestamp"


async def test_a_token_expires(tmp_path: Path) -> None:
    async with Served(tmp_path / "in", session=1_000) as served:
        client = Client(served)
        await client.ask()
        await client.create()
        served.now += 1_059
        other = Client(served)
        await other.ask()
        assert (await client.send(1)).status_code == 200, "clocks may differ, also after another token was issued"
        served.now += 2
        assert "could not be authenticated" in fault_of(await client.send(2))
        assert "could not be authenticated" in fault_of(await client.ask("Renew", client.signed() + client.password))


async def test_a_cancelled_token_counts_no_more(tmp_path: Path) -> None:
    async with Served(tmp_path / "in") as served:
        client = Client(served)
        await client.ask()
        await client.create()
        answer = await client.ask("Cancel", client.signed(), TokenType="", Entropy="", KeySize="")
        assert b"RequestedTokenCancelled" in answer.content
        assert "could not be authenticated" in fault_of(await client.send(1))


async def test_a_changed_password_ends_the_tokens_of_its_user(tmp_path: Path) -> None:
    async with Served(tmp_path / "in") as served:
        alice, bob = Client(served), Client(served, user="bob", password="hunter2")
        for client in (alice, bob):
            await client.ask()
            await client.create()
        served.passwords["alice"] = "another"
        del served.passwords["bob"]
        for client in (alice, bob):
            assert "could not be authenticated" in fault_of(await client.send(1))


async def test_tokens_are_bounded_for_each_user_and_in_all() -> None:
    contexts = SecurityContexts(most=3, most_of_user=2)

    def add(user: str) -> bool:
        has_room = contexts.has_room(user, NOW)
        if has_room:
            contexts.add(SecurityContext(uuid.uuid4().urn, "", user, b"k", NOW + 10))
        return has_room

    assert [add(user) for user in ("alice", "alice", "alice", "bob", "carol")] == [True, True, False, True, False]
    assert contexts.has_room("alice", NOW + 11), "the old ones have expired"


async def test_a_renewed_token_keeps_two_keys_at_most() -> None:
    contexts = SecurityContexts()
    for number in range(5):
        contexts.add(SecurityContext("urn:t", str(number), "alice", b"k", NOW + number))
    assert [contexts.find("urn:t", str(number)) is not None for number in range(5)] == [False] * 3 + [True] * 2


# --- Sequences -------------------------------------------------------------------------------------------------------


async def test_a_sequence_belongs_to_the_token_that_made_it(tmp_path: Path) -> None:
    """Neither another user, nor the same user under another token or with the password alone."""
    async with Served(tmp_path / "in") as served:
        owner, second, bob = Client(served), Client(served), Client(served, user="bob", password="hunter2")
        for client in (owner, second, bob):
            await client.ask()
        await owner.create()
        for security in (second.signed(), bob.signed(), owner.timestamp + owner.password):
            answer = await owner.send(1, security)
            assert b"UnknownSequence" in answer.content, answer.text
        assert (await owner.send(1)).status_code == 200


async def test_a_sequence_is_bound_only_to_the_token_that_signs(tmp_path: Path) -> None:
    async with Served(tmp_path / "in") as served:
        alice, bob = Client(served), Client(served, user="bob", password="hunter2")
        await alice.ask()
        await bob.ask()
        refused = [
            await alice.create(binds=bob.reference),
            await alice.create(binds=alice.reference + alice.reference),
            await alice.create(binds=""),
            await alice.create(security=alice.timestamp + alice.password),
        ]
        assert {fault_of(answer) for answer in refused} == {fault_of(refused[0])}
        assert not served.app.running.engine.protocol.inbound.destinations


# --- attacks ---------------------------------------------------------------------------------------------------------

SHA_1 = f'Algorithm="{DS}sha1"'
OTHER_TIME = '<u:Timestamp u:Id="_0"><u:Created>2027-01-15T08:00:01.000Z</u:Created></u:Timestamp>'


def forgeries(client: Client) -> dict[str, str]:
    """Security headers that prove nothing. The numbers are those of the families of attacks on XML signatures."""
    good, stamp = client.signed(), client.timestamp
    signature = client.signature(stamp, client.key)
    wrapped = f"<o:Wrapped>{stamp}</o:Wrapped>"
    transform = f'<Transform Algorithm="{EXCLUSIVE_C14N}"></Transform>'
    value = re.findall("<SignatureValue>([^<]+)<", good)[0]
    return {
        "3 the signed Timestamp moved below another element": wrapped + OTHER_TIME + client.token + signature,
        "3 the signed Timestamp moved into the signature": OTHER_TIME
        + client.token
        + signature.replace("</Signature>", f"<Object>{stamp}</Object></Signature>"),
        "3 two Timestamps": stamp + good,
        "3 another Timestamp": OTHER_TIME + client.token + signature,
        "4 two Security headers": good + f"</o:Security><o:Security>{good}",
        "5 the Id of the Timestamp twice": good + '<u:Other u:Id="_0"/>',
        "5 the Id of the Timestamp twice, as a plain Id": good + '<u:Other Id="_0"/>',
        "5 a reference to the whole message": good.replace('URI="#_0"', 'URI=""'),
        "5 a reference elsewhere": good.replace('URI="#_0"', 'URI="http://127.0.0.1:9/"'),
        "5 an XPointer": good.replace('URI="#_0"', "URI=\"#xpointer(id('_0'))\""),
        "6 no signature": stamp + client.token,
        "6 no Timestamp": client.token + signature,
        "6 no Id": good.replace(' u:Id="_0"', ""),
        "6 a signature of nothing": re.sub("<Reference URI.*?</Reference>", "", good),
        "6 no token": stamp + signature,
        "9 an unknown signature algorithm": good.replace("hmac-sha1", "hmac-md5"),
        "9 an unknown digest": good.replace(SHA_1, 'Algorithm="http://www.w3.org/2001/04/xmldsig-more#md5"'),
        "9 another canonical form": good.replace(EXCLUSIVE_C14N, "http://www.w3.org/TR/2001/REC-xml-c14n-20010315"),
        "10 a shortened proof": good.replace(
            'hmac-sha1">', 'hmac-sha1"><HMACOutputLength>8</HMACOutputLength>'
        ).replace(value, base64.b64encode(base64.b64decode(value)[:1]).decode()),
        "10 an empty proof": good.replace(value, ""),
        "10 a public key algorithm": good.replace("hmac-sha1", "rsa-sha1"),
        "10 a key of its own": re.sub(
            "<KeyInfo>.*</KeyInfo>", "<KeyInfo><KeyName>k</KeyName></KeyInfo>", client.signed(key=b"k")
        ),
        "11 XSLT": good.replace(transform, '<Transform Algorithm="http://www.w3.org/TR/1999/REC-xslt-19991116"/>'),
        "11 two transforms": good.replace(transform, transform * 2),
        "11 two references": re.sub("(<Reference URI.*?</Reference>)", r"\1\1", good),
        "11 prefixes": good.replace(
            transform,
            transform.replace("></T", f'><p:InclusiveNamespaces xmlns:p="{EXCLUSIVE_C14N}" PrefixList="s"/></T'),
        ),
        "15 a token that the signature does not name": good.replace('u:Id="t"', 'u:Id="x"'),
        "15 two tokens": client.token + good,
        "another key": client.signed(key=b"k" * 32),
        "no base64": good.replace(value, "!!!!"),
        "an unknown token": good.replace(client.identifier, "urn:uuid:00000000-0000-4000-8000-000000000000"),
        "the zero key with an unknown token": client.signed(key=bytes(32)).replace(client.identifier, "urn:other"),
        "a token without a name": good.replace(client.identifier, ""),
        "a token with a very long name": good.replace(client.identifier, "urn:" + "x" * 2_000),
        "another instance": good.replace("</c:Identifier>", "</c:Identifier><c:Instance>urn:i</c:Instance>"),
        "a Timestamp for ever": client.signed('<u:Timestamp u:Id="_0"></u:Timestamp>'),
    }


async def test_a_forged_proof_is_refused_with_one_of_two_texts(tmp_path: Path) -> None:
    texts: dict[str, str] = {}
    async with Served(tmp_path / "in") as served:
        client = Client(served)
        await client.ask()
        await client.create()
        for what, security in forgeries(client).items():
            texts[what] = fault_of(await client.send(1, security))
        destination = served.app.running.engine.protocol.inbound.destinations[client.sequence]
        assert destination.accepted.count == 0
        assert (await client.send(1)).status_code == 200, "and the owner goes on"
    assert len(set(texts.values())) == 2, set(texts.values())


@pytest.mark.parametrize(
    "parts",
    [
        {"TokenType": "urn:saml"},
        {"RequestType": "urn:other"},
        {"KeySize": "8"},
        {"KeySize": "1000000000"},
        {"Entropy": ""},
        {"Entropy": "<t:BinarySecret>!!!!</t:BinarySecret>"},
        {"Entropy": "<t:BinarySecret>c2hvcnQ=</t:BinarySecret>"},
        {"Entropy": f"<t:BinarySecret>{'AAAA' * 1_000}</t:BinarySecret>"},
        {"Entropy": "<t:BinarySecret>AAAA</t:BinarySecret>" * 2},
    ],
    ids=str,
)
async def test_a_request_for_what_is_not_offered_gets_the_same_fault(tmp_path: Path, parts: dict[str, str]) -> None:
    async with Served(tmp_path / "in") as served:
        assert "processing the Security header" in fault_of(await Client(served).ask(**parts))


async def test_a_token_is_given_only_for_a_password(tmp_path: Path) -> None:
    async with Served(tmp_path / "in") as served:
        client, bob = Client(served), Client(served, user="bob", password="hunter2")
        wrong = Client(served, password="wrong")
        texts = [fault_of(await wrong.ask())]
        await client.ask()
        await bob.ask()
        texts.append(fault_of(await client.ask(security=client.signed())))
        texts.append(fault_of(await client.ask("Renew", client.signed())))
        texts.append(fault_of(await client.ask("Renew", client.timestamp + client.password)))
        texts.append(fault_of(await client.ask("Renew", client.signed() + bob.password)))
        texts.append(fault_of(await client.ask("Cancel", client.timestamp + client.password)))
        texts.append(fault_of(await client.ask("Cancel", bob.signed())))
        assert set(texts) == {texts[0]}
        assert (await client.create()).status_code == 200, "the token still counts"


def test_a_directory_for_the_file_is_an_error_of_the_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        UsernameTokenValidator({"alice": "secret"}, nonces=tmp_path)
