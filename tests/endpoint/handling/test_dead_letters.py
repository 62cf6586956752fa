"""Dead letters at a running destination: listed, shown, handed over once more, given up; nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import until

from holdfast import ApplicationFault, Destination, HandlingPolicy, Message, PeerFault, Source
from holdfast.core.queues.dead_letters import Letter, Origin
from holdfast.core.records import Record
from holdfast.endpoint.handling.dead_letters import describe_letter, describe_letters, error_line, seal, unseal
from holdfast.endpoint.serve import Service
from holdfast.exceptions import StoreFailed
from holdfast.http.client.client import HTTPClient
from holdfast.store.memory import MemoryStore

ACTION = "urn:test:submit"
ONCE = HandlingPolicy(attempts=1)


class Desk:
    """A destination whose handler fails while the database is away."""

    def __init__(self, store: str | Path = ":memory:", **options: Any) -> None:
        self.is_away = True
        self.handled: list[tuple[str, int]] = []
        self.hold: asyncio.Event | None = None
        self.app = Destination(store, **{"handling": ONCE, **options})

        @self.app.on(ACTION)
        async def submit(message: Message) -> str:
            assert b"failure" not in message.header_bytes, "a handler is not shown our header block"
            if self.hold is not None:
                await self.hold.wait()
            if self.is_away:
                raise ConnectionError("the database is away")
            self.handled.append((message.body.text, message.attempt))
            return "<done/>"


async def fill(service: Service, *numbers: int, headers: bytes = b"") -> None:
    async with Source(service.url, ":memory:") as source:
        for number in numbers:
            await source.send(f"<n>{number}</n>", action=ACTION, headers=headers)
        await source.flush(60)
    await asyncio.wait_for(service.app.handled(), 60)


async def ask(service: Service, path: str, method: str = "GET") -> tuple[int, dict[str, Any]]:
    async with HTTPClient() as http:
        answer = await http.fetch(method, f"{service.admin_url}/{path}", b"", {})
        return answer.status, json.loads(answer.body)


async def test_letters_are_listed_and_shown_with_the_reason_and_the_message_as_it_came(serve: Any) -> None:
    service = await serve(Desk().app)
    await fill(service, 1, 2, 3, headers=b"<t:token xmlns:t='urn:t'>7</t:token>")
    status, listed = await ask(service, "dead-letters")
    assert (status, listed["count"], listed["next"]) == (200, 3, None)
    assert [one["letter"] for one in listed["dead_letters"]] == [0, 1, 2]
    first = listed["dead_letters"][0]
    assert (first["action"], first["message_number"], first["attempts"]) == (ACTION, 1, 1)
    assert first["error"] == "ConnectionError: the database is away"
    assert first["failed_at"] >= first["received_at"] > 0
    assert "body" not in first

    _, shown = await ask(service, "dead-letters/1")
    assert shown["body"] == "<n>2</n>"
    assert "token" in shown["headers"]
    assert "failure" not in shown["headers"]
    assert shown["reason"].startswith("Traceback")
    assert "test_dead_letters.py" in shown["reason"]
    assert "dispatcher.py" not in shown["reason"], "how we called the handler explains nothing"

    _, page = await ask(service, "dead-letters?from=1&limit=1")
    assert ([one["letter"] for one in page["dead_letters"]], page["next"]) == ([1], 2)


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("dead-letters/7", "GET", 404),
        ("dead-letters/-1", "GET", 404),
        ("dead-letters/99999999999999999999999999", "GET", 404),
        ("dead-letters/x/retry", "POST", 404),
        ("dead-letters/7/discard", "POST", 404),
        ("dead-letters?limit=0", "GET", 400),
        ("dead-letters?from=x", "GET", 400),
        ("dead-letters/0/retry", "GET", 405),
    ],
)
async def test_what_is_not_there_or_makes_no_sense_is_refused(serve: Any, path: str, method: str, status: int) -> None:
    service = await serve(Desk().app)
    found, answer = await ask(service, path, method)
    assert found == status
    assert answer["error"]
    assert answer["remedy"]


async def test_a_letter_that_is_retried_is_handed_over_at_once_and_over_when_it_is_handled(serve: Any) -> None:
    desk = Desk()
    service = await serve(desk.app)
    await fill(service, 1, 2)
    desk.is_away = False
    assert await ask(service, "dead-letters/1/retry", "POST") == (200, {"retried": 1, "count": 2})
    await asyncio.wait_for(service.app.handled(), 60)
    assert desk.handled == [("2", 2)], "the second attempt"
    assert [one["letter"] for one in (await ask(service, "dead-letters"))[1]["dead_letters"]] == [0]
    assert (await ask(service, "dead-letters/1"))[0] == 404
    assert (await ask(service, "dead-letters/all/retry", "POST"))[1]["retried"] == 1
    await asyncio.wait_for(service.app.handled(), 60)
    assert desk.handled == [("2", 2), ("1", 2)]
    assert (await ask(service, "dead-letters"))[1] == {"dead_letters": [], "count": 0, "next": None}


async def test_a_dead_letter_that_fails_again_has_the_new_reason_and_a_limit(serve: Any, tmp_path: Path) -> None:
    desk = Desk(tmp_path / "inbox")
    service = await serve(desk.app)
    await fill(service, 1)
    await ask(service, "dead-letters/0/retry", "POST")
    await asyncio.wait_for(service.app.handled(), 60)
    (again,) = (await ask(service, "dead-letters"))[1]["dead_letters"]
    assert (again["letter"], again["attempts"], again["retry"]) == (1, 2, False)
    _, shown = await ask(service, "dead-letters/1")
    assert (shown["body"], shown["headers"]) == ("<n>1</n>", "")
    assert shown["reason"].count("Traceback") == 1
    assert desk.app.running.dispatcher is not None
    assert (desk.app.running.dispatcher.handling.failed, desk.app.running.dispatcher.handling.dead) == (2, 1)


async def test_a_request_that_was_answered_with_a_fault_gets_no_second_answer(serve: Any) -> None:
    desk = Desk()
    service = await serve(desk.app)
    async with Source(service.url, ":memory:") as source:
        with pytest.raises(PeerFault, match="set aside"):
            await source.request("<n>1</n>", action=ACTION, timeout=60)
        desk.is_away = False
        await ask(service, "dead-letters/0/retry", "POST")
        await asyncio.wait_for(service.app.handled(), 60)
        assert desk.handled == [("1", 2)]
        await source.flush(60)


async def test_a_letter_whose_retry_was_cut_off_is_there_and_handed_over_by_the_next_start(
    serve: Any, tmp_path: Path
) -> None:
    desk = Desk(tmp_path / "inbox")
    service = await serve(desk.app)
    await fill(service, 1, 2)
    desk.hold = asyncio.Event()
    desk.is_away = False
    await ask(service, "dead-letters/all/retry", "POST")
    await until(lambda: desk.app.running.dispatcher is not None and desk.app.running.dispatcher.is_busy)
    await service.close(0.0)
    assert desk.handled == []
    again = Desk(tmp_path / "inbox")
    again.is_away = False
    service = await serve(again.app)
    await asyncio.wait_for(service.app.handled(), 60)
    assert again.handled == [("1", 2), ("2", 2)]
    assert service.app.running.dead_letters.count == 0
    await service.close(1.0)
    last = Desk(tmp_path / "inbox")
    await serve(last.app)
    await asyncio.wait_for(last.app.handled(), 60)
    assert last.handled == [], "and never again"


async def test_a_letter_that_is_given_up_is_gone_also_while_it_is_handed_over(serve: Any, tmp_path: Path) -> None:
    desk = Desk(tmp_path / "inbox")
    service = await serve(desk.app)
    await fill(service, 1, 2)
    assert await ask(service, "dead-letters/0/discard", "POST") == (200, {"discarded": 1, "count": 1})
    desk.hold = asyncio.Event()
    await ask(service, "dead-letters/1/retry", "POST")
    await until(lambda: desk.app.running.dispatcher is not None and desk.app.running.dispatcher.is_busy)
    assert await ask(service, "dead-letters/all/discard", "POST") == (200, {"discarded": 1, "count": 0})
    desk.hold.set()
    await asyncio.wait_for(service.app.handled(), 60)
    assert (await ask(service, "dead-letters"))[1]["count"] == 0
    await service.close(1.0)
    again = await serve(Desk(tmp_path / "inbox").app)
    assert again.app.running.dead_letters.count == 0


async def test_a_fault_in_a_retry_has_no_requester_and_leaves_the_letter(serve: Any) -> None:
    app = Destination(":memory:", handling=ONCE)
    calls: list[int] = []

    @app.on(ACTION)
    def submit(message: Message) -> str:
        calls.append(message.attempt)
        if len(calls) == 1:
            raise RuntimeError("a mistake")
        raise ApplicationFault("out of stock")

    service = await serve(app)
    await fill(service, 1)
    await ask(service, "dead-letters/0/retry", "POST")
    await asyncio.wait_for(app.handled(), 60)
    assert (calls, app.running.dead_letters.count) == ([1, 2], 1)


async def test_a_destination_without_handlers_has_nobody_to_hand_letters_to(serve: Any, tmp_path: Path) -> None:
    desk = Desk(tmp_path / "inbox")
    service = await serve(desk.app)
    await fill(service, 1)
    await service.close(1.0)
    service = await serve(Destination(tmp_path / "inbox"))
    assert (await ask(service, "dead-letters/0/retry", "POST"))[0] == 409
    assert (await ask(service, "dead-letters"))[1]["count"] == 1


async def test_a_letter_whose_handler_is_no_longer_there_says_so(serve: Any, tmp_path: Path) -> None:
    service = await serve(Desk(tmp_path / "inbox").app)
    await fill(service, 1)
    await service.close(1.0)
    app = Destination(tmp_path / "inbox")
    app.on("urn:other")(lambda message: None)
    service = await serve(app)
    await ask(service, "dead-letters/all/retry", "POST")
    await asyncio.wait_for(app.handled(), 60)
    (letter,) = (await ask(service, "dead-letters"))[1]["dead_letters"]
    assert letter["error"] == f"LookupError: no handler is registered for the action '{ACTION}' any longer"


async def test_a_stored_message_waits_for_a_handler_that_is_registered_later(serve: Any, tmp_path: Path) -> None:
    before = Destination(tmp_path / "inbox")
    began = asyncio.Event()

    @before.on(ACTION)
    async def unfinished(message: Message) -> None:
        began.set()
        await asyncio.Event().wait()

    service = await serve(before)
    async with Source(service.url, ":memory:") as source:
        await (await source.send("<n>1</n>", action=ACTION)).acknowledged(60)
    await began.wait()
    await service.close(0.0)
    app, handled = Destination(tmp_path / "inbox", handling=HandlingPolicy(backoff=0.01)), asyncio.Event()
    app.on("urn:other")(lambda message: None)
    await serve(app)
    app.on(ACTION)(lambda message: handled.set())
    await asyncio.wait_for(app.handled(), 60)
    assert (handled.is_set(), app.dead_letters) == (True, 0)


async def test_new_messages_are_handled_while_letters_are_tried_again(serve: Any) -> None:
    desk = Desk()
    service = await serve(desk.app)
    await fill(service, 1)
    desk.is_away = False
    desk.hold = asyncio.Event()
    await ask(service, "dead-letters/0/retry", "POST")
    await until(lambda: desk.app.running.dispatcher is not None and desk.app.running.dispatcher.is_busy)
    held, desk.hold = desk.hold, None
    async with Source(service.url, ":memory:") as source:
        await source.send("<n>2</n>", action=ACTION)
        await source.flush(60)
    await until(lambda: desk.handled == [("2", 1)])
    held.set()
    await asyncio.wait_for(service.app.handled(), 60)
    assert desk.handled == [("2", 1), ("1", 2)]


# --- records ----------------------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=60)


@given(TEXT, st.binary(max_size=60), st.integers(0, 10**6), st.floats(0, 4e9))
def test_what_is_sealed_is_unsealed_whatever_the_reason_and_the_headers_are(
    reason: str, headers: bytes, attempts: int, at: float
) -> None:
    record = Record("urn:s", 1, ACTION, b"<n/>", 5.0, headers=headers)
    letter = Letter(record, reason, attempts, at)
    assert unseal(seal(letter)) == letter


def test_a_header_like_ours_that_a_peer_sent_is_its_own() -> None:
    theirs = b"<failure xmlns='urn:holdfast' attempts='9' at='1.0'>theirs</failure>"
    record = Record("urn:s", 1, ACTION, b"<n/>", 5.0, headers=theirs)
    letter = unseal(seal(Letter(record, "ours", 1, 2.0)))
    assert (letter.record.headers, letter.reason, letter.attempts) == (theirs, "ours", 1)


def test_a_letter_of_before_there_were_numbers_in_it_is_read_too() -> None:
    headers = b"<a/><failure xmlns='urn:holdfast'>Traceback\nKeyError: &#x27;a&#x27;</failure>"
    letter = unseal(Record("urn:s", 1, ACTION, b"<n/>", 5.0, headers=headers))
    assert (letter.record.headers, letter.reason) == (b"<a/>", "Traceback\nKeyError: 'a'")
    assert (letter.attempts, letter.failed_at) == (0, None)
    assert unseal(Record("urn:s", 1, ACTION, b"<n/>", 5.0)).reason == ""


def test_a_list_reads_no_more_than_it_tells() -> None:
    store = MemoryStore()
    read: list[tuple[int, int]] = []

    def counting(queue: str, partition: int, start: int, end: int) -> list[tuple[int, Record]]:
        read.append((start, end))
        record = Record("urn:s", 1, ACTION, b"<n/>", 5.0)
        return [(number, record) for number in range(start, min(end, start + 10))]

    shown, following = describe_letters(counting, [(3, 5), (7, 1_000_000)], 25, lambda number: number == 8)
    assert [one["letter"] for one in shown] == [3, 4, *range(7, 30)]
    assert [one["letter"] for one in shown if one["retry"]] == [8]
    assert (following, len(read)) == (30, 4)
    assert describe_letters(store.read, [(0, 5)], 9, lambda number: False) == ([], None), "deleted meanwhile"


def test_a_letter_of_a_forwarder_says_where_it_was_and_what_the_destination_said() -> None:
    record = Record("urn:s", 1, "urn:a", b"<a/>", 5.0, headers=b"<h/>")
    origin = Origin("orders & more", 2, 77, "forwarder/it's/2", "Sender")
    letter = Letter(record, "it <cannot> be read", 9, 1234.5, origin)
    assert unseal(seal(letter)) == letter
    shown = describe_letter(3, seal(letter), is_asked=False)
    assert (shown["queue"], shown["partition"], shown["offset"]) == ("orders & more", 2, 77)
    assert (shown["forwarder"], shown["code"], shown["error"]) == ("forwarder/it's/2", "Sender", "it <cannot> be read")


def chained() -> None:
    try:
        raise LookupError("first\nof two")
    except LookupError as error:
        raise StoreFailed("the store failed\n  because", remedy="Free space.\n  Then start again.") from error


def in_group() -> None:
    raise ExceptionGroup("several failed", [ValueError("one\ntwo")])


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: int("x"), "ValueError: invalid literal for int() with base 10: 'x'"),
        (chained, "holdfast.exceptions.StoreFailed: the store failed"),
        (lambda: compile("a b", "f", "exec"), "SyntaxError: invalid syntax"),
        (in_group, "ExceptionGroup: several failed (1 sub-exception)"),
    ],
    ids=["one line", "with a remedy", "of syntax", "of several"],
)
def test_of_a_traceback_the_line_with_the_error_is_shown(call: Callable[[], object], line: str) -> None:
    try:
        call()
    except Exception:
        assert error_line(traceback.format_exc()) == line


@pytest.mark.parametrize(("reason", "line"), [("", ""), ("it\n  cannot be read", "it"), ("\n\n a\nb", "a")])
def test_of_another_reason_the_first_line_is_shown(reason: str, line: str) -> None:
    assert error_line(reason) == line
