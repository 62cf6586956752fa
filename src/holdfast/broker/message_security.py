"""User names in messages: who may send to a broker, and as which user its forwarders send.

Owns the processors of a broker. How a token is checked and written is ``holdfast.security``'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from holdfast.broker.config import BrokerConfig, MessageCredentialsConfig, SecurityConfig
from holdfast.endpoint.envelopes.processors import MessageContext, Processor
from holdfast.exceptions import NotForThisRole
from holdfast.security.names import SECURITY
from holdfast.security.username_token import UsernameToken, UsernameTokenValidator
from holdfast.security.users import Users, nonces_of

_HINT: Final = b"Security"


class MessageSecurity:
    """The processors that a configuration asks for.

    Args:
        config: The configuration.
        running: Those of the running broker, which remember nonces; None: it starts.

    Raises:
        ConfigurationError: The file of nonces cannot be opened.
    """

    def __init__(self, config: BrokerConfig, running: MessageSecurity | None = None) -> None:
        self._users = config.security.users
        self._settings = replace(config.security, users=None)
        self._validator: UserValidator | None = None
        if self._users is not None:
            known = running._validator if running is not None and running._settings == self._settings else None
            nonces = config.security.nonces or nonces_of(config.store)
            self._validator = known or UserValidator(self._users, self._settings, nonces)
        tokens = {one.to: _token(one.security) for one in config.forwarders if one.security is not None}
        self._tokens = ForwarderTokens(tokens) if tokens else None

    def begin(self) -> tuple[Processor, ...]:
        """Return the processors, with the users of this configuration."""
        if self._validator is not None and self._users is not None:
            self._validator.users = self._users
        return tuple(one for one in (self._validator, self._tokens) if one is not None)


class UserValidator(UsernameTokenValidator):
    """Accepts the users of a file, which a reload may replace. What destinations answer is none of its concern."""

    def __init__(self, users: Users, settings: SecurityConfig, nonces: str | Path | None) -> None:
        self.users = users
        super().__init__(
            lambda name: self.users.get(name),
            nonces=nonces,
            require_digest=settings.require_digest,
            require_timestamp=settings.require_timestamp,
            life=settings.life,
            skew=settings.skew,
        )

    def inbound(self, context: MessageContext) -> None:
        """Check a request of a sender."""
        if not context.is_answer:
            super().inbound(context)
        elif _may_have_security(context):
            raise NotForThisRole("the users are those who send")

    def outbound(self, context: MessageContext) -> None:
        """Add a Timestamp to an answer, instead of the Security header that came from a destination."""
        if context.is_answer:
            _remove_security(context)
        super().outbound(context)


class ForwarderTokens(Processor):
    """Sends to each address as the user of its forwarders, and checks the Timestamps of the answers.

    The Security header is for the next hop: the sender's does not leave with a message, and the destination's does not
    return to the sender.

    Args:
        tokens: Address -> its token.
    """

    understands = (SECURITY,)

    def __init__(self, tokens: Mapping[str, UsernameToken]) -> None:
        self._tokens = tokens

    def outbound(self, context: MessageContext) -> None:
        """Add the token to a request of a forwarder."""
        token = self._tokens.get(context.to)
        if token is not None and not context.is_answer:
            _remove_security(context)
            token.outbound(context)

    def inbound(self, context: MessageContext) -> None:
        """Check the answer of a destination."""
        token = self._tokens.get(context.to) if context.is_answer else None
        if token is not None:
            token.inbound(context)
            _remove_security(context)
        elif _may_have_security(context):
            raise NotForThisRole("only the answers to a forwarder with a user are checked here")


def _may_have_security(context: MessageContext) -> bool:
    return any(_HINT in block for block in context.envelope.headers)


def _remove_security(context: MessageContext) -> None:
    if _may_have_security(context):  # else no header needs to be parsed
        context.remove_header(SECURITY)


def _token(config: MessageCredentialsConfig) -> UsernameToken:
    assert config.password is not None  # config_checks saw to it
    return UsernameToken(config.username, config.password.reveal(), digest=config.digest, timestamp=config.timestamp)
