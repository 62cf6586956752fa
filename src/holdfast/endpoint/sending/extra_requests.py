"""ExtraRequests: the requests of processors, before and after those of the protocol. Knows no rule of the protocol."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.core.events import Transmit
from holdfast.core.messages import Envelope
from holdfast.endpoint.envelopes.envelopes import Envelopes
from holdfast.endpoint.envelopes.processors import ExtraRequest
from holdfast.exceptions import EnvelopeError, ProcessorError
from holdfast.http.outcome import Outcome, Response, TransportError

Told = Callable[[Outcome], None]
Post = Callable[[Transmit, bytes, Told], None]
Came = Callable[[Transmit, Envelope | None, str, bool], None]
"""``came(sent, fault, reason, is_unreachable)``: what became of a message that waited: the fault, or the reason."""

Unread = Callable[[Transmit, Response, EnvelopeError], None]
Read = Envelope | EnvelopeError | ProcessorError


class ExtraRequests:
    """Sends the requests of processors, and keeps the messages that wait for one: a Sequence has at most a window."""

    def __init__(
        self, envelopes: Envelopes, post: Post, again: Callable[[Transmit], None], came: Came, unread: Unread
    ) -> None:
        self._envelopes = envelopes
        self._post = post
        self._again = again
        self._came = came
        self._unread = unread
        self._waiting: dict[tuple[str, str], list[Transmit]] = {}

    def first(self, sent: Transmit, request: ExtraRequest) -> None:
        """Let a message wait for a request, which leaves unless another message waits for it already."""
        place = sent.to, request.key
        waiting = self._waiting.setdefault(place, [])
        waiting.append(sent)
        if len(waiting) == 1:
            self._send(sent.to, request, partial(self._answered, place), partial(self._failed, place))

    def afterwards(self, sent: Transmit, request: ExtraRequest, then: Callable[[], None]) -> None:
        """Send a request, and make the call whatever comes of it."""

        def finished(*_: Any) -> None:
            then()

        self._send(sent.to, request, finished, finished)

    def _send(
        self,
        to: str,
        request: ExtraRequest,
        answered: Callable[[Response, Read], None],
        failed: Callable[[str, bool], None],
    ) -> None:
        asked = Transmit(to, request.envelope)
        try:
            content, notes, _ = self._envelopes.write(asked, request.notes)
        except Exception as error:  # whatever a processor raises, the messages that wait continue
            failed(f"a request before the message cannot be written: {error}", False)
            return

        def told(outcome: Outcome) -> None:
            if isinstance(outcome, TransportError):
                failed(outcome.message, True)
            elif outcome.body.strip() or not 200 <= outcome.status < 300:
                self._envelopes.read(asked, outcome, notes, partial(answered, outcome))
            else:
                failed(f"{to} answered {request.envelope.action} with HTTP {outcome.status} and no content", False)

        self._post(asked, content, told)

    def _answered(self, place: tuple[str, str], response: Response, read: Read) -> None:
        if isinstance(read, EnvelopeError):
            for sent in self._waiting.pop(place):
                self._unread(sent, response, read)
        elif not isinstance(read, Envelope):
            self._failed(place, f"the answer of {place[0]} is not accepted: {read.message}", False)
        elif read.not_understood:
            names = " ".join(read.not_understood)
            self._failed(
                place, f"{place[0]} answers with mandatory headers that nothing here understands: {names}", False
            )
        else:
            for sent in self._waiting.pop(place):
                if read.fault is None:
                    self._again(sent)
                else:
                    self._came(sent, read, "", False)

    def _failed(self, place: tuple[str, str], reason: str, is_unreachable: bool) -> None:
        for sent in self._waiting.pop(place):
            self._came(sent, None, reason, is_unreachable)
