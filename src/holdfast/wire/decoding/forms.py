"""Known headers: decodes an envelope with a header that differs from an earlier one only in its values.

Peers write every message of a Sequence alike. So this module remembers the header of a message that ``fast`` has read
as a form: the bytes between its values, and the meaning of each value. It compares a later message with the known forms
for its Envelope tag. If one fits, the header is well-formed: the earlier header was, and the new values contain nothing
that could change that. Expat checks the rest of the document, after the same Envelope tag. If the Body is empty, as in
an acknowledgement, and the rest is byte for byte the same, nothing is left to check.

Of other headers, a form may have those of WS-Security, which differ in their texts and Ids (``block_pattern``). A form
with one is learnt when it occurs the second time, because that of a signature never does.

For every document that it decodes, the result equals that of ``decode.decode_any``.
"""

from __future__ import annotations

import re
from operator import itemgetter
from pyexpat import ExpatError

from holdfast.core.messages import AckRequested, EndpointReference, Envelope, Sequence, SequenceAcknowledgement
from holdfast.exceptions import EnvelopeError
from holdfast.wire.addressing import endpoint_reference
from holdfast.wire.decoding import fast
from holdfast.wire.decoding.kept import check_kept
from holdfast.wire.limits import DEFAULT, Limits
from holdfast.wire.names import EMPTY_CONTROLS, INCLUDE, RM_OF_ACTION
from holdfast.wire.text import block_pattern, declare, names_of, self_contained
from holdfast.wire.tree import feed, is_deep, parser_for

# The values a header may have. The first seven have the numbers that ``fast`` uses: Action, To, MessageID, RelatesTo,
# ReplyTo, FaultTo, From. Then follow Sequence's Identifier and MessageNumber, AckRequested's Identifier,
# SequenceAcknowledgement's Identifier and BufferRemaining, and the attributes of its one AcknowledgementRange.
_FIELDS = {
    (fast.SEQUENCE, fast.IDENTIFIER): 7,
    (fast.SEQUENCE, fast.NUMBER): 8,
    (fast.REQUEST, fast.IDENTIFIER): 9,
    (fast.ACKNOWLEDGEMENT, fast.IDENTIFIER): 10,
    (fast.ACKNOWLEDGEMENT, fast.BUFFER): 11,
}
_LOWER, _UPPER = 12, 13
_FIELD_COUNT = 14
"""Fields with a higher number are blocks of WS-Security, in their order, each followed by its texts."""
_CONTAINERS = (fast.HEADER, fast.REFERENCE, fast.SEQUENCE, fast.REQUEST, fast.ACKNOWLEDGEMENT)

_MAX_ROOTS = 64
_MAX_FORMS = 8
_MAX_HEAD = 4_096
_MAX_REFERENCES = 64
_MAX_EMPTY = 256
_MAX_ONCE = 256
_SECURITY = b"Security"
_PLAIN = bytes(byte for byte in range(0x20, 0x7F) if byte != ord("&")) + b"\t\n"
"""The only bytes allowed in a header here, so that no value needs to be resolved, normalized or decoded."""
_TEXT = "([!-%'-;=?-~]*+)"
"""The pattern of an element's text: no mark-up, and nothing to resolve, decode or trim, as nearly always."""
_QUOTED = {'"': "([!#-%'-;=?-~]*+)", "'": "([!-%(-;=?-~]*+)"}
"""The pattern of an attribute's value, by the quote that ends it."""


class Block:
    """A header block of WS-Security in a form.

    Args:
        shape: What its start tag means.
        has_prefixes: Whether a text or an Id of such a block may contain a prefix.
    """

    __slots__ = ("count", "declared", "header", "name_end", "others", "shape", "varying")

    def __init__(self, header: fast.Shape, shape: fast.Shape, block: str, has_prefixes: bool) -> None:
        self.header = header
        self.shape = shape
        self.count = 1 + block.count("<") - block.count("</")
        """The number of its values: the block itself, and the text after each start tag."""
        names = names_of(block).encode()
        self.varying = len(block) - len(names)
        """The length of the texts and Ids."""
        needed = [one for one in header.declarations if one.needed_by(names)]
        self.others = [one for one in header.declarations if has_prefixes and one not in needed]
        """The declarations that only a text or an Id may need."""
        parts: list[bytes] = []
        self.name_end = declare(names, 0, [one.written for one in needed], 0, parts)
        self.declared = b"".join(parts[1:])

    def self_contained(self, block: bytes, limits: Limits) -> bytes:
        """Return a block with the declarations that it needs."""
        around = fast.fitting(self.header, limits)
        for one in self.others:
            if one.needed_by(block):
                return self_contained(block, 0, around)
        return block[: self.name_end] + self.declared + block[self.name_end :] if self.declared else block


class Form:
    """The common parts of all headers of one form.

    Args:
        root: What ``fast`` knows of their Envelope tag.
        pattern: The text up to the Body. Each value is a group of it.
        fields: The number of each value; each occurs once.
        blocks: The blocks of WS-Security.
        head: A complete header of this form, including its Envelope tag.
        rest: The text after that header.
        usual: The envelope that ``fast`` decoded from both.
    """

    __slots__ = (
        "addressing", "all_tags", "blocks", "empty", "match", "order", "references", "rm", "root", "shortest", "tags",
    )  # fmt: skip

    def __init__(
        self,
        root: fast.Shape,
        pattern: str,
        fields: list[int],
        blocks: list[Block],
        head: str,
        rest: bytes,
        usual: Envelope,
    ) -> None:
        self.root = root
        self.match = re.compile(pattern).fullmatch
        places = {field: place for place, field in enumerate(fields)}
        self.blocks = blocks
        count = _FIELD_COUNT + sum(block.count for block in blocks)
        self.order = itemgetter(*(places.get(field, -1) for field in range(count)))
        """Reorders the values, in the order of their pieces with a None at the end, by field."""
        self.empty = rest if not usual.body and len(rest) <= _MAX_EMPTY else None
        """The rest of a document with an empty Body."""
        begin = head.index(">") + 1
        found = self.match(head, begin)
        groups = found.groups() if found is not None else ()
        texts = sum(len(text) for text, field in zip(groups, fields, strict=False) if field < _FIELD_COUNT)
        texts += sum(block.varying for block in blocks)
        self.shortest = len(head) - begin - texts if found is not None else 0
        """The length of a header with empty values."""
        self.tags = head.count("<")
        self.all_tags = self.tags + rest.count(b"<")
        self.addressing = usual.addressing
        has_rm = usual.sequence is not None or usual.ack_requested or usual.acknowledgements
        self.rm = usual.rm if has_rm else None
        self.references: dict[str, EndpointReference] = {}

    def values(self, head: str, at: int) -> tuple[str | None, ...] | None:
        """Return the values of the header whose Envelope tag ends at ``at``, by field; None if it has another form."""
        found = self.match(head, at)
        return None if found is None else self.order((*found.groups(), None))

    def reference(self, value: str | None) -> EndpointReference | None:
        """Return the reference to an address, from a cache: the same few addresses repeat."""
        if value is None:
            return None
        known = self.references.get(value)
        if known is None:
            assert self.addressing is not None
            known = endpoint_reference(value, self.addressing)
            if len(self.references) >= _MAX_REFERENCES:
                self.references.clear()
            self.references[value] = known
        return known


_forms: dict[bytes, tuple[int, list[Form]]] = {}
"""The forms by the Envelope tag, with the length of the shortest header that has one of them."""
_once: set[str] = set()  # patterns with a block of WS-Security that have occurred once


def decode_known(data: bytes, limits: Limits) -> Envelope | None:
    """Decode an envelope with a header of a known form.

    Args:
        data: UTF-8 without XML declaration.
        limits: Limits on its size and cost.

    Returns:
        The envelope; None for any other form, and for every other envelope with an error.

    Raises:
        LimitExceeded: A part that is stored is too long.
    """
    end = data.find(b">") + 1
    known = _forms.get(data[:end])
    if known is None:
        return None
    shortest, forms = known
    at = data.find(forms[0].root.body_open, end + shortest)  # no form and no value contains this
    if at < 0 or at > _MAX_HEAD or at > limits.max_header_bytes:
        return None
    text = data[:at].decode("latin-1")  # no form and no value contains characters outside ASCII
    for form in forms:
        values = form.values(text, end) if at - end >= form.shortest else None
        if values is not None:
            try:
                envelope = _envelope(data, end, at, form, values, limits)
            except IndexError:  # the namespaces around a block do not fit
                return None
            if at > limits.max_uri and envelope is not None:
                check_kept(envelope, limits)  # everything stored is in the header
            return envelope
    return None


def _envelope(
    data: bytes, end: int, at: int, form: Form, values: tuple[str | None, ...], limits: Limits
) -> Envelope | None:
    # Perhaps too many blocks: the complete path counts them.
    if form.tags > limits.max_headers:
        return None
    if (
        form.empty is not None
        and data[at:] == form.empty
        and form.all_tags <= 2 * limits.max_depth
        and len(data) <= limits.max_namespace
    ):
        body: bytes | None = b""  # the rest was checked when the form was learnt
    else:
        body = _checked_body(data, end, at, form, limits)
    if body is None:
        return None
    action, to, message_id, relates_to, reply_to, fault_to, from_, identifier, digits, requested, acknowledged = values[
        :11
    ]
    action = action or ""
    sequence = None
    if identifier is not None and digits is not None:
        if not identifier or not digits.isdigit() or len(digits) > 64 or (number := int(digits)) < 1:
            return None
        sequence = Sequence(identifier, number)
    envelope = Envelope(
        form.root.soap,
        form.addressing,
        form.rm or RM_OF_ACTION.get(action),
        action,
        to,
        message_id,
        relates_to,
        form.reference(reply_to),
        form.reference(fault_to),
        form.reference(from_),
        sequence,
    )
    if acknowledged is not None:
        acknowledgement = _acknowledgement(acknowledged, *values[11:_FIELD_COUNT])
        if acknowledgement is None:
            return None
        envelope.acknowledgements = (acknowledgement,)
    if requested is not None:
        if not requested:
            return None
        envelope.ack_requested = (AckRequested(requested),)
    if form.blocks:
        start = _FIELD_COUNT
        for block in form.blocks:
            written = values[start]
            assert written is not None
            whole = block.self_contained(written.encode(), limits)
            fast.add_foreign(envelope, whole, block.shape)
            envelope.known_block = whole, block, values[start + 1 : start + block.count]
            start += block.count
    envelope.body = body
    if not body and (empty := EMPTY_CONTROLS.get(action)) is not None:
        envelope.control = empty()
    return envelope


def _checked_body(data: bytes, end: int, at: int, form: Form, limits: Limits) -> bytes | None:
    """Return the content of the Body; None if the document is not well-formed, or the Body not an application's."""
    if form.tags + data.count(b"<", at) > 2 * limits.max_depth and is_deep(data, limits.max_depth):
        return None
    try:
        # Without the header, which the form has proved well-formed: expat's time grows with its bytes.
        remaining = data[:end] + data[at:]
        feed(parser_for(remaining, limits), remaining)
        return fast.read_body(data, at, form.root, limits)
    except (ExpatError, EnvelopeError, IndexError):
        return None


def _acknowledgement(
    identifier: str, buffer: str | None, lower: str | None, upper: str | None
) -> SequenceAcknowledgement | None:
    """Return a SequenceAcknowledgement with one range; None for values that the complete path must check."""
    if not identifier or lower is None or upper is None or not (lower.isdigit() and upper.isdigit()):
        return None
    if len(lower) > 64 or len(upper) > 64 or (last := int(upper)) == 0:  # 1.0's range 0-0 means None
        return None
    remaining = None
    if buffer is not None and (not buffer.isdigit() or len(buffer) > 10 or (remaining := int(buffer)) > 2**31 - 1):
        return None
    return SequenceAcknowledgement(identifier, ((int(lower), last),), (), False, remaining)


def learn(data: bytes, usual: Envelope) -> None:
    """Remember the form of a header if only values known here can vary in it.

    Args:
        data: An envelope that ``fast`` has read, with a well-formed document.
        usual: The result of ``fast``.
    """
    end = data.find(b">") + 1
    root = fast.ROOT.kids.get(data[1 : end - 1])
    if root is None or len(usual.ack_requested) > 1 or not _has_plain_acknowledgement(usual):
        return
    if any(_SECURITY not in block or INCLUDE in block for block in usual.headers):
        return
    at = data.find(root.body_open, end)
    head = data[:at]
    # With more tags, each limit of a header would have to be checked.
    if at > _MAX_HEAD or head.count(b"<") > DEFAULT.max_headers or head.translate(None, _PLAIN):
        return
    text = head.decode("ascii")
    form = _form(root, text, end, data[at:], usual)
    if form is None:
        return
    # All at once: a peer that varies its Envelope tag must not cost more than this.
    if len(_forms) >= _MAX_ROOTS:
        _forms.clear()
    _, others = _forms.get(data[:end], (0, []))
    forms = [form, *others][:_MAX_FORMS]
    _forms[data[:end]] = min(one.shortest for one in forms), forms


def _has_plain_acknowledgement(usual: Envelope) -> bool:
    """Whether the only acknowledgement, if any, has a single range and no other content."""
    if not usual.acknowledgements:
        return True
    first = usual.acknowledgements[0]
    return len(usual.acknowledgements) == len(first.ranges) == 1 and not first.final


def _form(root: fast.Shape, head: str, end: int, rest: bytes, usual: Envelope) -> Form | None:
    written: list[str] = []
    fields: list[int] = []
    blocks: list[Block] = []
    shapes = [root]
    before, *tokens = head[end:].split("<")
    at, field_of_block = 0, _FIELD_COUNT
    while at < len(tokens):
        token = tokens[at]
        at += 1
        if token[0] == "/":
            shapes.pop()
            before += f"<{token}"
            continue
        tag, _, _ = token.partition(">")
        found = _range_in(tag) if shapes[-1].kind == fast.ACKNOWLEDGEMENT else None
        if found is not None:
            start = 0
            for field, begin, stop in found:
                piece = f"{before}<{tag[start:begin]}" if start == 0 else tag[start:begin]
                written.append(re.escape(piece) + _QUOTED[tag[stop]])
                fields.append(field)
                start = stop
            before = token[start:]
            continue
        shape = shapes[-1].kids.get(tag.encode())
        if shape is None:
            return None
        if shape.kind == fast.NONE:  # CXF writes it after its ranges, where it has no meaning
            before += f"<{token}"
            continue
        if shape.kind == fast.FOREIGN:
            block, after, at = _block_at(tokens, at - 1)
            of_block = block_pattern(block, prefixes=False)
            has_prefixes = of_block is not None and re.fullmatch(of_block, block) is None
            if has_prefixes:
                of_block = block_pattern(block)
            if of_block is None:
                return None
            written.append(f"{re.escape(before)}({of_block})")
            blocks.append(Block(shapes[-1], shape, block, has_prefixes))
            fields += range(field_of_block, field_of_block := field_of_block + blocks[-1].count)
            before = after
            continue
        if shape.kind in _CONTAINERS:
            before += f"<{token}"
        else:
            field_of_text = _field(shapes[-1], shape)
            if field_of_text is None:
                return None
            written.append(re.escape(f"{before}<{tag}>") + _TEXT)
            fields.append(field_of_text)
            before = ""
        shapes.append(shape)
    pattern = "".join(written) + re.escape(before)
    # A signature's block never comes twice, and its form would push out a useful one.
    if blocks and not _is_repeated(pattern):
        return None
    return Form(root, pattern, fields, blocks, head, rest, usual)


def _block_at(tokens: list[str], at: int) -> tuple[str, str, int]:
    """Return the block that begins with a token, the text after it, and the index of the token after it."""
    stop = fast.end_of_block([token.encode() for token in tokens], at)
    end_tag, _, after = tokens[stop - 1].partition(">")
    return "<" + "<".join([*tokens[at : stop - 1], end_tag + ">"]), after, stop


def _is_repeated(pattern: str) -> bool:
    if pattern in _once:
        _once.discard(pattern)
        return True
    if len(_once) >= _MAX_ONCE:
        _once.clear()
    _once.add(pattern)
    return False


def _range_in(tag: str) -> list[tuple[int, int, int]] | None:
    """Return the offsets of the two values in the tag of an AcknowledgementRange, in order; None for another tag."""
    match = fast.RANGE.fullmatch(tag.encode())
    if match is None:
        return None
    fields = {2: _LOWER, 3: _UPPER} if match[2] is not None else {4: _UPPER, 5: _LOWER}
    return [(field, *match.span(group)) for group, field in fields.items()]


def _field(parent: fast.Shape, shape: fast.Shape) -> int | None:
    if shape.kind == fast.TEXT:
        return shape.slot
    if shape.kind == fast.ADDRESS:
        return parent.slot
    return _FIELDS.get((parent.kind, shape.kind))
