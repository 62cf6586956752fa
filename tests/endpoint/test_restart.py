"""Whole processes killed with SIGKILL under load and started again: a restart is unseen, from either side."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import random
import re
import sys
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Destination, RetransmissionPolicy, Source, SourcePolicy
from holdfast.core.messages import ANONYMOUS_EPR, CreateSequence
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service
from holdfast.store.rocksdb.store import RocksDBStore
from holdfast.testing.ports import free_ports
from holdfast.testing.proxy import Faults, LossyProxy, Relayed

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(900)]

HERE = Path(__file__).resolve().parent
ONE_WAY_BY_DAY = pytest.mark.parametrize(
    "longest_wait", [pytest.param("60", marks=pytest.mark.nightly), "0"], ids=["the loop waits", "the loop goes on"]
)
"""Of committing: the loop waits for the disk itself, or it hears of it from the thread."""
KILLS = 2
NOTE, PRICE = "urn:test:note", "urn:test:price"
BAD = Faults(lose_request=0.1, lose_response=0.1, double=0.1, delay=0.2, max_delay=0.02)
QUICK = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.3, floor=0.1, cap=0.5))


class Child:
    """One of restart_child.py's processes, one life after another."""

    def __init__(self, *arguments: object) -> None:
        self._arguments = [str(argument) for argument in arguments]
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, *more: object) -> None:
        """Begin a life; returns when it says that it is ready."""
        path = os.pathsep.join(filter(None, [str(Path(holdfast.__file__).parents[1]), os.environ.get("PYTHONPATH")]))
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(HERE / "restart_child.py"),
            *self._arguments,
            *map(str, more),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert await self.line() == "ready"

    async def line(self) -> str:
        """The next line it says; "" when it has ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().rstrip()

    async def kill(self) -> list[str]:
        """SIGKILL. What it had said and nobody had read."""
        assert self._process is not None
        assert self._process.stdout is not None
        if self._process.returncode is None:
            self._process.kill()
        rest = await self._process.stdout.read()
        await self._process.wait()
        return rest.decode().splitlines()


@contextlib.asynccontextmanager
async def destination(store: Path, journal: Path | None) -> AsyncIterator[tuple[Child, str]]:
    """A destination process, always at the same port, and its URL."""
    port, admin_port = free_ports(2)
    child = Child("destination", store, port, admin_port, journal or "-")
    await child.start()
    try:
        yield child, f"http://127.0.0.1:{port}/"
    finally:
        await child.kill()


class Load:
    """Sends notes under three keys for as long as it is let, and knows which were acknowledged."""

    KEYS = ("a", "b", "c")

    def __init__(self, source: Source) -> None:
        self._source = source
        self._stopped = False
        self.sent: Counter[str] = Counter()
        self.acknowledged: set[tuple[str, int]] = set()

    async def run(self) -> None:
        """Send until stopped, then wait for the last acknowledgement."""
        async with asyncio.TaskGroup() as group:
            while not self._stopped:
                for key in self.KEYS:
                    number = self.sent[key] = self.sent[key] + 1
                    body = f"<m xmlns='urn:test' key='{key}'>{number}</m>"
                    sent = await self._source.send(body, action=NOTE, sequence_key=key)
                    group.create_task(self._follow(sent, key, number))
                while self._source.progress.outstanding > 60:
                    await asyncio.sleep(0.005)

    async def _follow(self, sent: holdfast.Sent, key: str, number: int) -> None:
        await sent.acknowledged()
        self.acknowledged.add((key, number))

    async def more(self, count: int) -> None:
        """Wait for so many more acknowledgements."""
        wanted = len(self.acknowledged) + count
        while len(self.acknowledged) < wanted:
            await asyncio.sleep(0.001)

    def stop(self) -> None:
        self._stopped = True


def stored(store: Path, sequences: dict[str, str]) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """What a killed destination has on disk, by key: numbers in its queue in order of offsets, and numbers held."""
    view = RocksDBStore(store, read_only=True)
    try:
        snapshot = view.load()
        queued: dict[str, list[int]] = {key: [] for key in sequences.values()}
        for (queue, partition), (at, end) in sorted(snapshot.bounds.items()):
            while queue == "inbox" and at < end:
                for offset, record in view.read(queue, partition, at, end):
                    assert offset == at, "offsets are dense"
                    at = offset + 1
                    key = sequences[record.sequence]
                    assert record.body == f"<m xmlns='urn:test' key='{key}'>{record.message_number}</m>".encode()
                    queued[key].append(record.message_number)
        held = {sequences[one]: numbers for one, numbers in snapshot.held.items() if numbers}
        return queued, held
    finally:
        view.close()


@ONE_WAY_BY_DAY
async def test_a_destination_killed_often_keeps_acknowledged_messages_once_in_order(
    tmp_path: Path, longest_wait: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LONGEST_WAIT", longest_wait)
    draw = random.Random(41)
    names: dict[str, str] = {}
    async with (
        destination(tmp_path / "inbox", None) as (child, url),
        LossyProxy(url, BAD, seed=41) as network,
        Source(network.url, tmp_path / "outbox", policy=QUICK, offer=False) as source,
        asyncio.TaskGroup() as group,
    ):
        load = Load(source)
        group.create_task(load.run())
        for _ in range(KILLS):
            await load.more(draw.randrange(1, 80))
            await asyncio.sleep(draw.uniform(0, 0.02))
            await child.kill()
            names |= {one["identifier"]: one["key"] for one in source.sequences()}
            queued, held = stored(tmp_path / "inbox", names)
            for key, numbers in queued.items():
                assert numbers == list(range(1, len(numbers) + 1)), f"{key}: not once each, or not in order"
                waiting = set(held.get(key, ()))
                assert not waiting & set(numbers), f"{key}: released, and still held"
                assert len(numbers) + 1 not in waiting, f"{key}: held, though its turn has come"
            lost = {(key, n) for key, n in load.acknowledged if n not in queued[key] and n not in held.get(key, ())}
            assert not lost, "acknowledged, and not in the store"
            await child.start()
        load.stop()
    assert set(names.values()) == set(Load.KEYS)
    assert len(names) == 3, "each key's Sequence outlived every kill"
    await child.kill()
    queued, held = stored(tmp_path / "inbox", names)
    assert queued == {key: list(range(1, load.sent[key] + 1)) for key in Load.KEYS}
    assert held == {}
    assert network.counts.unreachable > 0


def lives(journal: Path) -> list[dict[str, list[int]]]:
    """What the handler noted in each life: numbers by Sequence."""
    found: list[dict[str, list[int]]] = []
    for line in journal.read_text().rpartition("\n")[0].splitlines():  # the last line may be half there
        if line == "start":
            found.append({})
        else:
            sequence, number = line.split()
            found[-1].setdefault(sequence, []).append(int(number))
    return found


@ONE_WAY_BY_DAY
async def test_a_killed_destination_handles_in_order_with_one_reply_for_each_request(
    tmp_path: Path, longest_wait: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LONGEST_WAIT", longest_wait)
    draw = random.Random(42)
    journal = tmp_path / "journal"
    on_the_wire: dict[str, set[str]] = {}

    def look(relayed: Relayed) -> None:
        for number, reply in re.findall(rb"<price of='(\d+)'>(\w+)<", relayed.response or b""):
            on_the_wire.setdefault(number.decode(), set()).add(reply.decode())

    async with (
        destination(tmp_path / "inbox", journal) as (child, url),
        LossyProxy(url, BAD, seed=42, on_relayed=look) as network,
        Source(network.url, tmp_path / "outbox", policy=QUICK) as source,
        asyncio.TaskGroup() as group,
    ):
        load = Load(source)
        sending = group.create_task(load.run())
        asked = 0
        requests: list[asyncio.Task[holdfast.Message]] = []
        for _ in range(KILLS):
            for _ in range(10):
                body = f"<price xmlns=''>{asked}</price>"
                request = source.request(body, action=PRICE, sequence_key="prices", timeout=None)
                requests.append(group.create_task(request))
                asked += 1
            await load.more(draw.randrange(1, 60))
            await asyncio.sleep(draw.uniform(0, 0.02))
            await child.kill()
            await child.start()
        load.stop()
        await sending
        replies = [await request for request in requests]
        # An acknowledgement says stored, not handled; pytest's timeout ends a wait in vain.
        while sum({one: numbers[-1] for life in lives(journal) for one, numbers in life.items()}.values()) < (
            load.sent.total()
        ):
            await asyncio.sleep(0.01)
    assert [reply.body.get("of") for reply in replies] == [str(number) for number in range(asked)]
    assert {number: {reply.body.text} for number, reply in zip(map(str, range(asked)), replies, strict=True)} == (
        on_the_wire
    ), "a request was answered by two different replies"
    highest: Counter[str] = Counter()
    for life in lives(journal):
        for sequence, numbers in life.items():
            assert numbers == list(range(numbers[0], numbers[-1] + 1)), "not once each in a life, or not in order"
            # A handler whose end was not durable yet is called again: that is all that a kill may repeat.
            assert highest[sequence] - 32 < numbers[0] <= highest[sequence] + 1
            highest[sequence] = numbers[-1]
    assert sorted(highest.values()) == sorted(load.sent.values())


@ONE_WAY_BY_DAY
async def test_a_source_killed_again_and_again_loses_nothing_and_sends_nothing_twice(
    tmp_path: Path, longest_wait: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LONGEST_WAIT", longest_wait)
    draw = random.Random(43)
    endless, outbox = 10**9, tmp_path / "outbox"
    got: list[tuple[str, int]] = []
    app = Destination(":memory:")

    @app.on(NOTE)
    async def note(message: holdfast.Message) -> None:
        got.append((message.sequence, int(message.body.text or "")))

    service = Service(app, Listeners(port=0))
    await service.start()
    outstanding = 0
    try:
        async with LossyProxy(service.url, BAD, seed=43) as network:
            child = Child("source", outbox, network.url)
            durable = 0
            for _ in range(KILLS):
                await child.start(durable, endless)
                said = [await child.line() for _ in range(draw.randrange(1, 24))]
                await asyncio.sleep(draw.uniform(0, 0.02))
                said += await child.kill()
                first, durable = outbox_bounds(outbox)
                assert all(int(number) < durable for number in said), "said to be durable, and not in the store"
                outstanding += durable - first
            count = durable + 50
            await child.start(durable, count)
            said = [await child.line() for _ in range(50 + 1)]
            assert said[-1] == "done"
            await child.kill()
        while len(got) < count:  # an acknowledgement says stored, not handled; pytest's timeout ends a wait in vain
            await asyncio.sleep(0.005)
    finally:
        await service.close()
    assert outstanding > 0, "it was never killed with messages outstanding"
    assert [number for _, number in got] == list(range(count))
    assert len({sequence for sequence, _ in got}) == 1, "the Sequence went on through every kill"


def outbox_bounds(store: Path) -> tuple[int, int]:
    view = RocksDBStore(store, read_only=True)
    try:
        return view.load().bounds.get(("outbox/", 0), (0, 0))
    finally:
        view.close()


# --- many Sequences -----------------------------------------------------------------------------------------------

SEQUENCES = 10_000


@pytest.fixture(scope="module")
def bench() -> Any:
    """bench/restart.py, which measures the same."""
    path = HERE.parents[1] / "bench" / "restart.py"
    specification = importlib.util.spec_from_file_location("bench_restart", path)
    assert specification is not None
    assert specification.loader is not None
    module = sys.modules["bench_restart"] = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def all_sequences(admin_port: int) -> Iterator[dict[str, Any]]:
    """Every page of them."""
    after: str | None = ""
    while after is not None:
        query = urllib.parse.urlencode({"limit": 1000, "after": after})
        with urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/sequences?{query}") as answer:
            page = json.load(answer)
        yield from page["sequences"]
        after = page["next"]


@pytest.mark.nightly
def test_ten_thousand_open_sequences_are_back_as_they_were(tmp_path: Path, bench: Any):
    draw = random.Random(44)
    expected: dict[str, list[int]] = bench.fill_and_kill(tmp_path / "inbox", SEQUENCES)
    assert len(expected) == SEQUENCES
    first = next(one for one, numbers in expected.items() if numbers == [1, 2])
    with bench.restarted(tmp_path / "inbox", bench.message(first, 3)) as (restart, answer, port, admin_port):
        print(f"{SEQUENCES:,} Sequences: first acknowledgement after {restart.to_first_acknowledgement:.2f} s")
        assert answer.acknowledgements[0].ranges == ((1, 3),)
        expected[first] = [1, 2, 3]
        found = {one["identifier"]: one for one in all_sequences(admin_port)}
        assert found.keys() == expected.keys()
        for identifier, numbers in expected.items():
            one = found[identifier]
            assert (one["state"], one["count"]) == (found[first]["state"], len(numbers))
            assert (one["highest"], one["waiting"]) == (max(numbers, default=0), numbers.count(3) * (len(numbers) == 2))
        filled = draw.sample(sorted(expected.keys() - {first}), 60)
        for identifier in filled:
            missing = min({1, 2, 3} - set(expected[identifier]))
            ranges = bench.post(port, bench.message(identifier, missing)).acknowledgements[0].ranges
            assert ranges == ((1, max(missing, *expected[identifier], 0)),)
        identifiers = list(expected)
        # Whoever uses a Sequence asks for it no more: the same request is then another client's.
        unused = [
            n for n, identifier in enumerate(identifiers) if not expected[identifier] and identifier not in filled
        ]
        for n in draw.sample(unused, 20):
            repeated = bench.envelope(message_id=f"urn:create:{n}", control=CreateSequence(ANONYMOUS_EPR))
            assert bench.post(port, repeated).control.identifier == identifiers[n]
