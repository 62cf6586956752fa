"""A message that is sent again under its MessageID, while the outbox holds it, is stored and sent once."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from holdfast import (
    Destination,
    DestinationHTTP,
    EnvelopeError,
    NotAcknowledged,
    RetransmissionPolicy,
    Source,
    SourceHTTP,
    SourcePolicy,
)
from holdfast.core.records import Record
from holdfast.endpoint.source import message_ids
from holdfast.store.memory import MemoryStore
from holdfast.testing.ports import free_ports

ACTION, ASK = "urn:test:submit", "urn:test:ask"
QUICK = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.2, floor=0.1, cap=0.3))
NOWHERE = "http://127.0.0.1:9/"


def shop(held: asyncio.Event | None = None) -> tuple[Destination, list[str]]:
    http = DestinationHTTP(allow_addresses=["http://127.0.0.1/"])
    app, seen = Destination(":memory:", http=http), []

    @app.on(ACTION)
    def submit(message: Any) -> None:
        seen.append(message.body.text)

    @app.on(ASK)
    async def ask(message: Any) -> str:
        seen.append(message.body.text)
        if held is not None:
            await held.wait()
        return f"<re>{message.body.text}</re>"

    return app, seen


async def test_a_message_that_is_sent_again_is_the_one_that_is_there() -> None:
    async with Source(NOWHERE, ":memory:", policy=QUICK) as source:
        first = await source.send("<a>1</a>", action=ACTION, message_id="urn:m:1")
        again = await source.send("<a>1</a>", action=ACTION, message_id="urn:m:1")
        other = await source.send("<a>2</a>", action=ACTION, message_id="urn:m:2")
        elsewhere = await source.send("<a>1</a>", action=ACTION, message_id="urn:m:1", sequence_key="k")
        assert (first.offset, again.offset, other.offset) == (0, 0, 1)
        assert elsewhere.sequence_key == "k"
        assert source.progress.stored == 3
        await source.close(timeout=0.0)


async def test_also_at_the_same_time_and_for_one_whose_sender_gave_up() -> None:
    async with Source(NOWHERE, ":memory:", policy=QUICK) as source:
        sending = [
            asyncio.ensure_future(source.send("<a>1</a>", action=ACTION, message_id="urn:m:1")) for _ in range(3)
        ]
        await asyncio.sleep(0)
        sending[0].cancel()
        await asyncio.wait(sending)
        assert [one.result().offset for one in sending[1:]] == [0, 0]
        assert source.progress.stored == 1
        await source.close(timeout=0.0)


@pytest.mark.parametrize("remembered", [10_000, 3])
async def test_a_program_that_died_without_knowing_sends_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remembered: int
) -> None:
    """Of a message that is older than the newest that are remembered nobody knows that it is there."""
    monkeypatch.setattr(message_ids, "REMEMBERED", remembered)
    source = Source(NOWHERE, tmp_path / "outbox", policy=QUICK)
    await source.open()
    for number in range(5):
        await source.send(f"<a>{number}</a>", action=ACTION, message_id=f"urn:m:{number}")
    await source.close(timeout=0.0)
    async with Source(None, tmp_path / "outbox", policy=QUICK) as source:
        offsets = [
            (await source.send(f"<a>{number}</a>", action=ACTION, message_id=f"urn:m:{number}")).offset
            for number in (4, 3, 5)
        ]
        assert offsets == [4, 3, 5]
        assert source.progress.stored == 1
        forgotten = await source.send("<a>0</a>", action=ACTION, message_id="urn:m:0")
        assert forgotten.offset == (0 if remembered > 6 else 6)
        await source.close(timeout=0.0)


@pytest.mark.parametrize("asks", [False, True])
async def test_another_message_with_its_message_id_is_refused(asks: bool) -> None:
    async with Source(NOWHERE, ":memory:", policy=QUICK) as source:
        await source.send("<a>1</a>", action=ACTION, message_id="urn:m:1")
        again = source.request if asks else source.send
        with pytest.raises(EnvelopeError, match="another message with the MessageID urn:m:1"):
            await again("<a>2</a>", action=ACTION, message_id="urn:m:1")
        assert source.progress.stored == 1
        await source.close(timeout=0.0)


async def test_what_is_acknowledged_is_another_message(serve: Any) -> None:
    app, seen = shop()
    async with Source((await serve(app)).url, ":memory:", policy=QUICK) as source:
        for _ in range(2):
            await (await source.send("<a>1</a>", action=ACTION, message_id="urn:m:1")).acknowledged(60)
    assert seen == ["1", "1"]


async def test_a_request_that_is_made_again_is_asked_once_and_both_get_the_reply(serve: Any, tmp_path: Path) -> None:
    held = asyncio.Event()
    app, seen = shop(held)
    async with Source((await serve(app)).url, tmp_path / "outbox", policy=QUICK) as source:
        asked = [asyncio.ensure_future(source.request("<a>1</a>", action=ASK, message_id="urn:m:1")) for _ in range(2)]
        await until(lambda: seen)
        held.set()
        replies = await asyncio.gather(*asked)
        assert [reply.body.text for reply in replies] == ["1", "1"]
        # It was not said to be done: it is given again, without another question.
        assert (await source.request("<a>1</a>", action=ASK, message_id="urn:m:1")).body.text == "1"
    assert seen == ["1"]


async def test_a_caller_that_gives_up_takes_the_reply_from_no_other(serve: Any, tmp_path: Path) -> None:
    held = asyncio.Event()
    app, seen = shop(held)
    async with Source((await serve(app)).url, tmp_path / "outbox", policy=QUICK) as source:
        patient = asyncio.ensure_future(source.request("<a>1</a>", action=ASK, message_id="urn:m:1"))
        await until(lambda: seen)
        with pytest.raises(NotAcknowledged):
            await source.reply("urn:m:1", timeout=0.05)
        held.set()
        assert (await asyncio.wait_for(patient, 10)).body.text == "1"


async def test_a_reply_that_no_caller_got_is_there_for_the_next_process(serve: Any, tmp_path: Path) -> None:
    app, _ = shop()
    url = (await serve(app)).url
    async with Source(url, tmp_path / "outbox", policy=QUICK) as source:
        asking = asyncio.ensure_future(source.request("<a>1</a>", action=ASK, message_id="urn:m:1"))
        calls = source._running.calls
        while "urn:m:1" not in calls.asked:
            await asyncio.sleep(0)
        asking.cancel()  # before its message is durable
        await until(lambda: calls.here.has("urn:m:1"))
        assert not calls.replies
    async with Source(url, tmp_path / "outbox", policy=QUICK) as source:
        assert (await source.reply("urn:m:1", timeout=10)).body.text == "1"


@pytest.mark.parametrize("first", ["send", "request"])
@pytest.mark.parametrize("then", ["send", "request"])
async def test_a_message_id_that_was_used_names_no_other_message(serve: Any, first: str, then: str) -> None:
    app, seen = shop()
    actions = {"send": ACTION, "request": ASK}
    async with Source((await serve(app)).url, ":memory:", policy=QUICK) as source:
        got = await getattr(source, first)("<a>1</a>", action=actions[first], message_id="urn:m:1")
        if first == "send":
            await got.acknowledged(60)
        for body, action in (("<a>2</a>", actions[then]), ("<a>1</a>", "urn:other")):
            with pytest.raises(EnvelopeError, match="another message with the MessageID urn:m:1 was sent before"):
                await getattr(source, then)(body, action=action, message_id="urn:m:1")
    assert seen == ["1"]


@pytest.mark.every(3)
@pytest.mark.parametrize("offer", [True, pytest.param(False, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("listens", [True, False])
@pytest.mark.parametrize(
    ("earlier", "repeats"), [("nothing", True), *((one, also) for one in ("stored", "sent") for also in (True, False))]
)
async def test_a_later_process_gives_a_kept_reply_to_its_request_alone(
    serve: Any, tmp_path: Path, offer: bool, listens: bool, earlier: str, repeats: bool
) -> None:
    """Also if the reply arrives in a later process than the one that stored or sent the request, and before or after
    the program repeats it there."""
    held = asyncio.Event()
    app, seen = shop(held)
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/"
    if earlier != "stored":
        await serve(app, port=port)
    http = SourceHTTP(listen=("127.0.0.1", free_ports(1)[0])) if listens else SourceHTTP()

    async def again(body: str, action: str = ASK) -> str:
        source = Source(url, tmp_path / "outbox", policy=QUICK, http=http, offer=offer)
        await source.open()
        try:
            text: str = (await source.request(body, action=action, message_id="urn:m:1", timeout=60)).body.text
            return text
        finally:
            await source.close()  # without confirming the reply

    if earlier != "nothing":
        async with Source(url, tmp_path / "outbox", policy=QUICK, http=http, offer=offer) as source:
            asking = asyncio.ensure_future(source.request("<a>1</a>", action=ASK, message_id="urn:m:1"))
            await until(lambda: source.progress.stored if earlier == "stored" else seen)
            await source.close(timeout=0.0)
            await asyncio.gather(asking, return_exceptions=True)
    if earlier == "stored":
        await serve(app, port=port)
    if repeats:
        asking = asyncio.ensure_future(again("<a>1</a>"))
        await until(lambda: seen)
        held.set()
        assert await asking == "1"
    else:
        held.set()
        async with Source(url, tmp_path / "outbox", policy=QUICK, http=http, offer=offer) as source:
            await until(lambda: source.unconfirmed() == ["urn:m:1"])
    for _ in range(2):
        for body, action in (("<a>2</a>", ASK), ("<a>1</a>", "urn:other")):
            with pytest.raises(EnvelopeError, match="another message with the MessageID urn:m:1 was sent before"):
                await again(body, action)
        assert await again("<a>1</a>") == "1"
    assert seen == ["1"]


class SlowStore(MemoryStore):
    """A store whose reads of the outbox wait for ``gate``."""

    reads_at_once = False

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def read(self, queue: str, partition: int, start: int, end: int) -> Any:
        if queue.startswith("outbox/"):
            assert self.gate.wait(60)
        return super().read(queue, partition, start, end)


@pytest.mark.parametrize("confirms", [True, False])
@pytest.mark.parametrize("listens", [False, True])
@pytest.mark.parametrize("arrived", range(5))
async def test_a_call_that_is_repeated_while_its_reply_arrives_is_asked_once(
    serve: Any, arrived: int, listens: bool, confirms: bool
) -> None:
    """The next process resumes four requests and repeats them. While it looks for their MessageIDs, replies arrive."""
    held = asyncio.Semaphore(0)
    http = DestinationHTTP(allow_addresses=["http://127.0.0.1/"])
    app, seen = Destination(":memory:", http=http), []

    @app.on(ASK)
    async def ask(message: Any) -> str:
        seen.append(message.body.text)
        await held.acquire()
        return f"<re>{message.body.text}</re>"

    own = SourceHTTP(listen=("127.0.0.1", free_ports(1)[0])) if listens else SourceHTTP()
    store = SlowStore()

    async def again(number: int) -> str:
        reply = await source.request(f"<a>{number}</a>", action=ASK, message_id=f"urn:m:{number}")
        if confirms:
            reply.done()
        text: str = reply.body.text
        return text

    numbers = range(4)
    source = Source((await serve(app)).url, store, policy=QUICK, http=own)
    await source.open()
    asking = [asyncio.ensure_future(again(number)) for number in numbers]
    await until(lambda: source.progress.stored == 4)
    await until(lambda: seen)
    await source.close(timeout=0.0)
    await asyncio.gather(*asking, return_exceptions=True)
    async with Source(None, store, policy=QUICK, http=own) as source:
        store.gate.clear()
        asking = [asyncio.ensure_future(again(number)) for number in numbers]
        for _ in range(arrived):
            held.release()
        await until(lambda: len(source.unconfirmed()) == arrived)
        store.gate.set()
        for _ in numbers:
            held.release()
        assert await asyncio.gather(*asking) == ["0", "1", "2", "3"]
        assert source.progress.stored == 0
    assert sorted(seen) == ["0", "1", "2", "3"]


def test_requests_from_the_store_displace_no_message_id_that_the_program_chose() -> None:
    """Their MessageIDs may be generated ones, of which there may be any number."""
    given = message_ids.GivenIds()
    chosen = Record("", 0, "urn:a", b"<a/>", 0.0, "urn:chosen")
    given.add("urn:chosen", given.check(chosen))
    stored = [(n, Record("", 0, "urn:a", b"<b/>", 0.0, f"urn:uuid:{n}", wants_reply=True)) for n in range(10_001)]
    given.read("outbox/", stored)
    for number in ("urn:chosen", "urn:uuid:10000"):
        with pytest.raises(EnvelopeError, match="was sent before"):
            given.check(Record("", 0, "urn:a", b"<other/>", 0.0, number))
    given.check(Record("", 0, "urn:a", b"<other/>", 0.0, "urn:uuid:0"))  # only the newest are remembered
