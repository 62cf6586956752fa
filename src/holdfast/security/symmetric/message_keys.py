"""The symmetric keys that a message names: that of its token, and those derived from it (WS-SecureConversation 1.3, 7).

A reference to a key counts only if it names one of these. Nothing is searched by an Id elsewhere in the message.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Mapping
from typing import Final

from lxml import etree

from holdfast.security.conversation.trust import p_sha1
from holdfast.security.header import Invalid
from holdfast.security.names import (
    BASE64,
    CONVERSATIONS,
    DS,
    ENCRYPTED_KEY,
    ENCRYPTED_KEY_SHA1,
    WSSE,
    WSSE11,
)
from holdfast.security.signature import ID, decoded, encoded

MAX_DERIVED: Final = 8
"""Maximum number of derived keys of a message. CXF, Metro and WCF use two."""
LENGTHS: Final = range(16, 65)
"""Bytes of a derived key."""
MAX_OFFSET: Final = 1024
"""Maximum bytes before a derived key."""
NONCES: Final = range(8, 129)
"""Bytes of the nonce of a derived key. CXF has 16, Metro 18."""
MAX_LABEL: Final = 256
"""Maximum characters of the label of a derived key."""
_LABEL: Final = "WS-SecureConversationWS-SecureConversation"
"""The label of both sides, if a token has none."""
_NONCE: Final = 16
"""Bytes of our nonces."""
_DERIVED: Final = {f"{{{namespace}}}DerivedKeyToken": namespace for namespace in CONVERSATIONS}


class MessageKeys:
    """The keys of a message, by the references that name them.

    Args:
        named: What names the key of the token -> the key. Names are those of :func:`name_of`.
    """

    def __init__(self, named: Mapping[str, bytes]) -> None:
        self._roots = dict(named)
        self._derived: dict[str, bytes] = {}
        self.derives_in = ""
        """Namespace of the derived keys, "" without any."""

    def derive(self, security: etree._Element) -> None:
        """Compute the derived keys of a Security header (WS-SecureConversation 1.3, section 7).

        Raises:
            Invalid: There are many, or one is malformed or derived from another key.
        """
        tokens = [one for one in security if one.tag in _DERIVED]
        if len(tokens) > MAX_DERIVED:
            raise Invalid(f"{len(tokens)} derived keys")
        for token in tokens:
            name = f"#{token.get(ID, '')}"
            # Otherwise a later key could take the place of an earlier one.
            if name == "#" or name in self._derived or name in self._roots:
                raise Invalid("a derived key has no Id, or that of another")
            self.derives_in = _DERIVED[str(token.tag)]
            self._derived[name] = self._derive(token, self.derives_in)

    def _derive(self, token: etree._Element, namespace: str) -> bytes:
        space = f"{{{namespace}}}"
        known = [
            f"{{{WSSE}}}SecurityTokenReference",
            *[space + name for name in ("Offset", "Length", "Label", "Nonce")],
        ]
        parts = {str(one.tag): one for one in token}
        # Fewer names than children: a part is repeated.
        if len(parts) != len(token) or not set(parts) <= set(known) or not {known[0], known[4]} <= set(parts):
            raise Invalid("a derived key has other parts than it should")
        if token.get("Algorithm", f"{namespace}/dk/p_sha1") != f"{namespace}/dk/p_sha1":
            raise Invalid(f"a key is derived with {token.get('Algorithm', '')[:100]!r}")
        root = self._roots.get(name_of(parts[known[0]]))
        if root is None:
            raise Invalid("a key is derived from another than that of the message's token")
        offset, length = _number(parts.get(known[1]), 0), _number(parts.get(known[2]), 32)
        label, nonce = parts.get(known[3]), decoded(parts[known[4]])
        text = _LABEL if label is None else label.text or ""
        if offset > MAX_OFFSET or length not in LENGTHS or len(nonce) not in NONCES or len(text) > MAX_LABEL:
            raise Invalid("a derived key is very long, or short")
        return derived(root, text, nonce, offset, length)

    def find(self, reference: etree._Element) -> bytes:
        """Return the key that a SecurityTokenReference names.

        Raises:
            Invalid: It names none of the message.
        """
        name = name_of(reference)
        key = self._derived.get(name, self._roots.get(name))
        if key is None:
            raise Invalid("a key is named that is not the message's")
        return key


def derived(key: bytes, label: str, nonce: bytes, offset: int, length: int) -> bytes:
    return p_sha1(key, label.encode() + nonce, offset + length)[offset:]


def _number(element: etree._Element | None, otherwise: int) -> int:
    text = str(otherwise) if element is None else (element.text or "").strip()
    if not (text.isascii() and text.isdigit() and len(text) < 6) or (element is not None and len(element)):
        raise Invalid("Offset or Length of a derived key is not a number")
    return int(text)


def name_of(reference: etree._Element) -> str:
    """Return what a SecurityTokenReference names: ``"#Id"``, the URI of a token, or ``"sha1:…"`` of an encrypted key.

    Raises:
        Invalid: It has another form.
    """
    if len(reference) != 1:
        raise Invalid("a SecurityTokenReference does not have one part")
    (part,) = reference
    if part.tag == f"{{{WSSE}}}Reference" and part.get("URI"):
        return str(part.get("URI"))
    is_sha1 = part.get("ValueType") == ENCRYPTED_KEY_SHA1 and part.get("EncodingType", BASE64) == BASE64
    if part.tag == f"{{{WSSE}}}KeyIdentifier" and is_sha1 and not len(part):
        return sha1_name(decoded(part))
    raise Invalid("a SecurityTokenReference names no symmetric key")


def sha1_name(digest: bytes) -> str:
    """Return the name of an encrypted key, by the SHA-1 of its encrypted bytes."""
    return f"sha1:{base64.b64encode(digest).decode()}"


# --- writing ------------------------------------------------------------------------------------------------------


def to_encrypted_key(wrapped: bytes) -> str:
    """Return a reference to the encrypted key of another message (SOAP Message Security 1.1, section 7.7)."""
    value = encoded(hashlib.sha1(wrapped).digest())
    return (
        f'<wsse:SecurityTokenReference xmlns:wsse11="{WSSE11}" wsse11:TokenType="{ENCRYPTED_KEY}">'
        f'<wsse:KeyIdentifier EncodingType="{BASE64}" ValueType="{ENCRYPTED_KEY_SHA1}">{value}</wsse:KeyIdentifier>'
        "</wsse:SecurityTokenReference>"
    )


def write_derived(key: bytes, named: str, namespace: str, name: str, length: int) -> tuple[bytes, str, str]:
    """Return a derived key, its token, and a SecurityTokenReference to that."""
    nonce = secrets.token_bytes(_NONCE)
    token = (
        f'<c:DerivedKeyToken xmlns:c="{namespace}" xmlns:ds="{DS}" wsu:Id="{name}">{named}<c:Offset>0</c:Offset>'
        f"<c:Length>{length}</c:Length><c:Nonce>{encoded(nonce)}</c:Nonce></c:DerivedKeyToken>"
    )
    reference = f'<wsse:Reference URI="#{name}" ValueType="{namespace}/dk"/>'
    to_it = f"<wsse:SecurityTokenReference>{reference}</wsse:SecurityTokenReference>"
    return derived(key, _LABEL, nonce, 0, length), token, to_it
