"""Spools messages with attachments into the store while they arrive. Knows no connection and no protocol."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from holdfast.core.messages import Envelope
from holdfast.core.records import ContentWriter
from holdfast.endpoint.logs import log
from holdfast.exceptions import LimitExceeded, MessageFlowError, StoreError
from holdfast.http.content_spool import SPOOL_FROM
from holdfast.http.outcome import Streamed
from holdfast.http.retry_after import spread
from holdfast.wire import ArrivingPackage, Limits, RootHead

T = TypeVar("T")
FLUSH_FROM = 256 << 10
"""Bytes that are written together."""
MOST_DROPPED = 16 << 30
"""Bytes of a reply that is received although it is beyond the limits, because its headers name its request."""
RETRY_AFTER = 10
"""Seconds after which a sender may try again, if a message could not be written."""


class PackageSpool:
    """One message; see :class:`~holdfast.http.exchange.Spool`.

    Args:
        choose: Begins a content, given the first bytes of the message.
        limits: Limits on the envelope, and on the parts.

    Attributes:
        writer: Writes the content; None before the first bytes are written.
        size: Bytes of the message so far.
        is_unsure: As for :class:`HeadSpool`. A message within the limits is received nevertheless.
    """

    begins_at = SPOOL_FROM
    drops_up_to = 0
    is_unsure = False

    def __init__(self, media: str, choose: Callable[[bytes], ContentWriter], limits: Limits) -> None:
        self._media = media
        self._choose = choose
        self._limits = limits
        self._package: ArrivingPackage | None = None
        self.writer: ContentWriter | None = None
        self._waiting: deque[bytes] = deque()
        self.size = 0
        self._taken = 0
        self._lock = threading.Lock()
        self._received: tuple[Envelope, bytes] | None = None
        self.is_full = False
        self._is_dropped = False
        self.root_head = RootHead(media, limits)
        """Finds the headers of the envelope, which are read although the message is beyond a limit."""

    def add(self, data: bytes) -> None:
        self._waiting.append(data)
        self.size += len(data)

    @property
    def wants_flush(self) -> bool:
        return self.size - self._taken >= FLUSH_FROM

    def drop(self) -> None:
        self._is_dropped = True
        self.is_full = self.is_full or self.is_unsure

    def flush(self) -> None:
        with self._lock:
            self._flush()

    def _flush(self) -> ArrivingPackage | None:
        # The loop may add more meanwhile: take the present pieces only.
        data = b"".join([self._waiting.popleft() for _ in range(len(self._waiting))])
        self._taken += len(data)
        self.root_head.add(data)
        if self._is_dropped:
            self.writer = self._package = None  # which deletes the content
            return None
        if self._package is None:
            self.writer = self._choose(data)
            self._package = ArrivingPackage(self._media, self.writer, self._limits)
        # Once a piece is missing, what follows is only read to its end.
        if not self.is_full:
            try:
                self._package.write(data)
            except (OSError, StoreError) as error:
                self._fail(error)
        return self._package

    def _fail(self, error: Exception) -> None:
        self.is_full = True
        log.warning("attachments.unwritable", reason=str(error))

    def receive(self) -> tuple[Envelope, bytes]:
        """Decode the whole message, in a thread; see :meth:`ArrivingPackage.receive`.

        Raises:
            MessageFlowError: The store does not write it for now.
            EnvelopeError: It is not a message.
        """
        if self._received is None:
            self._received = self._finished(ArrivingPackage.receive)
        return self._received

    @property
    def envelope(self) -> Envelope | None:
        """The envelope, once it is decoded."""
        return self._received[0] if self._received is not None else None

    def content(self) -> Streamed:
        """Return the whole message as it came, in a thread, to send it to another process. Errors as for
        :meth:`receive`."""
        return self._finished(ArrivingPackage.content)

    def _finished(self, use: Callable[[ArrivingPackage], T]) -> T:
        with self._lock:
            package = self._flush()
            if package is None:
                raise LimitExceeded(f"the message has {self.size:,} bytes, which is more than the limit")
            if not self.is_full:
                try:
                    return use(package)
                except (OSError, StoreError) as error:
                    self._fail(error)
        raise MessageFlowError(
            "the store cannot write the attachments of the message now", retry_after=spread(RETRY_AFTER)
        )
