"""User names on both legs of a broker: who may send to it, and as which user it forwards. Over real sockets."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import secured_broker
from lxml import etree
from secured_broker import BASE, ECHO, HASTY, Start
from waiting import until

import holdfast
from holdfast import Destination, MessageContext, Processor, Timestamp, UsernameToken, UsernameTokenValidator
from holdfast.broker.broker import Broker
from holdfast.endpoint.envelopes.chain import REFUSED
from holdfast.security.header import Token, write_token
from holdfast.security.names import CONVERSATION_1_3, CONVERSATION_2005, SECURITY, WSSE, WSU
from holdfast.security.times import read_time, write_time
from holdfast.security.username_token import digest_of
from holdfast.testing.proxy import Faults, LossyProxy

USERS = '[security]\nusers = "users"\n'
CREATE = (
    '<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope" xmlns:a="http://www.w3.org/2005/08/addressing" '
    'xmlns:r="http://docs.oasis-open.org/ws-rx/wsrm/200702"><s:Header>'
    "<a:Action>http://docs.oasis-open.org/ws-rx/wsrm/200702/CreateSequence</a:Action>"
    "<a:To>http://any/</a:To><a:MessageID>urn:uuid:1</a:MessageID>"
    "<a:ReplyTo><a:Address>http://www.w3.org/2005/08/addressing/anonymous</a:Address></a:ReplyTo>{}</s:Header>"
    "<s:Body><r:CreateSequence><r:AcksTo><a:Address>http://www.w3.org/2005/08/addressing/anonymous</a:Address>"
    "</r:AcksTo></r:CreateSequence></s:Body></s:Envelope>"
)


class Looking(Processor):
    """Notes the UsernameTokens that arrive, before they are checked."""

    def __init__(self) -> None:
        self.nonces: list[str] = []
        self.names: set[str] = set()
        self.conversations: set[str] = set()
        self.lives: set[float] = set()

    def inbound(self, context: MessageContext) -> None:
        found = [one for one in context.headers if one.tag == SECURITY]
        assert len(found) <= 1, "one for each hop"
        for token in found:
            self.nonces += [one.text or "" for one in token.iter(f"{{{WSSE}}}Nonce")]
            self.names |= {one.text or "" for one in token.iter(f"{{{WSSE}}}Username")}
            times = [read_time(token.findtext(f".//{{{WSU}}}{name}") or "") for name in ("Created", "Expires")]
            self.lives |= {round(ends - begins, 3) for begins, ends in pairwise(times) if begins and ends}
            contexts = token.iter("{*}SecurityContextToken")
            self.conversations |= {etree.QName(one).namespace or "" for one in contexts}


class Backward(Processor):
    """Adds a Timestamp of yesterday to each answer."""

    def outbound(self, context: MessageContext) -> None:
        stamp = f"<wsu:Timestamp><wsu:Created>{write_time(time.time() - 86_400)}</wsu:Created></wsu:Timestamp>"
        context.add_header(f'<wsse:Security xmlns:wsse="{WSSE}" xmlns:wsu="{WSU}">{stamp}</wsse:Security>')


class Shop(secured_broker.Shop):
    """A service that knows one user."""

    def __init__(self, *, digest: bool = True) -> None:
        self.seen = Looking()
        checks = UsernameTokenValidator({"broker": "inner"}, require_digest=digest, require_timestamp=True)
        super().__init__(self.seen, checks)

    @property
    def sequences(self) -> set[str]:
        return {message.sequence for message in self.got}


@pytest.fixture(autouse=True)
def _passwords(tmp_path: Path) -> None:
    """The files of the users alice and bob, and of the forwarders' password."""
    (tmp_path / "users").write_text("alice:secret\nbob:hunter2\n")
    (tmp_path / "inner").write_text("inner\n")
    for name in ("users", "inner"):
        (tmp_path / name).chmod(0o600)


def forwarder(url: str, more: str = "", password: str = "inner", digest: str = "true") -> str:
    security = f'{{ username = "broker", password_file = "{password}", digest = {digest} }}'
    return f'[forwarders.shop]\nqueue = "orders"\nto = "{url}"\nsecurity = {security}\n{more}'


def as_user(name: str, password: str) -> list[Processor]:
    return [UsernameToken(name, password, digest=True)]


def source(broker: Broker | str, user: list[Processor]) -> holdfast.Source:
    url = broker if isinstance(broker, str) else broker.service.url
    return holdfast.Source(url, ":memory:", processors=user, policy=HASTY)


def create(content: str, must: str = ' s:mustUnderstand="true"') -> str:
    names = f'xmlns:wsse="{WSSE}" xmlns:wsu="{WSU}"{must}'
    return CREATE.format(f"<wsse:Security {names}>{content}</wsse:Security>")


async def post(url: str, content: str) -> httpx.Response:
    async with httpx.AsyncClient(timeout=240) as client:
        return await client.post(url, content=content, headers={"Content-Type": "application/soap+xml"})


async def test_each_leg_has_its_own_user_and_every_attempt_a_new_nonce(start: Start, run_service: Any) -> None:
    shop = Shop()
    service = await run_service(shop.app)
    bad = Faults(lose_request=0.15, lose_response=0.15, double=0.1)
    async with LossyProxy(service.url, bad, seed=1) as behind:
        broker = await start(BASE + forwarder(behind.url) + USERS)
        async with (
            LossyProxy(broker.service.url, bad, seed=2) as before,
            source(before.url, as_user("alice", "secret")) as alice,
        ):
            for number in range(10):
                await alice.send(f"<n>{number}</n>", action="urn:note")
            reply = await alice.request("<n>10</n>", action=ECHO, timeout=240)
            assert reply.body.text == "10"
            await alice.flush(60)
        await until(lambda: len(shop.got) == 11)
        assert sorted(shop.texts, key=lambda text: int(text or "")) == [str(number) for number in range(11)]
        assert behind.counts.lost > 0
    assert {message.user for message in shop.got} == {"broker"}
    assert shop.seen.names == {"broker"}, "the sender's token ends at the broker"
    assert len(shop.seen.nonces) - len(set(shop.seen.nonces)) <= behind.counts.doubled


@pytest.mark.parametrize(("name", "password"), [("alice", "wrong"), ("eve", "secret"), ("", "")])
async def test_nothing_of_a_stranger_is_stored(start: Start, name: str, password: str) -> None:
    broker = await start(BASE + USERS)
    async with source(broker, as_user(name, password) if name else []) as stranger:
        sent = await stranger.send("<n/>", action="urn:note")
        with pytest.raises(holdfast.PeerFault) as refused:
            await sent.acknowledged(60)
    assert refused.value.code in ("FailedAuthentication", "InvalidSecurity")
    assert broker.destination.incidents[REFUSED] == 1
    assert broker.destination.running.accepted == 0


async def test_a_route_may_depend_on_the_user_and_no_password_is_stored(start: Start) -> None:
    routes = '[[routes]]\nuser = ["b*", "carol"]\nqueues = "other"\n'
    broker = await start(BASE + routes + USERS)
    for name, password in (("alice", "secret"), ("bob", "hunter2")):
        async with holdfast.Source(
            broker.service.url, ":memory:", processors=[UsernameToken(name, password)], policy=HASTY
        ) as sender:
            await sender.send(f"<n>{name}</n>", action="urn:note")
            await sender.flush(60)
    store = broker.destination.running.store
    for queue, name in (("orders", b"alice"), ("other", b"bob")):
        parts = range(len(broker.destination.running.queues[queue].partitions))
        (record,) = [data for part in parts for _, data in store.read_encoded(queue, part, 0, 9)]
        assert b"<n>" + name in record
        assert b"Security" not in record
        assert b"secret" not in record
        assert b"hunter2" not in record


async def test_a_digest_counts_once_also_after_a_restart(start: Start) -> None:
    broker = await start(BASE + USERS)
    created = write_time(time.time())
    request = create(write_token(Token("alice", digest_of(b"n" * 16, created, "secret"), True, b"n" * 16, created)))
    assert (await post(broker.service.url, request)).status_code == 200
    assert (await post(broker.service.url, request)).status_code == 503
    broker.reload()
    assert (await post(broker.service.url, request)).status_code == 503
    await broker.service.close(0.5)
    broker = await start(BASE + USERS)
    assert (await post(broker.service.url, request)).status_code == 503


async def test_users_come_and_go_with_a_reload(start: Start, tmp_path: Path) -> None:
    broker = await start(BASE + USERS)
    async with source(broker, as_user("alice", "secret")) as alice:
        await (await alice.send("<n/>", action="urn:note")).acknowledged(60)
        (tmp_path / "users").write_text("bob:changed\n")
        assert broker.reload() == ["security.users"]
        sent = await alice.send("<n/>", action="urn:note")
        with pytest.raises(holdfast.PeerFault):
            await sent.acknowledged(60)
    async with source(broker, as_user("bob", "changed")) as bob:
        await (await bob.send("<n/>", action="urn:note")).acknowledged(60)
    (tmp_path / "broker.toml").write_text(BASE)
    assert broker.reload() == ["security.users"]
    async with source(broker, []) as anybody:
        await (await anybody.send("<n/>", action="urn:note")).acknowledged(60)


async def test_a_forwarder_that_a_reload_adds_sends_as_its_user_from_the_first_message(
    start: Start, run_service: Any, tmp_path: Path
) -> None:
    shop = Shop()
    service = await run_service(shop.app)
    broker = await start(BASE)
    async with source(broker, []) as anybody:
        await (await anybody.send("<n>1</n>", action="urn:note")).acknowledged(60)
    (tmp_path / "broker.toml").write_text(BASE + forwarder(service.url))
    assert broker.reload() == ["forwarders.shop"]
    await until(lambda: shop.texts == ["1"])
    assert shop.app.incidents[REFUSED] == 0


async def test_a_wrong_password_stops_a_forwarder_until_it_is_corrected(
    start: Start, run_service: Any, tmp_path: Path
) -> None:
    shop = Shop()
    service = await run_service(shop.app)
    (tmp_path / "wrong").write_text("wrong\n")
    (tmp_path / "wrong").chmod(0o600)
    broker = await start(BASE + forwarder(service.url, password="wrong"))
    async with source(broker, []) as anybody:
        await anybody.send("<n>1</n>", action="urn:note")
        await anybody.flush(60)
    await until(lambda: shop.app.incidents[REFUSED] > 0)
    outboxes = broker.destination.running.engine.protocol.outbound.outboxes.values()
    await until(lambda: any(one.lifecycle.stopped for one in outboxes))
    (tmp_path / "wrong").write_text("inner\n")
    assert broker.reload() == ["forwarders.shop.security.password_file"]
    async with httpx.AsyncClient(timeout=240) as client:
        answer = await client.post(f"{broker.service.admin_url}/outbox/retry")
        assert answer.status_code == 200, answer.text
    await until(lambda: shop.texts == ["1"])


async def test_the_users_of_a_broker_do_not_change_what_it_takes_from_destinations(
    start: Start, run_service: Any
) -> None:
    """The clock of a destination without a user is nobody's concern, and its header does not return to the sender."""
    app = Destination(":memory:", processors=[Backward()])
    app.on(ECHO)(lambda message: f"<echoed>{message.body.text}</echoed>")
    service = await run_service(app)
    broker = await start(BASE + f'[forwarders.shop]\nqueue = "orders"\nto = "{service.url}"\n' + USERS)
    seen = Looking()
    async with source(broker, [seen, *as_user("alice", "secret")]) as alice:
        reply = await alice.request("<n>1</n>", action=ECHO, timeout=240)
        assert reply.body.text == "1"


async def test_the_security_header_of_each_hop_ends_there(start: Start, run_service: Any) -> None:
    """Without [security], the broker checks none, but replaces the sender's by the forwarder's."""

    class Optional(Processor):
        def outbound(self, context: MessageContext) -> None:
            token = write_token(Token("alice", "secret", False))
            context.add_header(f'<wsse:Security xmlns:wsse="{WSSE}" xmlns:wsu="{WSU}">{token}</wsse:Security>')

    shop = Shop(digest=False)
    service = await run_service(shop.app)
    broker = await start(BASE + forwarder(service.url, digest="false"))
    async with source(broker, [Optional()]) as alice:
        reply = await alice.request("<n>1</n>", action=ECHO, timeout=240)
        assert reply.body.text == "1"
        assert b"Security" not in reply.header_bytes
    assert shop.seen.names == {"broker"}
    next_hop = ' s:role="http://www.w3.org/2003/05/soap-envelope/role/next" s:mustUnderstand="true"'
    answer = await post(broker.service.url, create("", next_hop))
    assert "MustUnderstand" in answer.text, "what nobody checks is not understood"


@pytest.mark.parametrize(("rm", "version"), [("1.0", ""), ("1.0", "1.3"), ("1.1", ""), ("1.1", "2005/02")])
async def test_a_forwarder_sends_under_tokens_that_survive_a_reload_and_a_restart(
    start: Start, run_service: Any, rm: str, version: str
) -> None:
    shop = Shop(digest=False)
    service = await run_service(shop.app)
    said = f'conversation = true, conversation_version = "{version}"' if version else "conversation = true"
    security = f'security = {{ username = "broker", password_file = "inner", {said} }}'
    versions = f'rm = "{rm}"\naddressing = "2005/08"\nsoap = "1.2"'
    text = BASE + f'[forwarders.shop]\nqueue = "orders"\nto = "{service.url}"\n{security}\n{versions}\n'
    broker = await start(text)
    async with source(broker, []) as anybody:
        await anybody.send("<n>1</n>", action="urn:note")
        assert (await anybody.request("<n>2</n>", action=ECHO, timeout=240)).body.text == "2"
    broker.reload()
    async with source(broker, []) as anybody:
        await anybody.send("<n>3</n>", action="urn:note")
        await anybody.flush(60)
    await until(lambda: shop.texts == ["1", "2", "3"])
    await broker.service.close(0.5)
    broker = await start(text)
    async with source(broker, []) as anybody:
        await anybody.send("<n>4</n>", action="urn:note")
        await anybody.flush(60)
    await until(lambda: shop.texts == ["1", "2", "3", "4"])
    assert {message.user for message in shop.got} == {"broker"}
    assert shop.app.incidents[REFUSED] == 0
    assert len(shop.sequences) == 1
    conversation = CONVERSATION_2005 if (version or rm) in ("2005/02", "1.0") else CONVERSATION_1_3
    assert shop.seen.conversations == {conversation}


@pytest.mark.parametrize("hop", ["both", "senders", "destination"])
async def test_a_timestamp_alone_is_demanded_and_sent_on_the_hop_that_has_it(
    start: Start, run_service: Any, hop: str
) -> None:
    seen = Looking()
    checks = [Timestamp()] if hop != "senders" else []
    shop = secured_broker.Shop(seen, *checks)
    url = (await run_service(shop.app)).url
    table = f'[forwarders.shop]\nqueue = "orders"\nto = "{url}"\n'
    table += "security.timestamp_alone = true\n" if hop != "senders" else ""
    broker = await start(BASE + table + ("[security]\ntimestamp_alone = true\n" if hop != "destination" else ""))
    processors = [Timestamp()] if hop != "destination" else []
    async with source(broker, processors) as sender:
        await sender.send("<n>1</n>", action="urn:note")
        reply = await sender.request("<n>2</n>", action=ECHO, timeout=240)
        assert reply.body.text == "2"
        await until(lambda: len(shop.got) == 2)
    refused = await post(broker.service.url, CREATE.format(""))
    assert refused.status_code == (200 if hop == "destination" else 500), refused.text
    assert all(b"Security" not in message.header_bytes for message in shop.got)


async def test_an_old_timestamp_alone_is_refused(start: Start) -> None:
    broker = await start(BASE + "[security]\ntimestamp_alone = true\nlife = 60\nskew = 5\n")
    url = broker.service.url
    for age, status in ((0, 200), (30, 200), (90, 500)):
        stamp = f"<wsu:Timestamp><wsu:Created>{write_time(time.time() - age)}</wsu:Created></wsu:Timestamp>"
        answer = await post(url, create(stamp))
        assert answer.status_code == status, (age, answer.text)


@pytest.mark.parametrize("more", ["", ", conversation = true", None], ids=["password", "token", "timestamp"])
async def test_a_forwarded_message_is_valid_for_as_long_as_the_file_says(
    start: Start, run_service: Any, more: str | None
) -> None:
    seen = Looking()
    check = UsernameTokenValidator({"broker": "inner"}) if more is not None else Timestamp()
    shop = secured_broker.Shop(seen, check)
    url = (await run_service(shop.app)).url
    credentials = (
        f'username = "broker", password_file = "inner"{more}' if more is not None else "timestamp_alone = true"
    )
    table = f'[forwarders.shop]\nqueue = "orders"\nto = "{url}"\nsecurity = {{ {credentials} }}\n'
    broker = await start(BASE + table + USERS + 'life = "90s"\n')
    async with source(broker, as_user("alice", "secret")) as sender:
        await sender.send("<n>1</n>", action="urn:note")
        await until(lambda: len(shop.got) == 1)
    assert seen.lives == {90.0}
