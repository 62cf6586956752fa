"""Sources that sign and encrypt with symmetric keys, and prove a user name or a certificate."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

from holdfast.core.messages import CreateSequence
from holdfast.endpoint.envelopes.processors import MessageContext, Processor
from holdfast.security.certificates import Credential
from holdfast.security.encryption import encrypted_size
from holdfast.security.freshness import Freshness
from holdfast.security.header import Token, require_user
from holdfast.security.names import CONVERSATION_1_3, SECURITY, CipherName, Kind, SymmetricSuiteName
from holdfast.security.signature import check_signable, demand_named_token, name_in_creation, token_reference
from holdfast.security.symmetric.binding_policy import symmetric_abilities
from holdfast.security.symmetric.client_protection import ClientProtection
from holdfast.security.token_references import write_key_reference
from holdfast.settings import check_arguments
from holdfast.wire.policy.assertions import ENDORSEMENT, SEQUENCE_TOKEN

_CREATES: Final = "holdfast.security.symmetric.creates"
"""Note with the token that a CreateSequence names."""


class _Client(Processor):
    """Protects requests, each with a new key, and checks their answers."""

    understands = (SECURITY,)
    owns = (SECURITY,)
    roles = ("source",)
    counterpart = "SymmetricBindingValidator"
    _protection: ClientProtection

    def _user(self) -> Token | None:
        """Return the user name for a request, None if it has none."""
        raise NotImplementedError

    def _inlines(self, to: str) -> bool:
        return True

    def _check_content(self, content: bytes) -> None:
        check_signable(content)

    def _secured_size(self, size: int) -> int:
        return encrypted_size(size)

    def outbound(self, context: MessageContext) -> None:
        """Remove the Security header of another hop."""
        context.remove_header(SECURITY)

    def encoded(self, context: MessageContext, data: bytes) -> bytes:
        """Sign and encrypt a request. An answer can only be a fault: requests to a source do not count."""
        return data if context.is_answer else self._protection.protect(context, data, self._user(), None)

    def received(self, context: MessageContext, data: bytes) -> bytes:
        """Decrypt an answer."""
        return self._protection.received(context, data)

    def inbound(self, context: MessageContext) -> None:
        """Refuse an answer that the service did not protect, and remove its Security header."""
        self._protection.check(context)


class SymmetricBinding(_Client):
    """Signs and encrypts each request, with a user name: ``Source(url, processors=[SymmetricBinding(…)])``.

    This is a ``SymmetricBinding`` in the words of WS-SecurityPolicy, with the certificate of the service as its token
    and a signed and encrypted user name (``SignedEncryptedSupportingTokens``). For each attempt, the source makes a new
    key and encrypts it for the certificate. It signs the Body, a Timestamp, the user name and all header blocks, and
    encrypts the Body and the user name. Only the service can read the password, so https is not needed.

    The source believes only what is signed and encrypted with the same key, and confirms the signature of the request
    (``RequireSignatureConfirmation``): that is from the owner of the certificate, and answers this request. Any other
    answer, acknowledgement or fault counts as lost. Attachments are in the body, as for :class:`holdfast.X509`.

    Args:
        name: The user.
        password: Its password.
        certificate: A file in PEM with the certificate of the service.
        suite: Algorithms. "Basic256Sha256": hmac-sha1 over SHA-256 digests, as CXF and Metro sign. "Basic256": SHA-1
            for both.
        cipher: How messages are encrypted. Answers may have "aes256-gcm", too.
        reference: How messages name the certificate: "thumbprint", "issuer-serial" or "subject-key-identifier".
        derived_keys: Sign and encrypt with keys that are derived from the key (``RequireDerivedKeys``).
        freshness: How old a message may be, and how far the peer's clock may be ahead or behind.
        clock: Returns the seconds since 1970.

    Raises:
        ConfigurationError: The name is empty, or the file has no usable certificate.
    """

    def __init__(
        self,
        name: str,
        password: str,
        certificate: str | Path,
        *,
        suite: SymmetricSuiteName = "Basic256Sha256",
        cipher: CipherName = "aes256-cbc",
        reference: Kind = "thumbprint",
        derived_keys: bool = False,
        freshness: Freshness = Freshness(),
        clock: Callable[[], float] = time.time,
    ) -> None:
        require_user("SymmetricBinding", name, password)
        check_arguments(SymmetricBinding, locals())
        self.name = name
        self._password = password
        derives_in = CONVERSATION_1_3 if derived_keys else ""
        self._protection = ClientProtection(certificate, suite, cipher, reference, derives_in, freshness, clock)
        self.abilities = symmetric_abilities(suite, cipher, derived_keys=derived_keys)

    def __repr__(self) -> str:
        return f"SymmetricBinding({self.name!r}, …)"

    def _user(self) -> Token:
        return Token(self.name, self._password, is_digest=False)


class EndorsedSymmetricBinding(_Client):
    """Signs and encrypts each request, and endorses it with the client's certificate.

    ``Source(url, processors=[EndorsedSymmetricBinding("alice.pem", "alice.key", "shop.pem")])``. It is as
    :class:`holdfast.SymmetricBinding`, but instead of a user name, the client's certificate signs the signature of each
    request (``EndorsingSupportingTokens``). Each request contains the certificate, and the signature with the symmetric
    key is over the certificate, too (``SignedEndorsingSupportingTokens``).

    Args:
        own_certificate: A file in PEM with the certificate of the client, for an RSA key of at least 2048 bits.
        own_key: A file in PEM with its private key, without a password.
        certificate: A file in PEM with the certificate of the service.
        suite: Algorithms, as for :class:`holdfast.SymmetricBinding`. The certificate signs with rsa-sha1, as CXF and
            Metro understand both suites.
        cipher: How messages are encrypted. Answers may have "aes256-gcm", too.
        reference: How messages name the certificate of the service.
        derived_keys: Sign and encrypt with keys that are derived from the key (``RequireDerivedKeys``).
        freshness: How old a message may be, and how far the peer's clock may be ahead or behind.
        clock: Returns the seconds since 1970.

    Raises:
        ConfigurationError: A file has no usable certificate or key.
    """

    def __init__(
        self,
        own_certificate: str | Path,
        own_key: str | Path,
        certificate: str | Path,
        *,
        suite: SymmetricSuiteName = "Basic256Sha256",
        cipher: CipherName = "aes256-cbc",
        reference: Kind = "thumbprint",
        derived_keys: bool = False,
        freshness: Freshness = Freshness(),
        clock: Callable[[], float] = time.time,
    ) -> None:
        check_arguments(EndorsedSymmetricBinding, locals())
        derives_in = CONVERSATION_1_3 if derived_keys else ""
        self._protection = ClientProtection(certificate, suite, cipher, reference, derives_in, freshness, clock)
        self._own = own = Credential(own_certificate, own_key)
        self._protection.endorse(own)
        # The name must be valid after this message, so it cannot refer to the token that only this message has.
        self._named = token_reference(write_key_reference(own.certificate, "thumbprint")[0])
        self.abilities = symmetric_abilities(suite, cipher, derived_keys=derived_keys, proof=(ENDORSEMENT,))

    def bind_sequences(self) -> Self:
        """Bind each Sequence explicitly to the certificate, as :meth:`holdfast.X509.bind_sequences` does."""
        self.binds_sequences = True
        self.abilities = (*self.abilities, SEQUENCE_TOKEN)
        return self

    def _trouble(self) -> str:
        return self._own.trouble()

    def outbound(self, context: MessageContext) -> None:
        """Refuse what cannot be protected. Prepare a CreateSequence that names the certificate."""
        super().outbound(context)
        if self.binds_sequences and not context.is_answer and isinstance(context.envelope.control, CreateSequence):
            context.notes[_CREATES] = self._named
            demand_named_token(context.envelope)

    def encoded(self, context: MessageContext, data: bytes) -> bytes:
        """Name the certificate in a CreateSequence. Sign, encrypt and endorse a request."""
        if not context.is_answer and _CREATES in context.notes:
            data = name_in_creation(data, context.notes[_CREATES])
        return super().encoded(context, data)

    def _user(self) -> None:
        return None
