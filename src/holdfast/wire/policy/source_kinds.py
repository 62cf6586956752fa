"""The kinds of sources that there are, by what they do: what policies may demand together.

A message has one Security header, so a source has one processor that writes it. To support another combination of
abilities, add a kind. ``tests/security/test_source_kinds.py`` compares the kinds with the processors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product

from holdfast.wire.policy.assertions import (
    AES_128_GCM,
    AES_256_GCM,
    ANONYMOUS,
    BASIC_128,
    BASIC_128_SHA_256,
    BASIC_256,
    BASIC_256_SHA_256,
    CALLBACKS,
    CLIENT_CERTIFICATE,
    DERIVED_KEYS,
    ENCRYPTED_FIRST,
    ENCRYPTED_SIGNATURES,
    ENCRYPTION,
    ENDORSEMENT,
    HTTP_BASIC,
    HTTPS,
    KEY_IN_ASSERTION,
    LISTENER,
    OWN_ENCRYPTION_CERTIFICATE,
    PASSWORD,
    PASSWORD_DIGEST,
    POLLS,
    PROTECTED_TOKENS,
    RECEIVER_CERTIFICATE,
    SAML_TOKEN,
    SECURE_CONVERSATION,
    SEQUENCE_TOKEN,
    SIGNATURES,
    SIGNED_TOKENS,
    SYMMETRIC_KEY,
    TIMESTAMP,
    TOKEN_IN_MESSAGE,
    TOKEN_NOT_IN_MESSAGE,
    Ability,
    is_header_encryption,
)

_ALWAYS = frozenset({HTTPS, PROTECTED_TOKENS, SIGNED_TOKENS, CLIENT_CERTIFICATE, HTTP_BASIC})
"""What any source can do besides: it concerns the connection."""
_NETWORKS = (frozenset({ANONYMOUS, POLLS}), frozenset({LISTENER, CALLBACKS}))
_OF_CONNECTIONS = _ALWAYS.union(*_NETWORKS)
_OF_ENCRYPTION = (ENCRYPTED_SIGNATURES, ENCRYPTED_FIRST, RECEIVER_CERTIFICATE, OWN_ENCRYPTION_CERTIFICATE)
"""What only a source that encrypts can do."""
_CIPHERS = ("aes256-cbc", "aes128-cbc", "aes256-gcm", "aes128-gcm")
_SUITES = ("Basic256Sha256", "Basic256")
_WITH_USER_NAME = "holdfast.UsernameToken(name, password) sends a timestamp with the user name, unless timestamp=False."
_WITH_ASSERTION = (
    "Give the Source certificates and the assertion: "
    "processors=[holdfast.X509(certificate, key, trusted=…).with_saml(holdfast.SamlToken('assertion.xml'))]."
)
_PLAIN = "Remove digest=True from holdfast.UsernameToken, or --password-digest: the service demands the plain password."
_NAME_TOKEN = "Call bind_sequences() of holdfast.{name}."


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of source.

    Attributes:
        name: Its processor, for errors; "" without one.
        abilities: What such a source does.
        constructor: How to make it, for errors.
        essential: The abilities that it has as soon as it is made so.
        settings: How to make it do some of the others. An absent one has its own remedy.
    """

    name: str
    abilities: frozenset[Ability]
    constructor: str = ""
    essential: frozenset[Ability] = frozenset()
    settings: Mapping[Ability, str] = field(default_factory=dict)

    def remedies(self, lacking: Collection[Ability], abilities: Collection[Ability]) -> list[str]:
        """Return how a source becomes one of this kind."""
        excess = [one for one in abilities if one.excess and one not in self.abilities]
        in_messages = [one for one in lacking if one not in _OF_CONNECTIONS]
        is_other = SYMMETRIC_KEY in excess or (bool(in_messages) and not self.essential.issubset(abilities))
        found = [self.constructor] if is_other and self.constructor else []
        if (
            found
            and PASSWORD in self.essential
            and PASSWORD_DIGEST in abilities
            and SYMMETRIC_KEY not in self.abilities
        ):
            found = [_PLAIN]
        if ENCRYPTION in excess:  # with its settings
            excess = [ENCRYPTION]
        found += [one.excess for one in excess if SYMMETRIC_KEY not in abilities]
        found += [self.settings.get(one, one.remedy) for one in lacking if one not in self.essential]
        return list(dict.fromkeys(found))


def suite_abilities(suite: str, cipher: str | None) -> tuple[Ability, ...]:
    """Return the suites of algorithms that a source meets. Without encryption, their ciphers do not count."""
    is_sha_1 = suite == "Basic256"
    of_256, of_128 = (BASIC_256, BASIC_128) if is_sha_1 else (BASIC_256_SHA_256, BASIC_128_SHA_256)
    if cipher is None:
        return (of_256, of_128) if is_sha_1 else (of_256, of_128, AES_256_GCM, AES_128_GCM)
    of_ciphers = (of_256, of_128, AES_256_GCM, AES_128_GCM)
    return (of_ciphers[_CIPHERS.index(cipher)],)


def kinds_for(mentioned: Collection[Ability]) -> list[Kind]:
    """Return the kinds that differ in what policies mention, the simplest first."""
    headers = [one for one in mentioned if is_header_encryption(one)]
    # What a service does not expect makes a source unfit for it.
    expected = {*mentioned}
    if not expected.isdisjoint({*_OF_ENCRYPTION, *headers}):
        expected.add(ENCRYPTION)
    if not expected.isdisjoint((ENDORSEMENT, DERIVED_KEYS)):
        expected.add(SYMMETRIC_KEY)
    found: dict[frozenset[Ability], Kind] = {}
    for kind in _kinds(tuple(headers)):
        excess = {one for one in kind.abilities if one.excess and one not in expected}
        if not excess or (SYMMETRIC_KEY in kind.abilities and SYMMETRIC_KEY in expected):
            key = kind.abilities.intersection(mentioned) | {one for one in kind.abilities if one.excess}
            found.setdefault(key, kind)
    return list(found.values())


@lru_cache(maxsize=16)
def _kinds(headers: tuple[Ability, ...]) -> tuple[Kind, ...]:
    return tuple(_every_kind(headers))


def _every_kind(headers: tuple[Ability, ...]) -> Iterator[Kind]:
    for network in _NETWORKS:
        common = _ALWAYS | network
        yield Kind("", common)
        yield Kind("Timestamp", common | {TIMESTAMP}, TIMESTAMP.remedy, frozenset({TIMESTAMP}))
        for name, essential in _SIMPLE:
            # A Timestamp can be left out, and has its own remedy.
            unless = frozenset(essential) - {TIMESTAMP}
            yield Kind(name, common.union(essential), essential[0].remedy, unless, {TIMESTAMP: _WITH_USER_NAME})
        yield from _signing(common, headers, frozenset({SIGNATURES, TIMESTAMP}), SIGNATURES.remedy)
        yield from _signing(common, headers, frozenset({SIGNATURES, TIMESTAMP, SAML_TOKEN}), _WITH_ASSERTION)
    # A message to an address of the client cannot be encrypted: the client has no certificate.
    for name, call, proof in _SYMMETRIC:
        yield from _symmetric(name, call, proof)


_SIMPLE: tuple[tuple[str, tuple[Ability, ...]], ...] = (
    ("UsernameToken", (PASSWORD, TIMESTAMP)),
    ("UsernameToken", (PASSWORD_DIGEST, TIMESTAMP)),
    ("SecureConversation", (SECURE_CONVERSATION, SEQUENCE_TOKEN, TIMESTAMP)),
    ("SamlToken", (SAML_TOKEN, TIMESTAMP)),
)
"""Processors that add a token to a message, with what they do. The remedy of the first says how to make them."""
_SYMMETRIC: tuple[tuple[str, str, tuple[Ability, ...]], ...] = (
    ("SymmetricBinding", "SymmetricBinding(name, password, certificate)", (PASSWORD,)),
    (
        "EndorsedSymmetricBinding",
        "EndorsedSymmetricBinding(own_certificate, own_key, certificate)",
        (ENDORSEMENT,),
    ),
    (
        "SecureConversation",
        "SecureConversation(name, password, certificate=…)",
        (SECURE_CONVERSATION,),
    ),
)


def _signing(
    common: frozenset[Ability], headers: tuple[Ability, ...], essential: frozenset[Ability], constructor: str
) -> Iterator[Kind]:
    """Yield the kinds with X509."""
    named = {SEQUENCE_TOKEN: _NAME_TOKEN.format(name="X509")}
    base = essential | common | {SEQUENCE_TOKEN}
    held = (KEY_IN_ASSERTION,) if SAML_TOKEN in essential else ()
    for suite, token in product(_SUITES, (TOKEN_IN_MESSAGE, TOKEN_NOT_IN_MESSAGE, *held)):
        suites = suite_abilities(suite, None)
        settings = named | dict.fromkeys(suites, suites[0].remedy)
        yield Kind("X509", base | {token, *suites}, constructor, essential, settings)
        orders = ((), (ENCRYPTED_SIGNATURES,), (ENCRYPTED_FIRST,))
        owns = ((), (OWN_ENCRYPTION_CERTIFICATE,))
        hidden = ((), headers) if headers else ((),)
        for cipher, order, own, blocks in product(_CIPHERS, orders, owns, hidden):
            suites = suite_abilities(suite, cipher)
            use = f"Use holdfast.X509(…, suite={suite!r}, encrypt=holdfast.Encryption(cipher={cipher!r}))."
            abilities = {token, ENCRYPTION, RECEIVER_CERTIFICATE, *suites, *order, *own, *blocks}
            yield Kind("X509", base | abilities, constructor, essential, named | dict.fromkeys(suites, use))


def _symmetric(name: str, call: str, proof: tuple[Ability, ...]) -> Iterator[Kind]:
    essential = frozenset({SYMMETRIC_KEY, SIGNATURES, ENCRYPTION, TIMESTAMP, *proof})
    others: dict[Ability, str] = {}
    if name == "SecureConversation":
        others = {SEQUENCE_TOKEN: _NAME_TOKEN.format(name=name)}
    else:
        others = {DERIVED_KEYS: f"Use holdfast.{name}(…, derived_keys=True)."}
    if name == "EndorsedSymmetricBinding":
        others[SEQUENCE_TOKEN] = _NAME_TOKEN.format(name=name)
    for suite, cipher in product(_SUITES, _CIPHERS):
        suites = suite_abilities(suite, cipher)
        use = f"Use holdfast.{name}(…, suite={suite!r}, cipher={cipher!r})."
        settings = others | dict.fromkeys(suites, use)
        abilities = _ALWAYS | _NETWORKS[0] | essential | {*others, *suites}
        yield Kind(name, abilities, f"Use processors=[holdfast.{call}].", essential, settings)
