"""NodeListener: takes the requests of a cluster's other nodes, and passes each to the worker that it names.

Every process of the node has one, at the same address. It answers only nodes that prove to have the cluster's secret.
A request goes no further than to a worker of this host, which also sees whether it is new. After that, the node that
sent it asks again, elsewhere.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from functools import partial

from holdfast.endpoint.logs import log
from holdfast.endpoint.workers.node_proof import PROOF, STAMP, NodeProof
from holdfast.endpoint.workers.placement import Placements
from holdfast.endpoint.workers.worker_client import MISDIRECTED, WorkerClient
from holdfast.http.exchange import Exchange, HTTPLimits
from holdfast.http.outcome import Outcome, Response
from holdfast.http.server.server import HTTPServer


class NodeListener:
    """The listener for the other nodes.

    Args:
        workers: Sends requests to the workers.
        placements: Which workers are here now.
        proof: Checks the requests, and proves the answers.
    """

    def __init__(self, workers: WorkerClient, placements: Placements, proof: NodeProof) -> None:
        self._workers = workers
        self._placements = placements
        self._proof = proof
        self._server = HTTPServer()

    async def start(
        self, sockets: Iterable[socket.socket], limits: HTTPLimits, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        """Accept requests at the shared sockets; with a context over TLS, which demands the certificate of a node."""
        await self._server.start(self._take, None, 0, sockets=sockets, limits=limits, ssl_context=ssl_context)

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
        done = partial(self._answer, exchange, stamp)
        self._workers.request_here(number, request.method, path, request.body, done, {STAMP: stamp})

    def _answer(self, exchange: Exchange, stamp: str, outcome: Outcome) -> None:
        response = outcome if isinstance(outcome, Response) else Response(MISDIRECTED, {}, b"")
        content, proof = self._proof.seal(stamp, response)
        exchange.respond(200, content, None, ((PROOF.lower().encode(), proof.encode()),))
