"""Routes requests among several workers: finds the owner of each request and passes the request to it.

A request for another worker's Sequence goes to that worker with its connection, so that later requests on the
connection reach the owner at once. If the connection cannot be passed on, because it uses TLS, has more requests in
progress or was passed on before, only the request goes to the owner, over a Unix socket, and the response comes back
here. Either way the request makes one hop: the worker that receives it answers it.

In a cluster, the owner may be at another node. Then the request goes to a process of that node, which passes it to the
owner: two hops. Owns these hops. Knows only the owner of a message.

A request that is too large for memory is written while it arrives. In a cluster, only its owner writes it to the store;
any other process writes it to a temporary file, from which the owner gets it.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import quote, unquote

from holdfast.core.messages import AckRequested, Envelope, SequenceAcknowledgement
from holdfast.core.origin import SECRET, Origin
from holdfast.core.records import ContentWriter
from holdfast.endpoint.background_tasks import BackgroundTasks
from holdfast.endpoint.destination.running_destination import RunningDestination
from holdfast.endpoint.envelopes.head_spool import head_in
from holdfast.endpoint.envelopes.package_spool import PackageSpool
from holdfast.endpoint.envelopes.temporary_content import TemporaryContent
from holdfast.endpoint.json_answers import json_answer
from holdfast.endpoint.listener_settings import NodeAccess
from holdfast.endpoint.logs import log
from holdfast.endpoint.worker import Worker
from holdfast.endpoint.workers.frames.large_answers import LargeAnswers, TicketExchange
from holdfast.endpoint.workers.frames.streams import MISDIRECTED
from holdfast.endpoint.workers.identifier_table import OfferedIdentifiers
from holdfast.endpoint.workers.node_listener import FRAMED, NodeListener
from holdfast.endpoint.workers.node_proof import STAMP, NodeProof
from holdfast.endpoint.workers.placement import AWAY, Loads, Placements
from holdfast.endpoint.workers.relays import ANSWER, REQUEST, SPOOLED, Relays, Spooled, put_off, repeat_key
from holdfast.endpoint.workers.request_freshness import RequestFreshness
from holdfast.endpoint.workers.sequence_owner import (
    Named,
    Said,
    decode_request,
    decode_said,
    encode_request,
    encode_said,
    found_in,
    owner_of,
    sorted_out,
    worker_in,
    worker_of_address,
)
from holdfast.endpoint.workers.worker_client import STALE, WorkerClient
from holdfast.exceptions import EnvelopeError, LimitExceeded, MessageFlowError
from holdfast.http.exchange import Exchange, HTTPLimits, Request
from holdfast.http.outcome import TransportError
from holdfast.http.retry_after import retry_after
from holdfast.http.server.server import HTTPServer

MOST_GIVEN: Final = 128 * 1024
"""Bytes of a request that goes with its connection; with a larger one, the connection stays."""
HEAD_ROOM: Final = 256 * 1024
"""Bytes that a request's head may need where it is passed on as content."""
NOTHING: Final = b"0"
"""Goes with a connection that brought nothing yet."""
OF_NODE: Final = b"n"
"""Goes before the first request of a connection of another node. No encoded request begins with it."""
LOADS_SECONDS: Final = 0.5
"""Between two times that a worker says how many connections it has."""
MOST_KNOWN: Final = 4096
"""Number of remembered Sequences of other workers, among those with Identifiers that the peer created, and of secrets
in the addresses that they gave to peers."""
MOST_SOUGHT: Final = 100
"""Number of secrets that other workers are asked for at a time."""
STRANGE_SECONDS: Final = 10.0
"""How long a secret that its worker did not give is refused: a client repeats its message within this time."""
NOT_GIVEN: Final = 410
"""A worker's answer for a secret that it did not give. A 404 may come from a version that knows only Sequences."""
LONGEST_SECRET: Final = 100
"""Characters. A secret is a UUID."""

OF_THE_PROCESS: Final = ("healthz", "readyz", "metrics")
"""What a worker says about itself, whether it may act or not."""

_REQUEST = REQUEST.lower().encode()
_STAMP = STAMP.lower().encode()
"""Header of requests that came from another node."""
_FRAMED = FRAMED.lower().encode()


@dataclass(frozen=True)
class Place:
    """One worker among the others: its sockets, and the paths of the other workers' sockets.

    Args:
        paths: Paths of all workers' Unix sockets, in their order.
        inbox: Its listening Unix socket. The socket outlives the worker, because requests of the others wait in it.
        taking: Socket on which it receives connections from other workers.
        giving: Socket for transferring connections to each worker, in their order.
        offers: The Offers that the workers have accepted; None in a cluster.
    """

    worker: Worker
    paths: tuple[str, ...]
    inbox: socket.socket
    taking: socket.socket
    giving: tuple[socket.socket, ...]
    loads: Loads
    placements: Placements
    offers: OfferedIdentifiers | None = None


class Neighbours:
    """The other workers, seen from one.

    Args:
        server: The listener for messages, which takes over the connections that others give away.
        access: How the nodes of its cluster recognize each other; None on a single host.
    """

    def __init__(
        self, place: Place, app: RunningDestination, server: HTTPServer, access: NodeAccess | None = None
    ) -> None:
        self._place = place
        self._app = app
        self._server = server
        self._worker = place.worker
        self._number, self._count = place.worker.number, place.worker.count
        self._access = access
        self._proof = NodeProof(access.secret, is_encrypted=access.is_encrypted) if access is not None else None
        self._freshness = RequestFreshness(partial(secrets.token_hex, 16))
        self._answers = LargeAnswers()
        self.on_admin: Callable[[Exchange], None] | None = None
        """Takes what another worker's admin listener asks of this one."""
        app.reception.sort_out = self.sort_out
        app.reception.envelopes.has_given = self._has_given
        self._inbox = HTTPServer()
        self._known: OrderedDict[str, int] = OrderedDict()
        """Identifier of a Sequence, or secret in an address -> the worker that has it."""
        self._sought: set[str] = set()
        """Secrets that another worker is asked for."""
        self._strange: dict[str, float] = {}
        """Secret that its worker did not give -> when to ask again."""
        self._tasks = BackgroundTasks()
        self._workers: WorkerClient | None = None
        self._relays: Relays | None = None
        self._nodes: NodeListener | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, limits: HTTPLimits, nodes: Sequence[socket.socket] = ()) -> None:
        """Take the requests that the others pass on.

        Args:
            limits: Of the listener for messages.
            nodes: The shared listening sockets for the other nodes of the cluster.
        """
        place = self._place
        if place.offers is not None:
            place.offers.follow(self._app.engine.protocol.sequences)
            self._app.reception.claim_offer = place.offers.claim
        asking, accepting = (self._access.asking, self._access.accepting) if self._access is not None else (None, None)
        spooling = self._app.spooling_answers()
        self._server.spooling = self._inbox.spooling = self._app.spooling()
        if self._access is not None:
            envelopes = self._app.reception.envelopes
            self._server.spooling = envelopes.spooling_by(self._choose)
            spooling = envelopes.spooling_answers(TemporaryContent)
        self._workers = WorkerClient(
            place.paths, place.placements, self._proof, limits.max_connections, asking, spooling
        )
        self._relays = Relays(self._workers, place.placements, self._number)
        await self._inbox.start(self._take, None, 0, sockets=[place.inbox], limits=_within(limits))
        if self._proof is not None:
            self._nodes = NodeListener(
                self._workers,
                place.placements,
                self._proof,
                self._number,
                self._take,
                self._give_node,
                self._freshness,
                self._take_framed,
            )
            await self._nodes.start(nodes, _within(limits), accepting)

    def take_connections(self) -> None:
        """Accept connections from other workers, once the listener of this one exists."""
        self._place.taking.setblocking(False)
        asyncio.get_running_loop().add_reader(self._place.taking.fileno(), self._adopt)
        self._server.give = self._even_out
        if not self._worker.is_gateway:
            self._tell_load()

    def use(self, limits: HTTPLimits, access: NodeAccess | None) -> None:
        """Replace the limits of requests from other workers, after those of the listener for messages, and the
        certificate that this node shows to others on new connections."""
        self._inbox.use(_within(limits), None)
        if self._nodes is not None and access is not None:
            self._nodes.use(_within(limits), access.accepting)
        if self._workers is not None and access is not None:
            self._workers.use(access.asking)

    async def close(self) -> None:
        """Stop accepting connections and requests, and let the requests in progress finish."""
        asyncio.get_running_loop().remove_reader(self._place.taking.fileno())
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.cancel()
        if self._relays is not None:
            self._relays.close()
        self._answers.close()
        if self._nodes is not None:
            await self._nodes.close()
        await self._inbox.close(1.0)
        if self._workers is not None:
            await self._workers.close()

    # --- what comes from peers ------------------------------------------------------------------------------------

    def handle(self, exchange: Exchange) -> None:
        """Answer one HTTP request of a peer, or relay it to its owner."""
        if not self._worker.may_act:
            put_off(exchange, self._place.placements.now)
            return
        if exchange.is_passed_on:
            self._app.reception.handle(exchange)
            return
        owner = None
        if exchange.request.method == "POST":
            # The address first: it is certain, and cheaper than the search.
            owner = worker_of_address(exchange.request.target)
            owner = worker_in(exchange.request.body) if owner is None else owner
        if owner is None:
            self._app.reception.handle(exchange, self._is_elsewhere)
        elif self._is_here(owner):
            self._keep(exchange)
        else:
            self._pass_on(exchange, owner % self._count)

    def _choose(self, first: bytes) -> ContentWriter:
        """Begin the content of a large request, given its first bytes, in a thread."""
        owner = worker_in(first)
        # Not in the store of another owner: it would be stored and deleted here for nothing.
        is_ours = owner is not None and self._is_here(owner)
        return self._app.store.create_content() if is_ours else TemporaryContent()

    def _keep(self, exchange: Exchange) -> None:
        """Answer a request here. If its content is in a temporary file, it comes again, to be stored."""
        if _is_temporary(exchange):
            self._relay(exchange, self._number)
        else:
            self._app.reception.handle(exchange)

    def _is_here(self, owner: int) -> bool:
        """Whether this worker is the owner. In WS-RM 2003/03 a peer's server makes the Identifier, and that server may
        have more workers."""
        return owner % self._count == self._number

    def _is_away(self, owner: int) -> bool:
        """Whether no process of this host runs the owner, which starts again soon. In a cluster, another node may."""
        return not self.is_in_cluster and self._place.loads.of(owner) == AWAY

    def _is_elsewhere(self, exchange: Exchange, envelope: Envelope) -> bool:
        """Whether an envelope is not for here, or not in this form; then another request brings it where it belongs."""
        if self._goes_on(exchange, envelope):
            return True
        if is_temporary := _is_temporary(exchange):
            self._keep(exchange)
        return is_temporary

    def _goes_on(self, exchange: Exchange, envelope: Envelope) -> bool:
        """Whether an envelope is another worker's, which gets it then."""
        named = owner_of(envelope, self._count)
        if named.worker is not None and not named.identifiers:
            owner = self._answerer(named, named.worker % self._count)
            if owner != self._number:
                self._pass_on(exchange, owner)
            return owner != self._number
        if not named.is_sought(self._app.reception.knows):
            return self._is_not_for_gateway(exchange)
        self._tasks.start(self._look_for(exchange, named))
        return True

    def _answerer(self, named: Named, owner: int) -> int:
        """Return the worker that answers an envelope now: its owner, or this one while that does not run."""
        is_away = named.is_replaceable and self._is_away(owner)
        if named.offer and (offers := self._place.offers) is not None:
            return offers.answerer(named.offer, owner, is_away=is_away)
        return self._number if is_away and not named.offer else owner

    def _is_not_for_gateway(self, exchange: Exchange) -> bool:
        """Whether this process is the gateway, which lets any worker answer an envelope without an owner."""
        if self._worker.is_gateway:
            self._relay(exchange, None)
        return self._worker.is_gateway

    async def _look_for(self, exchange: Exchange, named: Named) -> None:
        """Find the worker that knows a Sequence with an Identifier that the peer may have created; without one, keep it
        here, or let the likely owner refuse it."""
        is_sure = True
        for identifier in named.identifiers:
            owner = self._known.get(identifier)
            if owner is None:
                owner, is_certain = await self._find(identifier, named.worker)
                is_sure = is_sure and is_certain
            if owner is not None:
                self._remember(identifier, owner)
                self._pass_on(exchange, owner)
                return
        if not is_sure:
            put_off(exchange, self._place.placements.now)
        elif named.worker is not None and not self._is_here(named.worker):
            self._pass_on(exchange, named.worker % self._count)
        elif not self._is_not_for_gateway(exchange):
            self._keep(exchange)

    async def _find(self, identifier: str, likely: int | None) -> tuple[int | None, bool]:
        """Ask the other workers for a Sequence, a likely owner before the rest; return as :func:`found_in`."""
        others = {number for number in range(self._count) if number != self._number}
        first = {likely % self._count} & others if likely is not None else set[int]()
        answers: dict[int, bool | None] = {}
        for several in (sorted(first), sorted(others - first)):
            found = await asyncio.gather(*(self._ask(number, identifier) for number in several))
            answers |= dict(zip(several, found, strict=True))
            if True in found:
                break
        return found_in(answers)

    async def _ask(self, number: int, name: str) -> bool | None:
        """Whether a worker knows a Sequence or a secret; None if it does not say."""
        try:
            answer = await self.workers.fetch(number, "GET", f"knows/{quote(name, safe='')}")
        except TransportError:
            return None
        return {204: True, NOT_GIVEN if name.startswith(SECRET) else 404: False}.get(answer.status)

    def _has_given(self, secret: str) -> bool | None:
        """Whether a worker has given a peer the address with that secret; None if its worker did not say yet."""
        owner = worker_of_address(f"?{SECRET}{secret}")
        if owner is None or len(secret) > LONGEST_SECRET:
            return False
        if self._is_here(owner):
            return self._app.engine.protocol.outbound.creation.has_given(secret)
        name = f"{SECRET}{secret}"
        if name in self._known:
            return True
        if self._strange.get(name, 0.0) > asyncio.get_running_loop().time():
            return False
        if name not in self._sought and len(self._sought) < MOST_SOUGHT:
            self._sought.add(name)
            self._tasks.start(self._seek(name, owner % self._count))
        return None

    async def _seek(self, name: str, owner: int) -> None:
        """Ask a worker for a secret. Until it is known, the peer repeats a message that is too large."""
        is_given = await self._ask(owner, name)
        if is_given:
            self._remember(name, owner)
        elif is_given is False:
            self._strange.pop(name, None)
            self._strange[name] = asyncio.get_running_loop().time() + STRANGE_SECONDS
            if len(self._strange) > MOST_SOUGHT:
                del self._strange[next(iter(self._strange))]
        self._sought.discard(name)

    def _remember(self, identifier: str, owner: int) -> None:
        self._known[identifier] = owner
        self._known.move_to_end(identifier)
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)

    # --- what is piggy-backed -------------------------------------------------------------------------------------

    def sort_out(self, envelope: Envelope, origin: Origin) -> None:
        """Remove from an envelope the acknowledgements and requests about other workers' Sequences, and send them
        there.

        The envelope does not wait for the other workers: if one of these reports is lost, the peer repeats it when the
        acknowledged message is retransmitted.
        """
        said = sorted_out(envelope, origin, self._app.reception.knows)
        if said is None:
            return
        content = encode_said(said)
        for number in range(self._count):
            if number != self._number:
                self.workers.request(number, "POST", "heard", content, lambda _outcome: None)

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
    def is_in_cluster(self) -> bool:
        """Whether some workers may be at other nodes."""
        return self._proof is not None

    @property
    def workers(self) -> WorkerClient:
        assert self._workers is not None
        return self._workers

    def _pass_on(self, exchange: Exchange, owner: int) -> None:
        is_here = owner in self._place.placements.now.local
        if not (is_here and exchange.give_away(partial(self._give, owner))):
            self._relay(exchange, owner)

    def _relay(self, exchange: Exchange, owner: int | None) -> None:
        assert self._relays is not None
        if isinstance(exchange.request.spool, PackageSpool):
            self._tasks.start(self._relay_spooled(exchange, owner, exchange.request.spool))
        else:
            self._relays.pass_on(exchange, owner, encode_request(exchange.request))

    async def _relay_spooled(self, exchange: Exchange, owner: int | None, spool: PackageSpool) -> None:
        """Relay a request that is too large for memory: this worker has written it, and its owner writes it again."""
        assert self._relays is not None
        request = exchange.request
        try:
            content = await asyncio.get_running_loop().run_in_executor(None, spool.content)
        except LimitExceeded as error:
            request.spool = head_in(request, self._app.reception.envelopes.limits, error)
            self._relays.pass_on(exchange, owner, encode_request(request))
            return
        except (EnvelopeError, MessageFlowError):
            put_off(exchange, self._place.placements.now)
            return
        media = request.headers[b"content-type"].decode("latin-1")
        request.body = b""
        spooled = Spooled(media, content, repeat_key(request, spool.envelope))
        self._relays.pass_on(exchange, owner, encode_request(request), spooled)

    def _tell_load(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOADS_SECONDS, self._tell_load)
        self._place.loads.set(self._number, len(self._server.connections))

    def _even_out(self, connection: socket.socket) -> bool:
        """Give a new connection to who has fewest: of a wave of them, who wakes first accepts all."""
        loads, ours = self._place.loads, len(self._server.connections)
        if self._worker.is_gateway:
            ours = AWAY  # any worker saves a hop
        else:
            loads.set(self._number, ours)
        other = loads.least()
        if other == self._number or loads.of(other) >= ours or not self._send(other, NOTHING, connection):
            return False
        loads.add_one(other)
        return True

    def _give(self, owner: int, connection: socket.socket, request: Request) -> bool:
        small = request.spool is None and len(request.body) <= MOST_GIVEN
        return small and self._send(owner, encode_request(request), connection)

    def _give_node(self, owner: int, connection: socket.socket, request: Request) -> bool:
        small = len(request.body) <= MOST_GIVEN
        return small and self._send(owner, OF_NODE + encode_request(request), connection)

    def _send(self, owner: int, data: bytes, connection: socket.socket) -> bool:
        try:
            socket.send_fds(self._place.giving[owner], [data], [connection.fileno()])
        except OSError:  # its buffer is full for now, or too small for this message
            return False
        return True

    # --- what comes from the others -------------------------------------------------------------------------------

    def _take(self, exchange: Exchange) -> None:
        """Process a request of another process: on this worker's Unix socket, or on a connection of its node."""
        what, _, name = exchange.request.target.removeprefix("/").partition("/")
        if not (self._worker.may_act or (what == "admin" and name in OF_THE_PROCESS)):
            exchange.respond(MISDIRECTED)
            return
        stamp = exchange.request.headers.get(_STAMP)
        if stamp is not None and not self._freshness.admit(stamp.decode("latin-1"), time.monotonic()):
            exchange.respond(STALE, self._freshness.challenge(time.monotonic()).encode())
            return
        if what == "admin":
            exchange.request.target = f"/{name}"
            (self.on_admin or _not_yet)(exchange)
            return
        if what == "knows":
            exchange.respond(self._status_of(unquote(name)))
            return
        if what == "heard":
            self._hear(decode_said(exchange.request.body))
            exchange.respond(204)
            return
        if what == ANSWER:
            if not self._answers.fetch(name, exchange):
                exchange.respond(MISDIRECTED)
            return
        came = exchange.request
        # Only another node gets a ticket; a worker of this host reads a large answer as it comes.
        if stamp is not None or _FRAMED in came.headers:
            exchange = TicketExchange(exchange, self._answers)
        if what == SPOOLED:
            request = decode_request(b64decode(came.headers[_REQUEST]))
            request.body, request.spool = came.body, came.spool
        else:
            request = decode_request(came.body, self._app.reception.envelopes.limits)
        self._handle(exchange, request)

    def _status_of(self, name: str) -> int:
        """Return 204 if this worker knows a Sequence, or has given the secret of an address to a peer; 404 or
        :data:`NOT_GIVEN` if not, and 421 if its present owner has to say it."""
        if self._app.engine.failure is not None:
            return MISDIRECTED
        if name.startswith(SECRET):
            is_given = self._app.engine.protocol.outbound.creation.has_given(name.removeprefix(SECRET))
            return 204 if is_given else NOT_GIVEN
        return 204 if self._app.reception.knows(name) else 404

    def _take_framed(self, exchange: Exchange) -> None:
        """Process a message that another node passes on in a frame."""
        if self._worker.may_act:
            limits = self._app.reception.envelopes.limits
            self._handle(TicketExchange(exchange, self._answers), decode_request(exchange.request.body, limits))
        else:
            exchange.respond(MISDIRECTED)

    def _handle(self, exchange: Exchange, request: Request) -> None:
        exchange.request = request
        exchange.is_passed_on = exchange.is_relayed = True
        self._app.reception.handle(exchange)

    def _adopt(self) -> None:
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._place.taking, MOST_GIVEN + HEAD_ROOM, 1)
            except (BlockingIOError, InterruptedError):
                return
            for descriptor in descriptors:
                connection = socket.socket(fileno=descriptor)
                connection.setblocking(False)
                self._tasks.start(self._serve(connection, data))

    async def _serve(self, connection: socket.socket, data: bytes) -> None:
        try:
            if data == NOTHING:
                await self._server.adopt(connection, None)
            elif not data.startswith(OF_NODE):
                await self._server.adopt(connection, decode_request(data))
            elif self._nodes is not None:
                await self._nodes.adopt(connection, decode_request(data[1:]))
        except OSError as error:
            log.debug("worker.connection_lost", error=str(error))
            connection.close()


def _is_temporary(exchange: Exchange) -> bool:
    """Whether the content of a request is in a temporary file."""
    spool = exchange.request.spool
    return isinstance(spool, PackageSpool) and isinstance(spool.writer, TemporaryContent)


def _not_yet(exchange: Exchange) -> None:
    json_answer(exchange, 503, {"error": "it is being started", "remedy": "Ask again."}, retry_after(1))


def _within(limits: HTTPLimits) -> HTTPLimits:
    """Return the limits for relayed requests, which have additional headers."""
    return HTTPLimits(
        max_body=limits.max_body + HEAD_ROOM,
        max_buffered=limits.max_buffered + HEAD_ROOM,
        max_connections=limits.max_connections,
        max_attachments=limits.max_attachments,
        max_header_bytes=limits.max_header_bytes + HEAD_ROOM,
    )
