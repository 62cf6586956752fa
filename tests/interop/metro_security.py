"""WSDLs by which Metro secures the contract's messages: the policy, and where each side has its keys or users."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Literal

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12
from cryptography.x509 import load_pem_x509_certificates
from java_signers import OURS
from java_stacks import metro as words
from process_security import Security
from signers import Issued, issue
from wcf.https import certificate_in

import holdfast

METRO = issue("CN=metro,O=Example")
_CONTRACT = Path(__file__).with_name("metro") / "contract.wsdl"
_SP = "http://docs.oasis-open.org/ws-sx/ws-securitypolicy/200702"
_RM = {"1.0": "http://schemas.xmlsoap.org/ws/2005/02/rm", "1.1": "http://docs.oasis-open.org/ws-rx/wsrm/200702"}
_PASSWORD = "changeit"

# Without it in the policy, Metro does not secure the messages of the protocol.
_ASSERTION = {
    "1.0": '<r:RMAssertion xmlns:r="http://schemas.xmlsoap.org/ws/2005/02/rm/policy"/>',
    "1.1": '<r:RMAssertion xmlns:r="http://docs.oasis-open.org/ws-rx/wsrmp/200702"/>',
}

_POLICY = """<wsp:Policy xmlns:wsp="http://www.w3.org/ns/ws-policy" xmlns:sp="{sp}"
 xmlns:wsu="http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-utility-1.0.xsd"
 xmlns:sc="http://schemas.sun.com/2006/03/wss/{side}" xmlns:wspp="http://java.sun.com/xml/ns/wsit/policy"
 wsu:Id="secure">
 <wsp:ExactlyOne><wsp:All>
  <wsam:Addressing xmlns:wsam="http://www.w3.org/2007/05/addressing/metadata"/>
  {assertions}
 </wsp:All></wsp:ExactlyOne></wsp:Policy>"""

_CERTIFICATES = """<sp:AsymmetricBinding><wsp:Policy>
   <sp:InitiatorToken><wsp:Policy><sp:X509Token sp:IncludeToken="{sp}/IncludeToken/AlwaysToRecipient">
    <wsp:Policy><sp:WssX509V3Token10/></wsp:Policy></sp:X509Token></wsp:Policy></sp:InitiatorToken>
   <sp:RecipientToken><wsp:Policy><sp:X509Token sp:IncludeToken="{sp}/IncludeToken/Never">
    <wsp:Policy><sp:WssX509V3Token10/></wsp:Policy></sp:X509Token></wsp:Policy></sp:RecipientToken>
   <sp:AlgorithmSuite><wsp:Policy><sp:Basic256Sha256/></wsp:Policy></sp:AlgorithmSuite>
   <sp:Layout><wsp:Policy><sp:Strict/></wsp:Policy></sp:Layout><sp:IncludeTimestamp/><sp:OnlySignEntireHeadersAndBody/>
  </wsp:Policy></sp:AsymmetricBinding>
  <sp:Wss10><wsp:Policy><sp:MustSupportRefKeyIdentifier/><sp:MustSupportRefIssuerSerial/></wsp:Policy></sp:Wss10>
  <sp:SignedParts><sp:Body/><sp:Header Namespace="http://www.w3.org/2005/08/addressing"/><sp:Header Namespace="{rm}"/>
  </sp:SignedParts>{encrypted}
  <sc:KeyStore wspp:visibility="private" location="{keys}" type="PKCS12" storepass="{password}" alias="own"/>
  <sc:TrustStore wspp:visibility="private" location="{trust}" type="PKCS12" storepass="{password}" peeralias="peer"/>"""

_USER = """<sp:SupportingTokens><wsp:Policy>
   <sp:UsernameToken sp:IncludeToken="{sp}/IncludeToken/AlwaysToRecipient"><wsp:Policy>{digest}<sp:WssUsernameToken10/>
   </wsp:Policy></sp:UsernameToken></wsp:Policy></sp:SupportingTokens>{private}"""
_CLIENT = """<sc:CallbackHandlerConfiguration wspp:visibility="private">
   <sc:CallbackHandler default="alice" name="usernameHandler"/>
   <sc:CallbackHandler default="{word}" name="passwordHandler"/>
  </sc:CallbackHandlerConfiguration>"""
_SERVER = """<sc:ValidatorConfiguration wspp:visibility="private">
   <sc:Validator name="usernameValidator" classname="peer.Users"/></sc:ValidatorConfiguration>"""


_SYMMETRIC = """{binding}
  <sc:KeyStore wspp:visibility="private" location="{keys}" type="PKCS12" storepass="{password}" alias="own"/>
  <sc:TrustStore wspp:visibility="private" location="{trust}" type="PKCS12" storepass="{password}" peeralias="peer"/>
  {private}"""


_EITHER_PASSWORD = "<wsp:ExactlyOne><wsp:All/><wsp:All><sp:HashPassword/></wsp:All></wsp:ExactlyOne>"
"""What Metro's service cannot choose from."""
SYMMETRIC = ("symmetric key and user name", "symmetric key and certificate", "symmetric key and secure conversation")
"""As the matrix names them."""


OVER_HTTPS = "user name over https"


def users(directory: Path) -> holdfast.UsernameTokenValidator:
    """Return what a destination demands of messages with a user name and a Timestamp over https."""
    return holdfast.UsernameTokenValidator({"alice": "secret"}, require_timestamp=True, nonces=directory / "nonces")


def tls_of_metro(directory: Path) -> tuple[Path, Path]:
    """Write the key of a Metro service for https, and return its file and that of its authority."""
    certificate = certificate_in(directory)
    key = load_pem_private_key(certificate.read_bytes(), None)
    assert isinstance(key, (RSAPrivateKey, EllipticCurvePrivateKey))
    own, *others = load_pem_x509_certificates(certificate.read_bytes())
    keys = directory / "tls.p12"
    encryption = BestAvailableEncryption(_PASSWORD.encode())
    keys.write_bytes(pkcs12.serialize_key_and_certificates(b"own", key, own, others, encryption))
    return keys, directory / "ca.pem"


def symmetric(directory: Path, secured: str, *, confirm: bool = False) -> holdfast.SymmetricBindingValidator:
    """Return what a destination demands of messages with a symmetric key.

    The signature of Metro's client is not over its certificate: the digest in its reference is that of nothing.

    Args:
        directory: For files.
        secured: How, as the matrix names it.
        confirm: Whether it is what Metro's service demands.
    """
    users: Any = holdfast.UsernameTokenValidator({"alice": "secret"})
    if "certificate" in secured:
        users = holdfast.EndorsingCertificates(METRO.files(directory).certificate, signed=confirm)
    has_token = "conversation" in secured
    return holdfast.SymmetricBindingValidator(
        *OURS.files(directory), users=users, conversation=has_token, confirm=confirm
    )


def symmetric_client(directory: Path, secured: str) -> holdfast.Processor:
    """Return what secures the messages to such a service of Metro's.

    Metro's service names the version 1.3 in its policy, whatever its version of RM, and demands that CreateSequence
    names the token, although its policy does not say it.
    """
    certificate = METRO.files(directory).certificate
    if "certificate" in secured:
        return holdfast.EndorsedSymmetricBinding(*OURS.files(directory), certificate)
    if "conversation" not in secured:
        return holdfast.SymmetricBinding("alice", "secret", certificate)
    return holdfast.SecureConversation("alice", "secret", version="1.3", certificate=certificate).bind_sequences()


def _stores(directory: Path, own: Issued, peer: Issued) -> tuple[Path, Path]:
    """Write Metro's key store and its trust store, once for both sides."""
    keys, trust = directory / "keys.p12", directory / "trust.p12"
    if not trust.exists():
        encryption = BestAvailableEncryption(_PASSWORD.encode())
        keys.write_bytes(pkcs12.serialize_key_and_certificates(b"own", own.key, own.found, None, encryption))
        command = ["keytool", "-importcert", "-noprompt", "-alias", "peer", "-storetype", "PKCS12"]
        command += ["-file", str(peer.files(directory).certificate), "-keystore", str(trust), "-storepass", _PASSWORD]
        subprocess.run(command, check=True, capture_output=True)
    return keys, trust


def _wsdl(directory: Path, side: str, assertions: str) -> Path:
    policy = _POLICY.format(side=side, assertions=assertions, sp=_SP)
    text = _CONTRACT.read_text()
    for soap in ("11", "12"):
        begin = f'<w:binding name="Soap{soap}" type="t:Contract">'
        reference = '<p:PolicyReference xmlns:p="http://www.w3.org/ns/ws-policy" URI="#secure"/>'
        assert begin in text
        text = text.replace(begin, begin + reference)
    text = text.replace("  <w:types>", f"  {policy}\n  <w:types>")
    path = directory / f"{side}.wsdl"
    path.write_text(text)
    return path


def metro_side(
    directory: Path,
    versions: holdfast.Versions,
    side: Literal["client", "server"],
    secured: str,
    *,
    password: str = "secret",
    trusted: Issued = OURS,
) -> dict[str, Any]:
    """Settings of a Metro side that secures all messages, and demands it.

    Args:
        directory: For its files.
        versions: Of the protocols.
        side: The client or the server.
        secured: How, as the matrix names it.
        password: Of the client's user.
        trusted: Whose certificate it trusts.
    """
    if secured.startswith("certificates"):
        keys, trust = _stores(directory, METRO, trusted)
        encrypted = "<sp:EncryptedParts><sp:Body/></sp:EncryptedParts>" if "encryption" in secured else ""
        namespace = _RM[versions.rm.value]
        told = {"rm": namespace, "keys": keys, "trust": trust, "password": _PASSWORD, "encrypted": encrypted}
        assertions = _CERTIFICATES.format(sp=_SP, **told)
    elif secured == OVER_HTTPS:
        private = _CLIENT.format(word=password) if side == "client" else _SERVER
        assertions = users(directory).policy(is_https=True).replace(_EITHER_PASSWORD, "") + private
    elif secured in SYMMETRIC:
        keys, trust = _stores(directory, METRO, trusted)
        private = _CLIENT.format(word=password) if side == "client" else _SERVER
        demanded = symmetric(directory, secured, confirm=side == "server").policy(is_https=False)
        binding = demanded.replace(_EITHER_PASSWORD, "") if side == "server" else demanded
        assertions = _SYMMETRIC.format(binding=binding, keys=keys, trust=trust, password=_PASSWORD, private=private)
    else:
        private = _CLIENT.format(word=password) if side == "client" else _SERVER
        assertions = _USER.format(sp=_SP, digest="<sp:HashPassword/>" if "digest" in secured else "", private=private)
    wsdl = _wsdl(directory, side, _ASSERTION[versions.rm.value] + assertions).as_uri()
    return words(versions, **({"wsdl": wsdl} if side == "client" else {"policy": wsdl}))


def our_side(directory: Path, role: Literal["source", "destination"], secured: str) -> Security:
    """What secures the messages of Holdfast with such a Metro."""
    own, trusted = OURS.files(directory), METRO.files(directory).certificate
    return Security(secured, role, str(own.certificate), str(own.key), str(trusted))
