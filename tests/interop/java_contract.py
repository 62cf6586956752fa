"""What tests with Java stacks share: the contract's messages, a peer's client and service, a destination of ours."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from java_peer import NAMESPACE, JavaPeer

import holdfast
from holdfast.endpoint.inspection import describe_protocol
from holdfast.testing.proxy import Faults

Operation = Literal["notify", "echo"]
COUNT = 10
CLEAN = Faults()
BAD = Faults(lose_request=0.15, lose_response=0.15, double=0.1)
PATIENCE = 120
"""Seconds for what takes one on a machine at rest."""
HURRIED = holdfast.SourcePolicy(retransmission=holdfast.RetransmissionPolicy(initial=0.3, floor=0.1, cap=0.5))


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

    async def settle(self) -> None:
        """Wait until everything is acknowledged, as it sees it."""
        await self._peer.ask("settle", caller=self._ticket, seconds=PATIENCE)


async def connected(peer: JavaPeer, url: str, operation: Operation, **setup: Any) -> Caller:
    """A client that lives as long as the peer."""
    return Caller(peer, await peer.ask("connect", url=url, key="k", **setup), operation)


class Shop:
    """A destination that takes down what it is told.

    Args:
        store: directory of its store.
        sleep: seconds that Echo takes to answer.
    """

    def __init__(self, store: Path, sleep: float = 0.0) -> None:
        self._sleep = sleep
        self.numbers: list[int] = []
        self.app = holdfast.Destination(store, assurance="exactly-once in-order", allow_addresses=["http://127.0.0.1"])
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
        shown = describe_protocol(self.app.engine.protocol, self.app.engine.clock())
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
