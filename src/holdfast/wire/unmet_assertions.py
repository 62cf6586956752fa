"""Policy assertions that Holdfast cannot satisfy, with a description of each for errors.

A list of unsupported assertions would accept all unknown ones. So for WS-SecurityPolicy and .NET's HTTP authentication,
this module lists the supported assertions instead: transport security and HTTP Basic authentication.
"""

from __future__ import annotations

from lxml import etree

POLICY = ("http://www.w3.org/ns/ws-policy", "http://schemas.xmlsoap.org/ws/2004/09/policy")

UNABLE = {
    "CompositeDuplex": "messages that the service sends on its own initiative, as with WCF's wsDualHttpBinding",
    "SequenceSTR": "Sequences secured by a token",
    "SequenceTransportSecurity": "Sequences bound to one TLS session",
    "BinaryEncoding": ".NET's binary encoding",
    "OptimizedMimeSerialization": "messages in MTOM",
}
"""Unsupported assertions of any namespace, by local name, with a description."""

_SECURITY = (
    "http://schemas.xmlsoap.org/ws/2005/07/securitypolicy",
    "http://docs.oasis-open.org/ws-sx/ws-securitypolicy/",
    "http://schemas.microsoft.com/ws/2005/07/securitypolicy",
)
_SECURITY_MET = frozenset(
    {
        *("TransportBinding", "TransportToken", "HttpsToken", "RequireClientCertificate", "HttpBasicAuthentication"),
        # Algorithms and order of security headers, of which Holdfast sends none.
        *("AlgorithmSuite", "Layout", "Strict", "Lax", "LaxTsFirst", "LaxTsLast"),
        *("Basic256", "Basic192", "Basic128", "TripleDes", "Basic256Rsa15", "Basic192Rsa15", "Basic128Rsa15"),
        *("TripleDesRsa15", "Basic256Sha256", "Basic192Sha256", "Basic128Sha256", "TripleDesSha256"),
        *("Basic256Sha256Rsa15", "Basic192Sha256Rsa15", "Basic128Sha256Rsa15", "TripleDesSha256Rsa15"),
        *("InclusiveC14N", "STRTransform10", "XPath10", "XPathFilter20"),
        *("SOAPNormalization10", "C14N11"),
        # Optional parts of WS-Security and WS-Trust that the service supports.
        *("Wss10", "Wss11", "Trust10", "Trust13"),
    }
)
_OPTIONS = frozenset({"Wss10", "Wss11", "Trust10", "Trust13"})
_HTTP = "http://schemas.microsoft.com/ws/06/2004/policy/http"
_HTTP_MET = frozenset({"BasicAuthentication"})
_HTTP_NAMES = {
    "NegotiateAuthentication": "Windows authentication",
    "NtlmAuthentication": "Windows authentication, NTLM",
    "DigestAuthentication": "HTTP Digest authentication",
    "HttpDigestAuthentication": "HTTP Digest authentication",
}
_TOKENS = "tokens in messages, WCF's security mode TransportWithMessageCredential"
_MESSAGES = "messages signed or encrypted by WS-Security, WCF's security mode Message"
_SECURITY_WORDS = {
    "SymmetricBinding": _MESSAGES,
    "AsymmetricBinding": _MESSAGES,
    "SignedParts": _MESSAGES,
    "SignedElements": _MESSAGES,
    "EncryptedParts": _MESSAGES,
    "EncryptedElements": _MESSAGES,
    "IncludeTimestamp": "a timestamp in each message, WCF's security mode TransportWithMessageCredential",
}


def unmet(assertion: etree._Element) -> str:
    """Describe the unsupported requirement of an assertion, with its name; "" if it is satisfied.

    Optional parts of it are no requirement, and one satisfied alternative within it is enough.
    """
    if is_optional(assertion):
        return ""
    name = etree.QName(assertion)
    if name.namespace in POLICY and name.localname == "ExactlyOne":
        reasons = [unmet(one) for one in assertion.iterfind("*")]
        return "" if not reasons or "" in reasons else reasons[0]
    own = _own(name.namespace or "", name.localname)
    if own or name.localname in _OPTIONS:
        return own
    return _first(assertion)


def is_optional(assertion: etree._Element) -> bool:
    """Whether an assertion is marked as optional."""
    return any(assertion.get(f"{{{namespace}}}Optional") in ("true", "1") for namespace in POLICY)


def _first(assertion: etree._Element) -> str:
    return next((reason for one in assertion.iterfind("*") if (reason := unmet(one))), "")


def _own(namespace: str, name: str) -> str:
    if name in UNABLE:
        return f"{name} ({UNABLE[name]})"
    if namespace == _HTTP:
        return "" if name in _HTTP_MET else f"{name} ({_HTTP_NAMES.get(name, 'HTTP authentication')})"
    if not namespace.startswith(_SECURITY) or name in _SECURITY_MET:
        return ""
    words = _SECURITY_WORDS.get(name) or _HTTP_NAMES.get(name)
    if words is None:
        words = _TOKENS if name.endswith(("Tokens", "Token")) else "WS-Security"
    return f"{name} ({words})"
