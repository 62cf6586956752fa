"""Requests that another worker answers, while workers fail and move: real sockets, and workers that a test scripts.

Covers endpoint/workers/worker_client.py.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import pytest
from waiting import until

from holdfast.core.messages import Envelope, Sequence
from holdfast.core.versions import SOAP
from holdfast.endpoint.workers import passage
from holdfast.endpoint.workers.frames.streams import MISDIRECTED
from holdfast.endpoint.workers.node_listener import NodeListener
from holdfast.endpoint.workers.node_proof import NodeProof
from holdfast.endpoint.workers.passage import Passage
from holdfast.endpoint.workers.placement import Placement, Placements
from holdfast.endpoint.workers.relays import MOST_KEPT, Relays, RepeatKey, Spooled, _Relay, put_off, repeat_key
from holdfast.endpoint.workers.request_freshness import RequestFreshness
from holdfast.endpoint.workers.sequence_owner import decode_request, encode_request
from holdfast.endpoint.workers.worker_client import WorkerClient
from holdfast.http.client.client import HTTPClient
from holdfast.http.direct import DirectExchange
from holdfast.http.exchange import Exchange, HTTPLimits, Request
from holdfast.http.outcome import Response
from holdfast.http.server.binding import bind
from holdfast.http.server.server import HTTPServer
from holdfast.outages import Trouble

PROOF = NodeProof("a secret that the nodes share")


class Large:
    """A content that is read piece by piece."""

    size = 5

    def __iter__(self) -> Iterator[bytes]:
        yield b"large"


class Host:
    """One host of workers 0 and 1: their sockets, and a front that passes every request to worker 0.

    Attributes:
        held: Requests that its workers have received and not answered.
        answers: Whether its workers answer at once, with the content of the request.
        asked: How many requests its workers have received.
    """

    def __init__(self, directory: Path, name: str, secret: NodeProof | None = PROOF) -> None:
        self.name, self.held, self.answers = name, list[Exchange](), True
        self.status, self.asked, self.repeats = 200, 0, 0
        self.placements = Placements()
        self._paths = tuple(str(directory / f"{name}{number}") for number in range(2))
        self._workers = [HTTPServer(), HTTPServer()]
        self._front = HTTPServer()
        self.client = WorkerClient(self._paths, self.placements, secret, 16)
        self.relays = Relays(self.client, self.placements, 1)
        self._listener = NodeListener(
            self.client,
            self.placements,
            PROOF,
            9,
            self._work,
            lambda *_: False,
            RequestFreshness(lambda: name),
            self._work,
        )
        self._http = HTTPClient()

    async def __aenter__(self) -> Host:
        for path, worker in zip(self._paths, self._workers, strict=True):
            inbox = socket.socket(socket.AF_UNIX)
            inbox.bind(path)
            inbox.listen()
            await worker.start(self._work, None, 0, sockets=[inbox])
        await self._front.start(self._pass_on, "127.0.0.1", 0)
        (listening,) = bind("127.0.0.1", 0, 16)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        await self._listener.start([listening], HTTPLimits())
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.close()
        await self._listener.close()
        await self.client.close()
        for server in (*self._workers, self._front):
            await server.close(0.0)

    def _work(self, exchange: Exchange) -> None:
        self.held.append(exchange)
        self.asked += 1
        if self.answers:
            self.answer()

    def answer(self) -> None:
        """Answer what its workers hold: with the content, and the name of the host."""
        for exchange in self.held:
            body = exchange.request.body
            if exchange.request.target != "/spooled":
                body = decode_request(body).body
            exchange.respond(self.status, body + f" at {self.name}".encode(), b"text/plain", ((b"x-other", b"1"),))
        self.held.clear()

    def _pass_on(self, exchange: Exchange) -> None:
        owner = None if exchange.request.target == "/any" else 0
        spooled = None
        if exchange.request.target == "/large":
            self.repeats += 1
            spooled = Spooled("text/plain", Large(), ("address 127.0.0.1", b"", "urn:s", 1))
        self.relays.pass_on(exchange, owner, encode_request(exchange.request), spooled)

    async def ask(self, target: str = "") -> Response:
        """Send a request to the front."""
        return await self._http.fetch("POST", f"http://127.0.0.1:{self._front.port}/{target}", b"hello", {})


@pytest.fixture
async def hosts(tmp_path: Path) -> AsyncIterator[tuple[Host, Host]]:
    async with AsyncExitStack() as stack:
        a, b = Host(tmp_path, "a"), Host(tmp_path, "b")
        yield await stack.enter_async_context(a), await stack.enter_async_context(b)


HERE = Placement(frozenset({0, 1}))


async def test_a_worker_here_or_at_another_node_answers(hosts: tuple[Host, Host]) -> None:
    a, b = hosts
    a.placements.set(HERE)
    answer = await a.ask()
    assert (answer.status, answer.body, answer.headers["x-other"]) == (200, b"hello at a", "1")
    a.placements.set(Placement(frozenset(), {0: b.url}))
    b.placements.set(HERE)
    answer = await a.ask()
    assert (answer.status, answer.body, answer.content_type) == (200, b"hello at b", "text/plain")
    assert answer.headers["x-other"] == "1"


async def test_a_conflict_at_another_node_is_an_answer_and_not_asked_again(hosts: tuple[Host, Host]) -> None:
    a, b = hosts
    a.placements.set(Placement(frozenset(), {0: b.url}))
    b.placements.set(HERE)
    b.status = 409
    told = await a.client.fetch(0, "POST", "admin/x", encode_request(Request("POST", "/", {}, b"{}", None, False)))
    assert (told.status, told.body, b.asked) == (409, b"{} at b", 1)


async def test_a_request_to_a_worker_that_moves_does_not_wait_for_its_old_place(hosts: tuple[Host, Host]) -> None:
    a, b = hosts
    b.placements.set(HERE)
    b.answers = False
    a.placements.set(Placement(frozenset(), {0: b.url}))
    asked = asyncio.create_task(a.ask())
    await until(lambda: b.held)
    a.placements.set(HERE)
    assert (await asked).body == b"hello at a"
    b.answer()  # too late, and nobody minds
    assert (await a.ask()).body == b"hello at a"


async def test_a_request_waits_for_an_owner_and_goes_where_it_is(hosts: tuple[Host, Host]) -> None:
    a, b = hosts
    asked = asyncio.create_task(a.ask())
    await until(lambda: a.relays._open)
    a.placements.set(Placement(frozenset(), {0: b.url}))  # which does not know it yet
    b.placements.set(HERE)
    assert (await asked).body == b"hello at b"


async def test_a_request_without_an_owner_is_put_off_and_so_is_one_that_fails(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passage, "LONGEST_WAIT", 0.3)
    a, b = hosts
    for placement in (
        Placement(trouble=Trouble("no answer")),
        Placement(frozenset(), {0: b.url}),
        Placement(frozenset(), {0: "http://127.0.0.1:1"}),
    ):
        a.placements.set(placement)  # nowhere; at a node that does not have it; at no node
        answer = await a.ask()
        assert answer.status == 503
        assert answer.headers["retry-after"] in ("1", "2", "3")
        assert (b"cannot store messages now" in answer.body) == bool(placement.trouble)
    assert b.held == []


@pytest.mark.parametrize(
    ("placement", "why"),
    [
        (
            Placement(trouble=Trouble("no answer from postgresql://db")),
            "This server cannot store messages now",
        ),
        (Placement(starting=frozenset({0})), "This server is starting"),
        (
            Placement(frozenset({1}), starting=frozenset({0})),
            "The process responsible for this message does not answer",
        ),
    ],
)
async def test_a_peer_is_told_why_without_internals(placement: Placement, why: str) -> None:
    exchange = DirectExchange(Request("POST", "/", {}, b"", None, False))
    put_off(exchange, placement)
    answer = await exchange.response
    assert (answer.status, answer.body.decode()) == (503, f"{why}; send it again.\n")


async def test_a_worker_that_may_not_act_is_asked_again(hosts: tuple[Host, Host]) -> None:
    a, _ = hosts
    a.placements.set(HERE)
    a.answers, a.status = False, MISDIRECTED
    asked = asyncio.create_task(a.ask())
    await until(lambda: a.held)
    a.answer()
    await until(lambda: a.held)
    a.status = 200
    a.answer()
    assert (await asked).body == b"hello at a"


async def test_a_request_to_an_owner_whose_store_failed_goes_to_the_next_owner(hosts: tuple[Host, Host]) -> None:
    a, b = hosts
    b.placements.set(HERE)
    b.answers, b.status = False, MISDIRECTED  # as a destination answers whose store is fenced
    a.placements.set(Placement(frozenset(), {0: b.url}))
    asked = asyncio.create_task(a.ask())
    await until(lambda: b.held)
    b.answer()
    await until(lambda: b.held)  # nobody has taken it over: asked again meanwhile
    a.placements.set(HERE)
    b.answer()
    assert (await asked).body == b"hello at a"


async def test_a_node_with_another_secret_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passage, "LONGEST_WAIT", 0.3)
    async with Host(tmp_path, "a", NodeProof("another secret of other nodes")) as a, Host(tmp_path, "b") as b:
        b.placements.set(HERE)
        a.placements.set(Placement(frozenset(), {0: b.url}))
        assert (await a.ask()).status == 503
        assert b.held == []


async def test_any_worker_but_this_one_answers_what_has_no_owner(hosts: tuple[Host, Host]) -> None:
    a, b = hosts
    b.placements.set(HERE)
    a.placements.set(Placement(frozenset({1}), {0: b.url}))
    for _ in range(5):
        assert (await a.ask("any")).body == b"hello at b"


async def test_requests_that_wait_at_the_end_are_put_off(hosts: tuple[Host, Host]) -> None:
    a, _ = hosts
    a.placements.set(HERE)
    a.answers = False
    asked = asyncio.create_task(a.ask())
    await until(lambda: a.held)
    a.relays.close()
    assert (await asked).status == 503


async def give_up(host: Host) -> None:
    """Send a large message, and go before its answer."""
    async with HTTPClient() as http:
        url, before = f"http://127.0.0.1:{host._front.port}/large", host.repeats
        asked = asyncio.create_task(http.fetch("POST", url, b"", {}))
        await until(lambda: host.repeats > before)
        asked.cancel()


async def test_a_repeat_of_a_large_message_gets_the_answer_to_the_first(hosts: tuple[Host, Host]) -> None:
    a, b = hosts
    b.placements.set(HERE)
    a.placements.set(Placement(frozenset(), {0: b.url}))
    b.answers = False
    await give_up(a)
    await until(lambda: b.held)
    await give_up(a)
    await until(lambda: not a._front.connections)
    waiting = asyncio.create_task(a.ask("large"))  # on its way already, and so is not sent again
    await until(lambda: a.repeats == 3)
    assert (await a.ask("large")).status == 503  # two wait at a time
    b.answer()
    assert (await waiting).body == b"large at b" and b.asked == 1
    idle = len(a._front.connections)  # those of a.ask()
    await give_up(a)
    await until(lambda: b.held and len(a._front.connections) <= idle)
    b.answer()
    await until(lambda: any(one.answer for one in a.relays._large.values()))
    assert (await a.ask("large")).body == b"large at b" and b.asked == 2
    b.answers = True
    assert (await a.ask("large")).body == b"large at b" and b.asked == 3  # the answer counts once
    assert not a.relays._large


async def test_an_answer_that_makes_room_for_another_is_not_held_by_its_timer(hosts: tuple[Host, Host]) -> None:
    a, _ = hosts
    relays = []
    for number in range(MOST_KEPT + 1):
        key: RepeatKey = ("10.0.0.1", b"", f"urn:s:{number}", 1)
        relays.append(_Relay(cast(Any, None), b"", Passage(0.0, 0), key=key))
        a.relays._keep(relays[-1], key, Response(200, {}, b"<answer/>"))
    assert [one.expiry is not None and one.expiry.cancelled() for one in relays] == [True] + [False] * MOST_KEPT
    for relay in relays:
        a.relays._end(relay)


def key_of(peer: str = "10.0.0.1:1", credentials: bytes = b"", **envelope: Any) -> RepeatKey | None:
    headers = {b"authorization": credentials} if credentials else {}
    message = Envelope(SOAP.V1_2, sequence=Sequence("urn:s", 1), **envelope)
    return repeat_key(Request("POST", "/", headers, b"", peer, False), message)


def test_an_answer_is_only_for_a_repeat_of_the_same_sender() -> None:
    assert key_of() == key_of("10.0.0.1:2") is not None
    assert key_of() != key_of("10.0.0.2:1")
    assert key_of() != key_of(credentials=b"Basic YTpi") != key_of(credentials=b"Basic YTpj")


def test_no_answer_is_kept_where_only_the_owner_knows_the_sender() -> None:
    security = b"<w:Security xmlns:w='urn:w'/>"
    assert key_of(headers=(security,)) is None
    assert key_of(known_block=(security, None, ())) is None
    plain = Request("POST", "/", {}, b"", "10.0.0.1:1", False)
    assert repeat_key(plain, Envelope(SOAP.V1_2)) is None
    assert repeat_key(plain, None) is None


async def test_a_large_message_whose_owner_dies_is_sent_to_the_next_one(hosts: tuple[Host, Host]) -> None:
    a, b = hosts
    b.placements.set(HERE)
    a.placements.set(Placement(frozenset(), {0: b.url}))
    b.answers = False
    asked = asyncio.create_task(a.ask("large"))
    await until(lambda: b.held)
    a.placements.set(HERE)
    assert (await asked).body == b"large at a"
