"""Unexpected errors in a running endpoint: it ends loudly, and the next start has every accepted message.

Without that, the other effects of the turn would be lost with no timer set, and the endpoint would stand still.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import MethodType
from typing import Any

import httpx
import pytest
from waiting import until

from holdfast import Destination, DestinationHTTP, Message, RetransmissionPolicy, Source, SourcePolicy
from holdfast.core import events
from holdfast.core.commit import changing
from holdfast.endpoint.engine.engine import Engine
from holdfast.endpoint.envelopes import decoder
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service
from holdfast.exceptions import ConfigurationError, HoldfastError, StoreFailed
from holdfast.testing.ports import free_ports

PLAIN, ASYNC = "urn:test:plain", "urn:test:async"
QUICK = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.3, floor=0.1, cap=0.5))
XML = {"content-type": "text/xml"}
MESSAGES = [(f"urn:m:{number}", (PLAIN, ASYNC)[number % 2], number % 3 == 0) for number in range(6)]
"""MessageID, action, and whether it is a request."""


class Bug(Exception):
    """No part of the code expects it."""


class Case:
    """A source and a destination at one port. Their stores outlive them."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.handled: dict[str, set[tuple[str, int]]] = defaultdict(set)
        """Body -> the numbers under which the handlers got it."""
        self.accepted: set[str] = set()
        """MessageIDs of what the source has stored, so that the program need not send it again."""
        (self.port,) = free_ports(1)

    def destination(self) -> Service:
        app = Destination(self.place / "destination")

        @app.on(PLAIN)
        def plain(message: Message) -> str:
            self.handled[message.body.text].add((message.sequence, message.message_number))
            return "<r xmlns='urn:test'/>"

        @app.on(ASYNC)
        async def later(message: Message) -> str:
            return plain(message)

        return Service(app, Listeners(port=self.port))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[dict[str, Any]]:
        """Both sides, by name."""
        service = self.destination()
        await service.start()
        source = Source(f"http://127.0.0.1:{self.port}/", self.place / "source", policy=QUICK)
        await source.open()
        try:
            yield {"destination": service.app.running, "source": source._running, "program": source}
        finally:
            await source.close(0.0)
            await service.close(0.0)

    async def send(self, source: Source, name: str, action: str, is_request: bool) -> None:
        """Return when the message is stored, or its reply is here if it is a request."""
        body = f"<m xmlns='urn:test'>{name}</m>"
        if is_request:
            await source.request(body, action=action, message_id=name, timeout=None)
        elif name not in self.accepted:
            await source.send(body, action=action, message_id=name)
            self.accepted.add(name)


def break_effect(engine: Engine, kind: type) -> None:
    """Let the first effect of a kind raise an error instead of being carried out."""
    carry_out, broken = engine._carry_out, []

    def carried(effect: Any) -> None:
        if isinstance(effect, kind) and not broken:
            broken.append(effect)
            raise Bug(kind.__name__)
        carry_out(effect)

    engine._carry_out = carried


def break_call(owner: Any, name: str) -> None:
    """Let the first call of a method from now on raise an error when its work is done."""
    usual = getattr(owner, name)

    def broken(_owner: Any, *arguments: Any, **options: Any) -> None:
        setattr(owner, name, usual)
        usual(*arguments, **options)
        raise Bug(name)

    # An error in the call itself, within its mark if it has one.
    is_marked = hasattr(usual, "__wrapped__")
    setattr(owner, name, MethodType(changing(broken) if is_marked else broken, owner))


EFFECTS = [
    ("destination", events.Respond),
    ("destination", events.Delivered),
    ("destination", events.Handle),
    ("destination", events.Incident),
    ("source", events.Transmit),
    ("source", events.Submitted),
    ("source", events.Acknowledged),
    ("source", events.Delivered),
    ("source", events.Incident),
]
CALLS: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("destination", "receive", lambda running: running.engine.protocol),
    ("destination", "batch_durable", lambda running: running.engine.protocol),
    ("destination", "take_batch", lambda running: running.engine.protocol),
    ("destination", "deadline", lambda running: running.engine.protocol),
    ("destination", "take_effects", lambda running: running.engine.protocol),
    ("destination", "handled", lambda running: running.engine.protocol.handling),
    ("destination", "_gave", lambda running: running.dispatcher),
    ("source", "submit", lambda running: running.engine.protocol),
    ("source", "received_together", lambda running: running.engine.protocol),
    ("source", "batch_durable", lambda running: running.engine.protocol),
    ("source", "pump", lambda running: running.engine.protocol.outbound),
    ("source", "take_batch", lambda running: running.engine.protocol),
    ("source", "deadline", lambda running: running.engine.protocol),
    ("source", "_told", lambda running: running._sender),
    ("source", "_hand_over", lambda running: running._sender),
]


async def check(case: Case, side: str, fault: Callable[[Any], None], caplog: pytest.LogCaptureFixture) -> None:
    async with case.running() as sides, asyncio.timeout(120):
        failing: Engine = sides[side].engine
        fault(sides[side])
        sending = [asyncio.ensure_future(case.send(sides["program"], *message)) for message in MESSAGES]
        await until(lambda: failing.failure is not None)
        with pytest.raises(StoreFailed, match="unexpected error ended the endpoint: Bug"):
            failing.check()
        assert not failing.is_busy and failing.health() is not None and failing.needs_restart
        if side == "source":  # no caller waits for ever
            for one in await asyncio.gather(*sending, return_exceptions=True):
                assert one is None or isinstance(one, HoldfastError | Bug), one
        for one in sending:
            one.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
    (said,) = [line for line in caplog.text.splitlines() if "endpoint.failed" in line]
    assert "Bug" in said and "Traceback" in said
    # Nothing accepted is lost, and the program sends again what was not.
    async with case.running() as sides, asyncio.timeout(120):
        await asyncio.gather(*(case.send(sides["program"], *message) for message in MESSAGES))
        await sides["program"].flush()
        await until(lambda: len(case.handled) == len(MESSAGES))
    assert {body: len(numbers) for body, numbers in case.handled.items()} == dict.fromkeys(case.handled, 1)


@pytest.mark.every(3)
@pytest.mark.parametrize(("side", "kind"), EFFECTS, ids=lambda one: getattr(one, "__name__", one))
async def test_an_effect_that_cannot_be_carried_out_ends_the_endpoint_and_loses_nothing(
    tmp_path: Path, side: str, kind: type, caplog: pytest.LogCaptureFixture
) -> None:
    await check(Case(tmp_path), side, lambda running: break_effect(running.engine, kind), caplog)


@pytest.mark.every(3)
@pytest.mark.parametrize(("side", "name", "owner"), CALLS, ids=lambda one: one if isinstance(one, str) else "")
async def test_an_error_after_any_step_of_the_core_ends_the_endpoint_and_loses_nothing(
    tmp_path: Path, side: str, name: str, owner: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    await check(Case(tmp_path), side, lambda running: break_call(owner(running), name), caplog)


# --- errors of the program's own parts, and before the core: they concern one message ---------------------------------


async def test_an_error_while_an_envelope_is_read_defers_that_message_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    case, usual, failures = Case(tmp_path), decoder.decode, iter(range(4))

    def broken(*arguments: Any, **options: Any) -> Any:
        if next(failures, None) is not None:
            raise Bug("decode")
        return usual(*arguments, **options)

    monkeypatch.setattr(decoder, "decode", broken)
    monkeypatch.setattr(decoder, "OFF_LOOP", 1)  # each in the thread
    async with case.running() as sides, asyncio.timeout(120):
        await asyncio.gather(*(case.send(sides["program"], *message) for message in MESSAGES))
        await sides["program"].flush()
        await until(lambda: len(case.handled) == len(MESSAGES))
    assert caplog.text.count("envelope.unreadable") == 4 and "endpoint.failed" not in caplog.text


@pytest.mark.parametrize("least", [1, 10_000_000], ids=["read in the thread", "read in the loop"])
async def test_an_error_before_the_core_defers_that_message_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, least: int
) -> None:
    case, failures = Case(tmp_path), iter(range(4))
    monkeypatch.setattr(decoder, "OFF_LOOP", least)
    async with case.running() as sides, asyncio.timeout(120):
        pauses = sides["destination"].reception._sender.pauses
        usual = pauses.heard

        def broken(*arguments: Any) -> None:
            if next(failures, None) is not None:
                raise Bug("heard")
            usual(*arguments)

        pauses.heard = broken
        await asyncio.gather(*(case.send(sides["program"], *message) for message in MESSAGES))
        await sides["program"].flush()
        await until(lambda: len(case.handled) == len(MESSAGES))
    assert next(failures, None) is None and "endpoint.failed" not in caplog.text


@pytest.mark.parametrize("given", [KeyError("no policy"), None], ids=["raises", "returns no policy"])
async def test_what_policy_for_does_wrong_stops_nothing(given: object, caplog: pytest.LogCaptureFixture) -> None:
    def policy_for(_address: str) -> Any:
        if isinstance(given, Exception):
            raise given
        return given

    http = DestinationHTTP(policy=QUICK, policy_for=policy_for)
    assert http.policy_of("http://127.0.0.1:1/", "") is QUICK and "policy.not_given" in caplog.text


async def test_an_error_in_a_call_of_the_data_plane_ends_the_endpoint(tmp_path: Path) -> None:
    case = Case(tmp_path)
    async with case.running() as sides, asyncio.timeout(120):
        running = sides["destination"]
        with pytest.raises(ConfigurationError):  # a refusal is the caller's alone
            await running.readers["inbox"].advance("own/cursor", {})
        assert running.engine.failure is None
        break_call(running.queue, "_look_again")
        with pytest.raises(Bug):
            await running.readers["inbox"].advance("spark", {0: 0})
        assert running.engine.health().message.startswith("an unexpected error ended the endpoint")
        async with httpx.AsyncClient() as client:
            answer = await client.post(f"http://127.0.0.1:{case.port}/", content=b"<a/>", headers=XML)
        assert (answer.status_code, answer.text) == (503, "The endpoint has ended; nothing is accepted.\n")


async def test_what_a_programs_callback_or_transport_raises_stops_no_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    case = Case(tmp_path)
    async with case.running() as sides, asyncio.timeout(120):
        program, http = sides["program"], sides["source"]._sender._usual.http
        usual, failures = http.request, iter(range(3))

        def request(*arguments: Any) -> None:
            if next(failures, None) is not None:
                raise Bug("transport")
            usual(*arguments)

        def progress(_progress: Any) -> None:
            raise Bug("progress")

        http.request, program.on_progress = request, progress
        await asyncio.gather(*(case.send(program, *message) for message in MESSAGES))
        await program.flush()
        await until(lambda: len(case.handled) == len(MESSAGES))
    assert 0 < caplog.text.count("progress.not_told") <= 10 and "endpoint.failed" not in caplog.text
