"""A cluster that checks who sends: what one broker has seen, all know, and a broker that is killed takes nothing along.

Three brokers on a real database or a real Kafka, with sources of each kind of security.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from balancer import Balancer
from broker_cluster import NAMES, PARTITIONS, Brokers, store_on
from signers import authority, issue
from waiting import until

import holdfast
from holdfast import X509, Destination, Encryption, Processor, SecureConversation, UsernameToken
from holdfast.security.header import Token, write_token
from holdfast.security.names import WSSE, WSU
from holdfast.security.times import write_time
from holdfast.security.username_token import digest_of

pytestmark = [
    pytest.mark.crash,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked"),
]

ENGINES = ["postgresql", pytest.param("kafka", marks=pytest.mark.nightly)]
HASTY = holdfast.SourcePolicy(retransmission=holdfast.RetransmissionPolicy(initial=0.3, floor=0.1, cap=0.6))
ALICE, BROKER, SHOP = issue("CN=alice,O=Example", authority()), issue("CN=broker,O=Example"), issue("CN=shop,O=Example")
CREATE = (
    '<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope" xmlns:a="http://www.w3.org/2005/08/addressing" '
    'xmlns:r="http://docs.oasis-open.org/ws-rx/wsrm/200702"><s:Header>'
    "<a:Action>http://docs.oasis-open.org/ws-rx/wsrm/200702/CreateSequence</a:Action>"
    "<a:To>http://any/</a:To><a:MessageID>urn:uuid:1</a:MessageID>"
    "<a:ReplyTo><a:Address>http://www.w3.org/2005/08/addressing/anonymous</a:Address></a:ReplyTo>"
    f'<wsse:Security xmlns:wsse="{WSSE}" xmlns:wsu="{WSU}" s:mustUnderstand="true">{{}}</wsse:Security></s:Header>'
    "<s:Body><r:CreateSequence><r:AcksTo><a:Address>http://www.w3.org/2005/08/addressing/anonymous</a:Address>"
    "</r:AcksTo></r:CreateSequence></s:Body></s:Envelope>"
)

Shop = tuple[str, dict[str, list[int]]]
Start = Callable[..., Any]


async def shop_in(run_service: Any, processors: Sequence[Processor] = ()) -> Shop:
    """A service behind the brokers: its address, and what it got in each Sequence."""
    got: dict[str, list[int]] = {}
    app = Destination(":memory:", processors=processors)

    @app.on("urn:test:ask")
    async def ask(message: holdfast.Message) -> str:
        name, number = str(message.body.text).split("-")
        got.setdefault(name, []).append(int(number))
        return f"<r>{message.body.text}</r>"

    return (await run_service(app)).url, got


@pytest.fixture
async def start(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts three brokers before a service; ``more`` are further tables of their file."""
    started: list[Brokers] = []

    async def run(service: str, more: str, engine: str = "postgresql") -> Brokers:
        (tmp_path / "users").write_text("alice:secret\n")
        (tmp_path / "users").chmod(0o600)
        made = Brokers(tmp_path, store_on(engine, request, kafkas=3), service, more)
        started.append(made)
        await made.start(*NAMES)
        await settled(made, *NAMES)
        return made

    yield run
    for one in started:
        one.clean()


async def settled(brokers: Brokers, *names: str) -> None:
    """Wait until these brokers serve all partitions: before, some requests are answered with 503."""

    def are_served() -> bool:
        owners = brokers.owners()
        return owners.keys() == set(range(PARTITIONS)) and set(owners.values()) == set(names) and serve(owners)

    def serve(owners: dict[int, str]) -> bool:
        return all(partition in brokers.served(name) for partition, name in owners.items())

    await until(are_served, 120)


async def ask(url: str, name: str, processors: list[Processor], messages: int, done: list[str]) -> list[str]:
    """Make calls in one Sequence; the replies."""
    async with holdfast.Source(url, ":memory:", offer=True, processors=processors, policy=HASTY) as source:
        replies = []
        for number in range(messages):
            reply = await source.request(f"<n>{name}-{number}</n>", action="urn:test:ask", timeout=120)
            replies.append(str(reply.body.text))
            done.append(replies[-1])
        return replies


async def call_while_one_is_killed(
    brokers: Brokers, got: dict[str, list[int]], sender: Callable[[], Processor]
) -> None:
    """Let sources call through any broker, kill one, and check that each call was handled once."""
    done: list[str] = []
    async with Balancer(list(brokers.urls.values())) as balancer:
        calls = [asyncio.create_task(ask(balancer.url, f"s{name}", [sender()], 20, done)) for name in range(4)]
        await until(lambda: len(done) >= 20 or any(one.done() for one in calls))
        await asyncio.to_thread(brokers.nodes["a"].kill)
        replies = await asyncio.gather(*calls)
    assert replies == [[f"s{name}-{number}" for number in range(20)] for name in range(4)]
    assert got == {f"s{name}": list(range(20)) for name in range(4)}


def create(nonce: bytes) -> str:
    """CreateSequence with a digest."""
    now = write_time(time.time())
    return CREATE.format(write_token(Token("alice", digest_of(nonce, now, "secret"), True, nonce, now)))


async def post(url: str, content: str) -> tuple[int, str]:
    """The status, and the Identifier in the answer."""
    async with httpx.AsyncClient(timeout=240) as client:
        answer = await client.post(url, content=content, headers={"Content-Type": "application/soap+xml"})
    return answer.status_code, answer.text.partition("Identifier>")[2].partition("<")[0]


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ENGINES)
async def test_a_token_counts_once_at_all_brokers_also_after_one_is_killed(
    run_service: Any, start: Start, engine: str
) -> None:
    url, got = await shop_in(run_service)
    brokers = await start(url, '[security]\nusers = "users"\n', engine)
    content = create(b"n" * 16)
    answers = [await post(url, content) for url in brokers.urls.values()]
    granted = answers[0][1]
    assert granted
    assert answers == [(200, granted), (503, ""), (503, "")], "the same octets"
    again = [await post(url, create(bytes([n]) * 16)) for n, url in enumerate(brokers.urls.values())]
    assert again == [(200, granted)] * 3, "the same CreateSequence with another nonce"
    await call_while_one_is_killed(brokers, got, lambda: UsernameToken("alice", "secret", digest=True))
    del brokers.urls["a"]
    await settled(brokers, "b", "c")
    assert [await post(url, content) for url in brokers.urls.values()] == [(503, "")] * 2
    again = [await post(url, create(bytes([n + 9]) * 16)) for n, url in enumerate(brokers.urls.values())]
    assert again == [(200, granted)] * 2
    wrong = create(b"m" * 16).replace("alice", "bob")
    assert [await post(url, wrong) for url in brokers.urls.values()] == [(500, "")] * 2


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["postgresql", "kafka"])
async def test_sessions_of_tokens_outlive_the_broker_that_granted_them(
    run_service: Any, start: Start, tmp_path: Path, engine: str
) -> None:
    """Between the sources and the brokers, and between the brokers and the service."""
    users = holdfast.UsernameTokenValidator({"broker": "inner"})
    url, got = await shop_in(run_service, [users])
    (tmp_path / "inner").write_text("inner\n")
    (tmp_path / "inner").chmod(0o600)
    security = '[forwarders.next.security]\nusername = "broker"\npassword_file = "inner"\nconversation = true\n'
    brokers = await start(url, f'{security}[security]\nusers = "users"\n', engine)
    await call_while_one_is_killed(brokers, got, lambda: SecureConversation("alice", "secret"))


@pytest.mark.nightly
@pytest.mark.parametrize("is_encrypted", [False, True], ids=["signed", "encrypted"])
async def test_sources_with_certificates_do_not_notice_that_a_broker_is_killed(
    run_service: Any, start: Start, tmp_path: Path, is_encrypted: bool
) -> None:
    url, got = await shop_in(run_service)
    own, alice = BROKER.files(tmp_path / "keys"), ALICE.files(tmp_path / "keys")
    trusted = authority().files(tmp_path / "keys").certificate
    table = f'[security.signature]\ncertificate = "{own.certificate}"\nkey = "{own.key}"\ntrusted = "{trusted}"\n'
    brokers = await start(url, table + "[security.signature.encryption]\n" * is_encrypted)
    encrypt = Encryption() if is_encrypted else None
    await call_while_one_is_killed(brokers, got, lambda: X509(*alice, trusted=own.certificate, encrypt=encrypt))


@pytest.mark.nightly
@pytest.mark.parametrize("has_token", [False, True], ids=["keys", "tokens"])
async def test_sources_with_symmetric_keys_do_not_notice_that_a_broker_is_killed(
    run_service: Any, start: Start, tmp_path: Path, has_token: bool
) -> None:
    """Between the sources and the brokers, and between the brokers and the service."""
    shop, own = SHOP.files(tmp_path / "keys"), BROKER.files(tmp_path / "keys")
    users = holdfast.UsernameTokenValidator({"broker": "inner"})
    url, got = await shop_in(
        run_service, [holdfast.SymmetricBindingValidator(*shop, users=users, conversation=has_token)]
    )
    (tmp_path / "inner").write_text("inner\n")
    (tmp_path / "inner").chmod(0o600)
    said = f"conversation = {str(has_token).lower()}\n"
    tables = (
        f'[forwarders.next.security]\nusername = "broker"\npassword_file = "inner"\n{said}'
        f'symmetric = {{ certificate = "{shop.certificate}" }}\n[security]\nusers = "users"\n'
        f'[security.symmetric]\ncertificate = "{own.certificate}"\nkey = "{own.key}"\n{said}'
    )
    brokers = await start(url, tables)

    def sender() -> Processor:
        if has_token:
            return SecureConversation("alice", "secret", certificate=own.certificate)
        return holdfast.SymmetricBinding("alice", "secret", own.certificate)

    await call_while_one_is_killed(brokers, got, sender)


@pytest.mark.nightly
async def test_sources_with_endorsing_certificates_do_not_notice_that_a_broker_is_killed(
    run_service: Any, start: Start, tmp_path: Path
) -> None:
    """On both legs. The nodes share the signatures that they remember."""
    shop, own, alice = (one.files(tmp_path / "keys") for one in (SHOP, BROKER, ALICE))
    trusted = authority().files(tmp_path / "keys").certificate
    accepts = holdfast.EndorsingCertificates(trusted)
    url, got = await shop_in(run_service, [holdfast.SymmetricBindingValidator(*shop, users=accepts)])
    tables = (
        f'[forwarders.next.security.symmetric]\ncertificate = "{shop.certificate}"\n'
        f'own_certificate = "{alice.certificate}"\nown_key = "{alice.key}"\n'
        f'[security.symmetric]\ncertificate = "{own.certificate}"\nkey = "{own.key}"\ntrusted = "{trusted}"\n'
    )
    brokers = await start(url, tables)
    await call_while_one_is_killed(brokers, got, lambda: holdfast.EndorsedSymmetricBinding(*alice, own.certificate))
