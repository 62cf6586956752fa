"""Reading envelopes: small ones at once, large ones in a thread, every one told of, and nothing kept.

Covers endpoint/heap.py.
"""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest
from waiting import until

from holdfast.core.messages import Envelope
from holdfast.endpoint import heap
from holdfast.endpoint.envelopes.decoder import LARGE, OFF_LOOP, Decoder, Outcome
from holdfast.exceptions import EnvelopeError, LimitExceeded
from holdfast.wire import Limits, MissingPart


def message(size: int, word: str = "x") -> bytes:
    head = '<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope"><s:Body><b>'
    tail = "</b></s:Body></s:Envelope>"
    return (head + word * ((size - len(head) - len(tail)) // len(word)) + tail).encode()


async def test_a_small_envelope_is_read_at_once_and_a_large_one_in_a_thread() -> None:
    decoder, told = Decoder(), list[Outcome]()
    decoder.read(message(OFF_LOOP - 100), told.append)
    assert len(told) == 1
    assert not decoder.is_busy
    decoder.read(message(OFF_LOOP + 100), told.append)
    assert (len(told), decoder.is_busy) == (1, True)
    await until(lambda: len(told) == 2)
    assert not decoder.is_busy
    assert all(isinstance(one, Envelope) and one.body.startswith(b"<b>xxx") for one in told)
    await decoder.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("holdfast-decode")]


@pytest.mark.parametrize("size", [2_000, OFF_LOOP + 2_000])
async def test_what_is_wrong_is_told_like_what_is_right(size: int) -> None:
    decoder, told = Decoder(Limits(max_bytes=size - 500)), list[Outcome]()
    for data in (message(size), message(size - 1_000) + b"<", message(size - 1_000)):
        decoder.read(data, told.append)
    await decoder.close()
    too_large, malformed, right = told
    assert isinstance(too_large, LimitExceeded)
    assert isinstance(malformed, EnvelopeError)
    assert "not well-formed" in malformed.message
    assert isinstance(right, Envelope)


@pytest.mark.parametrize("place", ["header", "Security header", "body"])
async def test_a_reference_to_an_attachment_that_did_not_come_is_refused(place: str) -> None:
    include = b'<t:a xmlns:t="urn:t"><x:Include xmlns:x="http://www.w3.org/2004/08/xop/include" href="cid:a"/></t:a>'
    blocks = {"header": b"<t:b xmlns:t='urn:t'/>" + include, "Security header": include.replace(b"t:a", b"t:Security")}
    header = b"<s:Header>" + blocks.get(place, b"") + b"</s:Header>"
    data = message(1_000).replace(b"<s:Body><b>", header + b"<s:Body><b>" + (include if place == "body" else b""))
    decoder, told = Decoder(), list[Outcome]()
    for _ in range(4):  # the form of a Security header is known by then
        decoder.read(data, told.append)
    await decoder.close()
    assert [type(one) for one in told] == [MissingPart] * 4


async def test_closing_waits_until_everything_is_read_and_told_in_its_order() -> None:
    decoder, told = Decoder(), list[str]()
    for number in range(4):
        decoder.read(message(OFF_LOOP * 4 + 1000 * number), lambda _read, number=number: told.append(str(number)))
    await decoder.close()
    assert told == ["0", "1", "2", "3"]
    await decoder.close()


async def test_the_loop_goes_on_while_a_large_envelope_is_read() -> None:
    decoder, told = Decoder(), list[Outcome]()
    turns = 0
    decoder.read(message(LARGE * 4, "<i>1</i>"), told.append)
    while not told:
        turns += 1
        await asyncio.sleep(0)
    assert turns > 10
    await decoder.close()


async def test_memory_is_given_back_once_after_large_envelopes_and_never_after_small_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[int] = []
    monkeypatch.setattr(heap, "SETTLED", 0.05)
    monkeypatch.setattr(heap, "give_back", lambda: given.append(threading.get_ident()))
    decoder, told = Decoder(), list[Outcome]()
    for size in (1_000, OFF_LOOP * 2):
        decoder.read(message(size), told.append)
    await until(lambda: len(told) == 2)
    assert decoder._heap._timer is None
    for _ in range(3):
        decoder.read(message(LARGE), told.append)
    await until(lambda: len(told) == 5 and given)
    assert threading.get_ident() not in given, "it takes milliseconds: not in the loop's thread"
    decoder.read(message(LARGE), told.append)
    await decoder.close()  # nothing is left that would wake up later


def test_the_heap_can_be_asked_to_give_back() -> None:
    heap.give_back()


@pytest.mark.parametrize("body", ["<b>1</b>", "<!-- --><b>1</b>", "<b>", "<!DOCTYPE x>"])
async def test_what_was_read_is_let_go_of_without_collecting_garbage(body: str) -> None:
    gc.collect()
    gc.disable()
    try:
        decoder = Decoder()
        told: list[int] = []
        data = b'<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope"><s:Body>%b</s:Body></s:Envelope>'
        decoder.read(data % body.encode(), lambda read: told.append(1))
        assert told == [1]
        left = [type(one).__name__ for one in gc.get_objects() if str(type(one).__module__) == "holdfast.wire.tree"]
        assert left == []
    finally:
        gc.enable()
