"""Traces: what an endpoint does with a message, exported as spans of OpenTelemetry.

Nothing is loaded before tracing is enabled; an endpoint without it pays for one attribute look-up.

A message's context (W3C Trace Context) arrives in the HTTP header ``traceparent``, or in a header block of that name.
It is kept as such a block of the record, so it is stored, forwarded and answered with the record: the next process
continues the same trace, also after a restart, and over any transport.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from html import escape, unescape
from typing import TYPE_CHECKING, Any

from holdfast.core.commit import GroupCommit
from holdfast.core.events import Handle, Transmit
from holdfast.core.messages import Envelope
from holdfast.core.records import Record
from holdfast.exceptions import ConfigurationError
from holdfast.http.exchange import Exchange
from holdfast.http.outcome import Outcome, TransportError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider

NAMESPACE = "https://www.w3.org/TR/trace-context/"
"""Namespace of the header blocks. Blocks with their names are read in any namespace."""

_ATTRIBUTES = rb"(?:\s[^<>]{0,300})?"
_PARENT = re.compile(
    rb"<(?:[\w.-]{1,50}:)?traceparent"
    + _ATTRIBUTES
    + rb">\s{0,50}([0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})\s{0,50}</[^>]{1,60}>"
)
_STATE = re.compile(rb"<(?:[\w.-]{1,50}:)?tracestate" + _ATTRIBUTES + rb">([^<]{1,600})</[^>]{1,60}>")
MISSING = "pip install 'holdfast[otel]'"
"""Remedy if OpenTelemetry is not installed."""


class Tracing:
    """Tells spans for one endpoint.

    Args:
        provider: Where they go; None: the process's own.

    Raises:
        ConfigurationError: OpenTelemetry is not installed.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        try:
            from opentelemetry import context, trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise ConfigurationError(f"traces need OpenTelemetry: {error}", remedy=MISSING) from error
        self._api, self._context = trace, context
        self._tracer = trace.get_tracer("holdfast", tracer_provider=provider)
        self._propagator = TraceContextTextMapPropagator()
        self._accepting: dict[Exchange, Span] = {}
        self._delivering: dict[Handle, Span] = {}

    # --- in -------------------------------------------------------------------------------------------------------

    def accepting(self, exchange: Exchange, envelope: Envelope, commit: GroupCommit) -> None:
        """A message is about to be taken; it belongs to a span from now on that ends with its answer."""
        headers, sequence = exchange.request.headers, envelope.sequence
        assert sequence is not None
        carried = {
            name: value.decode("latin-1")
            for name in ("traceparent", "tracestate")
            if (value := headers.get(name.encode())) is not None
        }
        parent = self._extract(carried if "traceparent" in carried else _read(b"".join(envelope.headers)))
        attributes: dict[str, Any] = {
            "holdfast.sequence": sequence.identifier,
            "holdfast.message_number": sequence.message_number,
            "holdfast.action": envelope.action,
            "messaging.message.id": envelope.message_id or "",
        }
        span = self._tracer.start_span("holdfast accept", parent, self._api.SpanKind.CONSUMER, attributes)
        stored = self._tracer.start_span("holdfast store", self._api.set_span_in_context(span))
        commit.then(lambda _now: stored.end())
        # The stored message continues the trace from here, not from its sender's span.
        others = tuple(block for block in envelope.headers if not (_PARENT.match(block) or _STATE.match(block)))
        envelope.headers = (*others, self._block(span))
        self._accepting[exchange] = span

    def answered(self, exchange: Exchange, envelope: Envelope | None) -> None:
        """Record the answer to a request."""
        span = self._accepting.pop(exchange, None)
        if span is None:
            return
        if envelope is not None and envelope.fault is not None:
            self._failed(span, envelope.fault.code)
        span.end()

    # --- handlers -------------------------------------------------------------------------------------------------

    @contextmanager
    def delivering(self, handle: Handle) -> Iterator[None]:
        """A handler is called within: what it begins belongs to its span."""
        record = handle.record
        attributes: dict[str, Any] = {
            "holdfast.sequence": record.sequence,
            "holdfast.message_number": record.message_number,
            "holdfast.action": record.action,
            "holdfast.attempt": handle.attempt,
        }
        parent = self._extract(_read(record.headers))
        span = self._tracer.start_span("holdfast deliver", parent, self._api.SpanKind.CONSUMER, attributes)
        self._delivering[handle] = span
        token = self._context.attach(self._api.set_span_in_context(span))
        try:
            yield
        finally:
            self._context.detach(token)

    def delivered(self, handle: Handle, reply: Record | None = None, error: BaseException | None = None) -> None:
        """The handler is done; its reply belongs to its span, too."""
        span = self._delivering.pop(handle, None)
        if span is None:
            return
        if reply is not None:
            reply.headers = _without(reply.headers) + self._block(span)
        if error is not None:
            self._failed(span, type(error).__name__)
        span.end()

    # --- out ------------------------------------------------------------------------------------------------------

    def submitting(self, record: Record, commit: GroupCommit) -> None:
        """A source takes a message over, in the context that its caller is in; the span ends when it is durable."""
        attributes: dict[str, Any] = {"holdfast.action": record.action, "messaging.message.id": record.message_id or ""}
        span = self._tracer.start_span("holdfast send", None, self._api.SpanKind.PRODUCER, attributes)
        commit.then(lambda _now: span.end())
        record.headers = _without(record.headers) + self._block(span)

    def forwarding(
        self, sent: Transmit, fields: Mapping[str, str], told: Callable[[Outcome], None]
    ) -> tuple[Mapping[str, str], Callable[[Outcome], None]]:
        """A message is posted: the HTTP headers to post it with, and what to call with what came of it."""
        attributes: dict[str, Any] = {
            "holdfast.message_number": sent.number,
            "holdfast.attempt": sent.attempt,
            "holdfast.action": sent.envelope.action,
            "url.full": sent.to,
        }
        parent = self._extract(_read(b"".join(sent.envelope.headers)))
        span = self._tracer.start_span("holdfast forward", parent, self._api.SpanKind.PRODUCER, attributes)

        def heard(outcome: Outcome) -> None:
            if isinstance(outcome, TransportError):
                self._failed(span, outcome.message)
            else:
                span.set_attribute("http.response.status_code", outcome.status)
            span.end()
            told(outcome)

        return {**fields, **self._inject(span)}, heard

    # --- contexts -------------------------------------------------------------------------------------------------

    def _extract(self, carried: Mapping[str, str]) -> Context | None:
        return self._propagator.extract(carried, self._context.Context()) if carried else self._context.Context()

    def _inject(self, span: Span) -> dict[str, str]:
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, self._api.set_span_in_context(span))
        return carrier

    def _block(self, span: Span) -> bytes:
        texts = self._inject(span).items()
        return "".join(f"<{name} xmlns='{NAMESPACE}'>{escape(text)}</{name}>" for name, text in texts).encode()

    def _failed(self, span: Span, why: str) -> None:
        status: Any = self._api.Status(self._api.StatusCode.ERROR, why)
        span.set_status(status)


def _read(blocks: bytes) -> dict[str, str]:
    """Return the context in header blocks as a carrier, empty without one."""
    parent = _PARENT.search(blocks)
    if parent is None:
        return {}
    state = _STATE.search(blocks)
    carried = {"traceparent": parent[1].decode()}
    return carried if state is None else carried | {"tracestate": unescape(state[1].decode("utf-8", "replace"))}


def _without(blocks: bytes) -> bytes:
    return _STATE.sub(b"", _PARENT.sub(b"", blocks)) if b"trace" in blocks else blocks
