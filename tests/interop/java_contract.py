"""What tests with Java stacks share: the contract's messages, a peer's client and service, a destination of ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import maven_build
import pytest
from java_peer import NAMESPACE, JavaPeer, folders

import holdfast
from holdfast.broker.broker import Broker
from holdfast.broker.config import (
    AdminConfig,
    BrokerConfig,
    ForwarderConfig,
    ListenConfig,
    RouteConfig,
    SecurityConfig,
)
from holdfast.broker.signature_config import AssertionsConfig, SignatureConfig, SymmetricConfig
from holdfast.core.messages import Expects
from holdfast.core.policy import ForwardingPolicy
from holdfast.endpoint.inspection import describe_protocol
from holdfast.security.users import Users
from holdfast.testing.proxy import Faults, LossyProxy

_MISSING = maven_build.available()
LIVE = [
    pytest.mark.interop,
    pytest.mark.cxf,  # one worker starts the JVMs of all stacks
    pytest.mark.timeout(1200),  # the first test builds the peer
    pytest.mark.skipif(_MISSING is not None, reason=_MISSING or ""),
]
"""The marks of a file whose tests need a live Java peer."""


def class_path(config: pytest.Config, stack: str) -> str:
    """Build the peer of a stack, or skip the test; return its class path."""
    assert config.cache is not None
    try:
        return maven_build.build(config.cache.mkdir(stack), *folders(stack))
    except maven_build.Unavailable as error:
        pytest.skip(str(error))


Operation = Literal["notify", "echo"]
COUNT = 10
CLEAN = Faults()
BAD = Faults(lose_request=0.15, lose_response=0.15, double=0.1)
LOSS = Faults(lose_request=0.2, lose_response=0.2)
HARD = Faults(lose_request=0.2, lose_response=0.2, double=0.1)
PATIENCE = 300
"""Seconds for what takes one on a machine at rest."""
HURRIED = holdfast.SourcePolicy(retransmission=holdfast.RetransmissionPolicy(initial=0.3, floor=0.1, cap=0.5))


@dataclass(frozen=True)
class Work:
    """What is exchanged, and what makes it hard."""

    operation: Operation
    faults: Faults
    milliseconds: int = 0
    """That the service takes: if any, longer than the retransmission timeout of both sides."""

    @property
    def count(self) -> int:
        return 5 if self.milliseconds else COUNT


WORK = {
    "notify-clean": Work("notify", CLEAN),
    "notify-loss": Work("notify", LOSS),
    "echo-clean": Work("echo", CLEAN),
    "echo-loss": Work("echo", LOSS),
    "echo-slow": Work("echo", CLEAN, 1500),
    "echo-slow-loss": Work("echo", LOSS, 1500),
}


_OF_CXF = ("Failed to send RM protocol message", "Could not send Message", '"writer" is null')
"""What CXF raises in a call if it could not send an acknowledgement, or if its timer sends the message meanwhile."""


class Caller:
    """A client of the peer's."""

    def __init__(self, peer: JavaPeer, ticket: str, operation: Operation) -> None:
        self._peer = peer
        self._ticket = ticket
        self._operation = operation
        self.overtaken = 0

    async def call(self, first: int, last: int, *, is_the_end: bool = False) -> None:
        """Make the calls with these numbers. Replies are checked there."""
        told = await self._peer.ask(
            *("call",), caller=self._ticket, operation=self._operation, from_=first, to=last, last=is_the_end
        )
        self.overtaken += int(told)

    async def call_on(
        self, delivered: Callable[[], list[int]], first: int, last: int, *, is_the_end: bool = True
    ) -> None:
        """Make the calls, and continue after a call that failed for a reason of CXF's.

        CXF does not send an acknowledgement again that it could not send, and raises it in the call that is under way.
        If a call takes longer than the retransmission interval, CXF's timer sends the same message meanwhile, with
        the same writer and connection, and the call may fail. Its message is sent again either way.

        Args:
            delivered: Returns the numbers that arrived.
            first: Number of the first call.
            last: Number of the last call.
            is_the_end: Whether the Sequence ends after it.
        """
        while first <= last:
            try:
                await self.call(first, last, is_the_end=is_the_end)
                return
            except RuntimeError as error:
                if not any(one in str(error) for one in _OF_CXF):
                    raise
                await self.settle()
                first = max(delivered()) + 1

    async def call_through(self, proxy: LossyProxy) -> None:
        """Make ``COUNT`` calls, the last through a repaired network: what ends a Sequence, CXF says once."""
        await self.call(1, COUNT - 1)
        await self.settle()
        proxy.faults = CLEAN
        await self.call(COUNT, COUNT, is_the_end=True)

    async def settle(self) -> None:
        """Wait until everything is acknowledged, as it sees it."""
        await self._peer.ask("settle", caller=self._ticket, seconds=PATIENCE)

    async def close(self) -> None:
        """End its Sequence, whatever is acknowledged."""
        await self._peer.ask("close", caller=self._ticket)


async def connected(peer: JavaPeer, url: str, operation: Operation, **setup: Any) -> Caller:
    """A client that lives as long as the peer."""
    return Caller(peer, await peer.ask("connect", url=url, key="k", **setup), operation)


class Shop:
    """A destination that takes down what it is told.

    Args:
        store: directory of its store.
        sleep: seconds that Echo takes to answer.
        options: Of the destination.
    """

    def __init__(self, store: Path, sleep: float = 0.0, **options: Any) -> None:
        self._sleep = sleep
        self.numbers: list[int] = []
        http = holdfast.DestinationHTTP(allow_addresses=["http://127.0.0.1"])
        options = {"assurance": "exactly-once in-order", "http": http, **options}
        self.app = holdfast.Destination(store, **options)
        self.app.on(f"{NAMESPACE}/notify")(self._take)
        self.app.on(f"{NAMESPACE}/echo")(self._echo)

    def _take(self, message: holdfast.Message) -> None:
        assert message.body.findtext(f"{{{NAMESPACE}}}key") == "k"
        number = int(message.body.findtext(f"{{{NAMESPACE}}}number", ""))
        assert message.body.findtext(f"{{{NAMESPACE}}}body") == f'<{number}> & "quoted"'
        self.numbers.append(number)

    async def _echo(self, message: holdfast.Message) -> bytes:
        self._take(message)
        await asyncio.sleep(self._sleep)
        return message.body_bytes.replace(b"echo", b"echoResponse")

    def sequences(self, role: str) -> list[dict[str, Any]]:
        shown = describe_protocol(self.app.running.engine.protocol, self.app.running.engine.clock())
        return [one for one in shown if one["role"] == role]

    def ends(self) -> list[str]:
        """The states of the Sequences that brought every message."""
        return [one["state"] for one in self.sequences("destination") if one["ranges"] == f"1-{COUNT}"]


def body(operation: Operation, number: int) -> str:
    return (
        f"<t:{operation} xmlns:t='{NAMESPACE}'><t:key>k</t:key><t:number>{number}</t:number>"
        f'<t:body>&lt;{number}&gt; &amp; "quoted"</t:body></t:{operation}>'
    )


def correct_reply(number: int) -> tuple[str | None, ...]:
    return "k", str(number), f'<{number}> & "quoted"'


def values(reply: holdfast.Message) -> tuple[str | None, ...]:
    return tuple(reply.body.findtext(f"{{{NAMESPACE}}}{name}") for name in ("key", "number", "body"))


@dataclass(frozen=True)
class PeerService:
    """A service of the peer's, and the file where it writes what it is told."""

    url: str
    log: Path

    def delivered(self, operation: Operation) -> list[int]:
        """The numbers of what was delivered whole, in that order."""
        lines = [line.split() for line in self.log.read_text().splitlines()]
        assert all((line[0], line[1], line[3]) == (operation, "k", "whole") for line in lines), lines
        return [int(line[2]) for line in lines]


async def served(peer: JavaPeer, log: Path, **setup: Any) -> PeerService:
    """A service that lives as long as the peer."""
    return PeerService(await peer.ask("serve", log=log, **{"port": 0, "sleep": 0, **setup}), log)


@asynccontextmanager
async def source_to(
    url: str, store: Path, versions: holdfast.Versions, back: LossyProxy | None = None, **options: Any
) -> AsyncIterator[holdfast.Source]:
    """A source without an inbound port; or with a listener, which the peer reaches through ``back``."""
    if back is not None:
        options["http"] = holdfast.SourceHTTP(listen=("127.0.0.1", 0), address=back.url)
    async with holdfast.Source(url, store=store, versions=versions, policy=HURRIED, **options) as source:
        if back is not None:
            assert source._running.server is not None
            back.target = f"http://127.0.0.1:{source._running.server.port}/"
        yield source


async def poll_replies(url: str, store: Path, versions: holdfast.Versions, count: int) -> None:
    """Make calls whose replies the source fetches by MakeConnection."""
    async with source_to(url, store, versions, http=holdfast.SourceHTTP(poll=True)) as source:
        for number in range(1, count + 1):
            reply = await source.request(body("echo", number), action=f"{NAMESPACE}/echo", timeout=PATIENCE)
            assert values(reply) == correct_reply(number)
            reply.done()


@asynccontextmanager
async def broker_before(
    url: str,
    store: Path,
    back: LossyProxy | None = None,
    *,
    expects: Expects | None = None,
    users: Users | None = None,
    signature: SignatureConfig | None = None,
    symmetric: SymmetricConfig | None = None,
    assertions: AssertionsConfig | None = None,
    require_timestamp: bool = True,
    **told: Any,
) -> AsyncIterator[Broker]:
    """A broker that forwards to a service; with an address, at which the service reaches it through ``back``.

    Args:
        url: Address of the service.
        store: Directory of its store.
        back: Proxy before the broker, for the replies of the service.
        expects: What the senders of Echo expect, where their messages do not say it.
        users: Who may send; None: everybody.
        signature: How messages of senders must be signed; None: they need not be.
        symmetric: How they must be signed and encrypted with a symmetric key; None: they need not be.
        assertions: Which assertions they must have; None: none.
        require_timestamp: Of the users.
        told: Settings of the forwarder.
    """
    address = back.url if back is not None else None
    forwarder = ForwarderConfig("next", "inbox", url, policy=ForwardingPolicy(sending=HURRIED), address=address, **told)
    echo = RouteConfig(("inbox",), action=(f"{NAMESPACE}/echo",), expects=expects)
    require_timestamp = users is not None and require_timestamp
    security = SecurityConfig(users, signature, symmetric, assertions, require_timestamp=require_timestamp)
    config = BrokerConfig(
        str(store),
        listen=ListenConfig(port=0),
        admin=AdminConfig(port=0),
        forwarders=(forwarder,),
        routes=(echo, RouteConfig(("inbox",))),
        allow_addresses=("http://127.0.0.1",),
        security=security,
    )
    broker = Broker(config)
    await broker.service.start()
    if back is not None:
        back.target = broker.service.url
    try:
        yield broker
    finally:
        await broker.service.close(0.5)


def forwarder_words(versions: holdfast.Versions) -> dict[str, str]:
    """The versions in the words of a forwarder's settings."""
    return {"rm": versions.rm.value, "addressing": versions.addressing.value, "soap": versions.soap.value}


async def exchange(source: holdfast.Source, operation: Operation, numbers: range, *, at_once: bool = False) -> None:
    """Send or ask these; replies are checked."""

    async def ask(number: int) -> None:
        reply = await source.request(body("echo", number), action=f"{NAMESPACE}/echo", timeout=PATIENCE)
        assert values(reply) == correct_reply(number)

    if operation == "notify":
        for number in numbers:
            await source.send(body("notify", number), action=f"{NAMESPACE}/notify")
    elif at_once:
        await asyncio.gather(*(ask(number) for number in numbers))
    else:
        for number in numbers:
            await ask(number)
    await source.flush(PATIENCE)


def refusing(store: Path) -> holdfast.Destination:
    """Return a destination with a WSDL that declares a fault without an action, and a handler that raises it."""
    wsdl = (Path(__file__).parent / "metro" / "contract.wsdl").read_text()
    for before, after in (
        ('<x:element name="notify"', '<x:element name="refused" type="t:Item"/><x:element name="notify"'),
        ("<w:portType ", '<w:message name="no"><w:part name="p" element="t:refused"/></w:message><w:portType '),
        ('message="t:echoResponse"/>', 'message="t:echoResponse"/><w:fault name="Refused" message="t:no"/>'),
    ):
        wsdl = wsdl.replace(before, after, 1)
    app = holdfast.Destination(store, wsdl=wsdl.encode())

    @app.operation("echo")
    async def echo(key: str, number: int, body: str, data: bytes | None) -> None:
        raise app.fault("Refused", "It is sold out.", key=key, number=number, body="")

    return app
