"""A program that sends the contract's messages to a peer, one after the other, and can be killed and started again.

As a program: ``calling_process.py URL STORE LOG OPERATION RM ADDRESSING SOAP COUNT WAY``. WAY is how it receives
replies: the port where it listens, "poll" for MakeConnection, or "0" for HTTP responses. Its log has a line for each
message that it sent, or whose reply it has. Started again with the same log, it continues after the last one: a message
that it had submitted before is the same message, by its MessageID.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from java_contract import HURRIED, PATIENCE, Operation, body, correct_reply, values
from java_peer import NAMESPACE
from process_security import processors_told

import holdfast


async def _run(
    url: str, store: str, log: Path, operation: Operation, versions: holdfast.Versions, count: int, way: str
) -> None:
    http = holdfast.SourceHTTP(poll=way == "poll")
    if way not in ("poll", "0"):
        http = holdfast.SourceHTTP(listen=("127.0.0.1", int(way)), address=f"http://127.0.0.1:{way}/")
    async with holdfast.Source(
        url, store, versions=versions, policy=HURRIED, http=http, processors=processors_told()
    ) as source:
        for number in range(len(written(log)) + 1, count + 1):
            told = {"action": f"{NAMESPACE}/{operation}", "message_id": f"urn:call:{number}"}
            if operation == "notify":
                await source.send(body(operation, number), **told)
                _note(log, number)
            else:
                async with await source.request(body(operation, number), timeout=PATIENCE, **told) as reply:
                    assert values(reply) == correct_reply(number)
                    _note(log, number)  # once its reply is done with, the source forgets the MessageID
        await source.flush(PATIENCE)
        await source.end(timeout=PATIENCE)


def _note(log: Path, number: int) -> None:
    with log.open("a") as lines:
        lines.write(f"{number}\n")


def written(log: Path) -> list[int]:
    """The numbers in the log."""
    return [int(line) for line in log.read_text().splitlines()] if log.exists() else []


@contextlib.contextmanager
def calling_process(
    url: str,
    directory: Path,
    operation: Operation,
    versions: holdfast.Versions,
    count: int,
    *,
    port: int = 0,
    poll: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """The program in a process of its own, killed at the end if it still runs. Its log is ``directory / "called"``.

    Args:
        url: Address of the service.
        directory: For its store and its log.
        operation: That it calls.
        versions: Of the protocols.
        count: How many calls it makes.
        port: Where it listens for replies; 0: it does not.
        poll: Whether it fetches replies by MakeConnection.
        environment: Further variables of its environment.
    """
    of_protocols = [one.value for one in (versions.rm, versions.addressing, versions.soap)]
    words = [url, directory / "outbox", directory / "called", operation, *of_protocols, count, "poll" if poll else port]
    told = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})}
    process = subprocess.Popen([sys.executable, __file__, *map(str, words)], env=told)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    _url, _store, _log, _operation, *_versions, _count, _way = sys.argv[1:]
    assert _operation in ("notify", "echo")
    asyncio.run(_run(_url, _store, Path(_log), _operation, holdfast.Versions(*_versions), int(_count), _way))
