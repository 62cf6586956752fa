"""One admin listener for several workers: each worker queries the others and merges their responses.

Each route declares (:class:`Joined`) which workers respond: the owner of the named resource, or all of them. Every
worker gets the same request, since numbers are unique in the endpoint (``endpoint.admin.numbering``). This module
owns the requests between workers; ``answers`` owns the merging of responses.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode
from zlib import crc32

from holdfast.cluster.operating.status import partitions_text
from holdfast.cluster.view import CUT_OFF_REMEDY
from holdfast.endpoint.admin.merged import answers as joining
from holdfast.endpoint.admin.merged.next_positions import NextOfAll
from holdfast.endpoint.admin.merged.stores import StoppedNeighbours
from holdfast.endpoint.admin.numbering import LETTERS, Numbering
from holdfast.endpoint.admin.routes import Joined, Refused, Route
from holdfast.endpoint.admin.shapes.answers import Discarded, GivenUp, Retried
from holdfast.endpoint.json_answers import json_answer
from holdfast.endpoint.worker import worker_of
from holdfast.endpoint.workers.frames.streams import MISDIRECTED
from holdfast.endpoint.workers.placement import Placement
from holdfast.endpoint.workers.routing import Neighbours
from holdfast.exceptions import HoldfastError, clause
from holdfast.http.exchange import Exchange
from holdfast.http.outcome import Response, TransportError
from holdfast.http.retry_after import retry_after
from holdfast.outages import Trouble

_NAME = re.compile(r"\{(\w+)(?::[^}]+)?\}")
RELAYED: Final = 1 << 16
"""Bytes of a stream that are passed on at a time."""
PAGE: Final = 1000
"""Rows in one answer."""
MOST_KNOWN: Final = 1024
"""Queues with remembered epochs, one of each worker."""
SOON: Final = 5.0
"""Seconds that a worker has to report its state: a restarted worker responds by then."""
_COMMON: Final = (400, 404)
"""Statuses with which every worker would refuse the same request."""
_LEAVING: Final = (Discarded, GivenUp, Retried)
"""Answers that report what remains: at all workers, whichever of them made the change."""


def _no_contact(placement: Placement, trouble: Trouble) -> Trouble:
    """Return why this node may not act."""
    what = f"this node has no contact with {placement.engine}: {trouble.what}"
    return Trouble(what, f"{trouble.remedy or f'Check {placement.engine}.'} The node then continues on its own.")


def _cut_off(placement: Placement) -> Trouble:
    return Trouble(f"most of the other nodes cannot reach this node at {placement.cut_off}", CUT_OFF_REMEDY)


def _unavailable(trouble: Trouble) -> Refused:
    return Refused(503, trouble.what, trouble.remedy)


class _Request:
    """A request to one worker: a copy that may be changed."""

    def __init__(
        self, route: Route, exchange: Exchange, query: dict[str, str], names: dict[str, str], body: bytes
    ) -> None:
        self.route = route
        self.exchange = exchange
        self.query = query
        self.names = names
        self.body = body

    def copy(self) -> _Request:
        return _Request(self.route, self.exchange, dict(self.query), dict(self.names), self.body)

    @property
    def target(self) -> str:
        path = _NAME.sub(lambda found: quote(self.names[found[1]], safe=""), self.route.path)
        return f"{path}?{urlencode(self.query)}" if self.query else path

    def content(self) -> dict[str, Any]:
        """Return the body if it is a JSON object, else an empty dict; the worker that receives it then rejects it."""
        try:
            said = json.loads(self.body) if self.body else {}
        except (ValueError, RecursionError):
            return {}
        return said if isinstance(said, dict) else {}

    @property
    def is_change(self) -> bool:
        return self.route.method != "GET" and self.content().get("dry_run") is not True

    def change(self, name: str, value: object) -> None:
        self.body = json.dumps(self.content() | {name: value}).encode()


class _Answer:
    """The response of one worker."""

    def __init__(self, worker: int, response: Response) -> None:
        self.worker = worker
        self.response = response
        self.status = response.status

    def json(self) -> Any:
        return json.loads(self.response.body) if self.response.body else {}

    def refusal(self) -> dict[str, Any]:
        try:
            told = self.json()
        except ValueError:
            told = None
        return told if isinstance(told, dict) else {"error": self.response.body.decode("utf-8", "replace").strip()}


class JoinedAdmin:
    """Admin interface of all workers."""

    def __init__(self, neighbours: Neighbours | StoppedNeighbours, numbers: Numbering, url: str = "") -> None:
        self.url = url
        self._neighbours = neighbours
        self._count = neighbours.place.worker.count
        self._numbers = numbers
        self._known: OrderedDict[tuple[str, str], list[str]] = OrderedDict()
        """A queue and its common epoch -> its epoch in each worker."""
        self._ways: dict[Joined, Callable[[_Request], Awaitable[Any]]] = {
            Joined.EACH: self._each,
            Joined.WILLING: self._each,
            Joined.PAGES: self._pages,
            Joined.WHOLE: self._whole,
            Joined.SEQUENCE: self._sequence,
            Joined.LETTER: self._letter,
            Joined.MESSAGE: self._message,
            Joined.PARTITION: self._partition,
            Joined.NEXT: self._next,
            Joined.SINK: self._sink,
            Joined.HEALTH: self._health,
            Joined.METRICS: self._metrics,
            Joined.NODES: self._nodes,
        }

    async def answer(self, route: Route, exchange: Exchange, query: str, names: Mapping[str, str]) -> int:
        """Answer a request of that route.

        Returns:
            The status.

        Raises:
            Refused: It cannot be done as asked, or a worker does not answer.
        """
        asked = dict(parse_qsl(query, keep_blank_values=True))
        request = _Request(route, exchange, asked, dict(names), exchange.request.body)
        if route.joined is Joined.STREAM:
            return await self._stream(request)
        answer = await self._ways[route.joined](request)
        if route.answer in _LEAVING:
            answer |= {"count": await self._left(route)}
        if isinstance(answer, bytes):
            exchange.respond(200, answer, str(route.answer).encode())
        elif answer is None:
            exchange.respond(204)
        else:
            json_answer(exchange, 200, answer)
        return 200 if answer is not None else 204

    async def _left(self, route: Route) -> int | None:
        """Return what remains at all workers after a change at one or more of them; None if one does not answer."""
        target = f"{route.path.partition('/')[0]}?limit=1"
        asked = (self._fetch(worker, "GET", target, b"") for worker in range(self._count))
        try:
            left = self._joined(list(await asyncio.gather(*asked)))["count"]
        except HoldfastError:
            return None  # the change itself is made
        return int(left)

    # --- asking ---------------------------------------------------------------------------------------------------

    async def _ask(self, worker: int, request: _Request) -> _Answer:
        return await self._fetch(worker, request.route.method, request.target, request.body)

    async def _fetch(self, worker: int, method: str, target: str, body: bytes) -> _Answer:
        try:
            answer = await self._neighbours.workers.fetch(worker, method, f"admin/{target}", body)
        except TransportError as error:
            raise self._away(worker, error.message) from None
        if answer.status == MISDIRECTED:
            raise self._misdirected(worker)
        return _Answer(worker, answer)

    @property
    def _kind(self) -> str:
        return "cluster partition" if self._neighbours.is_in_cluster else "worker"

    def _name(self, worker: int) -> str:
        return f"{self._kind} {worker}"

    def _away(self, worker: int, why: str) -> Refused:
        placement = self._neighbours.place.placements.now
        remedy = "The process is started again; repeat the request."
        if worker in placement.starting:
            why, remedy = "its process is starting on this node", "Repeat the request."
        elif worker in placement.remote:
            remedy = "Repeat the request: if its node is down, another one takes the partition over."
        elif worker not in placement.local:
            why, remedy = "no node has it", "Look why: holdfast cluster status."
        what = f"{self._name(worker)} does not answer: {why}"
        return Refused(503, what, remedy, retry_after(1))

    def _misdirected(self, worker: int) -> Refused:
        placement = self._neighbours.place.placements.now
        if placement.trouble is not None:
            return _unavailable(_no_contact(placement, placement.trouble))
        what = f"{self._name(worker)} does not answer: it is moving to another node"
        return Refused(503, what, "Repeat the request.", retry_after(1))

    async def _ask_all(self, requests: list[_Request]) -> Any:
        """Merge the responses of all workers.

        Raises:
            HoldfastError: A worker refuses or does not answer. All others have answered by then, and the message says
                in how many of them a change was made.
        """
        asked = (self._ask(worker, one) for worker, one in enumerate(requests))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        told = [one for one in answers if isinstance(one, _Answer)]
        try:
            for one in answers:
                if isinstance(one, BaseException):
                    raise one
            is_willing = requests[0].route.joined is Joined.WILLING
            return self._joined(await self._willing(told, requests[0]) if is_willing else told)
        except HoldfastError as error:
            done = sum(one.status < 400 for one in told)
            if done and requests[0].is_change:
                error.message += f"; done in {done} of {self._count} {self._kind}s"
            raise

    async def _willing(self, answers: list[_Answer], request: _Request) -> list[_Answer]:
        """Replace the refusals of workers that had nothing to do by what they have, if another one has made the change.
        So a request that was done in part can be repeated."""
        if all(one.status >= 300 for one in answers):
            return answers
        shown = request.target.partition("?")[0].rpartition("/")[0]
        return [await self._fetch(one.worker, "GET", shown, b"") if one.status == 409 else one for one in answers]

    def _joined(self, answers: list[_Answer]) -> Any:
        """Merge the responses of several workers. A worker that does not know the resource counts only if none does.

        Raises:
            Refused: The first refusal.
        """
        there = [one for one in answers if one.status != 404] or answers[:1]
        is_common = len(answers) > 1 and len({one.response.body for one in answers}) == 1
        for one in there:
            if one.status >= 400:
                raise self._refused(one.worker, one.status, one.refusal(), _retry(one), is_common=is_common)
        if all(one.status == 204 for one in there):
            return None
        return joining.merge([one.json() for one in there])

    def _refused(
        self,
        worker: int,
        status: int,
        told: Any,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        *,
        is_common: bool = False,
    ) -> Refused:
        """Return the refusal of a worker, with its name unless all workers refuse alike."""
        more = {name: value for name, value in told.items() if name not in ("error", "remedy")}
        name = "" if is_common or status in _COMMON else f" ({self._name(worker)})"
        return Refused(status, f"{told.get('error')}{name}", told.get("remedy", ""), headers, more)

    async def _for_each(self, request: _Request) -> list[_Request]:
        """Return the request to each worker, with the epoch that the queue has there."""
        content = request.content()
        epoch = content.get("epoch", request.query.get("epoch"))
        if epoch is None or "name" not in request.names:
            return [request] * self._count
        requests = [request.copy() for _ in range(self._count)]
        for one, own in zip(requests, await self._epochs(request.names["name"], str(epoch)), strict=True):
            one.change("epoch", own) if "epoch" in content else one.query.update(epoch=own)
        return requests

    async def _epochs(self, queue: str, epoch: str) -> list[str]:
        """Return the epoch of the queue in each worker.

        Raises:
            Refused: 409 if together they are not the requested epoch.
        """
        asked = [await self._fetch(worker, "GET", "queues", b"") for worker in range(self._count)]
        answers = [self._joined([one])["queues"] for one in asked]
        if any(queue not in one for one in answers):
            return [epoch] * self._count  # their responses will report the mismatch
        epochs = [str(one[queue]["epoch"]) for one in answers]
        joining.check_epoch(queue, epochs, epoch)
        self._known[queue, epoch] = epochs
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return epochs

    # --- the owner ------------------------------------------------------------------------------------------------

    async def _each(self, request: _Request) -> Any:
        partition = request.content().get("partition")
        if type(partition) is int:
            return self._joined([await self._ask(self._numbers.owner(str(partition), 400), request)])
        return await self._ask_all(await self._for_each(request))

    async def _sequence(self, request: _Request) -> Any:
        worker = worker_of(request.names["identifier"])
        if worker is not None and worker < self._count:
            answer = await self._ask(worker, request)
            # A worker of the peer's server may have made the Identifier: its number says nothing here.
            if answer.status != 404:
                return self._joined([answer])
        return await self._each(request)

    async def _letter(self, request: _Request) -> Any:
        if request.names["letter"] == "all":
            return await self._each(request)
        worker = self._numbers.owner_of_letter(request.names["letter"])
        return self._joined([await self._ask(worker, request)])

    async def _message(self, request: _Request) -> Any:
        worker = self._numbers.owner_of_name(request.names["message"])
        return self._joined([await self._ask(worker, request)])

    async def _sink(self, request: _Request) -> Any:
        """Answer a request about a sink, which exists at one worker.

        The worker that has the sink answers, because the number of workers may have changed since its creation. For a
        new sink, its name selects the worker.
        """
        worker = await self._owner_of_sink(request.names["sink"])
        return self._joined([await self._ask(worker, request)])

    async def _owner_of_sink(self, name: str) -> int:
        worker = await self._who_has(f"sinks/{quote(name, safe='')}")
        # Not hash(): every process must find the same worker.
        return crc32(name.encode()) % self._count if worker is None else worker

    async def _who_has(self, target: str) -> int | None:
        """Return the worker that has the resource at ``target``; None if every worker reports that it does not exist.

        Raises:
            Refused: No worker reports that it has it, and one does not respond: it could be created a second time
                elsewhere.
        """
        asked = (self._fetch(worker, "GET", target, b"") for worker in range(self._count))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for one in answers:
            if isinstance(one, _Answer) and one.status == 200:
                return one.worker
        for one in answers:
            if isinstance(one, BaseException):
                raise one
            if one.status != 404:
                self._joined([one])
        return None

    async def _partition(self, request: _Request) -> Any:
        worker, one = await self._to_owner(request)
        return self._joined([await self._ask(worker, one)])

    async def _to_owner(self, request: _Request) -> tuple[int, _Request]:
        if "file" in request.names:
            return self._numbers.owner_of_name(request.names["file"]), request
        worker = self._numbers.owner(request.names["partition"])
        one, epoch = request.copy(), request.query.get("epoch")
        if epoch is not None:
            # Remembered, so that a read needs no other worker. A worker refuses the request if its epoch has changed.
            key = (request.names["name"], epoch)
            one.query["epoch"] = (self._known.get(key) or await self._epochs(*key))[worker]
        return worker, one

    # --- ways of their own ----------------------------------------------------------------------------------------

    async def _pages(self, request: _Request) -> Any:
        is_numbered = request.target.startswith("dead-letters")  # each worker knows where the page begins
        begun, place = (0, "") if is_numbered else _marked(request.query.pop("after", ""))
        left = min(PAGE, int(request.query.get("limit", PAGE // 10)))
        pages: list[Any] = []
        following: int | str | None = None
        for worker in range(self._count):
            one, is_shown = request.copy(), worker >= begun and left > 0 and following is None
            # Asked too, for its total and for whether a next page exists.
            one.query["limit"] = str(left) if is_shown else "1"
            if not is_shown:
                one.query.pop("whole", None)  # only whether there is a row counts
            if worker == begun and place:
                one.query["after"] = place
            page = self._joined([await self._ask(worker, one)])
            rows = next(name for name, value in page.items() if isinstance(value, list))
            after = page["next"]
            if not is_shown:
                has_more, page[rows] = worker >= begun and bool(page[rows]), []
                after = "" if has_more else None
            if following is None and after is not None:
                following = (after or worker * LETTERS) if is_numbered else f"{worker}~{after}"
            left -= len(page[rows])
            pages.append(page)
        return joining.merge(pages) | {"next": following}

    async def _next(self, request: _Request) -> Any:
        return await NextOfAll(self._fetch, self._joined, self._numbers, request.content()).answer()

    async def _whole(self, request: _Request) -> Any:
        """Answer with all rows of a short list together."""
        request.query = {"limit": str(PAGE)}
        answer = await self._ask_all([request] * self._count)
        rows = next(value for value in answer.values() if isinstance(value, list))
        return answer | {"count": len(rows), "next": None}

    async def _health(self, request: _Request) -> Any:
        """Answer for this host: another node's trouble is for its own probes to find."""
        placement = self._neighbours.place.placements.now
        is_liveness = request.route.path == "healthz"
        answer: dict[str, Any] = {"status": "ok" if is_liveness else "ready"}
        trouble = _no_contact(placement, placement.trouble) if placement.trouble is not None else None
        if trouble is not None and not is_liveness:
            raise _unavailable(trouble)
        if placement.local:
            asked = (self._ask_soon(one, request) for one in sorted(placement.local))
            answer |= self._joined(list(await asyncio.gather(*asked)))
        if trouble is not None:
            answer["trouble"] = str(trouble)
        if placement.cut_off:
            answer["cut_off"] = str(_cut_off(placement))
        if is_liveness or not self._neighbours.is_in_cluster:
            return answer
        if not (placement.local or placement.remote):
            what = "no process serves a partition at this node, and it knows no other node that has one"
            raise Refused(503, what, "Look why: holdfast cluster status, and the logs of the nodes.")
        if (trouble := self._why_not_ready(placement)) is not None:
            raise _unavailable(trouble)
        states = dict.fromkeys(placement.local, "serving") | dict.fromkeys(placement.starting, "starting")
        return answer | {"partitions": {str(one): state for one, state in sorted(states.items())}}

    @staticmethod
    def _why_not_ready(placement: Placement) -> Trouble | None:
        """Return why requests should go to other nodes. A partition that no node can serve is no reason: then the
        others can do no more than this one."""
        failed = [one for one in sorted(placement.failed) if one in placement.remote or not placement.local]
        if failed:
            what = f"this node could not start {partitions_text(failed)}: {clause(placement.failed[failed[0]])}"
            remedy = "Correct the configuration of this node, and look at its log and at holdfast cluster status."
            return Trouble(what, remedy)
        if placement.starting and not placement.local:
            return Trouble("this node is starting its partitions", "Wait; its log shows what it is waiting for.")
        if placement.cut_off and not placement.local:
            return _cut_off(placement)
        return None

    async def _nodes(self, request: _Request) -> Any:
        """Answer with the node of each worker. On one host, every process reaches every worker."""
        sink, placement = request.query.pop("sink", ""), self._neighbours.place.placements.now
        answer = {"v": 1, "url": self.url, "partitions": self._numbers.size, "workers": []}
        if not self._neighbours.is_in_cluster:
            return answer
        one_each = {node: worker for worker, node in placement.remote.items()}
        asked = [self._ask_soon(worker, request) for worker in one_each.values()]
        told = dict(zip(one_each, await asyncio.gather(*asked, return_exceptions=True), strict=True))
        urls = {node: one.json()["url"] for node, one in told.items() if isinstance(one, _Answer) and one.status == 200}
        workers = dict.fromkeys(placement.local, self.url) | {
            worker: urls.get(node) for worker, node in placement.remote.items()
        }
        answer["workers"] = [workers.get(worker) or None for worker in range(self._count)]
        return answer | ({"sink": await self._owner_of_sink(sink)} if sink else {})

    async def _metrics(self, request: _Request) -> bytes:
        """Merge the metrics of the workers that respond, so that a starting worker does not hide the others'."""
        asked = (self._ask_soon(worker, request) for worker in range(self._count))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        told = {
            one.worker: one.response.body.decode() for one in answers if isinstance(one, _Answer) and one.status == 200
        }
        now = self._neighbours.place.placements.now
        of_the_node = {joining.CUT_OFF: bool(now.cut_off), joining.AWAY: now.trouble is not None}
        return joining.merge_metrics(told, self._count, of_the_node if self._neighbours.is_in_cluster else None)

    async def _ask_soon(self, worker: int, request: _Request) -> _Answer:
        try:
            async with asyncio.timeout(SOON):
                return await self._ask(worker, request)
        except TimeoutError:
            raise Refused(503, f"{self._name(worker)} does not answer", "Check its log.") from None

    async def _stream(self, request: _Request) -> int:
        """Relay the response of the owner piece by piece; that of another node as a whole."""
        worker, one = await self._to_owner(request)
        exchange = request.exchange
        if worker not in self._neighbours.place.placements.now.local:
            answer = await self._ask(worker, one)
            if answer.status != 200:
                raise self._refused(worker, answer.status, answer.refusal())
            exchange.respond(200, answer.response.body, str(request.route.answer).encode())
            return 200
        try:
            path = self._neighbours.place.paths[worker]
            reader, writer = await asyncio.open_unix_connection(path, limit=RELAYED)
        except OSError as error:
            raise self._away(worker, str(error)) from None
        try:
            # 1.0: the response ends with the connection, and has no chunks that would have to be parsed here.
            writer.write(f"{one.route.method} /admin/{one.target} HTTP/1.0\r\n\r\n".encode())
            status, content = await self._begun(worker, reader)
            if status != 200:
                raise self._refused(worker, status, json.loads(content))
            exchange.start(200, str(request.route.answer).encode())
            with contextlib.suppress(OSError):  # if the owner died, what is missing tells the reader
                while exchange.wants_content and (data := await reader.read(RELAYED)):
                    if not exchange.write(data):
                        await exchange.drain()
            exchange.finish()
        finally:
            writer.close()
        return 200

    async def _begun(self, worker: int, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        """Return the status of a response that a worker begins, and the content of a refusal."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status = int(head.split(" ", 2)[1])
            return status, b"" if status == 200 else await reader.read()
        except (OSError, asyncio.IncompleteReadError) as error:
            raise self._away(worker, str(error)) from None


def _retry(answer: _Answer) -> tuple[tuple[bytes, bytes], ...]:
    seconds = answer.response.headers.get("retry-after")
    return ((b"Retry-After", seconds.encode("latin-1")),) if seconds is not None else ()


def _marked(text: str) -> tuple[int, str]:
    """Return the worker with which a page continues, and the position there."""
    worker, mark, place = text.partition("~")
    return (int(worker), place) if mark and worker.isascii() and worker.isdecimal() and len(worker) < 5 else (0, text)
