"""Why a connection could not be made or broke, in words for a person."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from typing import Final

from holdfast.exceptions import clause

TRUST_SETTINGS: Final = "--ca, ssl_context, or ca in a forwarder's tls"
"""The settings that name the authorities that a client trusts."""


def why_not_connected(url: str, error: Exception, *, is_first: bool, trust_settings: str) -> str:
    """Return why a connection to ``url`` failed; ``is_first``: the peer has never answered. For ``trust_settings``, see
    :data:`TRUST_SETTINGS`.
    """
    match error:
        case ssl.SSLCertVerificationError():
            return f"no trusted TLS connection to {url}: {tls_reason(error)}{_what_to_trust(error, trust_settings)}"
        case ssl.SSLError():
            return f"no TLS connection to {url}: {tls_reason(error)}{_what_alert_means(error)}"
        case TimeoutError():
            return f"connecting to {url} took too long"
        case ConnectionResetError() | BrokenPipeError():
            return f"cannot connect to {url}: {reason_of(error)}{_what_it_may_want(url) if is_first else ''}"
        case OSError():
            return f"cannot connect to {url}: {reason_of(error)}"
        case _:
            return f"cannot connect to {url}: {error or type(error).__name__}"


def why_not_answered(url: str, error: Exception | None, *, is_first: bool) -> str:
    """Return why a peer may have ended a connection after a request; ``is_first``: the peer has never answered."""
    if isinstance(error, OSError):
        reason = f"the connection to {url} broke: {reason_of(error)}"
    else:
        reason = f"{url} closed the connection without a response"
    return f"{reason}{_what_it_may_want(url)}" if is_first else reason


def _what_it_may_want(url: str) -> str:
    """Return why a peer may have ended its first connection.

    A TLS 1.3 server learns only after the handshake that the client has no certificate. So the timing of the network
    decides which error occurs, and whether it occurs before the request is written.
    """
    return f"; it may {'require a client certificate' if url.startswith('https:') else 'use https, not http'}"


def _what_alert_means(error: ssl.SSLError) -> str:
    if error.reason in _NO_TLS:
        return "; it may use http, not https"
    # A server of TLS 1.2 learns within the handshake that there is no certificate.
    wants = error.reason is not None and ("CERTIFICATE" in error.reason or "HANDSHAKE_FAILURE" in error.reason)
    return "; it may require a client certificate" if wants else ""


_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
_EXPIRED = 10
_UNKNOWN_ISSUER = (2, 18, 19, 20, 21)
"""OpenSSL's X509_V_ERR codes: out of date; and signed by an untrusted issuer."""


def _what_to_trust(error: ssl.SSLCertVerificationError, settings: str) -> str:
    if error.verify_code == _EXPIRED:
        return "; its operator must renew it"
    if error.verify_code in _UNKNOWN_ISSUER:
        return f"; if the certificate is correct, trust its authority: {settings}"
    return ""


def why_no_handshake(error: ssl.SSLError) -> str:
    """Return why a server rejects a TLS client, and a remedy; "" for a client that only probed the port."""
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = f"the client's certificate is not trusted: {tls_reason(error)}"
        return f"{clause(reason)}; use a certificate signed by an authority in the server's client CA file"
    if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "the client sent no certificate; configure one signed by an authority in the server's client CA file"
    if error.reason is None or isinstance(error, ssl.SSLEOFError):
        return ""
    reason = f"the TLS handshake failed: {tls_reason(error)}"
    refuses = any(word in error.reason for word in ("UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN"))
    return f"{clause(reason)}; the client does not trust this server's certificate" if refuses else reason


def tls_reason(error: Exception) -> str:
    """Return OpenSSL's text without its codes."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    reason = getattr(error, "reason", None) or str(error)
    return str(reason).replace("_", " ").lower()


def reason_of(error: OSError) -> str:
    """Return the system's text for an error."""
    if isinstance(error, ssl.SSLError):
        return tls_reason(error)  # its number is OpenSSL's, not the system's
    # asyncio puts its own words and the address into strerror; the system's word is behind the number.
    if error.errno is not None and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)
    if isinstance(error, ConnectionResetError) and not error.args:
        return os.strerror(errno.ECONNRESET)  # asyncio's own, for a connection that ended within a TLS handshake
    return error.strerror or str(error)
