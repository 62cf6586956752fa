"""Bodies that no honest peer sends, or that only just fit, and a schema for them."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DateType,
    DecimalType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

_LINE = StructType([StructField("id", IntegerType()), StructField("price", DecimalType(4, 1))])
WILD = StructType(
    [
        StructField("price", DecimalType(10, 2)),
        StructField("ratio", FloatType()),
        StructField("day", DateType()),
        StructField("at", TimestampType()),
        StructField("wall", TimestampNTZType()),
        StructField("big", DecimalType(38, 18)),
        StructField("n", LongType()),
        StructField("ok", BooleanType()),
        StructField("note", StringType()),
        StructField("lines", ArrayType(_LINE)),
    ]
)
"""Fields of every kind."""

POISON = {
    "<o><price>1.000000000000000000000000000001</price></o>": "price: '1.000000000000000000000000000001' is not a",
    "<o><ratio>1e300</ratio></o>": "ratio: '1e300' is too large for a float",
    "<o><day>12013-01-31</day></o>": "day: '12013-01-31' is outside the years 0001 to 9999",
    "<o><at>2013-01-31T05:06:07.1234567Z</at></o>": "at: '2013-01-31T05:06:07.1234567Z' is finer than a microsecond",
    "<o><wall>2013-01-31T05:06:07+02:00</wall></o>": "wall: '2013-01-31T05:06:07+02:00' is a dateTime with a zone",
    "<o><n>" + "9" * 5000 + "</n></o>": f"n: {'9' * 100!r} is not an integer of 64 bits",
    "<o><lines><id>x</id><price>1.25</price></lines></o>": "lines[0].id: 'x' is not an integer; lines[0].price: '1.25'",
    "<o>" + "<a>" * 3000 + "</a>" * 3000 + "</o>": "not well-formed: Excessive depth",
    "<!DOCTYPE o [<!ENTITY e 'x'>]><o a='&e;'/>": "has a DOCTYPE",
    "": "the body is empty",
    "\x00": "not well-formed",
}
"""Bodies that none of WILD's fields can take, and why."""

ODD = {
    "<o><price>-0099999999.990000</price></o>": ("price", "-99999999.99"),
    "<o><day>0001-01-01</day></o>": ("day", "0001-01-01"),
    "<o><day>1582-10-10</day></o>": ("day", "1582-10-10"),
    "<o><at>0001-01-01T00:00:00</at></o>": ("at", "0001-01-01 00:00:00"),
    "<o><at>9999-12-31T23:59:59.999999Z</at></o>": ("at", "9999-12-31 23:59:59.999999"),
    "<o><at>1899-12-31T24:00:00-02:00</at></o>": ("at", "1900-01-01 02:00:00"),
    "<o><wall>0001-01-01T00:00:00</wall></o>": ("wall", "0001-01-01 00:00:00"),
    "<o><big>" + "9" * 20 + "." + "9" * 18 + "</big></o>": ("big", "9" * 20 + "." + "9" * 18),
    "<o><ratio>-INF</ratio></o>": ("ratio", "-Infinity"),
    "<o><note>" + "x" * 11_000_000 + "</note></o>": ("note", "x" * 11_000_000),
}
"""Bodies at the edges of what the types hold, and what Spark reads back from the files."""
