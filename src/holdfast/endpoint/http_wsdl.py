"""``?wsdl``: the description that a destination was given, for those who make a client from it."""

from __future__ import annotations

from pathlib import Path

from holdfast.exceptions import ConfigurationError
from holdfast.http.exchange import Exchange
from holdfast.wire.wsdl import Description

_NONE = b"This endpoint was given no WSDL to give out: Destination(wsdl='service.wsdl').\n"


def read_wsdl(given: str | Path | bytes | None) -> tuple[bytes | None, dict[str, str]]:
    """A WSDL's bytes, looked at, and its operations: the action of each request, and of its reply, "" if one-way. None
    and nothing where none is given.

    Raises:
        ConfigurationError: there is no such file, or it is no WSDL 1.1 in UTF-8.
    """
    if given is None:
        return None, {}
    if isinstance(given, bytes):
        data, place = given, "wsdl"
    else:
        try:
            data, place = Path(given).read_bytes(), str(given)
        except (OSError, TypeError) as error:
            raise ConfigurationError(
                f"the WSDL {given!s} cannot be read: {getattr(error, 'strerror', None) or error}",
                remedy="wsdl is the path of a file, or its bytes.",
            ) from error
    description = Description()
    description.add(data, place)
    return data, description.operations()


def give_wsdl(exchange: Exchange, data: bytes | None) -> bool:
    """Answer a GET that asks for ``?wsdl``, in any case: 200 with it, 404 where there is none.

    Returns:
        Whether it was such a request.
    """
    request = exchange.request
    asked = request.target.partition("?")[2].partition("&")[0].partition("=")[0].lower()
    if asked not in ("wsdl", "singlewsdl") or request.method not in ("GET", "HEAD"):
        return False
    if data is None:
        exchange.respond(404, _NONE, b"text/plain")
    else:
        exchange.respond(200, data, b"text/xml; charset=utf-8")
    return True
