"""UsernameToken: the user name and password with which a source sends, and what a destination checks."""

from __future__ import annotations

import binascii
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from holdfast.core.versions import SOAP
from holdfast.endpoint.envelopes.processors import MessageContext, Processor
from holdfast.endpoint.logs import log
from holdfast.endpoint.sending.parties import party_at
from holdfast.exceptions import ConfigurationError, MessageFlowError, ProcessingError, clause
from holdfast.http.retry_after import spread
from holdfast.security.conversation.contexts import SecurityContext
from holdfast.security.conversation.sessions import SESSION, SecuritySessions, check_binding
from holdfast.security.conversation.trust import read_request
from holdfast.security.freshness import Freshness, check_fresh
from holdfast.security.header import (
    PLAIN_PASSWORD,
    AnySecurity,
    Invalid,
    PlainTextWarning,
    Token,
    Unproven,
    add_security,
    read_security,
    remove_security,
    require_user,
    security_block,
    strictly,
    write_timestamp,
    write_token,
)
from holdfast.security.names import (
    FAILED_AUTHENTICATION,
    FAILED_AUTHENTICATION_REASON,
    INVALID_SECURITY,
    INVALID_SECURITY_REASON,
    NEGOTIATIONS,
    SECURITY,
    USES_SEQUENCE_STR,
)
from holdfast.security.nonces import Nonces, open_nonces
from holdfast.security.signature import check_cost
from holdfast.security.times import write_time
from holdfast.settings import Seconds, SecondsOrZero, check_arguments
from holdfast.store.address import is_remote
from holdfast.wire.policy.assertions import PASSWORD, PASSWORD_DIGEST, TIMESTAMP
from holdfast.wire.policy.assertions import SECURITY as SECURITY_POLICIES

SECURITY_POLICY: Final = SECURITY_POLICIES[0]
_LATER: Final = 20
"""Seconds after which a sender may try another password: ten of a hash that takes a tenth of a second."""
_SAME_STAMP: Final = 0.05
"""Seconds for which answers have the same Timestamp."""
TIMESTAMPED: Final = "holdfast.security.timestamped"
"""Note of a request with a Timestamp: its answer has one, too."""
_WRONG: Final = "unknown user or wrong password"
_NEGOTIATES: Final = (
    "The client negotiates a token, as WCF does in the security mode Message, which is not supported: "
    "set TransportWithMessageCredential there"
)
MAX_WHY: Final = 500
"""Maximum characters of the reason for which an answer is not accepted: it may have names that the peer chose."""
REMEMBERED: Final = 10_000
"""Maximum number of user names for which an answer of ``authenticate`` is remembered."""
MOST_FAILING: Final = 1.0
"""Seconds that ``authenticate`` may take for wrong passwords of one network address, one after the other."""
FAILING_SHARE: Final = 0.05
"""Share of the time that it may take for them after that."""
_timer = time.perf_counter
_UNKNOWN: Final = "\0"
"""Compared with the password of an unknown user, so that the refusal takes as long."""


def digest_of(nonce: bytes, created: str, password: str) -> str:
    """Return the password digest: Base64(SHA-1(nonce + created + password)) (UsernameToken Profile 1.1, section 3.1).

    SHA-1 is the profile's only digest.
    """
    digest = hashlib.sha1(nonce + (created + password).encode()).digest()
    return binascii.b2a_base64(digest, newline=False).decode()


class FailedPasswords:
    """The time that wrong passwords took, for each network address.

    A slow password hash protects passwords that were stolen. Without a limit, anyone could keep the endpoint busy with
    it: wrong passwords cannot be remembered as right ones are.
    """

    def __init__(self) -> None:
        self._spent: dict[str, tuple[float, float]] = {}
        """Address -> seconds that count against it, and since when."""

    def exceed(self, address: str, now: float) -> bool:
        """Return whether an address must wait before another password of it is tried."""
        return self._left(address, now) >= MOST_FAILING

    def add(self, address: str, seconds: float, now: float) -> None:
        """Count the time for a wrong password."""
        left = self._left(address, now)
        self._spent.pop(address, None)
        if len(self._spent) >= REMEMBERED:
            del self._spent[next(iter(self._spent))]
        self._spent[address] = left + seconds, now

    def _left(self, address: str, now: float) -> float:
        seconds, since = self._spent.get(address, (0.0, now))
        return max(0.0, seconds - FAILING_SHARE * max(0.0, now - since))


class UsernameToken(Processor):
    """Sends a user name and its password with every request: ``Source(url, processors=[UsernameToken("me", "…")])``.

    The requests of the protocol carry it too, and every retransmission has a new Timestamp and a new nonce. An answer
    needs no Security header; if it has one with a Timestamp, the Timestamp must be fresh.

    Args:
        name: The user.
        password: Its password.
        digest: Send a digest instead of the password. The receiver must know the password itself. Either way, use
            https: a digest protects a password that can be guessed no better than plain text.
        timestamp: Send a Timestamp as well. Most services that demand a token over https demand one.
        freshness: How old a message may be, and how far the peer's clock may be ahead or behind.
        clock: Returns the seconds since 1970.
    """

    understands = (SECURITY,)
    owns = (SECURITY,)
    roles = ("source",)
    counterpart = "UsernameTokenValidator"

    def __init__(
        self,
        name: str,
        password: str,
        *,
        digest: bool = False,
        timestamp: bool = True,
        freshness: Freshness = Freshness(),
        clock: Callable[[], float] = time.time,
    ) -> None:
        require_user("UsernameToken", name, password)
        check_arguments(UsernameToken, locals())
        self.name = name
        self._password = password
        self._digest = digest
        self._plain = PlainTextWarning(PLAIN_PASSWORD)
        self._timestamp = timestamp
        self._freshness = freshness
        self._clock = clock
        self.abilities = (PASSWORD_DIGEST if digest else PASSWORD, *((TIMESTAMP,) if timestamp else ()))

    def __repr__(self) -> str:
        return f"UsernameToken({self.name!r}, …)"

    def outbound(self, context: MessageContext) -> None:
        """Add the header to a request (UsernameToken Profile 1.1, section 3.1)."""
        if context.is_answer:
            return
        now = self._clock()
        token = Token(self.name, self._password, is_digest=False)
        if self._digest:
            nonce, created = secrets.token_bytes(16), write_time(now)
            token = Token(self.name, digest_of(nonce, created, self._password), True, nonce, created)
        else:
            self._plain.check(context, self.name)
        stamp = write_timestamp(now, self._freshness.life) if self._timestamp else ""
        add_security(context, stamp + write_token(token))

    def inbound(self, context: MessageContext) -> None:
        """Check the Timestamp of an answer, if it has one."""
        try:
            check_fresh(read_security(context), self._freshness, self._clock())
        except Invalid as error:
            raise refused(context, error) from None


class UsernameTokenValidator(Processor):
    """Accepts only requests with a valid user name and password: ``Destination(store, processors=[…])``.

    A request without a token, with a wrong password or an old Timestamp is answered with a fault that does not tell
    the cause; the log does. A repeated nonce is answered with HTTP 503, so that a sender tries again. Nothing of these
    requests is stored or acknowledged. The Security header is never stored: a store is no place for passwords. A
    Sequence belongs to the user that created it.

    It also serves clients that ask for a token of WS-SecureConversation, as WCF's do: a client proves its password
    once, and then signs the Timestamp of each message with the token's key. A Sequence belongs to the token under which
    it was created.

    Args:
        passwords: User names and their passwords, or a function that returns the password of a user, None for an
            unknown user. Needed for digests.
        authenticate: Instead of ``passwords``: a function of a user name and a password that returns whether they
            belong together. It runs in the event loop (with ``nonces`` at a URL: in another thread), so it must not
            wait; what it accepts is remembered for ``remember`` seconds, so a slow password hash runs once a minute for
            each user. Wrong passwords of one network address take a second at most, and then a twentieth of the time:
            further ones are answered with HTTP 503. It must accept one spelling of each name only, because another
            spelling is another user.
        nonces: A file that remembers tokens over restarts. The directory with its name and ``-nonces``, next to it, has
            the nonces. Several processes may share both. Or the URL of a PostgreSQL database, which several hosts may
            share. None: in memory, so that a restart ends the sessions of WCF's clients. File and database contain
            keys.
        require_digest: Refuse passwords in plain text.
        require_timestamp: Refuse messages without a Timestamp.
        freshness: How old a message may be, and how far the peer's clock may be ahead or behind.
        remember: Seconds for which an answer of ``authenticate`` counts.
        session: Seconds for which a token is valid before its client must renew it.
        clock: Returns the seconds since 1970.

    Raises:
        ConfigurationError: Neither or both of ``passwords`` and ``authenticate``, or a digest is required of
            ``authenticate``, which cannot check one.
    """

    understands = (SECURITY, USES_SEQUENCE_STR)
    owns = (SECURITY,)
    roles = ("destination",)
    counterpart = "UsernameToken"

    def __init__(
        self,
        passwords: Mapping[str, str] | Callable[[str], str | None] | None = None,
        *,
        authenticate: Callable[[str, str], bool] | None = None,
        nonces: str | Path | None = None,
        require_digest: bool = False,
        require_timestamp: bool = False,
        freshness: Freshness = Freshness(),
        remember: SecondsOrZero = 60.0,
        session: Seconds = SESSION,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if passwords is not None and not isinstance(passwords, Mapping) and not callable(passwords):
            raise ConfigurationError(
                f"passwords of the type {type(passwords).__name__} are not a dictionary or a function",
                remedy="Give {'alice': '…'}; or for a file with a line NAME:PASSWORD for each user, Users('users.txt') "
                "of holdfast.security.users.",
            )
        check_arguments(UsernameTokenValidator, locals())
        if (passwords is None) == (authenticate is None):
            raise ConfigurationError(
                "UsernameTokenValidator needs passwords or authenticate, and not both",
                remedy="Write UsernameTokenValidator({'alice': '…'}), or authenticate=check.",
            )
        if authenticate is not None and require_digest:
            raise ConfigurationError(
                "require_digest=True cannot be used with authenticate: only the password itself can check a digest",
                remedy="Give passwords, or a function that returns the password of a user.",
            )
        look_up = passwords.get if isinstance(passwords, Mapping) else passwords
        self._password_of = None if look_up is None else strictly("passwords", look_up, str, None)
        self._authenticate = None if authenticate is None else strictly("authenticate", authenticate, bool, False)
        self.nonces = open_nonces(nonces)
        self._remembers_alone = nonces is None
        self.waits = is_remote(nonces)
        self.sessions = SecuritySessions(nonces, session, freshness.skew, self._password_of)
        self._require_digest = require_digest
        self._require_timestamp = require_timestamp
        self.freshness = freshness
        self._remember = remember
        self.clock = clock
        self._salt = secrets.token_bytes(16)
        self._accepted: dict[str, tuple[bytes, float]] = {}
        """User -> a hash of the password that ``authenticate`` accepted, and until when that counts."""
        self._failed = FailedPasswords()
        self._stamps: dict[SOAP, tuple[float, bytes]] = {}
        self._plain = PlainTextWarning(PLAIN_PASSWORD)

    def policy(self, *, is_https: bool) -> str:
        """Return the assertions of WS-SecurityPolicy 1.2 for a user name: over https, with the transport binding."""
        token = self.user_token()
        if not is_https:
            return supporting("SupportingTokens", token)
        binding = transport_binding(has_timestamp=self._require_timestamp)
        return f"{binding}{supporting('SignedSupportingTokens', token)}"

    def user_token(self) -> str:
        """Return the assertion of the token that is accepted."""
        text, digest = "<wsp:All/>", "<wsp:All><sp:HashPassword/></wsp:All>"
        accepted = digest if self._require_digest else text if self._authenticate else f"{text}{digest}"
        return (
            f'<sp:UsernameToken sp:IncludeToken="{SECURITY_POLICY}/IncludeToken/AlwaysToRecipient"><wsp:Policy>'
            f"<wsp:ExactlyOne>{accepted}</wsp:ExactlyOne></wsp:Policy></sp:UsernameToken>"
        )

    def inbound(self, context: MessageContext) -> None:
        """Check a request, and remove its Security header. Answer a request for a token."""
        now = self.clock()
        security: AnySecurity | None = None
        try:
            security = read_security(context)
            check_fresh(security, self.freshness, now)
            if not context.is_answer:
                self._check_request(context, security, now)
        except (Invalid, Unproven) as error:
            raise refused(context, error, _claimed(security)) from None
        remove_security(context, security)

    def _check_request(self, context: MessageContext, security: AnySecurity | None, now: float) -> None:
        session: SecurityContext | None = None
        if security is not None and security.context is not None:
            check_cost(b"".join(context.envelope.headers), security.element)
            session = self.sessions.check(security, now)
        asked = read_request(context)
        user = ""
        if session is None or (security is not None and security.token is not None):
            token = self.authenticate_token(context, security, now)
            user = token.name
            if not token.is_digest:
                self._plain.check(context, user)
        if session is not None and user not in ("", session.user):
            raise Unproven("the token and the password are of two users")
        context.notes[TIMESTAMPED] = security is not None and security.timestamp is not None
        proven = session.identifier if session is not None else ""
        if asked is not None:
            self.sessions.answer(context, asked, user, proven, now)
            return
        check_binding(context, proven)
        context.user = session.user if session is not None else user
        context.session = proven

    def authenticate_token(self, context: MessageContext, security: AnySecurity | None, now: float) -> Token:
        """Return the UsernameToken of a Security header, if it proves its user.

        Each nonce counts once (UsernameToken Profile 1.1, section 3.1).

        Raises:
            Invalid: It is malformed, old or absent.
            Unproven: It is not the user's password.
            MessageFlowError: It was used before, or too many passwords of its sender were wrong.
        """
        token = self._token_of(security, now)
        why = self._refusal(context, token, now)
        if why:
            raise Unproven(why)
        if token.nonce and not self._is_new(token, now):
            full = "too many nonces are remembered"
            tell_refusal(context, full if self.nonces.is_full else "the nonce was used before", token.name)
            raise MessageFlowError("The token was used before. Send the message again with a new one.")
        return token

    def outbound(self, context: MessageContext) -> None:
        """Add a Timestamp to the answer to a request that had one, as a peer with a transport binding demands."""
        if context.is_answer and context.notes.get(TIMESTAMPED):
            context.envelope.headers = (*context.envelope.headers, self._stamp(context.envelope.soap))

    def _stamp(self, soap: SOAP) -> bytes:
        """Return a Security header with a Timestamp. Answers that leave at nearly the same time have the same one."""
        now = self.clock()
        at, block = self._stamps.get(soap, (0.0, b""))
        # Also if the clock was set back meanwhile.
        if not 0.0 <= now - at < _SAME_STAMP:
            block = security_block(soap, write_timestamp(now, self.freshness.life), must_understand=False)
            self._stamps[soap] = now, block
        return block

    def _token_of(self, security: AnySecurity | None, now: float) -> Token:
        """Return the token of a request, which is complete and fresh (UsernameToken Profile 1.1, section 3.1).

        Raises:
            Invalid: It is not, or a required part is missing.
        """
        if security is None or security.token is None:
            raise Invalid("no UsernameToken")
        if self._require_timestamp and security.timestamp is None:
            raise Invalid("no Timestamp")
        token = security.token
        if token.is_digest and not (token.nonce and token.created):
            raise Invalid("a digest without Nonce or Created")
        if token.nonce and not token.created:
            raise Invalid("a Nonce without Created: it would have to be remembered for ever")
        if token.created_at is not None:
            self.freshness.check_times(token.created_at, None, now)
        return token

    def _refusal(self, context: MessageContext, token: Token, now: float) -> str:
        """Return why a token does not prove its user, "" if it does."""
        if self._require_digest and not token.is_digest:
            return "the password is in plain text"
        if self._password_of is None and token.is_digest:
            return "authenticate= cannot check a digest; passwords= can"
        if self._password_of is None:
            return "" if self._is_authentic(context, token, now) else _WRONG
        known = self._password_of(token.name)
        password = _UNKNOWN if known is None else known
        wanted = digest_of(token.nonce, token.created, password) if token.is_digest else password
        is_right = hmac.compare_digest(wanted.encode(), token.password.encode())
        return "" if is_right and known is not None else _WRONG

    def _is_new(self, token: Token, now: float) -> bool:
        """Remember the nonce of a valid token; return False if it is known (UsernameToken Profile 1.1, section 3.1).

        Only valid tokens count, so a stranger cannot fill the memory. A proxy may repeat a request if its answer was
        lost. A fault would tell the sender that its password is wrong, so the answer asks for another attempt.
        """
        assert token.created_at is not None
        # A right digest is as good as random bytes, and is over the nonce.
        digest = (
            binascii.a2b_base64(token.password)
            if token.is_digest
            else hashlib.sha256(token.name.encode() + b"\0" + token.nonce).digest()
        )
        return self.nonces.is_new(token.created_at, digest, self.freshness.until(token.created_at), now)

    def _is_authentic(self, context: MessageContext, token: Token, now: float) -> bool:
        assert self._authenticate is not None
        proof = hashlib.blake2b(token.password.encode(), key=self._salt).digest()
        known, until = self._accepted.get(token.name, (b"", 0.0))
        was_right = hmac.compare_digest(proof, known)
        if was_right and now < until:
            return True
        address = party_at(context.peer)
        if not was_right and self._failed.exceed(address, now):
            tell_refusal(context, "wrong passwords from its address took too long", token.name)
            raise MessageFlowError("Too many passwords were wrong. Send the message later.", retry_after=spread(_LATER))
        begun = _timer()
        if not self._authenticate(token.name, token.password):
            self._failed.add(address, _timer() - begun, now)
            return False
        # One user may have many names here: a directory may ignore their case, or blanks.
        if len(self._accepted) >= REMEMBERED:
            self._accepted.clear()
        self._accepted[token.name] = (proof, now + self._remember)
        return True


def _claimed(security: AnySecurity | None) -> str:
    return security.token.name if security is not None and security.token is not None else ""


def refused(context: MessageContext, error: Invalid | Unproven, user: str = "") -> ProcessingError:
    """Return the error that refuses a message, with a fault of SOAP Message Security 1.1, section 12.

    The fault does not tell the cause; the log does.

    The error that refuses an answer tells the cause: it stays in this endpoint.
    """
    why = str(error)
    if context.envelope.action in NEGOTIATIONS:
        why = f"{clause(why)}. {_NEGOTIATES}"
    tell_refusal(context, why, user)
    code, reason = INVALID_SECURITY, INVALID_SECURITY_REASON
    if isinstance(error, Unproven):
        code, reason = FAILED_AUTHENTICATION, FAILED_AUTHENTICATION_REASON
    return ProcessingError(why[:MAX_WHY] if context.is_answer else reason, code=code)


def tell_refusal(context: MessageContext, why: str, user: str) -> None:
    """Log why a message is refused, with the text of an unproven fault: it may tell what is wrong with our message."""
    fault = context.envelope.fault
    why = why if fault is None else f"{clause(why)}. It is a fault: {fault.reason[:200]}"
    log.warning("security.refused", peer=context.peer or context.to, user=user[:100], why=why)


def repeated(context: MessageContext, nonces: Nonces, user: str) -> MessageFlowError:
    """Return the error for a signed message that was received before, and log it."""
    full = "too many signatures are remembered" if nonces.is_full else "the message was received before"
    tell_refusal(context, full, user)
    return MessageFlowError("The message was received before. Sign it again.")


def supporting(kind: str, token: str) -> str:
    return f'<sp:{kind} xmlns:sp="{SECURITY_POLICY}"><wsp:Policy>{token}</wsp:Policy></sp:{kind}>'


def transport_binding(*, has_timestamp: bool) -> str:
    """Return the assertion of WS-SecurityPolicy 1.2 that demands https (7.3)."""
    timestamp = "<sp:IncludeTimestamp/>" if has_timestamp else ""
    return (
        f'<sp:TransportBinding xmlns:sp="{SECURITY_POLICY}"><wsp:Policy><sp:TransportToken><wsp:Policy>'
        "<sp:HttpsToken><wsp:Policy/></sp:HttpsToken></wsp:Policy></sp:TransportToken><sp:AlgorithmSuite>"
        "<wsp:Policy><sp:Basic256/></wsp:Policy></sp:AlgorithmSuite><sp:Layout><wsp:Policy><sp:Lax/></wsp:Policy>"
        f"</sp:Layout>{timestamp}</wsp:Policy></sp:TransportBinding>"
    )
