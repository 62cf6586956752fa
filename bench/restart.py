"""The time to restart a killed Destination: from the start of its process to the first acknowledged message.

    python bench/restart.py                          # 10,000 open Sequences
    python bench/restart.py --sequences 1000 --json

A first process opens the Sequences, receives messages in some of them and is killed with SIGKILL. A second one starts
on its store; from that moment a peer tries to send the next message of an old Sequence, and the time ends with its
acknowledgement. The benchmark has no pass or fail.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

BEGAN = time.perf_counter()
SOURCE = str(Path(__file__).resolve().parent.parent / "src")
sys.path.insert(0, SOURCE)

from holdfast import Destination, Versions  # noqa: E402
from holdfast.core.messages import ANONYMOUS_EPR, CreateSequence, CreateSequenceResponse, Envelope  # noqa: E402
from holdfast.core.messages import Sequence as SequenceHeader  # noqa: E402
from holdfast.endpoint.listener_settings import AdminListener, Listeners  # noqa: E402
from holdfast.endpoint.serve import Service  # noqa: E402
from holdfast.http.direct import DirectExchange  # noqa: E402
from holdfast.http.exchange import Request  # noqa: E402
from holdfast.http.server.server import event_loop_factory  # noqa: E402
from holdfast.wire import action_of, content_type, decode, encode, http_headers  # noqa: E402

VERSIONS = Versions("1.1", "2005/08", "1.2")
AT_A_TIME = 500
TO = "http://127.0.0.1/"


# --- the processes ------------------------------------------------------------------------------------------------


def direct(said: Envelope) -> DirectExchange:
    """Return a request without a network."""
    headers = {b"content-type": content_type(said.soap).encode()}
    return DirectExchange(Request("POST", "/", headers, encode(said), None, False))


def envelope(**fields: Any) -> Envelope:
    """Return an envelope with these fields set."""
    made = Envelope(VERSIONS.soap, VERSIONS.addressing, VERSIONS.rm, to=TO)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def message(identifier: str, number: int) -> Envelope:
    """Return message ``number`` of a Sequence."""
    body = f"<m xmlns='urn:bench'>{number}</m>".encode()
    return envelope(action="urn:bench/Put", body=body, sequence=SequenceHeader(identifier, number))


async def ask(app: Destination, asked: list[Envelope]) -> list[Envelope]:
    """Return the answers, some hundred requests at a time."""
    answers: list[Envelope] = []
    for start in range(0, len(asked), AT_A_TIME):
        exchanges = [direct(one) for one in asked[start : start + AT_A_TIME]]
        for exchange in exchanges:
            app.handle(exchange)
        answers += [decode((await exchange.response).body) for exchange in exchanges]
    return answers


async def fill(store: str, count: int) -> None:
    """Open ``count`` Sequences and receive some messages.

    A third of them gets none, a third 1 and 2, and the rest 1 and 3, so that these hold a message. Prints the expected
    acknowledgements, then waits to be killed.
    """
    app = Destination(store)
    await app.start()
    creates = [envelope(message_id=f"urn:create:{n}", control=CreateSequence(ANONYMOUS_EPR)) for n in range(count)]
    expected: dict[str, list[int]] = {}
    for n, answer in enumerate(await ask(app, creates)):
        assert isinstance(answer.control, CreateSequenceResponse), answer
        expected[answer.control.identifier] = [[], [1, 2], [1, 3]][n % 3]
    await ask(app, [message(one, number) for one, numbers in expected.items() for number in numbers])
    print(json.dumps(expected), flush=True)
    await asyncio.Event().wait()


async def serve(store: str, port: int, admin_port: int) -> None:
    """Run the server until killed. Prints the seconds that imports and recovery took."""
    imported = time.perf_counter() - BEGAN
    began = time.perf_counter()
    service = Service(Destination(store), Listeners(port=port, admin=AdminListener(port=admin_port)))
    await service.start()
    print(json.dumps({"imported": imported, "recovered": time.perf_counter() - began}), flush=True)
    await asyncio.Event().wait()


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run this file as another process, killed with SIGKILL in the end."""
    command = [sys.executable, str(Path(__file__).resolve()), *arguments]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def said(child: subprocess.Popen[str]) -> Any:
    """Return the single line that it prints.

    Raises:
        RuntimeError: it ended without one.
    """
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise RuntimeError(f"the process ended with exit code {child.wait()}")
    return json.loads(line)


# --- the measurement ----------------------------------------------------------------------------------------------


@dataclass
class Restart:
    """The figures of one restart; times in seconds.

    Attributes:
        sequences: Open Sequences.
        to_first_acknowledgement: From the start of the process to the acknowledgement of a message.
        imported: The part for Python's imports.
        recovered: The part for opening the store, recovering the Sequences, listening.
    """

    sequences: int
    to_first_acknowledgement: float
    imported: float
    recovered: float


def fill_and_kill(store: Path, count: int) -> dict[str, list[int]]:
    """Open Sequences in a separate process and kill it; return Identifier -> the numbers it has acknowledged."""
    with process("--fill", str(store), "--sequences", str(count)) as child:
        expected: dict[str, list[int]] = said(child)
        return expected


def post(port: int, one: Envelope) -> Envelope:
    """Send to the server, repeatedly until it answers."""
    headers = http_headers(one.soap, action_of(one))
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("POST", "/", encode(one), headers)
            return decode(connection.getresponse().read())
        except OSError:
            time.sleep(0.005)
        finally:
            connection.close()


@contextmanager
def restarted(store: Path, first: Envelope) -> Iterator[tuple[Restart, Envelope, int, int]]:
    """Start the server on that store, wait for its answer to ``first``, and yield figures, answer and both ports."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        port, admin_port = one.getsockname()[1], other.getsockname()[1]
    began = time.perf_counter()
    with process("--serve", str(store), str(port), str(admin_port)) as child:
        answer = post(port, first)
        seconds = time.perf_counter() - began
        parts = said(child)
        yield Restart(0, seconds, parts["imported"], parts["recovered"]), answer, port, admin_port


def measure(store: Path, count: int) -> Restart:
    """Fill, kill, restart, measure."""
    expected = fill_and_kill(store, count)
    identifier = random.choice([one for one, numbers in expected.items() if numbers == [1, 2]])
    with restarted(store, message(identifier, 3)) as (restart, answer, _, _):
        if answer.acknowledgements[0].ranges != ((1, 3),):
            raise RuntimeError(f"{identifier} was answered {answer}")
        restart.sequences = count
        return restart


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=10_000, help="open Sequences (default 10000)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--fill", metavar="STORE", help=argparse.SUPPRESS)
    parser.add_argument("--serve", nargs=3, metavar=("STORE", "PORT", "ADMIN_PORT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        if arguments.fill:
            runner.run(fill(arguments.fill, arguments.sequences))
        if arguments.serve:
            store, port, admin_port = arguments.serve
            runner.run(serve(store, int(port), int(admin_port)))
    with tempfile.TemporaryDirectory() as directory:
        restart = measure(Path(directory, "inbox"), arguments.sequences)
    if arguments.json:
        print(json.dumps(asdict(restart)))
    else:
        print(
            f"{restart.sequences:,} open Sequences: the first message is acknowledged "
            f"{restart.to_first_acknowledgement:.2f} s after the process was started "
            f"(imports {restart.imported:.2f} s, recovery {restart.recovered:.2f} s; "
            f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f})"
        )


if __name__ == "__main__":
    main()
