"""Columns of texts as columns of values: Arrow converts the usual forms at once.

A column converter converts each text in a plain form of its type to the same value as ``simple_types``. It only marks
all other texts, which ``simple_types`` then converts singly: misfits, and valid but rare forms. So only
``simple_types`` decides what is valid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql import types as T

if TYPE_CHECKING:
    import pyarrow as pa

ColumnConvert = Callable[["pa.StringArray"], tuple["pa.Array", "pa.BooleanArray"]]
"""Converts texts to values, and returns which were converted; null stays null, and counts as converted."""

# Digits that fit every value, so that Arrow's casts need no error handling, and only days that every such month has.
_DAY = (
    r"(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
    r"|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
)
_YEAR = r"(?:0001|1[0-9]{3}|2[0-9]{3})"  # with .NET's "no time"
_TIME = r"T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_OFFSET = r"[+-](?:0[0-9]|1[0-3]):[0-5][0-9]"
_ANY_ZONE = r"(?:Z|[+-](?:(?:0[0-9]|1[0-3]):[0-5][0-9]|14:00))$"
_ZONED = r"(?:Z|[+-][0-9]{2}:[0-9]{2})$"
_BITS = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}


def column_converter(kind: T.DataType, arrow: pa.DataType, lenient: frozenset[str]) -> ColumnConvert:
    """Return the function that converts a column of texts to values of a type."""
    if isinstance(kind, T.StringType):
        return _as_it_is
    if type(kind) in _BITS:
        convert = _integers(_BITS[type(kind)], arrow)
    elif isinstance(kind, T.DecimalType):
        convert = _decimals(kind.precision, kind.scale, arrow)
    elif isinstance(kind, T.FloatType | T.DoubleType):
        convert = _floats(arrow)
    elif isinstance(kind, T.BooleanType):
        convert = _booleans
    elif isinstance(kind, T.DateType):
        convert = _dates("zones" in lenient)
    else:
        zoned = isinstance(kind, T.TimestampType)
        convert = _times(arrow, zoned, "nanoseconds" in lenient, "zones" in lenient and not zoned)
    return _lenient(convert) if "empty" in lenient else convert


def _lenient(convert: ColumnConvert) -> ColumnConvert:
    def converted(texts: pa.StringArray) -> tuple[pa.Array, pa.BooleanArray]:
        import pyarrow.compute as pc

        return convert(_where(pc.not_equal(texts, ""), texts))

    return converted


def _where(taken: pa.BooleanArray, texts: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.if_else(taken, texts, pa.scalar(None, texts.type))


def _plain(texts: pa.StringArray, pattern: str) -> tuple[pa.StringArray, pa.BooleanArray]:
    """Return the texts that match the whole pattern, and which these are."""
    import pyarrow.compute as pc

    taken = pc.match_substring_regex(texts, rf"\A(?:{pattern})\z").fill_null(True)
    return (texts if pc.all(taken).as_py() else _where(taken, texts)), taken


def _as_it_is(texts: pa.StringArray) -> tuple[pa.Array, pa.BooleanArray]:
    import pyarrow as pa

    return texts, pa.repeat(pa.scalar(True), len(texts))


def _integers(bits: int, arrow: pa.DataType) -> ColumnConvert:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def converted(texts: pa.StringArray) -> tuple[pa.Array, pa.BooleanArray]:
        import pyarrow as pa
        import pyarrow.compute as pc

        texts, taken = _plain(texts, "-?(?:[0-9]{1,18}|[1-8][0-9]{18})")
        values = texts.cast(pa.int64())
        if bits < 64:
            within = pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high)).fill_null(True)
            taken = pc.and_(taken, within)
            values = _where(within, values)
        return values.cast(arrow), taken

    return converted


def _decimals(precision: int, scale: int, arrow: pa.DataType) -> ColumnConvert:
    whole = precision - scale
    pattern = f"-?[0-9]{{1,{whole}}}" if whole else "-?0"
    if scale:
        pattern += rf"(?:\.[0-9]{{1,{scale}}})?"

    def converted(texts: pa.StringArray) -> tuple[pa.Array, pa.BooleanArray]:
        texts, taken = _plain(texts, pattern)
        return texts.cast(arrow), taken

    return converted


def _floats(arrow: pa.DataType) -> ColumnConvert:
    def converted(texts: pa.StringArray) -> tuple[pa.Array, pa.BooleanArray]:
        import pyarrow as pa

        # Neither too large nor too small for a FLOAT. It goes through a double, as in ``simple_types``.
        texts, taken = _plain(texts, r"-?[0-9]{1,17}(?:\.[0-9]{1,17})?")
        return texts.cast(pa.float64()).cast(arrow), taken

    return converted


def _booleans(texts: pa.StringArray) -> tuple[pa.Array, pa.BooleanArray]:
    import pyarrow.compute as pc

    texts, taken = _plain(texts, "true|false|1|0")
    return _where(texts.is_valid(), pc.or_(pc.equal(texts, "true"), pc.equal(texts, "1"))), taken


def _dates(zones: bool) -> ColumnConvert:
    def converted(texts: pa.StringArray) -> tuple[pa.Array, pa.BooleanArray]:
        import pyarrow as pa
        import pyarrow.compute as pc

        if zones:
            texts = pc.replace_substring_regex(texts, _ANY_ZONE, "")
        texts, taken = _plain(texts, f"{_YEAR}-{_DAY}")
        return texts.cast(pa.date32()), taken

    return converted


def _times(arrow: pa.DataType, zoned: bool, nanoseconds: bool, zones: bool) -> ColumnConvert:
    finer = r"(\.[0-9]{6})[0-9]+" if nanoseconds else r"(\.[0-9]{6})0+"
    pattern = f"{_YEAR}-{_DAY}{_TIME}"
    if zoned:  # with an offset, the year 1 may become the year 0
        pattern = f"{pattern}Z?|[12][0-9]{{3}}-{_DAY}{_TIME}{_OFFSET}"

    def converted(texts: pa.StringArray) -> tuple[pa.Array, pa.BooleanArray]:
        import pyarrow.compute as pc

        texts = pc.replace_substring_regex(texts, finer, r"\1")
        if zones:
            texts = pc.replace_substring_regex(texts, _ANY_ZONE, "")
        texts, taken = _plain(texts, pattern)
        if zoned:
            bare = pc.invert(pc.match_substring_regex(texts, _ZONED))
            texts = pc.if_else(bare, pc.binary_join_element_wise(texts, "Z", ""), texts)
        return texts.cast(arrow), taken

    return converted
