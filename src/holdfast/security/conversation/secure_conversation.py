"""SecureConversation: a source that requests tokens with its user name, and signs with their keys, as WCF's client.

There are two forms. With WCF's security mode ``TransportWithMessageCredential``, each message has a Timestamp, the
token, and a signature of the Timestamp with the token's key; TLS protects the rest. With the service's certificate,
whole messages are signed and encrypted with keys derived from the token's key, and the request for the token with a key
that is encrypted for the service.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from holdfast.core.faults import REFUSES_CREDENTIALS
from holdfast.core.messages import (
    MC_ANONYMOUS,
    CreateSequence,
    CreateSequenceResponse,
    Envelope,
    MakeConnection,
    TerminateSequence,
)
from holdfast.core.versions import RM
from holdfast.endpoint.envelopes.processors import MessageContext, Processor
from holdfast.endpoint.logs import log
from holdfast.exceptions import MessageFlowError, ProcessingError
from holdfast.security.conversation.source_tokens import SourceToken, SourceTokens
from holdfast.security.conversation.token_requests import KEY_BYTES, read_granted, write_request
from holdfast.security.conversation.trust import FORMS, Form, Kind, write_reference, write_token
from holdfast.security.freshness import Freshness, check_fresh
from holdfast.security.header import (
    PLAIN_PASSWORD,
    Invalid,
    PlainTextWarning,
    Token,
    add_security,
    read_security,
    require_user,
    security_block,
    write_timestamp,
)
from holdfast.security.header import write_token as write_username_token
from holdfast.security.names import (
    SECURITY,
    CipherName,
    ConversationVersion,
    SymmetricSuiteName,
)
from holdfast.security.signature import TOKEN_ID, check_signable, demand_named_token, name_in_creation, sign_timestamp
from holdfast.security.username_token import refused
from holdfast.settings import check_arguments
from holdfast.store.address import is_remote
from holdfast.wire.policy.assertions import SECURE_CONVERSATION, SEQUENCE_TOKEN, TIMESTAMP, Ability

if TYPE_CHECKING:
    from holdfast.security.symmetric.client_protection import ClientProtection, SharedKey

RENEW_AT: Final = 0.25
"""A token is renewed when this share of its life is left."""

MOST_UNPROVEN: Final = 3
"""Number of refusals in a row, without the key of the token, after which it counts as lost. Anyone could write one."""

MOST_NEW_REFUSED: Final = 3
"""Number of tokens in a row, for one use, that the service may refuse before it accepts any message under them. A
service that restarts may lose a token before its first use. More refusals have another cause."""

_ASKED: Final = "holdfast.security.asked"
_CREATES: Final = "holdfast.security.creates"
_UNDER: Final = "holdfast.security.under"
"""Note with the token under which a request is sent."""
_FORMS: Final[dict[ConversationVersion, Form]] = {"2005/02": FORMS[0], "1.3": FORMS[1]}


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request for a token.

    Args:
        kind: What it asks for.
        form: Its version.
        entropy: This side's part of the key.
        use: What the token is for.
        identifier: The token to renew or cancel, "" to issue one.
    """

    kind: Kind
    form: Form
    entropy: bytes
    use: str
    identifier: str


class SecureConversation(Processor):
    """Sends under tokens of WS-SecureConversation that the service issues for a user name and its password.

    ``Source(url, processors=[SecureConversation("me", "…", tokens="tokens")])``. WCF demands this of clients that
    combine a reliable session with a user name: ``WSHttpBinding`` and ``WS2007HttpBinding`` with the security mode
    ``TransportWithMessageCredential``.

    The source requests a token before it creates a Sequence, one for each Sequence, and names it in CreateSequence. It
    signs the Timestamp of each message with the token's key, renews the token before it expires, and cancels it after
    the Sequence has ended. If the token of a Sequence has expired or is lost, the service refuses the Sequence's
    messages. The source then requests another token with the password. Under that, the service no longer knows the
    Sequence, and the source continues as after any other loss of a Sequence. If the service refuses the request for a
    token, or (without ``certificate``) three new tokens in a row, the source stops: its user name or its password is
    wrong. Use https: the password is in plain text, and the signature protects only the Timestamp.

    With ``certificate``, the source signs and encrypts the messages themselves, as
    :class:`holdfast.SymmetricBinding` does, and believes only answers that are protected so. That needs no https. A
    service that has lost a token cannot protect its refusal, so only three in a row mean that the token is lost.
    CreateSequence then does not name the token, because CXF refuses the header ``UsesSequenceSTR``.

    Args:
        name: The user.
        password: Its password.
        tokens: A file that remembers the tokens over restarts; several processes may share it. Or the URL of a
            PostgreSQL database, which several hosts may share. Either contains keys. None: in memory, so that a restart
            loses the Sequences.
        version: Of WS-SecureConversation: "2005/02" as ``WSHttpBinding``, or "1.3" as ``WS2007HttpBinding``. None: the
            first with WS-ReliableMessaging 1.0, the second with later versions.
        certificate: A file in PEM with the certificate of the service, for a policy with ``SymmetricBinding``.
        suite: Algorithms with a certificate, as for :class:`holdfast.SymmetricBinding`.
        cipher: How messages are encrypted with a certificate.
        freshness: How old a message may be, and how far the peer's clock may be ahead or behind.
        clock: Returns the seconds since 1970.

    Raises:
        ConfigurationError: The name is empty, the version is unknown, or the file cannot be opened.
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
        tokens: str | Path | None = None,
        version: ConversationVersion | None = None,
        certificate: str | Path | None = None,
        suite: SymmetricSuiteName = "Basic256Sha256",
        cipher: CipherName = "aes256-cbc",
        freshness: Freshness = Freshness(),
        clock: Callable[[], float] = time.time,
    ) -> None:
        require_user("SecureConversation", name, password)
        check_arguments(SecureConversation, locals())
        self.name = name
        self._password = password
        self._plain = PlainTextWarning(PLAIN_PASSWORD)
        self._tokens = SourceTokens(tokens)
        self._form = None if version is None else _FORMS[version]
        self.abilities: tuple[Ability, ...] = (SECURE_CONVERSATION, SEQUENCE_TOKEN, TIMESTAMP)
        self._messages: ClientProtection | None = None
        if certificate is not None:
            # The module needs the package cryptography, which the other form does not.
            from holdfast.security.symmetric.binding_policy import symmetric_abilities
            from holdfast.security.symmetric.client_protection import ClientProtection

            self._messages = ClientProtection(certificate, suite, cipher, "thumbprint", "", freshness, clock)
            self.abilities = symmetric_abilities(suite, cipher, proof=(SECURE_CONVERSATION,))
        self._freshness = freshness
        self._clock = clock
        self.waits = is_remote(tokens)
        self._untried: dict[str, tuple[str, float]] = {}
        """Identifier of a new token, under which the service has not accepted anything yet -> its use, and when it
        expires."""
        self._refused: dict[str, tuple[int, float]] = {}
        """Use -> number of new tokens in a row that the service refused, and when the last one would have expired."""
        self._unproven: dict[str, tuple[int, float]] = {}
        """Identifier of a token -> number of refusals without its key, since the last answer that counts; and when the
        token expires."""

    def __repr__(self) -> str:
        return f"SecureConversation({self.name!r}, …)"

    def _inlines(self, to: str) -> bool:
        return self._messages is not None

    def _check_content(self, content: bytes) -> None:
        if self._messages is not None:
            check_signable(content)

    def _secured_size(self, size: int) -> int:
        if self._messages is None:
            return size
        from holdfast.security.encryption import encrypted_size  # only encryption needs cryptography

        return encrypted_size(size)

    def remember_with(self, other: SecureConversation) -> None:
        """Use the tokens of another, which it replaces, if both have the same user name and password."""
        ours, others = (f"{one.name}\0{one._password}".encode() for one in (self, other))
        if hmac.compare_digest(ours, others):
            self._tokens = other._tokens

    def bind_sequences(self) -> Self:
        """Name the token in CreateSequence also with ``certificate``, with the header ``UsesSequenceSTR`` (WS-RM 6.1).

        Without ``certificate``, the source always does. CXF refuses the header.

        Returns:
            The processor.
        """
        self.binds_sequences = True
        self.abilities = tuple(dict.fromkeys((*self.abilities, SEQUENCE_TOKEN)))
        return self

    # --- out ------------------------------------------------------------------------------------------------------

    def outbound(self, context: MessageContext) -> None:
        """Sign a request under the token of its Sequence. Without a token, or shortly before it expires, request one
        first (WS-SecureConversation 1.3, section 3). After TerminateSequence, cancel it."""
        if self._messages is not None:
            context.remove_header(SECURITY)
        if context.is_answer or is_token_request(context):
            return
        now, envelope = self._clock(), context.envelope
        use = _use_of(context)
        token = self._tokens.find(use, now)
        if token is None:
            form = self._form or (FORMS[0] if envelope.rm is RM.V1_0 else FORMS[1])
            self._request(context, _Asked("Issue", form, secrets.token_bytes(KEY_BYTES), use, ""), now)
            return
        form = next(one for one in FORMS if one.trust == token.trust)
        if token.until - now < RENEW_AT * token.life:  # WS-SecureConversation 1.3, section 5
            asked = _Asked("Renew", form, secrets.token_bytes(KEY_BYTES), use, token.identifier)
            self._request(context, asked, now, token)
            return
        context.notes[_UNDER] = token
        if self._messages is None:
            add_security(context, self._signed(form, token, now))
        if isinstance(envelope.control, CreateSequence):
            self._name_in(context, form, token, envelope.control)
        elif isinstance(envelope.control, TerminateSequence):
            asked = _Asked("Cancel", form, b"", use, token.identifier)
            headers = self._header(context, form, token, "", now)
            body = write_request(form, "Cancel", token.identifier, b"")
            action = form.action("RST", "Cancel")
            context.request_afterwards(body, action=action, headers=headers, notes={_ASKED: asked, _UNDER: token})

    def _request(self, context: MessageContext, asked: _Asked, now: float, token: SourceToken | None = None) -> None:
        """Send the request for a token first, with the password, and if it renews a token, under that."""
        if self._messages is None:
            self._plain.check(context, self.name)
        proofs = write_username_token(Token(self.name, self._password, is_digest=False))
        context.request_first(
            write_request(asked.form, asked.kind, asked.identifier, asked.entropy),
            action=asked.form.action("RST", asked.kind),
            headers=self._header(context, asked.form, token, proofs, now),
            key=asked.identifier or asked.use,
            notes={_ASKED: asked, _UNDER: token},
        )

    def _header(self, context: MessageContext, form: Form, token: SourceToken | None, proofs: str, now: float) -> bytes:
        """Return the Security header of a request for a token, unless the whole message is protected later."""
        if self._messages is not None:
            return b""
        stamp = write_timestamp(now, self._freshness.life) if token is None else self._signed(form, token, now)
        return security_block(context.envelope.soap, stamp + proofs, must_understand=True)

    def _signed(self, form: Form, token: SourceToken, now: float) -> str:
        written = write_token(form, token.identifier, token.instance)
        return sign_timestamp(now, now + self._freshness.life, written, form.token_type, token.key)

    def _name_in(self, context: MessageContext, form: Form, token: SourceToken, creation: CreateSequence) -> None:
        """Bind the Sequence to the token, with the Sequence that it offers and the address that it polls for
        (WS-RM 6.1)."""
        if creation.offer is not None:
            self._tokens.use(creation.offer.identifier, token.identifier)
        address = creation.acks_to.address
        if address.startswith(MC_ANONYMOUS) and self._tokens.find(address, self._clock()) is None:
            self._tokens.use(address, token.identifier)  # the service gives it to the token that names it first
        if self._messages is None or self.binds_sequences:
            context.notes[_CREATES] = write_reference(form, token.identifier, token.instance)
            demand_named_token(context.envelope)

    def encoded(self, context: MessageContext, data: bytes) -> bytes:
        """Name the token in a CreateSequence, as its last child. Protect the message, if it is not TLS that does."""
        if context.is_answer:
            return data
        reference: str | None = context.notes.get(_CREATES)
        if reference is not None:
            data = name_in_creation(data, reference)
        return data if self._messages is None else self._protected(context, self._messages, data)

    def _protected(self, context: MessageContext, messages: ClientProtection, data: bytes) -> bytes:
        asked: _Asked | None = context.notes.get(_ASKED)
        token: SourceToken | None = context.notes.get(_UNDER)
        proves = asked is not None and asked.kind != "Cancel"
        user = Token(self.name, self._password, is_digest=False) if proves else None
        return messages.protect(context, data, user, None if token is None else _shared(token))

    # --- in -------------------------------------------------------------------------------------------------------

    def received(self, context: MessageContext, data: bytes) -> bytes:
        """Decrypt an answer, if it is not TLS that protects it."""
        return data if self._messages is None else self._messages.received(context, data)

    def inbound(self, context: MessageContext) -> None:
        """Check an answer: the Timestamp, if it has one, or the whole message. Remember a granted token, and the
        Sequence created under one."""
        now, envelope = self._clock(), context.envelope
        if self._messages is not None:
            try:
                self._messages.check(context)
            except ProcessingError:
                self._unproven_refusal(context)
                raise
        self._look_for_refusal(context)
        try:
            check_fresh(read_security(context), self._freshness, now)
            asked = context.notes.get(_ASKED) if context.is_answer else None
            if asked is not None and envelope.fault is None:
                self._take(asked, envelope, now)
        except Invalid as error:
            raise refused(context, error, self.name) from None
        if isinstance(envelope.control, CreateSequenceResponse):
            token = self._tokens.find(_creation(envelope.relates_to), now)
            if token is not None:
                self._tokens.use(envelope.control.identifier, token.identifier)

    def _look_for_refusal(self, context: MessageContext) -> None:
        """Forget a token that the service refuses. The message then needs another one.

        A service that refuses one new token after the other has another reason than their loss.

        Raises:
            MessageFlowError: The message must be sent again, under another token.
        """
        token = _token_of(context)
        if token is None:
            return
        use, until = self._untried.get(token.identifier, ("", 0.0))
        refusals, _ = self._refused.pop(use, (0, 0.0))
        if not _is_refusal(context):
            self._untried.pop(token.identifier, None)
            self._unproven.pop(token.identifier, None)
            return
        self._lose(context, token)
        if use and refusals + 1 >= MOST_NEW_REFUSED:
            return
        if use:
            self._refused[use] = refusals + 1, until
        raise MessageFlowError("The service has lost the token. The message follows under another one.")

    def _unproven_refusal(self, context: MessageContext) -> None:
        """Count an answer that does not count, if it refuses a token. Only a service that has it can prove an answer.

        An attacker who can replace every answer could also drop all of them.
        """
        token = _token_of(context)
        if token is not None and _is_refusal(context):
            count = self._unproven.get(token.identifier, (0, 0.0))[0] + 1
            self._unproven[token.identifier] = count, token.until
            if count >= MOST_UNPROVEN:
                self._lose(context, token)

    def _lose(self, context: MessageContext, token: SourceToken) -> None:
        fault = context.envelope.fault
        assert fault is not None
        log.warning("security.token_refused", to=context.to, user=self.name, code=fault.code, token=token.identifier)
        self._forget(token.identifier)

    def _forget(self, identifier: str) -> None:
        self._tokens.forget(identifier)
        self._untried.pop(identifier, None)
        self._unproven.pop(identifier, None)

    def _take(self, asked: _Asked, envelope: Envelope, now: float) -> None:
        """Take in the answer to a request for a token.

        Raises:
            Invalid: It does not grant the request.
        """
        if asked.kind == "Cancel":
            self._forget(asked.identifier)
            return
        granted = read_granted(envelope.body, asked.form, asked.entropy)
        if asked.kind == "Renew" and granted.identifier != asked.identifier:
            raise Invalid("the answer renews another token")
        self._tokens.keep(asked.form.trust, granted, now)
        self._tokens.use(asked.use, granted.identifier)
        self._untried = {one: told for one, told in self._untried.items() if told[1] > now}
        self._refused = {one: told for one, told in self._refused.items() if told[1] > now}
        self._unproven = {one: told for one, told in self._unproven.items() if told[1] > now}
        if asked.kind == "Issue":
            self._untried[granted.identifier] = asked.use, now + granted.life


def is_token_request(context: MessageContext) -> bool:
    """Return whether a message is a request for a token, or the answer. It has its own Security header."""
    return _ASKED in context.notes


def _token_of(context: MessageContext) -> SourceToken | None:
    """Return the token that protected the request that this message answers; None without one. A token that is
    cancelled is of no use any more."""
    asked: _Asked | None = context.notes.get(_ASKED)
    if not context.is_answer or (asked is not None and asked.kind == "Cancel"):
        return None
    token: SourceToken | None = context.notes.get(_UNDER)
    return token


def _is_refusal(context: MessageContext) -> bool:
    fault = context.envelope.fault
    # MessageExpired concerns the Timestamp, not the token (SOAP Message Security 1.1, section 10).
    return fault is not None and fault.code in REFUSES_CREDENTIALS and fault.code != "MessageExpired"


def _shared(token: SourceToken) -> SharedKey:
    from holdfast.security.symmetric.client_protection import SharedKey

    form = next(one for one in FORMS if one.trust == token.trust)
    reference = f'<wsse:Reference URI="#{TOKEN_ID}" ValueType="{form.token_type}"/>'
    attached = f"<wsse:SecurityTokenReference>{reference}</wsse:SecurityTokenReference>"
    written = write_token(form, token.identifier, token.instance)
    return SharedKey(token.key, written, attached, (token.identifier, f"#{TOKEN_ID}"), form.conversation)


def _creation(message_id: str | None) -> str:
    return f"CreateSequence {message_id}"


def _use_of(context: MessageContext) -> str:
    """Return what a message needs its token for: its Sequence, the creation of one, or the service."""
    envelope = context.envelope
    if isinstance(envelope.control, CreateSequence):
        return _creation(envelope.message_id)
    if isinstance(envelope.control, MakeConnection) and envelope.control.address:
        return envelope.control.address
    concerned = (envelope.sequence, envelope.control, *envelope.ack_requested, *envelope.acknowledgements)
    identifiers = (getattr(one, "identifier", "") for one in concerned)
    return next((one for one in identifiers if one), f"service {context.to}")
