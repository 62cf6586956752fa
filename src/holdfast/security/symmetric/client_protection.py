"""How a source signs and encrypts its requests with a symmetric key, and what it believes of the answers."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

from holdfast.core.messages import MakeConnection
from holdfast.endpoint.envelopes.processors import MessageContext
from holdfast.exceptions import ConfigurationError
from holdfast.security.certificates import Credential, read_certificates
from holdfast.security.encryption import KEY_BYTES, key_in_message, write_encrypted_key
from holdfast.security.freshness import Freshness, check_fresh
from holdfast.security.header import Invalid, Token, Unproven, drop_comments
from holdfast.security.names import (
    CIPHERS,
    SECURITY,
    SIGNATURE_CONFIRMATION,
    CipherName,
    Kind,
    SymmetricSuiteName,
)
from holdfast.security.signature import encoded
from holdfast.security.signed_message import UNSIGNED_ATTACHMENTS, check_part, read_secured
from holdfast.security.symmetric.endorsement import Endorsing
from holdfast.security.symmetric.message_keys import MessageKeys, sha1_name
from holdfast.security.symmetric.protected_message import (
    SAFEST,
    SUITES,
    Opened,
    Protecting,
    check_sealed,
    confirmations_in,
    is_body_encrypted,
    open_sealed,
    protect,
)
from holdfast.security.username_token import refused

_SENT: Final = "holdfast.security.symmetric.sent"
"""Note with what is known of a request, and of its earlier attempts: its answer is checked with that."""
_FOUND: Final = "holdfast.security.symmetric.found"
"""Note with a decrypted answer, or with why it does not count."""
_POLLS: Final = "holdfast.security.symmetric.polls"
"""Note whether a request polls: what it fetches is about another request."""
MOST_REQUESTS: Final = 1000
"""Maximum number of requests that are remembered for their answers."""
MOST_ATTEMPTS: Final = 8
"""Maximum number of first attempts, and of newest attempts, that are remembered of a request."""


@dataclass(frozen=True, slots=True)
class SharedKey:
    """The key of a token that both sides have.

    Args:
        token: The token, for the message.
        attached: A SecurityTokenReference to it, from the message that has it.
        names: What an answer may name it.
        namespace: Of its WS-SecureConversation.
    """

    key: bytes
    token: str
    attached: str
    names: tuple[str, ...]
    namespace: str


@dataclass(frozen=True, slots=True)
class _Sent:
    """What the source remembers of a request for its answer.

    Attributes:
        names: What its answer may name the key -> the key.
        signatures: The values of its signatures, in base64, which the answer confirms.
    """

    names: Mapping[str, bytes]
    signatures: list[str]


class _Requests:
    """What a source remembers of each request, by its MessageID: of its first attempts, and of its newest ones.

    A service may protect a reply that it repeats with the key of the attempt that it received first, as Metro does, or
    answer a request when it is polled. A source that was restarted knows only the attempts since then.
    """

    def __init__(self) -> None:
        self._attempts: dict[str, tuple[_Sent, ...]] = {}

    def add(self, message_id: str | None, sent: _Sent) -> tuple[_Sent, ...]:
        """Remember an attempt, and return what is known of the request."""
        if not message_id:
            return (sent,)
        known = (*self._attempts.pop(message_id, ()), sent)
        if len(known) > 2 * MOST_ATTEMPTS:
            known = (*known[:MOST_ATTEMPTS], *known[-MOST_ATTEMPTS:])
        self._attempts[message_id] = known
        if len(self._attempts) > MOST_REQUESTS:
            del self._attempts[next(iter(self._attempts))]
        return known

    def find(self, message_id: str | None) -> tuple[_Sent, ...]:
        return self._attempts.get(message_id or "", ())


class ClientProtection:
    """Signs and encrypts requests, and accepts only answers that the service protects with the same key.

    Args:
        certificate: A file in PEM with the certificate of the service.
        cipher: How messages are encrypted.
        reference: How they name the certificate; not "token".
        derives_in: Namespace of WS-SecureConversation if keys for a message are derived as well, else "".
        freshness: How old a message may be, and how far the peer's clock may be ahead or behind.
        clock: Returns the seconds since 1970.

    Raises:
        ConfigurationError: The file has no usable certificate, or a setting is unknown.
    """

    def __init__(
        self,
        certificate: str | Path,
        suite: SymmetricSuiteName,
        cipher: CipherName,
        reference: Kind,
        derives_in: str,
        freshness: Freshness,
        clock: Callable[[], float],
    ) -> None:
        if reference == "token":
            known = ", ".join(kind for kind in get_args(Kind) if kind != "token")
            raise ConfigurationError("reference='token' is unknown here", remedy=f"Use one of {known}.")
        self._certificate = read_certificates(certificate)[0]
        if reference == "subject-key-identifier" and not self._certificate.key_identifier:
            raise ConfigurationError(
                f"{certificate} has no SubjectKeyIdentifier", remedy='Use reference="issuer-serial", or "thumbprint".'
            )
        self._suite: SymmetricSuiteName = suite
        self._cipher = CIPHERS[cipher]
        self._reference: Kind = reference
        self._derives_in = derives_in
        self._freshness = freshness
        self._clock = clock
        self._endorsing: Endorsing | None = None
        self._requests = _Requests()

    # --- out ------------------------------------------------------------------------------------------------------

    def endorse(self, own: Credential) -> None:
        """Let a certificate sign the signature of each request that has a new key."""
        self._endorsing = Endorsing(own, self._suite)

    def protect(self, context: MessageContext, data: bytes, user: Token | None, shared: SharedKey | None) -> bytes:
        """Return a request signed and encrypted: with a new key, or with a shared one."""
        if shared is None:
            protecting, names = self._with_new_key(user)
        else:
            names = dict.fromkeys(shared.names, shared.key)
            protecting = Protecting(
                shared.key,
                shared.attached,
                SUITES[self._suite],
                self._cipher,
                self._freshness.life,
                token=shared.token,
                derives_in=shared.namespace,
                user=user,
            )
        written, values = protect(data, context.envelope.soap, protecting, self._clock(), must_understand=True)
        sent = _Sent(names, sorted(map(encoded, values)))
        context.notes[_SENT] = self._requests.add(context.envelope.message_id, sent)
        context.notes[_POLLS] = isinstance(context.envelope.control, MakeConnection)
        return written

    def _with_new_key(self, user: Token | None) -> tuple[Protecting, dict[str, bytes]]:
        key, mark = secrets.token_bytes(KEY_BYTES[self._cipher]), f"_{secrets.token_hex(8)}"
        wrapped = self._certificate.wrap(key)
        protecting = Protecting(
            key,
            key_in_message(mark),
            SUITES[self._suite],
            self._cipher,
            self._freshness.life,
            token=write_encrypted_key(self._certificate, self._reference, wrapped, mark),
            derives_in=self._derives_in,
            user=user,
            endorsing=self._endorsing,
        )
        return protecting, {sha1_name(hashlib.sha1(wrapped).digest()): key}

    # --- in -------------------------------------------------------------------------------------------------------

    def received(self, context: MessageContext, data: bytes) -> bytes:
        """Decrypt an answer that counts. Any other stays as it is: :meth:`check` refuses it."""
        try:
            opened = self._open(context, data)
        except (Invalid, Unproven) as error:
            context.notes[_FOUND] = error.with_traceback(None)
            return data
        context.notes[_FOUND] = opened
        return opened.data

    def _open(self, context: MessageContext, data: bytes) -> Opened:
        """Check an answer. It confirms the signature of an attempt of its request, so it is neither the answer to
        another one nor the request itself (SOAP Message Security 1.1, section 8.5)."""
        attempts: tuple[_Sent, ...] = context.notes.get(_SENT, ())
        if not attempts or not context.is_answer:
            raise Invalid("it answers no request")
        if context.notes.get(_POLLS):
            attempts += self._requests.find(context.envelope.relates_to)
        secured = read_secured(data, context.envelope.soap)
        check_fresh(secured.security, self._freshness, self._clock())
        ciphers = {self._cipher, SAFEST}
        names = {name: key for sent in attempts for name, key in sent.names.items()}
        sealed = check_sealed(secured, MessageKeys(names), self._suite, ciphers)
        if not is_body_encrypted(sealed) and context.envelope.fault is None:
            raise Invalid("the Body is not encrypted")
        opened = open_sealed(sealed, data, context.envelope.soap, self._suite)
        confirmed = sorted(confirmations_in(opened.message))
        if all(sent.signatures != confirmed for sent in attempts):
            raise Invalid("it does not confirm the signature of the request: see RequireSignatureConfirmation")
        for confirmation in opened.message.security.element.findall(SIGNATURE_CONFIRMATION):
            check_part(opened.message, confirmation, self._suite)
        return opened

    def check(self, context: MessageContext) -> None:
        """Refuse an answer that does not count, and remove its Security header."""
        found = context.notes.pop(_FOUND, None)
        try:
            if not isinstance(found, Opened):
                # Without attachments, :meth:`received` was called.
                raise Invalid(UNSIGNED_ATTACHMENTS if context.envelope.attachments else str(found))
            drop_comments(context, found.message.body)
        except Invalid as error:
            raise refused(context, error) from None
        for name in (*found.unsigned, SECURITY):
            context.remove_header(name)
