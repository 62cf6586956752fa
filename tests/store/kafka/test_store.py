"""A store in a real Kafka: who owns it, what becomes of its cache, of a lost outcome, and of a Kafka that is away.

Covers store/kafka/store.py and store/kafka/topic.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from crew import wait_until

import holdfast
from holdfast.core.records import Batch, Record
from holdfast.endpoint.engine.opening import open_off_loop
from holdfast.exceptions import (
    ConfigurationError,
    StoreAway,
    StoreDamaged,
    StoreFailed,
    StoreFormatError,
    StoreLocked,
    StoreMissing,
)
from holdfast.store import MemoryStore, open_store, store_exists
from holdfast.store.kafka import cache, sweep
from holdfast.store.kafka.address import read_kafka_address
from holdfast.store.kafka.frames import RESIGNED, Claim, encode_claim
from holdfast.store.kafka.replay import Checkpoint
from holdfast.store.kafka.store import KafkaStore
from holdfast.store.kafka.topic import KafkaLog
from holdfast.testing.ports import free_ports

CHILD = Path(__file__).parent.with_name("crash_child.py")
ENV = {**os.environ, "PYTHONPATH": str(Path(holdfast.__path__[0]).parent)}
Content = Callable[[Any], dict[str, Any]]


def batch(number: int, size: int = 10) -> Batch:
    record = Record("urn:s", number, "urn:a", b"x" * size, float(number))
    return Batch(appends=[("q", 0, number, record)], sequences={"urn:s": {"n": number}})


def commit(store: Any, *numbers: int) -> None:
    for number in numbers:
        store.commit(batch(number))


def expected(*numbers: int) -> MemoryStore:
    store = MemoryStore()
    commit(store, *numbers)
    return store


@pytest.fixture
def url(kafka_nodes: Callable[[int], Any], tmp_path: Path) -> str:
    return str(kafka_nodes(1).new_url(tmp_path / "cache"))


def elsewhere(url: str, tmp_path: Path) -> str:
    """The same log, as another host sees it."""
    return url.replace(f"{tmp_path}/cache", f"{tmp_path}/other")


def change_topic(url: str, name: str, value: str) -> None:
    address = read_kafka_address(url)
    change = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, address.topic, incremental_configs=[change])
    admin = AdminClient({"bootstrap.servers": address.servers})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(60)


@pytest.fixture
def store(url: str) -> Iterator[KafkaStore]:
    store = KafkaStore(url)
    yield store
    store.close()


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
        while filler.write(bytes(4096)):
            pass


def test_a_cache_on_a_small_disk_reports_what_it_wants_and_what_a_full_one_lacks(url, tmp_path, mount_disk):
    disk = mount_disk(64)
    url = url.replace(f"{tmp_path}/cache", f"{disk}/cache")
    store = KafkaStore(url)
    wanted: list[int] = []
    store.call_with_wanted_bytes(wanted.append)
    commit(store, 0)
    store.look()
    assert (wanted, store.trouble) == ([0], None), "most of 64 MB is room enough, as the log is elsewhere"
    fill(disk)
    store.look()
    wait_until(lambda: "32 MB are free" in str(store.trouble))
    assert wanted[-1] >> 20 == 32
    (disk / "filler").unlink()
    store._keeper.wake()
    wait_until(lambda: not store.trouble)
    assert wanted[-1] == 0
    store.close()
    shutil.rmtree(disk / "cache")
    fill(disk)
    with pytest.raises(StoreFailed, match=f"The disk of the cache at {disk}/cache/partition-0 is full") as caught:
        KafkaStore(url)
    assert caught.value.remedy.startswith(f"Free space at {disk}/cache/partition-0. No message is lost")


def test_another_host_continues_the_log_and_the_earlier_owner_stores_nothing(url, tmp_path, content):
    first = KafkaStore(url)
    commit(first, 0, 1)
    with pytest.raises(StoreLocked):
        KafkaStore(url)
    second = KafkaStore(elsewhere(url, tmp_path))
    assert content(second) == content(expected(0, 1))
    commit(second, 2)
    with pytest.raises(StoreFailed, match="taken over by process") as caught:
        commit(first, 2)
    assert caught.value.remedy
    with pytest.raises(StoreFailed, match="failed earlier"):
        commit(first, 3)
    commit(second, 3)  # the void record of the other one makes a gap
    first.close()
    second.close()
    again = KafkaStore(url)
    assert content(again) == content(expected(0, 1, 2, 3))
    assert again.owner.epoch == 3
    again.close()


nightly = pytest.mark.nightly


# --- the cache -------------------------------------------------------------------------------------------------------


class Turn:
    """It has not come, and it is known when a store waits for it."""

    def __init__(self) -> None:
        self.asked, self.has_come, self.epoch = threading.Event(), False, 0

    def may_claim(self, epoch: int, *, is_free: bool) -> bool:
        self.asked.set()
        return self.has_come

    def claimed(self, epoch: int) -> None:
        self.epoch = epoch


def test_a_store_follows_its_owner_until_its_turn_and_then_has_everything(url, tmp_path, content) -> None:
    first, turn = KafkaStore(url), Turn()
    commit(first, 0, 1)
    opened: list[KafkaStore] = []
    opening = threading.Thread(target=lambda: opened.append(KafkaStore(elsewhere(url, tmp_path), turn=turn)))
    opening.start()
    try:
        assert turn.asked.wait(300)
        commit(first, 2)  # it still owns the log
        assert not opened and first.owner.rival is None
    finally:
        turn.has_come = True
        opening.join()
    (second,) = opened
    with pytest.raises(StoreFailed, match="was taken over"):
        commit(first, 3)
    commit(second, 3)
    assert content(second) == content(expected(0, 1, 2, 3))
    assert turn.epoch == second.epoch == 2
    first.close()
    second.close()


def test_a_resignation_frees_the_log_only_directly_after_the_claim_of_its_owner(url, tmp_path, content) -> None:
    """To an earlier version, it is the claim of another process."""
    frees = []

    class Follower(Turn):
        def may_claim(self, epoch: int, *, is_free: bool) -> bool:
            frees.append((epoch, is_free))
            return True

    first = KafkaStore(url)
    commit(first, 0)
    for epoch in (3, 2, 2):  # the first one comes too early, and the last one too late
        first._log.append([encode_claim(Claim(epoch, "node a resigns", RESIGNED, 0.0))], lambda: True)
    with pytest.raises(StoreFailed, match="was taken over"):
        commit(first, 1)
    first.close()
    second = KafkaStore(elsewhere(url, tmp_path), turn=Follower())
    assert (content(second), second.epoch) == (content(expected(0)), 3)
    third = KafkaStore(url, turn=Follower())
    assert (third.epoch, frees[0], frees[-1]) == (4, (2, True), (3, False))
    second.close()
    third.close()


def test_an_opening_that_is_cancelled_before_its_turn_takes_nothing(url, tmp_path) -> None:
    first, turn = KafkaStore(url), Turn()

    async def cancel() -> None:
        opening = asyncio.ensure_future(open_off_loop(elsewhere(url, tmp_path), turn))
        assert await asyncio.to_thread(turn.asked.wait, 300)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    asyncio.run(cancel())
    commit(first, 0)
    first.close()
    KafkaStore(elsewhere(url, tmp_path)).close()  # its lock is free


def place_of(url: str) -> Path:
    return Path(url.partition("cache=")[2].partition("&")[0]) / "partition-0"


def test_a_cache_is_emptied_for_its_space_only_while_nobody_has_it_open(url, content):
    store = KafkaStore(url)
    commit(store, 0, 1)
    place, identity = store.path, store._log.identity
    with pytest.raises(StoreLocked):
        cache.clear_closed(place, identity)
    commit(store, 2)
    store.close()
    cache.clear_closed(place, identity)
    assert not (place / "db").exists()
    store = KafkaStore(url)
    assert content(store) == content(expected(0, 1, 2))
    store.close()


@nightly
def test_a_cache_that_was_deleted_or_left_behind_is_brought_up_to_date(url, tmp_path, content):
    store = KafkaStore(url)
    commit(store, 0, 1)
    store.close()
    shutil.copytree(place_of(url), tmp_path / "older")
    store = KafkaStore(url)
    commit(store, 2)
    store.close()
    for spoil in (lambda: None, lambda: shutil.copytree(tmp_path / "older", place_of(url))):
        shutil.rmtree(place_of(url))
        spoil()
        store = KafkaStore(url)
        assert content(store) == content(expected(0, 1, 2))
        assert store.went_back == ""
        store.close()


@nightly
@pytest.mark.parametrize("pattern", ["MANIFEST-*", "CURRENT", "*.sst"])
def test_a_damaged_cache_is_rebuilt(url, content, pattern):
    store = KafkaStore(url)
    commit(store, *range(50))
    store.close()
    for file in (place_of(url) / "db").glob(pattern):
        file.write_bytes(b"\x01" * file.stat().st_size)
    store = KafkaStore(url)
    with contextlib.suppress(StoreDamaged):  # which the next opening repairs
        content(store)
    store.close()
    store = KafkaStore(url)
    assert content(store) == content(expected(*range(50)))
    store.close()


@nightly
def test_the_cache_of_another_topic_is_refused_and_nothing_is_changed(url, kafka_nodes, tmp_path, content):
    store = KafkaStore(url)
    commit(store, 0)
    store.close()
    with pytest.raises(StoreFormatError, match="belongs to another log"):
        KafkaStore(kafka_nodes(1).new_url(tmp_path / "cache"))
    store = KafkaStore(url)
    assert content(store) == content(expected(0))
    store.close()


def copied(records: list[bytes], url: str) -> str:
    """Write a log into a new topic, as an operator does who has a copy of it."""
    log = KafkaLog(read_kafka_address(url))
    log.open(creates=True)
    assert log.append(records, lambda: True) is not None
    log.close()
    return url


@nightly
@pytest.mark.parametrize("at", [None, 1, -1])
def test_a_copy_of_the_topic_is_the_same_store_unless_a_write_is_repeated(url, kafka_nodes, tmp_path, content, at):
    for numbers in ((0, 1), (2, 3)):
        store = KafkaStore(url)
        commit(store, *numbers)
        store.close()
    log = KafkaLog(read_kafka_address(url))
    log.open(creates=False)
    records = [record for _, record in log.read(0) if record is not None]
    log.close()
    if at is not None:
        records.insert(len(records) if at < 0 else at, records[at])
    copy = copied(records, kafka_nodes(1).new_url(tmp_path / "other"))
    if at is None:
        store = KafkaStore(copy)
        assert content(store) == content(expected(0, 1, 2, 3))
        store.close()
    else:
        with pytest.raises(StoreDamaged, match="begins write"):
            KafkaStore(copy)


@nightly
def test_a_log_that_lost_its_end_needs_a_word_of_the_operator(url, tmp_path, content):
    """As after an unclean election: the cache is further than the log."""
    store = KafkaStore(url)
    commit(store, 0, 1, 2)
    further = Checkpoint(store.owner.replay.next + 5, store.epoch, 8)
    store._db.put(cache.CHECKPOINT, cache.encode_checkpoint(further))
    store.close()
    store = KafkaStore(url)
    assert "although record" in store.went_back
    assert content(store) == content(expected(0, 1, 2))
    store.close()
    store = KafkaStore(elsewhere(url, tmp_path))
    assert store.went_back, "every host learns it"
    store.forget_went_back()
    commit(store, 3)
    store.close()
    store = KafkaStore(url)
    assert store.went_back == ""
    assert content(store) == content(expected(0, 1, 2, 3))
    store.close()


@nightly
def test_a_log_that_continues_differently_needs_a_word_of_the_operator(url, content):
    """As after an unclean election, when other writes took the place of those that are lost."""
    store = KafkaStore(url)
    commit(store, 0, 1)
    store._db.put(cache.CHECKPOINT, cache.encode_checkpoint(Checkpoint(store.owner.replay.next - 1, store.epoch, 8)))
    store.close()
    store = KafkaStore(url)
    assert "does not continue what this host had stored" in store.went_back
    assert content(store) == content(expected(0, 1))
    store.close()


# --- the log ---------------------------------------------------------------------------------------------------------


@nightly
def test_the_log_is_trimmed_to_a_copy_and_can_be_read_from_there(url, tmp_path, content, child, monkeypatch):
    monkeypatch.setattr(sweep, "FEWEST_BYTES", 30_000)
    monkeypatch.setattr(sweep, "STEP_BYTES", 2_000)
    store, model = KafkaStore(url), MemoryStore()
    for number in range(1, 200):
        one = child.batch(number, model.load())
        store.commit(one)
        model.commit(one)
    wait_until(lambda: store._log.bounds()[0] > 0)
    store.close()
    other = KafkaStore(elsewhere(url, tmp_path))
    assert content(other) == content(model)
    other.close()
    view = open_store(url, read_only=True)
    assert content(view) == content(model)
    view.close()


@nightly
def test_a_batch_larger_than_kafkas_records_is_one_write(url, content):
    store = KafkaStore(url)
    store.commit(batch(0, 30 << 20))
    store.close()
    shutil.rmtree(place_of(url))
    store = KafkaStore(url)
    assert len(store.read("q", 0, 0, 1)[0][1].body) == 30 << 20
    store.close()


@nightly
def test_a_lost_outcome_is_found_out_whether_the_write_arrived_or_not(store, url, content, monkeypatch):
    append, fails = KafkaLog.append, [False, True, False, True, True]

    def unsure(log: KafkaLog, records: Sequence[bytes], goes_on: Callable[[], bool]) -> list[int] | None:
        if not fails:
            return append(log, records, goes_on)
        if fails.pop():  # it arrives, and the answer is lost
            append(log, records, goes_on)
        return None

    monkeypatch.setattr(KafkaLog, "append", unsure)
    commit(store, 0, 1)
    assert not fails
    assert store.reconnections >= 1
    commit(store, 2)
    assert content(store) == content(expected(0, 1, 2))
    store.close()
    again = KafkaStore(url)
    assert content(again) == content(expected(0, 1, 2))
    again.close()


@nightly
def test_a_write_that_kafka_refuses_for_good_ends_the_store_with_the_reason(store, url):
    commit(store, 0)
    change_topic(url, "max.message.bytes", "1000")
    with pytest.raises(StoreFailed, match=r"[Mm]essage.*(size|large)") as caught:
        store.commit(batch(1, size=5000))
    assert f"settings of the topic {read_kafka_address(url).topic}" in caught.value.remedy


@nightly
def test_a_log_that_does_not_exist_is_not_created_by_a_reader(url):
    assert not store_exists(url)
    with pytest.raises(StoreMissing, match="no topic"):
        open_store(url, read_only=True)
    KafkaStore(url).close()
    assert store_exists(url)
    with pytest.raises(ConfigurationError, match="has 1 partitions"):
        KafkaStore(f"{url}&partition=1")


@nightly
def test_a_topic_that_may_lose_messages_is_refused(url, kafka_nodes):
    topic = read_kafka_address(url).topic
    admin = AdminClient({"bootstrap.servers": kafka_nodes(1).servers})
    admin.create_topics([NewTopic(topic, 1, 1, config={"retention.ms": "1000"})])[topic].result(30)
    with pytest.raises(ConfigurationError, match=r"retention\.ms is '1000'"):
        KafkaStore(url)


@nightly
def test_a_kafka_that_does_not_answer_is_away_and_never_empty(tmp_path):
    (port,) = free_ports(1)
    with pytest.raises(StoreAway, match="does not serve the store"):
        KafkaStore(f"kafka://127.0.0.1:{port}/t?cache={tmp_path}/cache&patience=0")
    assert not (tmp_path / "cache").exists()


# --- kills and pauses ------------------------------------------------------------------------------------------------


def begin(url: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(CHILD), url], stdout=subprocess.PIPE, env=ENV)


def read(process: subprocess.Popen[bytes], lines: int) -> int:
    assert process.stdout is not None
    return [int(process.stdout.readline()) for _ in range(lines)][-1]


def opened(url: str) -> KafkaStore:
    """Wait for Kafka, as an endpoint does that starts."""
    stores: list[KafkaStore] = []

    def opens() -> bool:
        try:
            stores.append(KafkaStore(url))
        except StoreAway:
            return False
        return True

    wait_until(opens)
    return stores[0]


@nightly
@pytest.mark.crash
def test_an_owner_that_was_paused_acknowledges_nothing_after_a_takeover(url, tmp_path, child, content):
    """Each pause is at another moment of a commit."""
    model, done = MemoryStore(), 0
    for turn in range(6):
        process = begin(url if turn % 2 else elsewhere(url, tmp_path))
        read(process, 10 + turn)
        process.send_signal(signal.SIGSTOP)
        taker = KafkaStore(elsewhere(url, tmp_path) if turn % 2 else url)
        found = child.serial(taker.load())
        taker.commit(Batch(cursors={("orders", 0, "taker"): {"turn": turn}}))
        process.send_signal(signal.SIGCONT)
        assert process.stdout is not None
        rest = process.stdout.read().split()
        assert process.wait() == 1, "it ended with an error"
        assert all(int(line) <= found for line in rest)
        for number in range(done + 1, found + 1):
            model.commit(child.batch(number, model.load()))
        model.commit(Batch(cursors={("orders", 0, "taker"): {"turn": turn}}))
        assert content(taker) == content(model)
        done = found
        taker.close()


@nightly
@pytest.mark.crash
@pytest.mark.slow
def test_three_nodes_of_kafka_are_killed_in_turn_and_nothing_is_lost(kafka_nodes, tmp_path, child, content):
    nodes = kafka_nodes(3)
    url = nodes.new_url(tmp_path / "cache")
    process = begin(url)
    said = read(process, 20)
    for node in range(3):
        nodes.kill(node)
        said = read(process, 30)
        nodes.start(node)
        nodes.wait()
        said = read(process, 30)
    assert process.poll() is None
    process.kill()
    assert process.stdout is not None
    said = int([b"%d" % said, *process.stdout.read().split(b"\n")[:-1]][-1])
    process.wait()
    store = opened(url)
    found = child.serial(store.load())
    assert said <= found <= said + 1
    model = MemoryStore()
    for number in range(1, found + 1):
        model.commit(child.batch(number, model.load()))
    assert content(store) == content(model)
    store.close()


def test_a_store_whose_claim_took_long_is_in_no_trouble_once_it_is_open(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a server refuses all new messages, and without them nothing is written that ends the trouble."""
    append, told = KafkaLog.append, []

    def append_slowly(log: KafkaLog, records: Sequence[bytes], goes_on: Callable[[], bool]) -> list[int] | None:
        told.append(goes_on())
        return append(log, records, goes_on)

    monkeypatch.setattr(KafkaLog, "append", append_slowly)
    monkeypatch.setattr("holdfast.store.kafka.store._SILENCE", -1.0)
    store = opened(url)
    assert told and store.trouble is None
    store.close()


def test_a_write_of_which_kafka_takes_only_the_last_part_damages_no_log(url: str, content: Content) -> None:
    """Somebody made the topic's records smaller while the store was open."""
    store = opened(url)
    commit(store, 0)
    change_topic(url, "max.message.bytes", "100000")
    with pytest.raises(StoreFailed, match="Message size too large"):
        store.commit(batch(1, store._log.most + 10_000))
    store.close()
    change_topic(url, "max.message.bytes", str(8 << 20))
    again = opened(url)
    assert content(again) == content(expected(0))
    commit(again, 1)
    assert content(again) == content(expected(0, 1))
    again.close()


@nightly
@pytest.mark.slow
def test_without_two_of_three_nodes_nothing_is_confirmed_until_one_is_back(kafka_nodes, tmp_path, content):
    nodes = kafka_nodes(3)
    store = opened(nodes.new_url(tmp_path / "cache"))
    store.retry_for(math.inf)
    commit(store, 0)
    nodes.pause(0)
    nodes.pause(1)
    is_done = threading.Event()

    def write() -> None:
        commit(store, 1)
        is_done.set()

    writer = threading.Thread(target=write)
    writer.start()
    wait_until(lambda: store.trouble)
    assert not is_done.is_set()
    nodes.pause(0, on=False)
    nodes.pause(1, on=False)
    writer.join(120)
    assert is_done.is_set()
    assert store.trouble is None
    assert content(store) == content(expected(0, 1))
    store.close()
