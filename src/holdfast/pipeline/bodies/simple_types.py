"""The texts of XML Schema's simple types as values without loss in Arrow and Spark, or the reason why not.

A converter takes an element's or attribute's text and returns a value, or raises Misfit. It never rounds, truncates or
guesses unless a leniency allows it, except that a binary floating-point number is the nearest to its decimal text.
Clauses are those of XML Schema 1.1 Part 2.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from pyspark.sql import types as T

from holdfast.exceptions import ConfigurationError

Convert = Callable[[str], Any]

_WHITESPACE = " \t\r\n"  # of XML; str.strip() alone would take off no-break spaces and more
_ZONE = r"(Z|[+-](?:(?:0[0-9]|1[0-3]):[0-5][0-9]|14:00))?"
_YMD = r"(-?(?:[1-9][0-9]{4,}|[0-9]{4}))-([0-9]{2}-[0-9]{2})"
_INTEGER = re.compile(r"([+-]?)([0-9]+)")
_DECIMAL = re.compile(r"([+-]?)(?:([0-9]+)(?:\.([0-9]*))?|\.([0-9]+))")
_DOUBLE = re.compile(r"[+-]?((?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:[eE][+-]?[0-9]+)?")
_SPECIAL = {"INF": float("inf"), "+INF": float("inf"), "-INF": float("-inf"), "NaN": float("nan")}
_DATE = re.compile(_YMD + _ZONE)
_DATETIME = re.compile(_YMD + r"T([0-9]{2}):([0-9]{2}:[0-9]{2})(?:\.([0-9]+))?" + _ZONE)
_BOOLEAN = {"true": True, "1": True, "false": False, "0": False}
_SINGLE = struct.Struct("<f")
_OUT_OF_RANGE = "outside the years 0001 to 9999"
_INTEGER_DIGITS = 19  # of the greatest LONG; also keeps int() away from texts it would take minutes for


class Misfit(ValueError):
    """The reason why a text is not a value of its type, worded to follow "is"."""


def converter(name: str, kind: T.DataType, lenient: frozenset[str] = frozenset()) -> Convert:
    """Return the function that converts texts to values of a type.

    Raises:
        ConfigurationError: The type has no text form.
    """
    if isinstance(kind, T.DecimalType):
        convert = _decimal(kind.precision, kind.scale)
    elif isinstance(kind, T.StringType):
        return str
    elif isinstance(kind, T.DateType):
        convert = _date("zones" in lenient)
    elif isinstance(kind, T.TimestampType):
        convert = _timestamp("nanoseconds" in lenient)
    elif isinstance(kind, T.TimestampNTZType):
        convert = _local_timestamp("nanoseconds" in lenient, "zones" in lenient)
    elif type(kind) in _PLAIN:
        convert = _PLAIN[type(kind)]
    else:
        raise ConfigurationError(
            f"the field {name} has type {kind.simpleString()}, which cannot be read from a body",
            remedy="Read it as STRING and convert it in Spark with try_cast, or another function that returns null "
            "on failure",
        )
    return _collapsed(convert, "empty" in lenient)


def _collapsed(convert: Convert, empty_is_null: bool) -> Convert:
    """Apply whiteSpace="collapse", which every type but string has (4.3.6); no value contains a space."""

    def collapsed(text: str) -> Any:
        text = text.strip(_WHITESPACE)
        if not text:
            if empty_is_null:
                return None
            raise Misfit("empty")
        return convert(text)

    return collapsed


# --- numbers and booleans (3.3.3 to 3.3.5) ------------------------------------------------------------------------


def _integer(bits: int) -> Convert:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def convert(text: str) -> int:
        match = _INTEGER.fullmatch(text)
        if match is None:
            raise Misfit("not an integer")
        digits = match[2].lstrip("0") or "0"
        if len(digits) <= _INTEGER_DIGITS and low <= (value := int(match[1] + digits)) <= high:
            return value
        raise Misfit(f"not an integer of {bits} bits")

    return convert


def _decimal(precision: int, scale: int) -> Convert:
    def convert(text: str) -> Decimal:
        match = _DECIMAL.fullmatch(text)
        if match is None:
            raise Misfit("not a decimal number")
        sign, whole, fraction, only_fraction = match.groups()
        whole = (whole or "").lstrip("0")
        fraction = (fraction or only_fraction or "").rstrip("0")
        if len(whole) > precision - scale or len(fraction) > scale:
            raise Misfit(f"not a decimal({precision},{scale})")
        return Decimal(f"{sign}{whole or 0}.{fraction}" if fraction else f"{sign}{whole or 0}")

    return convert


def _double(text: str) -> float:
    special = _SPECIAL.get(text)
    if special is not None:
        return special
    match = _DOUBLE.fullmatch(text)
    if match is None:
        raise Misfit("not a number")
    return _finite(float(text), match[1], "double")


def _single(text: str) -> float:
    value = _double(text)
    if text in _SPECIAL:
        return value
    try:
        (value,) = _SINGLE.unpack(_SINGLE.pack(value))
    except OverflowError:
        value = float("inf")
    return _finite(value, text.lower().partition("e")[0], "float")


def _finite(value: float, mantissa: str, kind: str) -> float:
    """Return the value; raise if it is infinite or zero although the text is not."""
    if value in (float("inf"), float("-inf")):
        raise Misfit(f"too large for a {kind}")
    if value == 0 and mantissa.strip("+-0."):
        raise Misfit(f"too small for a {kind}")
    return value


def _boolean(text: str) -> bool:
    value = _BOOLEAN.get(text)
    if value is None:
        raise Misfit("not a boolean")
    return value


# --- days and times (3.3.7 and 3.3.9) -----------------------------------------------------------------------------


def _date(zones: bool) -> Convert:
    def convert(text: str) -> date:
        match = _DATE.fullmatch(text)
        if match is None:
            raise Misfit("not a date")
        if match[3] and not zones:
            raise Misfit("a date with a zone, which DATE cannot hold")
        return _day(match[1], match[2], "a date")

    return convert


def _day(year: str, month_and_day: str, what: str) -> date:
    if len(year) != 4 or year == "0000":
        raise Misfit(_OUT_OF_RANGE)
    try:
        return date.fromisoformat(f"{year}-{month_and_day}")
    except ValueError:
        raise Misfit(f"not {what}") from None


def _moment(text: str, nanoseconds: bool) -> tuple[datetime, bool]:
    """Return a dateTime, aware or not, and whether it has a zone."""
    match = _DATETIME.fullmatch(text)
    if match is None:
        raise Misfit("not a dateTime")
    year, month_and_day, hour, rest, fraction, zone = match.groups()
    if fraction and len(fraction) > 6 and fraction[6:].strip("0") and not nanoseconds:
        raise Misfit("finer than a microsecond")
    if hour != "24" and len(year) == 4:
        try:
            return datetime.fromisoformat(text), zone is not None
        except ValueError:
            pass  # the reason is found below
    day = _day(year, month_and_day, "a dateTime")
    midnight = hour == "24"  # endOfDayFrag: the first instant of the next day
    if midnight and (rest != "00:00" or (fraction or "").strip("0")):
        raise Misfit("not a dateTime")
    try:
        value = datetime.fromisoformat(
            f"{day}T{'00' if midnight else hour}:{rest}.{(fraction or '0')[:6]:0<6}{zone or ''}"
        )
    except ValueError:
        raise Misfit("not a dateTime") from None
    try:
        return value + timedelta(days=1) if midnight else value, zone is not None
    except OverflowError:
        raise Misfit(_OUT_OF_RANGE) from None


def _timestamp(nanoseconds: bool) -> Convert:
    def convert(text: str) -> datetime:
        value, zoned = _moment(text, nanoseconds)
        if not zoned:
            return value.replace(tzinfo=UTC)
        try:
            return value.astimezone(UTC)
        except OverflowError:
            raise Misfit(_OUT_OF_RANGE) from None

    return convert


def _local_timestamp(nanoseconds: bool, zones: bool) -> Convert:
    def convert(text: str) -> datetime:
        value, zoned = _moment(text, nanoseconds)
        if zoned and not zones:
            raise Misfit("a dateTime with a zone, which TIMESTAMP_NTZ cannot hold")
        return value.replace(tzinfo=None)

    return convert


_PLAIN: dict[type[T.DataType], Convert] = {
    T.BooleanType: _boolean,
    T.ByteType: _integer(8),
    T.ShortType: _integer(16),
    T.IntegerType: _integer(32),
    T.LongType: _integer(64),
    T.FloatType: _single,
    T.DoubleType: _double,
}
