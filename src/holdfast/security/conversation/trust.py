"""Requests for a security context (WS-Trust and WS-SecureConversation, of 2005/02 and 1.3), and their answers."""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass
from typing import Final, Literal

from lxml import etree

from holdfast.endpoint.envelopes.processors import MessageContext
from holdfast.exceptions import EnvelopeError
from holdfast.security.conversation.contexts import SecurityContext
from holdfast.security.header import Invalid, read_base64
from holdfast.security.names import CONVERSATION_1_3, CONVERSATION_2005, TRUST_1_3, TRUST_2005, WSSE, WSU
from holdfast.security.signature import TOKEN_ID
from holdfast.security.times import write_time
from holdfast.wire import parse_element
from holdfast.wire.text import escape

Kind = Literal["Issue", "Renew", "Cancel"]

KEY_BITS: Final = (128, 192, 256, 384, 512)
"""Sizes of a key that a client may ask for."""
ENTROPY_BYTES: Final = range(16, 129)
"""Bytes of a client's part of a key. WCF and CXF send 32."""


@dataclass(frozen=True, slots=True)
class Form:
    """One version of WS-Trust and the WS-SecureConversation that goes with it.

    Args:
        trust: Namespace of WS-Trust.
        conversation: Namespace of WS-SecureConversation.
        collects: Whether a response is wrapped in a collection.
    """

    trust: str
    conversation: str
    collects: bool

    @property
    def token_type(self) -> str:
        """The URI that stands for a SecurityContextToken."""
        return f"{self.conversation}/sct"

    def action(self, message: Literal["RST", "RSTR"], kind: Kind) -> str:
        """Return the wsa:Action of a request or a response of WS-SecureConversation."""
        return f"{self.trust}/{message}/SCT" + ("" if kind == "Issue" else f"/{kind}")


FORMS: Final = (Form(TRUST_2005, CONVERSATION_2005, False), Form(TRUST_1_3, CONVERSATION_1_3, True))
_KINDS: Final[tuple[Kind, ...]] = ("Issue", "Renew", "Cancel")
_ACTIONS: Final = {form.action("RST", kind): (form, kind) for form in FORMS for kind in _KINDS}


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A RequestSecurityToken.

    Args:
        form: Its version.
        kind: What it asks for.
        target: Identifier of the token to renew or cancel, "" to issue one.
        entropy: The client's part of the new key, b"" to cancel a token.
        key_bits: Size of the new key.
    """

    form: Form
    kind: Kind
    target: str
    entropy: bytes
    key_bits: int


def read_request(context: MessageContext) -> TokenRequest | None:
    """Return the request for a token that a message is, None if it is another message.

    Raises:
        Invalid: It asks for what is not offered here, or is malformed.
    """
    found = _ACTIONS.get(context.envelope.action)
    if found is None:
        return None
    form, kind = found
    try:
        root = parse_element(context.envelope.body)
    except EnvelopeError as error:
        raise Invalid(f"the request for a token is not readable: {error.message}") from None
    trust = f"{{{form.trust}}}"
    if root.tag != f"{trust}RequestSecurityToken" or _text(root, f"{trust}RequestType") != f"{form.trust}/{kind}":
        raise Invalid("the Action and the body of the request for a token differ")
    target = "" if kind == "Issue" else _target(root, f"{trust}{kind}Target")
    if kind == "Cancel":
        return TokenRequest(form, kind, target, b"", 0)
    if _text(root, f"{trust}TokenType") not in ("", form.token_type):
        raise Invalid("the request is for another type of token")
    size = _text(root, f"{trust}KeySize") or "256"
    if size not in {str(bits) for bits in KEY_BITS}:
        raise Invalid(f"the request is for a key of {size[:20]} bits")
    return TokenRequest(form, kind, target, _entropy(root, trust), int(size))


def _text(parent: etree._Element, name: str) -> str:
    found = parent.findall(name)
    if len(found) > 1 or (found and len(found[0])):
        raise Invalid(f"{name.rpartition(chr(125))[2]} must be one text")
    return (found[0].text or "").strip() if found else ""


def _target(root: etree._Element, name: str) -> str:
    found = root.findall(f"{name}/{{{WSSE}}}SecurityTokenReference/{{{WSSE}}}Reference")
    if len(found) != 1:
        raise Invalid("the request does not name one token")
    return found[0].get("URI", "")


def _entropy(root: etree._Element, trust: str) -> bytes:
    secret = _text(root, f"{trust}Entropy/{trust}BinarySecret")
    entropy = read_base64(secret, "the client's part of the key")
    if len(entropy) not in ENTROPY_BYTES:
        raise Invalid(f"the client's part of the key has {len(entropy)} bytes")
    return entropy


def p_sha1(secret: bytes, seed: bytes, length: int) -> bytes:
    """Return the first bytes of P_SHA1, TLS 1.0's pseudo-random function with SHA-1 (RFC 2246, section 5)."""
    result, block = b"", seed
    while len(result) < length:
        block = hmac.digest(secret, block, "sha1")
        result += hmac.digest(secret, block + seed, "sha1")
    return result[:length]


def write_issued(request: TokenRequest, issued: SecurityContext, entropy: bytes, now: float) -> str:
    """Return the response that gives a token: what both sides compute the key from is in the two messages."""
    form, identifier, instance = request.form, escape(issued.identifier), escape(issued.instance)
    which = f' c:Instance="{instance}"' if instance else ""
    secret = base64.b64encode(entropy).decode()
    return _collected(
        form,
        f"<t:TokenType>{form.token_type}</t:TokenType><t:RequestedSecurityToken>"
        f"{write_token(form, issued.identifier, issued.instance)}</t:RequestedSecurityToken>"
        f"<t:RequestedAttachedReference>{_reference(form, f'#{TOKEN_ID}', which)}</t:RequestedAttachedReference>"
        f"<t:RequestedUnattachedReference>{_reference(form, identifier, which)}</t:RequestedUnattachedReference>"
        f"<t:RequestedProofToken><t:ComputedKey>{form.trust}/CK/PSHA1</t:ComputedKey></t:RequestedProofToken>"
        f'<t:Entropy><t:BinarySecret Type="{form.trust}/Nonce">{secret}</t:BinarySecret></t:Entropy>'
        f"<t:Lifetime><wsu:Created>{write_time(now)}</wsu:Created>"
        f"<wsu:Expires>{write_time(issued.until)}</wsu:Expires></t:Lifetime>"
        f"<t:KeySize>{request.key_bits}</t:KeySize>",
    )


def write_cancelled(request: TokenRequest) -> str:
    """Return the response that a token no longer counts."""
    return _collected(request.form, "<t:RequestedTokenCancelled/>")


def write_token(form: Form, identifier: str, instance: str) -> str:
    """Return a SecurityContextToken."""
    which = f"<c:Instance>{escape(instance)}</c:Instance>" if instance else ""
    content = f"<c:Identifier>{escape(identifier)}</c:Identifier>{which}"
    return (
        f'<c:SecurityContextToken xmlns:c="{form.conversation}" wsu:Id="{TOKEN_ID}">{content}</c:SecurityContextToken>'
    )


def write_reference(form: Form, identifier: str, instance: str) -> str:
    """Return a reference to a token from elsewhere."""
    which = f' xmlns:c="{form.conversation}" c:Instance="{escape(instance)}"' if instance else ""
    reference = f'<wsse:Reference URI="{escape(identifier)}" ValueType="{form.token_type}"{which}/>'
    return f'<wsse:SecurityTokenReference xmlns:wsse="{WSSE}">{reference}</wsse:SecurityTokenReference>'


def _reference(form: Form, uri: str, which: str) -> str:
    reference = f'<wsse:Reference URI="{uri}" ValueType="{form.token_type}"{which}/>'
    return f"<wsse:SecurityTokenReference>{reference}</wsse:SecurityTokenReference>"


def _collected(form: Form, content: str) -> str:
    names = f'xmlns:t="{form.trust}" xmlns:c="{form.conversation}" xmlns:wsse="{WSSE}" xmlns:wsu="{WSU}"'
    response = "t:RequestSecurityTokenResponse"
    if not form.collects:
        return f"<{response} {names}>{content}</{response}>"
    return f"<{response}Collection {names}><{response}>{content}</{response}></{response}Collection>"
