"""What passed between two endpoints over a network that loses and doubles, recorded, and put together from that."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import Destination, RetransmissionPolicy, Source, SourcePolicy, Versions
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service
from holdfast.pipeline.reassembly.captures import pieces
from holdfast.pipeline.reassembly.tables import Reassembled, capture_of, reassemble
from holdfast.testing.proxy import Faults, LossyProxy, Relayed
from holdfast.wire import decode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ACTION = "urn:test:put"
COUNT = 40
BAD = Faults(lose_request=0.15, lose_response=0.15, double=0.1, delay=0.2, max_delay=0.02)
QUICK = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.2, floor=0.1, cap=0.3))


async def recorded(versions: Versions) -> tuple[list[Relayed], list[str]]:
    """All that passed, and what the destination's handler got."""
    app = Destination(":memory:")
    got: list[str] = []

    @app.on(ACTION)
    async def take(message: Any) -> None:
        got.append(message.body.text)

    passed: list[Relayed] = []
    service = Service(app, Listeners(port=0))
    await service.start()
    try:
        async with LossyProxy(service.url, BAD, seed=5, on_relayed=passed.append) as network:
            async with Source(network.url, ":memory:", versions=versions, policy=QUICK) as source:
                for number in range(COUNT):
                    await source.send(f"<n>{number}</n>", action=ACTION)
                await source.flush(60)
    finally:
        await service.close(0.5)
    return passed, got


def numbers(ranges: list[Any]) -> set[int]:
    return {number for pair in ranges for number in range(pair["lower"], pair["upper"] + 1)}


@pytest.mark.spark
@pytest.mark.nightly  # the wild captures have the same losses, repeats and gaps
@pytest.mark.parametrize("versions", [Versions("1.0", "2004/08", "1.1"), Versions("1.1")], ids=str)
async def test_a_reassembled_record_is_what_the_handler_got_or_names_what_it_lacks(
    spark: SparkSession, tmp_path: Path, versions: Versions
) -> None:
    passed, got = await recorded(versions)
    assert got == [str(number) for number in range(COUNT)]
    messages = [part for one in passed for part in (one.request, one.response) if part]
    chance = random.Random(7)
    write(tmp_path / "whole", chance.sample(messages, len(messages)))
    done = reassemble(capture_of(spark, str(tmp_path / "whole")), str(tmp_path / "out"))
    rows = done.messages.where(f"action = '{ACTION}'").orderBy("message_number").collect()
    assert [row["body"] for row in rows] == [f"<n>{text}</n>" for text in got]
    assert [row["message_number"] for row in rows] == [*range(1, COUNT + 1)]
    sequence = largest(done)
    assert (numbers(sequence["missing"]), numbers(sequence["not_captured"])) == (set(), set())
    assert sequence["duplicates"] > 0 and not sequence["conflicts"]

    left = [part for part in chance.sample(messages, len(messages)) if chance.random() < 0.5]
    write(tmp_path / "leaky", left)
    there = {number for part in left for number in [number_in(part)] if number}
    leaky = reassemble(capture_of(spark, str(tmp_path / "leaky")), str(tmp_path / "out"))
    found = {row["message_number"] for row in leaky.messages.where(f"action = '{ACTION}'").collect()}
    assert found == there and len(found) < COUNT
    sequence = largest(leaky)
    lacking = numbers(sequence["missing"]) | numbers(sequence["not_captured"])
    assert lacking >= set(range(1, COUNT + 1)) - found
    assert sequence["state"] == "incomplete"
    assert not leaky.unplaced.where("why NOT IN ('empty')").count()


def write(directory: Path, messages: list[bytes]) -> None:
    """Some messages in each file, as a recorder leaves them."""
    directory.mkdir()
    for at in range(0, len(messages), 9):
        (directory / f"{at}.http").write_bytes(b"".join(messages[at : at + 9]))


def number_in(message: bytes) -> int:
    (piece,) = pieces(message)
    envelope = decode(piece.content) if piece.content else None
    if envelope is None or envelope.sequence is None or envelope.action != ACTION:
        return 0
    return envelope.sequence.message_number


def largest(done: Reassembled) -> Any:
    """The Sequence of the messages: others were offered, or granted to a request that was sent again."""
    return done.sequences.orderBy("numbers", ascending=False).first()
