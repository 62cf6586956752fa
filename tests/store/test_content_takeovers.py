"""Contents of shared stores while processes take over from each other: what is accepted is whole, nothing else stays.

Covers store/kafka/contents.py and store/sql/contents.py.
"""

from __future__ import annotations

import contextlib
import gc
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from databases import Server

from holdfast.core.records import Batch, ContentWriter, content_name, with_content
from holdfast.exceptions import StoreError
from holdfast.store import open_store
from holdfast.store.base import Store

STEPS = 60

pytestmark = pytest.mark.nightly


@dataclass
class Arriving:
    """A message that a process receives.

    Args:
        store: Of the process.
        writer: Of its content.
        data: What was written.
    """

    store: Store
    writer: ContentWriter
    data: bytes = b""


class World:
    """Processes that open one store, one after the other; earlier ones go on, as if they had been paused.

    Args:
        draw: Decides.
        url: Of the store.
        record: Makes a record.
        follow: Opens the store again although an earlier process has it open.
    """

    def __init__(self, draw: random.Random, url: str, record: Callable[..., Any], follow: Callable[[Any], Any]) -> None:
        self._draw, self._record, self._follow = draw, record, follow
        self.stores: list[Any] = [open_store(url)]
        self._arriving: list[Arriving] = []
        self.accepted: dict[int, bytes] = {}
        self._first = self._end = 0

    def step(self) -> None:
        choices = [self._begin, self._write, self._write, self._write, self._accept, self._trim, self._lose]
        if len(self.stores) < 4:
            choices.append(self._take_over)
        self._draw.choice(choices)()

    def _begin(self) -> None:
        store = self._draw.choice(self.stores[-2:])
        self._arriving.append(Arriving(store, store.contents.create()))

    def _write(self) -> None:
        if self._arriving:
            one = self._draw.choice(self._arriving)
            data = self._draw.randbytes(self._draw.choice((1, 1000, 300_000, 1 << 20)))
            try:
                one.writer.write(data)
                one.data += data
            except StoreError:
                assert one.store is not self.stores[-1]
                self._arriving.remove(one)

    def _accept(self) -> None:
        if not self._arriving:
            return
        one = self._arriving.pop(self._draw.randrange(len(self._arriving)))
        attachments = None
        try:
            one.writer.finish()
            attachments = with_content(one.writer.hold, one.writer.size, b"\x93")
            record = replace(self._record(self._end + 1), attachments=attachments)
            one.store.commit(Batch(appends=[("q", 0, self._end, record)]))
        except StoreError:
            assert one.store is not self.stores[-1]
            return
        assert one.store is self.stores[-1], "an earlier owner stored a message"
        self.accepted[self._end] = one.data
        self._end += 1

    def _trim(self) -> None:
        if self._first < self._end:
            self.stores[-1].commit(Batch(trims={("q", 0): self._first + 1}))
            del self.accepted[self._first]
            self._first += 1

    def _lose(self) -> None:
        """A sender goes away in the middle."""
        if self._arriving:
            self._arriving.pop(self._draw.randrange(len(self._arriving)))

    def _take_over(self) -> None:
        self.stores.append(self._follow(self.stores[-1]))

    def check(self, store: Any) -> None:
        """What was accepted is there, byte for byte, and no other content."""
        names = set()
        for offset, record in store.read("q", 0, self._first, self._end, 1 << 30):
            names.add(content_name(record.attachments))
            with record.attachments.hold.open() as file:
                assert file.read() == self.accepted[offset], offset
        assert len(names) == len(self.accepted)
        assert set(store.contents.names()) == names

    def close(self) -> None:
        self._arriving.clear()
        gc.collect()
        for store in self.stores:
            with contextlib.suppress(StoreError):
                store.close()


def follow_database(store: Any) -> Any:
    """Open the store of a process that was cut off: the server has ended its session."""
    store._drop_writer()
    return open_store(store.location)


def run(seed: int, url: str, record: Callable[..., Any], follow: Callable[[Any], Any]) -> None:
    world = World(random.Random(seed), url, record, follow)
    try:
        for _ in range(STEPS):
            world.step()
        last = follow(world.stores[-1])  # all others are killed
        world.stores.append(last)
        world.check(last)
    finally:
        world.close()


@pytest.mark.parametrize("seed", range(30))
def test_on_postgresql_what_is_accepted_is_whole_and_nothing_else_stays(servers: Callable[[str], Server], record, seed):
    run(seed, servers("postgresql").new_url(), record, follow_database)


@pytest.mark.parametrize("seed", range(8))
def test_on_mariadb_what_is_accepted_is_whole_and_nothing_else_stays(servers: Callable[[str], Server], record, seed):
    run(seed, servers("mariadb").new_url(), record, follow_database)


@pytest.mark.parametrize("seed", range(12))
def test_on_kafka_what_is_accepted_is_whole_and_nothing_else_stays(kafka_nodes, tmp_path: Path, record, seed):
    from holdfast.store.kafka.store import KafkaStore

    url = str(kafka_nodes(1).new_url(tmp_path / "cache"))
    hosts = iter(range(10))

    def follow(_store: Any) -> KafkaStore:
        """Open the log on another host, from its beginning."""
        return KafkaStore(url.replace(f"{tmp_path}/cache", f"{tmp_path}/host{next(hosts)}"))

    run(seed, url, record, follow)


def test_a_copy_of_the_log_has_the_contents_that_records_name(kafka_nodes, tmp_path: Path, record, monkeypatch):
    from holdfast.store.kafka import sweep
    from holdfast.store.kafka.store import KafkaStore

    monkeypatch.setattr(sweep, "FEWEST_BYTES", 1 << 20)
    url = str(kafka_nodes(1).new_url(tmp_path / "cache"))
    store = KafkaStore(url)
    data = random.Random(1).randbytes(3 << 20)
    for offset in range(6):
        writer = store.contents.create()
        writer.write(data)
        writer.finish()
        one = replace(record(offset + 1), attachments=with_content(writer.hold, writer.size, b"\x93"))
        store.commit(Batch(appends=[("q", 0, offset, one)], trims={("q", 0): max(0, offset - 1)}))
    trimmed = store.owner.replay.trim_to
    assert trimmed
    store.close()
    other = KafkaStore(url.replace(f"{tmp_path}/cache", f"{tmp_path}/other"))  # begins where the copy begins
    found = other.read("q", 0, 4, 6, 1 << 30)
    for _, one in found:
        with one.attachments.hold.open() as file:
            assert file.read() == data
    assert set(other.contents.names()) == {content_name(one.attachments) for _, one in found}
    other.close()
