"""A broker between a CXF client and a slow service, killed with requests on their way: assertions, symmetric keys.

If a reply of CXF's is lost in an HTTP response, CXF does not repeat it, and with a symmetric key it replies in no other
way. So such a broker is killed between two calls, and nothing that CXF answers is lost. A service of Holdfast takes
CXF's place where a broker is killed within calls.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import processes
import pytest
from interop_cells import cell
from java_contract import CLEAN, LIVE, LOSS, PATIENCE, Caller, Shop, connected, forwarder_words, served
from java_peer import JavaPeer
from java_signers import CXF, OURS, obedient
from saml import AUDIENCE, ISSUER
from signers import Issued
from test_cxf_saml import assertion, both_kinds, saml_words
from test_cxf_symmetric_binding import Proof, demanding, every_proof, validator
from waiting import until
from wcf.destination import running_destination

import holdfast
from holdfast.testing.proxy import Faults, LossyProxy

pytestmark = [*LIVE, pytest.mark.nightly, pytest.mark.crash]

NOWHERE = "http://127.0.0.1:9/"
SLOW, MANY = 1500, 7
"""Milliseconds that a slow service takes, which is longer than the forwarder waits before it repeats a request; and the
number of requests."""
UNHURRIED = 8000
"""Milliseconds after which the client repeats a request: with WSS4J, CXF fails if its first exchange is still open."""
two_versions = pytest.mark.parametrize(
    "versions",
    [holdfast.Versions("1.0", "2004/08", "1.1"), holdfast.Versions("1.1", "2005/08", "1.2")],
    ids=["rm10-soap11", "rm11-soap12"],
)
KILLED = cell(peer="CXF", broker="broker", pattern="request/reply", service="slow", fault="Holdfast killed")


async def broker_process(context: AsyncExitStack, directory: Path, url: str, lines: str, tables: str) -> Any:
    """A broker in another process, with these settings of its forwarder, and these tables.

    It offers a Sequence for replies, and does not find out whether to: CXF sends a CreateSequence for its replies once.
    """
    broker = processes.broker(directory, url, timeout="60s", more=f"offer = true\n{lines}\n{tables}")
    config = directory / "broker.toml"
    config.write_text(f'allow_addresses = ["http://127.0.0.1"]\n{config.read_text()}')
    context.push_async_callback(broker.kill)
    await broker.start()
    return broker


def lines_of(said: dict[str, Any]) -> str:
    return "\n".join(f'{name} = "{value}"' for name, value in said.items())


async def call_while_killed(caller: Caller, broker: Any, delivered: Any) -> None:
    """Make the calls, and kill the broker while the service works at a request."""
    calling = asyncio.ensure_future(caller.call_on(delivered, 2, MANY))
    for due in (3, 5):
        await until(lambda due=due: calling.done() or len(delivered()) >= due, PATIENCE)  # type: ignore[misc]
        await broker.kill()
        await broker.start()
    await calling
    await caller.settle()


@two_versions
@both_kinds
@KILLED
@cell(role="both", setup="listener", network=LOSS)
async def test_a_killed_broker_with_assertions_answers_every_request_to_a_slow_cxf(
    cxf_with_saml: JavaPeer, tmp_path: Path, versions: holdfast.Versions, saml: str
) -> None:
    """The service posts its replies to the broker, each with an assertion."""
    theirs = saml_words(tmp_path, versions, saml, interval=3000)
    told = {**theirs, "sleep": SLOW, "ordered": False, "proves": True, "user": "shop"}
    service = await served(cxf_with_saml, tmp_path / "log", **told)
    assertion(tmp_path, saml)
    tables = (
        f'[security.assertions]\nissuers = {{ "{ISSUER}" = "{CXF.files(tmp_path).certificate}" }}\n'
        f'audience = "{AUDIENCE}"\n'
    )
    async with AsyncExitStack() as context:
        behind = await context.enter_async_context(LossyProxy(service.url, LOSS, seed=5))
        back = await context.enter_async_context(LossyProxy(NOWHERE, LOSS, seed=8))
        said = lines_of({**forwarder_words(versions), "address": back.url})
        said += f'\nsecurity = {{ assertion = "{tmp_path / "alice.xml"}" }}'
        broker = await broker_process(context, tmp_path, behind.url, said, tables)
        back.target = broker.url
        before = await context.enter_async_context(LossyProxy(broker.url, LOSS, seed=3))
        caller = await connected(cxf_with_saml, before.url, "echo", decoupled=True, **theirs)
        await caller.call(1, 1)
        await call_while_killed(caller, broker, lambda: service.delivered("echo"))
        assert before.counts.lost > 0 and behind.counts.lost > 0 and back.counts.lost > 0
    assert sorted(service.delivered("echo")) == list(range(1, MANY + 1))


def symmetric_tables(directory: Path, proof: Proof) -> str:
    """What the broker demands of its senders: one key for each message, or a token."""
    own, theirs = OURS.files(directory), CXF.files(directory).certificate
    has_token = str(proof == "conversation").lower()
    keys = f'certificate = "{own.certificate}"\nkey = "{own.key}"\nconversation = {has_token}\nconfirm = false\n'
    (directory / "users").write_text("alice:secret\n")
    users = "" if "certificate" in proof else '[security]\nusers = "users"\n'
    return f"{users}[security.symmetric]\n{keys}" + (f'trusted = "{theirs}"\n' if "certificate" in proof else "")


def symmetric_forwarder(directory: Path, proof: Proof, own: Issued, peer: Issued) -> str:
    """How its forwarder protects messages to the owner of a certificate, and with which one it endorses them."""
    key = f'certificate = "{peer.files(directory).certificate}"'
    if "certificate" in proof:
        certificate, private = own.files(directory)
        return f'security = {{ symmetric = {{ {key}, own_certificate = "{certificate}", own_key = "{private}" }} }}'
    (directory / "password").write_text("secret")
    (directory / "password").chmod(0o600)
    has_token = str(proof == "conversation").lower()
    user = f'username = "alice", password_file = "password", conversation = {has_token}'
    return f"security = {{ {user}, symmetric = {{ {key} }} }}"


async def symmetric_caller(
    cxf: JavaPeer, directory: Path, versions: holdfast.Versions, proof: Proof, url: str
) -> Caller:
    """A client that obeys the policy of the broker. It has a WSDL with operations, which the broker has not."""
    shop = Shop(directory / "described", processors=[validator(directory, proof, confirm=False)])
    async with running_destination(shop.app) as described:
        setup = await obedient(directory, described, versions, at=url, interval=UNHURRIED)
    caller = await connected(cxf, url, "echo", decoupled=False, **setup)
    await caller.call(1, 1)  # CXF does not repeat a request for a token
    return caller


@two_versions
@every_proof
@KILLED
@cell(role="both", network="20 % of requests and answers lost; behind the broker, 20 % of requests lost")
async def test_a_broker_with_symmetric_keys_is_killed_between_calls_to_a_slow_cxf(
    cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions, proof: Proof
) -> None:
    theirs = {**demanding(tmp_path, versions, proof), "sleep": SLOW, "ordered": False}
    service = await served(cxf, tmp_path / "log", **theirs)
    async with AsyncExitStack() as context:
        behind = await context.enter_async_context(LossyProxy(service.url, Faults(lose_request=0.2), seed=5))
        said = f"{lines_of(forwarder_words(versions))}\n{symmetric_forwarder(tmp_path, proof, OURS, CXF)}"
        broker = await broker_process(context, tmp_path, behind.url, said, symmetric_tables(tmp_path, proof))
        before = await context.enter_async_context(LossyProxy(broker.url, CLEAN, seed=8))
        caller = await symmetric_caller(cxf, tmp_path, versions, proof, before.url)
        before.faults = LOSS
        for number in range(2, MANY):
            await caller.call(number, number)
            if number % 3 == 0:
                await broker.kill()
                await broker.start()
        await caller.settle()
        before.faults = CLEAN
        await caller.call(MANY, MANY, is_the_end=True)
        assert before.counts.lost > 0 and behind.counts.lost > 0
    assert sorted(service.delivered("echo")) == list(range(1, MANY + 1))


@two_versions
@every_proof
@KILLED
@cell(role="destination", network=LOSS)
async def test_a_broker_with_symmetric_keys_is_killed_before_a_slow_service_and_goes_on(
    cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions, proof: Proof
) -> None:
    shop = Shop(tmp_path / "inbox", SLOW / 1000, processors=[validator(tmp_path, proof)])
    async with AsyncExitStack() as context:
        url = await context.enter_async_context(running_destination(shop.app))
        behind = await context.enter_async_context(LossyProxy(url, LOSS, seed=5))
        said = symmetric_forwarder(tmp_path, proof, CXF, OURS)
        broker = await broker_process(context, tmp_path, behind.url, said, symmetric_tables(tmp_path, proof))
        before = await context.enter_async_context(LossyProxy(broker.url, CLEAN, seed=8))
        caller = await symmetric_caller(cxf, tmp_path, versions, proof, before.url)
        before.faults = LOSS
        await call_while_killed(caller, broker, shop.numbers.copy)
        assert before.counts.lost > 0 and behind.counts.lost > 0
    assert shop.numbers == list(range(1, MANY + 1))
