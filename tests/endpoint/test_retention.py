"""What a served destination keeps: as it was told, over restarts, and whatever its store gives back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from waiting import until

from holdfast import ConfigurationError, Destination, HandlingPolicy, Message, RetentionPolicy, Source
from holdfast.core.queues.cursors import ASIDE, HANDLER
from holdfast.core.queues.deletion import TRIM_EVERY
from holdfast.core.records import Batch
from holdfast.endpoint.arguments import to_retention
from holdfast.store.rocksdb.store import RocksDBStore

ACTION = "urn:test:submit"


def made(store: Any, seen: list[str] | None = None, **options: Any) -> Destination:
    app = Destination(store, partitions=1, **options)
    if seen is not None:

        async def take(message: Message) -> None:
            seen.append(message.body_bytes.decode())

        app.on(ACTION)(take)
    return app


async def send(url: str, *numbers: int) -> None:
    async with Source(url, ":memory:") as source:
        for number in numbers:
            await source.send(f"<n>{number}</n>", action=ACTION)
        await source.flush(60)


@pytest.mark.parametrize("given", ["a week", "", 7, object(), "7d readers"])
def test_a_retention_that_is_none_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError):
        Destination(":memory:", queues={"inbox": given})


def test_a_retention_is_words_or_a_policy_and_may_be_said_again_before_the_start() -> None:
    assert Destination(":memory:").settings.queues["inbox"][0] == RetentionPolicy()
    assert Destination(":memory:", queues={"inbox": "1h"}).settings.queues["inbox"][0] == RetentionPolicy(3600.0)
    policy = RetentionPolicy(None, 5000)
    assert Destination(":memory:", queues={"inbox": policy}).settings.queues["inbox"][0] is policy
    app = Destination(":memory:")
    app.keep("12h 1GB")
    assert app.settings.queues["inbox"] == (to_retention("12h 1GB"), False)


async def test_a_destination_with_handlers_says_what_it_keeps_and_until_when(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for options, keeps in (({}, "until it is handled"), ({"queues": {"inbox": "7d"}}, "7d readers 30d")):
        seen: list[str] = []
        caplog.clear()
        caplog.set_level("INFO", "holdfast")
        service = await serve(made(":memory:", seen, **options))
        assert keeps in caplog.text
        await send(service.url, *range(2 * TRIM_EVERY))
        await until(lambda seen=seen: len(seen) == 2 * TRIM_EVERY)
        await service.app.running.engine.durable()
        assert (service.app.running.queue.records.firsts[0] > 0) == (not options)


@pytest.mark.parametrize("state", [{"offset": 1}, {"done": "x"}, {}])
async def test_a_server_starts_whatever_place_of_its_handlers_the_store_gives_back(
    serve: Any, tmp_path: Path, state: dict[str, Any]
) -> None:
    seen: list[str] = []
    service = await serve(made(tmp_path / "inbox", seen))
    await send(service.url, 1, 2)
    await until(lambda: len(seen) == 2)
    await service.close()
    store = RocksDBStore(tmp_path / "inbox")
    store.commit(Batch(cursors={("inbox", 0, HANDLER): state}))
    store.close()

    service = await serve(made(tmp_path / "inbox", seen))
    await send(service.url, 3)
    await until(lambda: "<n>3</n>" in seen)
    assert seen[:2] == ["<n>1</n>", "<n>2</n>"]
    assert service.app.incidents["state.unreadable"] == 1
    assert service.app.running.store.load().cursors["inbox", 0, ASIDE + HANDLER] == state


async def test_new_handlers_of_a_queue_begin_at_its_first_record_that_is_left(serve: Any, tmp_path: Path) -> None:
    service = await serve(made(tmp_path / "inbox"))
    await send(service.url, *range(10))
    await service.close()
    store = RocksDBStore(tmp_path / "inbox")
    store.commit(Batch(trims={("inbox", 0): 6}))
    store.close()
    seen: list[str] = []
    service = await serve(made(tmp_path / "inbox", seen, handling=HandlingPolicy()))
    await until(lambda: len(seen) == 4)
    assert seen == [f"<n>{number}</n>" for number in range(6, 10)]


async def test_a_store_with_another_number_of_partitions_is_refused_and_left_as_it_is(
    serve: Any, tmp_path: Path
) -> None:
    service = await serve(Destination(tmp_path / "inbox", partitions=4))
    await service.app.running.readers["inbox"].advance("audit", {})
    await service.close()
    for partitions in (1, 8):
        with pytest.raises(ConfigurationError, match="4 partitions"):
            await Destination(tmp_path / "inbox", partitions=partitions).start()
    service = await serve(Destination(tmp_path / "inbox", partitions=4))
    assert set(service.app.running.queue.cursors) == {"audit"}
    assert not any(name.startswith(ASIDE) for _, _, name in service.app.running.store.load().cursors)
