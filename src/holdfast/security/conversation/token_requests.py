"""Requests of a client for a security context, and what their answers grant (WS-Trust of 2005/02 and 1.3)."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Final

from lxml import etree

from holdfast.exceptions import EnvelopeError
from holdfast.security.conversation.trust import ENTROPY_BYTES, Form, Kind, p_sha1
from holdfast.security.header import MAX_NAME, Invalid, read_base64
from holdfast.security.names import WSSE, WSU
from holdfast.security.times import read_time
from holdfast.wire import parse_element
from holdfast.wire.text import escape

KEY_BYTES: Final = 32
"""Bytes of a key: 256 bits, as WCF's clients ask for."""
USUAL_LIFE: Final = 300.0
"""Seconds for which a token without a Lifetime is taken to be valid."""


@dataclass(frozen=True, slots=True)
class Granted:
    """A token, or another key of one.

    Args:
        identifier: Its name.
        instance: Which of its keys; "" for the first.
        life: Seconds for which it is valid from now on.
    """

    identifier: str
    instance: str
    key: bytes
    life: float


def write_request(form: Form, kind: Kind, target: str, entropy: bytes) -> str:
    """Return a RequestSecurityToken."""
    names = f'xmlns:t="{form.trust}" xmlns:wsse="{WSSE}"'
    content = f"<t:RequestType>{form.trust}/{kind}</t:RequestType>"
    if kind != "Issue":
        reference = f'<wsse:Reference URI="{escape(target)}" ValueType="{form.token_type}"/>'
        to_token = f"<wsse:SecurityTokenReference>{reference}</wsse:SecurityTokenReference>"
        content += f"<t:{kind}Target>{to_token}</t:{kind}Target>"
    if kind != "Cancel":
        secret = base64.b64encode(entropy).decode()
        content = f"<t:TokenType>{form.token_type}</t:TokenType>{content}" + (
            f'<t:Entropy><t:BinarySecret Type="{form.trust}/Nonce">{secret}</t:BinarySecret></t:Entropy>'
            f"<t:KeySize>{8 * KEY_BYTES}</t:KeySize>"
        )
    return f"<t:RequestSecurityToken {names}>{content}</t:RequestSecurityToken>"


def read_granted(body: bytes, form: Form, entropy: bytes) -> Granted:
    """Return what the answer to a request grants.

    The key comes from both sides' parts, or it is the issuer's part alone (WS-Trust 1.3, section 4.4.6). A key that
    this client alone would determine is refused.

    Raises:
        Invalid: It grants no token, or is malformed.
    """
    try:
        root = parse_element(body)
    except EnvelopeError as error:
        raise Invalid(f"the answer to the request for a token is not readable: {error.message}") from None
    trust, conversation = f"{{{form.trust}}}", f"{{{form.conversation}}}"
    answers = [root] if not form.collects else root.findall(f"{trust}RequestSecurityTokenResponse")
    if len(answers) != 1 or answers[0].tag != f"{trust}RequestSecurityTokenResponse":
        raise Invalid("the answer is not one RequestSecurityTokenResponse")
    answer = answers[0]
    token = _only(answer, f"{trust}RequestedSecurityToken/{conversation}SecurityContextToken")
    if token is None:
        raise Invalid("the answer has no SecurityContextToken")
    identifier = _text(token, f"{conversation}Identifier")
    instance = _text(token, f"{conversation}Instance")
    if not identifier or max(len(identifier), len(instance)) > MAX_NAME:
        raise Invalid("the SecurityContextToken has no Identifier, or a very long one")
    return Granted(identifier, instance, _key(answer, trust, form, entropy), _life(answer, trust))


def _key(answer: etree._Element, trust: str, form: Form, entropy: bytes) -> bytes:
    if _text(answer, f"{trust}KeySize") not in ("", str(8 * KEY_BYTES)):
        raise Invalid("the key has another size than was asked for")
    proof = f"{trust}RequestedProofToken/{trust}"
    if (computed := _text(answer, f"{proof}ComputedKey")) != "":
        if computed != f"{form.trust}/CK/PSHA1":
            raise Invalid(f"the key is computed by {computed[:100]!r}")
        theirs = _secret(answer, f"{trust}Entropy/{trust}BinarySecret")
        if len(theirs) not in ENTROPY_BYTES:
            raise Invalid(f"the issuer's part of the key has {len(theirs)} bytes")
        return p_sha1(entropy, theirs, KEY_BYTES)
    key = _secret(answer, f"{proof}BinarySecret")
    if len(key) != KEY_BYTES:
        raise Invalid(f"the key has {len(key)} bytes")
    return key


def _life(answer: etree._Element, trust: str) -> float:
    """Return for how long the token is valid. The difference does not depend on the clocks."""
    lifetime = _only(answer, f"{trust}Lifetime")
    if lifetime is None:
        return USUAL_LIFE
    created, expires = (read_time(_text(lifetime, f"{{{WSU}}}{name}")) for name in ("Created", "Expires"))
    if created is None or expires is None or expires <= created:
        raise Invalid("the Lifetime of the token has no Created and later Expires")
    return expires - created


def _only(parent: etree._Element, path: str) -> etree._Element | None:
    found = parent.findall(path)
    if len(found) > 1:
        raise Invalid(f"more than one {path.rpartition('}')[2]}")
    return found[0] if found else None


def _text(parent: etree._Element, path: str) -> str:
    found = _only(parent, path)
    return (found.text or "").strip() if found is not None else ""


def _secret(answer: etree._Element, path: str) -> bytes:
    return read_base64(_text(answer, path), "a part of the key")
