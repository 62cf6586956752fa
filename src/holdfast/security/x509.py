"""X509: messages signed by certificates, at a source and at a destination."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, get_args

from lxml import etree

from holdfast.core.messages import CreateSequence
from holdfast.endpoint.envelopes.processors import MessageContext, Processor
from holdfast.exceptions import ConfigurationError, MessageFlowError, ProcessingError
from holdfast.security.certificates import Certificate, Credential, Owner, Trust, distinguished_name
from holdfast.security.header import Invalid, Unproven
from holdfast.security.names import (
    INVALID_SECURITY,
    INVALID_SECURITY_REASON,
    SECURITY,
    USES_SEQUENCE_STR,
    Kind,
    SuiteName,
)
from holdfast.security.nonces import Nonces
from holdfast.security.signature import check_named_token
from holdfast.security.signed_message import (
    SUITES,
    SignedMessage,
    Signing,
    check_signed,
    read_key_reference,
    read_signed,
    sign,
    unsigned_headers,
)
from holdfast.security.username_token import (
    LIFE,
    SECURITY_POLICY,
    SKEW,
    check_timestamp,
    refused,
    tell_refusal,
)
from holdfast.wire.names import RM_NS, WSA_NS
from holdfast.wire.policy.assertions import (
    BASIC_256,
    BASIC_256_SHA_256,
    SIGNATURES,
    TIMESTAMP,
    TOKEN_IN_MESSAGE,
    TOKEN_NOT_IN_MESSAGE,
)

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_SUITE: Final = "holdfast.security.suite"
"""Note with the algorithms of a request: the answer is signed with the same."""


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
    after the same issuer has renewed its certificate. Messages are not encrypted: use https. Messages with attachments
    are neither sent nor accepted, because the signature would not be over them.

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
        reference: How messages name the certificate: "token", they have it; "subject-key-identifier", "issuer-serial"
            or "thumbprint", the peer has it. All four are accepted.
        nonces: A file that remembers signatures over restarts; several processes may share it. None: in memory.
        life: Seconds for which a message is valid.
        skew: Seconds that a peer's clock may be ahead or behind.
        clock: Returns the seconds since 1970.

    Raises:
        ConfigurationError: A file has no usable certificate or key, or the package cryptography is not installed.
    """

    understands = (SECURITY, USES_SEQUENCE_STR)

    def __init__(
        self,
        certificate: str | Path,
        key: str | Path,
        *,
        trusted: str | Path | Sequence[str | Path],
        subjects: Sequence[str] | None = None,
        suite: SuiteName = "rsa-sha256",
        reference: Kind = "token",
        nonces: str | Path | None = None,
        life: float = LIFE,
        skew: float = SKEW,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if suite not in SUITES or reference not in KINDS:
            wrong, known = (suite, [*SUITES]) if suite not in SUITES else (reference, [*KINDS])
            raise ConfigurationError(f"X509 does not know {wrong!r}", remedy=f"Use one of {', '.join(known)}.")
        if isinstance(subjects, str):
            raise ConfigurationError("subjects= is a single name", remedy=f"Write subjects=[{subjects!r}].")
        credential = Credential(certificate, key)
        if reference == "subject-key-identifier" and not credential.certificate.key_identifier:
            raise ConfigurationError(
                f"{certificate} has no SubjectKeyIdentifier", remedy='Use reference="issuer-serial", or "thumbprint".'
            )
        files = [trusted] if isinstance(trusted, str | Path) else list(trusted)
        self._trust = Trust(files, credential.certificate)
        self._subjects = None if subjects is None else [distinguished_name(one) for one in subjects]
        self._credential = credential
        self._reference: Kind = reference
        self._suite: SuiteName = suite
        self._nonces = Nonces(nonces)
        self._life = life
        self._skew = skew
        self._clock = clock
        in_message = TOKEN_IN_MESSAGE if reference == "token" else TOKEN_NOT_IN_MESSAGE
        self.abilities = (SIGNATURES, TIMESTAMP, in_message, BASIC_256 if suite == "Basic256" else BASIC_256_SHA_256)

    def __repr__(self) -> str:
        return f"X509({self._credential.certificate.subject!r}, …)"

    def remember_with(self, other: X509) -> None:
        """Remember signatures together with another, which it replaces."""
        self._nonces = other._nonces

    def policy(self, *, is_https: bool) -> str:
        """Return the assertions of SecurityPolicy 1.2 for signed messages."""

        def token(role: str, inclusion: str) -> str:
            included = f'sp:IncludeToken="{SECURITY_POLICY}/IncludeToken/{inclusion}"'
            one = f"<sp:X509Token {included}><wsp:Policy><sp:WssX509V3Token10/></wsp:Policy></sp:X509Token>"
            return f"<sp:{role}><wsp:Policy>{one}</wsp:Policy></sp:{role}>"

        to_initiator = "AlwaysToInitiator" if self._reference == "token" else "Never"
        suite = "Basic256" if self._suite == "Basic256" else "Basic256Sha256"
        headers = "".join(f'<sp:Header Namespace="{one}"/>' for one in (*WSA_NS.values(), *RM_NS.values()))
        return (
            f'<sp:AsymmetricBinding xmlns:sp="{SECURITY_POLICY}"><wsp:Policy>'
            f"{token('InitiatorToken', 'AlwaysToRecipient')}{token('RecipientToken', to_initiator)}"
            f"<sp:AlgorithmSuite><wsp:Policy><sp:{suite}/></wsp:Policy></sp:AlgorithmSuite>"
            "<sp:Layout><wsp:Policy><sp:Lax/></wsp:Policy></sp:Layout><sp:IncludeTimestamp/>"
            "<sp:OnlySignEntireHeadersAndBody/></wsp:Policy></sp:AsymmetricBinding>"
            f'<sp:SignedParts xmlns:sp="{SECURITY_POLICY}"><sp:Body/>{headers}</sp:SignedParts>'
        )

    # --- out ------------------------------------------------------------------------------------------------------

    def outbound(self, context: MessageContext) -> None:
        """Refuse what cannot be signed, and remove the Security header of another hop."""
        if context.envelope.attachments:
            raise ProcessingError("Messages with attachments cannot be signed. Put the content into the body.")
        if any(b"Security" in block for block in context.envelope.headers):
            context.remove_header(SECURITY)

    def encoded(self, context: MessageContext, data: bytes) -> bytes:
        """Sign a message."""
        suite = context.notes.get(_SUITE, SUITES[self._suite]) if context.is_answer else SUITES[self._suite]
        signing = Signing(self._credential, self._reference, suite, self._life)
        return sign(data, context.envelope.soap, signing, self._clock(), must_understand=not context.is_answer)

    # --- in -------------------------------------------------------------------------------------------------------

    def inbound(self, context: MessageContext) -> None:
        """Check a message, and remove its Security header.

        Its user and the issuer become its party: no other peer speaks for the Sequence that it creates (WS-RM 6.1). The
        fault of a refusal is one of SOAP Message Security 1.1, section 12, and always the same.
        """
        now, owner = self._clock(), None
        try:
            message = read_signed(context.data, context.envelope.soap)
            owner = self._check(context, message, now)
        except (Invalid, Unproven) as error:
            raise refused(context, INVALID_SECURITY, INVALID_SECURITY_REASON, _told(context, error)) from None
        if not self._is_new(message, now):
            full = "too many signatures are remembered" if self._nonces.is_full else "the message was received before"
            tell_refusal(context, full, owner.subject)
            raise MessageFlowError("The message was received before. Sign it again.")
        for name in unsigned_headers(message):
            context.remove_header(name)
        context.remove_header(SECURITY)
        if not context.is_answer:
            context.user, context.session = owner.subject, owner.issued_by

    def _check(self, context: MessageContext, message: SignedMessage, now: float) -> Owner:
        """Return the owner of the certificate that signed a message."""
        if context.envelope.attachments:
            raise Invalid("the attachments are not signed")
        assert message.security.timestamp is not None
        check_timestamp(message.security.timestamp, now, self._life, self._skew)
        certificate = self._trust.find(message.key)
        owner = self._trust.check(certificate, now)
        if self._subjects is not None and distinguished_name(owner.subject) not in self._subjects:
            raise Unproven(f"{owner.subject} is not in subjects=")
        if self._subjects is None and not owner.is_known and (context.is_answer or context.role == "source"):
            raise Unproven(f"{owner.subject} answers: name it in subjects=, or trust its own certificate")
        suite = check_signed(message, certificate, self._suite)
        if isinstance(context.envelope.control, CreateSequence):
            check_named_token(message.envelope, partial(self._is_named, certificate, message))
        if not context.is_answer:
            context.notes[_SUITE] = suite
        return owner

    def _is_named(self, certificate: Certificate, message: SignedMessage, reference: etree._Element) -> bool:
        return self._trust.find(read_key_reference(reference, message.security.element)) == certificate

    def _is_new(self, message: SignedMessage, now: float) -> bool:
        """Remember a valid signature. Return False if it is known. Only valid ones count: strangers fill nothing."""
        timestamp = message.security.timestamp
        assert timestamp is not None and timestamp.created is not None
        key = hashlib.sha256(message.value).digest()
        return self._nonces.is_new(key, timestamp.created + self._life + self._skew, now)


def _told(context: MessageContext, error: Exception) -> str:
    """Return why a message is refused, with what an unsigned fault says: it may tell what is wrong with ours."""
    fault = context.envelope.fault
    return str(error) if fault is None else f"{error}. It is a fault: {fault.reason[:200]}"
