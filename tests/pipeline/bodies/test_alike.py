"""The ``BodyReader``, which reads one body after the other, is the model: those read together have its values.

Covers pipeline/bodies/templates.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, IntegerType, StringType, StructField, StructType
from wild import ODD, POISON, WILD

from holdfast.pipeline.bodies import templates as alike
from holdfast.pipeline.bodies.reader import BodyReader
from holdfast.pipeline.bodies.templates import AlikeReader

ID = StructField("id", IntegerType())
NOTE = StructField("note", StringType())
AMOUNT = StructType([StructField("amount", IntegerType(), metadata={"xml": "text"}), NOTE])
DEEP = StructType(
    [
        ID,
        StructField("narrow", StringType(), metadata={"namespace": "urn:b"}),
        StructField("must", StringType(), nullable=False),
        StructField("ids", ArrayType(IntegerType())),
        StructField("part", StructType([ID, NOTE, StructField("part", ArrayType(StructType([ID, NOTE])))])),
        StructField("parts", ArrayType(StructType([ID, StructField("ids", ArrayType(IntegerType()))]))),
        StructField("cost", AMOUNT),
        StructField("only_element", IntegerType(), metadata={"xml": "element", "name": "k"}),
        StructField("only_attribute", IntegerType(), metadata={"xml": "attribute", "name": "k"}),
    ]
)


@pytest.fixture(scope="module", autouse=True)
def alone_is_enough() -> Iterator[None]:
    """A body that no other is like is read so, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alike, "FEW", 1)
        yield


def together(schema: StructType, bodies: list[str], lenient: tuple[str, ...] = ()) -> list[bool]:
    """Which are read so, after a look at their values."""
    reader = BodyReader(schema, lenient)
    arrays, read = AlikeReader(reader, schema).read(pa.array(["", *bodies], pa.string())[1:])
    kinds = to_arrow_schema(
        StructType([StructField(f.name, alike.nullable(f.dataType)) for f in schema]), timezone="UTC"
    )
    for array, field in zip(arrays, kinds, strict=True):
        array.validate(full=True)
        assert array.type == field.type
        assert len(array) == len(bodies)
    for row in read.nonzero()[0]:
        values, problem = reader.read(bodies[row].encode())
        assert problem is None, bodies[row]
        for array, field in zip(arrays, kinds, strict=True):
            assert repr(array[int(row)]) == repr(pa.array([values[field.name]], field.type)[0]), bodies[row]
    return list(read.tolist())


@pytest.mark.parametrize(
    "body",
    [
        "<o/>",
        "<o></o>",
        "<o><id>7</id></o>",
        "<o>\n  <id>7</id>\n  <must>x</must>\n</o>",
        '<?xml version="1.0" encoding="UTF-8" standalone=\'yes\'?>\n<o><id>7</id></o>',
        '<o id="7"/>',
        '<o id="7" x="1 2" note="a\'b"><ids>1</ids><ids>2</ids></o >',
        '<a:o xmlns:a="urn:a" xmlns="urn:b"><id>7</id><narrow>n</narrow></a:o>',
        '<a:o xmlns:a="urn:a"><a:narrow>not this</a:narrow></a:o>',
        '<o xmlns:a="urn:a" xmlns:b="urn:b"><b:narrow>this</b:narrow></o>',
        '<o xmlns:a="urn:a" a:id="1" id="2"/>',
        '<o><part><part><id>1</id></part><part note="2"/></part><parts><ids>1</ids></parts><parts id="3"/></o>',
        '<o><part id="1">text</part></o>',
        '<o x="&quot;"><note>&amp;lt;&lt;&gt;&quot;&apos;]]&gt;&amp;amp;amp;</note>&amp;</o>',
        '<o note="&amp;&quot;"/>',
        '<o k="1"><k>7</k><cost note="EUR">1</cost></o>',
        "<o><k>7</k><cost>1</cost></o>",
        '<o note=""><x>"quoted"</x>"</o>',
        '<o>"<id>1</id><x>a "b</x>" é€😀</o>',
        "<o><a><b><c><d/></c></b></a><id>1</id></o>",
    ],
)
def test_bodies_as_peers_write_them_are_read_together(body: str):
    schema = StructType([field for field in DEEP if field.nullable])
    others = [body.replace("7", digit) for digit in "123"]
    assert together(schema, [body, *others, body]) == [True] * 5


@pytest.mark.parametrize(
    "body",
    [
        *sorted(POISON),
        "<o><id>7</id>&#38;</o>",
        "<o><id>7</id>&e;</o>",
        "<o><id>7</id>&amp</o>",
        "<o><id>&amp;</id></o>",
        "<&amp;/>",
        "<o><!-- --></o>",
        "<o><id><![CDATA[7]]></id></o>",
        "<o><?pi?></o>",
        "<o>></o>",
        "<o>]]></o>",
        "<o a='1'/>",
        "<o a=\"'\" b='\"'/>",
        '<o a="1" a="2"/>',
        '<o a="<"/>',
        '<o a=">"/>',
        '<o id="7\n"/>',
        "<o>\r</o>",
        "<o>\x01</o>",
        "<o>\ufffe</o>",
        "<o/><o/>",
        "<o/>text",
        "text<o/>",
        " <o/>",
        "\ufeff<o/>",
        "<o>",
        "<o></p>",
        "<p:o/>",
        "<1/>",
        "< o/>",
        "<o",
        "<>",
        '<o xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><id i:nil="true"/></o>',
        "<o><id>1</id><id>2</id></o>",
        "<o><id><x/></id></o>",
        "<o><part>text</part></o>",
        "<o><part></part></o>",
        "<o><id>x</id></o>",
        "<o><cost>1<x/></cost></o>",
        "<o><cost/></o>",
        "<o><id> 7</id></o>",
        "<o><parts><ids>1</ids><ids>x</ids></parts></o>",
        "<o>" + "<x/>" * 300_000 + "</o>",
    ],
    ids=lambda body: repr(body)[:40],
)
def test_what_is_not_plain_is_left_to_the_reader_of_one(body: str):
    plain = "<o><must>x</must></o>"
    schema = StructType([*(field for field in DEEP if field.nullable), *(f for f in WILD if f.name != "note")])
    assert together(schema, [plain, body, plain, body]) == [True, False, True, False]


def test_bytes_that_are_no_text_and_nulls_are_left_too():
    schema = StructType([NOTE])
    reader = AlikeReader(BodyReader(schema), schema)
    for wrong in (b"<o><note>\xed\xa0\x80</note></o>", b"<o>\xff</o>", b"<o>\xc0\x80</o>", None):
        bodies = pa.array([b"<o/>", wrong], pa.binary())
        texts = pa.Array.from_buffers(pa.string(), 2, bodies.buffers())
        assert not reader.read(texts)[1][1]


def test_what_the_schema_demands_and_a_body_lacks_is_left_to_the_reader_of_one():
    assert together(DEEP, ["<o/>", '<o must="x"/>', "<o><must/></o>"]) == [False, True, True]


def test_namespaces_belong_to_the_shape_and_other_attributes_to_the_texts():
    schema = StructType([StructField("n", StringType(), metadata={"namespace": "urn:b"}), ID])
    bodies = [f'<o xmlns="urn:{name}" id="{number}"><n>{number}</n></o>' for name in "abba" for number in (1, 2)]
    assert all(together(schema, bodies))
    reader = AlikeReader(BodyReader(schema), schema)
    reader.read(pa.array(bodies))
    assert len(reader._plans) == 2


def test_shapes_that_a_peer_invents_are_not_remembered_without_end():
    schema = StructType([ID])
    reader = AlikeReader(BodyReader(schema), schema)
    for start in range(0, 1_000, 90):
        arrays, read = reader.read(pa.array([f"<o><n{i}/><id>{i}</id></o>" for i in range(start, start + 90)]))
        assert read.all()
        assert arrays[0].to_pylist() == list(range(start, start + 90))
        assert len(reader._plans) <= 200
    reader.read(pa.array(["<o>" + "<x>1</x>" * 10_000 + "</o>"]))
    assert max(map(len, reader._plans)) < 1 << 14


# What fits most fields, so that many bodies are read together; what fits some; and what is hardly XML.
plain = st.sampled_from(["1", "0", "1", "7"])
others = st.one_of(
    st.sampled_from(["-1.5", "2013-01-31", "9999-12-31T24:00:00", "2013-01-31T05:06:07Z", "true", ""]),
    st.text(max_size=10).map(lambda text: escape(text, {'"': "&quot;"})),
    st.text("<>&\"'x/=? \n\t!-[]", max_size=6),
)
values = st.one_of(plain, plain, plain, others)
names = st.sampled_from(
    [*({*WILD.fieldNames(), *DEEP.fieldNames()} - {"day", "at", "wall", "narrow"}), "x", "b:narrow", "k"]
)
attribute = st.one_of(
    st.just(""),
    st.builds(' {}="{{}}"'.format, names | st.sampled_from(["xmlns", "at", "xml:lang"])),
    st.sampled_from(
        [" x='{}'", ' x = "{}"  y="{}"', ' xmlns:b="{}"', ' xmlns="urn:b"', ' xmlns:c="urn:c"', ' i:nil="1"']
    ),
)
leaves = st.builds("<{0}{1}>{{}}</{0}>".format, names, attribute) | st.builds("<{}{}/>{{}}".format, names, attribute)


def once(element: str) -> str:
    """Elements of the same such text are not to be neighbours."""
    name = element[1:].split(">")[0].split(" ")[0].rstrip("/")
    return element if name in ("ids", "parts", "lines") else name


shapes = st.recursive(
    leaves,
    lambda inner: st.builds(
        "<{0}{1}>{2}</{0}>".format,
        st.sampled_from(["part", "parts", "lines", "cost", "x"]),
        attribute,
        st.lists(inner, max_size=5, unique_by=once).map("".join),
    ),
    max_leaves=12,
)
documents = st.one_of(
    st.builds(
        '{}<o xmlns:b="urn:b" must="{{}}"{}>{}</o>{}'.format,
        st.sampled_from(["", "", "", '<?xml version="1.0"?>\n', "<?xml version='1.0'?>", "\n", "<!-- -->"]),
        attribute,
        st.lists(shapes, max_size=5, unique_by=once).map("".join),
        st.sampled_from(["", "", "", "\n", "x"]),
    ),
    st.sampled_from(sorted((set(POISON) | set(ODD)), key=len)[:-1]),
)


@st.composite
def batches(draw: st.DrawFn) -> list[str]:
    """Some shapes, some bodies of each, in any order."""
    bodies = []
    for shape in draw(st.lists(documents, min_size=1, max_size=3)):
        holes = shape.count("{}")
        rows = draw(st.lists(st.lists(values, min_size=holes, max_size=holes), min_size=1, max_size=3))
        bodies += [shape.format(*texts) for texts in rows]
    return list(draw(st.permutations(bodies)))


@pytest.mark.parametrize("schema", [WILD, DEEP], ids=["wild", "deep"])
@given(bodies=batches(), lenient=st.sampled_from([(), ("empty", "nanoseconds", "zones")]))
def test_whatever_is_read_together_has_the_values_of_one_read_alone(
    schema: StructType, bodies: list[str], lenient: tuple[str, ...]
):
    together(schema, bodies, lenient)


def test_one_digest_is_no_reason_to_take_bodies_for_alike(monkeypatch: pytest.MonkeyPatch):
    made: Any = np.cumprod
    monkeypatch.setattr(np, "cumprod", lambda weights: made(np.zeros_like(weights)))  # every digest is the same
    bodies = ["<o><id>1</id></o>", "<p><id>2</id></p>", "<o/>", "<o><id>3</id></o>"]
    assert together(StructType([ID]), bodies) == [True, False, False, True]
