"""Origin: where a message came from, as far as its transport tells, and the secret in our address."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from holdfast.core.messages import (
    CloseSequence,
    CloseSequenceResponse,
    Envelope,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.records import Record

SECRET = "holdfast="
"""Prefix of the secret in the query of an address."""


def with_secret(address: str, secret: str) -> str:
    """An address that only one peer knows. The secret is in its query: not every peer echoes reference parameters (CXF
    acknowledges without them), but each one posts to the address that it was given."""
    return f"{address}{'&' if '?' in address else '?'}{SECRET}{secret}"


# In a request target the address is percent-encoded, and once more where that target is part of another one. In ASCII
# only: without_secrets leaves its own results as they are, however they were encoded.
_SECRETS = re.compile(r"(holdfast(?:=|%(?:25)*3d))([\w-]+)", re.ASCII | re.IGNORECASE)


def without_secrets(text: str) -> str:
    """Return a text for people or peers, with a digest of 16 hexadecimal digits instead of the secret of each address
    from :func:`with_secret`, also of a percent-encoded one.

    Two outboxes may have names that differ in the secret only: the digest distinguishes them.
    """
    # Most texts have no secret, and two searches cost less than the expression.
    return _SECRETS.sub(_digested, text) if "holdfast" in text.lower() else text


def _digested(found: re.Match[str]) -> str:
    return f"{found[1]}…{blake2b(found[2].encode(), digest_size=8).hexdigest()}"


def secret_in(address: str) -> str:
    """Return the secret in an address from :func:`with_secret`, or in its path; "" without one."""
    # Most addresses have no secret: the first test costs no split.
    for one in address.partition("?")[2].split("&") if SECRET in address else ():
        if one.startswith(SECRET):
            return one[len(SECRET) :]
    return ""


CERTIFIED = "certificate "
"""Prefix of a party that is authenticated by a TLS client certificate."""

USER = "user "
"""Prefix of a party that is authenticated by a user name and a password in the message."""

SESSION = "session "
"""Prefix of a party that is authenticated by the key of a security session, which no other party has."""

PROVEN = (CERTIFIED, USER, SESSION)
"""Prefixes of authenticated parties."""


ISSUER = "urn:holdfast:"
"""Prefix of a session that stands for the issuer of the party's name: another issuer may give another party the same
name. A name without it is that of the endpoint's own users."""


def in_session(session: str, party: str) -> str:
    """Return the name of a party in one of its security sessions, or as its issuer names it. Both must be a URI."""
    return f"{SESSION}{session} of {party}"


def whole_party(party: str) -> str:
    """Return a party without its security session, but with its issuer: all its sessions share its quotas."""
    if not party.startswith(SESSION) or party.startswith(f"{SESSION}{ISSUER}"):
        return party
    # The session is a URI, which has no space, so the first " of " ends it.
    return party.partition(" of ")[2]


def owner_of(party: str) -> str:
    """Return the authenticated party without its security session; "" if it is not authenticated."""
    owner = whole_party(party)
    return owner if owner.startswith(PROVEN) else ""


_NAMING = (CloseSequence, CloseSequenceResponse, TerminateSequence, TerminateSequenceResponse)


@dataclass(frozen=True, slots=True)
class Origin:
    """The sender of a message, as far as the transport shows it.

    Args:
        address: The URI that our request went to, if the message is the answer to it; "" if it came as a request.
        secret: The unguessable part of the address that it was posted to, "" for none.
        party: Who posted it: the owner of a client certificate, a user (:data:`PROVEN`) or a network address; "" if
            unknown.
        names: Identifiers of the inbound Sequences that the message names.
        query: The forwarded message that it may be the reply to, though that one awaits none.
        is_named: Whether its sender says which program it is, as HTTP's User-Agent does.
    """

    address: str = ""
    secret: str = ""
    party: str = ""
    names: tuple[str, ...] = ()
    query: Record | None = None
    is_named: bool = True

    def naming(self, envelope: Envelope) -> Origin:
        """Return the same origin with the inbound Sequences that a message names."""
        names = (*self.names, *inbound_names(envelope))
        return Origin(self.address, self.secret, self.party, names, self.query, self.is_named)


class Requester(NamedTuple):
    """The sender of the requests that a Sequence answers, remembered for the lifetime of that Sequence.

    The Sequence that carried the requests may be forgotten earlier.

    Args:
        party: As in :class:`Origin`; "" if unknown.
        acks_to: The address that acknowledgements of its requests go to.
        sequence: The Identifier of the Sequence that carried its requests.
    """

    party: str
    acks_to: str
    sequence: str


STRANGER = Origin()
"""Origin of a request without any information about its sender."""


def inbound_names(envelope: Envelope) -> list[str]:
    """Return the Identifiers of inbound Sequences in a message: all but those that it acknowledges."""
    names = [] if envelope.sequence is None else [envelope.sequence.identifier]
    if envelope.control is not None and isinstance(envelope.control, _NAMING):
        names.append(envelope.control.identifier)
    if envelope.terminates:
        names.append(envelope.terminates)
    if envelope.ack_requested:
        names += [requested.identifier for requested in envelope.ack_requested]
    if envelope.fault is not None and envelope.fault.identifier is not None:
        names.append(envelope.fault.identifier)
    return names
