"""The headers of an envelope with a Body that is too large to read."""

from __future__ import annotations

from pyexpat import ExpatError, ParserCreate
from xml.sax.saxutils import quoteattr

from holdfast.exceptions import EnvelopeError, LimitExceeded
from holdfast.wire.decoding.envelopes import as_utf8
from holdfast.wire.limits import DEFAULT, Limits
from holdfast.wire.tree import has_many_attributes, refuse_doctype, refuse_instruction


class _Found(Exception):
    """The Body begins. Never leaves this module."""


def head_of(data: bytes, limits: Limits = DEFAULT) -> bytes:
    """Return the beginning of an envelope as a complete one, with an empty Body. :func:`decode` checks the rest of it.

    Raises:
        LimitExceeded: The Body does not begin within the limit of the headers.
        EnvelopeError: The bytes do not begin an envelope in UTF-8.
    """
    data = as_utf8(data[: limits.max_header_bytes])
    if has_many_attributes(data, limits.max_attributes):
        raise LimitExceeded(f"an element has more than {limits.max_attributes} attributes")
    # Without namespaces: what is added needs the names as they are written.
    parser = ParserCreate("UTF-8")
    parser.StartDoctypeDeclHandler = refuse_doctype
    parser.ProcessingInstructionHandler = refuse_instruction
    root, body, start, depth = "", "", 0, 0

    def begin(name: str, attributes: dict[str, str]) -> None:
        nonlocal root, body, start, depth
        depth += 1
        if depth == 1:
            root = name
        elif depth == 2 and name.rpartition(":")[2] == "Body":
            body = " ".join([name, *(f"{key}={quoteattr(value)}" for key, value in attributes.items())])
            start = parser.CurrentByteIndex
            raise _Found

    def end(_name: str) -> None:
        nonlocal depth
        depth -= 1

    parser.StartElementHandler, parser.EndElementHandler = begin, end
    try:
        parser.Parse(data, False)
    except _Found:
        return b"%b<%b/></%b>" % (data[:start], body.encode(), root.encode())
    except ExpatError as error:
        raise EnvelopeError(f"not well-formed XML: {error}") from None
    finally:
        # The handlers refer to the parser, so both would stay until the next garbage collection.
        parser.StartElementHandler = parser.EndElementHandler = None
    raise LimitExceeded(f"the header is larger than {limits.max_header_bytes} bytes")
