"""The table of policy assertions that Holdfast can meet, and what each needs. To support an assertion, add a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.core.messages import MC_NS
from holdfast.core.versions import RM
from holdfast.wire.dialects.dialect import EARLY_ASSERTIONS
from holdfast.wire.dialects.versions import DIALECTS
from holdfast.wire.policy.expressions import Alternative, Assertion

RMP_1_0 = "http://schemas.xmlsoap.org/ws/2005/02/rm/policy"
RMP_1_1 = "http://docs.oasis-open.org/ws-rx/wsrmp/200702"
NET_RMP_1_0 = "http://schemas.microsoft.com/net/2005/02/rm/policy"
NET_RMP_1_1 = "http://schemas.microsoft.com/ws-rx/wsrmp/200702"
METRO = "http://java.sun.com/xml/ns/metro/ws-rx/wsrmp/200702"
METRO_2006 = ("http://sun.com/2006/03/rm", "http://sun.com/2006/03/rm/client")
SANDESHA = "http://ws.apache.org/sandesha2/policy"
ADDRESSING_METADATA = "http://www.w3.org/2007/05/addressing/metadata"
ADDRESSING_DRAFTS = (
    "http://www.w3.org/2006/05/addressing/wsdl",
    "http://schemas.xmlsoap.org/ws/2004/08/addressing/policy",
)
SECURITY = (
    "http://docs.oasis-open.org/ws-sx/ws-securitypolicy/200702",
    "http://docs.oasis-open.org/ws-sx/ws-securitypolicy/200802",
    "http://schemas.xmlsoap.org/ws/2005/07/securitypolicy",
    "http://schemas.microsoft.com/ws/2005/07/securitypolicy",
)
CXF_SUITES = "http://cxf.apache.org/custom/security-policy"
NET_HTTP = "http://schemas.microsoft.com/ws/06/2004/policy/http"
NET_DUPLEX = "http://schemas.microsoft.com/net/2006/06/duplex"
NET_ROUTING = "http://schemas.microsoft.com/ws/2005/05/routing/policy"
NET_BINARY = "http://schemas.microsoft.com/ws/06/2004/mspolicy/netbinary1"
MTOM = (
    "http://schemas.xmlsoap.org/ws/2004/09/policy/optimizedmimeserialization",
    "http://www.w3.org/2007/08/soap12-mtom-policy",
)
MTOM_ASSERTIONS = frozenset({f"{{{MTOM[0]}}}OptimizedMimeSerialization", f"{{{MTOM[1]}}}MTOM"})
"""Assertions that demand MTOM."""
TRANSACTIONS = ("http://schemas.xmlsoap.org/ws/2004/10/wsat", "http://docs.oasis-open.org/ws-tx/wsat/2006/06")
PROFILE = "http://ws-i.org/profiles/rsp/1.0/"


@dataclass(frozen=True, slots=True)
class Ability:
    """Something that a Source does if it was told to.

    Attributes:
        words: What it is, for errors: "a user name and password in each message".
        remedy: How to make the Source do it.
        excess: How to make the Source stop it; "" if a service that does not demand it may get it all the same.
    """

    words: str
    remedy: str
    excess: str = ""


_TOKEN = "Give the Source the user name: processors=[holdfast.UsernameToken(name, password{more})], or {option}."
HTTPS = Ability("https", "Use the https URL of the service: Source.from_wsdl(wsdl, to='https://…').")
CLIENT_CERTIFICATE = Ability("a client certificate", "Give it: http=SourceHTTP(ssl_context=context), or --cert.")
HTTP_BASIC = Ability(
    "HTTP Basic authentication", "Give the header: http=SourceHTTP(headers={'Authorization': 'Basic …'}), or --header."
)
PASSWORD = Ability(
    "a user name and password in each message", _TOKEN.format(more="", option="--username and --password-file")
)
PASSWORD_DIGEST = Ability(
    "a user name and the digest of a password in each message",
    _TOKEN.format(more=", digest=True", option="--username, --password-file and --password-digest"),
)
TIMESTAMP = Ability(
    "a timestamp in each message",
    "Give the Source a timestamp: processors=[holdfast.Timestamp()].",
)
SECURE_CONVERSATION = Ability(
    "a secure conversation with a user name",
    "Give the Source the user name: processors=[holdfast.SecureConversation(name, password)].",
)
SAML_TOKEN = Ability(
    "a SAML assertion in each message",
    "Give the Source the assertion: processors=[holdfast.SamlToken('assertion.xml')].",
)
SEQUENCE_TOKEN = Ability(
    "Sequences that name a security token",
    "Use holdfast.SecureConversation(name, password), or bind_sequences() of X509 or EndorsedSymmetricBinding.",
)
SIGNATURES = Ability(
    "messages signed by a certificate",
    "Give the Source certificates: processors=[holdfast.X509(certificate, key, trusted=…)].",
)
BASIC_256_SHA_256 = Ability(
    "signatures over SHA-256 digests",
    "Use holdfast.X509(…, suite='Basic256Sha256') for CXF and Metro, or suite='rsa-sha256' for WCF.",
)
BASIC_256 = Ability("signatures over SHA-1 digests", "Use holdfast.X509(…, suite='Basic256').")
_CIPHER = "Use holdfast.X509(…, encrypt=holdfast.Encryption(cipher='{name}'))."
BASIC_128_SHA_256 = Ability("SHA-256 digests, and encryption with aes128-cbc", _CIPHER.format(name="aes128-cbc"))
BASIC_128 = Ability("SHA-1 digests, and encryption with aes128-cbc", _CIPHER.format(name="aes128-cbc"))
AES_256_GCM = Ability("encryption with aes256-gcm", _CIPHER.format(name="aes256-gcm"))
AES_128_GCM = Ability("encryption with aes128-gcm", _CIPHER.format(name="aes128-gcm"))
_WITHOUT = "Remove {option} from holdfast.{where}."
ENCRYPTION = Ability(
    "messages encrypted for a certificate",
    "Use holdfast.X509(…, encrypt=holdfast.Encryption()).",
    _WITHOUT.format(option="encrypt", where="X509"),
)
ENCRYPTED_SIGNATURES = Ability(
    "encrypted signatures",
    "Use holdfast.X509(…, encrypt=holdfast.Encryption(signature=True)).",
    _WITHOUT.format(option="signature=True", where="Encryption"),
)
ENCRYPTED_FIRST = Ability(
    "messages encrypted before they are signed",
    "Use holdfast.X509(…, encrypt=holdfast.Encryption(before_signing=True)).",
    _WITHOUT.format(option="before_signing=True", where="Encryption"),
)
RECEIVER_CERTIFICATE = Ability(
    "messages encrypted for another certificate than the one that the service signs with",
    "Name it: holdfast.X509(…, encrypt=holdfast.Encryption(certificate='service-encryption.pem')).",
)
OWN_ENCRYPTION_CERTIFICATE = Ability(
    "answers encrypted for another certificate than the one that the source signs with",
    "Name it with its key: holdfast.X509(…, encrypt=holdfast.Encryption(own=('encryption.pem', 'encryption.key'))).",
    _WITHOUT.format(option="own", where="Encryption"),
)
SYMMETRIC_KEY = Ability(
    "messages signed and encrypted with a symmetric key",
    "Use processors=[holdfast.SymmetricBinding(name, password, certificate)] with the certificate of the service, or, "
    "for a secure conversation, holdfast.SecureConversation(name, password, certificate=…).",
    "Use holdfast.UsernameToken(name, password) instead of holdfast.SymmetricBinding, or SecureConversation without "
    "certificate=.",
)
ENDORSEMENT = Ability(
    "a signature of the client's certificate over the signature of each message",
    "Use processors=[holdfast.EndorsedSymmetricBinding(own_certificate, own_key, certificate)].",
)
ENDORSING_REFERENCE = Ability(
    "a reference to the endorsing certificate instead of the certificate itself",
    "Ask the service's owner for IncludeToken/AlwaysToRecipient: holdfast.EndorsedSymmetricBinding sends the "
    "certificate.",
)
DERIVED_KEYS = Ability("keys derived from the key of a message", "Use holdfast.SymmetricBinding(…, derived_keys=True).")
ENCRYPTED_NAMESPACE = Ability(
    "encrypted headers that it does not name",
    "Ask the service's owner for a policy that names each header with its namespace.",
)
PROTECTED_TOKENS = Ability(
    "https, or messages with a symmetric key",
    "Use the https URL of the service: Source.from_wsdl(wsdl, to='https://…').",
)
SIGNED_TOKENS = Ability(
    "https, or messages whose signature is over the token",
    "Use the https URL of the service: Source.from_wsdl(wsdl, to='https://…').",
)
TOKEN_IN_MESSAGE = Ability("the certificate in each message", "Use holdfast.X509(…, reference='token'), the default.")
TOKEN_NOT_IN_MESSAGE = Ability(
    "a reference to a certificate that the service has",
    "Use holdfast.X509(…, reference='subject-key-identifier'), or 'issuer-serial', or 'thumbprint'.",
)
KEY_IN_ASSERTION = Ability(
    "a signature with the key that the assertion confirms",
    "Use holdfast.X509(…, reference='assertion').with_saml(holdfast.SamlToken('assertion.xml')).",
)
PROOFS = (
    PASSWORD,
    PASSWORD_DIGEST,
    SECURE_CONVERSATION,
    SAML_TOKEN,
    SIGNATURES,
    SYMMETRIC_KEY,
    ENDORSEMENT,
)
"""What a service learns from a message about its sender."""
ANONYMOUS = Ability("replies in the HTTP response", "Remove listen from SourceHTTP.")
POLLS = Ability(
    "replies that the client fetches with MakeConnection",
    "Remove listen and poll=False from SourceHTTP: the Source then polls.",
)
_LISTEN = "Let the Source listen: http=SourceHTTP(listen=(host, port))"
LISTENER = Ability("replies to an address", f"{_LISTEN}.")
CALLBACKS = Ability(
    "messages that the service sends on its own initiative, as with WCF's WSDualHttpBinding",
    f"{_LISTEN}, and handle them with @source.on(action).",
)


@dataclass(frozen=True, slots=True)
class Row:
    """How Holdfast meets an assertion.

    Attributes:
        needs: What the Source must do, or a function of the assertion and one alternative of its nested policy that
            returns it.
        lacks: What Holdfast would have to do and cannot, in words; "" if it can.
        within: Rows of the assertions of its nested policy, and of its parameters.
        is_open: Whether it may contain anything else: options of the service, or settings of another program.
    """

    needs: tuple[Ability, ...] | Callable[[Assertion, Alternative], tuple[Ability, ...]] = ()
    lacks: str = ""
    within: Mapping[str, Row] = field(default_factory=dict)
    is_open: bool = False

    def abilities(self, assertion: Assertion, nested: Alternative) -> tuple[Ability, ...]:
        """Return what the Source must do to meet the assertion with that alternative of its nested policy."""
        return self.needs if isinstance(self.needs, tuple) else self.needs(assertion, nested)


Table = Mapping[str, Row]
MET = Row()
OPEN = Row(is_open=True)


def rows(namespaces: str | Iterable[str], **named: Row) -> dict[str, Row]:
    spaces = (namespaces,) if isinstance(namespaces, str) else tuple(namespaces)
    return {f"{{{space}}}{name}": row for space in spaces for name, row in named.items()}


def lacking(words: str, namespaces: str | Iterable[str], *names: str) -> dict[str, Row]:
    """Return rows of assertions that Holdfast cannot meet."""
    return rows(namespaces, **dict.fromkeys(names, Row(lacks=words)))


# --- reliable messaging -----------------------------------------------------------------------------------------------

_DELIVERY = rows(
    RMP_1_1,
    DeliveryAssurance=Row(within=rows(RMP_1_1, ExactlyOnce=MET, AtLeastOnce=MET, AtMostOnce=MET, InOrder=MET)),
)
_TIMERS = rows(
    (RMP_1_0, NET_RMP_1_1),
    InactivityTimeout=MET,
    BaseRetransmissionInterval=MET,
    ExponentialBackoff=MET,
    AcknowledgementInterval=MET,
)
_FLOW_CONTROL = rows(NET_RMP_1_0, RmFlowControl=Row(within=rows(NET_RMP_1_0, MaxReceiveBufferSize=MET)))
_BINDINGS = {
    **rows(RMP_1_1, SequenceSTR=Row(needs=(SEQUENCE_TOKEN,))),
    **lacking("Sequences bound to one TLS session", RMP_1_1, "SequenceTransportSecurity"),
}
RM_ASSERTIONS = {name: rm for rm, dialect in DIALECTS.items() for name in dialect.policy_assertions}
"""Assertion that demands reliable messaging -> its version."""
EARLY = tuple(DIALECTS[rm].namespace for rm in RM if not rm.can.negotiates)
"""Namespaces of the versions before 1.0, which have their assertions beside each other."""
_RM = {
    **dict.fromkeys(RM_ASSERTIONS, Row(within={**_DELIVERY, **_TIMERS, **_FLOW_CONTROL, **_BINDINGS})),
    **rows(EARLY, **dict.fromkeys(EARLY_ASSERTIONS, MET)),
    **lacking("Sequences that are chosen by their Identifier", EARLY, "SequenceRef"),
    **_FLOW_CONTROL,
    **rows(
        METRO,
        RetransmissionConfig=Row(within=rows(METRO, Interval=MET, Algorithm=MET, MaxRetries=MET)),
        AckRequestInterval=MET,
        CloseSequenceTimeout=MET,
        MaintenanceTaskPeriod=MET,
        MaxConcurrentSessions=MET,
        Persistent=MET,
    ),
    **rows(METRO_2006, Ordered=MET, AllowDuplicates=MET, ResendInterval=MET, AckRequestInterval=MET, CloseTimeout=MET),
    **rows(SANDESHA, RMAssertion=OPEN),
    **rows(PROFILE, Conformant=MET),
    **rows(MC_NS, MCSupported=Row(needs=(POLLS,))),
}

# --- addressing -------------------------------------------------------------------------------------------------------

_ADDRESSING = {
    **rows(ADDRESSING_DRAFTS, UsingAddressing=MET),
    **rows(
        ADDRESSING_METADATA,
        Addressing=Row(
            within=rows(
                ADDRESSING_METADATA,
                AnonymousResponses=Row(needs=(ANONYMOUS,)),
                NonAnonymousResponses=Row(needs=(LISTENER,)),
            )
        ),
    ),
}

# --- security ---------------------------------------------------------------------------------------------------------

_ELEMENTS = "signatures over elements that an XPath selects"
_ENCRYPTED_ELEMENTS = "encrypted elements that an XPath selects"
_OTHER_TOKENS = "tokens other than a user name, or signed ones"


def _of_https_token(assertion: Assertion, _nested: Alternative) -> tuple[Ability, ...]:
    demanded = assertion.element.get("RequireClientCertificate", "").strip()  # SecurityPolicy 1.1; 1.2 nests it
    return (CLIENT_CERTIFICATE,) if demanded in ("true", "1") else ()


def _of_user_name(_assertion: Assertion, nested: Alternative) -> tuple[Ability, ...]:
    """A password in plain text, unless a nested assertion demands something else (SecurityPolicy 1.2, 5.4.1)."""
    others = {"HashPassword", "NoPassword", "Nonce", "Created"}
    return () if any(one.local_name in others for one in nested) else (PASSWORD,)


_USER_NAME = rows(
    SECURITY,
    UsernameToken=Row(
        needs=_of_user_name,
        within={
            **rows(SECURITY, WssUsernameToken10=MET, WssUsernameToken11=MET),
            **rows(SECURITY, HashPassword=Row(needs=(PASSWORD_DIGEST,))),
            **rows(SECURITY, Nonce=Row(needs=(PASSWORD_DIGEST,)), Created=Row(needs=(PASSWORD_DIGEST,))),
            **lacking("a user name without a password", SECURITY, "NoPassword"),
        },
    ),
)
_SAML_FORMS = rows(
    SECURITY, WssSamlV11Token10=MET, WssSamlV11Token11=MET, WssSamlV20Token11=MET, RequireKeyIdentifierReference=MET
)
_SAML = rows(SECURITY, SamlToken=Row(needs=(SAML_TOKEN,), within=_SAML_FORMS))
_TOKENS = {**_USER_NAME, **_SAML}
_HTTPS_TOKEN = rows(
    SECURITY,
    HttpsToken=Row(
        needs=_of_https_token,
        within={
            **rows(SECURITY, RequireClientCertificate=Row(needs=(CLIENT_CERTIFICATE,))),
            **rows(SECURITY, HttpBasicAuthentication=Row(needs=(HTTP_BASIC,))),
            **lacking("HTTP Digest authentication", SECURITY, "HttpDigestAuthentication"),
        },
    ),
)


def _of_initiator_token(assertion: Assertion, _nested: Alternative) -> tuple[Ability, ...]:
    """Whether a message contains the certificate of its sender (SecurityPolicy 1.2, 5.1.1)."""
    values = [value for name, value in assertion.element.items() if name.endswith("IncludeToken")]
    kind = values[0].rpartition("/")[2] if values else "Always"
    return (TOKEN_NOT_IN_MESSAGE,) if kind in ("Never", "AlwaysToInitiator") else (TOKEN_IN_MESSAGE,)


def _of_endorsing_certificate(assertion: Assertion, nested: Alternative) -> tuple[Ability, ...]:
    """The message has the certificate that endorses it (SecurityPolicy 1.2, 8.3)."""
    is_met = _of_initiator_token(assertion, nested) == (TOKEN_IN_MESSAGE,)
    return (ENDORSEMENT,) if is_met else (ENDORSEMENT, ENDORSING_REFERENCE)


_ENCRYPTED_HEADER = "the encrypted header "


def encrypted_header(name: str) -> Ability:
    """Return what a Source must do if a policy demands that a header block is encrypted.

    Args:
        name: Its name, ``"{namespace}local"``.
    """
    remedy = f"Use holdfast.X509(…, encrypt=holdfast.Encryption(headers=[{name!r}]))."
    return Ability(f"{_ENCRYPTED_HEADER}{name}", remedy, f"Remove {name!r} from headers of holdfast.Encryption.")


def is_header_encryption(ability: Ability) -> bool:
    return ability.words.startswith(_ENCRYPTED_HEADER)


def _of_encrypted_header(assertion: Assertion, _nested: Alternative) -> tuple[Ability, ...]:
    """One header, or all of a namespace (SecurityPolicy 1.2, 4.2.1): these would have to be named one by one."""
    namespace, name = assertion.element.get("Namespace", ""), assertion.element.get("Name", "")
    return (encrypted_header(f"{{{namespace}}}{name}"),) if namespace and name else (ENCRYPTED_NAMESPACE,)


_X509_FORMS = rows(
    SECURITY,
    WssX509V3Token10=MET,
    WssX509V3Token11=MET,
    RequireKeyIdentifierReference=MET,
    RequireIssuerSerialReference=MET,
    RequireThumbprintReference=MET,
)
_SIGNED_LAYOUTS = rows(SECURITY, Strict=MET, Lax=MET, LaxTsFirst=MET)
_SUITES = {
    **rows(SECURITY, Basic256Sha256=Row(needs=(BASIC_256_SHA_256,)), Basic256=Row(needs=(BASIC_256,))),
    **rows(SECURITY, Basic128Sha256=Row(needs=(BASIC_128_SHA_256,)), Basic128=Row(needs=(BASIC_128,))),
    **rows(CXF_SUITES, Basic256GCM=Row(needs=(AES_256_GCM,)), Basic128GCM=Row(needs=(AES_128_GCM,))),
}
_INITIATOR_TOKEN = rows(
    SECURITY,
    X509Token=Row(needs=_of_initiator_token, within=_X509_FORMS),
    SamlToken=Row(needs=(SAML_TOKEN, KEY_IN_ASSERTION), within=_SAML_FORMS),
)
_RECIPIENT_TOKEN = rows(SECURITY, X509Token=Row(within=_X509_FORMS))  # all forms of references are read
_SIGNATURES = rows(
    SECURITY,
    AsymmetricBinding=Row(
        needs=(SIGNATURES,),
        within={
            **rows(
                SECURITY,
                InitiatorToken=Row(within=_INITIATOR_TOKEN),
                InitiatorSignatureToken=Row(within=_INITIATOR_TOKEN),
                RecipientToken=Row(within=_RECIPIENT_TOKEN),
                RecipientSignatureToken=Row(within=_RECIPIENT_TOKEN),
                AlgorithmSuite=Row(within=_SUITES),
                Layout=Row(within=_SIGNED_LAYOUTS),
                IncludeTimestamp=MET,
                OnlySignEntireHeadersAndBody=MET,
                ProtectTokens=MET,
                EncryptSignature=Row(needs=(ENCRYPTED_SIGNATURES,)),
                EncryptBeforeSigning=Row(needs=(ENCRYPTED_FIRST,)),
            ),
            **rows(
                SECURITY,
                InitiatorEncryptionToken=Row(needs=(OWN_ENCRYPTION_CERTIFICATE,), within=_RECIPIENT_TOKEN),
                RecipientEncryptionToken=Row(needs=(RECEIVER_CERTIFICATE,), within=_RECIPIENT_TOKEN),
            ),
        },
    ),
    # A source with a certificate signs the Body and every header (SecurityPolicy 1.2, 4.1.1).
    SignedParts=Row(needs=(SIGNATURES,), within=rows(SECURITY, Body=MET, Header=MET)),
    # It encrypts the Body of each message, or none (SecurityPolicy 1.2, 4.2.1).
    EncryptedParts=Row(needs=(ENCRYPTION,), within=rows(SECURITY, Body=MET, Header=Row(needs=_of_encrypted_header))),
)
_TRANSPORT = rows(
    SECURITY,
    TransportBinding=Row(
        needs=(HTTPS,),
        within=rows(
            SECURITY,
            TransportToken=Row(within=_HTTPS_TOKEN),
            AlgorithmSuite=OPEN,  # of signatures, and the transport signs
            Layout=OPEN,
            IncludeTimestamp=Row(needs=(TIMESTAMP,)),
        ),
    ),
)
# Optional parts of WS-Security and WS-Trust that the service supports.
_OPTIONS = rows(SECURITY, Wss10=OPEN, Wss11=OPEN, Trust10=OPEN, Trust13=OPEN)
_BOOTSTRAP_USER = Row(within=rows(SECURITY, UsernameToken=Row(within=rows(SECURITY, WssUsernameToken10=MET))))
_CONVERSATION_TOKEN = rows(
    SECURITY,
    SecureConversationToken=Row(
        needs=(SECURE_CONVERSATION,),
        within=rows(
            SECURITY,
            BootstrapPolicy=Row(
                within={
                    **_TRANSPORT,
                    **_OPTIONS,
                    **rows(
                        SECURITY,
                        SupportingTokens=_BOOTSTRAP_USER,
                        SignedSupportingTokens=_BOOTSTRAP_USER,
                        SignedEncryptedSupportingTokens=_BOOTSTRAP_USER,
                    ),
                }
            ),
            MustNotSendAmend=MET,
            RequireExternalUriReference=MET,
        ),
    ),
)


def _symmetric_binding(tokens: Table) -> dict[str, Row]:
    """Return the rows of a SymmetricBinding with one of these tokens (SecurityPolicy 1.2, 7.4)."""
    within = {
        **rows(
            SECURITY,
            ProtectionToken=Row(within=tokens),
            AlgorithmSuite=Row(within=_SUITES),
            Layout=Row(within=_SIGNED_LAYOUTS),
            IncludeTimestamp=MET,
            OnlySignEntireHeadersAndBody=MET,
        ),
        **lacking("two symmetric keys", SECURITY, "EncryptionToken", "SignatureToken"),
        **lacking("an encrypted signature, as in WCF's security mode Message", SECURITY, "EncryptSignature"),
        **lacking("messages encrypted before they are signed, or signed keys", SECURITY, "EncryptBeforeSigning"),
        **lacking("messages encrypted before they are signed, or signed keys", SECURITY, "ProtectTokens"),
    }
    return rows(SECURITY, SymmetricBinding=Row(needs=(SYMMETRIC_KEY,), within=within))


_CERTIFICATE_OF_SERVICE = rows(
    SECURITY, X509Token=Row(within={**_X509_FORMS, **rows(SECURITY, RequireDerivedKeys=Row(needs=(DERIVED_KEYS,)))})
)
_SYMMETRIC_CONVERSATION = rows(
    SECURITY,
    SecureConversationToken=Row(
        needs=(SECURE_CONVERSATION,),
        within={
            **rows(
                SECURITY,
                RequireDerivedKeys=MET,
                MustNotSendAmend=MET,
                RequireExternalUriReference=MET,
                BootstrapPolicy=Row(
                    within={
                        **_symmetric_binding(_CERTIFICATE_OF_SERVICE),
                        **_OPTIONS,
                        **rows(SECURITY, SignedEncryptedSupportingTokens=_BOOTSTRAP_USER),
                        **lacking("tokens that are requested with a certificate", SECURITY, "AsymmetricBinding"),
                        **{name: _SIGNATURES[name] for name in rows(SECURITY, SignedParts=MET, EncryptedParts=MET)},
                    }
                ),
            ),
        },
    ),
)
_ENDORSING_CERTIFICATE = rows(SECURITY, X509Token=Row(needs=_of_endorsing_certificate, within=_X509_FORMS))


def _of_endorsing(_assertion: Assertion, nested: Alternative) -> tuple[Ability, ...]:
    return () if any(one.local_name == "X509Token" for one in nested) else (HTTPS,)


_SECURITY = {
    **_TRANSPORT,
    **_OPTIONS,
    **rows(
        SECURITY,
        # With SymmetricBinding, a certificate signs the signature (SecurityPolicy 1.2, 8.3); WITHOUT_SYMMETRIC_KEY has
        # what holds with other bindings. A source signs its certificate in either case.
        EndorsingSupportingTokens=Row(needs=_of_endorsing, within={**_CONVERSATION_TOKEN, **_ENDORSING_CERTIFICATE}),
        SignedEndorsingSupportingTokens=Row(within=_ENDORSING_CERTIFICATE),
        SupportingTokens=Row(within=_TOKENS),
        # The transport, or a symmetric key, signs and encrypts them; a certificate only signs (SecurityPolicy 1.2, 8).
        SignedSupportingTokens=Row(needs=(SIGNED_TOKENS,), within=_TOKENS),
        EncryptedSupportingTokens=Row(needs=(PROTECTED_TOKENS,), within=_TOKENS),
        SignedEncryptedSupportingTokens=Row(needs=(PROTECTED_TOKENS,), within=_TOKENS),
    ),
    **_SIGNATURES,
    **_symmetric_binding({**_CERTIFICATE_OF_SERVICE, **_SYMMETRIC_CONVERSATION}),
    **lacking(_ENCRYPTED_ELEMENTS, SECURITY, "EncryptedElements", "ContentEncryptedElements"),
    **lacking(_ELEMENTS, SECURITY, "SignedElements"),
    **rows(NET_HTTP, BasicAuthentication=Row(needs=(HTTP_BASIC,))),
    **lacking("Windows authentication", NET_HTTP, "NegotiateAuthentication"),
    **lacking("Windows authentication, NTLM", NET_HTTP, "NtlmAuthentication"),
    **lacking("HTTP Digest authentication", NET_HTTP, "DigestAuthentication"),
}

# --- the rest ---------------------------------------------------------------------------------------------------------

_OTHERS = {
    **rows(NET_DUPLEX, CompositeDuplex=Row(needs=(CALLBACKS,))),
    # Each HTTP response is empty, so whatever a message causes goes to its ReplyTo.
    **rows(NET_ROUTING, OneWay=Row(needs=(LISTENER,))),
    **lacking(".NET's binary encoding", NET_BINARY, "BinaryEncoding"),
    # Endpoints with MTOM read messages without attachments also as plain SOAP; those of WCF and CXF do.
    **rows(MTOM, OptimizedMimeSerialization=OPEN, MTOM=OPEN),
    **lacking("distributed transactions", TRANSACTIONS, "ATAssertion"),
}

TABLE: Table = {**_RM, **_ADDRESSING, **_SECURITY, **_OTHERS}
"""The assertions that may be in an alternative, by qualified name."""

_TIMESTAMP_BY_CERTIFICATE = lacking(
    "a certificate that signs the Timestamp, or several signatures", SECURITY, "X509Token"
)
WITHOUT_SYMMETRIC_KEY: Table = rows(
    SECURITY,
    # With TransportBinding, the key of a token signs the Timestamp (SecurityPolicy 1.2, 8.3).
    EndorsingSupportingTokens=Row(needs=(HTTPS,), within={**_CONVERSATION_TOKEN, **_TIMESTAMP_BY_CERTIFICATE}),
    SignedEndorsingSupportingTokens=Row(within=_TIMESTAMP_BY_CERTIFICATE),
)
"""What replaces rows of :data:`TABLE` if the endpoint has another binding than SymmetricBinding."""


def words_of_unknown(name: str) -> str:
    """Describe an assertion without a row."""
    namespace, _, local = name.removeprefix("{").rpartition("}")
    if not namespace.startswith(SECURITY):
        return f"an assertion of {namespace}" if namespace else "an assertion without a namespace"
    return _OTHER_TOKENS if local.endswith(("Tokens", "Token")) else "WS-Security"
