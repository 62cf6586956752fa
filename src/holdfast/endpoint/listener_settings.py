"""Settings of the two listeners, once for the command line, configuration files, programs and the reference.

Knows no socket and no server. A configuration file adds the places of certificates and secrets, which a program passes
as they are.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from dataclasses import dataclass, field
from typing import Final

from holdfast.endpoint.descriptors import SPARE_FILES
from holdfast.exceptions import ConfigurationError
from holdfast.http.exchange import HTTPLimits
from holdfast.http.urls import is_loopback
from holdfast.settings import Port, check_settings, checked_token

ONLY_A_HOST: Final = "Write a machine's name or an IP address alone; the port is a setting of its own."

_NO_TOKEN: Final = "Set a token, or remove the token for metrics: without a token, every client may do everything."


@dataclass(frozen=True)
class MessageAddress:
    """The listener for messages.

    Args:
        host: Address to listen on. ``0.0.0.0`` listens on every address of the machine.
        port: Port to listen on. 0 chooses a free port.
    """

    host: str = "127.0.0.1"
    port: Port = 8080


@dataclass(frozen=True)
class AdminAddress:
    """The admin listener, which operators and Spark use. Keep it private.

    Args:
        host: Address to listen on.
        port: Port to listen on. 0 chooses a free port.
        names: Further host names that clients use. IP addresses, names without a dot and the machine's own name are
            always accepted. A name that begins with a dot stands for every name below it: ".shop.svc" for the
            services of a Kubernetes namespace. With a token, every name is accepted.
    """

    host: str = "127.0.0.1"
    port: Port = 8081
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class AdminListener(AdminAddress):
    """The admin listener, which serves the data plane, Sequences and metrics. Keep it private.

    Args:
        ssl_context: For https. With CERT_REQUIRED, clients need a certificate.
        token: The token that clients must send; None: no token is required.
        limits: Limits for clients.
        url: URL at which clients on other machines reach the listener; None: from its address.
        metrics_token: Another token, with which a client may only read ``/metrics``; None: there is none.
    """

    ssl_context: ssl.SSLContext | None = None
    token: str | None = field(default=None, repr=False)
    limits: HTTPLimits = field(default_factory=HTTPLimits)
    url: str | None = None
    metrics_token: str | None = field(default=None, repr=False)

    @property
    def is_open(self) -> bool:
        """Whether other machines can use the listener without authentication."""
        known = self.token is not None or (
            self.ssl_context is not None and self.ssl_context.verify_mode is ssl.CERT_REQUIRED
        )
        return not known and not is_loopback(self.host)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.token is not None:
            object.__setattr__(self, "token", checked_token(self.token, "AdminListener.token"))
        if self.metrics_token is not None:
            token = checked_token(self.metrics_token, "AdminListener.metrics_token")
            object.__setattr__(self, "metrics_token", token)
            check_metrics_token(self.token, token)


def check_metrics_token(token: str | None, metrics_token: str) -> None:
    """Check that a token for metrics opens less than the other token.

    Raises:
        ConfigurationError: There is no other token, or it is the same.
    """
    if token is None:
        raise ConfigurationError("there is a token for metrics, but none for everything else", remedy=_NO_TOKEN)
    if metrics_token == token:
        raise ConfigurationError(
            "the token for metrics is also the one that opens everything", remedy="Write another token for metrics."
        )


@dataclass(frozen=True)
class NodeAccess:
    """How the nodes of a cluster recognize each other.

    Args:
        secret: The secret that they share.
        accepting: TLS for the requests of other nodes, which need a certificate; None: without TLS.
        asking: TLS for requests to other nodes; None: without TLS.
    """

    secret: str = field(repr=False)
    accepting: ssl.SSLContext | None = None
    asking: ssl.SSLContext | None = None

    @property
    def is_encrypted(self) -> bool:
        """Whether the nodes use TLS between them."""
        return self.asking is not None


@dataclass(frozen=True)
class Listeners(MessageAddress):
    """Addresses, TLS and limits of the two listeners.

    Args:
        ssl_context: For messages over https.
        limits: Limits for peers.
        admin: The admin listener; None: no listener for operators.
        node: How the nodes of the cluster that this process belongs to recognize each other; None: it belongs to none.
        spare_files: File descriptors reserved for the rest of the program: handlers, logs. The store gets its
            descriptors first, then connections to peers; the remaining ones are for connections from peers, up to
            ``max_connections``.

    Raises:
        ConfigurationError: a port is not valid, or both listeners have the same address.
    """

    ssl_context: ssl.SSLContext | None = None
    limits: HTTPLimits = field(default_factory=HTTPLimits)
    admin: AdminListener | None = None
    node: NodeAccess | None = None
    spare_files: int = SPARE_FILES

    def __post_init__(self) -> None:
        check_settings(self)
        if self.port and self.admin is not None and (self.host, self.port) == (self.admin.host, self.admin.port):
            raise ConfigurationError(
                f"both listeners use {self.host}:{self.port}",
                remedy="Give the admin listener another port.",
            )


def is_bare_host(host: str) -> bool:
    """Whether a host is a name or an address and nothing else: no port, no scheme, no path."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return not set(host) & set(":/ ")
    return True


def public_host(host: str) -> str:
    """Return the host that a URL for other machines contains: the machine's name for all of its addresses."""
    return socket.gethostname() if host in ("", "0.0.0.0", "::") else host
