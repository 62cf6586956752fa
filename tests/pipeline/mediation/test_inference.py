"""Fields as a sample of bodies shows them; and what was inferred reads the sample without a problem.

Covers pipeline/mediation/transformations/inference.py.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.bodies.reader import BodyReader
from holdfast.pipeline.mediation.transformations.inference import infer_schema


def kinds(*bodies: str) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in infer_schema(bodies).fields}


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["true", "false"], "boolean"),
        (["1", "0"], "bigint"),
        (["-12", ""], "bigint"),
        (["1", "2.50"], "decimal(38,18)"),
        (["1", "1e300"], "double"),
        (["007"], "string"),
        (["+49"], "string"),
        (["0.5"], "decimal(38,18)"),
        (["2026-01-31"], "date"),
        (["2026-01-31T00:00:00Z"], "timestamp"),
        (["2026-01-31", "soon"], "string"),
        (["true", "1"], "string"),
        ([""], "string"),
    ],
)
def test_a_type_is_as_narrow_as_all_texts_of_a_field_allow(texts: list[str], kind: str) -> None:
    assert kinds(*(f"<o><v>{text}</v></o>" for text in texts)) == {"v": kind}


def test_nested_repeated_and_attributed_content_is_inferred_with_its_place() -> None:
    fields = infer_schema(
        [
            "<a:o xmlns:a='urn:o' id='7'><a:amount currency='EUR'>1.5</a:amount><a:line><n>1</n></a:line></a:o>",
            "<o xmlns='urn:o'><line><n xmlns=''>1</n></line><line/><id/></o>",
            "<o",
        ]
    )
    assert fields.simpleString() == (
        "struct<amount:struct<value:decimal(38,18),currency:string>,line:array<struct<n:bigint>>,id:string,"
        "id_attribute:bigint>"
    )
    assert fields["line"].metadata == {"xml": "element", "namespace": "urn:o"}
    assert fields["line"].dataType.elementType["n"].metadata == {"xml": "element", "namespace": ""}
    assert fields["id_attribute"].metadata == {"xml": "attribute", "namespace": "", "name": "id"}


NAMES = st.sampled_from(["a", "b", "c"])
ELEMENTS = st.recursive(
    st.tuples(NAMES, st.sampled_from(["1", "2.5", "true", "x", ""])),
    lambda inner: st.tuples(NAMES, st.lists(inner, min_size=1, max_size=3)),
    max_leaves=8,
)


def xml(element: object) -> str:
    name, inside = element  # type: ignore[misc]
    return f"<{name}>{inside if isinstance(inside, str) else ''.join(map(xml, inside))}</{name}>"


@given(st.lists(ELEMENTS, min_size=1, max_size=4))
def test_what_was_inferred_reads_the_sample(sample: list[object]) -> None:
    bodies = [f"<o>{xml(one)}</o>" for one in sample]
    reader = BodyReader(infer_schema(bodies), lenient=("empty",))
    for body in bodies:
        problem = reader.read(body.encode())[1]
        assert problem is None or "is text, not an element with children" in problem, body


@pytest.mark.parametrize(
    ("bodies", "what", "remedy"),
    [
        ([], "no readable body", "Send some messages first"),
        (["<o", ""], "no readable body", "Send some messages first"),
        (["<o/>", "<p/>"], "bodies of o, p", "with one element"),
    ],
)
def test_a_sample_without_one_element_is_refused(bodies: list[str], what: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=what) as caught:
        infer_schema(bodies)
    assert remedy in caught.value.remedy
