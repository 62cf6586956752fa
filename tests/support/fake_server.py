"""The data plane of a server, small: queues in memory, over HTTP by the standard library, with faults at will."""

from __future__ import annotations

import json
import re
import threading
import zlib
from bisect import bisect_left
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from fake_sinks import SinkRefusal, Sinks

from holdfast.client.blocks import Block, BlockReader
from holdfast.core.records import Record
from holdfast.endpoint.admin.data_plane.admission import Guess, oldest
from holdfast.endpoint.record_blocks import MEDIA_TYPE, encode_block, encode_trailer
from holdfast.store.records import decode_record, emptied, encode_record
from holdfast.testing.ports import free_ports

Where = tuple[str, int]
"""A partition of a queue."""


def record(number: int, body: str | None = None, **fields: Any) -> Record:
    """A record like those of an inbox; its message_number is ``number``."""
    text = f"<o:order xmlns:o='urn:orders'><o:id>{number}</o:id></o:order>" if body is None else body
    values: dict[str, Any] = {
        "sequence": "urn:uuid:one",
        "message_number": number,
        "action": "urn:orders/Submit",
        "body": text.encode(),
        "received_at": 1_700_000_000.25 + number,
    }
    return Record(**{**values, **fields})


def block(first: int, records: list[bytes]) -> Block:
    """Encoded records as a block that has come from a server."""
    (came,) = BlockReader(
        BytesIO(encode_block(first, records) + encode_trailer(len(records))).read, first, first + len(records), "q"
    )
    return came


class Refusal(Exception):
    def __init__(self, status: int, error: str, remedy: str = "") -> None:
        super().__init__(error)
        self.status = status
        self.answer = {"error": error, "remedy": remedy}


class Queue:
    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self.partitions: dict[int, list[bytes]] = {}
        self.firsts: dict[int, int] = {}
        self.cursors: dict[str, dict[str, int]] = {}

    def fingerprint(self, partition: int, position: int) -> str:
        records = self.partitions.get(partition, [])
        return f"{zlib.crc32(records[position - 1]):08x}" if 0 < position <= len(records) else ""

    def bounds(self) -> dict[str, dict[str, int]]:
        return {str(p): {"first": self.firsts.get(p, 0), "end": len(r)} for p, r in sorted(self.partitions.items())}


class FakeServer:
    """``stop`` is a crash as its clients see it, ``start`` a restart at the same port with the same queues.

    ``on_records`` is called before each answer to a request for records, with how many were asked for so far; it
    may return the number of bytes after which the connection is to be cut.

    ``sinks`` take rows. ``on_sink`` is called with each request for one, "POST /sinks/...", and may return ``"before"``
    to cut the connection before anything is done, ``"after"`` to cut it before the answer, or an event that the answer
    waits for.
    """

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.requests: list[str] = []
        self.nodes: dict[str, Any] | None = None
        """What it answers about the nodes of its cluster; None: it is older."""
        self.nexts: list[dict[str, Any]] = []
        """The contents of the requests for next positions."""
        self.media_type = MEDIA_TYPE.decode()
        self.on_records: Callable[[int], int | None] = lambda asked: None
        self.sinks = Sinks()
        self.on_sink: Callable[[str], str | threading.Event | None] = lambda request: None
        self.version = 1
        self.token = ""
        self.homes: dict[str, int] = {}
        self.finds_times = True
        self._asked = 0
        self._changed = threading.Condition()
        self._server: ThreadingHTTPServer | None = None
        (self._port,) = free_ports(1)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> FakeServer:
        self._server = _Server(("127.0.0.1", self._port), self)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            with self._changed:
                self._changed.notify_all()

    def running(self, server: object) -> bool:
        return self._server is server

    def create(self, queue: str, *, partitions: int = 1, epoch: str = "e1") -> Queue:
        made = self.queues[queue] = Queue(epoch)
        made.partitions = {partition: [] for partition in range(partitions)}
        return made

    def append(self, queue: str, partition: int, records: list[Record]) -> None:
        with self._changed:
            self.queues[queue].partitions.setdefault(partition, []).extend(encode_record(r) for r in records)
            self._changed.notify_all()

    # --- the requests ------------------------------------------------------------------------------------------

    def ends(self, name: str) -> dict[str, Any]:
        queue = self._queue(name)
        return {"v": self.version, "queue": name, "epoch": queue.epoch, "partitions": queue.bounds()}

    def next_positions(self, asked: dict[str, Any], server: object) -> dict[str, Any]:
        """As the real server does, with records in memory."""
        self.nexts.append(asked)
        named = {name: one for name, one in asked["queues"].items() if name in self.queues}
        for name, one in named.items():
            if one["epoch"] != (epoch := self.queues[name].epoch):
                raise Refusal(409, f"the epoch of queue {name!r} is {epoch}, not {one['epoch']}", "a new checkpoint")

        def shape() -> tuple[dict[Where, int], dict[Where, int], bool]:
            since, ends, has_lost = {}, {}, False
            for name, one in named.items():
                for partition, bounds in self.queues[name].bounds().items():
                    if one.get("until") is None or partition in one["until"]:
                        end = bounds["end"] if one.get("until") is None else one["until"][partition]
                        stands = one["offsets"].get(partition, 0)
                        has_lost |= stands < min(bounds["first"], end)
                        since[name, int(partition)], ends[name, int(partition)] = (
                            min(max(bounds["first"], stands), end),
                            end,
                        )
            return since, ends, has_lost

        def is_enough() -> bool:
            since, ends, has_lost = shape()
            return has_lost or sum(ends.values()) - sum(since.values()) >= asked["least"] or not self.running(server)

        with self._changed:
            self._changed.wait_for(is_enough, timeout=asked["wait"])
            since, ends, _ = shape()
            guess = asked.get("guess") or {"ended": 1_800_000_000_000_000, "width": 0}
            if "most" in asked:
                ends, guess = self._oldest(since, ends, asked["most"], guess)
            shown: dict[str, Any] = {
                name: {"epoch": one.epoch, "partitions": one.bounds()}
                for name, one in self.queues.items()
                if asked["others"] or name in named
            }
            for name, one in named.items():
                until = {partition: at for (queue, partition), at in ends.items() if queue == name}
                shown[name]["offsets"] = {str(partition): at for partition, at in until.items()}
                if any(at != one["offsets"].get(str(partition), 0) for partition, at in until.items()):
                    known = one.get("fingerprints", {})
                    self.compare(name, [(p, str(one["offsets"][p]), text) for p, text in known.items()])
                    found = {str(p): self.queues[name].fingerprint(p, at) for p, at in until.items()}
                    shown[name]["fingerprints"] = found
            return {"v": self.version, "queues": shown, "guess": guess}

    def _oldest(
        self, since: dict[Where, int], ends: dict[Where, int], most: int, guess: dict[str, int]
    ) -> tuple[dict[Where, int], dict[str, int]]:
        search = oldest(since, ends, most, Guess(**guess))
        try:
            probe = next(search)
            while True:
                found = {}
                for (queue, partition), (start, end) in probe.within.items():
                    records = [decode_record(one) for one in self.queues[queue].partitions[partition][start:end]]
                    times = [round(one.delivered_at * 1e6) for one in records]
                    found[queue, partition] = start + bisect_left(times, probe.time)
                probe = search.send(found)
        except StopIteration as over:
            until, following = over.value
            return until, {"ended": following.ended, "width": following.width}

    def records(
        self, name: str, partition: int, start: int, end: int, epoch: str, without: list[str]
    ) -> tuple[bytes, int | None]:
        queue = self._queue(name)
        records = queue.partitions.get(partition, [])
        if epoch != queue.epoch:
            raise Refusal(409, f"queue {name} has epoch {queue.epoch}")
        if start < queue.firsts.get(partition, 0):
            raise Refusal(410, f"records below {queue.firsts[partition]} are trimmed", "read from there")
        if end > len(records):
            raise Refusal(416, f"the end is {len(records)}")
        self._asked += 1
        cut = self.on_records(self._asked)
        records = emptied(records[:end], without)
        pieces = [encode_block(at, records[at : at + 100]) for at in range(start, end, 100)]
        return b"".join(pieces) + encode_trailer(end - start), cut

    def fingerprints(self, name: str, at: dict[str, int]) -> dict[str, Any]:
        queue = self._queue(name)
        found = {p: queue.fingerprint(int(p), position) for p, position in at.items()}
        return {"epoch": queue.epoch, "fingerprints": found}

    def offsets_at(self, name: str, at: dict[str, int]) -> dict[str, Any]:
        queue = self._queue(name)
        found = {}
        for partition, micros in at.items():
            records = [decode_record(one) for one in queue.partitions[int(partition)]]
            first = queue.firsts.get(int(partition), 0)
            later = (o for o, r in enumerate(records) if o >= first and round(r.delivered_at * 1e6) >= micros)
            found[partition] = next(later, len(records))
        return {"epoch": queue.epoch, "offsets": found}

    def compare(self, name: str, known: list[tuple[str, str, str]]) -> None:
        for partition, position, fingerprint in known:
            if self._queue(name).fingerprint(int(partition), int(position)) != fingerprint:
                raise Refusal(409, f"another record is below {position}: the store was put back to an older copy")

    def cursor(self, name: str, cursor: str) -> dict[str, Any]:
        queue = self._queue(name)
        if cursor not in queue.cursors:
            raise Refusal(404, f"no cursor {cursor}")
        return {"epoch": queue.epoch, "offsets": queue.cursors[cursor]}

    def put_cursor(self, name: str, cursor: str, body: dict[str, Any]) -> dict[str, Any]:
        queue = self._queue(name)
        if body["epoch"] != queue.epoch:
            raise Refusal(409, f"queue {name} has epoch {queue.epoch}")
        self.compare(name, [(p, str(body["offsets"][p]), text) for p, text in body.get("fingerprints", {}).items()])
        for partition, offset in body["offsets"].items():
            if cursor not in queue.cursors and offset < queue.firsts.get(int(partition), 0):
                raise Refusal(410, f"records below {queue.firsts[int(partition)]} are deleted", "begin there")
        kept = queue.cursors.setdefault(cursor, {})
        for partition, offset in body["offsets"].items():
            kept[partition] = max(offset, kept.get(partition, 0))
        return {"offsets": kept}

    def _queue(self, name: str) -> Queue:
        if name not in self.queues:
            raise Refusal(404, f"no queue {name}")
        return self.queues[name]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], fake: FakeServer) -> None:
        super().__init__(address, _Handler)
        self.fake = fake

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are killed, and answers that are cut, are what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are written one by one
    server: _Server

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer("GET")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def _answer(self, method: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fake = self.server.fake
        if not fake.running(self.server):  # a kept connection of a server that was stopped
            self.close_connection = True
            return
        fake.requests.append(f"{method} {self.path}")
        try:
            if fake.token and self.headers["Authorization"] != f"Bearer {fake.token}":
                raise Refusal(401, "the token is not the right one")
            self._dispatch(fake, method, body)
        except (Refusal, SinkRefusal) as refusal:
            self._json(refusal.status, refusal.answer)

    def _dispatch(self, fake: FakeServer, method: str, body: bytes) -> None:
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        steps = [unquote(step) for step in parts.path.strip("/").split("/")]
        if "known" in query:
            fake.compare(steps[1], re.findall(r"(\d+):(\d+):(\w+)", query["known"]))
        if steps[0] == "sinks":
            self._sink(fake, method, steps, query, body)
        elif steps == ["queues"]:
            found = {n: {"epoch": q.epoch, "partitions": q.bounds()} for n, q in fake.queues.items()}
            self._json(200, {"v": fake.version, "queues": found})
        elif steps == ["nodes"] and fake.nodes is None:
            raise Refusal(404, f"there is no {self.path} here")
        elif steps == ["nodes"]:
            self._json(200, fake.nodes)
        elif steps == ["next-positions"]:
            self._json(200, fake.next_positions(json.loads(body), self.server))
        elif steps[0] == "elsewhere":
            raise Refusal(404, f"there is no {self.path} here")
        elif steps[0] == "sequences":
            found = fake.homes.get(steps[1])
            self._json(404 if found is None else 200, {"identifier": steps[1], "partition": found})
        elif steps[2:] == ["ends"]:
            if query.get("epoch", (there := fake._queue(steps[1]).epoch)) != there:
                raise Refusal(409, f"queue {steps[1]} has epoch {there}")
            self._json(200, fake.ends(steps[1]))
        elif steps[2:] == ["fingerprints"]:
            if query["epoch"] != fake._queue(steps[1]).epoch:
                raise Refusal(409, f"queue {steps[1]} has epoch {fake._queue(steps[1]).epoch}")
            self._json(
                200, fake.fingerprints(steps[1], {p: int(o) for p, o in re.findall(r"(\d+):(\d+)", query["at"])})
            )
        elif steps[2:] == ["offsets"] and fake.finds_times:
            at = {p: int(o) for p, o in re.findall(r"(\d+):(\d+)", query["at"])}
            self._json(200, fake.offsets_at(steps[1], at))
        elif steps[2:] == ["offsets"]:
            raise Refusal(404, f"there is no {self.path} here")
        elif steps[2] == "cursors" and method == "GET":
            self._json(200, fake.cursor(steps[1], steps[3]))
        elif steps[2] == "cursors" and method == "DELETE":
            fake._queue(steps[1]).cursors.pop(steps[3], None)
            self.send_response(204)
            self.end_headers()
        elif steps[2] == "cursors":
            self._json(200, fake.put_cursor(steps[1], steps[3], json.loads(body)))
        else:
            start, end = int(query["from"]), int(query["to"])
            without = query.get("without", "").split(",")
            self._stream(*fake.records(steps[1], int(steps[2]), start, end, query["epoch"], without))

    def _sink(self, fake: FakeServer, method: str, steps: list[str], query: dict[str, str], body: bytes) -> None:
        cut = fake.on_sink(f"{method} {self.path}")
        answer = fake.sinks.answer(method, steps, query, body) if cut != "before" else {}
        if isinstance(cut, threading.Event):
            cut.wait(300)
            cut = None
        if cut is None:
            self._json(200, answer)
        else:
            self.close_connection = True

    def _json(self, status: int, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, data: bytes, cut: int | None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", self.server.fake.media_type)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        whole, data = cut is None, data[:cut]
        for at in range(0, len(data), 50_000):
            piece = data[at : at + 50_000]
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        if whole:
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.wfile.flush()
            self.close_connection = True
