"""Listening, or saying in a sentence why not. Knows addresses, and nothing of what listens there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from holdfast.endpoint.descriptors import SPARE_FILES, divide
from holdfast.endpoint.envelopes.envelopes import refuse_as_soap
from holdfast.endpoint.envelopes.http_media import tell_of_handshake
from holdfast.endpoint.listener_settings import ONLY_A_HOST, is_bare_host
from holdfast.exceptions import ConfigurationError
from holdfast.http.exchange import Handler, HTTPLimits, Spooling
from holdfast.http.reasons import reason_of
from holdfast.http.server.server import HTTPServer


def listen_address(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT``, ``[V6]:PORT``, ``:PORT`` or ``PORT``; without a host: 127.0.0.1.

    Raises:
        ConfigurationError: It has another form.
    """
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigurationError(f"{text!r} is not HOST:PORT", remedy="Write it as 127.0.0.1:8081 or 8081.")
    return host.strip("[]") or "127.0.0.1", int(port)


@contextlib.contextmanager
def listening_at(host: str, port: int) -> Iterator[None]:
    """Around what begins to listen.

    Raises:
        ConfigurationError: the system does not let it, instead of OSError.
    """
    try:
        yield
    except OSError as error:
        remedy = "Choose another port, or another address of this machine. Port 0 selects any free port."
        raise ConfigurationError(
            f"cannot listen at {host}:{port}: {reason_of(error)}", remedy=remedy if is_bare_host(host) else ONLY_A_HOST
        ) from error


async def listen_for_answers(handler: Handler, host: str, port: int, spooling: Spooling) -> HTTPServer:
    """A server for what comes back to a source, with the connections that its store leaves room for.

    Raises:
        ConfigurationError: the system does not let it listen there.
    """
    server = HTTPServer()
    server.refusing = refuse_as_soap
    server.on_failed_handshake = tell_of_handshake
    server.spooling = spooling
    with listening_at(host, port):
        await server.start(handler, host, port, limits=divide(HTTPLimits(), None, SPARE_FILES).messages)
    return server
