"""Relays: requests of peers that another worker answers, wherever it is now.

:mod:`~holdfast.endpoint.workers.passage` decides when a request is sent, and when it is sent again: also one to a
worker whose store has failed, as it does when another node takes its work over. If no process serves a worker for a
moment, the answer asks the peer to send again later. It never says that the Sequence does not exist.

A large message may need longer than its peer waits. Its repeat gets the answer to the first transmission, and is not
sent to the owner again, unless only the owner knows who sent it.
"""

from __future__ import annotations

import asyncio
import random
from base64 import b64encode
from dataclasses import dataclass
from functools import partial
from typing import Final

from holdfast.core.messages import Envelope
from holdfast.endpoint.background_tasks import BackgroundTasks
from holdfast.endpoint.envelopes.http_media import stream_answer
from holdfast.endpoint.envelopes.package_spool import PackageSpool
from holdfast.endpoint.logs import LineLimit, log
from holdfast.endpoint.sending.parties import party_of
from holdfast.endpoint.workers.frames.large_answers import LARGE
from holdfast.endpoint.workers.frames.streams import MISDIRECTED
from holdfast.endpoint.workers.passage import Move, Passage
from holdfast.endpoint.workers.placement import Placement, Placements
from holdfast.endpoint.workers.worker_client import LOOK_SECONDS, MESSAGE, WorkerClient
from holdfast.exceptions import EnvelopeError, MessageFlowError
from holdfast.http.exchange import Exchange, Request
from holdfast.http.outcome import Outcome, Response, Streamed, TransportError
from holdfast.http.retry_after import retry_after

MOST_KEPT: Final = 64
"""Number of answers stored for repeats of large messages."""
MOST_BYTES: Final = 64 * 1024
"""Bytes of such an answer."""
ANSWER_SECONDS: Final = 300.0
"""Seconds for which an answer is stored, if the peer did not wait for it."""
SPOOLED: Final = "spooled"
"""The path of a request with a content that is too large for memory."""
ANSWER: Final = "answer"
"""The path of a request for a large answer. Its ticket follows."""
REQUEST: Final = "Holdfast-Request"
"""Its header with the peer's request. It counts for this path only: no proof covers the headers of other requests."""

_OWN = frozenset(
    {b"content-length", b"content-type", b"connection", b"date", b"server", b"transfer-encoding", b"keep-alive"}
)
"""Headers that every response of this worker sets itself."""


RepeatKey = tuple[str, bytes, str, int]
"""The sender of a large message, its credentials in HTTP, its Sequence and its number."""


def repeat_key(request: Request, envelope: Envelope | None) -> RepeatKey | None:
    """Return what a repeat of a large message has in common with it; None if it belongs to no Sequence.

    It is also None if the message has headers that may prove its sender: only the owner can check them, and no other
    worker may have the answer.
    """
    if envelope is None or envelope.sequence is None or envelope.headers or envelope.known_block is not None:
        return None
    credentials = request.headers.get(b"authorization", b"")
    return party_of(request), credentials, envelope.sequence.identifier, envelope.sequence.message_number


@dataclass(frozen=True, slots=True)
class Spooled:
    """The content of a request that is too large for memory.

    Args:
        key: What a repeat has in common with the message; None if no answer is stored for repeats.
    """

    media: str
    content: Streamed
    key: RepeatKey | None = None


@dataclass(slots=True, eq=False)
class _Relay:
    """One request.

    Attributes:
        exchange: The peer's request, which waits for its answer.
        content: The request, encoded.
        passage: Its way to the worker.
        spooled: The content of the request, if it is too large for memory.
        key: What a repeat of a large message has in common with it.
        answer: The answer, if the peer gave up before it came. The peer may repeat the message.
        expiry: Ends the life of that answer.
    """

    exchange: Exchange
    content: bytes
    passage: Passage
    spooled: Spooled | None = None
    key: RepeatKey | None = None
    answer: Response | None = None
    expiry: asyncio.TimerHandle | None = None


class Relays:
    """The requests that other workers answer."""

    def __init__(self, workers: WorkerClient, placements: Placements, number: int) -> None:
        self._workers = workers
        self._unreachable = LineLimit()
        self._placements = placements
        self._number = number
        self._open: set[_Relay] = set()
        self._large: dict[RepeatKey, _Relay] = {}
        """Large messages on their way, and those with a stored answer."""
        self._timer: asyncio.TimerHandle | None = None
        self._responding = BackgroundTasks()

    def pass_on(self, exchange: Exchange, owner: int | None, content: bytes, spooled: Spooled | None = None) -> None:
        """Answer an exchange with what its owner answers; None: any other worker."""
        relay = _Relay(exchange, content, Passage(asyncio.get_running_loop().time(), owner), spooled)
        if spooled is not None and spooled.key is not None:
            if (earlier := self._large.get(spooled.key)) is not None:
                self._repeat(earlier, exchange)
                return
            relay.key = spooled.key
            self._large[relay.key] = relay
        self._open.add(relay)
        self._ask(relay)
        if self._open and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def close(self) -> None:
        """Answer the requests that still wait: they may be sent again."""
        if self._timer is not None:
            self._timer.cancel()
        for relay in list(self._open):
            self._give_up(relay)

    def _repeat(self, earlier: _Relay, exchange: Exchange) -> None:
        """Let a repeat of a large message have the answer to the earlier one, which need not be sent twice."""
        if earlier.answer is not None:
            self._end(earlier)
            earlier.exchange = exchange
            self._respond(earlier, earlier.answer)
        elif earlier.exchange.closed:
            earlier.exchange = exchange
        else:
            put_off(exchange, self._placements.now)

    def _keep(self, relay: _Relay, key: RepeatKey, answer: Response) -> None:
        kept = [one for one in self._large.values() if one.answer is not None]
        if len(answer.body) > MOST_BYTES:
            return
        if len(kept) >= MOST_KEPT:
            self._end(kept[0])
        relay.answer, relay.spooled = answer, None
        self._large[key] = relay
        relay.expiry = asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._end, relay)

    def _end(self, relay: _Relay) -> None:
        self._open.discard(relay)
        if relay.expiry is not None:
            relay.expiry.cancel()  # it holds the answer, of which there are few
        if relay.key is not None and self._large.get(relay.key) is relay:
            del self._large[relay.key]

    def _respond(self, relay: _Relay, response: Response) -> None:
        if isinstance(response.spool, PackageSpool):
            self._responding.start(self._respond_spooled(relay.exchange, response, response.spool))
        else:
            respond(relay.exchange, response)

    async def _respond_spooled(self, exchange: Exchange, response: Response, spool: PackageSpool) -> None:
        try:
            content = await asyncio.get_running_loop().run_in_executor(None, spool.content)
        except (EnvelopeError, MessageFlowError) as error:
            log.warning("worker.answer_lost", error=error.message)
            put_off(exchange, self._placements.now)
            return
        media = response.content_type.encode("latin-1")
        await stream_answer(exchange, response.status, content, media, _passed(response))

    def _ask(self, relay: _Relay) -> None:
        """Send the request to its worker, if a process serves it."""
        passage = relay.passage
        number = passage.ask(self._workers.place_of, self._any, asyncio.get_running_loop().time())
        if number is None:
            return
        told = partial(self._told, relay, passage.attempt)
        if relay.spooled is None:
            self._workers.request(number, "POST", MESSAGE, relay.content, told)
        else:
            headers = {"Content-Type": relay.spooled.media, REQUEST: b64encode(relay.content).decode()}
            self._workers.request_large(number, "POST", SPOOLED, relay.spooled.content, headers, told)

    def _any(self) -> int | None:
        placement = self._placements.now
        others = [one for one in (*placement.local, *placement.remote) if one != self._number]
        return random.choice(others) if others else None  # any will do

    def _told(self, relay: _Relay, attempt: int, outcome: Outcome) -> None:
        passage = relay.passage
        # A late answer of a former place: the last one asked decides.
        if attempt != passage.attempt or relay not in self._open:
            return
        if isinstance(outcome, Response) and outcome.status == LARGE and passage.asked is not None:
            path = f"{ANSWER}/{outcome.body.decode('latin-1')}"
            self._workers.request_large(passage.asked[0], "GET", path, b"", {}, partial(self._told, relay, attempt))
            return
        if isinstance(outcome, Response) and outcome.status != MISDIRECTED:
            self._end(relay)
            if relay.exchange.closed and relay.key is not None:
                self._keep(relay, relay.key, outcome)
            else:
                self._respond(relay, outcome)
            return
        error = outcome.message if isinstance(outcome, TransportError) else ""
        now = asyncio.get_running_loop().time()
        if passage.failed(error or "it has moved", now, is_lost=isinstance(outcome, TransportError)) is Move.ASK:
            self._ask(relay)

    def _look(self) -> None:
        """Ask again where that may help now, and give up where it has not helped for too long."""
        loop = asyncio.get_running_loop()
        for relay in list(self._open):
            passage = relay.passage
            # No reader is left for the answer, and no repeat can use it.
            if relay.exchange.closed and (relay.key is None or passage.asked is None):
                self._end(relay)
                continue
            move = passage.look(self._workers.place_of, loop.time())
            if move is Move.GIVE_UP:
                self._give_up(relay)
            elif move is Move.ASK:
                self._ask(relay)
        self._timer = loop.call_later(LOOK_SECONDS, self._look) if self._open else None

    def _give_up(self, relay: _Relay) -> None:
        self._end(relay)
        if (left_out := self._unreachable.admit()) is not None:
            log.warning("worker.unreachable", to=relay.passage.owner, error=relay.passage.error, left_out=left_out)
        put_off(relay.exchange, self._placements.now)


def put_off(exchange: Exchange, placement: Placement) -> None:
    """Let a peer send its request again later."""
    if placement.trouble is not None:  # only the admin listener names the database
        why = b"This server cannot store messages now; send it again.\n"
    elif placement.starting and not placement.local:
        why = b"This server is starting; send it again.\n"
    else:
        why = b"The process responsible for this message does not answer; send it again.\n"
    exchange.respond(503, why, b"text/plain", retry_after(1))


def respond(exchange: Exchange, response: Response) -> None:
    """Answer with what another worker answered."""
    content_type = response.content_type.encode("latin-1") or None
    exchange.respond(response.status, response.body, content_type, _passed(response))


def _passed(response: Response) -> list[tuple[bytes, bytes]]:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers.items()]
    return [one for one in headers if one[0] not in _OWN]
