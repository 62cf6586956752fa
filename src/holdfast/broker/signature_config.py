"""Settings of protected messages: certificates, symmetric keys, SAML assertions, and the users of forwarders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

from holdfast.config.values import FILE, Kind, Secret, SecretFile, SecretVariable, Unfit, one_of
from holdfast.exceptions import ConfigurationError
from holdfast.security.freshness import Freshness
from holdfast.security.names import (
    CipherName,
    Confirmation,
    ConversationVersion,
    Reference,
    SuiteName,
    SymmetricSuiteName,
)
from holdfast.security.names import Kind as KeyName
from holdfast.security.username_token import UsernameTokenValidator
from holdfast.settings import File

if TYPE_CHECKING:
    from holdfast.security.conversation.secure_conversation import SecureConversation
    from holdfast.security.saml.saml_token import SamlTokenValidator
    from holdfast.security.symmetric.endorsement import EndorsingCertificates
    from holdfast.security.symmetric.symmetric_binding import EndorsedSymmetricBinding, SymmetricBinding
    from holdfast.security.symmetric.symmetric_binding_validator import SymmetricBindingValidator
    from holdfast.security.x509 import X509, Encryption

_SUITE: Kind = one_of(get_args(SuiteName))
_SYMMETRIC_SUITE: Kind = one_of(get_args(SymmetricSuiteName))
_REFERENCE: Kind = one_of((*get_args(KeyName), "assertion"))
_KNOWN_REFERENCE: Kind = one_of([one for one in get_args(KeyName) if one != "token"])
_CIPHER: Kind = one_of(get_args(CipherName))
_VERSION_OF_CONVERSATION: Kind = one_of(get_args(ConversationVersion))
_CONFIRMATION: Kind = one_of(get_args(Confirmation))


def _assertion_file(value: Any, base: Path) -> str:
    """Return the path of a file that contains an assertion now. It may have expired: another program replaces it."""
    file: str = FILE.read(value, base)
    try:
        from holdfast.security.saml.saml_token import end_of_assertion

        end_of_assertion(file)
    except ConfigurationError as error:
        raise Unfit(error.message, error.remedy) from None
    return file


AssertionFile = Annotated[str, Kind("the path of a file with a SAML assertion", _assertion_file)]


@dataclass(frozen=True)
class EncryptionConfig:
    """Messages encrypted for the certificate of the other side, in both directions. An empty table is enough.

    Args:
        certificate: PEM file with the certificate of the other side. Left out: the one in ``trusted``. Answers are
            encrypted for the signer of their request.
        cipher: How the content is encrypted. The policies Basic256 and Basic256Sha256 demand "aes256-cbc".
        headers: Header blocks to encrypt besides the Body: ``"{urn:shop}Customer"``.
        signature: Encrypt the signature, too.
        before_signing: Sign the encrypted parts instead of their content.
        own_certificate: PEM file with the broker's certificate for encryption. Left out: the one that it signs with.
        own_key: PEM file with its private key.
        peers: PEM files with certificates for encryption. An answer to a signer uses the one with the signer's subject.
    """

    certificate: File | None = None
    cipher: Annotated[str, _CIPHER] = "aes256-cbc"
    headers: tuple[str, ...] = ()
    signature: bool = False
    before_signing: bool = False
    own_certificate: File | None = None
    own_key: File | None = None
    peers: tuple[File, ...] = ()

    def encryption(self) -> Encryption:
        """Return the settings for the processor.

        Raises:
            ConfigurationError: A file of ``peers`` has no usable certificate, or one of the own two files is missing.
        """
        from holdfast.security.certificates import read_certificates
        from holdfast.security.x509 import Encryption

        own = None
        if self.own_certificate is not None and self.own_key is not None:
            own = self.own_certificate, self.own_key
        elif self.own_certificate is not None or self.own_key is not None:
            raise ConfigurationError(
                "a certificate for encryption has no key, or the key no certificate",
                remedy="Write both own_certificate and own_key.",
            )
        return Encryption(
            self.certificate,
            cast(CipherName, self.cipher),
            self.headers,
            self.signature,
            self.before_signing,
            own=own,
            peers={read_certificates(file)[0].subject: file for file in self.peers},
        )


@dataclass(frozen=True)
class SignatureConfig:
    """Messages signed by certificates, in both directions: what the broker sends, and what it accepts.

    Args:
        certificate: PEM file with the broker's certificate.
        key: PEM file with its private key, without a password.
        trusted: PEM files with the certificates of the other side, or of their issuers.
        subjects: Distinguished names of the signers to accept, as in RFC 4514: ``"CN=shop,O=Example"``. Left out: every
            signer with a trusted certificate; a destination with a certificate of a trusted issuer must be named.
        addresses: URLs of the broker, as senders write them. Messages with another signed ``wsa:To`` are refused,
            except for ``listen.public_url`` without ``{path}``. Left out: all are accepted, so that another service
            which receives a message can send it to the broker in the name of its signer.
        suite: Algorithms: "rsa-sha256", or those that CXF and Metro understand by "Basic256Sha256" or "Basic256".
        reference: How messages name the certificate. "assertion": by the SAML assertion that confirms its key. A
            forwarder sends it, and the broker demands it in the policy that it publishes.
        encryption: Encrypt each message as well, and accept only encrypted ones.
        bind_sequences: Name the certificate in CreateSequence, and demand the same from senders.
    """

    certificate: File
    key: File
    trusted: tuple[File, ...]
    subjects: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    suite: Annotated[str, _SUITE] = "rsa-sha256"
    reference: Annotated[str, _REFERENCE] = "token"
    encryption: EncryptionConfig | None = None
    bind_sequences: bool = False

    def processor(self, *, nonces: str | Path | None = None, freshness: Freshness = Freshness()) -> X509:
        """Return the processor that signs and checks.

        Raises:
            ConfigurationError: A file has no usable certificate or key, or the extra ``x509`` is not installed.
        """
        from holdfast.security.x509 import X509

        signer = X509(
            self.certificate,
            self.key,
            trusted=self.trusted,
            subjects=self.subjects or None,
            addresses=self.addresses or None,
            suite=cast(SuiteName, self.suite),
            reference=cast(Reference, self.reference),
            nonces=nonces,
            freshness=freshness,
            encrypt=None if self.encryption is None else self.encryption.encryption(),
        )
        return signer.bind_sequences() if self.bind_sequences else signer


@dataclass(frozen=True)
class SymmetricConfig:
    """Messages of senders that are signed and encrypted with a symmetric key.

    They name one of ``users``; or, with ``trusted``, a certificate of their sender endorses them.

    Args:
        certificate: PEM file with the broker's certificate, for which senders encrypt their keys.
        key: PEM file with its private key, without a password.
        suite: Algorithms. "Basic256" accepts SHA-1 digests, too.
        cipher: How messages are encrypted. The broker accepts "aes256-gcm", too.
        conversation: Issue tokens of WS-SecureConversation, and demand in the policy that senders request one.
        confirm: Confirm the signature of the request in each answer. Write false for clients of CXF.
        trusted: PEM files with the certificates of senders, or of their issuers, instead of ``users``.
        subjects: Distinguished names of the senders to accept, as in RFC 4514: ``"CN=shop,O=Example"``. Left out: every
            sender with a trusted certificate.
        addresses: URLs of the broker, as senders write them. Messages with another signed ``wsa:To`` are refused,
            except for ``listen.public_url`` without ``{path}``. Left out: all are accepted, so that another service
            which receives a message can send it to the broker in the name of its signer.
        signed: Demand that the signature with the symmetric key is over the certificate of the sender, too.
        bind_sequences: Demand that CreateSequence names that certificate, or the token of the conversation.
    """

    certificate: File
    key: File
    suite: Annotated[str, _SYMMETRIC_SUITE] = "Basic256Sha256"
    cipher: Annotated[str, _CIPHER] = "aes256-cbc"
    conversation: bool = False
    confirm: bool = True
    trusted: tuple[File, ...] = ()
    subjects: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    signed: bool = True
    bind_sequences: bool = False

    def senders(self, *, nonces: str | Path | None = None, freshness: Freshness = Freshness()) -> EndorsingCertificates:
        """Return the certificates of senders.

        Raises:
            ConfigurationError: A subject is not a distinguished name, or the extra ``x509`` is not installed.
        """
        from holdfast.security.symmetric.endorsement import EndorsingCertificates

        subjects = self.subjects or None
        return EndorsingCertificates(
            self.trusted, subjects=subjects, signed=self.signed, nonces=nonces, freshness=freshness
        )

    def processor(self, users: UsernameTokenValidator | EndorsingCertificates) -> SymmetricBindingValidator:
        """Return the processor that checks messages and protects their answers.

        Args:
            users: Checks the user names, or has the certificates of senders.

        Raises:
            ConfigurationError: A file has no usable certificate or key, or the extra ``x509`` is not installed.
        """
        from holdfast.security.symmetric.symmetric_binding_validator import SymmetricBindingValidator

        found = SymmetricBindingValidator(
            self.certificate,
            self.key,
            users=users,
            addresses=self.addresses or None,
            suite=cast(SymmetricSuiteName, self.suite),
            cipher=cast(CipherName, self.cipher),
            conversation=self.conversation,
            confirm=self.confirm,
        )
        return found.bind_sequences() if self.bind_sequences else found


@dataclass(frozen=True)
class ForwarderSymmetricConfig:
    """Messages to a destination that are signed and encrypted with a symmetric key.

    Args:
        certificate: PEM file with the certificate of the destination.
        suite: Algorithms. "Basic256" has SHA-1 digests.
        cipher: How messages are encrypted. Answers may have "aes256-gcm", too.
        reference: How messages name the certificate. With ``conversation``, they name it by its thumbprint.
        derived_keys: Sign and encrypt with keys that are derived from the key of a message (``RequireDerivedKeys``).
            With ``conversation``, leave it out: the token decides.
        own_certificate: PEM file with the broker's certificate, which endorses messages instead of a user name.
        own_key: PEM file with its private key, without a password.
        bind_sequences: Name that certificate in CreateSequence, or the token of the conversation.
    """

    certificate: File
    suite: Annotated[str, _SYMMETRIC_SUITE] = "Basic256Sha256"
    cipher: Annotated[str, _CIPHER] = "aes256-cbc"
    reference: Annotated[str, _KNOWN_REFERENCE] = "thumbprint"
    derived_keys: bool = False
    own_certificate: File | None = None
    own_key: File | None = None
    bind_sequences: bool = False

    def _options(self) -> Any:
        """Return what both classes of processors take."""
        return {key: getattr(self, key) for key in ("suite", "cipher", "reference", "derived_keys")}

    def endorsing(self, *, freshness: Freshness = Freshness()) -> EndorsedSymmetricBinding:
        """Return the processor that makes a key for each message, and endorses it with the broker's certificate.

        Raises:
            ConfigurationError: A file has no usable certificate or key, or one of the own two is missing.
        """
        from holdfast.security.symmetric.symmetric_binding import EndorsedSymmetricBinding

        if self.own_certificate is None or self.own_key is None:
            raise ConfigurationError(
                "a certificate that endorses messages has no key, or the key no certificate",
                remedy="Write both own_certificate and own_key.",
            )
        found = EndorsedSymmetricBinding(
            self.own_certificate,
            self.own_key,
            self.certificate,
            **self._options(),
            freshness=freshness,
        )
        return found.bind_sequences() if self.bind_sequences else found

    def processor(self, name: str, password: str, *, freshness: Freshness = Freshness()) -> SymmetricBinding:
        """Return the processor that makes a key for each message.

        Raises:
            ConfigurationError: The file has no usable certificate, the extra ``x509`` is not installed, or a Sequence
                would be bound to the user name.
        """
        from holdfast.security.symmetric.symmetric_binding import SymmetricBinding

        if self.bind_sequences:
            raise ConfigurationError(
                "a Sequence cannot be bound to the user name of a message",
                remedy="Remove bind_sequences, or write conversation = true, or own_certificate and own_key.",
            )
        return SymmetricBinding(
            name,
            password,
            self.certificate,
            **self._options(),
            freshness=freshness,
        )

    def conversation(
        self,
        name: str,
        password: str,
        *,
        tokens: str | Path | None,
        version: str | None = None,
        freshness: Freshness = Freshness(),
    ) -> SecureConversation:
        """Return the processor that requests tokens, and protects messages with their keys. Errors as above."""
        from holdfast.security.conversation.secure_conversation import SecureConversation

        found = SecureConversation(
            name,
            password,
            tokens=tokens,
            version=cast(ConversationVersion | None, version),
            certificate=self.certificate,
            suite=cast(SymmetricSuiteName, self.suite),
            cipher=cast(CipherName, self.cipher),
            freshness=freshness,
        )
        return found.bind_sequences() if self.bind_sequences else found


@dataclass(frozen=True)
class AssertionsConfig:
    """Assertions of SAML 1.1 and 2.0 in each message, as their issuers sign them.

    With ``[security.signature]``, each message is signed with a certificate, and the signature is over the assertion.

    Args:
        issuers: PEM file with the certificates that an issuer signs with, for the name that its assertions have.
        audience: Names of the broker, of which each audience restriction of an assertion must have one.
        confirmations: Confirmations to accept. The sender of "holder-of-key" shows the assertion's certificate in TLS,
            or signs with it.
        attesters: PEM file with the certificates that the senders of "sender-vouches" show in TLS, or sign with.
    """

    issuers: Mapping[str, File]
    audience: tuple[str, ...]
    confirmations: tuple[Annotated[str, _CONFIRMATION], ...] = ("bearer", "holder-of-key")
    attesters: File | None = None

    def processor(self, *, nonces: str | Path | None = None, freshness: Freshness = Freshness()) -> SamlTokenValidator:
        """Return the processor that checks them.

        Raises:
            ConfigurationError: A file has no usable certificate, the settings contradict each other, or the extra
                ``x509`` is not installed.
        """
        from holdfast.security.saml.saml_token import SamlTokenValidator

        return SamlTokenValidator(
            self.issuers,
            audience=self.audience,
            confirmations=cast(tuple[Confirmation, ...], self.confirmations),
            attesters=self.attesters,
            nonces=nonces,
            freshness=freshness,
        )


@dataclass(frozen=True)
class MessageCredentialsConfig:
    """The user name and password in each message, as WS-Security's UsernameToken; or its signature.

    Args:
        username: User name.
        password_file: File with the password.
        password_env: Environment variable with the password.
        digest: Send a digest instead of the password.
        timestamp: Send a Timestamp as well. Most services that demand a user name demand one.
        conversation: Request a token of WS-SecureConversation with the user name for each Sequence, and sign with its
            key. WCF demands this if it combines a user name with a reliable session. The tokens are where ``nonces`` of
            ``[security]`` are.
        conversation_version: Version of WS-SecureConversation. If you do not set it, "2005/02" with
            WS-ReliableMessaging 1.0 and "1.3" with later versions, as WCF's bindings combine them.
        signature: Sign each message with a certificate instead, and accept only answers that the destination signed.
        symmetric: Sign and encrypt each message with a symmetric key as well, and accept only answers that the
            destination protected with it.
        assertion: File with the SAML assertion to send instead; or, with ``signature``, in the signed messages. The
            broker reads it again when it has changed.
        timestamp_alone: Send a Timestamp alone instead, for a service that demands one over https and no token.
    """

    username: str | None = None
    password_file: SecretFile | None = None
    password_env: SecretVariable | None = None
    digest: bool = False
    timestamp: bool = True
    conversation: bool = False
    conversation_version: Annotated[str, _VERSION_OF_CONVERSATION] | None = None
    signature: SignatureConfig | None = None
    symmetric: ForwarderSymmetricConfig | None = None
    assertion: AssertionFile | None = None
    timestamp_alone: bool = False

    @property
    def password(self) -> Secret | None:
        return self.password_file or self.password_env
