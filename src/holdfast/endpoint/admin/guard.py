"""Access checks of the admin listener: it rejects web pages and, if a token is set, clients without the token.

Owns the checks of Host, Origin and Authorization. Mutual TLS belongs to the listener itself. Knows no route.

A browser sends the requests that a page makes, also to 127.0.0.1 and to addresses behind a firewall. Origin (and
Sec-Fetch-Site) name the page's site. With DNS rebinding, however, a page's own host name later resolves to our address:
that page has the same origin as this listener, and only its host name, in Host, reveals it.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping

from holdfast.endpoint.admin.routes import Refused
from holdfast.endpoint.admin.token import TOKEN_VARIABLE
from holdfast.http.exchange import Request

OPEN_TO_ALL = ("/healthz", "/readyz")
"""Paths that need no token: what watches over processes seldom has one."""
METRICS = "/metrics"
"""The path that the token for metrics opens."""
PRIVATE_SUFFIXES = (".localhost", ".internal", ".cluster.local")
"""Reserved domains, without names in the public DNS: an attacker cannot make such a name resolve to our address."""

_HOST = re.compile(r"(\[[0-9a-f:.]*\]|[^:\[\]]*)(?::\d*)?")


class Guard:
    """Checks every request before the listener reads it.

    Args:
        names: Host names of the listener, in addition to addresses, names without a dot, and this machine's name. A
            name that begins with a dot stands for every name below it, as ``.shop.svc`` for Kubernetes' services.
        token: The token that a client must send; None: no client needs one.
        metrics_token: Another token, with which a client may only read the metrics; None: there is none.
        secure: Whether the listener uses TLS: a page with a rebound host name then fails certificate verification.
    """

    def __init__(
        self,
        names: Iterable[str] = (),
        token: str | None = None,
        *,
        metrics_token: str | None = None,
        secure: bool = False,
    ) -> None:
        given = [name.lower().rstrip(".") for name in names]
        self._suffixes = (*PRIVATE_SUFFIXES, *(name for name in given if name.startswith(".")))
        self._names = {*given, socket.gethostname().lower().rstrip(".")}
        self._token = token.encode() if token is not None else None
        self._metrics_token = metrics_token.encode() if metrics_token is not None else None
        self._scheme = "https" if secure else "http"

    @property
    def has_token(self) -> bool:
        """Whether clients must send a token."""
        return self._token is not None

    def check(self, request: Request) -> None:
        """Check one request.

        Raises:
            Refused: 403 for a request that a web page sent or may have sent; 401 without the token.
        """
        headers = request.headers
        host = headers.get(b"host", b"").decode("latin-1").lower()
        self._check_origin(headers, request.method, host)
        if self._token is not None and request.target.partition("?")[0] not in OPEN_TO_ALL:
            is_metrics = request.method == "GET" and request.target.partition("?")[0] == METRICS
            tokens = (self._token, self._metrics_token if is_metrics else None)
            self._check_token(headers, [token for token in tokens if token is not None])
        # Only without a token: a page at a rebound name does not know the token.
        elif host and not self._is_ours(_name(host)):
            raise Refused(
                403,
                f"this listener does not accept the host name {_name(host)!r}: a web page may have pointed that "
                "name to its address",
                f"Use its IP address, or start it with --admin-name {_name(host)} (AdminListener(names=…)), or "
                "with a token.",
            )

    def _check_origin(self, headers: Mapping[bytes, bytes], method: str, host: str) -> None:
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        site = headers.get(b"sec-fetch-site", b"none")
        # A link from another site may lead here: that site sees nothing of the answer.
        is_link = method in ("GET", "HEAD") and headers.get(b"sec-fetch-mode") == b"navigate"
        is_elsewhere = site in (b"cross-site", b"same-site") and not is_link
        if is_elsewhere or (origin and origin != f"{self._scheme}://{host}"):
            raise Refused(
                403,
                f"a web page of {origin or 'another site'} sent this request; only pages of this listener may",
                "Send the request from a program, not from a page of another origin.",
            )

    def _check_token(self, headers: Mapping[bytes, bytes], tokens: Iterable[bytes]) -> None:
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() != b"bearer" or not any(hmac.compare_digest(given.strip(), token) for token in tokens):
            raise Refused(
                401,
                "the token is missing or wrong" if not given else "the token is wrong",
                "Send Authorization: Bearer TOKEN. Commands and the Spark source read it from option tokenFile or "
                f"{TOKEN_VARIABLE}.",
                ((b"WWW-Authenticate", b'Bearer realm="holdfast"'),),
            )

    def _is_ours(self, name: str) -> bool:
        if ":" in name and not name.startswith("["):
            return False  # neither a name nor an address in the form of Host
        # A name without a dot, a private suffix, an address: none can be pointed here from the public DNS.
        return "." not in name or name in self._names or name.endswith(self._suffixes) or _is_address(name)


def _name(host: str) -> str:
    """Return the name in a Host header without the port. Invalid values are returned unchanged."""
    found = _HOST.fullmatch(host)
    return found[1].rstrip(".") if found else host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
