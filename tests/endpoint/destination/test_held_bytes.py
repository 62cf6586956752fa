"""Bytes held behind gaps: all Sequences of a destination share one bound, which what leaves makes free again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast import Destination, DestinationPolicy

BODY = b"<m xmlns='urn:test'>" + b"x" * 30_000 + b"</m>"


async def test_sequences_together_hold_no_more_than_the_process_may(serve: Any, peer: Any, tmp_path: Path) -> None:
    policy = DestinationPolicy(max_buffer_bytes=100_000)
    service = await serve(Destination(tmp_path / "inbox", partitions=1, policy=policy))
    peers = [peer(service.url) for _ in range(3)]
    for one in peers:
        await one.create()
    first, second, third = peers
    for number in (2, 3):
        answer = await first.message(number, body=BODY)
    assert answer.ranges == ((2, 3),)
    assert (await second.message(2, body=BODY)).ranges == ((2, 2),)
    held = service.app.running.engine.protocol.inbound.held
    assert 90_000 < held.bytes <= 100_000
    for one in peers:
        answer = await one.message(5, body=BODY)
        assert answer.envelope is None or (5, 5) not in answer.ranges, "there is no room for it"
    assert held.bytes <= 100_000
    assert (await third.message(1, body=BODY)).ranges == ((1, 1),), "what closes a gap is accepted"
    assert (await first.message(1, body=BODY)).ranges == ((1, 3),)
    assert (await third.message(3, body=BODY)).ranges == ((1, 1), (3, 3)), "what has left made room"
    await service.close(0.5)

    again = await serve(Destination(tmp_path / "inbox", partitions=1, policy=policy))
    assert 60_000 < again.app.running.engine.protocol.inbound.held.bytes <= 100_000, (
        "the bound counts what the store holds"
    )
