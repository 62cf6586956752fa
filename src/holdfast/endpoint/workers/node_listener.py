"""NodeListener: takes the requests of a cluster's other nodes, and passes each to the worker that it names.

Every process of the node has one, at the same address. It answers only nodes that prove to have the cluster's secret.
The first request on a connection goes to its worker with the connection, so the worker reads the next ones itself. If
the connection cannot be passed on, because it uses TLS, each request goes to the worker's Unix socket. No request goes
further than to a worker of this host, which also sees whether it is new. After that, the node that sent it asks again,
elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from holdfast.endpoint.background_tasks import BackgroundTasks
from holdfast.endpoint.logs import LineLimit, log
from holdfast.endpoint.workers.frames.sealed_transport import Pipe, SealedTransport
from holdfast.endpoint.workers.frames.session import NodeSession, refuse_packet
from holdfast.endpoint.workers.frames.streams import MISDIRECTED, NO_FRAMES, NOT_HERE
from holdfast.endpoint.workers.node_proof import FRAMES, PROOF, SEALED, STAMP, NodeProof
from holdfast.endpoint.workers.placement import Placements
from holdfast.endpoint.workers.relays import respond
from holdfast.endpoint.workers.request_freshness import RequestFreshness
from holdfast.endpoint.workers.worker_client import MESSAGE, STALE, WorkerClient
from holdfast.http.direct import WholeExchange, response_headers
from holdfast.http.exchange import Exchange, Handler, HTTPLimits, Request
from holdfast.http.outcome import Outcome, Response
from holdfast.http.server.server import HTTPServer

MOST_SESSIONS: Final = 128
"""Connections with frames at a time."""
MOST_PIPES: Final = 64
"""Sealed connections at a time."""
FRAMED: Final = "Holdfast-Framed"
"""Header of a message that came in a frame, for the worker of this host that answers it."""
NONE: Final = "-"
"""Stands for a worker's number if any process of the node may answer the request."""


class NodeListener:
    """The listener for the other nodes.

    Args:
        proof: Checks the requests, and proves the answers.
        take: Answers the messages for this worker that come alone.
        give: Passes a connection on to another worker, with its first request.
        freshness: Whether a request is new.
        take_framed: Answers the messages for this worker that come in frames.
    """

    def __init__(
        self,
        workers: WorkerClient,
        placements: Placements,
        proof: NodeProof,
        number: int,
        take: Handler,
        give: Callable[[int, socket.socket, Request], bool],
        freshness: RequestFreshness,
        take_framed: Handler,
    ) -> None:
        self._workers = workers
        self._placements = placements
        self._proof = proof
        self._number = number
        self._for_this = take
        self._give = give
        self._freshness = freshness
        self._take_framed = take_framed
        self._sessions: set[NodeSession] = set()
        self._pipes = BackgroundTasks()
        self._are_over = asyncio.Event()
        self._refusals = LineLimit()
        self._server = HTTPServer()

    async def start(
        self, sockets: Iterable[socket.socket], limits: HTTPLimits, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        """Accept requests at the shared sockets; with a context over TLS, which demands the certificate of a node."""
        await self._server.start(self._take, None, 0, sockets=sockets, limits=limits, ssl_context=ssl_context)

    async def adopt(self, connection: socket.socket, request: Request) -> None:
        """Serve a connection that another process of this node accepted.

        Raises:
            OSError: It is lost.
        """
        await self._server.adopt(connection, request)

    def use(self, limits: HTTPLimits, ssl_context: ssl.SSLContext | None) -> None:
        self._server.use(limits, ssl_context)

    async def close(self) -> None:
        """Accept nothing more, and let the requests in progress finish for a second."""
        self._are_over.clear()
        for session in list(self._sessions):
            session.end()
        await self._pipes.cancel()
        await self._server.close(1.0)
        if self._sessions:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._are_over.wait(), 1.0)
        for session in list(self._sessions):
            session.abort()

    def _take(self, exchange: Exchange) -> None:
        request = exchange.request
        stamp = self._proof.stamp_of(request)
        if stamp is None:
            if (left_out := self._refusals.admit()) is not None:
                remedy = "Give all nodes the same secret"
                log.warning("cluster.request_refused", peer=request.peer, remedy=remedy, left_out=left_out)
            why = b"This address is for the nodes of a cluster, and this request has no proof of its secret.\n"
            exchange.respond(403, why, b"text/plain")
            return
        name, _, path = request.target.removeprefix("/").partition("/")
        number = _number_in(name)
        what, _, owner = path.partition("/")
        if name == NONE and what in (FRAMES, SEALED):
            self._begin_stream(exchange, stamp, _number_in(owner), is_sealed=what == SEALED)
            return
        if number not in self._placements.now.local:
            self._answer(exchange, stamp, Response(MISDIRECTED, {}, b""))
            return
        if path == MESSAGE:
            if number == self._number:
                self._for_this(_SealedExchange(exchange, path, partial(self._answer, exchange, stamp)))
                return
            # With the connection, later requests reach the worker at once.
            if exchange.give_away(partial(self._give, number)):
                return
        done = partial(self._answer, exchange, stamp)
        self._workers.request_here(number, request.method, path, request.body, done, {STAMP: stamp})

    def _answer(self, exchange: Exchange, stamp: str, outcome: Outcome) -> None:
        response = outcome if isinstance(outcome, Response) else Response(MISDIRECTED, {}, b"")
        content, proof = self._proof.seal(stamp, response)
        exchange.respond(200, content, None, ((PROOF.lower().encode(), proof.encode()),))

    def _begin_stream(self, exchange: Exchange, stamp: str, number: int, *, is_sealed: bool) -> None:
        """Let a connection have the messages for a worker in frames from now on, or be sealed; in its process if
        possible."""
        if number not in self._placements.now.local:
            self._answer(exchange, stamp, Response(NOT_HERE, {}, b""))
            return
        if number != self._number and exchange.give_away(partial(self._give, number)):
            return
        now = time.monotonic()
        # Here, not in another process: each process has its challenge, and only the one that answers may count the
        # number.
        if not self._freshness.admit(stamp, now):
            self._answer(exchange, stamp, Response(STALE, {}, self._freshness.challenge(now).encode()))
            return
        if is_sealed and len(self._pipes) < MOST_PIPES:
            self._pipes.start(self._pipe(exchange, stamp, number))
        elif is_sealed or len(self._sessions) >= MOST_SESSIONS:
            self._answer(exchange, stamp, Response(NO_FRAMES, {}, b""))
        else:
            self._begin_frames(exchange, stamp, number)

    def _begin_frames(self, exchange: Exchange, stamp: str, number: int) -> None:
        take = self._take_framed if number == self._number else partial(self._relay, number)
        keys = self._proof.frame_keys(stamp)
        session = NodeSession(keys, exchange.request.peer, take, self._end_session, self._refusals)
        self._answer(exchange, stamp, Response(200, {}, b""))
        if exchange.switch(session):
            self._sessions.add(session)

    async def _pipe(self, exchange: Exchange, stamp: str, number: int) -> None:
        """Connect another node with the socket of a worker, until one of them closes the connection."""
        there, here = Pipe(), Pipe()
        there.join(here)
        try:
            await self._workers.connect_here(number, here)
        except OSError:
            self._answer(exchange, stamp, Response(MISDIRECTED, {}, b""))
            return
        requests, answers = self._proof.frame_keys(stamp)
        sealed = SealedTransport(there, partial(refuse_packet, self._refusals, exchange.request.peer))
        sealed.use_keys(answers, requests)
        self._answer(exchange, stamp, Response(200, {}, b""))
        try:
            if exchange.switch(sealed):
                await there.is_over.wait()
        finally:
            here.close()

    def _relay(self, number: int, exchange: Exchange) -> None:
        """Let another process of this node answer a message. The connection from the other node stays here."""

        def told(outcome: Outcome) -> None:
            respond(exchange, outcome if isinstance(outcome, Response) else Response(MISDIRECTED, {}, b""))

        self._workers.request_here(number, "POST", MESSAGE, exchange.request.body, told, {FRAMED: "1"})

    def _end_session(self, session: NodeSession) -> None:
        self._sessions.discard(session)
        if not self._sessions:
            self._are_over.set()


def _number_in(name: str) -> int:
    return int(name) if name.isascii() and name.isdecimal() and len(name) < 5 else -1


class _SealedExchange(WholeExchange):
    """A request of another node for this worker. Its answer is sealed as a whole."""

    def __init__(self, exchange: Exchange, path: str, answer: Callable[[Response], None]) -> None:
        super().__init__(dataclasses.replace(exchange.request, target=f"/{path}"))
        self._sealed = answer
        exchange.on_close = self.lose

    def answer(self, status: int, body: bytes, content_type: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self._sealed(Response(status, response_headers(content_type, headers), body))
