"""The blocking Source: the same names without ``await``. A thread of its own runs the loop behind it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast.endpoint import client
from holdfast.endpoint.message import Body, Message
from holdfast.exceptions import ConfigurationError

T = TypeVar("T")


class Sent:
    """A message that is durable here; see :class:`holdfast.Sent`."""

    def __init__(self, source: Source, sent: client.Sent) -> None:
        self._source = source
        self._sent = sent
        self.message_id = sent.message_id
        self.sequence_key = sent.sequence_key
        self.offset = sent.offset

    def acknowledged(self, timeout: float | None = None) -> None:
        """Wait until the destination has it; arguments and errors as for :meth:`holdfast.Sent.acknowledged`."""
        self._source.run(self._sent.acknowledged(timeout))


class Source:
    """:class:`holdfast.Source` for code that is not async: the same arguments, methods and errors. Usable from any
    thread, one call at a time in each."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._stand_before(client.Source(*arguments, **options))

    @classmethod
    def from_wsdl(cls, wsdl: str | Path, *arguments: Any, **options: Any) -> Self:
        """See :meth:`holdfast.Source.from_wsdl`: ``with holdfast.sync.Source.from_wsdl(url) as source``."""
        # In a thread, for the caller's own may have a running loop, as a notebook's has.
        with ThreadPoolExecutor(1) as thread:
            made = thread.submit(asyncio.run, client.Source.from_wsdl(wsdl, *arguments, **options)).result()
        source = cls.__new__(cls)
        source._stand_before(made)
        return source

    def _stand_before(self, source: client.Source) -> None:
        self._source = source
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-source", daemon=True)

    @property
    def progress(self) -> client.Progress:
        """How far it is."""
        return self._source.progress

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the source's loop and wait for it.

        Raises:
            ConfigurationError: the source is not open.
        """
        if not self._thread.is_alive():
            coroutine.close()
            raise ConfigurationError("the source is not open", remedy="Use it within 'with source:'.")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.run(self._source.open())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.run(self._source.close(10.0 if kind is None else 0.0))
        finally:
            self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def send(self, body: Body, **options: Any) -> Sent:
        """See :meth:`holdfast.Source.send`."""
        return Sent(self, self.run(self._source.send(body, **options)))

    def request(self, body: Body, **options: Any) -> Message:
        """See :meth:`holdfast.Source.request`."""
        return self.run(self._source.request(body, **options))

    def reply(self, message_id: str, timeout: float | None = None) -> Message:
        """See :meth:`holdfast.Source.reply`."""
        return self.run(self._source.reply(message_id, timeout))

    def flush(self, timeout: float | None = None) -> None:
        """See :meth:`holdfast.Source.flush`."""
        self.run(self._source.flush(timeout))

    def end(self, sequence_key: str = "", timeout: float | None = None) -> None:
        """See :meth:`holdfast.Source.end`."""
        self.run(self._source.end(sequence_key, timeout))

    def resume(self) -> None:
        """See :meth:`holdfast.Source.resume`."""

        async def resume() -> None:
            self._source.resume()

        self.run(resume())
