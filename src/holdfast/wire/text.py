"""Text of XML: escaping, numbers, durations, and the namespaces that a slice of a document needs to be self-contained.

This module handles lexical forms only, and no elements of SOAP, addressing or reliable messaging.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from holdfast.exceptions import EnvelopeError

MARKS = {b"\xef\xbb\xbf": "utf-8", b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
"""Byte order mark -> the encoding of the document that begins with it (XML 1.0, F.1)."""
UNMARKED = {b"<\0": "utf-16-le", b"\0<": "utf-16-be"}
"""First bytes of a document in UTF-16 without a byte order mark -> its encoding."""

# These patterns list the characters to find. Python takes ten times as long to compile the complement.
NOT_IN_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""Characters that no document may hold (XML 1.0 section 2.2)."""
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f&<>\ud800-\udfff\ufffe\uffff]")
_PLAIN = re.compile(r"[ -%'-;=?-~]*").fullmatch
_REPLACEMENTS = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#13;"}


def escape(text: str) -> str:
    """Return ``text`` as XML character data; characters that XML cannot contain become U+FFFD."""
    # Nearly every text: printable ASCII without mark-up.
    if _PLAIN(text) is not None:
        return text
    return _UNSAFE.sub(lambda match: _REPLACEMENTS.get(match[0], "\ufffd"), text)


def storable(text: str) -> str:
    """Return ``text`` with U+FFFD instead of characters that XML cannot contain."""
    return _UNSAFE.sub(lambda match: match[0] if match[0] in _REPLACEMENTS else "\ufffd", text)


def escape_attribute(text: str) -> str:
    return escape(text).replace('"', "&quot;").replace("\t", "&#9;").replace("\n", "&#10;")


def strip(text: str) -> str:
    """Remove XML white space, and no other, from both ends."""
    return text.strip(" \t\r\n")


def number(text: str, what: str) -> int:
    """Parse a decimal number of at most 64 digits.

    Raises:
        EnvelopeError: for anything else; ``what`` names the element.
    """
    digits = strip(text)
    # The schema permits any length. int() of a long one takes quadratic time, and no Sequence has such a number.
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 64):
        raise EnvelopeError(f"{what} is not a number: {digits[:80]!r}")
    return int(digits)


_DURATION = re.compile(
    r"P(?:(\d{1,9})Y)?(?:(\d{1,9})M)?(?:(\d{1,9})D)?"
    r"(?:T(?:(\d{1,12})H)?(?:(\d{1,12})M)?(?:(\d{1,15}(?:\.\d{1,12})?)S)?)?",
    re.ASCII,
)
_SECONDS = (365 * 86400, 30 * 86400, 86400, 3600, 60, 1)


LONGEST = 1e11
"""Seconds, three thousand years. A longer duration is read as this, so that sums with it stay exact."""


def duration(text: str) -> float | None:
    """Parse an xs:duration as seconds, :data:`LONGEST` at most; zero, which peers write for "never", is None.

    A year counts as 365 days and a month as 30.

    Raises:
        EnvelopeError: if it is not a duration, or is negative.
    """
    written = strip(text)
    match = _DURATION.fullmatch(written)
    if match is None or written[-1] in "PT":
        raise EnvelopeError(f"Expires is not a duration: {written[:80]!r}")
    seconds = sum(float(part) * unit for part, unit in zip(match.groups(), _SECONDS, strict=True) if part)
    # PT0S is "never" to every peer (WS-RM 3.4), not the shortest life.
    return min(seconds, LONGEST) or None


def write_duration(seconds: float) -> str:
    """Format seconds as an xs:duration, to the microsecond."""
    return "PT" + (f"{seconds:.6f}".rstrip("0").rstrip(".") or "0") + "S"


# --- elements that differ only in their values ---------------------------------------------------------------------

_ONLY_VALUES = re.compile(r"[\t\n -%'-~]*").fullmatch
_VALUE = r"[\t\n -%'-;=?-~]*+"
_QUOTED_VALUE = "[ !#-%'-;=?-~]*+"
_WORDS = r"[\t\n -%'-9;=?-~]*+"
_QUOTED_WORDS = "[ !#-%'-9;=?-~]*+"
_VALUE_WITHOUT_PREFIX = f"{_WORDS}(?::(?![A-Za-z_]){_WORDS})*+"
_QUOTED_WITHOUT_PREFIX = f"{_QUOTED_WORDS}(?::(?![A-Za-z_]){_QUOTED_WORDS})*+"
_ENDS_IN_ID = re.compile(r"\s(?!xmlns:)(?:[\w.\-]+:)?Id\s*=\s*\Z").search


def block_pattern(block: str, *, prefixes: bool = True) -> str | None:
    """Return a pattern of the elements that differ from one only in texts and in attributes called Id.

    The text after each start tag is a group; of an empty element, it is "". What the pattern matches is as well-formed
    as the element, and has the same names, namespaces and white space after end tags. Its texts contain nothing to
    resolve or to normalize.

    Args:
        block: A well-formed element, with nothing around it.
        prefixes: Whether the texts and Ids may contain what may be the prefix of a name.

    Returns:
        The pattern; None if the element has other mark-up or characters, or text after an end tag.
    """
    if _ONLY_VALUES(block) is None:
        return None
    value, quoted = (_VALUE, _QUOTED_VALUE) if prefixes else (_VALUE_WITHOUT_PREFIX, _QUOTED_WITHOUT_PREFIX)
    parts: list[str] = []
    for number, token in enumerate(block.split("<")[1:]):
        tag, _, after = token.partition(">")
        is_end, is_empty = tag[:1] == "/", tag[-1:] == "/"
        # A quote that stays open: the value has a ">", which does not end the tag.
        if tag[:1] in ("!", "?") or "'" in tag or tag.count('"') % 2 or ((is_end or is_empty) and after.strip()):
            return None
        literals = [tag] if number == 0 else _without_ids(tag)
        text = re.escape(after) if is_end else f"(){re.escape(after)}" if is_empty else f"({value})"
        parts += ["<", quoted.join(map(re.escape, literals)), ">", text]
    return "".join(parts)


def names_of(block: str) -> str:
    """Return what :func:`block_pattern` has of an element: its tags, without texts and Ids."""
    tags = [token.partition(">")[0] for token in block.split("<")[1:]]
    return "".join(f"<{''.join(_without_ids(tag))}>" for tag in tags)


def _without_ids(tag: str) -> list[str]:
    """Return the text of a tag before, between and after the values of its attributes called Id.

    The value of another attribute may look like an Id: ``a=" Id="``.
    """
    first, *others = tag.split('"')
    literals = [first]
    before = first
    for value, after in zip(others[::2], others[1::2], strict=True):
        # An Id differs in every message (WS-Security), and any other value does not.
        if _ENDS_IN_ID(before):
            literals[-1] += '"'
            literals.append(f'"{after}')
        else:
            literals[-1] += f'"{value}"{after}'
        before = after
    return literals


# --- namespaces that a slice of a document needs ----------------------------------------------------------------------


class Scope:
    """The namespaces in scope of an element: its own declarations, and a link to the scope around it.

    It copies nothing from the enclosing scope, so the cost of a document's scopes is linear in its size.

    Args:
        own: Prefix -> namespace, as this element declares them.
        above: The scope around it, None for the root's.
    """

    __slots__ = ("above", "count", "own")

    def __init__(self, own: dict[str, str], above: Scope | None = None) -> None:
        self.own = own
        self.above = above
        self.count: int = len(own) + (above.count if above is not None else 0)

    def get(self, prefix: str) -> str:
        """Return the namespace of a prefix; "" if it is not declared."""
        scope: Scope | None = self
        # Outwards, so the nearest declaration counts.
        while scope is not None:
            if prefix in scope.own:
                return scope.own[prefix]
            scope = scope.above
        return ""


EMPTY_SCOPE = Scope({})


@dataclass(frozen=True, slots=True)
class Declaration:
    """One prefix in scope.

    Args:
        sign: Bytes that any use of it contains; b"" for the default namespace, which anything may use.
        use: Pattern of a use as a prefix: in a name, or in text that may be a QName ("https:" is no use of "s").
        written: The declaration to insert, with a space before it.
    """

    sign: bytes
    use: re.Pattern[bytes]
    written: bytes

    def needed_by(self, raw: bytes) -> bool:
        return raw.find(self.sign) >= 0 and (not self.sign or self.use.search(raw) is not None)


Declarations = tuple[Declaration, ...]


def declarations(scope: Mapping[str, str]) -> Declarations:
    """Prepare a few namespaces in scope for separate searches; prefix "" is the default namespace."""
    return tuple([_declaration(prefix, uri) for prefix, uri in sorted(scope.items()) if uri and prefix != "xml"])


@lru_cache(maxsize=1024)
def _declaration(prefix: str, uri: str) -> Declaration:
    sign = f"{prefix}:".encode() if prefix else b""
    letters = rb"\w.\-" if prefix.isascii() else rb"\w.\-\x80-\xff"
    # The sign comes first, because a pattern that begins with a literal is searched quickly.
    use = re.compile(re.escape(sign) + rb"(?<![" + letters + rb"]" + re.escape(sign) + rb")(?=[A-Za-z_\x80-\xff])")
    return Declaration(sign, use, _written(prefix, uri))


def _written(prefix: str, uri: str) -> bytes:
    return f' xmlns{":" + prefix if prefix else ""}="{escape_attribute(uri)}"'.encode()


# Tried only at the beginning of a word and without backtracking, so that a search takes linear time. Each byte of a
# letter outside ASCII is part of a word, too: otherwise, a text of such letters would have a beginning at each.
_PREFIX = re.compile(rb"(?<![\w.\-\x80-\xff])([\w.\-\x80-\xff]++):(?=[A-Za-z_\x80-\xff])")
_ASCII_END = re.compile(rb"[\x80-\xff]([A-Za-z_][\w.\-]*)\Z")


def needed_from(scope: Scope, raw: bytes, tops: list[int], end: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the declarations that adjacent elements may need from ``scope``, however many that has.

    The result is that of :meth:`Declaration.needed_by` for each, in the same order, in one pass over ``raw``.

    Yields:
        The offset of each element that needs any, and those declarations.
    """
    default = scope.get("")
    always = {"": _written("", default)} if default else {}
    needed = always.copy()
    known: dict[bytes, dict[str, bytes]] = {}
    index, after = 0, tops[1] if len(tops) > 1 else end
    for match in _uses(raw, tops[0], end):
        # The match is in a later element, so the current one is complete.
        while after <= match.start():
            if needed:
                yield tops[index], [needed[prefix] for prefix in sorted(needed)]
                needed = always.copy()
            index += 1
            after = tops[index + 1] if index + 1 < len(tops) else end
        token = match[1]
        found = known.get(token)
        if found is None:
            found = known[token] = _stands_for(token, scope)
        needed.update(found)
    for top in tops[index:] if always else tops[index : index + 1]:
        if needed:
            yield top, [needed[prefix] for prefix in sorted(needed)]
            needed = always


_WINDOW = 1_024


def _uses(raw: bytes, start: int, end: int) -> Iterator[re.Match[bytes]]:
    """Yield possible uses of prefixes.

    A search blocks every other thread, and costs ten times as much as a check for a colon. So each search covers only a
    part from one "<" to a later one.
    """
    while start < end:
        # A part ends before a "<", because no prefix extends over one.
        stop = raw.find(b"<", min(start + _WINDOW, end), end)
        if stop < 0:
            stop = end
        if raw.find(b":", start, stop) >= 0:
            yield from _PREFIX.finditer(raw, start, stop)
        start = stop


def _stands_for(token: bytes, scope: Scope) -> dict[str, bytes]:
    """Return the prefixes in scope that the text before a colon may end with, and their declarations."""
    # An ASCII prefix may begin after a letter outside ASCII, in text that may be a QName.
    inner = _ASCII_END.search(token)
    prefixes = [one.decode("utf-8", "replace") for one in ((token, inner[1]) if inner is not None else (token,))]
    return {prefix: _written(prefix, uri) for prefix in prefixes if prefix != "xml" and (uri := scope.get(prefix))}


_TAG = re.compile(rb"<[^\s<>/\"'=]++((?:\s++[^\s=<>\"']++\s*+=\s*+(?:\"[^\"<]*+\"|'[^'<]*+'))*+)\s*+/?>")
_NAME_END = re.compile(rb"[\s/>]")
_DECLARES = re.compile(rb"\s(xmlns(?::[^\s=]+)?)\s*=")


def declare(raw: bytes, top: int, needed: Iterable[bytes], done: int, parts: list[bytes]) -> int:
    """Insert the needed declarations into the start tag at ``top``, unless it has them already.

    Args:
        raw: The text that contains the tag.
        done: How much of ``raw`` is in ``parts`` already.
        parts: Receives ``raw`` up to the end of the tag's name, and the declarations.

    Returns:
        How much of ``raw`` is in ``parts`` afterwards.
    """
    tag = _TAG.match(raw, top)
    # Before the attributes: the tag's own declarations stay as they are.
    name_end = _NAME_END.search(raw, top)
    if tag is None or name_end is None:
        raise EnvelopeError("the body is not well-formed XML")
    own = set(_DECLARES.findall(tag[1]))
    parts.append(raw[done : name_end.start()])
    # Its own declaration of a prefix hides that of the scope around it.
    parts.extend([written for written in needed if written[1 : written.index(b"=")] not in own])
    return name_end.start()


def self_contained(raw: bytes, top: int, in_scope: Declarations) -> bytes:
    """Make a slice of a well-formed document with one element self-contained.

    Returns:
        ``raw`` itself if it needs none of them; otherwise with the needed declarations added to its start tag, except
        those that it has already.
    """
    needed = [declaration.written for declaration in in_scope if declaration.needed_by(raw)]
    if not needed:
        return raw
    parts: list[bytes] = []
    done = declare(raw, top, needed, 0, parts)
    parts.append(raw[done:])
    return b"".join(parts)
