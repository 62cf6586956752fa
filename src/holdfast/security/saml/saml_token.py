"""SAML tokens: the assertion with which a source sends, and what a destination checks."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

from lxml import etree

from holdfast.core.origin import ISSUER
from holdfast.endpoint.envelopes.processors import MessageContext, Processor
from holdfast.endpoint.failures import brief
from holdfast.endpoint.logs import log
from holdfast.exceptions import ConfigurationError, EnvelopeError, MessageFlowError
from holdfast.security.certificates import Certificate, read_certificates
from holdfast.security.freshness import Freshness, check_fresh
from holdfast.security.header import (
    PLAIN_ASSERTION,
    Invalid,
    PlainTextWarning,
    Security,
    Unproven,
    add_security,
    read_security_of,
    strictly,
    write_timestamp,
)
from holdfast.security.names import (
    ASSERTIONS,
    ENCRYPTED_ASSERTION,
    SECURITY,
    XENC,
    Confirmation,
    SuiteName,
)
from holdfast.security.nonces import open_nonces
from holdfast.security.saml.assertion import Assertion, SubjectConfirmation, read_assertion
from holdfast.security.saml.issuer_signature import check_issuer_signature
from holdfast.security.signature import check_cost
from holdfast.security.signed_message import SignedMessage
from holdfast.security.token_references import CarriedAssertion, write_assertion_reference
from holdfast.security.username_token import SECURITY_POLICY, refused, supporting, tell_refusal, transport_binding
from holdfast.settings import Seconds, Within, brief_value, check_arguments
from holdfast.store.address import is_remote
from holdfast.wire import as_utf8, parse_element
from holdfast.wire.names import SOAP_NS
from holdfast.wire.policy.assertions import SAML_TOKEN, TIMESTAMP

MAX_FILE: Final = 256 * 1024
"""Maximum bytes of an assertion that a source sends."""
SETTLED: Final = 2.0
"""Seconds after which a file system gives another change of a file another time."""
LONGEST: Final = 86_400.0
"""Maximum seconds from the issue of an assertion to its end."""
_ENCRYPTED: Final = (
    "the assertion is encrypted (EncryptedAssertion), which is not supported, except by a destination whose messages "
    "are signed and encrypted: use https instead"
)
_TIMESTAMPED: Final = "holdfast.security.saml.timestamped"


class _NotFetched(Exception):
    """The function of a program returned no assertion."""


class SamlToken(Processor):
    """Sends an assertion of SAML with every request: ``Source(url, processors=[SamlToken("assertion.xml")])``.

    The requests of the protocol have it too, with a new Timestamp each. Nothing signs the message, so use https: it
    suits a bearer's assertion, and that of a key if the source shows its certificate in TLS. The assertion itself is
    sent as its issuer signed it. :meth:`holdfast.X509.with_saml` signs the message, too.

    Args:
        assertion: A file with the assertion, of version 1.1 or 2.0, which is read again whenever it has changed; or a
            function that returns it, as bytes of XML. The function runs in the event loop, so it must not wait. While
            there is no valid assertion, messages wait in the outbox.
        freshness: How old a message may be, and how far the peer's clock may be ahead or behind.
        clock: Returns the seconds since 1970.
    """

    understands = (SECURITY,)
    owns = (SECURITY,)
    roles = ("source",)
    counterpart = "SamlTokenValidator"
    abilities = (SAML_TOKEN, TIMESTAMP)

    def __init__(
        self,
        assertion: str | Path | Callable[[], bytes],
        *,
        freshness: Freshness = Freshness(),
        clock: Callable[[], float] = time.time,
    ) -> None:
        if isinstance(assertion, str | bytes) and assertion.strip()[:1] in ("<", b"<"):
            raise ConfigurationError(
                "SamlToken.assertion is an assertion itself, not the name of its file",
                remedy="Give the path of its file, which may be replaced when it expires; or a function that returns "
                "it as bytes: SamlToken(lambda: assertion).",
            )
        check_arguments(SamlToken, locals())
        if isinstance(assertion, str | Path) and (not str(assertion) or os.path.isdir(assertion)):
            raise ConfigurationError(
                f"SamlToken.assertion is {brief_value(str(assertion))}, which is not a file",
                remedy="Give the path of the file with the assertion.",
            )
        self._given = assertion
        self._freshness = freshness
        self._clock = clock
        self._read: bytes | None = None
        self._seen: tuple[int, ...] | None = None
        """How the file was when it was read."""
        self._written = ""
        self._sent: Assertion | None = None
        """The same, read."""
        self._plain = PlainTextWarning(PLAIN_ASSERTION)

    def outbound(self, context: MessageContext) -> None:
        """Add the header to a request."""
        if not context.is_answer:
            written = self._to_send(context)
            add_security(context, write_timestamp(self._clock(), self._freshness.life) + written)

    def _to_send(self, context: MessageContext) -> str:
        """Return the assertion for a request as XML.

        Raises:
            MessageFlowError: There is none now.
        """
        written, until = self._assertion(), None if self._sent is None else self._sent.until
        if until is not None and until <= self._clock():
            raise MessageFlowError("The SAML assertion has expired, and there is no new one.", retry_after=5)
        self._plain.check(context)
        return written

    def _reference_of(self, certificate: Certificate) -> str:
        """Return how a signature of a certificate names its key by the assertion.

        Raises:
            MessageFlowError: The assertion confirms another key, or none.
        """
        assert self._sent is not None
        holders = [one.holder for one in self._sent.confirmations if one.holder is not None]
        if not any(map(certificate.is_named_by, holders)):
            why = f"it does not confirm the key of {certificate.subject}"
            log.error("security.no_assertion", why=why, remedy="Request one for this key (holder-of-key).")
            raise MessageFlowError("The SAML assertion is for another key.", retry_after=5)
        return write_assertion_reference(self._sent.element)

    def _assertion(self) -> str:
        try:
            # Before the file is read: a change meanwhile is found the next time.
            seen = None if callable(self._given) else _seen(self._given)
            if seen is not None and seen == self._seen:
                return self._written
            data = self._fetched() if callable(self._given) else _file(self._given)
            if data != self._read:
                self._written, self._sent = _sendable(data)
                self._read = data
            self._seen = seen
        except (OSError, EnvelopeError, Invalid, _NotFetched) as error:
            remedy = "Fix the function." if callable(self._given) else "Write the assertion again."
            log.error("security.no_assertion", why=str(error), remedy=f"{remedy} Messages wait in the outbox.")
            raise MessageFlowError("There is no usable SAML assertion.", retry_after=5) from None
        return self._written

    def _fetched(self) -> bytes:
        """Return what the function returns.

        Raises:
            _NotFetched: It returns no bytes, or raises whatever error: its issuer may be away.
        """
        assert callable(self._given)
        try:
            data = self._given()
        except Exception as error:
            raise _NotFetched(f"the function raised {brief(error)}") from None
        if not isinstance(data, bytes):
            raise _NotFetched(f"the function returned {type(data).__name__}, not bytes")
        return data

    def inbound(self, context: MessageContext) -> None:
        """Check the Timestamp of an answer, if it has one."""
        try:
            check_fresh(read_security_of(context.headers, context.envelope.soap), self._freshness, self._clock())
        except Invalid as error:
            raise refused(context, error) from None


_FORMS = "".join(f"<wsp:All><sp:{one}/></wsp:All>" for one in ("WssSamlV20Token11", "WssSamlV11Token11"))
WRITTEN_TOKEN: Final = (
    f'<sp:SamlToken sp:IncludeToken="{SECURITY_POLICY}/IncludeToken/AlwaysToRecipient"><wsp:Policy>'
    f"<wsp:ExactlyOne>{_FORMS}</wsp:ExactlyOne></wsp:Policy></sp:SamlToken>"
)
"""The assertion of SecurityPolicy 1.2 for a token of SAML 2.0 or 1.1 (section 5.4.6)."""


class SamlTokenValidator(Processor):
    """Accepts only requests with an assertion of a trusted issuer: ``Destination(store, processors=[…])``.

    An assertion of SAML 1.1 or 2.0 (SAML Token Profile 1.1, section 3) must be signed by its issuer, valid now, and for
    this service. The message itself is not signed, so clients must use https, unless :meth:`holdfast.X509.with_saml`
    demands signed ones. Who may use the assertion depends on its confirmation:

    - ``bearer``: every sender.
    - ``holder-of-key``: the sender that shows, in TLS, the certificate that the assertion contains; or signs with it.
    - ``sender-vouches``: a sender that shows, in TLS, one of the certificates ``attesters``; or signs with it.

    A refused request is answered with a fault that does not tell the cause; the log does. Nothing of it is stored or
    acknowledged. ``message.user`` is the name of the subject. A Sequence belongs to the subject and the issuer that
    created it: a new assertion for the same subject continues it. In signed messages, it belongs to the signer as well.

    Args:
        issuers: Name of an issuer, as assertions have it, -> a file in PEM with its certificates.
        audience: The names of this service, of which each audience restriction must have one. None: assertions need not
            be for this service, so another service that receives one could send it here.
        confirmations: The confirmations to accept.
        attesters: A file in PEM with the certificates of the senders that may vouch for others.
        authorize: A function of the assertion that returns whether its subject may send. It runs in the event loop, so
            it must not wait.
        nonces: Remembers assertions for one use over restarts, in a directory that has this name and ``-nonces``;
            several processes may share it. None: in memory.
        suite: Algorithms of the issuers' signatures, as for :class:`holdfast.X509`.
        freshness: How old a message may be, and how far a clock may be ahead or behind.
        longest: Maximum seconds from the issue of an assertion to its end. An assertion without an end is refused.
        clock: Returns the seconds since 1970.

    Raises:
        ConfigurationError: A file has no usable certificate, or a setting is unknown.
    """

    understands = (SECURITY,)
    owns = (SECURITY,)
    roles = ("destination",)
    counterpart = "SamlToken"

    def __init__(
        self,
        issuers: Annotated[Mapping[str, str | Path], Within(1)],
        *,
        audience: Annotated[str | Sequence[str], Within(1)] | None,
        confirmations: Annotated[Sequence[Confirmation], Within(1)] = ("bearer", "holder-of-key"),
        attesters: str | Path | None = None,
        authorize: Callable[[Assertion], bool] | None = None,
        nonces: str | Path | None = None,
        suite: SuiteName = "rsa-sha256",
        freshness: Freshness = Freshness(),
        longest: Seconds = LONGEST,
        clock: Callable[[], float] = time.time,
    ) -> None:
        check_arguments(SamlTokenValidator, locals())
        if ("sender-vouches" in confirmations) != (attesters is not None):
            raise ConfigurationError(
                "sender-vouches needs the certificates of those who may vouch, and these need sender-vouches",
                remedy='Write confirmations=["sender-vouches"], attesters="gateway.pem".',
            )
        self._issuers: dict[str, list[Certificate]] = {name: read_certificates(file) for name, file in issuers.items()}
        self._audience = None if audience is None else {audience} if isinstance(audience, str) else set(audience)
        self._confirmations = tuple(confirmations)
        self._attesters = set() if attesters is None else {one.sha256 for one in read_certificates(attesters)}
        self._authorize = None if authorize is None else strictly("authorize", authorize, bool, False)
        self._nonces = open_nonces(nonces)
        self._remembers_alone = nonces is None
        self.waits = is_remote(nonces)
        self._suite: SuiteName = suite
        self._freshness = freshness
        self._longest = longest
        self._clock = clock
        self._plain = PlainTextWarning(PLAIN_ASSERTION)

    @property
    def confirms_keys(self) -> bool:
        """Whether each accepted assertion confirms the key of its sender."""
        return set(self._confirmations) == {"holder-of-key"}

    def remember_with(self, other: SamlTokenValidator) -> None:
        """Remember assertions together with another, which it replaces."""
        self._nonces = other._nonces

    def policy(self, *, is_https: bool) -> str:
        """Return the assertions of SecurityPolicy 1.2 for a token of SAML 2.0 or 1.1, over https."""
        binding = transport_binding(has_timestamp=False) if is_https else ""
        return binding + supporting("SupportingTokens", WRITTEN_TOKEN)

    # --- in -------------------------------------------------------------------------------------------------------

    def inbound(self, context: MessageContext) -> None:
        """Check a request, and remove its Security header."""
        if context.is_answer:
            return
        now = self._clock()
        subject = ""
        try:
            envelope, security = self._security(context, now)
            assertion = _assertion_in(security)
            subject = assertion.subject
            self._check(context, assertion, envelope, now)
        except (Invalid, Unproven) as error:
            raise refused(context, error, subject) from None
        self._take(context, assertion)
        context.remove_header(SECURITY)
        context.notes[_TIMESTAMPED] = security.timestamp is not None

    def _check_signed(self, message: SignedMessage, signer: Certificate, context: MessageContext) -> Assertion:
        """Check the assertion of a message, whose signature is over it and is checked.

        Raises:
            Invalid, Unproven: It proves nothing here and now, or not for this signer.
        """
        assert message.assertion is not None
        assertion = replace(read_assertion(message.assertion.element), signer=signer.subject)
        self._check(context, assertion, message.envelope, self._clock(), signer)
        return assertion

    def _take(self, context: MessageContext, assertion: Assertion, signer: str = "") -> None:
        """Take the subject of a valid assertion for the user of a request.

        Raises:
            MessageFlowError: It is for one use, and was used before.
        """
        if assertion.is_for_one_use and not self._is_new(assertion, self._clock()):
            full = "too many assertions are remembered"
            tell_refusal(context, full if self._nonces.is_full else "the assertion is for one use", assertion.subject)
            raise MessageFlowError("The token was used before. Send the message again with a new one.")
        context.user = assertion.subject
        context.session = f"{ISSUER}saml:{hashlib.sha256(f'{assertion.issuer}{signer}'.encode()).hexdigest()}"

    def _security(self, context: MessageContext, now: float) -> tuple[etree._Element, Security]:
        soap = context.envelope.soap
        try:
            data = as_utf8(context.data)
            envelope = parse_element(data)
        except EnvelopeError as error:
            raise Invalid(error.message) from None
        check_cost(data, envelope)
        headers = envelope.findall(f"{{{SOAP_NS[soap]}}}Header")
        security = read_security_of(headers[0], soap) if len(headers) == 1 else None
        if security is None:
            raise Invalid("no Security header")
        check_fresh(security, self._freshness, now)
        return envelope, security

    def _check(
        self,
        context: MessageContext,
        assertion: Assertion,
        envelope: etree._Element,
        now: float,
        signer: Certificate | None = None,
    ) -> None:
        """Check everything that an assertion says, and that its issuer says it.

        Raises:
            Invalid: Its signature has another shape.
            Unproven: It proves nothing here and now.
        """
        issuers = self._issuers.get(assertion.issuer)
        if issuers is None:
            raise Unproven(f"its issuer is not in issuers=: {assertion.issuer[:200]!r}")
        check_issuer_signature(assertion, envelope, issuers, self._suite)
        self._check_times(assertion, now)
        if self._audience is not None:
            if not assertion.audiences:
                raise Unproven("the assertion has no audience restriction: audience=None accepts that")
            for audiences in assertion.audiences:
                if not self._audience.intersection(audiences):
                    raise Unproven(f"the assertion is for {', '.join(audiences)[:200]}")
        reasons = [self._why_not(context, one, now, signer) for one in assertion.confirmations]
        if not reasons:
            raise Unproven("the assertion has no confirmation that is understood")
        if all(reasons):
            raise Unproven("; ".join(reasons[:4]))
        if self._authorize is not None and not self._authorize(assertion):
            raise Unproven("authorize= does not permit the subject")
        self._plain.check(context, assertion.subject[:100])

    def _check_times(self, assertion: Assertion, now: float) -> None:
        if assertion.issued_at > now + self._freshness.skew:
            raise Unproven("the assertion is from the future: compare the clocks")
        if assertion.since is not None and assertion.since > now + self._freshness.skew:
            raise Unproven("the assertion is not valid yet: compare the clocks")
        if assertion.until is None or assertion.until - assertion.issued_at > self._longest:
            raise Unproven("the assertion has no end, or a very late one: see longest=")
        if assertion.until <= now - self._freshness.skew:
            raise Unproven(f"the assertion expired {now - assertion.until:.0f} s ago")

    def _why_not(
        self, context: MessageContext, one: SubjectConfirmation, now: float, signer: Certificate | None
    ) -> str:
        """Return why a confirmation does not entitle the sender, "" if it does (SAML Token Profile 1.1, 3.5)."""
        if one.method not in self._confirmations:
            return f"{one.method} is not accepted"
        if one.since is not None and one.since > now + self._freshness.skew:
            return f"{one.method} is not valid yet"
        if one.until is not None and one.until <= now - self._freshness.skew:
            return f"{one.method} has expired"
        if one.recipient and self._audience is not None and one.recipient not in self._audience:
            return f"{one.method} is for {one.recipient[:200]}"
        # The signer is the sender: a gateway between the two may show another certificate in TLS.
        shown, proof = (context.peer_certificate, "show") if signer is None else (signer, "sign with")
        is_holder = one.holder is not None and (
            signer.is_named_by(one.holder) if signer is not None else shown is not None and shown.sha256 == one.key
        )
        if one.method == "holder-of-key" and not is_holder:
            return f"the sender did not {proof} the certificate of the holder"
        if one.method == "sender-vouches" and not (shown is not None and shown.sha256 in self._attesters):
            return f"the sender did not {proof} a certificate of attesters="
        return ""

    def _is_new(self, assertion: Assertion, now: float) -> bool:
        """Remember a valid assertion. Return False if it is known. Only valid ones count: strangers fill nothing."""
        assert assertion.until is not None
        digest = hashlib.sha256(f"{assertion.issuer}\0{assertion.name}".encode()).digest()
        return self._nonces.is_new(assertion.until, digest, assertion.until + self._freshness.skew, now)

    def outbound(self, context: MessageContext) -> None:
        """Add a Timestamp to the answer to a request that had one, as a peer with a transport binding demands."""
        if context.is_answer and context.notes.get(_TIMESTAMPED):
            add_security(context, write_timestamp(self._clock(), self._freshness.life))


def _assertion_in(security: Security) -> Assertion:
    found = [one for one in security.element if one.tag in ASSERTIONS]
    if not found and any(one.tag in (ENCRYPTED_ASSERTION, f"{{{XENC}}}EncryptedData") for one in security.element):
        raise Invalid(_ENCRYPTED)
    if len(found) != 1:
        raise Invalid(f"{len(found)} assertions, not 1")
    return read_assertion(found[0])


def carried_assertion(security: Security) -> CarriedAssertion:
    """Find the assertion in the Security header of a signed message, before anything is checked.

    Raises:
        Invalid: There is none or several, it is malformed, or confirms several keys.
    """
    found = _assertion_in(security)
    holders = {one.holder for one in found.confirmations if one.method == "holder-of-key" and one.holder is not None}
    if len(holders) > 1:
        raise Invalid("the assertion confirms several keys")
    return CarriedAssertion(found.element, next(iter(holders), None))


def end_of_assertion(file: str | Path) -> float | None:
    """Return when the assertion in a file expires, in seconds since 1970; None if it has no end.

    Raises:
        ConfigurationError: The file cannot be read, or contains no assertion that :class:`SamlToken` sends.
    """
    try:
        return _sendable(_file(file))[1].until
    except (OSError, EnvelopeError, Invalid) as error:
        raise ConfigurationError(
            f"the file {file} contains no usable SAML assertion: {error}",
            remedy="Write the assertion into the file as its issuer signed it, in XML of SAML 1.1 or 2.0.",
        ) from None


def _sendable(data: bytes) -> tuple[str, Assertion]:
    """Return an assertion as XML, and what it says.

    Raises:
        EnvelopeError, Invalid: It is not an assertion.
    """
    text = as_utf8(data).strip()
    element = parse_element(text)
    if element.tag == ENCRYPTED_ASSERTION:
        raise Invalid(_ENCRYPTED)
    if len(text) > MAX_FILE or element.tag not in ASSERTIONS:
        raise Invalid("it is not an assertion of SAML 1.1 or 2.0, or very long")
    return text.decode(), read_assertion(element)


def _seen(path: str | Path) -> tuple[int, ...] | None:
    """Return what changes with a file; None if it was written so lately that another change may have the same time."""
    told = os.stat(path)
    is_settled = time.time() - told.st_mtime > SETTLED
    return (told.st_mtime_ns, told.st_ctime_ns, told.st_size, told.st_ino) if is_settled else None


def _file(path: str | Path) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(MAX_FILE + 1)
