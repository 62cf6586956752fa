"""Listening, or saying in a sentence why not. Knows addresses, and nothing of what listens there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from holdfast.exceptions import ConfigurationError
from holdfast.http.reasons import reason_of


@contextlib.contextmanager
def listening_at(host: str, port: int) -> Iterator[None]:
    """Around what begins to listen.

    Raises:
        ConfigurationError: the system does not let it, instead of OSError.
    """
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen at {host}:{port}: {reason_of(error)}",
            remedy="Choose another port, or another address of this machine; port 0 takes any that is free.",
        ) from error
