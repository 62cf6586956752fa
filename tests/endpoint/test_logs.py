"""The log: one line an event, as key=value or JSON, with the sequence and the number, and never a body."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import Destination, Source
from holdfast.core.events import Incident, Stopped
from holdfast.endpoint.logs import LINES_WINDOW, MOST_LINES, LineLimit, configure_logs, log, log_incident
from holdfast.endpoint.sending.stopped import log_stopped


def test_a_line_is_key_value_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info")
    log.info("one thing", sequence="urn:s", message_number=3)
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "level='info' event='one thing' sequence='urn:s' message_number=3" in line
    configure_logs("info", json=True)
    log.warning("another", sequence="urn:s")
    found = json.loads(capsys.readouterr().err)
    assert (found["event"], found["level"], found["sequence"]) == ("another", "warning", "urn:s")
    assert found["timestamp"].endswith("Z")


def test_what_is_below_the_level_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("error")
    log.warning("not this")
    log.error("but this")
    written = capsys.readouterr().err
    assert "not this" not in written
    assert "but this" in written


def test_an_exception_is_written_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info", json=True)
    try:
        raise LookupError("gone")
    except LookupError as error:
        log.error("failed", exc_info=error)
    found = json.loads(capsys.readouterr().err)
    assert "LookupError: gone" in found["exception"]


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_an_incident_has_its_level_sequence_number_and_detail(level: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("debug", json=True)
    log_incident(Incident("gap", "urn:s", 4, level, {"missing": "2-3"}))
    found = json.loads(capsys.readouterr().err)
    assert found["level"] == level
    assert (found["event"], found["sequence"], found["message_number"]) == ("gap", "urn:s", 4)
    assert found["missing"] == "2-3"


async def test_no_body_is_ever_written_not_even_of_what_fails(serve: Any, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("debug")
    app = Destination(":memory:")
    app.on("urn:a")(lambda message: None)
    async with Source((await serve(app)).url, ":memory:") as source:
        await (await source.send("<secret>hunter2</secret>", action="urn:a")).acknowledged(60)
    written = capsys.readouterr().err
    assert "sequence.created" in written
    assert "hunter2" not in written


def test_what_stops_is_called_what_it_is_and_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info", json=True)
    log_stopped(Stopped("forwarder/next/0", "HTTP 404", "it is not there", 1, 0, refused=("urn:s", 7)))
    log_stopped(Stopped("to/http://peer/", "Fault", "no", 1, 0))
    log_stopped(Stopped("forwarder/next/1", "UnknownSequence", "it is not known", 4, 6, in_doubt="3-3 5-6"))
    forwarder, replies, doubt = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert "the numbers 3-3 5-6 may have arrived" in doubt["remedy"] and "twice if necessary" in doubt["remedy"]
    assert (forwarder["event"], forwarder["sequence"], forwarder["message_number"]) == ("forwarder.stopped", "urn:s", 7)
    assert "holdfast outbox retry" in forwarder["remedy"]
    assert replies["event"] == "replies.stopped"


def test_lines_that_others_can_cause_are_bounded_and_those_left_out_counted() -> None:
    now = 100.0
    limit = LineLimit(lambda: now)
    assert [limit.admit() for _ in range(MOST_LINES)] == [0] * MOST_LINES
    assert [limit.admit() for _ in range(1_000)] == [None] * 1_000
    now += LINES_WINDOW
    assert limit.admit() == 1_000
    assert limit.admit() == 0
