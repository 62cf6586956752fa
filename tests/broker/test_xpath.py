"""The XPath of routes: what it takes, what it refuses and why, and that it says what lxml says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from examples import examples
from holdfast.broker import xpath_program
from holdfast.broker.xpath import parse_xpath
from holdfast.broker.xpath_program import LOOKED_AT, TEXT_A_STEP, Program, TooMuch
from holdfast.config.values import Unfit

NAMESPACES = {"o": "urn:orders", "p": "urn:parts"}
PLENTY = 1 << 40


def holds(expression: str, body: str) -> bool:
    ((found,), _) = Program([parse_xpath(expression, NAMESPACES)]).run(body.encode(), PLENTY)
    return found


def lxml_holds(expression: str, body: str) -> bool:
    tree = etree.ElementTree(etree.fromstring(body))
    return bool(tree.xpath(f"boolean({expression})", namespaces=NAMESPACES))


BODY = (
    '<o:order xmlns:o="urn:orders" xmlns:p="urn:parts" id="7" p:kind="new"><o:line n="1">5</o:line>'
    '<o:line n="2"> 10 </o:line><o:line/><p:note>very <b>urgent</b></p:note><plain><plain>x</plain></plain></o:order>'
)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("/o:order", True),
        ("/order", False),
        ("//o:line", True),
        ("/o:line", False),
        ("/o:order/o:line/@n", True),
        ("/o:order/@n", False),
        ("/o:order/@p:kind = 'new'", True),
        ("/o:order/@kind", False),
        ("/o:order/@p:*", True),
        ("//plain/@*", False),
        ("/o:order[@id = '7']/o:line[@n > 1] = 10", True),
        ("/o:order[@id = '8']/o:line", False),
        ("'7' = /o:order/@id", True),
        ("6 < /o:order/@id", True),
        ("//o:line = 5", True),
        ("//o:line != 5", True),
        ("//o:line > 10", False),
        ("//o:line >= 10 and //o:line <= 5", True),
        ("//p:note = 'very urgent'", True),
        ("//p:note[contains(., 'urgent')]", True),
        ("//p:note[starts-with(., 'urgent')]", False),
        ("//o:line[normalize-space(.) = '10']", True),
        ("//o:*[starts-with(@id, '7')]", True),
        ("//*[b]", True),
        ("//plain//plain = 'x'", True),
        ("//plain/plain/plain", False),
        ("not(//o:missing) and not(not(/o:order))", True),
        ("//o:missing or (//plain and //b)", True),
        ("/*/*/*[. = 'x']", True),
        ("/o:order[.//b]", True),
        ("/o:order[o:line[@n = '2'] and p:note/b]", True),
        ("//o:line[. = '']", True),
        ("//o:line = -5", False),
    ],
)
def test_an_expression_says_what_lxml_says(expression: str, expected: bool) -> None:
    assert (holds(expression, BODY), lxml_holds(expression, BODY)) == (expected, expected)


@pytest.mark.parametrize(
    ("expression", "what", "remedy"),
    [
        ("", "is incomplete", "paths of /"),
        ("/o:order[", "is incomplete", ""),
        ("/o:order]", "']' at character 9", ""),
        ("count(//a) > 3", "'count' at character 1", "conditions in [ ]"),
        ("//a[position() = 1]", "'position'", ""),
        ("//a[1]", "a position", "by its content"),
        ("//a/..", "'..'", ""),
        ("//a/parent::b", "'parent'", ""),
        ("//a | //b", "'|'", ""),
        ("$a = 1", "'$'", ""),
        ("//a = //b", "'//'", ""),
        ("1 = 1", "'1'", ""),
        ("re:test(//a, 'x+')", "'re:test'", ""),
        ("//a/text() = 'x'", "text() is not supported", "Remove it"),
        ("contains(//a, 'x')", "can select several nodes", "contains(., 'urgent')"),
        ("//a[//b]", "leads out of its brackets", ".//name"),
        ("//@id", "can belong to any element", "//*[@name"),
        ("//q:a", "the prefix 'q' is not defined", "[namespaces]"),
        ("//a[contains(., '')]", "is empty", "Remove the condition"),
        (".", "always exists", "Compare"),
        ("//a = 'x", "''' at character 7", ""),
        ("//a[normalize-space(.)]", "']'", ""),
        ("not(" * 30 + "a" + ")" * 30, "nested more than 16 deep", "fewer levels"),
        ("a[" * 30 + "a" + "]" * 30, "nested more than 16 deep", "fewer levels"),
        ("a" * 2000, "has 2,000 characters", "Shorten"),
        ("//a = 'ä' ; b", "';' at character 11", ""),
    ],
)
def test_what_is_not_known_is_refused_with_the_mend(expression: str, what: str, remedy: str) -> None:
    with pytest.raises(Unfit) as caught:
        parse_xpath(expression, NAMESPACES)
    assert what in caught.value.what
    assert remedy in caught.value.remedy


# --- any expression over any body -------------------------------------------------------------------------------------

TAGS = st.sampled_from(["a", "b", "o:a", "o:b", "p:a"])
TESTS = st.sampled_from(["a", "b", "o:a", "o:b", "p:a", "*", "o:*"])
TEXTS = st.sampled_from(["", "x", "xy", " x ", "1", "2.5", " 10 ", "-1"])
ATTRIBUTES = st.dictionaries(st.sampled_from(["i", "j", "o:i"]), TEXTS, max_size=2)
LITERALS = TEXTS.map(lambda text: f"'{text}'") | st.sampled_from(["1", "2.5", "-1", "0", ".5"])
RELATIONS = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
FUNCTIONS = st.sampled_from(
    [
        "contains(., 'x')",
        "starts-with(@i, 'x')",
        "normalize-space(.) = 'x'",
        "contains(@j, '1')",
        "contains(normalize-space(@o:i), 'x')",
        "normalize-space(@j) != '1'",
    ]
)


@st.composite
def elements(draw: st.DrawFn, depth: int = 4) -> str:
    name = draw(TAGS)
    attributes = "".join(f' {key}="{value}"' for key, value in draw(ATTRIBUTES).items())
    inside = draw(st.lists(TEXTS | elements(depth - 1), max_size=3)) if depth else []
    return f"<{name}{attributes}>{''.join(inside)}</{name}>"


@st.composite
def paths(draw: st.DrawFn, start: str, depth: int) -> str:
    steps = draw(st.lists(st.tuples(st.sampled_from(["/", "//"]), TESTS), min_size=1, max_size=3))
    told = ""
    for index, (before, name) in enumerate(steps):
        told += (start if index == 0 and before == "/" else (f".{before}" if start == "" else before) if index == 0
                 else before) + name  # fmt: skip
        if depth and draw(st.booleans()):
            told += f"[{draw(conditions(depth - 1, ''))}]"
    if draw(st.integers(0, 3)) == 0:
        told += "/@" + draw(st.sampled_from(["i", "j", "o:i", "*"]))
    return told


@st.composite
def conditions(draw: st.DrawFn, depth: int, start: str) -> str:
    kind = draw(st.integers(0, 7))
    if kind == 0 and depth:
        return f"not({draw(conditions(depth - 1, start))})"
    if kind in (1, 2) and depth:
        word = draw(st.sampled_from(["and", "or"]))
        return f"({draw(conditions(depth - 1, start))} {word} {draw(conditions(depth - 1, start))})"
    if kind == 3 and start == "":
        return draw(FUNCTIONS | st.just(f". {draw(RELATIONS)} {draw(LITERALS)}") | st.just("@i"))
    path = draw(paths(start, depth))
    if kind in (4, 5):
        return f"{path} {draw(RELATIONS)} {draw(LITERALS)}"
    if kind == 6:
        return f"{draw(LITERALS)} {draw(RELATIONS)} {path}"
    return path


@settings(max_examples=examples(150))
@given(conditions(2, "/"), elements())
def test_any_expression_over_any_body_says_what_lxml_says(expression: str, inside: str) -> None:
    body = f'<o:r xmlns:o="urn:orders" xmlns:p="urn:parts">{inside}</o:r>'
    assert holds(expression, body) == lxml_holds(expression, body)


@given(st.lists(conditions(1, "/"), min_size=2, max_size=4), elements())
def test_several_expressions_are_decided_together_as_each_by_itself(expressions: list[str], inside: str) -> None:
    body = f'<o:r xmlns:o="urn:orders" xmlns:p="urn:parts">{inside}</o:r>'
    together = Program([parse_xpath(one, NAMESPACES) for one in expressions])
    assert together.run(body.encode(), PLENTY)[0] == [holds(one, body) for one in expressions]


@given(st.text("/@.[]()=<>!*'\" abo:p1-|$,", max_size=20))
def test_whatever_is_written_is_an_expression_or_refused(text: str) -> None:
    try:
        program = Program([parse_xpath(text, NAMESPACES)])
    except Unfit:
        return
    program.run(b"<a><b/></a>", PLENTY)


# --- what it costs ----------------------------------------------------------------------------------------------------

EXPENSIVE = [
    "//a//a//a//a//a//a//a//a = 'x'",
    "//*[.//*[.//*[.//*[.//a]]]]",
    "//a[a[a[a[a[a]]]]] or //a[not(.//b) and not(.//c)]",
    "//*[contains(., 'nowhere')] or //*[. = 'x'] or //*[@* = 'x']",
    " or ".join(f"//a[@i = '{number}']" for number in range(40)),
]
SHAPES = {
    "flat": lambda n: "<r>" + "<a/>" * n + "</r>",
    "deep": lambda n: ("<a>" * 60 + "</a>" * 60) * (n // 60),
    "texts": lambda n: "<r>" + "<a>x</a>" * n + "</r>",
    "one text": lambda n: "<a>" * 60 + "x" * n + "</a>" * 60,
    "broken text": lambda n: "<a>" * 60 + "&amp;" * n + "</a>" * 60,
    "attributes": lambda n: "<r>" + ("<a " + " ".join(f'k{i}="v"' for i in range(100)) + "/>") * (n // 100) + "</r>",
    "names": lambda n: "<r>" + "".join(f"<a{i}/>" for i in range(n)) + "</r>",
}


@pytest.mark.parametrize("expression", EXPENSIVE)
@pytest.mark.parametrize("shape", list(SHAPES))
def test_the_work_grows_with_the_body_and_no_faster(expression: str, shape: str) -> None:
    program = Program([parse_xpath(expression, NAMESPACES)])
    counts = [program.run(SHAPES[shape](n).encode(), PLENTY)[1] for n in (600, 1200, 2400)]
    assert counts[1] <= 2 * counts[0] + 100
    assert counts[2] <= 2 * counts[1] + 100
    assert counts[2] <= len(SHAPES[shape](2400)) * len(expression)


@pytest.mark.parametrize("expression", EXPENSIVE)
@pytest.mark.parametrize("shape", list(SHAPES))
def test_it_stops_at_the_step_that_is_too_much(expression: str, shape: str) -> None:
    program = Program([parse_xpath(expression, NAMESPACES)])
    body = SHAPES[shape](600).encode()
    steps = program.run(body, PLENTY)[1]
    assert program.run(body, steps)[1] == steps
    with pytest.raises(TooMuch):
        program.run(body, steps - 1)


HOSTILE = [
    " or ".join(f"//*[@* = 'n{number}']" for number in range(40)),
    " or ".join(f"//*[contains(@*, 'n{number}')]" for number in range(30)),
    " or ".join(f"//*[normalize-space(.) = 'n{number}']" for number in range(25)),
    " or ".join(f"//*[contains(., 'n{number}')]" for number in range(30)),
    " or ".join(f"//*[@k1 = {number}]" for number in range(40)),
    " or ".join(f". = 'n{number}'" for number in range(60)),
]


@pytest.mark.every(5)
@pytest.mark.parametrize("expression", [*EXPENSIVE, *HOSTILE])
@pytest.mark.parametrize("shape", [*SHAPES, "long values"])
def test_every_look_at_a_text_or_an_attribute_is_counted(
    expression: str, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps that are counted are no fewer than the values that are compared, and the characters of these."""
    looks = 0
    relating = xpath_program._relating

    def counting(relation: str, literal: str | float) -> Callable[[str], bool]:
        fits = relating(relation, literal)

        def look(text: str) -> bool:
            nonlocal looks
            looks += max(1, len(text) // TEXT_A_STEP)
            return fits(text)

        return look

    monkeypatch.setattr(xpath_program, "_relating", counting)
    values = "<r>" + ("<a " + " ".join(f'k{i}="{"v" * 5_000}"' for i in range(3)) + "/>") * 4 + "</r>"
    body = values if shape == "long values" else SHAPES[shape](2400)
    program = Program([parse_xpath(expression, NAMESPACES)])
    steps = program.run(body.encode(), 10 * PLENTY)[1]
    assert looks <= steps


def test_of_a_long_text_the_beginning_is_looked_at() -> None:
    long = "x" * (2 * LOOKED_AT)
    assert holds("/a[starts-with(., 'xxx')]", f"<a>{long}</a>")
    assert not holds("/a = 'xxx'", f"<a>{long}</a>")
    assert holds("/a != 'xxx'", f"<a>{long}</a>")
    assert not holds("/a[contains(., 'y')]", f"<a>{long}y</a>")


def test_a_body_may_hold_several_elements_and_a_path_begins_beside_them() -> None:
    assert holds("/a = 'x' and /b = 'y'", "<a>x</a><b>y</b>")
    assert holds("a and b", "<a>x</a><b>y</b>")
    assert holds(". = 'xy'", "<a>x</a><b>y</b>")
    assert not holds("/a", "")
