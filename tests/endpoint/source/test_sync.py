"""The blocking Source, used as a program without asyncio would use it."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import holdfast
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service
from holdfast.endpoint.source import source as coroutines
from holdfast.endpoint.source import sync
from holdfast.endpoint.source.pending_sends import Progress

ACTION = "urn:test:submit"


class Served:
    """A destination with a loop of its own in a thread."""

    def __init__(self) -> None:
        self.got: list[str] = []
        self.all_there = threading.Event()
        self.expected = 0
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        app = holdfast.Destination(":memory:")
        app.on(ACTION)(self._submit)
        app.on("urn:test:price")(lambda message: f"<price>{message.body.text}</price>")
        self._service = Service(app, Listeners(port=0))
        self._run(self._service.start())
        self.url = self._service.url

    def _submit(self, message: holdfast.Message) -> None:
        self.got.append(message.body.text or "")
        if len(self.got) == self.expected:
            self.all_there.set()

    def _run(self, coroutine: object) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)  # type: ignore[arg-type]

    def close(self) -> None:
        self._run(self._service.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def served() -> Iterator[Served]:
    """A destination that submissions and questions can be sent to."""
    one = Served()
    yield one
    one.close()


def test_messages_are_sent_and_acknowledged_and_requests_replied_to(served: Served) -> None:
    served.expected = 3
    with holdfast.sync.Source(served.url, store=":memory:") as source:
        sent = [source.send(f"<n>{number}</n>", action=ACTION) for number in range(3)]
        for one in sent:
            one.acknowledged(60)
        assert source.request("<n>7</n>", action="urn:test:price").body.text == "7"
        source.flush(60)
        assert source.progress.acknowledged == 4
        source.end(timeout=60)
        assert [one.offset for one in sent] == [0, 1, 2]
        assert len({one.message_id for one in sent}) == 3
    assert served.all_there.wait(60)
    assert served.got == ["0", "1", "2"]


def test_threads_share_one_source(served: Served) -> None:
    served.expected = 80
    with holdfast.sync.Source(served.url, store=":memory:") as source:

        def work(thread: int) -> None:
            for number in range(20):
                source.send(f"<n>{thread}:{number}</n>", action=ACTION, sequence_key=str(thread)).acknowledged(60)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
    assert served.all_there.wait(60)
    for thread in range(4):
        mine = [text for text in served.got if text.startswith(f"{thread}:")]
        assert mine == [f"{thread}:{number}" for number in range(20)]


def test_errors_are_the_same_and_what_is_stored_goes_on_later(served: Served, tmp_path: Path) -> None:
    served.expected = 1
    with holdfast.sync.Source(served.url, store=tmp_path / "outbox") as source:
        with pytest.raises(holdfast.NotAcknowledged):
            source.request("<n>7</n>", action="urn:test:price", message_id="urn:mine", timeout=0.0)
        with pytest.raises(holdfast.EnvelopeError):
            source.send("no element", action=ACTION)
        assert source.reply("urn:mine", 60).body.text == "7"
        source.resume()
    with pytest.raises(holdfast.ConfigurationError):
        holdfast.sync.Source("http://other.example/", store=tmp_path / "elsewhere", profile="none")


def test_what_a_user_prints_says_what_it_is_and_no_password(served: Served, tmp_path: Path) -> None:
    source = sync.Source(served.url, tmp_path / "store")
    assert repr(source) == f"<Source to='{served.url}' not open>"
    with source:
        assert repr(source) == f"<Source to='{served.url}' open>"
        sent = source.send("<order/>", action=ACTION, sequence_key="orders", message_id="urn:id:1")
        assert repr(sent) == "<Sent urn:id:1 sequence_key='orders' offset=0>"
    destination = holdfast.Destination("postgresql://app:secret@db/orders", queues={"one": None, "two": None})
    assert repr(destination) == "<Destination store='postgresql://app@db/orders' queues=one, two>"


def test_a_store_that_cannot_be_opened_leaves_no_thread(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a store")
    before = threading.active_count()
    with pytest.raises(holdfast.StoreError), holdfast.sync.Source("http://127.0.0.1:9/", store=tmp_path):
        pytest.fail("a directory with something else in it is no store")
    assert threading.active_count() <= before + 1  # an idle worker of the loop's executor may stay


def test_leaving_with_an_error_does_not_wait(tmp_path: Path) -> None:
    def work() -> None:
        with holdfast.sync.Source("http://127.0.0.1:9/", store=tmp_path / "outbox") as source:
            source.send("<a/>", action=ACTION)
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        work()


def test_a_source_that_is_not_open_says_so_and_does_not_wait(served: Served) -> None:
    source = holdfast.sync.Source(served.url, store=":memory:")
    with pytest.raises(holdfast.ConfigurationError, match="not open"):
        source.send("<n>1</n>", action=ACTION)
    with source:
        pass
    with pytest.raises(holdfast.ConfigurationError, match="not open"):
        source.flush()


def test_open_and_close_stand_in_for_a_with_block(served: Served, tmp_path: Path) -> None:
    served.expected = 2
    source = holdfast.sync.Source(served.url, store=tmp_path / "outbox")
    source.close()  # nothing is open: nothing to do
    for number in range(2):
        source.open()
        with pytest.raises(holdfast.ConfigurationError, match="already open"):
            source.open()
        source.send(f"<n>{number}</n>", action=ACTION).acknowledged(60)
        assert [one["role"] for one in source.sequences()] == ["source"]
        with pytest.raises(holdfast.ConfigurationError, match="timeout cannot be -1"):
            source.close(-1)
        source.close()
        source.close()
        with pytest.raises(holdfast.ConfigurationError, match="not open"):
            source.send("<n>9</n>", action=ACTION)
    assert served.all_there.wait(60)
    assert served.got == ["0", "1"]


@pytest.mark.parametrize("wait", ["flush", "end", "acknowledged", "reply"])
def test_a_thread_that_waits_while_another_closes_is_told_and_does_not_hang(tmp_path: Path, wait: str) -> None:
    source = holdfast.sync.Source("http://127.0.0.1:9/", store=tmp_path / "outbox")
    source.open()
    sent = source.send("<a/>", action=ACTION)
    waits = {"flush": source.flush, "end": source.end, "acknowledged": sent.acknowledged}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waits.get(wait, lambda: source.reply("urn:none")))
        until_waiting(source)
        source.close(0)
        with pytest.raises(holdfast.DeliveryError, match="closed"):
            waiting.result(60)


def until_waiting(source: holdfast.sync.Source) -> None:
    """Until another thread's call is in the source's loop."""

    names = ("flush", "end", "acknowledged", "reply")

    async def is_waiting() -> bool:
        return any(task.get_coro().__name__ in names for task in asyncio.all_tasks())  # type: ignore[union-attr]

    while not source._run(is_waiting()):
        pass


OUR_OWN = {"clock"}
"""Public names of the asynchronous classes that programs have no use for."""


@pytest.mark.parametrize(("blocking", "asynchronous"), [(sync.Source, coroutines.Source), (sync.Sent, coroutines.Sent)])
def test_it_has_the_names_and_the_types_of_the_asynchronous_one(blocking: type, asynchronous: type) -> None:
    names = {name for name in dir(asynchronous) if not name.startswith("_")} - OUR_OWN
    assert not names - set(dir(blocking)), "whatever the one gets, the other gets"
    if blocking is sync.Source:
        names.add("__init__")
    for name in names:
        given = getattr(asynchronous, name)
        if callable(given):
            ours = inspect.signature(getattr(blocking, name))
            theirs = inspect.signature(given)
            awaited = re.sub(r"Coroutine\[Any, Any, (\w+)\]", r"\1", str(theirs.return_annotation))
            if awaited != str(theirs.return_annotation):
                theirs = theirs.replace(return_annotation=awaited)
            assert ours == theirs, f"{blocking.__name__}.{name}{ours}"
            assert name == "__init__" or ours.return_annotation is not inspect.Signature.empty


def test_it_has_the_attributes_of_the_asynchronous_one() -> None:
    blocking, asynchronous = (make("http://127.0.0.1:9/", ":memory:") for make in (sync.Source, coroutines.Source))
    for name in vars(asynchronous):
        assert name.startswith("_") or getattr(blocking, name) == getattr(asynchronous, name), name
    called: list[Progress] = []
    blocking.on_progress = called.append
    assert blocking.on_progress == called.append


def test_it_can_be_imported_by_the_name_it_is_documented_under() -> None:
    assert importlib.import_module("holdfast.sync").Source is holdfast.sync.Source is sync.Source
    assert holdfast.sync.Sent is sync.Sent
