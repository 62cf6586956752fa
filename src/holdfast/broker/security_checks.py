"""Contradictions in the tables of message security: who may send to the broker, and as whom a forwarder sends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from typing import Final

from holdfast.broker.config import BrokerConfig, ForwarderConfig, SecurityConfig
from holdfast.broker.signature_config import AssertionsConfig, MessageCredentialsConfig, SignatureConfig
from holdfast.config.lines import KeyPath
from holdfast.config.tables import Wrong, raised
from holdfast.config.unreadable import is_given
from holdfast.exceptions import ConfigurationError
from holdfast.security.username_token import UsernameTokenValidator

_SEVERAL: Final = "a message has a user name, a signature, an assertion or a Timestamp alone, not several of them"
_TOGETHER: Final = (["signature", "assertions"], ["signature", "assertion"])
"""Except for these: the signature is over the assertion."""
_NO_USERS: Final = "each message with a symmetric key names a user, or a certificate endorses it"
_OF_USERS: Final = ("require_digest", "require_timestamp", "nonces")
_ENDORSED: Final = "a certificate endorses each message instead of a user name"


def one_secret(path: KeyPath, keys: list[str], told: str) -> Iterator[Wrong]:
    """Check that a secret is set by one key at most."""
    if len(keys) > 1:
        yield (*path, keys[1]), f"{told} is set twice, by {' and '.join(keys)}", "Remove one of them."


def checks_of_senders(config: BrokerConfig) -> Iterator[Wrong]:
    security = config.security
    given = [key for key in ("users", "signature", "assertions", "timestamp_alone") if is_given(security, key)]
    symmetric = security.symmetric
    is_endorsed = symmetric is not None and is_given(symmetric, "trusted")
    if not given and not is_endorsed:
        if security != SecurityConfig():
            yield ("security",), "'users' is missing: without it, everybody may send", "Write users = … there."
        return
    if security.timestamp_alone and (of_users := [key for key in _OF_USERS if is_given(security, key)]):
        what = "it is about the tokens of senders, and with timestamp_alone = true they send none"
        yield ("security", of_users[0]), what, f"Remove {of_users[0]}, or write users = … instead of timestamp_alone."
    if len(given) > 1 and given not in _TOGETHER:
        yield ("security", given[1]), _SEVERAL, "Remove one of them."
    elif given and is_endorsed:
        yield ("security", given[0]), f"'trusted' in [security.symmetric]: {_ENDORSED}", "Remove one of them."
    elif symmetric is not None and not is_endorsed and given != ["users"]:
        remedy = "Write users = … in [security] or trusted = … here, and remove the other table."
        yield ("security", "symmetric"), f"'users' and 'trusted' are missing: {_NO_USERS}", remedy
    yield from _of_a_signature(("security", "signature"), security.signature, checks=security.assertions)
    yield from _of_symmetric_messages(security)
    if security.assertions is not None:
        yield from raised(("security", "assertions"), security.assertions.processor)
    is_shared = config.workers == 1 or security.nonces or not (config.store == ":memory:" or "://" in config.store)
    is_shared = is_shared or security.timestamp_alone  # there is nothing to remember
    if not is_shared:
        what = "several workers need one file to remember nonces in, and this store has no directory"
        yield ("security", "nonces"), what, 'Write nonces = "nonces.db".'


def _of_a_signature(
    path: KeyPath,
    one: SignatureConfig | None,
    *,
    is_forwarder: bool = False,
    has_assertion: bool = False,
    checks: AssertionsConfig | None = None,
) -> Iterator[Wrong]:
    try:
        if one is None:
            return
        signer = one.processor()
        if one.reference == "assertion" and not (has_assertion or checks is not None):
            what = "no assertion that confirms the key of a message is sent or demanded"
            where = "assertion = … in security of the forwarder" if is_forwarder else "[security.assertions]"
            yield (*path, "reference"), what, f"Remove reference, or write {where}."
        if one.reference == "assertion" and checks is not None and {*checks.confirmations} != {"holder-of-key"}:
            what = "only an assertion that confirms the key of its sender names that"
            yield (*path, "reference"), what, 'Write confirmations = ["holder-of-key"] in [security.assertions].'
        if is_forwarder and not signer.accepts_answers:
            what = "no answer would be accepted: 'trusted' has only issuers, whose keys sign no messages"
            yield (*path, "trusted"), what, 'Write subjects = "CN=…" with the name of the destination there.'
        if is_forwarder and not signer.has_receiver:
            what = "the certificate of the destination is not known: 'trusted' has only issuers, or several"
            yield (*path, "encryption"), what, 'Write certificate = "destination.pem" there.'
    except ConfigurationError as error:
        yield path, error.message, error.remedy


def _of_symmetric_messages(security: SecurityConfig) -> Iterator[Wrong]:
    one, path = security.symmetric, ("security", "symmetric")
    if one is None:
        return
    wrong = [key for key, is_wrong in (("subjects", is_given(one, "subjects")), ("signed", not one.signed)) if is_wrong]
    if wrong and not one.trusted:
        what = "it is about the certificates of senders, and 'trusted' is missing"
        yield (*path, wrong[0]), what, "Write trusted = … there."
    if one.trusted and one.conversation:
        what = "a token is requested with a user name, and 'trusted' has certificates instead"
        yield (*path, "conversation"), what, "Remove conversation, or write users = … in [security] instead of trusted."
        return
    if one.bind_sequences and not one.trusted and not one.conversation:
        what = "a Sequence cannot be bound to the user name of a message"
        yield (*path, "bind_sequences"), what, "Remove it, or write conversation = true, or trusted = …."
        return
    yield from raised(path, lambda: one.processor(one.senders() if one.trusted else UsernameTokenValidator({})))


def checks_of_credentials(path: KeyPath, forwarder: ForwarderConfig) -> Iterator[Wrong]:
    """Check ``[forwarders.NAME.security]``, which has this path."""
    one = forwarder.security
    if one is None:
        return
    if one.conversation_version is not None and not one.conversation:
        what = "it is about a token of WS-SecureConversation, and 'conversation' is not true"
        yield (*path, "conversation_version"), what, "Write conversation = true there, or remove conversation_version."
    instead = _instead_of_a_user(one)
    if not instead:
        yield from _of_a_user_name(path, one)
        return
    keys = ("username", "password_file", "password_env", "symmetric", "signature", "assertion", "timestamp_alone")
    others = [key for key in keys if key not in instead and is_given(one, key)]
    if others or (len(instead) > 1 and instead not in _TOGETHER):
        other = (*others, *instead[1:])[0]
        yield (*path, other), _ENDORSED if "symmetric" in instead else _SEVERAL, "Remove one of them."
    elif one.conversation:
        yield (*path, "conversation"), "a token is requested with a user name", "Remove one of them."
    elif one.digest or not one.timestamp:
        name = "digest" if one.digest else "timestamp"
        yield (*path, name), "it is about a user name, and the messages have none", f"Remove {name}."
    yield from _of_a_signature(
        (*path, "signature"), one.signature, is_forwarder=True, has_assertion="assertion" in instead
    )
    if "symmetric" in instead and one.symmetric is not None:
        yield from raised((*path, "symmetric"), one.symmetric.endorsing)


def _instead_of_a_user(one: MessageCredentialsConfig) -> list[str]:
    """Return the settings for messages without a user name."""
    found = [key for key in ("signature", "assertion", "timestamp_alone") if is_given(one, key)]
    own = ("own_certificate", "own_key")
    is_endorsing = one.symmetric is not None and any(is_given(one.symmetric, key) for key in own)
    return [*found, "symmetric"] if is_endorsing else found


def _of_a_user_name(path: KeyPath, one: MessageCredentialsConfig) -> Iterator[Wrong]:
    if not is_given(one, "username"):
        yield path, "'username' is missing", "Write username = … there, or a table signature."
    passwords = [key for key in ("password_file", "password_env") if is_given(one, key)]
    yield from one_secret(path, passwords, "the password")
    if not passwords:
        yield path, "the password is missing", "Add password_file = … or password_env = … to this table."
    key = "conversation" if one.conversation else "symmetric"
    if is_given(one, key) and (one.digest or not one.timestamp):
        name = "digest" if one.digest else "timestamp"
        why = {
            "conversation": "a token is requested with the password itself, and each message has a Timestamp",
            "symmetric": "the password itself is encrypted, and each message has a Timestamp",
        }
        yield (*path, name), why[key], f"Remove {name}, or remove {key}."
    yield from _of_a_symmetric_key(path, one)


def _of_a_symmetric_key(path: KeyPath, one: MessageCredentialsConfig) -> Iterator[Wrong]:
    symmetric = one.symmetric
    if symmetric is None:
        return
    usual = {field.name: field.default for field in fields(symmetric)}
    for key in ("reference", "derived_keys") if one.conversation else ():
        if getattr(symmetric, key) != usual[key]:
            what = "a token of WS-SecureConversation decides this"
            yield (*path, "symmetric", key), what, f"Remove {key}, or remove conversation."
    make = partial(symmetric.conversation, tokens=None) if one.conversation else symmetric.processor
    yield from raised((*path, "symmetric"), lambda: make("name", "password"))
