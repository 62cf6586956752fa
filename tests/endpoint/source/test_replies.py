"""A reply is given again until the program says that it has it, over restarts too."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Attachment,
    Destination,
    NotAcknowledged,
    PeerFault,
    Source,
    SourcePolicy,
    Versions,
    WithAttachments,
    sync,
)
from holdfast.core.versions import ALL_VERSIONS
from holdfast.endpoint.envelopes.message import ApplicationFault
from holdfast.endpoint.source import replies
from holdfast.store.memory import MemoryStore

PRICE = "urn:test:price"


def shop() -> tuple[Destination, list[str]]:
    app = Destination(":memory:")
    asked: list[str] = []

    @app.on(PRICE)
    def price(message: Any) -> str:
        asked.append(message.body.text)
        if message.body.text == "unicorn":
            raise ApplicationFault("none left")
        return f"<price>{message.body.text}</price>"

    return app, asked


def kept(source: Source) -> int:
    """Replies that the source's queue still has."""
    one = source._running.engine.protocol.inbound.queue.partitions[0]
    return one.end - one.first


async def test_a_reply_is_given_again_until_it_is_done_also_by_a_later_process(serve: Any, tmp_path: Path) -> None:
    app, asked = shop()
    url = (await serve(app)).url
    source = Source(url, tmp_path / "o")
    await source.open()
    first = await source.request("<n>1</n>", action=PRICE, message_id="urn:one", timeout=60)
    assert (await source.reply("urn:one")).body.text == first.body.text == "1"
    await source.close()  # the program died with it, as far as anybody knows
    async with Source(url, tmp_path / "o") as again:
        reply = await again.reply("urn:one", timeout=60)
        assert reply.body.text == "1"
        reply.done()
        reply.done()
        with pytest.raises(NotAcknowledged):
            await again.reply("urn:one", timeout=0.01)
        assert kept(again) == 0
    assert asked == ["1"]


async def test_a_reply_counts_as_received_only_if_its_block_ends_without_an_error(serve: Any) -> None:
    app, _ = shop()
    async with Source((await serve(app)).url, ":memory:") as source:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with await source.request("<n>1</n>", action=PRICE, message_id="urn:one") as reply:
                assert reply.body.text == "1"
                raise ZeroDivisionError
        async with await source.reply("urn:one", timeout=60) as reply:
            assert reply.body.text == "1"
        with pytest.raises(NotAcknowledged):
            await source.reply("urn:one", timeout=0.01)


async def test_a_source_that_ends_in_order_keeps_the_replies_nobody_took(serve: Any, tmp_path: Path) -> None:
    app, _ = shop()
    url = (await serve(app)).url
    async with Source(url, tmp_path / "o") as source:
        await source.request("<n>1</n>", action=PRICE, message_id="urn:one", timeout=60)
        waiting = asyncio.ensure_future(source.request("<n>2</n>", action=PRICE, message_id="urn:two", timeout=None))
        while kept(source) < 2:
            await asyncio.sleep(0.01)
        waiting.cancel()
        source._running.calls.here._given.pop("urn:two", None)  # it came, and the program was not there to take it
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with Source(url, tmp_path / "o") as source:
            with pytest.raises(NotAcknowledged):
                await source.reply("urn:one", timeout=0.01)
            assert (await source.reply("urn:two", timeout=60)).body.text == "2"
            raise ZeroDivisionError
    async with Source(url, tmp_path / "o") as source:
        assert (await source.reply("urn:two", timeout=60)).body.text == "2"
    async with Source(url, tmp_path / "o") as source:
        assert kept(source) == 0


async def test_what_is_done_is_deleted_up_to_the_first_that_is_not(serve: Any) -> None:
    app, _ = shop()
    async with Source((await serve(app)).url, ":memory:") as source:
        replies = [await source.request(f"<n>{n}</n>", action=PRICE, timeout=60) for n in range(3)]
        for done, left in ((1, 3), (0, 1), (2, 0)):
            replies[done].done()
            assert kept(source) == left


async def test_a_program_that_never_says_so_keeps_no_more_than_the_limit(serve: Any) -> None:
    app, _ = shop()
    async with Source((await serve(app)).url, ":memory:", policy=SourcePolicy(kept_replies=2)) as source:
        for number in range(6):
            await source.request(f"<n>{number}</n>", action=PRICE, message_id=f"urn:{number}", timeout=60)
        assert kept(source) == 2
        assert (await source.reply("urn:5", timeout=60)).body.text == "5"


async def test_a_fault_is_given_again_until_it_is_done(serve: Any) -> None:
    app, asked = shop()
    async with Source((await serve(app)).url, ":memory:") as source:
        with pytest.raises(PeerFault, match="none left"):
            await source.request("<n>unicorn</n>", action=PRICE, message_id="urn:u", timeout=60)
        with pytest.raises(PeerFault, match="none left") as caught:
            await source.reply("urn:u", timeout=60)
        assert caught.value.message_id == "urn:u"
        caught.value.done()
        assert source.unconfirmed() == []
    assert asked == ["unicorn"]


async def test_a_fault_counts_as_received_if_the_program_chose_no_message_id(serve: Any) -> None:
    app, _ = shop()
    async with Source((await serve(app)).url, ":memory:") as source:
        with pytest.raises(PeerFault, match="none left"):
            await source.request("<n>unicorn</n>", action=PRICE, timeout=60)
        assert source.unconfirmed() == []


@pytest.mark.every(5)
@pytest.mark.parametrize("seed", range(24))
async def test_what_is_confirmed_stays_so_whatever_is_not(
    serve: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replies and faults, confirmed in any order by three processes, each of which leaves some for the next."""
    app, _ = shop()
    url = (await serve(app)).url
    store, expected, chance = MemoryStore(), list[str](), random.Random(seed)
    monkeypatch.setattr(replies, "BLOCK", chance.choice([1, 2, 256]))
    for process in range(3):
        source = Source(url, store)
        await source.open()
        assert source.unconfirmed() == expected
        for number in range(chance.randint(0, 5)):
            request, body = f"urn:{process}:{number}", f"<n>{chance.choice(['1', 'unicorn'])}</n>"
            with contextlib.suppress(PeerFault):
                await source.request(body, action=PRICE, message_id=request, timeout=60)
            expected.append(request)
        for request in chance.sample(expected, chance.randint(0, len(expected))):
            try:
                (await source.reply(request, timeout=60)).done()
            except PeerFault as fault:
                fault.done()
            expected.remove(request)
            assert source.unconfirmed() == expected
        await source.close(timeout=0.0)
    saved = [name for _, _, name in store.load().cursors if name.startswith(replies.CONFIRMED)]
    assert len(saved) <= kept(source)  # none of deleted replies


async def test_the_blocking_source_says_so_from_its_own_thread(serve: Any) -> None:
    app, _ = shop()
    url = (await serve(app)).url

    def ask() -> None:
        with sync.Source(url, ":memory:") as source:
            with source.request("<n>1</n>", action=PRICE, message_id="urn:one") as reply:
                assert reply.body.text == "1"
            with pytest.raises(NotAcknowledged):
                source.reply("urn:one", timeout=0.2)

    await asyncio.to_thread(ask)


@pytest.mark.parametrize("offer", [None, False])
@pytest.mark.parametrize("versions", ALL_VERSIONS, ids=lambda v: f"{v.rm}-{v.addressing}-{v.soap}")
async def test_a_reply_is_whole_whether_or_not_it_comes_in_a_sequence(
    serve: Any, versions: Versions, offer: bool | None
) -> None:
    block = b'<u:Usage xmlns:u="urn:test">9</u:Usage>'
    app = Destination(":memory:")

    @app.on(PRICE)
    def price(message: Any) -> WithAttachments:
        if message.body.text == "unicorn":
            raise ApplicationFault("none left", detail="<d/>", headers=block)
        return WithAttachments("<price/>", [Attachment(b"a picture", "image/png", "1@test")], block)

    async with Source((await serve(app)).url, ":memory:", versions=versions, offer=offer) as source:
        reply = await source.request("<n>1</n>", action=PRICE, message_id="urn:one", timeout=60)
        with pytest.raises(PeerFault) as raised:
            await source.request("<n>unicorn</n>", action=PRICE, timeout=60)
    assert reply.header_bytes == raised.value.header_bytes == block
    assert [one.content for one in reply.attachments] == [b"a picture"]
    assert (reply.body.tag, reply.relates_to, reply.action) == ("price", "urn:one", f"{PRICE}Response")
    assert (raised.value.message, raised.value.detail is not None) == ("none left", True)
