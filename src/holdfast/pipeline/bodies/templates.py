"""Bodies that differ only in their texts, parsed together: column by column, with Arrow and numpy.

The bodies of one peer have few shapes: the same tags, with other texts between them and in their attributes. This
module cuts such bodies into markup and texts, all at once, and groups the bodies with the same markup. From each group,
lxml parses one body, in which every text is replaced by its number. The result shows the place of each field. So lxml
still decides, once for each group, whether a body is well-formed, and which namespaces and nesting it has.
``text_columns`` converts the texts into columns of values.

The module need not parse every body. It leaves some bodies to ``BodyReader``, which parses them one by one: bodies with
a comment, a CDATA section, a character reference, a processing instruction or a nil; bodies of a rare shape; bodies
that lack a field the schema requires; and bodies with a text that is not plain for its type. It never reports problems
itself.

This is correct for the following reason. In the bodies that ``_TAKEN`` matches, ``<`` only begins and ``>`` only ends a
tag, and ``"`` in a tag only begins and ends a value. The texts contain only valid XML characters, and no markup except
the references that every document may contain. So any of these texts could replace any other without changing the
well-formedness or the structure of the body.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lxml import etree
from pyspark.sql import types as T

from holdfast.pipeline.bodies.forms import PLACE, TYPE
from holdfast.pipeline.bodies.reader import AnotherElement, BodyReader, Field, Struct, attributes
from holdfast.pipeline.bodies.text_columns import ColumnConvert, column_converter

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

FEW = 4
"""BodyReader parses a smaller group faster one by one."""

_LONG = 1 << 20  # bytes; the numbers of a longer body's texts would take more memory than lxml's tree of it
_SHAPES = 200  # remembered; a peer may invent new ones with each body
_SHAPE_BYTES = 1 << 14  # maximum bytes of a remembered shape
_EMPTY = -1  # the number of the text of <a/>

_NOT = r"<>&\x00-\x08\x0b-\x1f\x{d800}-\x{dfff}\x{fffe}\x{ffff}"  # in no text and no tag, as they are
_REFERENCE = "&(?:amp|lt|gt|quot|apos);"
_VALUE = rf'"(?:[^"\t\n{_NOT}]|{_REFERENCE})*"'
_TAG = rf'<[^!?"\'{_NOT}][^"\'{_NOT}]*(?:{_VALUE}[^"\'{_NOT}]*)*>'
_TAKEN = rf"\A(?:<\?xml[^?{_NOT}]*\?>[ \t\n]*)?{_TAG}(?:(?:[^{_NOT}]|{_REFERENCE})*{_TAG})*[ \t\n]*\z"
_REFERENCES = {"&lt;": "<", "&gt;": ">", "&quot;": '"', "&apos;": "'", "&amp;": "&"}
"""References that need no declaration (XML 1.0, 4.6). ``&amp;`` comes last, because its result must not become part of
another reference."""

_DECLARES = re.compile(rb'xmlns(?::[^\s="]*)?\s*=\s*"\Z')  # what follows is a namespace's name: markup, not a text

Plan = Any
"""Position of a field's text in the bodies of a shape: its number; for a struct a list of plans, one for each field;
for an array a list of its items' plans; None if it is absent."""

Places = list[tuple[Plan, "np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]]
"""For each group: a plan, the bodies' first texts, and the positions of its values in a column."""


class _Unlike(Exception):
    """Bodies of this shape must be parsed one by one."""


class AlikeReader:
    """Parses the bodies of a batch that share their shape with others in it."""

    def __init__(self, reader: BodyReader, schema: T.StructType) -> None:
        from pyspark.sql.pandas.types import to_arrow_type

        self._reader = reader
        self.columns = [
            _Column(field, kind.dataType, to_arrow_type(nullable(kind.dataType), timezone="UTC"), reader.lenient)
            for field, kind in zip(reader.root.fields, schema.fields, strict=True)
        ]
        self._plans: dict[bytes, list[Plan] | None] = {}

    def read(self, bodies: pa.StringArray) -> tuple[list[pa.Array], np.ndarray[Any, Any]]:
        """Return the columns by field, and which bodies were parsed; the values of the others are undefined."""
        import numpy as np

        taken = _taken(bodies)
        rows = np.flatnonzero(taken)
        texts = _Texts(bodies.take(rows)) if len(rows) else None
        read = np.zeros(len(rows), bool)
        places: Places = []
        if texts is not None:
            for group, shape in texts.groups():
                plan = self._plan(shape)
                if plan is not None:
                    places.append((plan, texts.first[group], group))
                    read[group] = True
        misfit = np.zeros(len(rows), bool)
        every = np.arange(len(rows))
        arrays = []
        for slot, column in enumerate(self.columns):
            of_it = [(plan[slot], first, group) for plan, first, group in places]
            arrays.append(column.assembled(texts, of_it, every, misfit))
        taken[rows] = read & ~misfit
        if len(rows) < len(bodies):
            at = np.zeros(len(bodies), np.int64)
            at[rows] = every
            arrays = [
                array.take(at) if len(rows) else column.nulls(len(bodies))
                for array, column in zip(arrays, self.columns, strict=True)
            ]
        return arrays, taken

    def _plan(self, shape: bytes) -> list[Plan] | None:
        if shape not in self._plans:
            plan = self._made(shape)
            if len(shape) > _SHAPE_BYTES:
                return plan
            if len(self._plans) >= _SHAPES:
                self._plans.clear()
            self._plans[shape] = plan
        return self._plans[shape]

    def _made(self, shape: bytes) -> list[Plan] | None:
        # xsi:nil makes an element null, which depends on the schema; "<" is an upper bound of the elements.
        if b"nil" in shape or shape.count(b"<") > self._reader.max_elements:
            return None
        try:
            root, element = self._reader.root, self._reader.element(shape)
            if root.declared is not None and element.get(TYPE) is not None:
                return None
            return _of_struct(root, element)
        except (etree.XMLSyntaxError, AnotherElement, _Unlike):
            return None


def _taken(bodies: pa.StringArray) -> np.ndarray[Any, Any]:
    """Return which bodies can be cut into markup and texts by a search for three characters."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        bodies.validate(full=True)  # checks UTF-8: the pattern does not detect all invalid text
    except pa.ArrowInvalid:
        return np.zeros(len(bodies), bool)
    taken = pc.and_(pc.match_substring_regex(bodies, _TAKEN), pc.less_equal(pc.binary_length(bodies), _LONG))
    return np.array(taken.fill_null(False).to_numpy(zero_copy_only=False))


class _Texts:
    """Bodies cut into pieces, markup and text alternately; each body begins with markup and ends with a text.

    Args:
        bodies: Bodies that ``_taken`` accepts.
    """

    def __init__(self, bodies: pa.StringArray) -> None:
        import numpy as np
        import pyarrow as pa

        _, offsets, values = bodies.buffers()
        starts = np.frombuffer(offsets, np.int32)[bodies.offset : bodies.offset + len(bodies) + 1]
        data = np.frombuffer(values, np.uint8)[: starts[-1]]
        opened = np.flatnonzero(data[starts[0] :] == ord("<")) + starts[0]
        closed = np.flatnonzero(data[starts[0] :] == ord(">")) + starts[0] + 1
        cuts = np.empty(2 * len(opened), np.int64)
        cuts[0::2], cuts[1::2] = opened, closed
        quotes = np.flatnonzero(data[starts[0] :] == ord('"')) + starts[0]
        if len(quotes):
            before = np.searchsorted(cuts, quotes, "right")
            in_tag = before % 2 == 1
            in_tag[in_tag] = data[opened[before[in_tag] // 2] + 1] != ord("?")  # not in the XML declaration
            before, quotes = before[in_tag], quotes[in_tag]
            quotes[0::2] += 1  # each quote belongs to the markup outside the value
            cuts = np.insert(cuts, before, quotes)
        ends = np.concatenate([cuts, starts[-1:], starts[-1:]]).astype(np.int32)
        self.pieces = pa.Array.from_buffers(pa.string(), len(cuts) + 1, [None, pa.py_buffer(ends), values])
        self.empty = len(cuts)
        """The number of an empty piece."""
        self.first = np.searchsorted(cuts, starts[:-1], "right") - 1  # a body may begin where an empty text ends
        self._references = bool((data == ord("&")).any())
        self._counts = np.diff(np.append(self.first, len(cuts)))

    def taken(self, pieces: pa.Int64Array) -> pa.StringArray:
        """Return the texts of the pieces with these numbers; null for a null."""
        import pyarrow.compute as pc

        texts = self.pieces.take(pieces)
        if self._references and pc.any(pc.match_substring(texts, "&")).as_py():
            for reference, character in _REFERENCES.items():
                texts = pc.replace_substring(texts, reference, character)
        return texts

    def groups(self) -> Iterator[tuple[np.ndarray[Any, Any], bytes]]:
        """Yield bodies of the same markup, and their shape: one of them, with each text replaced by its number."""
        import numpy as np

        codes, markup = self._markup()
        first, lengths = self.first // 2, self._counts // 2
        at = np.arange(len(codes)) - np.repeat(first, lengths)
        with np.errstate(over="ignore"):
            # A polynomial hash of the markup finds candidates for groups; a comparison below removes collisions.
            weights = np.cumprod(np.full(int(lengths.max()), 0x9E3779B97F4A7C15, np.uint64))
            digests = np.add.reduceat((codes.astype(np.uint64) + np.uint64(1)) * weights[at], first)
        _, found, sizes = np.unique(digests, return_inverse=True, return_counts=True)
        ordered = np.argsort(found, kind="stable")
        for rows in np.split(ordered, np.cumsum(sizes)[:-1]):
            if len(rows) < FEW:
                continue
            length = lengths[rows[0]]
            rows = rows[lengths[rows] == length]
            model = codes[first[rows[0]] : first[rows[0]] + length]
            rows = rows[(codes[first[rows][:, None] + np.arange(length)] == model).all(axis=1)]
            yield rows, self._shape(int(self.first[rows[0]]), int(length), markup)

    def _markup(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return a number for each piece of markup, including the namespace that it declares, and which pieces declare
        one."""
        import numpy as np

        coded = self.pieces.take(np.arange(0, self.empty, 2)).dictionary_encode()
        codes = coded.indices.to_numpy().astype(np.int64)
        declares = np.array([bool(_DECLARES.search(piece.encode())) for piece in coded.dictionary.to_pylist()], bool)
        declaring = declares[codes]
        if declares.any():
            names = self.pieces.take(2 * np.flatnonzero(declaring) + 1).dictionary_encode()
            # A namespace's name is markup: the same tag with another namespace has another shape.
            codes[declaring] += (names.indices.to_numpy().astype(np.int64) + 1) * len(declares)
        return codes, declaring

    def _shape(self, first: int, length: int, declaring: np.ndarray[Any, Any]) -> bytes:
        pieces = self.pieces[first : first + 2 * length].to_pylist()
        for number in range(1, 2 * length, 2):
            if not declaring[first // 2 + number // 2]:
                pieces[number] = str(number)
        pieces[-1] = ""  # after the last tag
        if pieces[0].startswith("<?"):
            pieces[1] = ""
        return "".join(pieces).encode()


def _of_struct(struct: Struct, element: Any) -> list[Plan]:
    """Return where the fields' texts are, by the numbers in a shape.

    Raises:
        _Unlike: There is a problem in bodies of this shape, or may be in some of them.
    """
    if struct.form is not None and struct.form_of(element, may_be_nil=False) is not None:
        raise _Unlike
    found = struct.found(element)
    return [_of_field(field, element, found.get(slot)) for slot, field in enumerate(struct.fields)]


def _of_field(field: Field, element: Any, children: list[Any] | None) -> Plan:
    if children:
        if field.many:
            return [_of_one(field, child) for child in children]
        if len(children) == 1:
            return _of_one(field, children[0])
        raise _Unlike
    if field.place == PLACE:
        return None
    if field.place == "text":
        if len(element):
            raise _Unlike
        return _of_text(element)
    single = field.convert is not None and not field.many and field.place != "element"
    texts = attributes(element, field) if single else []
    may_be_text = field.may_be_text and bool(element.text) and not len(element)
    if len(texts) > 1 or (not texts and (field.required or may_be_text)):
        raise _Unlike
    return int(texts[0]) if texts else None


def _of_one(field: Field, element: Any) -> Plan:
    if field.declared is not None and element.get(TYPE) is not None:
        raise _Unlike
    if field.struct is not None:
        if element.text and not len(element) and not field.struct.takes_something(element):
            raise _Unlike
        return _of_struct(field.struct, element)
    if len(element):
        raise _Unlike
    return _of_text(element)


def _of_text(element: Any) -> Plan:
    return int(element.text) if element.text else _EMPTY


class _Column:
    """Builds a field's column."""

    def __init__(self, field: Field, kind: T.DataType, arrow: pa.DataType, lenient: frozenset[str]) -> None:
        self._many = arrow if field.many else None
        if isinstance(kind, T.ArrayType):
            kind, arrow = kind.elementType, arrow.value_type
        self._arrow = arrow
        self._fields: list[_Column] = []
        self._convert: ColumnConvert | None = None
        if field.struct is not None:
            assert isinstance(kind, T.StructType)
            self._fields = [
                _Column(inner, of.dataType, arrow.field(slot).type, lenient)
                for slot, (inner, of) in enumerate(zip(field.struct.fields, kind.fields, strict=True))
            ]
        else:
            self._convert = column_converter(kind, arrow, lenient)

    def nulls(self, rows: int) -> pa.Array:
        import pyarrow as pa

        return pa.nulls(rows, self._many or self._arrow)

    def assembled(
        self, texts: _Texts | None, places: Places, bodies: np.ndarray[Any, Any], misfit: np.ndarray[Any, Any]
    ) -> pa.Array:
        import numpy as np
        import pyarrow as pa

        if texts is None:
            return self.nulls(len(bodies))
        if self._many is None:
            return self._one(texts, places, bodies, misfit)
        counts = np.zeros(len(bodies), np.int64)
        absent = np.ones(len(bodies), bool)
        for plan, _, where in places:
            if plan is not None:
                counts[where] = len(plan)
                absent[where] = False
        offsets = np.concatenate([[0], np.cumsum(counts)])
        items = [
            (item, first, offsets[where] + number)
            for plan, first, where in places
            for number, item in enumerate(plan or ())
        ]
        values = self._one(texts, items, np.repeat(bodies, counts), misfit)
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=self._many, mask=pa.array(absent))

    def _one(
        self, texts: _Texts, places: Places, bodies: np.ndarray[Any, Any], misfit: np.ndarray[Any, Any]
    ) -> pa.Array:
        import numpy as np
        import pyarrow as pa

        absent = np.ones(len(bodies), bool)
        if self._convert is None:
            for plan, _, where in places:
                absent[where] = plan is None
            arrays = [
                column.assembled(
                    texts, [(plan and plan[slot], first, where) for plan, first, where in places], bodies, misfit
                )
                for slot, column in enumerate(self._fields)
            ]
            return pa.StructArray.from_arrays(arrays, fields=list(self._arrow), mask=pa.array(absent))
        pieces = np.zeros(len(bodies), np.int64)
        for plan, first, where in places:
            if plan is not None:
                pieces[where] = texts.empty if plan == _EMPTY else first + plan
                absent[where] = False
        values, plain = self._convert(texts.taken(pa.array(pieces, mask=absent)))
        misfit[bodies[~plain.to_numpy(zero_copy_only=False)]] = True
        return values


def nullable(kind: T.DataType) -> T.DataType:
    """Return the type with null allowed everywhere: a corrupt row has nulls even where the schema forbids them."""
    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(f.name, nullable(f.dataType), True, f.metadata) for f in kind.fields])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(nullable(kind.elementType))
    if isinstance(kind, T.MapType):
        return T.MapType(kind.keyType, nullable(kind.valueType), kind.valueContainsNull)
    return kind
