"""Security sessions (WS-SecureConversation): a client proves its user once, and then a key with each message."""

from __future__ import annotations

import hmac
import secrets
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lxml import etree

from holdfast.core.messages import CreateSequence
from holdfast.endpoint.envelopes.processors import MessageContext
from holdfast.exceptions import EnvelopeError, MessageFlowError
from holdfast.http.retry_after import spread
from holdfast.security.conversation.contexts import SecurityContext, SecurityContexts
from holdfast.security.conversation.trust import TokenRequest, p_sha1, write_cancelled, write_issued
from holdfast.security.header import ContextToken, Invalid, Security, Unproven
from holdfast.security.names import WSSE
from holdfast.security.signature import check_named_token, check_signature
from holdfast.wire import parse_element

SESSION: Final = 54_000.0
"""Seconds for which a token is valid: as long as WCF's own server grants."""


class SecuritySessions:
    """Issues tokens to users, renews and cancels them, and checks the messages that they sign.

    Args:
        path: The file that remembers the tokens; None: memory.
        lifetime: Seconds for which a token, or a renewal, is valid.
        skew: Seconds that a peer's clock may be ahead or behind.
        password_of: Returns the password of a user, None for an unknown user. None: the passwords are not known here.
    """

    def __init__(
        self, path: str | Path | None, lifetime: float, skew: float, password_of: Callable[[str], str | None] | None
    ) -> None:
        self._contexts = SecurityContexts(path)
        self._lifetime = lifetime
        self._skew = skew
        self._password_of = password_of

    # --- messages -------------------------------------------------------------------------------------------------

    def check(self, security: Security, now: float) -> SecurityContext:
        """Return the security context that signed the Timestamp of a Security header.

        Raises:
            Invalid: There is no such signature, or no Timestamp.
            Unproven: The token is unknown or has expired, or another key signed.
        """
        token, timestamp = security.context, security.timestamp
        assert token is not None
        if timestamp is None or timestamp.element is None:
            raise Invalid("a SecurityContextToken without a Timestamp")
        if timestamp.created is None or timestamp.expires is None:
            raise Invalid("a Timestamp without Created or Expires: it would count for ever")
        found = self.find(token)
        # What is unknown is checked as well: a refusal takes as long.
        key = found.key if found is not None else bytes(32)
        is_right = check_signature(security.element, timestamp.element, token.element, key)
        return self.check_valid(found, now, is_signature_right=is_right)

    def find(self, token: ContextToken) -> SecurityContext | None:
        return self._contexts.find(token.identifier, token.instance)

    def check_valid(self, found: SecurityContext | None, now: float, *, is_signature_right: bool) -> SecurityContext:
        """Return a security context that counts.

        Raises:
            Unproven: It is unknown or has expired, or another key signed.
        """
        if found is None:
            raise Unproven("the token is unknown, or cancelled. After a restart, only those in the file count: nonces=")
        if not is_signature_right:
            raise Unproven("the signature was made with another key")
        if found.until < now - self._skew:
            raise Unproven(f"the token expired {now - found.until:.0f} s ago")
        if not hmac.compare_digest(found.password_proof, self._proof(found.user, found.key)):
            raise Unproven("the user is unknown now, or its password has changed")
        return found

    def _proof(self, user: str, key: bytes) -> bytes:
        """Return what shows later that a user's password is still the same, without storing the password."""
        if self._password_of is None:
            return b""
        password = self._password_of(user)
        return b"unknown" if password is None else hmac.digest(key, password.encode(), "sha256")

    # --- tokens ---------------------------------------------------------------------------------------------------

    def answer(self, context: MessageContext, asked: TokenRequest, user: str, proven: str, now: float) -> None:
        """Answer a request for a token.

        It is issued for a password (WS-SecureConversation 1.3, section 3), and renewed with another key for a password
        and a signature (WS-SecureConversation 1.3, section 5). A signature suffices to cancel it
        (WS-SecureConversation 1.3, section 6).

        Args:
            context: The request.
            asked: What it asks for.
            user: The user that a password in the request proves; "" without one.
            proven: Identifier of the token that signed it, "" for none.
            now: Seconds since 1970.

        Raises:
            Unproven: Its proofs do not suffice.
            MessageFlowError: There are too many tokens.
        """
        if asked.kind != "Issue" and (not proven or asked.target != proven):
            raise Unproven("a token can be renewed or cancelled only by messages that it signed")
        if asked.kind != "Cancel" and not user:
            raise Unproven("a token is issued and renewed only for a password")
        if asked.kind == "Cancel":
            self._contexts.cancel(asked.target)
            body = write_cancelled(asked)
        else:
            body = self._issue(asked, user, now)
        context.answer(body, action=asked.form.action("RSTR", asked.kind))

    def _issue(self, asked: TokenRequest, user: str, now: float) -> str:
        # Forgotten only once it would be refused: see :meth:`check_valid`.
        if not self._contexts.has_room(user, now - self._skew):
            raise MessageFlowError("There are too many tokens. Cancel those that are not used.", retry_after=spread(60))
        length = asked.key_bits // 8
        # Never less than the key: the client's part may be shorter (ENTROPY_BYTES).
        entropy = secrets.token_bytes(max(32, length))
        key = p_sha1(asked.entropy, entropy, length)
        is_new = asked.kind == "Issue"
        issued = SecurityContext(
            # A renewed token keeps its Identifier. Instance names its key (WS-SecureConversation 1.3, section 2).
            uuid.uuid4().urn if is_new else asked.target,
            "" if is_new else uuid.uuid4().urn,
            user,
            key,
            now + self._lifetime,
            self._proof(user, key),
        )
        self._contexts.add(issued)
        return write_issued(asked, issued, entropy, now)


# --- Sequences ----------------------------------------------------------------------------------------------------


def check_binding(context: MessageContext, proven: str) -> None:
    """Check which token a CreateSequence binds its Sequence to: only the one that signed it (WS-RM 6.1).

    Args:
        context: Any message.
        proven: Identifier of the token that signed it, "" for none.

    Raises:
        Invalid: It names another token; or its header says that it names one, and it does not.
    """
    if not isinstance(context.envelope.control, CreateSequence):
        return
    try:
        envelope = parse_element(context.data)
    except EnvelopeError:
        raise Invalid("CreateSequence is not in UTF-8") from None
    check_named_token(envelope, lambda reference: named_token(reference) == proven)


def named_token(reference: etree._Element) -> str:
    # Joined: a reference that names two tokens equals neither.
    return "".join(one.get("URI", "") for one in reference.iter(f"{{{WSSE}}}Reference"))
