"""UsernameToken and Timestamp: captures of CXF, both ends live, and what must be refused.

Covers security/database.py and security/times.py.
"""

from __future__ import annotations

import asyncio
import base64
import re
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import served_destination
from click.testing import CliRunner
from lxml import etree

from holdfast import (
    ConfigurationError,
    Destination,
    HoldfastError,
    Message,
    MessageContext,
    MessageFlowError,
    PeerFault,
    ProcessingError,
    SecureConversation,
    Source,
    UsernameToken,
    UsernameTokenValidator,
)
from holdfast.cli.running.send import send
from holdfast.core.policy import SourcePolicy
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.core.versions import ALL_VERSIONS, Versions
from holdfast.endpoint.envelopes.chain import REFUSED
from holdfast.http.exchange import Request
from holdfast.security.database import open_database
from holdfast.security.header import Token, write_token
from holdfast.security.names import WSSE, WSU
from holdfast.security.times import read_time, write_time
from holdfast.security.username_token import digest_of
from holdfast.testing import lossy, pair
from holdfast.wire import decode

CAPTURES = Path(__file__).parents[1] / "data" / "vectors" / "cxf-secured"
HASTY = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.05, floor=0.05, cap=0.2))
SECRETS = {"alice": "secret", "bob": "hunter2"}
NOW = 1_800_000_000.0
IDENTIFIER = re.compile(rb"Identifier>([^<]+)<")


def requests_of(case: str) -> list[tuple[dict[str, str], bytes]]:
    found = []
    for path in sorted((CAPTURES / case).glob("*-req.http")):
        head, _, body = path.read_bytes().partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().splitlines()[1:])
        wanted = {name: headers[name] for name in ("Content-Type", "SOAPAction") if name in headers}
        found.append((wanted, body))
    return found


def recorded_at(body: bytes) -> float:
    found = re.search(rb"Created>([^<]+)<", body)
    return NOW if found is None else read_time(found[1].decode()) or NOW


class Served(served_destination.Served):
    """A destination at a socket. The test sets its clock."""

    def __init__(self, store: Path, **options: Any) -> None:
        self.now = NOW
        options.setdefault("passwords", SECRETS)
        self.validator = UsernameTokenValidator(clock=lambda: self.now, **options)
        super().__init__(Destination(store, processors=[self.validator]), "text/xml")


def create(security: str, soap: str = "http://schemas.xmlsoap.org/soap/envelope/") -> bytes:
    """A CreateSequence with this content of its header."""
    _, body = requests_of("username-text")[0]
    without = re.sub(rb"<wsse:Security.*</wsse:Security>", security.encode(), body)
    return without.replace(b"http://schemas.xmlsoap.org/soap/envelope/", soap.encode())


def header(content: str, extra: str = "") -> str:
    return f'<wsse:Security xmlns:wsse="{WSSE}" xmlns:wsu="{WSU}"{extra}>{content}</wsse:Security>'


def digest_token(nonce: bytes = b"n" * 16, at: float = NOW, password: str = "secret", name: str = "alice") -> str:
    created = write_time(at)
    return write_token(Token(name, digest_of(nonce, created, password), True, nonce, created))


TEXT = write_token(Token("alice", "secret", False))


# --- captures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["username-text", "username-digest", "username-digest-timestamp"])
async def test_the_recorded_requests_of_cxf_are_accepted(tmp_path: Path, case: str) -> None:
    async with Served(tmp_path / "in") as served:
        recorded = (CAPTURES / case / "001-res.http").read_bytes()
        theirs, ours = IDENTIFIER.findall(recorded)[0], b""
        for headers, body in requests_of(case):
            served.now = recorded_at(body)
            answer = await served.post(body.replace(theirs, ours) if ours else body, headers)
            assert answer.status_code in (200, 202), answer.text
            ours = ours or IDENTIFIER.findall(answer.content)[0]
        await served.app.handled()
        assert served.got
        assert {message.user for message in served.got} == {"alice"}
        assert all(b"Security" not in message.header_bytes for message in served.got), "no password is stored"


async def test_a_recorded_request_without_security_gets_the_fault_of_the_profile(tmp_path: Path) -> None:
    headers, body = requests_of("username-interceptor-on-client-only")[0]
    assert b"Security" not in body
    async with Served(tmp_path / "in") as served:
        answer = await served.post(body, headers)
    assert answer.status_code == 500
    fault = etree.fromstring(answer.content).find(".//{*}Fault")
    assert fault is not None
    code = fault.find("faultcode")
    prefix, _, local = code.text.partition(":")
    assert (code.nsmap[prefix], local) == (WSSE, "InvalidSecurity")


# --- both ends -------------------------------------------------------------------------------------------------------


@pytest.mark.every(5)
@pytest.mark.parametrize("versions", ALL_VERSIONS, ids=str)
@pytest.mark.parametrize("digest", [False, True])
async def test_both_ends_agree_over_a_network_that_loses_a_fifth(versions: Versions, digest: bool) -> None:
    got: list[tuple[str, str]] = []
    app = Destination(":memory:", processors=[UsernameTokenValidator(SECRETS, require_timestamp=True)])

    @app.on()
    def take(message: Message) -> str:
        got.append((message.user, message.body.text or ""))
        return "<ok/>"

    token = UsernameToken("alice", "secret", digest=digest)
    async with pair(app, network=lossy(0.2, seed=5), processors=[token], versions=versions, policy=HASTY) as source:
        for number in range(20):
            assert (await source.request(f"<n>{number}</n>", action="urn:ask")).body.tag == "ok"
    assert got == [("alice", str(number)) for number in range(20)]


@pytest.mark.parametrize("password", ["wrong", "", "secret "])
async def test_a_wrong_password_stops_the_source_with_the_reason(tmp_path: Path, password: str) -> None:
    async with Served(tmp_path / "in") as served:
        token = UsernameToken("alice", password, clock=lambda: NOW)
        async with Source(served.service.url, ":memory:", processors=[token], policy=HASTY) as source:
            sent = await source.send("<n/>", action="urn:note")
            with pytest.raises(PeerFault, match="could not be authenticated") as raised:
                await sent.acknowledged(timeout=240)
        assert raised.value.code == "FailedAuthentication"
        assert "requires other credentials" in raised.value.remedy
        assert served.app.incidents[REFUSED] == 1, "a few wrong passwords may lock an account"
        assert not served.got


async def test_messages_stay_stored_and_leave_with_the_right_password(tmp_path: Path) -> None:
    async with Served(tmp_path / "in") as served:
        url, store = served.service.url, tmp_path / "out"
        async with Source(url, store, processors=[UsernameToken("alice", "old", clock=lambda: NOW)]) as source:
            sent = await source.send("<n>1</n>", action="urn:note")
            with pytest.raises(HoldfastError, match="could not be authenticated"):
                await sent.acknowledged(timeout=240)
        async with Source(url, store, processors=[UsernameToken("alice", "secret", clock=lambda: NOW)]) as source:
            source.resume()
            await source.flush(timeout=240)
        await served.app.handled()
        assert [message.body.text for message in served.got] == ["1"]


async def test_a_sequence_belongs_to_the_user_that_created_it(tmp_path: Path) -> None:
    async with Served(tmp_path / "in") as served:
        answer = await served.post(create(header(TEXT)))
        identifier = IDENTIFIER.findall(answer.content)[0]
        _, message = requests_of("username-text")[1]
        theirs = re.search(rb"<wsrm:Sequence[^A][^>]*>\s*<wsrm:Identifier>([^<]+)", message)
        assert theirs is not None
        message = message.replace(theirs[1], identifier)
        other = message.replace(b">alice<", b">bob<").replace(b">secret<", b">hunter2<")
        refused = await served.post(other)
        assert b"UnknownSequence" in refused.content
        assert (await served.post(message)).status_code in (200, 202)
        await served.app.handled()
        assert [one.user for one in served.got] == ["alice"]


async def test_the_answer_to_a_timestamp_has_one_and_others_have_none(tmp_path: Path) -> None:
    stamp = f"<wsu:Timestamp><wsu:Created>{write_time(NOW)}</wsu:Created></wsu:Timestamp>"
    async with Served(tmp_path / "in") as served:
        assert b"Timestamp" in (await served.post(create(header(stamp + TEXT)))).content
        assert b"Security" not in (await served.post(create(header(TEXT)))).content


async def test_the_fault_of_a_cxf_service_says_what_to_check() -> None:
    answer = (CAPTURES / "username-interceptor-on-client-only" / "001-res.http").read_bytes().partition(b"\r\n\r\n")[2]

    async def service(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 500 Server Error\r\nContent-Type: text/xml;charset=utf-8\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % len(answer) + answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(service, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with server, Source(url, ":memory:", profile="cxf", policy=HASTY) as source:
        sent = await source.send("<n/>", action="urn:note")
        with pytest.raises(PeerFault, match="SecurityError") as raised:
            await sent.acknowledged(timeout=240)
    assert "requires other credentials" in raised.value.remedy


# --- refusals --------------------------------------------------------------------------------------------------------

NO_PROOF = {
    "unknown user": header(write_token(Token("eve", "secret", False))),
    "wrong digest": header(digest_token(password="wrong")),
    "no header": "",
    "no token": header(""),
    "two headers": header(TEXT) + header(TEXT),
    "two tokens": header(TEXT + TEXT),
    "two passwords": header(TEXT.replace("</wsse:Password>", "</wsse:Password><wsse:Password>secret</wsse:Password>")),
    "no name": header(TEXT.replace("alice", "")),
    "a name of 2,000 letters": header(TEXT.replace("alice", "a" * 2_000)),
    "elements within the name": header(TEXT.replace("alice", "<a/>alice")),
    "no password": header(re.sub("<wsse:Password.*</wsse:Password>", "", TEXT)),
    "another type": header(TEXT.replace("#PasswordText", "#PasswordRot13")),
    "a digest without a nonce": header(re.sub("<wsse:Nonce.*</wsse:Nonce>", "", digest_token())),
    "a digest without a time": header(re.sub("<wsu:Created.*</wsu:Created>", "", digest_token())),
    "a digest from the future": header(digest_token(at=NOW + 61)),
    "a digest of yesterday": header(digest_token(at=NOW - 86_400)),
    "a nonce that is not base64": header(re.sub("(<wsse:Nonce[^>]*>)[^<]*", r"\1!!!!", digest_token())),
    "a nonce that is not ASCII": header(re.sub("(<wsse:Nonce[^>]*>)[^<]*", r"\1äöüß", digest_token())),
    "a nonce with padding inside": header(re.sub("(<wsse:Nonce[^>]*>)[^<]*", r"\1AA==AAAA", digest_token())),
    "a nonce of 1,000 bytes": header(digest_token(nonce=b"n" * 1_000)),
    "a time that is none": header(re.sub("(<wsu:Created>)[^<]*", r"\g<1>yesterday", digest_token())),
    "an old Timestamp": header(
        f"<wsu:Timestamp><wsu:Created>{write_time(NOW - 400)}</wsu:Created></wsu:Timestamp>{TEXT}"
    ),
    "an expired Timestamp": header(
        f"<wsu:Timestamp><wsu:Expires>{write_time(NOW - 61)}</wsu:Expires></wsu:Timestamp>{TEXT}"
    ),
    "two Timestamps": header(f"<wsu:Timestamp/><wsu:Timestamp/>{TEXT}"),
    "a token for somebody else": header(
        TEXT, ' xmlns:s="http://schemas.xmlsoap.org/soap/envelope/" s:actor="urn:b" s:role="urn:b"'
    ),
    "a token below another element": header(f"<wsse:SecurityTokenReference>{TEXT}</wsse:SecurityTokenReference>"),
}


@pytest.mark.parametrize(
    "soap", ["http://schemas.xmlsoap.org/soap/envelope/", "http://www.w3.org/2003/05/soap-envelope"]
)
async def test_what_proves_nothing_is_refused_with_one_of_two_texts(tmp_path: Path, soap: str) -> None:
    texts = {}
    async with Served(tmp_path / "in") as served:
        kind = {"Content-Type": "text/xml" if "xmlsoap" in soap else "application/soap+xml"}
        for what, content in NO_PROOF.items():
            answer = await served.post(
                create(content.replace("http://schemas.xmlsoap.org/soap/envelope/", soap), soap), kind
            )
            assert answer.status_code in (400, 500), (what, answer.text)
            fault = etree.fromstring(answer.content).find(".//{*}Fault")
            assert fault is not None, what
            texts[what] = " ".join(fault.itertext())
        assert not served.app.running.engine.protocol.inbound.destinations, "no Sequence was created"
        assert (await served.post(create(header(TEXT), soap), kind)).status_code == 200, "and others go on"
    assert len(set(texts.values())) == 2, set(texts.values())
    assert not any("alice" in text or "eve" in text or "secret" in text for text in texts.values())


@pytest.mark.parametrize(
    "trust", ["http://schemas.xmlsoap.org/ws/2005/02/trust", "http://docs.oasis-open.org/ws-sx/ws-trust/200512"]
)
async def test_the_log_names_the_mode_message_of_wcf(
    tmp_path: Path, trust: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Such a client begins with a request for a token, which has no Security header."""
    async with Served(tmp_path / "in") as served:
        request = re.sub(rb"(<(?:\w+:)?Action[^>]*>)[^<]*", rb"\g<1>" + f"{trust}/RST/Issue".encode(), create(""))
        assert (await served.post(request)).status_code == 500
        assert "security mode Message, which is not supported: set TransportWithMessageCredential" in caplog.text
        caplog.clear()
        assert (await served.post(create(""))).status_code == 500
    assert "security.refused" in caplog.text and "Message, which" not in caplog.text


async def test_a_token_is_accepted_once_even_after_a_restart(tmp_path: Path) -> None:
    request = create(header(digest_token()))
    async with Served(tmp_path / "in", nonces=tmp_path / "nonces.db") as served:
        assert (await served.post(request)).status_code == 200
        assert (await served.post(request)).status_code == 503
    async with Served(tmp_path / "in", nonces=tmp_path / "nonces.db") as served:
        assert (await served.post(request)).status_code == 503
        again = create(header(digest_token(nonce=b"m" * 16)))
        assert (await served.post(again)).status_code == 200
        other = create(header(digest_token(name="bob", password="hunter2")))
        assert (await served.post(other)).status_code == 200, "another user's nonce"


async def test_a_captured_digest_proves_no_other_user_with_the_same_password(tmp_path: Path) -> None:
    async with Served(tmp_path / "in", passwords={"alice": "secret", "carol": "secret"}) as served:
        assert (await served.post(create(header(digest_token())))).status_code == 200
        assert (await served.post(create(header(digest_token(name="carol"))))).status_code == 503


def test_a_file_of_nonces_that_cannot_be_opened_is_an_error_of_the_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        UsernameTokenValidator(SECRETS, nonces=tmp_path / "absent" / "nonces.db")


def test_workers_that_open_the_file_of_tokens_at_once_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = sqlite3.connect(tmp_path / "nonces.db", isolation_level=None)
    other.execute("CREATE TABLE others (one)")
    other.execute("BEGIN IMMEDIATE")
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if other.in_transaction:
            other.execute("COMMIT")

    monkeypatch.setattr("holdfast.security.database.time.sleep", wait)
    assert open_database(tmp_path / "nonces.db").run("", "SELECT 1") == [(1,)]
    assert len(waits) == 1
    other.close()


def test_a_file_that_others_lock_for_long_puts_a_message_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("holdfast.security.database._PATIENCE", 0.0)
    ours = open_database(tmp_path / "nonces.db", away="Later.")
    ours.run("CREATE TABLE one (two)", "SELECT 1")
    other = sqlite3.connect(tmp_path / "nonces.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for statements in (["INSERT INTO one VALUES (1)"], ["INSERT INTO one VALUES (1)", "SELECT * FROM one"]):
        with pytest.raises(MessageFlowError, match="Later"):
            ours.run("CREATE TABLE one (two)", *statements)
    assert "database is locked" in caplog.text
    other.execute("COMMIT")
    other.close()
    assert ours.run("CREATE TABLE one (two)", "INSERT INTO one VALUES (1)", "SELECT * FROM one") == [(1,)]


async def test_wrong_tokens_fill_no_memory_of_nonces(tmp_path: Path) -> None:
    async with Served(tmp_path / "in") as served:
        for number in range(5):
            await served.post(create(header(digest_token(nonce=bytes([number]) * 16, password="wrong"))))
        assert served.validator.nonces._count == 0


async def test_authenticate_is_asked_once_a_minute_for_a_right_password(tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []

    def check(name: str, password: str) -> bool:
        asked.append((name, password))
        return SECRETS.get(name) == password

    async with Served(tmp_path / "in", passwords=None, authenticate=check) as served:
        for second, password in enumerate(["secret", "secret", "wrong", "wrong", "secret"]):
            served.now = NOW + second
            answer = await served.post(create(header(write_token(Token("alice", password, False)))))
            assert (answer.status_code == 200) == (password == "secret")
        served.now = NOW + 61
        assert (await served.post(create(header(TEXT)))).status_code == 200
        assert (await served.post(create(header(digest_token(at=served.now))))).status_code == 500, "no digest"
    assert asked == [("alice", "secret"), ("alice", "wrong"), ("alice", "wrong"), ("alice", "secret")]


class SlowCheck:
    """Checks passwords in a quarter of a second of a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, str]] = []
        self.time, self.now = 0.0, NOW
        monkeypatch.setattr("holdfast.security.username_token._timer", lambda: self.time)
        self.validator = UsernameTokenValidator(authenticate=self.check, clock=lambda: self.now)

    def check(self, name: str, password: str) -> bool:
        self.asked.append((name, password))
        self.time += 0.25
        return SECRETS.get(name) == password

    def answer(self, peer: str, name: str, password: str) -> str:
        """What a request of a peer is told: "" if it is accepted."""
        data = create(header(write_token(Token(name, password, False))))
        request = Request("POST", "/", {}, data, peer, secure=True)
        envelope = decode(data)
        context = MessageContext(envelope, "inbound", "destination", {}, is_answer=False, data=data, request=request)
        try:
            self.validator.inbound(context)
        except (ProcessingError, MessageFlowError) as error:
            return type(error).__name__
        return ""


def test_wrong_passwords_of_one_address_do_not_keep_a_destination_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowCheck(monkeypatch)
    attacker, same_network, other = "[2001:db8::1]:5", "[2001:db8::2]:6", "192.0.2.7:5"
    assert slow.answer(attacker, "alice", "secret") == ""
    told = [slow.answer(attacker, f"user{number}", "guess") for number in range(100)]
    assert told == ["ProcessingError"] * 4 + ["MessageFlowError"] * 96
    assert len(slow.asked) == 5
    assert slow.answer(same_network, "eve", "guess") == "MessageFlowError", "it can choose among many addresses"
    assert slow.answer(other, "bob", "wrong") == "ProcessingError"
    assert slow.answer(other, "bob", SECRETS["bob"]) == ""
    slow.now += 61
    assert slow.answer(attacker, "alice", "secret") == "", "known to be right a minute ago"
    asked = len(slow.asked)
    for _ in range(3600):
        slow.now += 1
        slow.answer(attacker, "eve", "guess")
    assert (len(slow.asked) - asked) * 0.25 <= 1 + 3661 * 0.05, "a twentieth of the time"
    assert len(slow.asked) > asked, "the address is not refused for ever"


def test_failed_passwords_of_many_addresses_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.security.username_token.REMEMBERED", 3)
    slow = SlowCheck(monkeypatch)
    for number in range(9):
        assert slow.answer(f"192.0.2.{number}:5", "eve", "guess") == "ProcessingError"
    assert len(slow.validator._failed._spent) == 3


async def test_many_spellings_of_one_name_fill_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.security.username_token.REMEMBERED", 3)

    def check(name: str, password: str) -> bool:
        return name.lower() == "alice" and password == "secret"

    async with Served(tmp_path / "in", passwords=None, authenticate=check) as served:
        for name in ("alice", "Alice", "ALICE", "aLice", "alIce", "aliCe"):
            assert (await served.post(create(header(write_token(Token(name, "secret", False)))))).status_code == 200
            assert len(served.validator._accepted) <= 3


async def test_plain_text_is_refused_where_a_digest_is_required(tmp_path: Path) -> None:
    async with Served(tmp_path / "in", require_digest=True) as served:
        assert (await served.post(create(header(TEXT)))).status_code == 500
        assert (await served.post(create(header(digest_token())))).status_code == 200


async def test_an_answer_with_an_old_timestamp_does_not_count(tmp_path: Path) -> None:
    """An attacker who replays yesterday's answer must not acknowledge today's messages."""

    class Suspicious(served_destination.Doubting, UsernameToken):
        pass

    async with Served(tmp_path / "in") as served:
        token = Suspicious("alice", "secret", clock=lambda: NOW)
        async with Source(served.service.url, ":memory:", processors=[token], policy=HASTY) as source:
            await (await source.send("<n/>", action="urn:note")).acknowledged(timeout=240)
        await served.app.handled()
        assert token.left < 0
        assert len(served.got) == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "needs passwords or authenticate"),
        ({"passwords": {}, "authenticate": lambda _name, _password: True}, "and not both"),
        ({"authenticate": lambda _name, _password: True, "require_digest": True}, "cannot be used with authenticate"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        UsernameTokenValidator(**options)


def test_a_token_never_shows_its_password() -> None:
    assert "secret" not in repr(UsernameToken("alice", "secret"))
    with pytest.raises(ConfigurationError, match="user name is empty"):
        UsernameToken("", "secret")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-11-23T04:16:14.891Z", 1795407374.891),
        ("2026-11-23T04:16:14Z", 1795407374.0),
        ("2026-11-23T05:16:14+01:00", 1795407374.0),
        ("2026-11-23T04:16:14", 1795407374.0),
        ("2026-11-23T04:16:14.8912345Z", 1795407374.891234),
        ("2026-13-23T04:16:14Z", None),
        ("2026-11-23", None),
        ("20261123T041614Z", None),
        ("", None),
    ],
)
def test_times_are_read_as_peers_write_them(text: str, seconds: float | None) -> None:
    assert read_time(text) == pytest.approx(seconds) if seconds is not None else read_time(text) is None
    if seconds is not None:
        assert read_time(write_time(seconds)) == pytest.approx(seconds, abs=0.001)


def test_the_digest_is_the_profiles() -> None:
    # as recorded: username-digest-timestamp/001-req.http
    nonce = base64.b64decode("gDrGf3YA+s/WE2BxzlCV7Q==")
    assert digest_of(nonce, "2026-11-23T04:16:14.891Z", "secret") == "wy+C5fZeBG6qSGGxGYfpiA32clE="


# --- the shell -------------------------------------------------------------------------------------------------------


async def test_a_message_is_sent_with_a_user_name_from_the_shell(tmp_path: Path) -> None:
    (tmp_path / "order.xml").write_text("<order/>")
    (tmp_path / "password").write_text("secret\n")
    async with Served(tmp_path / "in") as served:
        served.now = time.time()
        command = ["send", "--to", served.service.url, "--store", str(tmp_path / "out"), "--username", "alice"]
        command += ["--password-file", str(tmp_path / "password"), "--password-digest", str(tmp_path / "order.xml")]
        sent = await asyncio.create_subprocess_exec(sys.executable, "-m", "holdfast", *command)
        assert await sent.wait() == 0
        await served.app.handled()
        assert [message.user for message in served.got] == ["alice"]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["--username", "alice"], "Name both --username and --password-file"),
        (["--password-digest"], "--password-digest needs them too"),
        (["--username", "", "--password-file", "absent"], "cannot be read"),
        (["--username", "alice", "--password-file", "absent"], "cannot be read"),
        (["--username", "alice", "--password-file", "/dev/null"], "no password in its first line"),
    ],
)
def test_half_of_the_credentials_is_an_error_of_usage(given: list[str], why: str) -> None:
    result = CliRunner().invoke(send, ["--to", "http://127.0.0.1:9/", *given, "-"], input="<a/>")
    assert result.exit_code == 2
    assert why in result.output


@pytest.mark.parametrize("place", [None, "postgresql://127.0.0.1:1/nonces"])
def test_only_a_validator_that_asks_a_database_waits(place: str | None) -> None:
    assert UsernameTokenValidator(SECRETS, nonces=place).waits == (place is not None)


@pytest.mark.parametrize("kind", [UsernameToken, SecureConversation])
def test_a_password_of_an_environment_variable_that_is_not_set_is_refused(kind: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"the password of .* is not text but NoneType") as caught:
        kind("alice", None)
    assert "environment variable" in str(caught.value)


@pytest.mark.parametrize("given", ["users.txt", [("alice", "s3cret")]])
def test_passwords_that_are_no_dictionary_and_no_function_are_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="are not a dictionary or a function") as caught:
        UsernameTokenValidator(given)
    assert "Users('users.txt')" in str(caught.value)
    assert "s3cret" not in str(caught.value)
