"""NodeListener: takes the requests of a cluster's other nodes, and passes each to the worker that it names.

Every process of the node has one, at the same address. It answers only nodes that prove to have the cluster's secret.
The first request on a connection goes to its worker with the connection, so the worker reads the next ones itself. If
the connection cannot be passed on, because it uses TLS, each request goes to the worker's Unix socket. No request goes
further than to a worker of this host, which also sees whether it is new. After that, the node that sent it asks again,
elsewhere.
"""

from __future__ import annotations

import dataclasses
import socket
import ssl
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from holdfast.endpoint.logs import log
from holdfast.endpoint.workers.node_proof import PROOF, STAMP, NodeProof
from holdfast.endpoint.workers.placement import Placements
from holdfast.endpoint.workers.worker_client import MISDIRECTED, WorkerClient
from holdfast.http.direct import DirectExchange
from holdfast.http.exchange import Exchange, Handler, HTTPLimits, Request
from holdfast.http.outcome import Outcome, Response
from holdfast.http.server.server import HTTPServer

MESSAGE: Final = "message"
"""The path of a request that has a message of a peer."""


class NodeListener:
    """The listener for the other nodes.

    Args:
        workers: Sends requests to the workers.
        placements: Which workers are here now.
        proof: Checks the requests, and proves the answers.
        number: The number of this worker.
        take: Answers the messages for this worker.
        give: Passes a connection on to another worker, with its first request.
    """

    def __init__(
        self,
        workers: WorkerClient,
        placements: Placements,
        proof: NodeProof,
        number: int,
        take: Handler,
        give: Callable[[int, socket.socket, Request], bool],
    ) -> None:
        self._workers = workers
        self._placements = placements
        self._proof = proof
        self._number = number
        self._for_this = take
        self._give = give
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

    def use(self, limits: HTTPLimits) -> None:
        """Replace the limits."""
        self._server.use(limits, None)

    async def close(self) -> None:
        """Accept nothing more, and let the requests in progress finish for a second."""
        await self._server.close(1.0)

    def _take(self, exchange: Exchange) -> None:
        request = exchange.request
        stamp = self._proof.stamp_of(request)
        if stamp is None:
            log.warning("cluster.request_refused", peer=request.peer, remedy="give all nodes the same secret")
            why = b"This address is for the nodes of a cluster, and this request has no proof of its secret.\n"
            exchange.respond(403, why, b"text/plain")
            return
        name, _, path = request.target.removeprefix("/").partition("/")
        number = int(name) if name.isascii() and name.isdecimal() and len(name) < 5 else -1
        if number not in self._placements.now.local:
            self._answer(exchange, stamp, Response(MISDIRECTED, {}, b""))
            return
        if path == MESSAGE:
            if number == self._number:
                self._for_this(_SealedExchange(exchange, path, partial(self._answer, exchange, stamp)))
                return
            if exchange.give_away(partial(self._give, number)):
                return
        done = partial(self._answer, exchange, stamp)
        self._workers.request_here(number, request.method, path, request.body, done, {STAMP: stamp})

    def _answer(self, exchange: Exchange, stamp: str, outcome: Outcome) -> None:
        response = outcome if isinstance(outcome, Response) else Response(MISDIRECTED, {}, b"")
        content, proof = self._proof.seal(stamp, response)
        exchange.respond(200, content, None, ((PROOF.lower().encode(), proof.encode()),))


class _SealedExchange(DirectExchange):
    """A request of another node for this worker. Its answer is sealed as a whole.

    Args:
        exchange: The exchange of the connection.
        path: The target for the worker.
        answer: Answers the node.
    """

    def __init__(self, exchange: Exchange, path: str, answer: Callable[[Response], None]) -> None:
        super().__init__(dataclasses.replace(exchange.request, target=f"/{path}"))
        self.response.add_done_callback(lambda response: answer(response.result()))
        exchange.on_close = self._has_closed

    def _has_closed(self) -> None:
        self.closed = True
        if self.on_close is not None:
            self.on_close()
