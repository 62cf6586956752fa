"""Parties: the sender of a request, as far as the transport shows it. Knows no protocol rule."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network

from holdfast.core.messages import Envelope
from holdfast.core.origin import CERTIFIED, STRANGER, USER, Origin, in_session, secret_in
from holdfast.http.exchange import Request

IPV6_PREFIX = 64
"""Leading bits of an IPv6 address that identify a party, because a network owns all its addresses."""


def party_of(request: Request) -> str:
    """Return the sender of a request: the owner of its client certificate, its user, or both, and the security session
    that it belongs to; else its network address; "" if none of them is known.

    A Sequence that was created in a session belongs to it (WS-RM 6.1).

    The address is that of the connection (or the one that the ASGI server reports): headers can contain anything.
    """
    proven = _proven_party(request)
    if proven:
        return in_session(request.session, proven) if request.session else proven
    return party_at(request.peer)


def _proven_party(request: Request) -> str:
    certificate = request.certificate
    if certificate is not None:
        known = certificate.subject and f"{certificate.subject} by {certificate.issuer}"
        owner = f"{CERTIFIED}{known or certificate.sha256}"
        return f"{owner}, {USER}{request.user}" if request.user else owner
    return f"{USER}{request.user}" if request.user else ""


def party_at(peer: str | None) -> str:
    """Return the network address of an ``"address:port"`` as a party; "" if it is not known."""
    return "" if peer is None else _party_at(peer.rpartition(":")[0].strip("[]"))


@lru_cache(1024)
def _party_at(host: str) -> str:
    try:
        address = ip_address(host)
    except ValueError:
        return f"address {host}" if host else ""
    if isinstance(address, IPv6Address):
        # A peer is the same party at a socket for both families and at one for IPv4.
        if address.ipv4_mapped is not None:
            return f"address {address.ipv4_mapped}"
        return f"address {ip_network((int(address), IPV6_PREFIX), strict=False)}"
    return f"address {address}"


def origin_of(request: Request, envelope: Envelope) -> Origin:
    """Return the origin of a request.

    A message that concerns only its own Sequence, from an unauthenticated sender, gets the origin of a stranger: no
    rule needs more.
    """
    speaks = envelope.control or envelope.fault or envelope.acknowledgements or envelope.relates_to
    if request.certificate is None and not request.user and not speaks:
        return STRANGER
    return Origin(secret=secret_in(request.target), party=party_of(request), is_named=b"user-agent" in request.headers)
