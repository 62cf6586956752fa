"""What a source has while it is open: created together, closed together, and nothing of it left after an error."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    ConfigurationError,
    DeliveryError,
    Destination,
    Message,
    MessageContext,
    Processor,
    RetransmissionPolicy,
    Source,
    SourceHTTP,
    SourcePolicy,
    Versions,
)
from holdfast.core.messages import TerminateSequence
from holdfast.exceptions import MessageFlowError

ACTION = "urn:a"
NOWHERE = "http://127.0.0.1:9/"


async def test_a_source_that_cannot_listen_leaves_its_store_to_the_next(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        deaf = Source(NOWHERE, tmp_path / "o", http=SourceHTTP(listen=("127.0.0.1", port)))
        with pytest.raises(ConfigurationError):
            await deaf.open()
    with pytest.raises(ConfigurationError, match="not open"):
        await deaf.send("<n/>", action=ACTION)
    async with Source(NOWHERE, tmp_path / "o") as source:
        assert source.next_offset() == 0


class Tracked:
    """A transport that no request leaves, and that knows whether it is closed."""

    def __init__(self) -> None:
        self.is_closed = False

    def request(self, *request: Any) -> None:
        """Give no answer."""

    async def close(self) -> None:
        self.is_closed = True


async def test_an_opening_that_fails_after_the_sender_was_made_stops_the_sender(tmp_path: Path) -> None:
    """The store of another destination is refused by the last of the checks."""
    transport = Tracked()
    async with Source(NOWHERE, tmp_path / "o") as source:
        await source.send("<n/>", action=ACTION)
    with pytest.raises(ConfigurationError):
        await Source("http://127.0.0.1:10/", tmp_path / "o", http=SourceHTTP(transport=transport)).open()
    assert transport.is_closed


async def test_a_closed_source_fails_its_waiting_calls_and_can_be_opened_again(tmp_path: Path) -> None:
    source = Source(NOWHERE, tmp_path / "o")
    await source.open()
    sent = await source.send("<n/>", action=ACTION)
    waiting = asyncio.ensure_future(sent.acknowledged())
    await asyncio.sleep(0)
    await source.close(timeout=0.0)
    with pytest.raises(DeliveryError, match="closed"):
        await waiting
    await source.close()
    source = Source(None, tmp_path / "o")
    await source.open()
    assert source.to == NOWHERE and source.progress.outstanding == 1
    await source.close(timeout=0.0)


class NotYet(Processor):
    """Asks for a later repetition of the fourth message, always."""

    def inbound(self, context: MessageContext) -> None:
        if context.envelope.sequence is not None and context.envelope.sequence.message_number == 4:
            raise MessageFlowError("not yet")


async def test_a_source_that_is_closed_remembers_which_messages_were_acknowledged(tmp_path: Path, serve: Any) -> None:
    service = await serve(Destination(tmp_path / "i", processors=[NotYet()]))
    source = Source(service.url, tmp_path / "o")
    await source.open()
    sent = [await source.send(f"<n>{number}</n>", action=ACTION) for number in range(1, 7)]
    for number in (1, 2, 3, 5, 6):
        await sent[number - 1].acknowledged(60)
    await source.close(timeout=0.0)
    async with Source(None, tmp_path / "o") as again:
        assert again.progress.outstanding == 1


class StaysOpen(Processor):
    """Asks for a later repetition of each TerminateSequence until the test permits the end."""

    def __init__(self) -> None:
        self.is_asked, self.may_end = asyncio.Event(), False

    def inbound(self, context: MessageContext) -> None:
        if isinstance(context.envelope.control, TerminateSequence) and not self.may_end:
            self.is_asked.set()
            raise MessageFlowError("not yet")


@pytest.mark.parametrize("rm", ["1.0", "1.1"])
@pytest.mark.parametrize("restarts", [False, True])
async def test_a_message_sent_while_the_sequence_ends_is_not_reported_early(
    tmp_path: Path, serve: Any, rm: str, restarts: bool
) -> None:
    """In 1.0, the message has the offset of LastMessage's number, which the service has acknowledged."""
    end, got = StaysOpen(), []
    app = Destination(tmp_path / "i", processors=[end])

    @app.on()
    async def take(message: Message) -> None:
        got.append(message.body.text)

    policy = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.2, floor=0.1, cap=0.4))
    options: dict[str, Any] = {"versions": Versions(rm), "policy": policy}
    source = Source((await serve(app)).url, tmp_path / "o", **options)
    await source.open()
    await source.send("<n>1</n>", action=ACTION)
    await source.flush(240)
    ending = asyncio.ensure_future(source.end())
    await asyncio.wait_for(end.is_asked.wait(), 240)
    if restarts:
        await source.close(0)
        source = Source(None, tmp_path / "o", **options)
        await source.open()
    sent = await source.send("<n>2</n>", action=ACTION)
    reported = asyncio.ensure_future(sent.acknowledged(240))
    await asyncio.sleep(0)
    assert not reported.done()
    flushed = asyncio.ensure_future(source.flush(240))
    end.may_end = True
    await asyncio.gather(reported, flushed)
    await app.handled()
    assert got == ["1", "2"] and source.progress.outstanding == 0
    await asyncio.gather(ending, return_exceptions=True)
    await source.close()


async def test_a_listener_grants_a_sequence_that_is_acknowledged_to_the_service_only(
    tmp_path: Path, serve: Any, peer: Any
) -> None:
    """Without an Offer, the service creates the Sequence of its replies; Sandesha2's AcksTo is its own address."""
    service, http = await serve(Destination(tmp_path / "i")), SourceHTTP(listen=("127.0.0.1", 0))
    async with Source(service.url, tmp_path / "o", http=http, offer=False) as source:
        assert source._running.server is not None
        client = peer(f"http://127.0.0.1:{source._running.server.port}/")
        assert (await client.create(acks_to=NOWHERE)).fault == "CreateSequenceRefused"
        await client.create(acks_to=service.url)
        assert client.identifier
