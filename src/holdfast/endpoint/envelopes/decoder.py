"""Decoding: small envelopes are read at once, large ones in a thread, so that no other request waits for them.

Owns the thread. Knows nothing of the content of envelopes, nor of the protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from holdfast.core.messages import Envelope, Fault
from holdfast.endpoint.envelopes.attachments import inline_package
from holdfast.endpoint.envelopes.head_spool import HeadSpool
from holdfast.endpoint.envelopes.package_spool import PackageSpool
from holdfast.endpoint.failures import brief
from holdfast.endpoint.heap import LARGE, Heap
from holdfast.endpoint.logs import log
from holdfast.exceptions import EnvelopeError, MessageFlowError, ProcessorError
from holdfast.wire import DEFAULT, Limits, check_parts, decode, receive_package
from holdfast.wire.names import INCLUDE

OFF_LOOP = 64 * 1024
"""Bytes from which an envelope is decoded in the thread.

Decoding that many takes a millisecond, and ten for a maliciously built envelope; passing them to the thread takes a
tenth of a millisecond.
"""

T = TypeVar("T")
Outcome = Envelope | EnvelopeError | ProcessorError
Failed = Callable[[Exception], None]
"""Receives an unexpected error in a call for what a thread has read, which has no caller to raise it to."""
Opening = Callable[[Envelope, bytes], bytes]
"""Returns what to read instead of an envelope in these bytes; or the bytes themselves."""


class Decoder:
    """Reads envelopes for one endpoint; from the event loop's thread.

    One thread for all large ones: two would take turns, as Python runs one at a time, and hold twice as much.
    """

    def __init__(self, limits: Limits = DEFAULT) -> None:
        self._limits = limits
        self._thread: ThreadPoolExecutor | None = None
        self._reading: set[asyncio.Future[Any]] = set()
        self._heap = Heap()
        self.fail: Failed = _raise
        """Used where the caller passes no other one."""

    def read(
        self,
        data: bytes,
        then: Callable[[Outcome], None],
        opening: Opening | None = None,
        *,
        waits: bool = False,
        failed: Failed | None = None,
    ) -> None:
        """Read an envelope and make the call with it, or with what is wrong with it: at once, or soon in the loop.

        Args:
            then: Receives what was read.
            opening: Decrypts it. What it returns must keep the same limits.
            waits: Whether ``opening`` may wait, so that it must not run in the loop.
            failed: Receives an unexpected error in ``then`` if the thread has read; None: :attr:`fail` does.
        """
        if len(data) < OFF_LOOP and not waits:
            then(self._read(data, opening))
            return
        is_large = len(data) >= LARGE
        self._begin(partial(self._read, data, opening)).add_done_callback(
            lambda read: self._done(read, then, is_large, failed)
        )

    def read_package(
        self,
        media: str,
        data: bytes,
        then: Callable[[Outcome, bytes], None],
        opening: Opening | None = None,
        *,
        waits: bool = False,
        inlines: bool = False,
        failed: Failed | None = None,
    ) -> None:
        """Read a message with attachments, as :meth:`read` does, and make the call with its envelope and its root part.

        Args:
            then: Receives what was read, and the bytes of the envelope.
            opening: Decrypts the envelope, if it turns out to have no attachments.
            waits: As for :meth:`read`.
            inlines: Whether to put the attachments into the envelope before.
        """
        if len(data) < OFF_LOOP and not waits:
            then(*self._read_package(media, data, opening, inlines))
            return
        is_large = len(data) >= LARGE
        reading = self._begin(partial(self._read_package, media, data, opening, inlines))
        reading.add_done_callback(lambda read: self._done(read, lambda found: then(*found), is_large, failed))

    def _read_package(self, media: str, data: bytes, opening: Opening | None, inlines: bool) -> tuple[Outcome, bytes]:
        return self._unpack(partial(receive_package, media, data, self._limits), opening, inlines)

    def _unpack(
        self, receive: Callable[[], tuple[Envelope, bytes]], opening: Opening | None, inlines: bool
    ) -> tuple[Outcome, bytes]:
        try:
            envelope, root = receive()
            if inlines and envelope.attachments:
                inlined = inline_package(root, envelope.attachments, self._limits)
                if inlined is not None:
                    envelope, root = decode(inlined, limits=self._limits), inlined
            if opening is not None and not envelope.attachments:
                envelope = self._opened(envelope, root, opening)
                check_parts(envelope, [])
        except Exception as error:
            return _problem(error), b""
        return envelope, root

    def read_spooled(
        self,
        spool: PackageSpool,
        then: Callable[[Outcome, bytes], None],
        opening: Opening | None = None,
        *,
        inlines: bool = False,
        failed: Failed | None = None,
    ) -> None:
        """Read a message with attachments that is in the store; otherwise as :meth:`read_package`."""
        reading = self._begin(partial(self._read_spooled, spool, opening, inlines))
        reading.add_done_callback(lambda read: self._done(read, lambda found: then(*found), True, failed))

    def read_head(
        self,
        spool: HeadSpool,
        then: Callable[[Outcome, bytes], None],
        opening: Opening | None = None,
        failed: Failed | None = None,
    ) -> None:
        """Read the headers of a message that is too large; otherwise as :meth:`read_package`."""
        reading = self._begin(partial(self._read_head, spool, opening))
        reading.add_done_callback(lambda read: self._done(read, lambda found: then(*found), False, failed))

    def _read_head(self, spool: HeadSpool, opening: Opening | None) -> tuple[Outcome, bytes]:
        try:
            root = spool.root()
        except Exception as error:
            return _problem(error), b""
        return self._read(root, opening), root

    def _read_spooled(self, spool: PackageSpool, opening: Opening | None, inlines: bool) -> tuple[Outcome, bytes]:
        return self._unpack(spool.receive, opening, inlines)

    @property
    def limits(self) -> Limits:
        return self._limits

    def use(self, limits: Limits) -> None:
        """Replace the limits of envelopes."""
        self._limits = limits

    def claimed_fault(self, data: bytes) -> Fault | None:
        """Return the fault in an envelope that is not accepted, None without one. Only its text may be used."""
        read = self._read(data, None)
        return read.fault if isinstance(read, Envelope) else None

    def aside(self, work: Callable[[], T], then: Callable[[T], None], failed: Failed | None = None) -> None:
        """Do something else in the thread, and make the call with what came of it, in the loop."""
        self._begin(work).add_done_callback(lambda done: self._done(done, then, False, failed))

    def _begin(self, work: Callable[[], T]) -> asyncio.Future[T]:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-decode")
        doing = asyncio.get_running_loop().run_in_executor(self._thread, work)
        self._reading.add(doing)
        return doing

    def _read(self, data: bytes, opening: Opening | None) -> Outcome:
        try:
            envelope = decode(data, limits=self._limits)
            if opening is not None:
                envelope = self._opened(envelope, data, opening)
            # Nearly no message has such a name, and the search costs less than a call. No block of a known form has it.
            headers = envelope.headers if envelope.known_block is None else ()
            if envelope.body.find(INCLUDE) >= 0 or b"".join(headers).find(INCLUDE) >= 0:
                check_parts(envelope, [])
            return envelope
        except Exception as error:
            return _problem(error)

    def _opened(self, envelope: Envelope, data: bytes, opening: Opening) -> Envelope:
        opened = opening(envelope, data)
        return envelope if opened is data else decode(opened, limits=self._limits)

    def _done(
        self, reading: asyncio.Future[T], then: Callable[[T], None], is_large: bool, failed: Failed | None
    ) -> None:
        self._reading.discard(reading)
        if is_large:
            self._heap.used()
        try:
            then(reading.result())
        except Exception as error:
            (failed or self.fail)(error)

    @property
    def is_busy(self) -> bool:
        """Whether something is being read."""
        return bool(self._reading)

    async def close(self) -> None:
        """Wait until everything is read and told, and end the thread."""
        while self._reading:
            await asyncio.wait(self._reading)
        self._heap.close()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.shutdown)
            self._thread = None


def _problem(error: Exception) -> EnvelopeError | ProcessorError:
    """Return why an envelope cannot be read. After an unexpected error, its sender may repeat it."""
    if not isinstance(error, EnvelopeError | ProcessorError):
        log.error("envelope.unreadable", why="an unexpected error", exc_info=error)
        return MessageFlowError(f"it cannot be read now: {brief(error)}")
    # What it was raised in would hold the bytes as long as the error is held.
    return error.with_traceback(None)


def _raise(error: Exception) -> None:
    raise error
