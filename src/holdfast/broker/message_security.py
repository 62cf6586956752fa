"""User names and signatures in messages: who may send to a broker, and as whom its forwarders send.

Owns the processors of a broker. How a token or a signature is checked and written is ``holdfast.security``'s.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeVar, cast

from holdfast.broker.config import BrokerConfig, SecurityConfig
from holdfast.broker.signature_config import AssertionsConfig, MessageCredentialsConfig, SignatureConfig
from holdfast.endpoint.envelopes.processors import MessageContext, Processor
from holdfast.exceptions import NotForThisRole
from holdfast.security.conversation.secure_conversation import SecureConversation, is_token_request
from holdfast.security.names import SECURITY, ConversationVersion
from holdfast.security.timestamp import Timestamp
from holdfast.security.username_token import UsernameToken, UsernameTokenValidator
from holdfast.security.users import Users, nonces_of
from holdfast.store import is_remote

if TYPE_CHECKING:
    from holdfast.security.freshness import Freshness
    from holdfast.security.saml.saml_token import SamlToken, SamlTokenValidator
    from holdfast.security.symmetric.endorsement import EndorsingCertificates
    from holdfast.security.x509 import X509

    SentToken = UsernameToken | SecureConversation | SamlToken


class _Remembers(Protocol):
    """What remembers, as the broker runs, and may take that over when the configuration is read again."""

    def remember_with(self, other: Self, /) -> None: ...


_RemembersT = TypeVar("_RemembersT", bound=_Remembers)
_HINT: Final = b"Security"
_LISTENER: Final = ""
"""Key of the listener's protection among those of addresses."""


class MessageSecurity:
    """The processors that a configuration asks for.

    Args:
        running: Those of the running broker, which remember nonces; None: it starts.

    Raises:
        ConfigurationError: The file of nonces cannot be opened.
    """

    def __init__(self, config: BrokerConfig, running: MessageSecurity | None = None) -> None:
        self._users = config.security.users
        self._settings = replace(config.security, users=None, signature=None, symmetric=None, assertions=None)
        self._validator: UserValidator | None = None
        secured = {one.to: one.security for one in config.forwarders if one.security is not None}
        remembers = config.security != SecurityConfig() or any(
            one.signature or one.conversation for one in secured.values()
        )
        nonces = config.security.nonces or _memory(config) if remembers else None
        if self._users is not None:
            known = running._validator if running is not None and running._settings == self._settings else None
            self._validator = known or UserValidator(self._users, self._settings, nonces)
        self._assertions: AssertionCheck | None = None
        if config.security.assertions is not None and config.security.signature is None:
            checks = None if running is None else running._assertions
            self._assertions = _assertions(config.security.assertions, config, nonces, checks)
        before: Mapping[str, Processor] = {} if running is None else running._sending | running._hops
        self._hops: dict[str, Processor] = {
            to: _of_hop(one, config, nonces, before.get(to)) for to, one in secured.items() if _is_whole(one)
        }
        self._sending: dict[str, SentToken] = {
            to: _token(one, config, nonces, before.get(to)) for to, one in secured.items() if not _is_whole(one)
        }
        if config.security.signature is not None:
            listener = _signer(config.security.signature, config, nonces)
            if config.security.assertions is not None:
                listener.with_saml(
                    config.security.assertions.processor(nonces=nonces, freshness=config.security.freshness)
                )
            self._hops[_LISTENER] = _remembering(listener, before.get(_LISTENER))
        elif config.security.timestamp_alone:
            self._hops[_LISTENER] = HopTimestamp(freshness=config.security.freshness)
        self._senders: EndorsingCertificates | None = None
        symmetric = config.security.symmetric
        if symmetric is not None and symmetric.trusted:
            senders = symmetric.senders(nonces=nonces, freshness=config.security.freshness)
            self._senders = _remembering(senders, None if running is None else running._senders)
        if symmetric is not None:
            users = self._senders or self._validator
            assert users is not None  # config_checks saw to it
            self._hops[_LISTENER] = symmetric.processor(users)
        self._protection = HopProtection(self._hops, {one.to for one in config.forwarders}) if self._hops else None
        self._tokens = ForwarderTokens(self._sending) if self._sending else None
        self._checks_users = self._validator is not None and config.security.symmetric is None

    def begin(self) -> tuple[Processor, ...]:
        """Return the processors, with the users of this configuration."""
        if self._validator is not None and self._users is not None:
            self._validator.users = self._users
        validator = self._validator if self._checks_users else None
        found = (self._protection, validator, self._assertions, self._tokens)
        return tuple(one for one in found if one is not None)


class UserValidator(UsernameTokenValidator):
    """Accepts the users of a file, which a reload may replace. It does not decide what destinations answer."""

    def __init__(self, users: Users, settings: SecurityConfig, nonces: str | Path | None) -> None:
        self.users = users
        super().__init__(
            lambda name: self.users.get(name),
            nonces=nonces,
            require_digest=settings.require_digest,
            require_timestamp=settings.require_timestamp,
            freshness=settings.freshness,
        )

    def inbound(self, context: MessageContext) -> None:
        if not context.is_answer:
            super().inbound(context)
        elif _may_have_security(context):
            raise NotForThisRole("the users are those who send")

    def outbound(self, context: MessageContext) -> None:
        """Add a Timestamp to an answer, instead of the Security header that came from a destination."""
        if context.is_answer:
            context.remove_header(SECURITY)
        super().outbound(context)


class AssertionCheck(Processor):
    """Accepts the assertions of senders. What destinations answer does not concern it."""

    understands = (SECURITY,)

    def __init__(self, checks: SamlTokenValidator) -> None:
        self._checks = checks
        self.waits = checks.waits

    def remember_with(self, other: AssertionCheck) -> None:
        """Remember assertions together with another, which it replaces."""
        self._checks.remember_with(other._checks)

    def policy(self, *, is_https: bool) -> str:
        return self._checks.policy(is_https=is_https)

    def inbound(self, context: MessageContext) -> None:
        """Check a request of a sender."""
        if not context.is_answer:
            self._checks.inbound(context)
        elif _may_have_security(context):
            raise NotForThisRole("the assertions are those of senders")

    def outbound(self, context: MessageContext) -> None:
        """Add a Timestamp to an answer, instead of the Security header that came from a destination."""
        if context.is_answer:
            context.remove_header(SECURITY)
        self._checks.outbound(context)


class ForwarderTokens(Processor):
    """Sends to each address as the user of its forwarders, and checks the Timestamps of the answers.

    The Security header is for the next hop: the sender's does not leave with a message, and the destination's does not
    return to the sender.
    """

    understands = (SECURITY,)

    def __init__(self, tokens: Mapping[str, SentToken]) -> None:
        self._tokens = tokens

    def outbound(self, context: MessageContext) -> None:
        token = self._tokens.get(context.to)
        if token is not None and not context.is_answer and not is_token_request(context):
            context.remove_header(SECURITY)
            token.outbound(context)

    def encoded(self, context: MessageContext, data: bytes) -> bytes:
        """Name the token in the CreateSequence of a forwarder."""
        token = self._tokens.get(context.to) if not context.is_answer else None
        return data if token is None else token.encoded(context, data)

    def inbound(self, context: MessageContext) -> None:
        token = self._tokens.get(context.to) if context.is_answer else None
        if token is not None:
            token.inbound(context)
            context.remove_header(SECURITY)
        elif _may_have_security(context):
            raise NotForThisRole("only the answers to a forwarder with a user are checked here")


class HopTimestamp(Timestamp):
    """A Timestamp alone on one hop, instead of the Security header of the other hop."""

    def outbound(self, context: MessageContext) -> None:
        context.remove_header(SECURITY)
        super().outbound(context)


class HopProtection(Processor):
    """Signs, encrypts and checks the messages of each hop in its own way: the senders' hop, and those of forwarders.

    A Security header is for the next hop, as with :class:`ForwarderTokens`.

    Args:
        hops: Address of a destination, or "" for the listener -> its processor.
        forwarded: The addresses of all forwarders.
    """

    def __init__(self, hops: Mapping[str, Processor], forwarded: Collection[str]) -> None:
        self._hops = hops
        self._forwarded = forwarded
        self.understands = {name for one in hops.values() for name in one.understands}
        self.waits = any(one.waits for one in hops.values())
        listener = hops.get(_LISTENER)
        self.binds_sequences = listener is not None and listener.binds_sequences

    def _at(self, to: str) -> Processor | None:
        return self._hops.get(to if to in self._forwarded else _LISTENER)

    def _hop(self, context: MessageContext) -> Processor | None:
        return self._at(context.to)

    def _inlines(self, to: str) -> bool:
        hop = self._at(to)
        return hop is not None and hop._inlines(to)

    def policy(self, *, is_https: bool) -> str:
        listener = self._hops.get(_LISTENER)
        return "" if listener is None else listener.policy(is_https=is_https)

    def outbound(self, context: MessageContext) -> None:
        """Remove the Security header of the other hop."""
        hop = self._hop(context)
        if hop is not None:
            hop.outbound(context)

    def encoded(self, context: MessageContext, data: bytes) -> bytes:
        hop = self._hop(context)
        return data if hop is None else hop.encoded(context, data)

    def received(self, context: MessageContext, data: bytes) -> bytes:
        hop = self._hop(context)
        return data if hop is None else hop.received(context, data)

    def _check_large(self, context: MessageContext) -> None:
        hop = self._hop(context)
        if hop is not None:
            hop._check_large(context)

    def inbound(self, context: MessageContext) -> None:
        hop = self._hop(context)
        if hop is not None:
            hop.inbound(context)
        elif _may_have_security(context):
            raise NotForThisRole("this hop has no certificate")


def _memory(config: BrokerConfig) -> str | Path | None:
    """Return where nonces and tokens are remembered: by a cluster where its stores are; otherwise next to the store."""
    is_node = config.cluster is not None and is_remote(config.store)  # its gateway has no store: the workers check
    return config.store_location() if is_node else nonces_of(config.store)


def _may_have_security(context: MessageContext) -> bool:
    return any(_HINT in block for block in context.envelope.headers)


def _is_whole(config: MessageCredentialsConfig) -> bool:
    """Return whether a hop is protected as a whole, rather than with a token. A Timestamp alone is no token."""
    return config.signature is not None or config.symmetric is not None or config.timestamp_alone


def _of_hop(
    config: MessageCredentialsConfig, broker: BrokerConfig, nonces: str | Path | None, before: Processor | None
) -> Processor:
    if config.signature is not None:
        signer = _signer(config.signature, broker, nonces)
        if config.assertion is not None:
            signer.with_saml(_assertion(config.assertion, broker.security.freshness))
        return _remembering(signer, before)
    if config.timestamp_alone:
        return HopTimestamp(freshness=broker.security.freshness)
    assert config.symmetric is not None
    if config.username is None:
        return config.symmetric.endorsing(freshness=broker.security.freshness)
    name, password = _user(config)
    freshness = broker.security.freshness
    if not config.conversation:
        return config.symmetric.processor(name, password, freshness=freshness)
    conversation = config.symmetric.conversation(
        name, password, tokens=nonces, version=config.conversation_version, freshness=freshness
    )
    return _remembering(conversation, before)


def _token(
    config: MessageCredentialsConfig, broker: BrokerConfig, tokens: str | Path | None, before: Processor | None
) -> SentToken:
    freshness = broker.security.freshness
    if config.assertion is not None:
        return _assertion(config.assertion, freshness)
    name, password = _user(config)
    version = cast(ConversationVersion | None, config.conversation_version)
    if not config.conversation:
        return UsernameToken(name, password, digest=config.digest, timestamp=config.timestamp, freshness=freshness)
    conversation = SecureConversation(name, password, tokens=tokens, version=version, freshness=freshness)
    return _remembering(conversation, before)


def _user(config: MessageCredentialsConfig) -> tuple[str, str]:
    assert config.username and config.password is not None  # config_checks saw to it
    return config.username, config.password.reveal()


def _remembering(found: _RemembersT, before: object) -> _RemembersT:
    """Return a processor with what the one before remembers: tokens, nonces or signatures. Without a file, it would
    lose them, and the Sequences with the tokens."""
    if isinstance(before, type(found)):
        found.remember_with(before)
    return found


def _assertion(file: str, freshness: Freshness) -> SamlToken:
    from holdfast.security.saml.saml_token import SamlToken

    return SamlToken(file, freshness=freshness)


def _signer(config: SignatureConfig, broker: BrokerConfig, nonces: str | Path | None) -> X509:
    return config.processor(nonces=nonces, freshness=broker.security.freshness)


def _assertions(
    config: AssertionsConfig, broker: BrokerConfig, nonces: str | Path | None, before: AssertionCheck | None
) -> AssertionCheck:
    """Return what checks the assertions of senders. It reads the certificates again, which may be others by now."""
    return _remembering(AssertionCheck(config.processor(nonces=nonces, freshness=broker.security.freshness)), before)
