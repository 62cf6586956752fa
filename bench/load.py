"""A lean load generator: N connections, each with its next request after the last answer, or at a fixed time.

Run it as a separate process, so that its cost does not count as the server's::

    python bench/load.py --url http://127.0.0.1:8080/rm --connections 64 --seconds 3
    python bench/load.py --url http://127.0.0.1:8080/rm --rate 2000
    python bench/load.py --url http://127.0.0.1:8080/ --plain --pid 4711 --json

With ``--rate``, this many requests are due per second, evenly spread over all connections. A latency counts from the
time at which its request was due, not from the time at which a connection was free. So a server that stalls gets no
less load.

Another benchmark calls ``measure(url, reliable(...))``, or ``in_process([...])`` for a child process with the same
arguments. Each connection sends a Script. ``reliable`` creates a Sequence for each connection and sends numbered
messages in it, checking that every answer acknowledges the number just sent; ``plain`` repeats the same bytes. The
messages are ``notify`` of the interoperability tests' contract, so that every available peer can be loaded.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import re
import subprocess
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import httptools

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from paper.summary import quantile

from holdfast import MessageContext, UsernameToken
from holdfast.core.messages import Envelope
from holdfast.core.versions import SOAP as SOAP_VERSION

FIRST = 60.0
"""Seconds beyond its duration that a run waits for its first answer, because it measures nothing without one."""
CONTRACT = "urn:holdfast:interop"
SOAP = {
    "1.1": ("http://schemas.xmlsoap.org/soap/envelope/", "text/xml; charset=utf-8"),
    "1.2": ("http://www.w3.org/2003/05/soap-envelope", "application/soap+xml; charset=utf-8"),
}
SOAP_VERSIONS = {"1.1": SOAP_VERSION.V1_1, "1.2": SOAP_VERSION.V1_2}
USER, PASSWORD = "alice", "secret"
RM = {"1.0": "http://schemas.xmlsoap.org/ws/2005/02/rm", "1.1": "http://docs.oasis-open.org/ws-rx/wsrm/200702"}
ADDRESSING = "http://www.w3.org/2005/08/addressing"
ANONYMOUS, NOBODY = f"{ADDRESSING}/anonymous", f"{ADDRESSING}/none"
IDENTIFIER = re.compile(rb"<(?:[\w.-]+:)?Identifier[^>]*>\s*([^<\s]+)\s*<")
UPPER = re.compile(rb"""\bUpper\s*=\s*["'](\d+)["']""")


class Script(Protocol):
    """The requests of one connection, and the check of the answers."""

    def next_request(self) -> bytes:
        """Return the next HTTP request."""

    def check(self, status: int, body: bytes) -> str:
        """Return the problem of its answer, "" without one."""


MakeScript = Callable[[str, int], Script]
"""Takes the URL and the connection's number."""


@dataclass(slots=True)
class Result:
    """The results of a run, without its warm-up; latencies in milliseconds."""

    seconds: float
    requests: int
    rate: float
    p50: float
    p90: float
    p99: float
    p999: float
    longest: float
    errors: dict[str, int] = field(default_factory=dict)
    server_cpu_us: float | None = None
    """The server processes' CPU microseconds per request, if a pid was given."""
    answered: int = 0
    """Number of all answers, including those during the warm-up."""

    def __str__(self) -> str:
        cpu = "" if self.server_cpu_us is None else f"  server {self.server_cpu_us:.1f} us CPU/request"
        errors = "".join(f"\n  {count} x {error}" for error, count in self.errors.items())
        return (
            f"{self.rate:,.0f} requests/s  p50 {self.p50:.2f}  p90 {self.p90:.2f}  p99 {self.p99:.2f}  "
            f"p99.9 {self.p999:.2f}  longest {self.longest:.2f} ms{cpu}{errors}"
        )


def request_bytes(url: str, body: bytes, *headers: str) -> bytes:
    """Return one whole POST request."""
    return _head(url, headers) + b"%d\r\n\r\n%b" % (len(body), body)


def _head(url: str, headers: Sequence[str]) -> bytes:
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = "".join(f"{header}\r\n" for header in headers)
    return f"POST {target} HTTP/1.1\r\nHost: {parts.netloc}\r\n{lines}Content-Length: ".encode()


class _Plain:
    def __init__(self, request: bytes) -> None:
        self._request = request

    def next_request(self) -> bytes:
        return self._request

    def check(self, status: int, body: bytes) -> str:
        return "" if 200 <= status < 300 else f"HTTP {status}"


def plain(body: bytes) -> MakeScript:
    """Repeat the same content; any 2xx is a success."""

    def make(url: str, number: int) -> Script:
        return _Plain(request_bytes(url, body, "Content-Type: application/octet-stream"))

    return make


class Reliable:
    """One Sequence, filled as fast as it is acknowledged (WS-ReliableMessaging 3.4 to 3.9)."""

    def __init__(self, url: str, number: int, soap: str, rm: str, body: str, token: UsernameToken | None) -> None:
        self._url, self._soap, self._rm, self._body, self._token = url, soap, rm, body, token
        self._unique = f"urn:uuid:{os.urandom(4).hex()}-{number:04x}-4000-8000-"
        self._ids = itertools.count(1)
        self._pieces: list[bytes] = []
        self._numbers = itertools.count(1)
        self._sent = 0  # the number awaiting its acknowledgement; 0 while the Sequence is being created

    def next_request(self) -> bytes:
        if not self._pieces:
            return self._create()
        self._sent = next(self._numbers)
        head, start, middle, last, end = self._pieces
        content = b"%b%012x%b%d%b%b%b" % (start, next(self._ids), middle, self._sent, last, self._security(), end)
        return b"%b%d\r\n\r\n%b" % (head, len(content), content)

    def check(self, status: int, body: bytes) -> str:
        if self._sent:
            uppers = [int(upper) for upper in UPPER.findall(body)]
            if status == 200 and uppers and max(uppers) == self._sent:
                return ""
            problem = f"HTTP {status} does not acknowledge the number sent: {body[:300]!r}"
            self._start_again()
            return problem
        found = IDENTIFIER.search(body) if status == 200 else None
        if found is None:
            return f"HTTP {status} is no CreateSequenceResponse: {body[:300]!r}"
        self._use(found[1].decode())
        return ""

    def _start_again(self) -> None:
        self._pieces = []
        self._numbers = itertools.count(1)
        self._sent = 0

    def _create(self) -> bytes:
        create = f"<r:CreateSequence><r:AcksTo><a:Address>{ANONYMOUS}</a:Address></r:AcksTo></r:CreateSequence>"
        content = self._envelope(
            f"{RM[self._rm]}/CreateSequence",
            f"{self._unique}{next(self._ids):012x}",
            self._security().decode(),
            create,
        ).encode()
        return self._http_head(f"{RM[self._rm]}/CreateSequence") + b"%d\r\n\r\n%b" % (len(content), content)

    def _use(self, identifier: str) -> None:
        action = f"{CONTRACT}/notify"
        must = "1" if self._soap == "1.1" else "true"
        sequence = (
            f'<r:Sequence s:mustUnderstand="{must}"><r:Identifier>{identifier}</r:Identifier>'
            "<r:MessageNumber>@NUMBER@</r:MessageNumber></r:Sequence>"
            f"<r:AckRequested><r:Identifier>{identifier}</r:Identifier></r:AckRequested>"
        )
        envelope = self._envelope(action, f"{self._unique}@ID@", f"{sequence}@SECURITY@", self._body, NOBODY)
        start, _, rest = envelope.encode().partition(b"@ID@")
        middle, _, rest = rest.partition(b"@NUMBER@")
        last, _, end = rest.partition(b"@SECURITY@")
        self._pieces = [self._http_head(action), start, middle, last, end]

    def _security(self) -> bytes:
        if self._token is None:
            return b""
        envelope = Envelope(SOAP_VERSIONS[self._soap])
        notes: dict[str, Any] = {}
        self._token.outbound(MessageContext(envelope, "outbound", "source", notes, is_answer=False))
        return envelope.headers[0]

    def _http_head(self, action: str) -> bytes:
        content_type = SOAP[self._soap][1]
        if self._soap == "1.1":
            return _head(self._url, (f"Content-Type: {content_type}", f'SOAPAction: "{action}"'))
        return _head(self._url, (f'Content-Type: {content_type}; action="{action}"',))

    def _envelope(self, action: str, message_id: str, header: str, body: str, reply_to: str = ANONYMOUS) -> str:
        return (
            f'<s:Envelope xmlns:s="{SOAP[self._soap][0]}" xmlns:a="{ADDRESSING}" xmlns:r="{RM[self._rm]}"><s:Header>'
            f"<a:To>{self._url}</a:To><a:Action>{action}</a:Action><a:MessageID>{message_id}</a:MessageID>"
            f"<a:ReplyTo><a:Address>{reply_to}</a:Address></a:ReplyTo>{header}</s:Header><s:Body>{body}</s:Body>"
            "</s:Envelope>"
        )


def reliable(
    soap: str = "1.2", rm: str = "1.1", body_bytes: int = 370, token: UsernameToken | None = None
) -> MakeScript:
    """One Sequence for each connection, with numbered messages of about 730 bytes and a body of ``body_bytes``. With a
    token, each has a Timestamp and a user name, too."""
    start, end = f"<notify xmlns='{CONTRACT}'><key>k</key><number>1</number><body>", "</body></notify>"
    body = start + "x" * max(0, body_bytes - len(start) - len(end)) + end
    return lambda url, number: Reliable(url, number, soap, rm, body, token)


class _Connection(asyncio.Protocol):
    """One connection of the closed loop."""

    def __init__(self, run: _Run, script: Script) -> None:
        self._run, self._script = run, script
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._due = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._run.transports.append(self._transport)

    def begin(self, share: float) -> None:
        """Send the first request; ``share`` is its offset within the interval, if requests are paced."""
        self._due = time.perf_counter() + share * self._run.interval
        self._next()

    def _next(self) -> None:
        if not self._run.interval:
            self._due = time.perf_counter()
            self._send()
            return
        wait = self._due - time.perf_counter()
        if wait > 0:
            self._run.loop.call_later(wait, self._send)
        else:
            self._send()

    def _send(self) -> None:
        if not self._run.stopped:
            self._transport.write(self._script.next_request())

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        run = self._run
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        run.latencies.append(time.perf_counter() - self._due)
        problem = self._script.check(self._parser.get_status_code(), body)
        if problem:
            run.errors[problem] += 1
        if not self._parser.should_keep_alive():
            run.errors["the server closes the connection"] += 1
            self._transport.close()
        elif not run.stopped:
            self._due += run.interval
            self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._run.stopped:
            self._run.errors[f"connection lost: {exc or 'closed by the server'}"] += 1
            self._run.lost += 1


class _Run:
    def __init__(self, interval: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.interval = interval  # seconds between two requests of a connection; 0: immediately after each answer
        self.stopped = False
        self.lost = 0
        self.transports: list[asyncio.Transport] = []
        self.reset()

    def reset(self) -> None:
        self.latencies = array("d")
        self.errors: Counter[str] = Counter()


def measure(
    url: str,
    make_script: MakeScript,
    *,
    connections: int = 64,
    seconds: float = 3.0,
    warmup: float = 0.5,
    rate: float = 0.0,
    pids: Sequence[int] = (),
) -> Result:
    """Load a server and return the results.

    Args:
        url: An http URL.
        make_script: Makes the script of each connection.
        connections: Requests in flight, one per connection.
        seconds: Duration of the count, after the warm-up.
        warmup: Seconds before counting; errors in it count too.
        rate: Requests due per second; 0: each immediately after the previous answer.
        pids: The server's processes on this machine, to measure their CPU time including children.

    Raises:
        OSError: The server accepts no connection.
    """
    return _runner().run(_load(url, make_script, connections, seconds, warmup, rate, pids))


def _runner() -> asyncio.Runner:
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


async def _load(
    url: str,
    make_script: MakeScript,
    connections: int,
    seconds: float,
    warmup: float,
    rate: float,
    pids: Sequence[int],
) -> Result:
    loop = asyncio.get_running_loop()
    parts = urlsplit(url)
    run = _Run(connections / rate if rate else 0.0)
    peers = []
    for number in range(connections):
        _, peer = await loop.create_connection(
            lambda number=number: _Connection(run, make_script(url, number)), parts.hostname, parts.port or 80
        )
        peers.append(peer)
    for number, peer in enumerate(peers):
        peer.begin(number / connections)
    await asyncio.sleep(warmup)
    early, warmed = run.errors, len(run.latencies)
    run.reset()
    cpu, begun = cpu_seconds(pids), time.perf_counter()
    deadline = begun + seconds
    while (now := time.perf_counter()) < deadline or (not run.latencies and now < deadline + FIRST):
        if run.lost == connections:
            break
        await asyncio.sleep(min(0.1, max(0.01, deadline - now)))
    cpu, elapsed = cpu_seconds(pids) - cpu, time.perf_counter() - begun
    run.stopped = True
    latencies, errors = sorted(run.latencies), early + run.errors
    for transport in run.transports:
        transport.close()
    count = len(latencies)
    ms = [1000 * quantile(latencies, share) if count else float("nan") for share in (0.5, 0.9, 0.99, 0.999, 1.0)]
    cpu_us = 1e6 * cpu / count if pids and count else None
    return Result(elapsed, count, count / elapsed, *ms, dict(errors), cpu_us, warmed + count)


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the processor time of these processes and all their children, running or ended (Linux)."""
    parents: dict[int, list[int]] = {}
    times: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        pid = int(stat.parent.name)
        parents.setdefault(int(fields[1]), []).append(pid)
        times[pid] = sum(map(int, fields[11:15]))  # its own, and that of children that ended and were waited for
    waiting, ticks = list(pids), 0
    while waiting:
        pid = waiting.pop()
        ticks += times.get(pid, 0)
        waiting += parents.get(pid, [])
    return ticks / os.sysconf("SC_CLK_TCK")


def in_process(arguments: Sequence[str]) -> Result:
    """Run the command line in a child process, and wait for it.

    Raises:
        subprocess.CalledProcessError: It could not connect, or its arguments are wrong.
    """
    command = [sys.executable, __file__, *arguments, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE)
    if not done.stdout:  # exit code 1 with a result means that the result contains errors
        done.check_returncode()
    return Result(**json.loads(done.stdout))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Load a reliable-messaging endpoint, or any HTTP server.")
    parser.add_argument("--url", required=True, help="http://host:port/path")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--warmup", type=float, default=0.5, help="seconds before counting")
    parser.add_argument("--soap", choices=SOAP, default="1.2")
    parser.add_argument("--rm", choices=RM, default="1.1")
    parser.add_argument("--body-bytes", type=int, default=370, help="the body's size; the rest is about 730")
    parser.add_argument("--user-name", choices=("text", "digest"), help="a Timestamp and a user name in each message")
    parser.add_argument("--plain", action="store_true", help="1,100 bytes of nothing in particular; any 2xx will do")
    parser.add_argument("--rate", type=float, default=0.0, help="requests due a second; 0: as many as are answered")
    parser.add_argument("--pid", type=int, nargs="+", default=[], help="the server's processes, to measure their CPU")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    token = UsernameToken(USER, PASSWORD, digest=options.user_name == "digest") if options.user_name else None
    script = plain(b"x" * 1100) if options.plain else reliable(options.soap, options.rm, options.body_bytes, token)
    result = measure(
        options.url,
        script,
        connections=options.connections,
        seconds=options.seconds,
        warmup=options.warmup,
        rate=options.rate,
        pids=options.pid,
    )
    print(json.dumps(asdict(result)) if options.json else result)
    return 1 if result.errors or not result.requests else 0


if __name__ == "__main__":
    sys.exit(main())
