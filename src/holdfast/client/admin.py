"""Asking an admin listener: what to prove and to trust, one connection to it, and what its failures mean.

Blocking, by the standard library. Owns tokens, TLS and proxies as a client needs them; pickled, it takes what the files
held with it, so that a process on another machine needs none of them. Knows no route.
"""

from __future__ import annotations

import http.client
import os
import ssl
import tempfile
from dataclasses import dataclass, field
from urllib.parse import SplitResult

from holdfast.endpoint.admin.token import read_token
from holdfast.exceptions import ConfigurationError
from holdfast.http.client.proxies import Proxy
from holdfast.http.reasons import reason_of
from holdfast.http.tls import ClientTLS
from holdfast.http.urls import split_url


@dataclass(frozen=True)
class Access:
    """Credentials and trust of a client of an admin listener.

    Args:
        token: Sent as ``Authorization: Bearer``; None for none.
        authorities: PEM text of those to trust instead of the system's; None for the system's.
        certificate: PEM text of a certificate, its chain and its key, to be shown; None for none.
        proxy: URL of an HTTP proxy to go through; None for none.
    """

    token: str | None = field(default=None, repr=False)
    authorities: str | None = field(default=None, repr=False)
    certificate: str | None = field(default=None, repr=False)
    proxy: str | None = field(default=None, repr=False)

    @classmethod
    def of_files(
        cls,
        *,
        token_file: str | None = None,
        ca: str | None = None,
        certificate: str | None = None,
        key: str | None = None,
        proxy: str | None = None,
    ) -> Access:
        """Read the files now; without ``token_file`` the token is that of the environment, if there is one.

        Raises:
            ConfigurationError: one of them cannot be read, or is not what it should be.
        """
        if proxy is not None:
            Proxy.parse(proxy)  # says what is wrong with it
        ClientTLS(ca, certificate, key).context()  # says what is wrong with them
        pair = "\n".join(_text(file) for file in (certificate, key) if file is not None)
        return cls(read_token(token_file), _text(ca) if ca is not None else None, pair or None, proxy)

    def ssl_context(self) -> ssl.SSLContext:
        """Return the TLS context for connections."""
        context = ssl.create_default_context(cadata=self.authorities)
        if self.certificate is not None:
            # OpenSSL reads a key from a file only: a private one, for a moment.
            with tempfile.NamedTemporaryFile("w", encoding="ascii", suffix=".pem") as file:
                file.write(self.certificate)
                file.flush()
                context.load_cert_chain(file.name)
        return context

    def open(self, url: str, timeout: float) -> AdminConnection:
        """Return a new connection, which is not connected yet."""
        return AdminConnection(split_url(url), self, timeout)


class AdminConnection:
    """One connection to an admin listener, straight or through a proxy.

    Attributes:
        http: What carries the requests.
    """

    def __init__(self, url: SplitResult, access: Access, timeout: float) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {access.token}"} if access.token is not None else {}
        self._prefix = url.path.rstrip("/")
        host, port = url.hostname or "", url.port
        proxy = Proxy.parse(access.proxy) if access.proxy is not None else None
        authorization = {"Proxy-Authorization": proxy.authorization} if proxy and proxy.authorization else {}
        if url.scheme == "https":
            at = (proxy.host, proxy.port) if proxy is not None else (host, port)
            self.http: http.client.HTTPConnection = http.client.HTTPSConnection(
                *at, timeout=timeout, context=access.ssl_context()
            )
            if proxy is not None:
                self.http.set_tunnel(host, port or 443, authorization)
        elif proxy is not None:
            self.http = http.client.HTTPConnection(proxy.host, proxy.port, timeout=timeout)
            self._prefix = f"http://{url.netloc}{self._prefix}"
            self._headers |= authorization
        else:
            self.http = http.client.HTTPConnection(host, port, timeout=timeout)

    @property
    def silence(self) -> float | None:
        """Seconds without a byte after which the open connection fails; None if none is open."""
        return None if self.http.sock is None else self.http.sock.gettimeout()

    def send(
        self, method: str, path: str, body: str | bytes | None = None, kind: str = "application/json"
    ) -> http.client.HTTPResponse:
        """Send a request and wait for the head of the response.

        Raises:
            OSError, http.client.HTTPException: No response arrived.
        """
        headers = self._headers | ({"Content-Type": kind} if body is not None else {})
        self.http.request(method, self._prefix + path, body=body, headers=headers)
        return self.http.getresponse()


CLIENT_CERTIFICATE = "The server may require a trusted client certificate: options certificateFile and keyFile."
CUT_OFF = (
    http.client.BadStatusLine, ConnectionResetError, ConnectionAbortedError, BrokenPipeError, ssl.SSLEOFError
)  # fmt: skip
"""The errors that a closed connection causes; the network decides which one."""


SILENT = (
    "Its process may be paused or overloaded, or another program has that address. In a cluster, every other node "
    "answers for all nodes. Set the address with option broker."
)


def describe_failure(error: Exception, url: str, silence: float | None = None) -> tuple[str, str]:
    """Return the cause of a failed connection to an admin listener, and its remedy.

    The texts name options as the Spark source does: see ``holdfast.client.command_options``.

    Args:
        error: Why it failed.
        url: Of the listener.
        silence: Seconds after which a connection that was accepted fails without a byte; None: it was not accepted.
    """
    if isinstance(error, TimeoutError) and silence is not None:
        return f"it accepted the connection, but sent nothing for {silence:g} s", SILENT
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted: {error.verify_message}",
            "Name the authority that signed it with option caFile, and use a host name or address from the "
            "certificate.",
        )
    remedy = (
        "Check that this is the admin listener of a running broker or server (holdfast serve ... --admin 8081). "
        "Set its address with option broker."
    )
    if isinstance(error, CUT_OFF):
        # A server of TLS 1.3 learns only after the handshake that there is no certificate, and then closes.
        hint = (
            CLIENT_CERTIFICATE
            if url.startswith("https:")
            else (f"{remedy} If it uses TLS, start the URL with https://.")
        )
        return "it closed the connection without a response", hint
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or str(error)).replace("_", " ").lower()
        if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
            return f"no TLS: {reason}", "It seems to use http, not https: start the URL with http://."
        if error.reason and ("CERTIFICATE" in error.reason or "ALERT" in error.reason):
            return f"TLS failed: {reason}", CLIENT_CERTIFICATE
        return f"TLS failed: {reason}", "Check the server's log."
    if isinstance(error, OSError):
        return reason_of(error), remedy
    return f"{type(error).__name__}: {error}", remedy


def _text(file: str) -> str:
    try:
        with open(file, encoding="ascii", errors="replace") as opened:
            return opened.read()
    except OSError as error:
        raise ConfigurationError(
            f"cannot read {file}: {os.strerror(error.errno or 0)}", remedy="Name a readable PEM file."
        ) from error
