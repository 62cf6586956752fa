"""Routes requests among several workers: finds the owner of each request and passes the request to it.

A request for another worker's Sequence goes to that worker with its connection, so that later requests on the
connection reach the owner at once. If the connection cannot be passed on, because it uses TLS, has more requests in
progress or was passed on before, only the request goes to the owner, over a Unix socket, and the response comes back
here. Either way the request makes one hop: the worker that receives it answers it. Owns these hops. Knows only the
owner of a message.
"""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import quote, unquote

from holdfast.core.messages import (
    Acknowledge,
    AckRequested,
    Envelope,
    RequestAcknowledgement,
    SequenceAcknowledgement,
)
from holdfast.core.origin import Origin, inbound_names
from holdfast.endpoint.destination.destination import Destination
from holdfast.endpoint.json_answers import json_answer
from holdfast.endpoint.logs import log
from holdfast.endpoint.worker import Worker
from holdfast.endpoint.workers.loads import Loads
from holdfast.endpoint.workers.sequence_owner import (
    Named,
    Said,
    decode_request,
    decode_said,
    encode_request,
    encode_said,
    owner_of,
    worker_in,
    worker_of_address,
)
from holdfast.http.client.client import HTTPClient
from holdfast.http.exchange import Exchange, HTTPLimits, Request
from holdfast.http.outcome import Outcome, Response, TransportError
from holdfast.http.server.server import HTTPServer

MOST_GIVEN: Final = 128 * 1024
"""Bytes of a request that goes with its connection; with a larger one, the connection stays."""
HEAD_ROOM: Final = 256 * 1024
"""Bytes that a request's head may need where it is passed on as content."""
PATIENCE: Final = 90.0
"""Seconds for an answer of another worker: it may hold the request for 30 until there is a reply, or be starting."""
NOTHING: Final = b"0"
"""Goes with a connection that brought nothing yet."""
LOADS_SECONDS: Final = 0.5
"""Between two times that a worker says how many connections it has."""
MOST_KNOWN: Final = 4096
"""Number of remembered Sequences of other workers, among those with Identifiers that the peer created."""

_EMPTY = (Acknowledge, RequestAcknowledgement)
_OWN = (b"content-length", b"content-type", b"connection", b"date", b"server", b"transfer-encoding", b"keep-alive")
"""Headers that every response of this worker sets itself."""


@dataclass(frozen=True)
class Place:
    """One worker among the others: its sockets, and the paths of theirs.

    Args:
        worker: The worker.
        paths: Paths of all workers' Unix sockets, in their order.
        inbox: Its listening Unix socket. The socket outlives the worker, because requests of the others wait in it.
        taking: Socket on which it receives connections from other workers.
        giving: Socket for transferring connections to each worker, in their order.
        loads: Number of connections of each worker.
    """

    worker: Worker
    paths: tuple[str, ...]
    inbox: socket.socket
    taking: socket.socket
    giving: tuple[socket.socket, ...]
    loads: Loads


class Neighbours:
    """The other workers, seen from one.

    Args:
        place: Where this one stands.
        app: What it serves.
        server: The listener for messages, which takes over the connections that others give away.
    """

    def __init__(self, place: Place, app: Destination, server: HTTPServer) -> None:
        self._place = place
        self._app = app
        self._server = server
        self._number, self._count = place.worker.number, place.worker.count
        self.on_admin: Callable[[Exchange], None] | None = None
        """Takes what another worker's admin listener asks of this one."""
        app.reception.sort_out = self.sort_out
        self._inbox = HTTPServer()
        self._known: OrderedDict[str, int] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._client: HTTPClient | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, limits: HTTPLimits) -> None:
        """Take the requests that the others pass on.

        Args:
            limits: Of the listener for messages.
        """
        self._client = HTTPClient(
            total_timeout=PATIENCE,
            connections_per_host=limits.max_connections,
            max_connections=limits.max_connections,
            unix={host_of(number): path for number, path in enumerate(self._place.paths)},
        )
        await self._inbox.start(self._take, None, 0, sockets=[self._place.inbox], limits=_within(limits))

    def take_connections(self) -> None:
        """Accept connections from other workers, once the listener of this one exists."""
        self._place.taking.setblocking(False)
        asyncio.get_running_loop().add_reader(self._place.taking.fileno(), self._adopt)
        self._server.give = self._even_out
        self._tell_load()

    def use(self, limits: HTTPLimits) -> None:
        """Replace the limits of requests from other workers, after those of the listener for messages."""
        self._inbox.use(_within(limits), None)

    async def close(self) -> None:
        """Stop accepting connections and requests, and let the requests in progress finish."""
        asyncio.get_running_loop().remove_reader(self._place.taking.fileno())
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._inbox.close(1.0)
        if self._client is not None:
            await self._client.close()

    # --- what comes from peers ------------------------------------------------------------------------------------

    def handle(self, exchange: Exchange) -> None:
        """Answer one HTTP request of a peer, or relay it to its owner."""
        if exchange.is_passed_on:
            self._app.handle(exchange)
            return
        owner = None
        if exchange.request.method == "POST":
            owner = worker_of_address(exchange.request.target)
            owner = worker_in(exchange.request.body) if owner is None else owner
        if owner is None:
            self._app.handle(exchange, self._is_elsewhere)
        elif self._is_here(owner):
            self._app.handle(exchange)
        else:
            self._pass_on(exchange, owner % self._count)

    def _is_here(self, owner: int) -> bool:
        """Whether this worker is the owner. In WS-RM 2003/03 a peer's server makes the Identifier, and that server may
        have more workers."""
        return owner % self._count == self._number

    def _is_elsewhere(self, exchange: Exchange, envelope: Envelope) -> bool:
        """Whether an envelope is another worker's, which gets it then."""
        named = owner_of(envelope, self._count)
        if named.worker is not None:
            if self._is_here(named.worker):
                return False
            self._pass_on(exchange, named.worker % self._count)
            return True
        if not named.identifiers or any(self._app.reception.knows(one) for one in named.identifiers):
            return False
        self._do(self._look_for(exchange, named))
        return True

    async def _look_for(self, exchange: Exchange, named: Named) -> None:
        """Find the worker that knows a Sequence with an Identifier that the peer created; without one, keep it here."""
        is_sure = True
        for identifier in named.identifiers:
            owner = self._known.get(identifier)
            if owner is None:
                others = [number for number in range(self._count) if number != self._number]
                answers = await asyncio.gather(*(self._ask(number, identifier) for number in others))
                is_sure = is_sure and None not in answers
                owner = next((number for number, is_there in zip(others, answers, strict=True) if is_there), None)
            if owner is not None:
                self._remember(identifier, owner)
                self._pass_on(exchange, owner)
                return
        if is_sure:
            self._app.handle(exchange)
        else:
            _put_off(exchange)

    async def _ask(self, number: int, identifier: str) -> bool | None:
        """Whether a worker knows a Sequence; None if it does not say."""
        try:
            answer = await self.client.fetch(
                "GET", f"http://{host_of(number)}/knows/{quote(identifier, safe='')}", b"", {}
            )
        except TransportError:
            return None
        return {204: True, 404: False}.get(answer.status)

    def _remember(self, identifier: str, owner: int) -> None:
        self._known[identifier] = owner
        self._known.move_to_end(identifier)
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)

    # --- what is piggy-backed -------------------------------------------------------------------------------------

    def sort_out(self, envelope: Envelope, origin: Origin) -> None:
        """Remove from an envelope the acknowledgements and requests about other workers' Sequences, and send them
        there.

        A peer with Sequences in several workers may report on all of them in one envelope (WS-RM 3.2). The envelope
        does not wait for the other workers: if one of these reports is lost, the peer repeats it when the
        acknowledged message is retransmitted.
        """
        heard, asked = self._of_ours(envelope)
        if len(heard) == len(envelope.acknowledgements) and len(asked) == len(envelope.ack_requested):
            return
        if isinstance(envelope.control, _EMPTY) and not heard and not asked:
            return  # the envelope has nothing else, and no worker knows the Sequence better: answer it here
        said = Said(
            (envelope.soap, envelope.addressing, envelope.rm),
            tuple(one for one in envelope.acknowledgements if one not in heard),
            tuple(one for one in envelope.ack_requested if one not in asked),
            origin.secret,
            origin.party,
            tuple(inbound_names(envelope)),
        )
        envelope.acknowledgements, envelope.ack_requested = heard, asked
        content = encode_said(said)
        for number in range(self._count):
            if number != self._number:
                self.client.request("POST", f"http://{host_of(number)}/heard", content, {}, lambda _outcome: None)

    def _of_ours(self, envelope: Envelope) -> tuple[tuple[SequenceAcknowledgement, ...], tuple[AckRequested, ...]]:
        knows = self._app.reception.knows
        return (
            tuple(one for one in envelope.acknowledgements if knows(one.identifier)),
            tuple(one for one in envelope.ack_requested if knows(one.identifier)),
        )

    def _hear(self, said: Said) -> None:
        """Process what another worker received about Sequences of this worker."""
        envelope = said.envelope()
        envelope.acknowledgements, envelope.ack_requested = self._of_ours(envelope)
        if envelope.acknowledgements or envelope.ack_requested:
            self._app.reception.hear(envelope, said.origin)

    # --- passing on -----------------------------------------------------------------------------------------------

    @property
    def place(self) -> Place:
        """This worker's place among the others."""
        return self._place

    @property
    def client(self) -> HTTPClient:
        """Client for requests to the other workers, at the hosts ``worker-0`` and so on."""
        assert self._client is not None
        return self._client

    def _pass_on(self, exchange: Exchange, owner: int) -> None:
        if not exchange.give_away(partial(self._give, owner)):
            self._ask_for_answer(exchange, owner, encode_request(exchange.request))

    def _tell_load(self) -> None:
        self._place.loads.set(self._number, len(self._server.connections))
        self._timer = asyncio.get_running_loop().call_later(LOADS_SECONDS, self._tell_load)

    def _even_out(self, connection: socket.socket) -> bool:
        """Give a new connection to who has fewest: of a wave of them, who wakes first accepts all."""
        loads, ours = self._place.loads, len(self._server.connections)
        loads.set(self._number, ours)
        other = loads.least()
        if other == self._number or loads.of(other) >= ours or not self._send(other, NOTHING, connection):
            return False
        loads.set(other, loads.of(other) + 1)
        return True

    def _give(self, owner: int, connection: socket.socket, request: Request) -> bool:
        return len(request.body) <= MOST_GIVEN and self._send(owner, encode_request(request), connection)

    def _send(self, owner: int, data: bytes, connection: socket.socket) -> bool:
        try:
            socket.send_fds(self._place.giving[owner], [data], [connection.fileno()])
        except OSError:  # its buffer is full for now, or too small for this message
            return False
        return True

    def _ask_for_answer(self, exchange: Exchange, owner: int, content: bytes, *, is_repeat: bool = False) -> None:
        now = asyncio.get_running_loop().time
        begun = now()

        def done(outcome: Outcome) -> None:
            if isinstance(outcome, Response):
                _relay(exchange, outcome)
            elif not is_repeat and not exchange.closed and now() < begun + PATIENCE / 2:
                # It died, and will be back: what it stored it knows, so asking again does no harm.
                self._ask_for_answer(exchange, owner, content, is_repeat=True)
            else:
                log.warning("worker.unreachable", to=owner, error=outcome.message)
                _put_off(exchange)

        self.client.request("POST", f"http://{host_of(owner)}/message", content, {}, done)

    # --- what comes from the others -------------------------------------------------------------------------------

    def _take(self, exchange: Exchange) -> None:
        """Process a request on this worker's Unix socket."""
        what, _, name = exchange.request.target.removeprefix("/").partition("/")
        if what == "admin":
            exchange.request.target = f"/{name}"
            (self.on_admin or _not_yet)(exchange)
            return
        if what == "knows":
            exchange.respond(204 if self._app.reception.knows(unquote(name)) else 404)
            return
        if what == "heard":
            self._hear(decode_said(exchange.request.body))
            exchange.respond(204)
            return
        exchange.request = decode_request(exchange.request.body)
        exchange.is_passed_on = True
        self._app.handle(exchange)

    def _adopt(self) -> None:
        """Accept connections from other workers."""
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._place.taking, MOST_GIVEN + HEAD_ROOM, 1)
            except (BlockingIOError, InterruptedError):
                return
            for descriptor in descriptors:
                connection = socket.socket(fileno=descriptor)
                connection.setblocking(False)
                self._do(self._serve(connection, decode_request(data) if data != NOTHING else None))

    async def _serve(self, connection: socket.socket, request: Request | None) -> None:
        try:
            await self._server.adopt(connection, request)
        except OSError as error:
            log.debug("worker.connection_lost", error=str(error))
            connection.close()

    def _do(self, what: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def host_of(number: int) -> str:
    """Return the host name of a worker in URLs."""
    return f"worker-{number}"


def _relay(exchange: Exchange, response: Response) -> None:
    """Answer with what another worker answered."""
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers.items()]
    content_type = response.content_type.encode("latin-1") or None
    exchange.respond(response.status, response.body, content_type, [one for one in headers if one[0] not in _OWN])


def _put_off(exchange: Exchange) -> None:
    why = b"The process that this Sequence is in does not answer; send it again.\n"
    exchange.respond(503, why, b"text/plain", ((b"Retry-After", b"1"),))


def _not_yet(exchange: Exchange) -> None:
    json_answer(exchange, 503, {"error": "it is being started", "remedy": "Ask again."}, ((b"Retry-After", b"1"),))


def _within(limits: HTTPLimits) -> HTTPLimits:
    """Return the limits for relayed requests, which have additional headers."""
    return HTTPLimits(
        max_body=limits.max_body + HEAD_ROOM,
        max_buffered=limits.max_buffered + HEAD_ROOM,
        max_connections=limits.max_connections,
    )
