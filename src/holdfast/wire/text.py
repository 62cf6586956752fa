"""Text of XML: escaping, numbers, durations, and what a slice of a document needs to stand alone.

Owns lexical forms only; knows no element of SOAP, addressing or reliable messaging.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from holdfast.exceptions import EnvelopeError

_UNSAFE = re.compile(r"[^\t\n\x20-\x25\x27-\x3b\x3d\x3f-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_PLAIN = re.compile(r"[ -%'-;=?-~]*").fullmatch
_REPLACEMENTS = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#13;"}


def escape(text: str) -> str:
    """Gives ``text`` as XML character data; characters XML cannot hold become U+FFFD."""
    if _PLAIN(text) is not None:
        return text
    return _UNSAFE.sub(lambda match: _REPLACEMENTS.get(match[0], "\ufffd"), text)


def escape_attribute(text: str) -> str:
    """Gives ``text`` as the content of a double-quoted attribute value."""
    return escape(text).replace('"', "&quot;").replace("\t", "&#9;").replace("\n", "&#10;")


def strip(text: str) -> str:
    """Takes XML white space, and no other, off both ends."""
    return text.strip(" \t\r\n")


def number(text: str, what: str) -> int:
    """Reads a decimal number of at most 64 digits.

    Raises:
        EnvelopeError: for anything else; ``what`` names the element.
    """
    digits = strip(text)
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 64):
        raise EnvelopeError(f"{what} is not a number: {digits[:80]!r}")
    return int(digits)


_DURATION = re.compile(
    r"P(?:(\d{1,9})Y)?(?:(\d{1,9})M)?(?:(\d{1,9})D)?"
    r"(?:T(?:(\d{1,12})H)?(?:(\d{1,12})M)?(?:(\d{1,15}(?:\.\d{1,12})?)S)?)?",
    re.ASCII,
)
_SECONDS = (365 * 86400, 30 * 86400, 86400, 3600, 60, 1)


def duration(text: str) -> float | None:
    """Reads an xs:duration as seconds; zero, which peers write for "never", is None.

    A year counts as 365 days and a month as 30.

    Raises:
        EnvelopeError: if it is not a duration, or is negative.
    """
    written = strip(text)
    match = _DURATION.fullmatch(written)
    if match is None or written[-1] in "PT":
        raise EnvelopeError(f"Expires is not a duration: {written[:80]!r}")
    seconds = sum(float(part) * unit for part, unit in zip(match.groups(), _SECONDS, strict=True) if part)
    return seconds or None


def write_duration(seconds: float) -> str:
    """Writes seconds as an xs:duration, to the microsecond."""
    return "PT" + (f"{seconds:.6f}".rstrip("0").rstrip(".") or "0") + "S"


@dataclass(frozen=True, slots=True)
class Declaration:
    """One prefix in scope.

    Args:
        sign: What any use of it contains; b"" for the default namespace, which anything may use.
        use: A use as a prefix: in a name, or where a QName may stand in text ("https:" is no use of "s").
        written: The declaration to insert, with a space before it.
    """

    sign: bytes
    use: re.Pattern[bytes]
    written: bytes

    def needed_by(self, raw: bytes) -> bool:
        """Whether ``raw`` uses it."""
        return raw.find(self.sign) >= 0 and (not self.sign or self.use.search(raw) is not None)


Declarations = tuple[Declaration, ...]


def declarations(scope: Mapping[str, str]) -> Declarations:
    """Prepares the namespaces in scope for :func:`self_contained`; prefix "" is the default namespace."""
    return tuple([_declaration(prefix, uri) for prefix, uri in scope.items() if uri and prefix != "xml"])


@lru_cache(maxsize=1024)
def _declaration(prefix: str, uri: str) -> Declaration:
    written = f' xmlns{":" + prefix if prefix else ""}="{escape_attribute(uri)}"'.encode()
    sign = f"{prefix}:".encode() if prefix else b""
    # The sign first: a pattern that begins with a literal is searched for fast.
    use = re.compile(re.escape(sign) + rb"(?<![\w.\-]" + re.escape(sign) + rb")(?=[A-Za-z_\x80-\xff])")
    return Declaration(sign, use, written)


_TAG = re.compile(rb"<[^\s<>/\"'=]+((?:\s+[^\s=<>\"']+\s*=\s*(?:\"[^\"<]*\"|'[^'<]*'))*)\s*/?>")
_NAME_END = re.compile(rb"[\s/>]")


def self_contained(raw: bytes, tops: Iterable[int], in_scope: Declarations) -> bytes:
    """Makes a slice of a well-formed document stand alone.

    Args:
        raw: The slice: whole elements, and text between them.
        tops: Offsets in ``raw`` of the start tags of its top-level elements, ascending.
        in_scope: The namespaces declared above it.

    Returns:
        ``raw`` itself when it needs none of them; else with the needed ones declared in the top-level start tags
        that do not declare them already.
    """
    needed = [declaration.written for declaration in in_scope if declaration.needed_by(raw)]
    if not needed:
        return raw
    parts: list[bytes] = []
    done = 0
    for top in tops:
        tag = _TAG.match(raw, top)
        name_end = _NAME_END.search(raw, top)
        if tag is None or name_end is None:
            raise EnvelopeError("the body is not well-formed XML")
        attributes = tag[1]
        parts.append(raw[done : name_end.start()])
        parts.extend(
            written
            for written in needed
            if re.search(rb"\s" + re.escape(written[1 : written.index(b"=")]) + rb"\s*=", attributes) is None
        )
        done = name_end.start()
    parts.append(raw[done:])
    return b"".join(parts)
