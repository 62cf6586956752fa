"""X509: messages signed by certificates, at a source and at a destination."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from lxml import etree

from holdfast.core.messages import CreateSequence
from holdfast.endpoint.envelopes.processors import MessageContext, Processor
from holdfast.endpoint.logs import log
from holdfast.exceptions import ConfigurationError, ProcessingError
from holdfast.security.certificates import (
    Certificate,
    Credential,
    Owner,
    Trust,
    distinguished_name,
    read_certificates,
)
from holdfast.security.encryption import (
    Decrypted,
    EncryptedMessage,
    Encrypting,
    encrypted_size,
    is_encrypted,
    read_encrypted,
    sign_and_encrypt,
)
from holdfast.security.freshness import Freshness, check_fresh
from holdfast.security.header import Invalid, Unproven, add_security, addresses_of, check_addressed, drop_comments
from holdfast.security.names import (
    CIPHERS,
    ENCRYPTED_HEADER,
    SECURITY,
    USES_SEQUENCE_STR,
    CipherName,
    Kind,
    Reference,
    SuiteName,
)
from holdfast.security.nonces import open_nonces
from holdfast.security.protection.encryption_settings import Encryption, PeerCertificates, check_as_agreed
from holdfast.security.protection.written_policy import abilities_of, written_binding
from holdfast.security.saml.saml_token import WRITTEN_TOKEN, SamlToken, SamlTokenValidator, carried_assertion
from holdfast.security.signature import (
    check_named_token,
    check_signable,
    demand_named_token,
    name_in_creation,
    token_reference,
)
from holdfast.security.signed_message import (
    SUITES,
    UNSIGNED_ATTACHMENTS,
    CertifiedMessage,
    SecuredMessage,
    Signing,
    Suite,
    check_part,
    check_signed,
    check_value,
    read_secured,
    read_signature,
    sign,
    unsigned_headers,
)
from holdfast.security.token_references import read_key_reference, write_key_reference
from holdfast.security.username_token import refused, repeated, supporting
from holdfast.settings import Within, check_arguments
from holdfast.store.address import is_remote
from holdfast.wire.policy.assertions import SAML_TOKEN, SEQUENCE_TOKEN, SIGNED_TOKENS

__all__ = ["X509", "Encryption"]

_SUITE: Final = "holdfast.security.suite"
"""Note with the algorithms of a request: the answer is signed with the same."""
_PEER: Final = "holdfast.security.peer"
"""Note with the certificate that signed a request: the answer is encrypted for it."""
_CIPHER: Final = "holdfast.security.cipher"
"""Note with the cipher of a request: the answer is encrypted with the same."""
_PROOF: Final = "holdfast.security.proof"
"""Note with what a decrypted message proved, or why it proved nothing."""
_SAFEST: Final[CipherName] = "aes256-gcm"
"""The cipher that each endpoint accepts besides its own."""
_NAMED: Final = "holdfast.security.named"
"""Note with the reference that a CreateSequence gets."""
_HELD: Final = "holdfast.security.held"
"""Note with the reference to the assertion that confirms our key."""
_NO_SENSE: Final = "it cannot be decrypted with our key, or was changed"


_NO_ANSWERS: Final = "no answer would be accepted: 'trusted' has only issuers, whose keys sign no messages"
_NO_RECEIVER: Final = "The certificate of the receiver is not known, so the message cannot be encrypted."
_NAME_RECEIVER: Final = (
    "Name it: holdfast.Encryption(certificate=…), or peers={'https://…': …} for each address. "
    "A certificate in trusted is the receiver's only if it is not of an authority (CA:TRUE)."
)


class _Repeated(Exception):
    """The message was received before, from the owner of that certificate."""

    def __init__(self, owner: Owner) -> None:
        super().__init__(owner.subject)
        self.owner = owner


@dataclass(frozen=True, slots=True)
class _Proof:
    """What a received message proved.

    Attributes:
        message: The message, decrypted.
        certificate, owner: Who signed it.
        suite: The algorithms of the signature.
        unsigned: Names of header blocks that are not signed.
        cipher: How it was encrypted; "" if it was not.
    """

    message: CertifiedMessage
    certificate: Certificate
    owner: Owner
    suite: Suite
    unsigned: set[str]
    cipher: str = ""


class X509(Processor):
    """Signs each message with a certificate, and accepts only messages that a trusted certificate has signed.

    It is the same for both sides: ``Source(url, processors=[X509(…)])``, ``Destination(store, processors=[X509(…)])``.
    The signature is over the Body, a Timestamp and all header blocks, so those of WS-Addressing and of
    WS-ReliableMessaging, too. The requests of the protocol, answers, acknowledgements and faults are signed as the
    application's messages are, and every retransmission again.

    A received message needs a signature over the Body, a Timestamp and each header block of SOAP, addressing and
    reliable messaging. Other header blocks that are not signed are removed. A request that is refused is answered with
    a fault that does not tell the cause; the log does. A repeated message is answered with HTTP 503. An answer that is
    refused counts as lost, so that the source sends its request again. Nothing of refused messages is stored, and
    nothing is acknowledged.

    ``message.user`` is the distinguished name of the signer. A Sequence belongs to the signer that created it, also
    after the same issuer has renewed its certificate. Attachments in MTOM are in the body in base64, in both
    directions, because the signature is over that: such a message has 16 MiB at most, encrypted 12 MiB, and leaves
    as an MTOM package of the envelope alone. SOAP with Attachments is refused, as is a message with a namespace
    that is not an absolute URI.

    Messages are encrypted with ``encrypt=Encryption()``. Without it, use https.

    Args:
        certificate: A file in PEM with the endpoint's own certificate, for an RSA key of at least 2048 bits.
        key: A file in PEM with its private key, without a password.
        trusted: The file or files in PEM with the certificates of peers, or of their issuers. They are trusted until
            the endpoint ends; lists of revoked certificates are not read.
        subjects: The distinguished names, as in RFC 4514, of the signers to accept: "CN=shop,O=Example". None: all
            signers that ``trusted`` permits. If ``trusted`` has an issuer rather than the service's own certificate, a
            source must name its service here: else any owner of a certificate could answer instead of it.
        suite: Algorithms of signatures. "rsa-sha256": no SHA-1 anywhere, as WCF understands Basic256Sha256.
            "Basic256Sha256": rsa-sha1 over SHA-256 digests, as CXF and Metro sign. "Basic256": SHA-1 for both. The
            endpoint accepts those of its suite and rsa-sha256, and answers with those of the request.
        addresses: The URLs of this service, as its clients write them. Requests with another signed ``wsa:To``
            are refused, except for ``DestinationHTTP.public_url`` without ``{path}``. None: all are accepted, so that a
            service which receives a signed message can send it to this one, in the name of its signer.
        reference: How messages name the certificate: "token", they have it; "subject-key-identifier", "issuer-serial"
            or "thumbprint", the peer has it. All four are accepted. "assertion", only with :meth:`with_saml`: the
            assertion in a request confirms its key (holder-of-key). A source names it so, and a destination demands it
            in its policy (``SamlToken`` as the ``InitiatorToken``).
        nonces: Remembers signatures over restarts, in a directory that has this name and ``-nonces``; several processes
            may share it. Or the URL of a PostgreSQL database, which several hosts may share. None: in memory.
        freshness: How old a message may be, and how far the peer's clock may be ahead or behind.
        encrypt: How messages are encrypted, and must be. None: they are not.

    Raises:
        ConfigurationError: A file has no usable certificate or key, or the package cryptography is not installed.
    """

    understands: tuple[str, ...] = (SECURITY, USES_SEQUENCE_STR)
    _assertion: SamlToken | None = None
    _assertions: SamlTokenValidator | None = None
    owns = (SECURITY,)

    def __init__(
        self,
        certificate: str | Path,
        key: str | Path,
        *,
        trusted: str | Path | Annotated[Sequence[str | Path], Within(1)],
        subjects: Annotated[Sequence[str], Within(1)] | None = None,
        addresses: Annotated[str | Sequence[str], Within(1)] | None = None,
        suite: SuiteName = "rsa-sha256",
        reference: Reference = "token",
        nonces: str | Path | None = None,
        freshness: Freshness = Freshness(),
        encrypt: Encryption | None = None,
    ) -> None:
        if isinstance(subjects, str):
            raise ConfigurationError("subjects= is a single name", remedy=f"Write subjects=[{subjects!r}].")
        check_arguments(X509, locals())
        credential = Credential(certificate, key)
        if reference == "subject-key-identifier" and not credential.certificate.key_identifier:
            raise ConfigurationError(
                f"{certificate} has no SubjectKeyIdentifier", remedy='Use reference="issuer-serial", or "thumbprint".'
            )
        files = [trusted] if isinstance(trusted, str | Path) else list(trusted)
        self._trust = Trust(files, credential.certificate)
        self._subjects = None if subjects is None else [distinguished_name(one) for one in subjects]
        self._addresses = addresses_of(addresses)
        self._is_warned = False
        self._credential = credential
        self._is_held = reference == "assertion"
        self._reference: Kind = "token" if reference == "assertion" else reference
        self._suite: SuiteName = suite
        self._nonces = open_nonces(nonces)
        self._remembers_alone = nonces is None
        self.waits = is_remote(nonces)
        self._freshness = freshness
        self._encryption = encrypt
        self._peers = PeerCertificates({} if encrypt is None else encrypt.peers)
        self._decrypting = credential if encrypt is None or encrypt.own is None else Credential(*encrypt.own)
        self._encrypting = None if encrypt is None else self._encrypting_for_peer(encrypt)
        self._ciphers = set() if encrypt is None else {CIPHERS[encrypt.cipher], CIPHERS[_SAFEST]}
        self.abilities = abilities_of(suite, reference, encrypt)
        if self._is_held:
            self.roles = ("source",)
        if encrypt is not None:
            self.understands = (*self.understands, ENCRYPTED_HEADER)

    def __repr__(self) -> str:
        return f"X509({self._credential.certificate.subject!r}, …)"

    def with_saml(self, saml: SamlToken | SamlTokenValidator) -> Self:
        """Sign messages that contain a SAML assertion (SAML Token Profile 1.1; ``SignedSupportingTokens``).

        A source sends the assertion with each request, and the signature is over it.

        A destination accepts only requests with an assertion that the signature is over and the validator accepts.
        ``trusted`` and ``subjects`` must permit the signer, too. ``message.user`` is the subject of the assertion, and
        ``authorize`` of the validator reads the name of the signer from ``assertion.signer``. A Sequence belongs to
        subject, issuer and signer. Every refusal has the fault of a wrong signature.

        Args:
            saml: The assertion to send, or what checks received ones.

        Returns:
            The processor, which is then only for a source, or only for a destination.

        Raises:
            ConfigurationError: ``reference`` is "assertion", and the validator accepts assertions that confirm no key;
                or it was called before.
        """
        if self._assertion is not None or self._assertions is not None:
            raise ConfigurationError("with_saml was called before", remedy="Make another X509 for the other role.")
        if self._is_held and isinstance(saml, SamlTokenValidator) and not saml.confirms_keys:
            raise ConfigurationError(
                'reference="assertion" demands assertions that confirm the key of their sender, and the validator '
                "accepts others",
                remedy='Write confirmations=["holder-of-key"], or remove reference.',
            )
        self.roles, self.counterpart = saml.roles, f"X509(…).with_saml({saml.counterpart}(…))"
        self.waits = self.waits or saml.waits
        self._remembers_alone = self._remembers_alone or saml._remembers_alone
        if isinstance(saml, SamlToken):
            self._assertion, self.abilities = saml, (*self.abilities, SAML_TOKEN, SIGNED_TOKENS)
        else:
            self._assertions = saml
        return self

    @property
    def has_receiver(self) -> bool:
        """Whether it can write requests: without encryption, or if the receiver's certificate is known."""
        return self._encryption is None or self._encrypting is not None

    @property
    def accepts_answers(self) -> bool:
        """Whether a service can answer it: its certificate is trusted itself, or a subject is named."""
        return self._subjects is not None or self._trust.has_signer

    def _check_service(self, to: str) -> None:
        if self._is_held and self._assertion is None:
            raise ConfigurationError(
                'reference="assertion" names the key by an assertion, and there is none',
                remedy="Give it: X509(…).with_saml(SamlToken('assertion.xml')).",
            )
        if not self.accepts_answers:
            raise ConfigurationError(
                _NO_ANSWERS,
                remedy='Name the service: X509(…, subjects=["CN=…"]), or trust its own certificate.',
            )
        if not self.has_receiver and to and self._peers.at(to) is None:
            raise ConfigurationError(_NO_RECEIVER, remedy=_NAME_RECEIVER)

    def _inlines(self, to: str) -> bool:
        return True

    def _check_content(self, content: bytes) -> None:
        check_signable(content)

    def _secured_size(self, size: int) -> int:
        return size if self._encryption is None else encrypted_size(size)

    def _trouble(self) -> str:
        return self._credential.trouble()

    def remember_with(self, other: X509) -> None:
        """Remember signatures, and assertions, together with another, which it replaces."""
        self._nonces = other._nonces
        if self._assertions is not None and other._assertions is not None:
            self._assertions.remember_with(other._assertions)

    def policy(self, *, is_https: bool) -> str:
        """Return the assertions of SecurityPolicy 1.2 for signed messages."""
        if self._is_held:
            return written_binding(self._suite, self._reference, self._encryption, WRITTEN_TOKEN)
        binding = written_binding(self._suite, self._reference, self._encryption)
        return binding if self._assertions is None else binding + supporting("SignedSupportingTokens", WRITTEN_TOKEN)

    def bind_sequences(self) -> Self:
        """Bind each Sequence explicitly to a certificate (WS-RM 6.1).

        A source names its certificate in CreateSequence; in RM 1.1, with the header UsesSequenceSTR, the service must
        understand that. A destination demands the same of its clients. Its policy has ``SequenceSTR`` and offers only
        RM 1.1, since that of RM 1.0 has no such assertion. Either way, a Sequence belongs to the owner of the
        certificate that signed its creation.

        Returns:
            The processor.
        """
        self.binds_sequences = True
        self.abilities = (*self.abilities, SEQUENCE_TOKEN)
        return self

    # --- out ------------------------------------------------------------------------------------------------------

    def _encrypting_for_peer(self, encrypt: Encryption) -> Encrypting | None:
        """Return how requests are encrypted; None if the receiver's certificate is not known."""
        peers = self._trust.peers if encrypt.certificate is None else read_certificates(encrypt.certificate)[:1]
        return self._encrypting_for(peers[0], CIPHERS[encrypt.cipher]) if len(peers) == 1 else None

    def _encrypting_for(self, certificate: Certificate, cipher: str) -> Encrypting:
        encrypt = self._encryption
        assert encrypt is not None
        reference: Kind = "subject-key-identifier" if self._reference == "token" else self._reference
        if reference == "subject-key-identifier" and not certificate.key_identifier:
            reference = "issuer-serial"
        parts = (frozenset(encrypt.headers), encrypt.signature, encrypt.before_signing)
        return Encrypting(certificate, cipher, reference, *parts)

    def _encrypting_of(self, context: MessageContext, notes: dict[str, Any]) -> Encrypting | None:
        """Return how a message is encrypted; None if it is not, or if the receiver's certificate is not known."""
        encrypt = self._encryption
        if encrypt is None:
            return None
        if _PEER in notes:
            owner = self._peers.of_owner(notes[_PEER])
            return self._encrypting_for(owner, notes[_CIPHER] or CIPHERS[encrypt.cipher])
        receiver = None if context.is_answer else self._peers.at(context.to)
        return self._encrypting if receiver is None else self._encrypting_for(receiver, CIPHERS[encrypt.cipher])

    def outbound(self, context: MessageContext) -> None:
        """Remove the Security header of another hop. Prepare a CreateSequence that names the certificate."""
        context.remove_header(SECURITY)
        if self._assertion is not None and not context.is_answer:
            add_security(context, self._assertion._to_send(context))
            context.notes[_HELD] = self._assertion._reference_of(self._credential.certificate) if self._is_held else ""
        if self.binds_sequences and not context.is_answer and isinstance(context.envelope.control, CreateSequence):
            # The name must be valid after this message, so it cannot refer to a token that only this message has.
            kind: Kind = "thumbprint" if self._reference == "token" else self._reference
            reference, _ = write_key_reference(self._credential.certificate, kind)
            context.notes[_NAMED] = token_reference(reference)
            demand_named_token(context.envelope)

    def encoded(self, context: MessageContext, data: bytes) -> bytes:
        """Sign a message, and encrypt it."""
        notes = context.notes if context.is_answer else {}
        suite = notes.get(_SUITE, SUITES[self._suite])
        held = "" if context.is_answer else context.notes.get(_HELD, "")
        signing = Signing(self._credential, self._reference, suite, self._freshness.life, held)
        soap, must = context.envelope.soap, not context.is_answer
        if not context.is_answer and _NAMED in context.notes:
            data = name_in_creation(data, context.notes[_NAMED])
        encrypting = self._encrypting_of(context, notes)
        if encrypting is not None:
            return sign_and_encrypt(data, soap, signing, encrypting, time.time(), must_understand=must)
        if self._encryption is not None and context.envelope.fault is None:
            raise ProcessingError(_NO_RECEIVER, remedy=_NAME_RECEIVER)
        return sign(data, soap, signing, time.time(), must_understand=must)

    # --- in -------------------------------------------------------------------------------------------------------

    def received(self, context: MessageContext, data: bytes) -> bytes:
        """Decrypt a message that is signed by a trusted certificate. Any other stays as it is: :meth:`inbound` refuses
        it."""
        # A message in UTF-16 has no such bytes: :meth:`inbound` refuses it as not encrypted.
        if self._encryption is None or b"EncryptedKey" not in data:
            return data
        try:
            secured = read_secured(data, context.envelope.soap)
            if not is_encrypted(secured):
                return data
            proof, data = self._open(context, secured, self._encryption)
        except (Invalid, Unproven, _Repeated) as error:
            context.notes[_PROOF] = error.with_traceback(None)
            return data
        context.notes[_PROOF] = proof
        return data

    def _check_large(self, context: MessageContext) -> None:
        if _PROOF not in context.notes:
            try:
                context.notes[_PROOF] = self._check(context, time.time())
            except (Invalid, Unproven) as error:
                context.notes[_PROOF] = error.with_traceback(None)

    def _open(self, context: MessageContext, secured: SecuredMessage, encrypt: Encryption) -> tuple[_Proof, bytes]:
        """Check an encrypted message, and return what it proves and the message decrypted.

        A signature counts once, also if the content was changed after it was signed. So an attacker cannot try out how
        changes of the content are answered. Nothing is decrypted before the signature and the Timestamp are checked, so
        a stranger cannot do so either. Only an encrypted signature must be decrypted before.
        """
        now, soap, own = time.time(), context.envelope.soap, self._decrypting
        may_hide_token = self._checks_assertion(context) and not encrypt.signature
        place: Literal["signature", "token"] = "token" if may_hide_token else "signature"
        encrypted = read_encrypted(secured, own.certificate, self._ciphers, place)
        check_as_agreed(encrypted, encrypt)
        if not encrypted.hides_signature:
            return self._open_signed(context, secured, encrypted)
        decrypted = encrypted.decrypt(secured, own)
        with _telling(decrypted):
            message = self._read(context, read_secured(decrypted.data, soap))
            signer = self._signer(context, message, now)
            check_value(message, signer[0], self._suite)
            check_part(message, message.timestamp, self._suite)  # by its time the signature is remembered
            if self._nonces.knows(*message.remembered_as):
                raise Invalid("the message was received before")  # 503 would tell that its signature is readable
            with self._remembering(message, now):
                return self._proof(message, signer, encrypted, decrypted), decrypted.data

    def _open_signed(
        self, context: MessageContext, secured: SecuredMessage, encrypted: EncryptedMessage
    ) -> tuple[_Proof, bytes]:
        now, soap, own = time.time(), context.envelope.soap, self._decrypting
        # The assertion that is encrypted cannot name the key: nothing is decrypted before the signature is checked.
        message = read_signature(secured) if encrypted.hides_token else self._read(context, secured)
        signer = self._signer(context, message, now)
        check_value(message, signer[0], self._suite)
        signed = None
        if encrypted.is_signed_first:
            check_part(message, message.timestamp, self._suite)
        else:
            signed = check_signed(message, signer[0], self._suite), unsigned_headers(message)
            if ENCRYPTED_HEADER in signed[1]:
                raise Invalid("an encrypted header is not signed")
        if self._nonces.knows(*message.remembered_as):
            raise _Repeated(signer[1])
        with self._remembering(message, now):
            decrypted = encrypted.decrypt(secured, own)
            with _telling(decrypted):
                found = self._read(context, read_secured(decrypted.data, soap))
                proof = self._proof(found, signer, encrypted, decrypted, signed)
        return proof, decrypted.data

    def _proof(
        self,
        message: CertifiedMessage,
        signer: tuple[Certificate, Owner],
        encrypted: EncryptedMessage,
        decrypted: Decrypted,
        signed: tuple[Suite, set[str]] | None = None,
    ) -> _Proof:
        """Check a decrypted message, and its signature, unless that was over the encrypted parts and is checked."""
        suite, unsigned = signed or (check_signed(message, signer[0], self._suite), unsigned_headers(message))
        if not decrypted.is_right:
            raise Unproven(_NO_SENSE)
        assert self._encryption is not None
        for at, block in enumerate(message.header):
            if block.tag in self._encryption.headers and at not in decrypted.headers:
                raise Invalid(f"the header {etree.QName(block).localname} is not encrypted")
        return _Proof(message, *signer, suite, unsigned, encrypted.cipher)

    @contextmanager
    def _remembering(self, message: CertifiedMessage, now: float) -> Iterator[None]:
        """Remember the signature of a message that turns out to be wrong."""
        try:
            yield
        except (Invalid, Unproven):
            self._is_new(message, now)
            raise

    def inbound(self, context: MessageContext) -> None:
        """Check a message, and remove its Security header.

        Its user and the issuer become its party: no other peer speaks for the Sequence that it creates (WS-RM 6.1). The
        fault of a refusal is one of SOAP Message Security 1.1, section 12, and always the same.
        """
        now = time.time()
        found = context.notes.pop(_PROOF, None)
        try:
            if isinstance(found, _Repeated):
                raise repeated(context, self._nonces, found.owner.subject)
            if isinstance(found, Exception):
                raise found
            proof = found or self._check(context, now)
            check_addressed(context, self._addresses)
            drop_comments(context, proof.message.body)
            assertion = None
            if self._assertions is not None and not context.is_answer:
                assertion = self._assertions._check_signed(proof.message, proof.certificate, context)
            self._warn_of_other_services(context)
            if isinstance(context.envelope.control, CreateSequence):
                names = partial(self._is_named, proof.certificate, proof.message)
                check_named_token(proof.message.envelope, names, is_demanded=self.binds_sequences)
        except (Invalid, Unproven) as error:
            raise refused(context, Invalid(str(error))) from None
        if not self._is_new(proof.message, now):
            raise repeated(context, self._nonces, proof.owner.subject)
        for name in proof.unsigned:
            context.remove_header(name)
        context.remove_header(SECURITY)
        if self._assertions is not None and assertion is not None:
            self._assertions._take(context, assertion, f"\0{proof.owner.subject}\0{proof.owner.issued_by}")
        elif not context.is_answer:
            context.user, context.session = proof.owner.subject, proof.owner.issued_by
        if not context.is_answer:
            context.notes[_SUITE] = proof.suite
            context.notes[_PEER], context.notes[_CIPHER] = proof.certificate, proof.cipher

    def _warn_of_other_services(self, context: MessageContext) -> None:
        """Log once that another service can send the Sequences that it received: 2003/03 has no CreateSequence."""
        rm = context.envelope.rm
        if self._addresses is None and not self._is_warned and rm is not None and not rm.can.creates:
            self._is_warned = not context.is_answer and context.role == "destination"
            if self._is_warned:
                remedy = "Give addresses=, or accept no WS-RM 2003/03."
                log.warning("security.no_addresses", peer=context.peer, rm=rm.value, remedy=remedy)

    def _check(self, context: MessageContext, now: float) -> _Proof:
        secured = read_secured(context.data, context.envelope.soap)
        if context.envelope.attachments:
            raise Invalid(UNSIGNED_ATTACHMENTS)
        if self._encryption is None and is_encrypted(secured):
            raise Invalid("it is encrypted: give encrypt=Encryption()")
        if self._encryption is not None and context.envelope.fault is None:
            raise Invalid("it is not encrypted")
        message = self._read(context, secured)
        certificate, owner = self._signer(context, message, now)
        suite = check_signed(message, certificate, self._suite)
        return _Proof(message, certificate, owner, suite, unsigned_headers(message))

    def _read(self, context: MessageContext, secured: SecuredMessage) -> CertifiedMessage:
        """Find the signature of a message, and the assertion that it must be over."""
        is_checked = self._checks_assertion(context)
        return read_signature(secured, carried_assertion(secured.security) if is_checked else None)

    def _checks_assertion(self, context: MessageContext) -> bool:
        return self._assertions is not None and not context.is_answer

    def _signer(self, context: MessageContext, message: CertifiedMessage, now: float) -> tuple[Certificate, Owner]:
        """Return the certificate that a message names, which is trusted, and its owner."""
        check_fresh(message.security, self._freshness, now)
        certificate = self._trust.find(message.key)
        owner = self._trust.check(certificate, now)
        if self._subjects is not None and distinguished_name(owner.subject) not in self._subjects:
            raise Unproven(f"{owner.subject} is not in subjects=")
        if self._subjects is None and not owner.is_known and (context.is_answer or context.role == "source"):
            raise Unproven(f"{owner.subject} answers: name it in subjects=, or trust its own certificate")
        return certificate, owner

    @staticmethod
    def _is_named(certificate: Certificate, message: CertifiedMessage, reference: etree._Element) -> bool:
        return certificate.is_named_by(read_key_reference(reference, message.security.element))

    def _is_new(self, message: CertifiedMessage, now: float) -> bool:
        """Remember a valid signature. Return False if it is known. Only valid ones count: strangers fill nothing."""
        at, digest = message.remembered_as
        return self._nonces.is_new(at, digest, self._freshness.until(at), now)


@contextmanager
def _telling(decrypted: Decrypted) -> Iterator[None]:
    """Say of a message that made no sense after decryption nothing but that."""
    try:
        yield
    except (Invalid, Unproven):
        if decrypted.is_right:
            raise
        raise Unproven(_NO_SENSE) from None
