"""The chain: who is called when, which headers are understood, and what becomes of what each processor says."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import (
    ConfigurationError,
    MessageContext,
    MessageFlowError,
    NotForThisRole,
    ProcessingError,
    Processor,
    ProcessorError,
    UnknownExchange,
)
from holdfast.core.messages import Envelope
from holdfast.core.versions import SOAP
from holdfast.endpoint.envelopes.chain import FAILED, PUT_OFF, REFUSED, Chain
from holdfast.exceptions import ProcessorFailed
from holdfast.wire.limits import DEFAULT


class Noted(Processor):
    """Writes down when it is called, and does what it is told."""

    def __init__(
        self, name: str, calls: list[str], does: Callable[[], Any] = lambda: None, understands: tuple[str, ...] = ()
    ) -> None:
        self.name, self.calls, self.does, self.understands = name, calls, does, understands

    def inbound(self, context: MessageContext) -> Any:
        self.calls.append(f"{self.name} in")
        return self.does()

    def outbound(self, context: MessageContext) -> Any:
        self.calls.append(f"{self.name} out")
        return self.does()

    def received(self, context: MessageContext, data: bytes) -> bytes:
        self.calls.append(f"{self.name} received")
        self.does()
        return data + self.name.encode()

    def encoded(self, context: MessageContext, data: bytes) -> bytes:
        self.calls.append(f"{self.name} encoded")
        self.does()
        return data + self.name.encode()


class InOnly(Processor):
    def inbound(self, context: MessageContext) -> None:
        context.notes["seen"] = True


def raises(error: BaseException) -> Callable[[], Any]:
    def raise_it() -> None:
        raise error

    return raise_it


def context(*not_understood: str) -> MessageContext:
    envelope = Envelope(SOAP.V1_2, not_understood=not_understood)
    return MessageContext(envelope, "inbound", "destination", {}, is_answer=False)


def chain(*processors: Processor) -> tuple[Chain, Counter[str]]:
    incidents = Counter[str]()
    return Chain("destination", processors, incidents, DEFAULT.max_bytes), incidents


class ChecksLarge(Processor):
    def __init__(self, does: Callable[[], Any]) -> None:
        self.does = does

    def _check_large(self, context: MessageContext) -> Any:
        return self.does()


def test_a_check_of_a_large_message_that_fails_stops_only_that_message() -> None:
    for error, incident in (
        (ProcessingError("no"), REFUSED),
        (MessageFlowError("later"), PUT_OFF),
        (KeyError(), FAILED),
    ):
        made, incidents = chain(InOnly(), ChecksLarge(raises(error)))
        assert made.checks_large and isinstance(made.failure(context()), ProcessorError)
        assert incidents == {incident: 1}
    made, incidents = chain(ChecksLarge(raises(NotForThisRole("mine"))), ChecksLarge(lambda: None))
    assert made.failure(context()) is None and not incidents
    assert not chain(InOnly())[0].checks_large


def test_the_first_stands_next_to_the_network_both_ways() -> None:
    calls: list[str] = []
    given, incidents = chain(Noted("a", calls), InOnly(), Noted("b", calls))
    one = context()
    assert given.receives
    assert given.received(one, b"-") == b"-ab"
    given.inbound(one)
    given.outbound(one)
    assert given.encoded(one, b"-") == b"-ba"
    assert calls == ["a received", "b received", "a in", "b in", "b out", "a out", "b encoded", "a encoded"]
    assert one.notes == {"seen": True}
    assert incidents == {}


@pytest.mark.parametrize("error", [UnknownExchange("not mine"), NotForThisRole("not here")])
def test_a_processor_that_has_no_part_in_a_message_lets_it_on(error: Exception) -> None:
    calls: list[str] = []
    given, incidents = chain(Noted("a", calls, raises(error)), Noted("b", calls))
    assert given.received(context(), b"-") == b"-b"
    given.inbound(context())
    given.outbound(context())
    assert given.encoded(context(), b"-") == b"-b"
    assert len(calls) == 8
    assert incidents == {}


@pytest.mark.parametrize(("error", "name"), [(MessageFlowError("later"), PUT_OFF), (ProcessingError("no"), REFUSED)])
def test_a_processor_that_stops_a_message_is_the_last_one_called(error: Exception, name: str) -> None:
    calls: list[str] = []
    given, incidents = chain(Noted("a", calls), Noted("b", calls, raises(error)), Noted("c", calls))
    for call in (given.inbound, given.outbound, lambda one: given.encoded(one, b"")):
        with pytest.raises(type(error)):
            call(context())
    assert calls == ["a in", "b in", "c out", "b out", "c encoded", "b encoded"]
    assert incidents == {name: 3}


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError

    __repr__ = __str__


@pytest.mark.parametrize(
    "error",
    [
        ProcessingError("x", detail=b"<d>"),
        ProcessingError("x", detail="<d/>"),  # type: ignore[arg-type]
        ProcessingError(7),  # type: ignore[arg-type]
        MessageFlowError("x", retry_after=math.inf),
        MessageFlowError("x", retry_after=math.nan),
        MessageFlowError("x", retry_after=-1),
        MessageFlowError("x", retry_after="5"),  # type: ignore[arg-type]
        ProcessorError("x"),
        ValueError("x"),
        StopIteration(),
        SystemExit(3),
        asyncio.CancelledError(),
        GeneratorExit(),
        Unspeakable(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_else_a_processor_raises_is_a_bug_of_its_own(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "holdfast")
    given, incidents = chain(Noted("a", [], raises(error)))
    for call in (
        lambda one: given.received(one, b""),
        given.inbound,
        given.outbound,
        lambda one: given.encoded(one, b""),
    ):
        with pytest.raises(ProcessorFailed, match="the processor Noted failed"):
            call(context())
    assert incidents == {FAILED: 4}
    assert len(caplog.records) == 4
    assert "raise_it" in caplog.text, "the traceback"


@pytest.mark.parametrize("returned", [False, True, b"", "x"])
def test_a_processor_that_returns_something_is_not_taken_to_have_let_the_message_on(returned: object) -> None:
    given, incidents = chain(Noted("a", [], lambda: returned))
    with pytest.raises(ProcessorFailed, match="ProcessingError"):
        given.inbound(context())
    assert incidents == {FAILED: 1}


def test_what_is_written_is_bytes() -> None:
    class Text(Processor):
        def encoded(self, context: MessageContext, data: bytes) -> Any:
            return data.decode()

    with pytest.raises(ProcessorFailed, match="in bytes"):
        chain(Text())[0].encoded(context(), b"<a/>")


# --- which headers are understood ------------------------------------------------------------------------------------


def test_all_that_must_be_is_understood_before_anything_is_processed() -> None:
    calls: list[str] = []
    given, _ = chain(Noted("a", calls, understands=("{urn:a}A",)), Noted("b", calls, understands=("{urn:b}B",)))
    some = context("{urn:a}A", "{urn:c}C")
    given.inbound(some)
    assert (some.envelope.not_understood, calls) == (("{urn:c}C",), [])
    all_of_them = context("{urn:b}B", "{urn:a}A")
    given.inbound(all_of_them)
    assert (all_of_them.envelope.not_understood, calls) == ((), ["a in", "b in"])


def test_a_processor_without_a_part_in_a_message_does_not_understand_its_headers() -> None:
    absent = raises(NotForThisRole("not here"))
    alone, _ = chain(Noted("a", [], absent, ("{urn:a}A", "{urn:b}B")), Noted("b", [], understands=("{urn:b}B",)))
    one = context("{urn:a}A", "{urn:b}B")
    alone.inbound(one)
    assert one.envelope.not_understood == ("{urn:a}A",)


# --- what is no chain ------------------------------------------------------------------------------------------------


class Async(Processor):
    async def outbound(self, context: MessageContext) -> None:  # type: ignore[override]
        pass


@pytest.mark.parametrize(
    ("processors", "text"),
    [
        (Noted("a", []), "Give a list"),
        ([Noted], "an instance of it"),
        ([lambda context: None], "Derive a class"),
        ([Async()], "Async.outbound is async"),
        ([Noted("a", [], understands="{urn:a}A")], "collection of names"),  # type: ignore[arg-type]
        ([Noted("a", [], understands=("t:Tenant",))], "'t:Tenant'"),
        ([Noted("a", [], understands=("Tenant",))], "'Tenant'"),
    ],
)
def test_what_would_do_nothing_is_refused_when_it_is_given(processors: Any, text: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        Chain("source", processors, Counter(), 1)
    assert text in str(error.value)
