"""Traces: one message is one trace, through HTTP, the store, forwarding, handlers and back; and nothing where nobody
asked.

Covers endpoint/trace.py.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import holdfast
from holdfast import Destination, HandlingPolicy, RetransmissionPolicy, Source, SourcePolicy, Versions
from holdfast.core.policy import ForwardingPolicy
from holdfast.endpoint.envelopes.tracing import _read, _without
from holdfast.endpoint.sending.outboxes import forwarder_key

ACTION = "urn:test:submit"
SENT_ONCE = SourcePolicy(retransmission=RetransmissionPolicy(initial=600, cap=600))
"""A message that is sent again is accepted again: two spans of one."""
PARENT = f"00-{'ab' * 16}-{'cd' * 8}-01"


class Spans:
    """Everything that was told, as it is exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def of(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == f"holdfast {name}"]

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not is_so():
                await asyncio.sleep(0.01)


@pytest.fixture
def spans() -> Spans:
    return Spans()


def child(span: ReadableSpan, of: ReadableSpan) -> bool:
    return span.parent is not None and of.context is not None and span.parent.span_id == of.context.span_id


async def test_a_request_and_its_reply_are_one_trace_from_the_callers_own_span_on(serve: Any, spans: Spans) -> None:
    app = Destination(":memory:")
    holdfast.trace(app, spans.provider)
    tracer = spans.provider.get_tracer("test")

    @app.on(ACTION)
    async def submit(message: Any) -> str:
        with tracer.start_as_current_span("holdfast mine"):
            return "<done/>"

    service = await serve(app)
    source = Source(service.url, ":memory:", policy=SENT_ONCE)
    holdfast.trace(source, spans.provider)
    async with source:
        with tracer.start_as_current_span("holdfast caller"):
            reply = await source.request("<n/>", action=ACTION)
        context = _read(reply.header_bytes)["traceparent"]
        await source.end(timeout=60)
    await spans.until(
        lambda: all(spans.of(name) for name in ("caller", "send", "forward", "accept", "store", "deliver"))
    )
    (caller,), (send,), (accept,) = spans.of("caller"), spans.of("send"), spans.of("accept")
    (store,), (deliver,), (mine,) = spans.of("store"), spans.of("deliver"), spans.of("mine")
    forward = spans.of("forward")[0]
    assert child(send, caller)
    assert child(forward, send)
    assert child(accept, forward), "the HTTP header is nearer than the block"
    assert child(store, accept)
    assert child(deliver, accept)
    assert child(mine, deliver), "what a handler begins belongs to its span"
    assert deliver.context is not None
    assert context.split("-")[2] == f"{deliver.context.span_id:016x}", "the reply belongs to the handler's span"
    assert len({span.context.trace_id for span in (caller, send, forward, accept, store, deliver, mine)}) == 1
    assert accept.attributes is not None
    assert accept.attributes["holdfast.message_number"] == 1


async def test_a_context_goes_through_a_restart_and_a_broker_to_the_next_hop(
    serve: Any, spans: Spans, tmp_path: Any, peer: Any
) -> None:
    last = Destination(":memory:", partitions=1)
    holdfast.trace(last, spans.provider)
    there = await serve(last)

    def relay() -> Destination:
        app = Destination(tmp_path / "relay", partitions=1)
        holdfast.trace(app, spans.provider)
        return app

    service = await serve(relay())
    source = peer(service.url)
    await source.create()
    block = f"<x:traceparent xmlns:x='urn:somebody'>{PARENT}</x:traceparent>".encode()
    await source.message(1, headers=(block, b"<h xmlns='urn:mine'/>"))
    await service.close()

    service = await serve(relay())
    engine = service.app.running.engine
    engine.protocol.outbound.forward(
        forwarder_key("next", 0), there.url, [(Versions("1.1"), False)], service.app.running.queue, 0, None,
        ForwardingPolicy(sending=SENT_ONCE),
    )  # fmt: skip
    engine.touch()
    await spans.until(lambda: len(spans.of("accept")) == 2 and bool(spans.of("forward")))  # which ends with the answer
    first, second = spans.of("accept")
    (forward,) = spans.of("forward")
    assert first.parent is not None
    assert f"{first.parent.span_id:016x}" == "cd" * 8
    assert first.context is not None
    assert f"{first.context.trace_id:032x}" == "ab" * 16
    assert child(forward, first)
    assert child(second, forward)
    ((_, record),) = last.running.store.read("inbox", 0, 0, 1)
    assert record.headers.startswith(b"<h xmlns='urn:mine'/>")
    assert record.headers.count(b"traceparent") == 2, "one block, which has taken the place of the other"


async def test_what_fails_is_told_as_failed(serve: Any, spans: Spans, peer: Any) -> None:
    app = Destination(":memory:", handling=HandlingPolicy(attempts=1))
    holdfast.trace(app, spans.provider)

    @app.on(ACTION)
    def submit(message: Any) -> None:
        raise KeyError("secret")

    service = await serve(app)
    source = peer(service.url)
    await source.create()
    await source.message(1)
    await spans.until(lambda: bool(spans.of("deliver")) and bool(spans.of("accept")))
    (deliver,) = spans.of("deliver")
    assert (deliver.status.status_code, deliver.status.description) == (StatusCode.ERROR, "KeyError")
    await source.say(sequence=holdfast.core.messages.Sequence("urn:unknown", 1, False), action=ACTION, body=b"<n/>")
    await spans.until(lambda: len(spans.of("accept")) == 2)
    assert spans.of("accept")[1].status.description == "UnknownSequence"


async def test_where_nobody_asked_nothing_is_told_and_no_header_is_added(serve: Any, peer: Any) -> None:
    service = await serve(app := Destination(":memory:", partitions=1))
    source = peer(service.url)
    await source.create()
    await source.message(1)
    ((_, record),) = app.running.store.read("inbox", 0, 0, 1)
    assert record.headers == b""


def test_nothing_of_opentelemetry_is_loaded_before_it_is_asked_for() -> None:
    script = "import sys, holdfast; holdfast.Destination, holdfast.Source; print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    "blocks",
    [
        b"",
        b"<traceparent>00-xyz</traceparent>",
        b"<traceparent xmlns='u'>" + b"0" * 5000,
        b"<" + b"a" * 100_000,
        b"<notraceparent>" + PARENT.encode() + b"</notraceparent>",
    ],
)
def test_what_is_no_context_is_none(blocks: bytes) -> None:
    assert _read(blocks) == {}
    assert _without(blocks) == blocks


def test_a_context_with_its_state_is_read_and_taken_out() -> None:
    text = f"<a/><t:traceparent xmlns:t='u'> {PARENT} </t:traceparent><tracestate xmlns='u'>a=1,b=&lt;</tracestate><z/>"
    assert _read(text.encode()) == {"traceparent": PARENT, "tracestate": "a=1,b=<"}
    assert _without(text.encode()) == b"<a/><z/>"
