"""Errors for a block that is written with the wrong keyword: ``with`` for ``async with``, or without ``await``.

Python's own error names a missing protocol, which does not tell a program what to write.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

from holdfast.exceptions import ConfigurationError

P = ParamSpec("P")
T = TypeVar("T")

if TYPE_CHECKING:  # a type checker finds the mistake, as long as it does not see these methods

    class NoWith:
        """A class that needs ``async with``."""

    class NoAsyncWith:
        """A class that needs ``with``."""

else:

    class NoWith:
        """A class that needs ``async with``."""

        def __enter__(self) -> NoReturn:
            name = type(self).__name__
            instead = f", or {_BLOCKING[name]} in a program that is not" if name in _BLOCKING else ""
            raise ConfigurationError(f"{name} is asynchronous", remedy=f"Write 'async with {name}(…)'{instead}.")

        def __exit__(self, *_: object) -> None: ...

    class NoAsyncWith:
        """A class that needs ``with``."""

        async def __aenter__(self) -> NoReturn:
            name = type(self).__name__
            raise ConfigurationError(f"{type(self).__module__}.{name} blocks", remedy=f"Write 'with {name}(…)'.")

        async def __aexit__(self, *_: object) -> None: ...


_BLOCKING = {"Source": "'with holdfast.sync.Source(…)'", "AsyncTransport": "'with holdfast.zeep.Transport(…)'"}
"""Class -> what does the same in a program that is not asynchronous."""


class _NotAwaited(Coroutine[Any, Any, T]):
    """A coroutine that returns what was to be entered."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], called: str) -> None:
        self._coroutine = coroutine
        self._called = called

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> NoReturn:
        self._refuse()

    def __enter__(self) -> NoReturn:
        self._refuse()

    async def __aexit__(self, *_: object) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def _refuse(self) -> NoReturn:
        self.close()
        raise ConfigurationError(
            f"{self._called} is not awaited", remedy=f"Write 'async with await {self._called} as source:'."
        )


def awaited_first(called: str) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Return a decorator of an async function that returns a context manager: a missing ``await`` is named."""

    def decorate(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
            return _NotAwaited(function(*args, **kwargs), called)

        return call

    return decorate
