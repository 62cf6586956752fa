"""SourceHTTP: how a source reaches its destination, and where it listens. Settings only."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.endpoint.arguments import check_listener
from holdfast.endpoint.sending.http_settings import HTTPSettings
from holdfast.http.outcome import Transport


@dataclass(frozen=True, kw_only=True)
class SourceHTTP(HTTPSettings):
    """How a source reaches its destination, and where it listens for acknowledgements and replies.

    ``headers``, ``ssl_context``, ``proxy`` and ``timeout`` are those of the requests that the source sends.

    Args:
        listen: ``(host, port)`` of the source's own listener for acknowledgements and replies. None: they arrive in the
            HTTP responses, and the source needs no inbound port.
        address: The URL of that listener as the destination sees it. By default the URL of ``listen``.
        transport: Carries the requests instead of HTTP, for tests; of the other settings, only ``headers`` then
            applies.

    Raises:
        ConfigurationError: A value is not valid.
    """

    listen: tuple[str, int] | None = None
    address: str = ""
    transport: Transport | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_listener(self.listen, self.address)
