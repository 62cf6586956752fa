"""SymmetricBindingValidator: at a destination, checks and answers messages with a symmetric key and a user name."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Self

from lxml import etree

from holdfast.core.messages import CreateSequence
from holdfast.endpoint.envelopes.processors import MessageContext, Processor
from holdfast.exceptions import ConfigurationError, ProcessingError
from holdfast.security.certificates import Credential
from holdfast.security.conversation.contexts import SecurityContext
from holdfast.security.conversation.sessions import named_token
from holdfast.security.conversation.trust import FORMS, read_request, write_reference
from holdfast.security.encryption import KEY_BYTES, encrypted_size, read_encrypted_key
from holdfast.security.freshness import check_fresh
from holdfast.security.header import (
    USERNAME_TOKEN,
    ContextToken,
    Invalid,
    Unproven,
    addresses_of,
    check_addressed,
    drop_comments,
)
from holdfast.security.names import (
    CIPHERS,
    SECURITY,
    USES_SEQUENCE_STR,
    CipherName,
    SymmetricSuiteName,
)
from holdfast.security.nonces import RefusedSignatures
from holdfast.security.signature import ID, check_named_token, check_signable
from holdfast.security.signed_message import (
    UNSIGNED_ATTACHMENTS,
    SecuredMessage,
    SignedMessage,
    check_part,
    find_signature,
    read_secured,
)
from holdfast.security.symmetric.binding_policy import written_symmetric
from holdfast.security.symmetric.endorsement import EndorsementCheck, EndorsingCertificates
from holdfast.security.symmetric.message_keys import MessageKeys, sha1_name, to_encrypted_key
from holdfast.security.symmetric.protected_message import (
    SAFEST,
    Opened,
    Protecting,
    check_sealed,
    confirmations_in,
    is_body_encrypted,
    open_sealed,
    protect,
)
from holdfast.security.token_references import read_key_reference
from holdfast.security.username_token import UsernameTokenValidator, refused, repeated, supporting
from holdfast.settings import Within, check_arguments

_ANSWER: Final = "holdfast.security.symmetric.answer"
"""Note with how the answer to a request is protected: with the same key."""
_IN_SESSION: Final = "holdfast.security.symmetric.in_session"
"""Note whether it is the key of a token."""
_PROOF: Final = "holdfast.security.symmetric.proof"
"""Note with what a decrypted request proved, or why it proved nothing."""
_KEYS: Final = sorted(set(KEY_BYTES.values()))


class _Repeated(Exception):
    """The message was received before."""


@dataclass(frozen=True, slots=True)
class _Proof:
    """What a received message proved.

    Attributes:
        session: The security context with its key; None if the message contains the key.
        answer: How its answer is protected.
    """

    opened: Opened
    session: SecurityContext | None
    answer: Protecting


class SymmetricBindingValidator(Processor):
    """Accepts only requests that are signed and encrypted with a symmetric key, and prove who sends them.

    They have a user name and its password, or a certificate of the client signs their signature.

    This is a ``SymmetricBinding`` in the words of WS-SecurityPolicy, as CXF's client obeys it: https is not needed.
    Each client knows the destination's certificate. For each message it makes a key, encrypts it for the certificate,
    and signs and encrypts the message and its user name with it. The destination protects its answer with the same key,
    and confirms the signature of the request.

    The signature is over the Body, a Timestamp, the user name and each header block of SOAP, addressing and reliable
    messaging. Other header blocks that are not signed are removed. The Body and the user name are encrypted. A request
    that is refused is answered with a fault that does not tell the cause; the log does. A repeated message is answered
    with HTTP 503. ``message.user`` is the user. A Sequence belongs to the user that created it.

    Answers leave in HTTP responses only, because a client has no certificate for which messages to its address could be
    encrypted. Attachments are in the body, as for :class:`holdfast.X509`.

    Args:
        certificate: A file in PEM with the destination's certificate, for an RSA key of at least 2048 bits.
        key: A file in PEM with its private key, without a password.
        users: Checks the user names; or :class:`holdfast.EndorsingCertificates`, the certificates of clients. Its
            ``freshness``, ``clock`` and ``nonces`` count for the messages, too.
        addresses: The URLs of this service, as its clients write them. Requests with another signed ``wsa:To``
            are refused, except for ``DestinationHTTP.public_url`` without ``{path}``. None: all are accepted, so that a
            service which receives a signed message can send it to this one, in the name of its signer.
        suite: Algorithms. "Basic256Sha256": SHA-256 digests. "Basic256": SHA-1 digests, too. The signature is an HMAC
            with SHA-1 or SHA-256. Answers have the algorithms of the request.
        cipher: The cipher to accept besides "aes256-gcm"; that of answers is the one of the request.
        conversation: Issue tokens of WS-SecureConversation to clients that ask for them, and state in the policy that
            clients must. Their keys then protect all other messages, and a Sequence belongs to its token. With user
            names only.
        confirm: Confirm the signature of the request in each answer, and state that in the policy
            (``RequireSignatureConfirmation``). A :class:`holdfast.SymmetricBinding` demands it. False for clients of
            CXF: they refuse the answers to messages that they sent again, because they do not remember the signatures.

    Raises:
        ConfigurationError: A file has no usable certificate or key, or the package cryptography is not installed.
    """

    understands = (SECURITY, USES_SEQUENCE_STR)
    owns = (SECURITY,)
    roles = ("destination",)
    counterpart = "SymmetricBinding"

    def __init__(
        self,
        certificate: str | Path,
        key: str | Path,
        *,
        users: UsernameTokenValidator | EndorsingCertificates,
        addresses: Annotated[str | Sequence[str], Within(1)] | None = None,
        suite: SymmetricSuiteName = "Basic256Sha256",
        cipher: CipherName = "aes256-cbc",
        conversation: bool = False,
        confirm: bool = True,
    ) -> None:
        if not isinstance(users, UsernameTokenValidator | EndorsingCertificates):
            raise ConfigurationError(
                f"SymmetricBindingValidator.users cannot be of the type {type(users).__name__}",
                remedy="It may be a UsernameTokenValidator or EndorsingCertificates: "
                "users=UsernameTokenValidator({'alice': '…'}).",
            )
        check_arguments(SymmetricBindingValidator, locals())
        self._credential = Credential(certificate, key)
        self._users: UsernameTokenValidator | None = None
        self._endorsements: EndorsementCheck | None = None
        if isinstance(users, UsernameTokenValidator):
            self._users = users
        else:
            self._endorsements = EndorsementCheck(users, self._credential.certificate, suite)
        if self._users is None and conversation:
            raise ConfigurationError(
                "conversation=True needs user names: tokens are issued for passwords",
                remedy="Give users=UsernameTokenValidator(…), or remove conversation.",
            )
        self._addresses = addresses_of(addresses)
        self._clients = users
        self._suite: SymmetricSuiteName = suite
        self._cipher: CipherName = cipher
        self._ciphers = {CIPHERS[cipher], SAFEST}
        self._refused = RefusedSignatures()
        self._conversation = conversation
        self._confirm = confirm
        self.waits = users.waits
        self._remembers_alone = users._remembers_alone

    def __repr__(self) -> str:
        return f"SymmetricBindingValidator({self._credential.certificate.subject!r}, …)"

    def _inlines(self, to: str) -> bool:
        return True

    def _check_content(self, content: bytes) -> None:
        check_signable(content)

    def _secured_size(self, size: int) -> int:
        return encrypted_size(size)

    def policy(self, *, is_https: bool) -> str:
        """Return the assertions of SecurityPolicy 1.2 for messages with a symmetric key, and a user name."""
        options = {"conversation": self._conversation, "confirms": self._confirm}
        if isinstance(self._clients, EndorsingCertificates):
            proof = self._clients.written()
        else:
            proof = supporting("SignedEncryptedSupportingTokens", self._clients.user_token())
        return written_symmetric(self._suite, self._cipher, proof, **options)

    def bind_sequences(self) -> Self:
        """Demand that CreateSequence names the token that the Sequence then belongs to (WS-RM 6.1).

        This is the certificate that endorses it, or the token of its conversation. The policy has ``SequenceSTR``, and
        offers only RM 1.1. CXF's clients do not meet it.

        Returns:
            The processor.

        Raises:
            ConfigurationError: Clients have only user names, which no later message could refer to.
        """
        if self._users is not None and not self._conversation:
            raise ConfigurationError(
                "a Sequence cannot be bound to the user name of a message",
                remedy="Give conversation=True, or users=EndorsingCertificates(…).",
            )
        self.binds_sequences = True
        return self

    # --- in -------------------------------------------------------------------------------------------------------

    def received(self, context: MessageContext, data: bytes) -> bytes:
        """Decrypt a request with a right signature. Any other stays as it is: :meth:`inbound` refuses it."""
        try:
            proof = self._open(context, data)
        except (Invalid, Unproven, _Repeated) as error:
            context.notes[_PROOF] = error.with_traceback(None)
            return data
        context.notes[_PROOF] = proof
        return proof.opened.data

    def _open(self, context: MessageContext, data: bytes) -> _Proof:
        """Check a request, and return what it proves.

        A signature counts once, also if the content was changed after it was signed. So an attacker cannot try out how
        changes of the content are answered.
        """
        now, soap, clients = self._clients.clock(), context.envelope.soap, self._clients
        secured = read_secured(data, soap)
        check_fresh(secured.security, clients.freshness, now)
        keys, session, root, named = self._root(secured)
        try:
            sealed = check_sealed(secured, keys, self._suite, self._ciphers)
        except Unproven:
            if secured.security.context is not None and self._users is not None:
                # It tells the log why, if the token is the reason.
                self._users.sessions.check_valid(session, now, is_signature_right=False)
            raise
        if secured.security.context is not None and self._users is not None:
            self._users.sessions.check_valid(session, now, is_signature_right=True)
        if confirmations_in(secured):
            raise Invalid("it confirms a signature, as only answers do")
        if not is_body_encrypted(sealed):
            raise Invalid("the Body is not encrypted")
        at, digest = sealed.message.remembered_as
        if digest in self._refused or clients.nonces.knows(at, digest):
            raise _Repeated
        derives_in = keys.derives_in
        with self._remembering(digest):
            opened = open_sealed(sealed, data, soap, self._suite)
            if confirmations_in(opened.message):
                raise Invalid("it confirms a signature, as only answers do")
            _check_user_name(secured, opened, self._suite)
        answer = Protecting(
            root,
            named,
            opened.suite,
            opened.cipher,
            clients.freshness.life,
            derives_in=derives_in,
            confirms=_values(opened) if self._confirm else (),
        )
        return _Proof(opened, session, answer)

    def _root(self, secured: SecuredMessage) -> tuple[MessageKeys, SecurityContext | None, bytes, str]:
        """Return the keys of a message, its security context, its root key, and a reference to that for the answer.

        A key that is not known is random: the signature is then wrong, and the sender does not learn why.
        """
        security, token = secured.security.element, secured.security.context
        if token is not None:
            session = None if self._users is None else self._users.sessions.find(token)
            key = secrets.token_bytes(32) if session is None else session.key
            names = {token.identifier: key, f"#{token.element.get(ID, '')}": key}
            return MessageKeys(names), session, key, _to_token(token)
        found = read_encrypted_key(security, self._credential.certificate)
        key = self._credential.unwrap(found.wrapped, *_KEYS, digest=found.digest, mask=found.mask)
        names = {sha1_name(hashlib.sha1(found.wrapped).digest()): key}
        if found.name:
            names[f"#{found.name}"] = key
        return MessageKeys(names), None, key, to_encrypted_key(found.wrapped)

    @contextmanager
    def _remembering(self, digest: bytes) -> Iterator[None]:
        """Remember the signature of a message that turns out to be wrong."""
        try:
            yield
        except (Invalid, Unproven):
            self._refused.add(digest)
            raise

    def _is_new(self, at: float, digest: bytes, now: float) -> bool:
        return self._clients.nonces.is_new(at, digest, self._clients.freshness.until(at), now)

    def inbound(self, context: MessageContext) -> None:
        """Check who sent a request, and remove its Security header. Answer a request for a token."""
        proof = context.notes.pop(_PROOF, None)
        try:
            if isinstance(proof, _Repeated):
                raise repeated(context, self._clients.nonces, "")
            if context.envelope.attachments:  # then :meth:`received` is not called
                raise Invalid(UNSIGNED_ATTACHMENTS)
            if not isinstance(proof, _Proof):
                raise proof or Invalid("no Security header")
            self._accept(context, proof, self._clients.clock())
        except (Invalid, Unproven) as error:
            # Only one who knows the key of the message learns that it is the password which is wrong.
            raise refused(context, error if _ANSWER in context.notes else Invalid(str(error))) from None

    def _accept(self, context: MessageContext, proof: _Proof, now: float) -> None:
        """Take the user of a message.

        Raises:
            Invalid: The message has no user name, or names a token that did not protect it.
            Unproven: The password is wrong.
            MessageFlowError: It was received before.
        """
        message, session = proof.opened.message, proof.session
        check_addressed(context, self._addresses)
        drop_comments(context, message.body)
        context.notes[_ANSWER], context.notes[_IN_SESSION] = proof.answer, session is not None
        for name in (*proof.opened.unsigned, SECURITY):
            context.remove_header(name)
        if self._endorsements is not None:
            self._accept_owner(context, proof.opened, self._endorsements, now)
        elif proof.opened.endorsing is not None:
            raise Invalid("a certificate endorses it: see EndorsingCertificates")
        else:
            self._accept_user(context, message, session, now)

    def _accept_user(
        self, context: MessageContext, message: SignedMessage, session: SecurityContext | None, now: float
    ) -> None:
        assert self._users is not None
        asked = read_request(context)
        user = ""
        if session is None or message.security.token is not None:
            user = self._users.authenticate_token(context, message.security, now).name
        if session is not None and user not in ("", session.user):
            raise Unproven("the token and the password are of two users")
        proven = "" if session is None else session.identifier
        if asked is not None and not self._conversation:
            raise Invalid("it asks for a token: set conversation=True")
        if isinstance(context.envelope.control, CreateSequence):
            check_named_token(
                message.envelope, lambda one: named_token(one) == proven, is_demanded=self.binds_sequences
            )
        self._count_once(context, message, now)
        if asked is not None:
            self._users.sessions.answer(context, asked, user, proven, now)
            return
        context.user = session.user if session is not None else user
        context.session = proven

    def _accept_owner(
        self, context: MessageContext, opened: Opened, endorsements: EndorsementCheck, now: float
    ) -> None:
        """Take the owner of a certificate for the user of a message: no other speaks for its Sequence (WS-RM 6.1)."""
        message = opened.message
        if message.security.token is not None or message.security.context is not None:
            raise Invalid("it has a user name or a token besides the certificate")
        endorsed = endorsements.check(message, opened.endorsing, now)
        if isinstance(context.envelope.control, CreateSequence):
            security, certificate = message.security.element, endorsed.certificate
            check_named_token(
                message.envelope,
                lambda reference: certificate.is_named_by(read_key_reference(reference, security)),
                is_demanded=self.binds_sequences,
            )
        self._count_once(context, message, now)
        context.user, context.session = endorsed.owner.subject, endorsed.owner.issued_by

    def _count_once(self, context: MessageContext, message: SignedMessage, now: float) -> None:
        """Accept each message once. One that proves nobody is not remembered: strangers fill nothing.

        Raises:
            MessageFlowError: It was received before.
        """
        if not self._is_new(*message.remembered_as, now):
            raise repeated(context, self._clients.nonces, "")

    # --- out ------------------------------------------------------------------------------------------------------

    def outbound(self, context: MessageContext) -> None:
        """Refuse what cannot be protected, and remove the Security header of another hop."""
        if not context.is_answer:
            raise ProcessingError(
                "A message to a client's address cannot be encrypted: the client has no certificate.",
                remedy="Let the client expect answers in HTTP responses, or fetch them with MakeConnection.",
            )
        context.remove_header(SECURITY)

    def encoded(self, context: MessageContext, data: bytes) -> bytes:
        """Protect an answer with the key of its request."""
        answer: Protecting | None = context.notes.get(_ANSWER)
        if answer is None:
            # A request that was refused has no key: its fault leaves as it is.
            if context.envelope.fault is None:
                raise ProcessingError("An answer cannot be protected: its request had no key.")
            return data
        now = self._clients.clock()
        written, signatures = protect(data, context.envelope.soap, answer, now, must_understand=False)
        # Without confirmations, nothing else tells an answer under a token from a request, if it is sent back. Any
        # other request has a user name or an endorsement, too.
        if not self._confirm and context.notes[_IN_SESSION]:
            found = read_secured(written, context.envelope.soap).security.timestamp
            assert found is not None and found.created is not None
            self._is_new(found.created, hashlib.sha256(signatures[0]).digest(), now)
        return written


def _to_token(token: ContextToken) -> str:
    """Return a SecurityTokenReference to a security context."""
    namespace = etree.QName(token.element).namespace
    form = next(one for one in FORMS if one.conversation == namespace)
    return write_reference(form, token.identifier, token.instance)


def _values(opened: Opened) -> tuple[bytes, ...]:
    if opened.endorsing is None:
        return (opened.message.value,)
    return opened.message.value, find_signature(opened.message, opened.endorsing)[0].value


def _check_user_name(sealed: SecuredMessage, opened: Opened, suite: SymmetricSuiteName) -> None:
    """Check that the user name of a message, if it has one, is signed and was encrypted."""
    if sealed.security.token is not None:
        raise Invalid("the user name is not encrypted")
    token = opened.message.security.element.find(USERNAME_TOKEN)
    if token is not None:
        check_part(opened.message, token, suite)
