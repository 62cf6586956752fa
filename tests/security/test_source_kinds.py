"""Policies that demand several things together: a remedy leads to a source that meets them, or no source does.

Covers wire/policy/source_kinds.py and wire/policy/port_policies.py.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from signers import Files, authority, issue

import holdfast
from holdfast.endpoint.source.http_settings import SourceHTTP
from holdfast.endpoint.source.wsdl import abilities
from holdfast.exceptions import ConfigurationError
from holdfast.wire.policy.assertions import CXF_SUITES, SECURITY, encrypted_header
from holdfast.wire.policy.source_kinds import kinds_for
from holdfast.wire.wsdl import Description

SPACES = (
    f'xmlns:sp="{SECURITY[0]}" xmlns:cxf="{CXF_SUITES}" xmlns:wsp="http://www.w3.org/ns/ws-policy" '
    'xmlns:wsam="http://www.w3.org/2007/05/addressing/metadata" '
    'xmlns:mc="http://docs.oasis-open.org/ws-rx/wsmc/200702" '
    'xmlns:r="http://docs.oasis-open.org/ws-rx/wsrmp/200702" xmlns="http://schemas.xmlsoap.org/wsdl/" '
    'xmlns:soap="http://schemas.xmlsoap.org/wsdl/soap/" xmlns:t="urn:t"'
)
INCLUDE = 'sp:IncludeToken="urn:i/IncludeToken/{}"'


def nested(name: str, content: str = "", attributes: str = "") -> str:
    return f"<{name} {attributes}><wsp:Policy>{content}</wsp:Policy></{name}>"


def suite(name: str) -> str:
    return nested("sp:AlgorithmSuite", f"<{name}/>")


def user(kind: str, content: str = "") -> str:
    return nested(kind, nested("sp:UsernameToken", content))


def x509(include: str) -> str:
    return f"<sp:X509Token {INCLUDE.format(include)}/>"


TRANSPORT = nested("sp:TransportToken", nested("sp:HttpsToken"))
SUITES = ("sp:Basic256", "sp:Basic256Sha256", "sp:Basic128", "sp:Basic128Sha256", "cxf:Basic256GCM")
ASSERTIONS = {
    "https": nested("sp:TransportBinding", TRANSPORT),
    "https with timestamps": nested("sp:TransportBinding", f"{TRANSPORT}<sp:IncludeTimestamp/>"),
    "client certificate": nested(
        "sp:TransportBinding", nested("sp:TransportToken", nested("sp:HttpsToken", "<sp:RequireClientCertificate/>"))
    ),
    "password": user("sp:SupportingTokens"),
    "digest": user("sp:SupportingTokens", "<sp:HashPassword/>"),
    "either": user("sp:SupportingTokens", "<wsp:ExactlyOne><wsp:All/><sp:HashPassword/></wsp:ExactlyOne>"),
    "signed password": user("sp:SignedSupportingTokens"),
    "assertion": nested("sp:SupportingTokens", "<sp:SamlToken/>"),
    "signed assertion": nested("sp:SignedSupportingTokens", "<sp:SamlToken/>"),
    "encrypted assertion": nested("sp:SignedEncryptedSupportingTokens", "<sp:SamlToken/>"),
    "key in an assertion": nested("sp:AsymmetricBinding", nested("sp:InitiatorToken", "<sp:SamlToken/>")),
    "signature": nested("sp:AsymmetricBinding"),
    "token": nested("sp:AsymmetricBinding", nested("sp:InitiatorToken", x509("Always"))),
    "reference": nested("sp:AsymmetricBinding", nested("sp:InitiatorToken", x509("Never"))),
    **{f"signed with {one}": nested("sp:AsymmetricBinding", suite(one)) for one in SUITES},
    "encrypted signature": nested("sp:AsymmetricBinding", "<sp:EncryptSignature/>"),
    "encrypted first": nested("sp:AsymmetricBinding", "<sp:EncryptBeforeSigning/>"),
    "own encryption": nested("sp:AsymmetricBinding", nested("sp:InitiatorEncryptionToken", "<sp:X509Token/>")),
    "their encryption": nested("sp:AsymmetricBinding", nested("sp:RecipientEncryptionToken", "<sp:X509Token/>")),
    "signed parts": "<sp:SignedParts><sp:Body/></sp:SignedParts>",
    "encrypted parts": "<sp:EncryptedParts><sp:Body/></sp:EncryptedParts>",
    "encrypted header": '<sp:EncryptedParts><sp:Body/><sp:Header Namespace="urn:h" Name="A"/></sp:EncryptedParts>',
    "encrypted headers": '<sp:EncryptedParts><sp:Body/><sp:Header Namespace="urn:h"/></sp:EncryptedParts>',
    "symmetric": nested("sp:SymmetricBinding", nested("sp:ProtectionToken", nested("sp:X509Token"))),
    "derived": nested(
        "sp:SymmetricBinding", nested("sp:ProtectionToken", nested("sp:X509Token", "<sp:RequireDerivedKeys/>"))
    ),
    **{f"symmetric with {one}": nested("sp:SymmetricBinding", suite(one)) for one in SUITES},
    "symmetric conversation": nested(
        "sp:SymmetricBinding", nested("sp:ProtectionToken", nested("sp:SecureConversationToken"))
    ),
    "conversation": nested("sp:EndorsingSupportingTokens", nested("sp:SecureConversationToken")),
    "endorsement": nested("sp:SignedEndorsingSupportingTokens", x509("AlwaysToRecipient")),
    "endorsing reference": nested("sp:SignedEndorsingSupportingTokens", x509("Never")),
    "sequence token": nested("r:RMAssertion", "<r:SequenceSTR/>"),
    "anonymous": nested("wsam:Addressing", "<wsam:AnonymousResponses/>"),
    "not anonymous": nested("wsam:Addressing", "<wsam:NonAnonymousResponses/>"),
    "polls": "<mc:MCSupported/>",
    "basic": "<h:BasicAuthentication xmlns:h='http://schemas.microsoft.com/ws/06/2004/policy/http'/>",
}
PORTS = ("https://shop.example/", "http://shop.example/")


def described(endpoint: str, request: str = "", reply: str = "", address: str = PORTS[1]) -> Description:
    """A port with that policy, and one operation whose messages have policies of their own."""
    found = Description()
    policies = [f"<wsp:Policy>\n{one}\n</wsp:Policy>" if one else "" for one in (endpoint, request, reply)]
    found.add(
        f"""<definitions {SPACES} targetNamespace="urn:t"><message name="M"/>
        <portType name="K"><operation name="Put"><input message="t:M"/><output message="t:M"/></operation></portType>
        <binding name="B" type="t:K"><soap:binding/>{policies[0]}<operation name="Put">
        <input>{policies[1]}</input><output>{policies[2]}</output></operation></binding>
        <service name="S"><port name="P" binding="t:B"><soap:address location="{address}"/></port></service>
        </definitions>""".encode(),
        "orders.wsdl",
    )
    return found


_MADE: dict[str, list[holdfast.Processor]] = {}


class Chosen:
    """The settings of a source, as a user changes them to follow remedies."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.service = files.certificate.with_name("shop.pem")
        self.name = ""
        self.options: dict[str, Any] = {}
        self.encryption: dict[str, Any] | None = None
        self.binds = False
        self.carries = False
        self.http: dict[str, Any] = {}
        self.to: str | None = None

    def use(self, name: str, **options: Any) -> None:
        """Use a processor. Its other options stay only if it was used before."""
        if name != self.name:
            self.name, self.options, self.encryption, self.binds, self.carries = name, {}, None, False, False
        self.options.update(options)

    def encrypt(self, **options: Any) -> None:
        self.use("X509")
        self.encryption = {**(self.encryption or {}), **options}

    def abilities(self) -> set[Any]:
        key = repr((self.files, self.name, self.options, self.encryption, self.binds, self.carries))
        if key not in _MADE:  # reading a key takes milliseconds
            _MADE[key] = [self.processor()] if self.name else []
        return abilities(SourceHTTP(**self.http), _MADE[key])

    def processor(self) -> holdfast.Processor:
        certificate, key = self.files
        options = dict(self.options)
        if self.name == "X509" and self.encryption is not None:
            options["encrypt"] = holdfast.Encryption(**self.encryption)
        arguments: dict[str, tuple[Any, ...]] = {
            "X509": (certificate, key),
            "SymmetricBinding": ("alice", "secret", self.service),
            "EndorsedSymmetricBinding": (certificate, key, self.service),
            "SamlToken": ("assertion.xml",),
            "Timestamp": (),
        }
        if self.name == "X509":
            options["trusted"] = self.service
        found = getattr(holdfast, self.name)(*arguments.get(self.name, ("alice", "secret")), **options)
        found = found.with_saml(holdfast.SamlToken("assertion.xml")) if self.carries else found
        return found.bind_sequences() if self.binds else found


def _carry(one: Chosen, _: re.Match[str]) -> None:
    one.use("X509")
    one.carries = True


def _plain(one: Chosen, _: re.Match[str]) -> None:
    assert one.name == "UsernameToken" and one.options.pop("digest")


def _bind(one: Chosen, _: re.Match[str]) -> None:
    one.binds = True


def _use(name: str, *fixed: str) -> Callable[[Chosen, re.Match[str]], None]:
    def follow(one: Chosen, found: re.Match[str]) -> None:
        options = {key: value for key, value in found.groupdict().items() if value}
        options |= dict.fromkeys(fixed, True)
        if name == "SecureConversation" and "certificate=" in found.group():
            options["certificate"] = one.service
        elif name == "SecureConversation" and "password" in found.group():
            one.use("")  # without a certificate
        one.use(name, **options)

    return follow


def _encrypt(**options: Any) -> Callable[[Chosen, re.Match[str]], None]:
    def follow(one: Chosen, found: re.Match[str]) -> None:
        groups = {key: value for key, value in found.groupdict().items() if value}
        if "suite" in groups:
            one.use("X509", suite=groups.pop("suite"))
        one.encrypt(**options, **groups)

    return follow


def _own(one: Chosen, _: re.Match[str]) -> None:
    one.encrypt(own=one.files)


def _theirs(one: Chosen, _: re.Match[str]) -> None:
    one.encrypt(certificate=one.service)


def _header(one: Chosen, found: re.Match[str]) -> None:
    one.encrypt(headers=[found["name"]])


def _less(*names: str) -> Callable[[Chosen, re.Match[str]], None]:
    def follow(one: Chosen, _: re.Match[str]) -> None:
        for name in names:
            if name == "encrypt":
                one.encryption = None
            elif one.encryption is not None:
                one.encryption.pop(name, None)

    return follow


def _network(**options: Any) -> Callable[[Chosen, re.Match[str]], None]:
    def follow(one: Chosen, _: re.Match[str]) -> None:
        one.http |= options

    return follow


def _without_listen(one: Chosen, _: re.Match[str]) -> None:
    one.http.pop("listen", None)
    one.http.pop("poll", None)


def _https(one: Chosen, _: re.Match[str]) -> None:
    one.to = PORTS[0]


X = r"Use holdfast\.X509\(…, "
REMEDIES: list[tuple[str, Callable[[Chosen, re.Match[str]], None]]] = [
    (r"processors=\[holdfast\.UsernameToken\(name, password\)\]", _use("UsernameToken")),
    (r"processors=\[holdfast\.UsernameToken\(name, password, digest=True\)\]", _use("UsernameToken", "digest")),
    (r"Remove digest=True from holdfast\.UsernameToken, or --password-digest", _plain),
    (r"processors=\[holdfast\.Timestamp\(\)\]", _use("Timestamp")),
    (r"holdfast\.UsernameToken\(name, password\) sends a timestamp", _use("UsernameToken", "timestamp")),
    (r"Use processors=\[holdfast\.SymmetricBinding\(name, password, certificate\)\]\.", _use("SymmetricBinding")),
    (
        r"Use processors=\[holdfast\.EndorsedSymmetricBinding\(own_certificate, own_key, certificate\)\]\.",
        _use("EndorsedSymmetricBinding"),
    ),
    (r"processors=\[holdfast\.SecureConversation\(name, password\)\]", _use("SecureConversation")),
    (r"Use processors=\[holdfast\.SecureConversation\(name, password, certificate=…\)\]\.", _use("SecureConversation")),
    (r"processors=\[holdfast\.SamlToken\('assertion\.xml'\)\]", _use("SamlToken")),
    (r"processors=\[holdfast\.X509\(certificate, key, trusted=…\)\]", _use("X509")),
    (r"\)\.with_saml\(", _carry),
    (r"Call bind_sequences\(\) of holdfast\.\w+\.", _bind),
    (r"Use holdfast\.(X509)\(…, suite='(?P<suite>\w+)'\)", _use("X509")),
    (X + r"suite='(?P<suite>\w+)', encrypt=holdfast\.Encryption\(cipher='(?P<cipher>[\w-]+)'\)\)\.", _encrypt()),
    (X + r"reference='(?P<reference>[\w-]+)'\)", _use("X509")),
    (X + r"encrypt=holdfast\.Encryption\(\)\)\.", _encrypt()),
    (X + r"encrypt=holdfast\.Encryption\(signature=True\)\)\.", _encrypt(signature=True)),
    (X + r"encrypt=holdfast\.Encryption\(before_signing=True\)\)\.", _encrypt(before_signing=True)),
    (r"encrypt=holdfast\.Encryption\(own=\('encryption\.pem', 'encryption\.key'\)\)\)\.", _own),
    (r"encrypt=holdfast\.Encryption\(certificate='service-encryption\.pem'\)\)\.", _theirs),
    (X + r"encrypt=holdfast\.Encryption\(headers=\['(?P<name>[^']+)'\]\)\)\.", _header),
    *[
        (rf"Use holdfast\.{name}\(…, suite='(?P<suite>\w+)', cipher='(?P<cipher>[\w-]+)'\)\.", _use(name))
        for name in ("SymmetricBinding", "EndorsedSymmetricBinding", "SecureConversation")
    ],
    *[
        (rf"Use holdfast\.{name}\(…, derived_keys=True\)\.", _use(name, "derived_keys"))
        for name in ("SymmetricBinding", "EndorsedSymmetricBinding")
    ],
    (r"Use holdfast\.UsernameToken\(name, password\) instead of holdfast\.SymmetricBinding", _use("UsernameToken")),
    (r"Remove encrypt from holdfast\.X509\.", _less("encrypt")),
    (r"Remove signature=True from holdfast\.Encryption\.", _less("signature")),
    (r"Remove before_signing=True from holdfast\.Encryption\.", _less("before_signing")),
    (r"Remove own from holdfast\.Encryption\.", _less("own")),
    (r"Remove '[^']+' from headers of holdfast\.Encryption\.", _less("headers")),
    (r"Use the https URL of the service: Source\.from_wsdl", _https),
    (r"http=SourceHTTP\(headers=\{'Authorization'", _network(headers={"Authorization": "Basic YTpi"})),
    (r"http=SourceHTTP\(ssl_context=context\)", _network(ssl_context=ssl.create_default_context())),
    (r"http=SourceHTTP\(listen=\(host, port\)\)", _network(listen=("127.0.0.1", 0))),
    (r"Remove listen(?: and poll=False)? from SourceHTTP", _without_listen),
]
"""What the remedies say -> what one who follows them does."""


def follow(chosen: Chosen, remedy: str) -> None:
    """Do all that a remedy says."""
    steps = [(found, step) for pattern, step in REMEDIES for found in re.finditer(pattern, remedy)]
    assert steps, f"nobody knows how to follow: {remedy}"
    for found, step in sorted(steps, key=lambda one: one[0].start()):
        step(chosen, found)


def outcome(description: Description, chosen: Chosen) -> str:
    """Follow the remedies until a source meets the policies, or until none can, and say why; "" if it meets them."""
    told: list[str] = []
    while True:
        refused = refusal(description, chosen)
        if refused is None:
            return ""
        assert refused.message not in told, f"a circle: {told} {refused}"
        told.append(refused.message)
        if "Name another port" in refused.remedy or "Ask the service's owner" in refused.remedy:
            return refused.message
        follow(chosen, refused.remedy)


def refusal(description: Description, chosen: Chosen) -> ConfigurationError | None:
    able = chosen.abilities()
    try:
        description.port(None, able, chosen.to)
    except ConfigurationError as error:
        return error
    return None


def usable(description: Description) -> str:
    """What ``holdfast wsdl`` says; "" if the port is usable."""
    try:
        description.port()
    except ConfigurationError as error:
        return error.message
    return ""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    directory = tmp_path_factory.mktemp("kinds")
    (directory / "shop.pem").write_bytes(issue("CN=shop,O=Example", authority()).pem)
    return issue("CN=alice,O=Example", authority()).files(directory)


def beginnings(files: Files) -> Iterator[Chosen]:
    names = ("", "Timestamp", "UsernameToken", "UsernameToken", "SymmetricBinding", "X509", "SecureConversation")
    for at, name in enumerate(names):
        one = Chosen(files)
        if name == "SymmetricBinding":
            one.use(name, cipher="aes256-gcm")
        elif name == "X509":
            one.encrypt(cipher="aes128-cbc", signature=True)
        elif name:
            one.use(name)
        if name == "UsernameToken":
            one.options["timestamp"] = False
            one.http["listen"] = ("127.0.0.1", 0)
            one.options["digest"] = names[at + 1] == name
        yield one


@pytest.mark.every(4)
@pytest.mark.parametrize("first", ASSERTIONS)
def test_the_remedy_of_any_two_demands_leads_to_a_source_or_to_the_reason(first: str, files: Files) -> None:
    names = list(ASSERTIONS)
    for at, second in enumerate(names[names.index(first) :]):
        check([ASSERTIONS[first] + ASSERTIONS[second]], files, at)


@given(
    st.lists(st.lists(st.sampled_from(sorted(ASSERTIONS)), max_size=2), min_size=1, max_size=3),
    st.sampled_from(sorted(ASSERTIONS)),
    st.booleans(),
)
def test_the_remedies_of_policies_at_a_port_and_its_messages_never_circle(
    parts: list[list[str]], other: str, has_choice: bool
) -> None:
    written = ["".join(ASSERTIONS[name] for name in names) for names in parts]
    if has_choice:
        written[0] = f"<wsp:ExactlyOne><wsp:All>{written[0]}</wsp:All>{ASSERTIONS[other]}</wsp:ExactlyOne>"
    check(written, _FILES[0], len(written[0]))


_FILES: list[Files] = []


@pytest.fixture(autouse=True)
def _shared(files: Files) -> None:
    _FILES[:] = [files]


def check(policies: list[str], files: Files, number: int) -> None:
    """Begin without any processor, and with one of the others."""
    endpoint, *others = policies
    description = described(endpoint, *[f"<wsp:Policy>{one}</wsp:Policy>" for one in others])
    reason = usable(description)
    first, *others = beginnings(files)
    for chosen in (first, others[number % len(others)]):
        assert bool(outcome(description, chosen)) == bool(reason), reason


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (
            ("signature", "password"),
            "AsymmetricBinding (messages signed by a certificate), line 4 of orders.wsdl",
        ),
        (("signature", "password"), "UsernameToken (a user name and password in each message), line 4 of orders.wsdl"),
        (("anonymous", "not anonymous"), "AnonymousResponses (replies in the HTTP response), line 4 of orders.wsdl; a"),
        (("signed with sp:Basic256", "signed with sp:Basic256Sha256"), "Basic256 (signatures over SHA-1 digests), l"),
        (("endorsing reference", "symmetric"), "X509Token (a reference to the endorsing certificate instead"),
    ],
)
def test_demands_that_no_source_meets_together_are_named(names: tuple[str, ...], told: str, files: Files) -> None:
    description = described("".join(ASSERTIONS[name] for name in names))
    reason = usable(description)
    assert told in reason
    assert "which Holdfast does not support" in reason
    for chosen in beginnings(files):
        assert outcome(description, chosen) == reason


def test_messages_that_are_to_be_protected_in_different_ways_are_named(files: Files) -> None:
    encrypted = f"<wsp:Policy>{ASSERTIONS['encrypted parts']}</wsp:Policy>"
    description = described(ASSERTIONS["signature"], encrypted, "")
    reason = usable(description)
    assert "does not ask for messages encrypted for a certificate in the output of Put" in reason
    assert "but another of its demands needs that: Holdfast protects all messages in the same way" in reason
    for chosen in beginnings(files):
        assert outcome(description, chosen) == reason


def test_each_kind_of_source_is_one_that_can_be_made(files: Files) -> None:
    every = {one for kind in kinds_for(_EVERY) for one in kind.abilities}
    network = {one for one in every if "HTTP" in one.remedy or "https" in one.remedy or "listen" in one.remedy}
    for kind in kinds_for(_EVERY):
        chosen = Chosen(files)
        if not kind.name:
            continue
        for _ in range(4):
            lacking = [one for one in kind.abilities - network if one not in chosen.abilities()]
            for remedy in kind.remedies(lacking, chosen.abilities()):
                follow(chosen, remedy)
        assert chosen.abilities() >= kind.abilities - network, kind


def made(files: Files) -> Iterator[Chosen]:
    """Sources with each processor and each of its settings."""
    for digest, timestamp in product((False, True), repeat=2):
        yield with_options(files, "UsernameToken", digest=digest, timestamp=timestamp)
    yield with_options(files, "SamlToken")
    yield with_options(files, "Timestamp")
    ciphers, suites = ("aes256-cbc", "aes128-cbc", "aes256-gcm", "aes128-gcm"), ("Basic256", "Basic256Sha256")
    for name in ("SecureConversation", "SymmetricBinding", "EndorsedSymmetricBinding"):
        for cipher, suite_name, derived in product(ciphers, suites, (False, True)):
            options: dict[str, Any] = {"cipher": cipher, "suite": suite_name}
            options |= (
                {"certificate": files.certificate.with_name("shop.pem")}
                if name[1] == "e"
                else {"derived_keys": derived}
            )
            yield with_options(files, name, **options)
    yield with_options(files, "SecureConversation")
    for suite_name, reference in product((*suites, "rsa-sha256"), ("token", "thumbprint")):
        yield with_options(files, "X509", suite=suite_name, reference=reference)
        for cipher, order in product(ciphers, ("", "signature", "before_signing")):
            one = with_options(files, "X509", suite=suite_name, reference=reference)
            one.encrypt(cipher=cipher, own=files, headers=["{urn:h}A"], **({order: True} if order else {}))
            yield one


def with_options(files: Files, name: str, **options: Any) -> Chosen:
    one = Chosen(files)
    one.use(name, **options)
    return one


def test_each_source_is_of_a_kind(files: Files) -> None:
    kinds = kinds_for(_EVERY)
    for one in made(files):
        assert any(one.abilities() <= kind.abilities for kind in kinds), one.processor()


def _every() -> set[Any]:
    """All abilities, as if a policy mentioned them."""
    from holdfast.wire.policy import assertions

    found = {one for one in vars(assertions).values() if isinstance(one, assertions.Ability)}
    return found | {encrypted_header("{urn:h}A")}


_EVERY = _every()
