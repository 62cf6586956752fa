"""SourceHTTP: how a source reaches its destination, and how the answers reach it. Settings only."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.endpoint.arguments import check_class, check_listener
from holdfast.endpoint.sending.http_settings import HTTPSettings
from holdfast.exceptions import ConfigurationError
from holdfast.http.outcome import Transport
from holdfast.settings import brief_value


@dataclass(frozen=True, kw_only=True)
class SourceHTTP(HTTPSettings):
    """How a source reaches its destination, and how acknowledgements and replies reach the source.

    ``headers``, ``ssl_context``, ``proxy`` and ``timeout`` are those of the requests that the source sends.

    Args:
        listen: ``(host, port)`` of the source's own listener for acknowledgements and replies. None: they arrive in the
            HTTP responses, and the source needs no inbound port.
        address: The URL of that listener as the destination sees it. By default the URL of ``listen``.
        poll: Whether the source polls for acknowledgements and replies that are later than the HTTP responses
            (WS-MakeConnection). The source needs no inbound port, and the service may take any time. The destination
            must support it. WS-RM 2003/03 and 2004/03 have no such polls. None: only if its WSDL demands it.
        mtom: Whether ``source.call()`` and the transports for zeep send large binary values as attachments
            (MTOM), instead of in base64. None: if the WSDL's policy demands MTOM.
        transport: Carries the requests instead of HTTP, for tests; of the other settings, only ``headers`` then
            applies.

    Raises:
        ConfigurationError: A value is not valid.
    """

    listen: tuple[str, int] | None = None
    address: str = ""
    poll: bool | None = None
    mtom: bool | None = None
    transport: Transport | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_class("mtom", self.mtom, bool)
        check_class("address", self.address, str, optional=False)
        if self.transport is not None and not callable(getattr(self.transport, "request", None)):
            raise ConfigurationError(
                f"transport cannot be {brief_value(self.transport)}", remedy="It may be that of a pair of endpoints."
            )
        check_listener(self.listen, self.address)
        if self.poll is not None:
            check_class("poll", self.poll, bool)
        if self.poll and self.listen is not None:
            raise ConfigurationError(
                "listen and poll are both set, but replies arrive in one way only",
                remedy="Omit listen if the destination cannot connect to this host, else omit poll.",
            )
