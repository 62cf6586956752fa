"""WorkerClient: requests to the other workers of a server, at their Unix sockets or at their nodes.

Knows where each worker is now, and no message.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from holdfast.endpoint.workers.frames.sealed_transport import SealedTransport
from holdfast.endpoint.workers.frames.streams import MOST_FRAMED, NodeStream, NodeStreams
from holdfast.endpoint.workers.node_proof import FRAMES, SEALED, STAMP, NodeProof
from holdfast.endpoint.workers.passage import PATIENCE
from holdfast.endpoint.workers.placement import Placements
from holdfast.endpoint.workers.request_freshness import RequestStamps
from holdfast.http.client.client import HTTPClient
from holdfast.http.outcome import AnswerSpooling, Done, Outcome, Response, Streamed, TransportError, one_outcome

PROBE_SECONDS: Final = 5.0
"""Seconds after which a node that does not answer a probe cannot be reached."""
LOOK_SECONDS: Final = 0.1
"""Between two looks at where the workers of unanswered requests are."""
STALE: Final = 425
"""Status of an answer to a request with a stamp that is not new; the content is the present challenge. No
worker has another use for this status (RFC 8470)."""
MESSAGE: Final = "message"
"""The path of a request that has a message of a peer."""
MOST_STAMPS: Final = 3
"""Attempts of one request, each with another stamp."""


class WorkerClient:
    """Sends requests to workers.

    Args:
        paths: Paths of the Unix sockets of the workers on this host.
        proof: The proof that this is a node of its cluster; None on a single host.
        connections: Maximum number of connections.
        ssl_context: The certificate of this node, and the authorities of the others; None: nodes use no TLS.
        spooling: Returns where large answers go; None: all of them are in memory.
    """

    def __init__(
        self,
        paths: Sequence[str],
        placements: Placements,
        proof: NodeProof | None,
        connections: int,
        ssl_context: ssl.SSLContext | None = None,
        spooling: AnswerSpooling | None = None,
    ) -> None:
        self._paths = paths
        self._placements = placements
        self._proof = proof
        self._scheme = "http://" if ssl_context is None else "https://"
        self._stamps = RequestStamps(secrets.token_hex(8))
        self._streams = NodeStreams(
            self._start_stream,
            lambda place, body, done: self._request_there(f"{place}/{MESSAGE}", "POST", body, done),
            PATIENCE,
        )
        self._client = HTTPClient(
            ssl_context=ssl_context,
            total_timeout=PATIENCE,
            connections_per_host=connections,
            max_connections=connections,
            dials={_host_of(number): partial(self._dial, number) for number in range(len(paths))},
            trust_settings="ca in [cluster] tls",
        )
        self._client.spooling = spooling

    def use(self, ssl_context: ssl.SSLContext | None) -> None:
        """Replace the certificate and the authorities of new connections, if nodes use TLS."""
        if ssl_context is not None:
            self._client.use(ssl_context)

    def place_of(self, number: int) -> str | None:
        """Return where requests to a worker go now: the base of their URLs; None: no process serves it."""
        placement = self._placements.now
        if number in placement.local:
            return f"http://{_host_of(number)}"
        url = placement.remote.get(number)
        return f"{url}/{number}" if url is not None else None

    def request(self, number: int, method: str, path: str, body: bytes, done: Done) -> None:
        """Send a request to a worker, once. ``done`` gets the answer or the error."""
        placement = self._placements.now
        if number in placement.local:
            self.request_here(number, method, path, body, done)
        elif (url := placement.remote.get(number)) is None:
            done(_unserved(number))
        elif path == MESSAGE and len(body) <= MOST_FRAMED:
            self._streams.send(url, number, body, done)
        else:
            self._request_there(f"{url}/{number}/{path}", method, body, done)

    def request_here(
        self,
        number: int,
        method: str,
        path: str,
        body: bytes | Streamed,
        done: Done,
        headers: Mapping[str, str] | None = None,
        lane: str = "",
    ) -> None:
        """Send a request to a worker on this host; with the URL of another node as the lane, to a worker there."""
        self._client.request(method, f"http://{_host_of(number)}/{path}", body, {}, done, own=headers, lane=lane)

    def request_large(
        self, number: int, method: str, path: str, body: bytes | Streamed, headers: Mapping[str, str], done: Done
    ) -> None:
        """Send a request to a worker that may be too large for memory, or have such an answer."""
        placement = self._placements.now
        if number in placement.local:
            self.request_here(number, method, path, body, done, headers)
        elif (url := placement.remote.get(number)) is None:
            done(_unserved(number))
        else:
            self.request_here(number, method, path, body, done, headers, url)

    async def connect_here(self, number: int, protocol: asyncio.Protocol) -> None:
        """Connect to the socket of a worker on this host.

        Raises:
            OSError: It does not listen.
        """
        await asyncio.get_running_loop().create_unix_connection(lambda: protocol, self._paths[number])

    async def _dial(self, number: int, url: str, protocol: asyncio.Protocol) -> None:
        """Connect to a worker of this host at its socket; at another node (its URL) with a sealed connection."""
        if not url:
            await self.connect_here(number, protocol)
            return
        answer, done = one_outcome()
        stream = SealedTransport(protocol, lambda _reason: None, f"{url}/{number}")
        self._request_there(f"{url}/-/{SEALED}/{number}", "POST", b"", done, stream=stream)
        outcome = await answer
        if isinstance(outcome, TransportError):
            raise ConnectionError(outcome.message)
        if outcome.status != 200:
            # A node of a version without such connections finds no worker of this name.
            raise ConnectionError(f"{url} answered {outcome.status} to a request for a sealed connection")

    def _start_stream(self, url: str, number: int, stream: NodeStream, done: Done) -> None:
        # A node of a version without frames answers that it has no worker of this name.
        self._request_there(f"{url}/-/{FRAMES}/{number}", "POST", b"", done, stream=stream)

    def _request_there(
        self,
        url: str,
        method: str,
        body: bytes,
        done: Done,
        attempt: int = 1,
        stream: NodeStream | SealedTransport | None = None,
    ) -> None:
        assert self._proof is not None, url
        if not url.startswith(self._scheme):  # never without TLS where it is configured, whatever URL a node has
            remedy = "Configure tls of [cluster] at all nodes, or at none."
            done(TransportError(f"{url} is not an {self._scheme} URL", connected=False, remedy=remedy))
            return
        proof = self._proof
        place, target = "/".join(url.split("/", 4)[:4]), "/" + url.split("/", 3)[3]
        if stream is not None:
            place = stream.place
        headers = proof.headers(self._stamps.next(place), method, target, body)

        def told(outcome: Outcome) -> None:
            answer = proof.open(headers[STAMP], outcome, url) if isinstance(outcome, Response) else outcome
            if isinstance(answer, Response) and answer.status == STALE:
                self._stamps.learn(place, answer.body.decode("latin-1"))
                if attempt < MOST_STAMPS:
                    self._request_there(url, method, body, done, attempt + 1, stream)
                    return
                answer = TransportError(f"{url} takes every request for an old one", connected=True)
            done(answer)

        def switch(response: Response) -> asyncio.Protocol | None:
            answer = proof.open(headers[STAMP], response, url)
            if stream is None or not isinstance(answer, Response) or answer.status != 200:
                return None
            stream.use_keys(*proof.frame_keys(headers[STAMP]))
            return stream

        # A connection of this lane is soon in the process that answers, which the first request on it finds.
        self._client.request(
            method, url, body, {}, told, own=headers, lane=place, switch=switch if stream is not None else None
        )

    async def fetch(self, number: int, method: str, path: str, body: bytes = b"") -> Response:
        """Return a worker's answer.

        Raises:
            TransportError: The worker does not answer.
        """
        answer, done = one_outcome()
        place = self.place_of(number)
        self.request(number, method, path, body, done)
        # The old place may hold the request for as long as PATIENCE.
        while not (await asyncio.wait({answer}, timeout=LOOK_SECONDS))[0]:
            if self.place_of(number) not in (None, place):
                raise TransportError(f"worker {number} has moved", connected=True, remedy="Repeat the request.")
        outcome = answer.result()
        if isinstance(outcome, TransportError):
            raise outcome
        return outcome

    async def probe(self, url: str) -> str:
        """Return why the node at a URL cannot be reached; "" if it answers and proves that it is one of the cluster."""
        answer, done = one_outcome()
        self._request_there(f"{url}/-", "GET", b"", done)
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                outcome = await answer
        except TimeoutError:
            return f"it has not answered for {PROBE_SECONDS:g} s"
        return outcome.message if isinstance(outcome, TransportError) else ""

    async def close(self) -> None:
        """Close all connections; what is in progress fails."""
        self._streams.close()
        await self._client.close()


def _unserved(number: int) -> TransportError:
    return TransportError(f"no process serves worker {number} now", connected=False, remedy="Repeat it later.")


def _host_of(number: int) -> str:
    return f"worker-{number}"
