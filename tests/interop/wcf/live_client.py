"""Microsoft's WCF client as a program, and what it reports of each command of a script.

The environment variable WCF_CLIENT is the program's path. The program runs a script (``open; echo 1..5; close``) and
prints a line of JSON for each command.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from wcf.network import changing_network
from wcf.wire import COMBINATIONS, Profile

from holdfast.testing.proxy import Faults

PROGRAM = os.environ.get("WCF_CLIENT", "")

needs_the_client = pytest.mark.skipif(
    not os.access(PROGRAM, os.X_OK), reason="WCF_CLIENT does not name the WCF client's program"
)

_ENVIRONMENT = os.environ | {"DOTNET_TieredPGO": "0", "DOTNET_TC_CallCounting": "0"}
"""The runtime keeps the code that it compiled first. To optimise it would cost as much processor time as all else."""

PATIENCE = {"open_timeout": "240", "send_timeout": "240", "close_timeout": "240"}
"""Timeouts of a client on a machine that runs eighteen of them: no test fails because the machine is slow."""

Line = dict[str, Any]
"""What the client reports of one command."""


class LiveWCFClient:
    """One run of the client, which waits for as long as a busy machine may take.

    Args:
        url: The service.
        options: Of the command line, as ``rm="11"``; an empty value is a flag.
    """

    def __init__(self, url: str, **options: str) -> None:
        self._arguments = ["--url", url]
        for name, value in (PATIENCE | options).items():
            self._arguments += [f"--{name.replace('_', '-')}", *([value] if value else [])]
        self.said: list[Line] = []

    async def run(self, script: str) -> list[Line]:
        """Run a script, and return what the client reports of each command.

        Raises:
            AssertionError: the client ended before the end of the script.
        """
        async with self._process(script) as process:
            out, errors = await process.communicate()
        lines = [json.loads(line) for line in out.splitlines()]
        assert lines and lines[-1].get("done"), (script, out, errors.decode(errors="replace")[-2000:])
        self.said = lines[:-1]
        return self.said

    @contextlib.asynccontextmanager
    async def running(self, script: str) -> AsyncIterator[Callable[[], Awaitable[Line]]]:
        """Run a script until the context ends. Gives what waits for the client's next report, and returns it."""
        async with self._process(script) as process:
            assert process.stdout is not None
            out = process.stdout

            async def report() -> Line:
                line: Line = json.loads(await out.readline() or "{}")
                return line

            yield report

    @contextlib.asynccontextmanager
    async def _process(self, script: str) -> AsyncIterator[asyncio.subprocess.Process]:
        process = await asyncio.create_subprocess_exec(
            PROGRAM,
            *self._arguments,
            "--do",
            script,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_ENVIRONMENT,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    @property
    def failed(self) -> list[Line]:
        """What the client reports of the commands that failed."""
        return [line for line in self.said if "failed" in line]


def versions_of(profile: Profile) -> dict[str, str]:
    """The client's options for a combination of versions."""
    return {
        "rm": profile.rm.replace(".", ""),
        "wsa": profile.addressing[:4],
        "soap": profile.soap.replace(".", ""),
    }


# --- many clients at once ------------------------------------------------------------------------------------------

CONTRACTS = ("notify", "echo", "both")
"""One-way operations only, calls only, and both in one session."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A client of the grid: its versions and its contract."""

    profile: Profile
    contract: str

    @property
    def key(self) -> str:
        """The key in the body of each of its messages."""
        return f"{self.profile}-{self.contract}"


def grid(contracts: Iterable[str] = CONTRACTS) -> list[Cell]:
    """A cell for each combination of versions and each of the contracts."""
    chosen = tuple(contracts)
    return [Cell(profile, contract) for profile in COMBINATIONS for contract in chosen]


def three_cells() -> list[Cell]:
    """Cells with each contract, each combination of RM and addressing, and both versions of SOAP."""
    places = {"echo": 0, "both": 3, "notify": 5}
    return [Cell(COMBINATIONS[place], contract) for contract, place in places.items()]


async def cells(
    url: str,
    scripts: Mapping[str, str],
    faults: Sequence[Faults] = (),
    clients: Sequence[Cell] = (),
    **options: str,
) -> dict[str, list[list[Line]]]:
    """Run clients of several versions and contracts, all at once.

    Args:
        url: The service.
        scripts: What the clients of each contract do. Each ``open`` begins a session.
        faults: What the network of each client does wrong in its first session, in its second, and so on; empty: it
            works. The faults of a session begin when the service has granted it, as the client itself gives up an
            ``open`` whose connection breaks.
        clients: One for each combination of versions and each contract by default.
        options: Of the command line, for every client.

    Returns:
        What each client reports, by its key and by session.
    """

    async def run(seed: int, cell: Cell) -> list[list[Line]]:
        async with contextlib.AsyncExitStack() as running:
            network = await running.enter_async_context(changing_network(url, faults, seed)) if faults else None
            told = {"key": cell.key, "contract": cell.contract} | versions_of(cell.profile) | options
            client = LiveWCFClient(network.url if network else url, **told)
            return by_session(await client.run(scripts[cell.contract]))

    chosen = clients or grid(scripts)
    said = await asyncio.gather(*(run(seed, cell) for seed, cell in enumerate(chosen)))
    return {cell.key: sessions for cell, sessions in zip(chosen, said, strict=True)}


def by_session(said: list[Line]) -> list[list[Line]]:
    """Divide what a client reports at each ``open``."""
    sessions: list[list[Line]] = []
    for line in said:
        if "open" in (line.get("ok"), line.get("failed")):
            sessions.append([])
        sessions[-1].append(line)
    return sessions


class Ledger:
    """What the service's handlers received: the numbers of each key, in order."""

    def __init__(self) -> None:
        self.numbers: dict[str, list[int]] = {}

    def note(self, entry: str) -> None:
        """Add a message by its key and number, as ``key_of`` gives them."""
        key, number = entry.split()
        self.numbers.setdefault(key, []).append(int(number))

    def between(self, first: int, end: int) -> dict[str, list[int]]:
        """The numbers of each key from ``first`` up to, but not including, ``end``."""
        return {key: [one for one in numbers if first <= one < end] for key, numbers in sorted(self.numbers.items())}
