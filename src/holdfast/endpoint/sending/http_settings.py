"""HTTPSettings: how an endpoint sends HTTP requests, for sources, destinations and forwarders."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.endpoint.arguments import check_class, check_headers, check_proxy
from holdfast.http.client.client import HTTPClient
from holdfast.settings import check_seconds


@dataclass(frozen=True, kw_only=True)
class HTTPSettings:
    """How an endpoint sends HTTP requests.

    Args:
        headers: HTTP headers of every request, such as Authorization.
        ssl_context: For https: the trusted authorities, and the client certificate. None: the system's trust.
        proxy: URL of an HTTP proxy, ``http://user:word@proxy.example:3128``.
        timeout: Seconds for one HTTP exchange. A source does not retransmit a request while its exchange is open, so
            set it above the time that the slowest service takes to reply.

    Raises:
        ConfigurationError: A value is not valid. The error omits the values of headers, because they may be secret.
    """

    headers: Mapping[str, str] | None = field(default=None, repr=False)
    ssl_context: ssl.SSLContext | None = None
    proxy: str | None = field(default=None, repr=False)
    timeout: float = 60.0

    def __post_init__(self) -> None:
        check_headers(self.headers)
        check_class("ssl_context", self.ssl_context, ssl.SSLContext)
        check_proxy(self.proxy)
        check_seconds("timeout", self.timeout, zero=False, endless=False)

    def new_client(self, **pool: Any) -> HTTPClient:
        """Return a client with these settings; the limits of its pool are those of :class:`HTTPClient`."""
        return HTTPClient(ssl_context=self.ssl_context, proxy=self.proxy, total_timeout=self.timeout, **pool)
