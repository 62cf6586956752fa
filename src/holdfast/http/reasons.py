"""Why a connection could not be made or broke, in words for a person."""

from __future__ import annotations

import os
import socket
import ssl


def why_not_connected(url: str, error: Exception) -> str:
    """What kept us from connecting to ``url``."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"no trusted TLS connection to {url}: {tls_reason(error)}"
        case ssl.SSLError():
            return f"no TLS connection to {url}: {tls_reason(error)}"
        case TimeoutError():
            return f"connecting to {url} took too long"
        case OSError():
            return f"cannot connect to {url}: {reason_of(error)}"
        case _:
            return f"cannot connect to {url}: {error or type(error).__name__}"


def tls_reason(error: Exception) -> str:
    """OpenSSL's words without its codes."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    reason = getattr(error, "reason", None) or str(error)
    return str(reason).replace("_", " ").lower()


def reason_of(error: OSError) -> str:
    """The system's own words for what went wrong."""
    # asyncio puts its own words and the address into strerror; the system's word is behind the number.
    if error.errno is not None and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)
    return error.strerror or str(error)
