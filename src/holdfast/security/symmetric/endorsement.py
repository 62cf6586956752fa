"""Endorsing signatures: a client's certificate signs the signature of its message (SecurityPolicy 1.2, section 8.3)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from lxml import etree

from holdfast.exceptions import ConfigurationError
from holdfast.security.certificates import (
    Certificate,
    Credential,
    Owner,
    Trust,
    distinguished_name,
)
from holdfast.security.freshness import Freshness
from holdfast.security.header import Invalid, Unproven
from holdfast.security.names import DS, HMAC_SHA1, HMAC_SHA256, WSSE, SuiteName
from holdfast.security.nonces import open_nonces
from holdfast.security.signature import ID
from holdfast.security.signed_message import (
    SUITES,
    SecuredMessage,
    SignedMessage,
    add_signature,
    check_part,
    check_value,
    find_signature,
    signed_info,
)
from holdfast.security.token_references import read_key_reference, write_key_reference
from holdfast.security.username_token import SECURITY_POLICY, supporting
from holdfast.settings import Within, check_arguments
from holdfast.store.address import is_remote

_SIGNATURE: Final = f"{{{DS}}}Signature"
_BINARY_TOKEN: Final = f"{{{WSSE}}}BinarySecurityToken"
_MACS: Final = (HMAC_SHA1, HMAC_SHA256)


class EndorsingCertificates:
    """Clients that endorse their messages with certificates, for :class:`holdfast.SymmetricBindingValidator`.

    ``SymmetricBindingValidator("shop.pem", "shop.key", users=EndorsingCertificates("alice.pem"))``. Each message has a
    signature with its symmetric key, and over that signature one by the certificate of the client
    (``EndorsingSupportingTokens``). ``message.user`` is the distinguished name of its owner. A Sequence belongs to the
    owner that created it, also after the same issuer has renewed the certificate.

    Args:
        trusted: The file or files in PEM with the certificates of clients, or of their issuers.
        subjects: The distinguished names, as in RFC 4514, of the clients to accept. None: every client that
            ``trusted`` permits.
        signed: Demand that the signature with the symmetric key is over the certificate, too
            (``SignedEndorsingSupportingTokens``). False (``EndorsingSupportingTokens``): a client can endorse the
            message of another as its own, though it can read neither the message nor the answer.
        nonces: Remembers signatures over restarts, as for :class:`holdfast.X509`. None: in memory.
        freshness: How old a message may be, and how far the peer's clock may be ahead or behind.
        clock: Returns the seconds since 1970.

    Raises:
        ConfigurationError: A subject is not a distinguished name.
    """

    def __init__(
        self,
        trusted: str | Path | Annotated[Sequence[str | Path], Within(1)],
        *,
        subjects: Annotated[Sequence[str], Within(1)] | None = None,
        signed: bool = True,
        nonces: str | Path | None = None,
        freshness: Freshness = Freshness(),
        clock: Callable[[], float] = time.time,
    ) -> None:
        if isinstance(subjects, str):
            raise ConfigurationError("subjects= is a single name", remedy=f"Write subjects=[{subjects!r}].")
        check_arguments(EndorsingCertificates, locals())
        self.trusted = [trusted] if isinstance(trusted, str | Path) else list(trusted)
        self.subjects = None if subjects is None else [distinguished_name(one) for one in subjects]
        self.signed = signed
        self.nonces = open_nonces(nonces)
        self._remembers_alone = nonces is None
        self.waits = is_remote(nonces)
        self.freshness = freshness
        self.clock = clock

    def remember_with(self, other: EndorsingCertificates) -> None:
        """Remember signatures together with another, which it replaces."""
        self.nonces = other.nonces

    def written(self) -> str:
        """Return the assertion of the certificates (SecurityPolicy 1.2, section 8.3)."""
        token = (
            f'<sp:X509Token sp:IncludeToken="{SECURITY_POLICY}/IncludeToken/AlwaysToRecipient"><wsp:Policy>'
            "<sp:WssX509V3Token11/></wsp:Policy></sp:X509Token>"
        )
        return supporting("SignedEndorsingSupportingTokens" if self.signed else "EndorsingSupportingTokens", token)


@dataclass(frozen=True, slots=True)
class Endorsed:
    """A certificate that has endorsed a message, and its owner."""

    certificate: Certificate
    owner: Owner


# --- reading ------------------------------------------------------------------------------------------------------


def find_primary(message: SecuredMessage) -> tuple[SignedMessage, etree._Element, etree._Element | None]:
    """Find the signature with the symmetric key, the reference to that key, and the endorsing signature, if any.

    Raises:
        Invalid: There are more signatures, none has a symmetric key, or one has another shape.
    """
    found = message.security.element.findall(_SIGNATURE)
    if len(found) < 2:
        return *find_signature(message), None
    primary = [one for one in found if _method(one) in _MACS]
    if len(found) > 2 or len(primary) != 1:
        raise Invalid(f"{len(found)} signatures, {len(primary)} of them with a symmetric key")
    (other,) = [one for one in found if one is not primary[0]]
    return *find_signature(message, primary[0]), other


def _method(signature: etree._Element) -> str:
    method = signature.find(f"{{{DS}}}SignedInfo/{{{DS}}}SignatureMethod")
    return "" if method is None else method.get("Algorithm", "")


class EndorsementCheck:
    """Checks the endorsing signatures of messages.

    Raises:
        ConfigurationError: A file has no usable certificate.
    """

    def __init__(self, clients: EndorsingCertificates, own: Certificate, suite: SuiteName) -> None:
        self._clients = clients
        self._trust = Trust(clients.trusted, own)
        self._suite: SuiteName = suite

    def check(self, message: SignedMessage, endorsing: etree._Element | None, now: float) -> Endorsed:
        """Return who endorsed a message (SecurityPolicy 1.2, 8.3). Its signature with the symmetric key is checked.

        The endorsed signature is the one that was checked, by its position. So no other element can take its place.

        Raises:
            Invalid: No certificate has, or the signature is over something else, or has another shape.
            Unproven: The certificate is not trusted, or its key did not make the signature.
        """
        if endorsing is None:
            raise Invalid("no certificate of a client endorses its signature")
        made, named = find_signature(message, endorsing)
        key = read_key_reference(named, message.security.element)
        certificate = self._trust.find(key)
        owner = self._trust.check(certificate, now)
        subjects = self._clients.subjects
        if subjects is not None and distinguished_name(owner.subject) not in subjects:
            raise Unproven(f"{owner.subject} is not in subjects=")
        check_value(made, certificate, self._suite)
        # Two algorithms and one Reference.
        if len(signed_info(made)) != 3:
            raise Invalid("the endorsing signature is over several parts")
        check_part(made, message.signature, self._suite)
        if self._clients.signed:
            self._check_token(message, named)
        return Endorsed(certificate, owner)

    def _check_token(self, message: SignedMessage, named: etree._Element) -> None:
        (reference,) = named
        tokens = message.security.element.findall(_BINARY_TOKEN)
        token = next((one for one in tokens if f"#{one.get(ID, '')}" == reference.get("URI")), None)
        if token is None:
            raise Invalid("the message does not contain the certificate")
        check_part(message, token, self._suite)


# --- writing ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Endorsing:
    """How a client endorses its messages."""

    credential: Credential
    suite: SuiteName

    def token(self, mark: str) -> str:
        """Return the certificate as a token for a message."""
        return write_key_reference(self.credential.certificate, "token", mark)[1]

    def add(self, security: etree._Element, mark: str) -> bytes:
        """Endorse the last part of a Security header, which is its signature (SecurityPolicy 1.2, 8.3).

        Returns:
            The value of the endorsing signature.
        """
        primary = security[-1]
        primary.set("Id", f"{mark}-g")
        reference, _ = write_key_reference(self.credential.certificate, "token", mark)
        named = f"<wsse:SecurityTokenReference>{reference}</wsse:SecurityTokenReference>"
        suite = SUITES[self.suite]
        return add_signature(
            security, [primary], suite, named, lambda data: self.credential.sign(data, suite.signature)
        )
