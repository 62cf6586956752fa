"""Decide all expressions over a body in one pass that keeps only the open elements.

A path is decided from its end: when an element closes, the program knows which ends of paths start in it. That depends
on its children and descendants, which are closed by then. So each element costs as many steps as there are tests of its
name, whatever the body; and all steps together are counted and limited.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pyexpat import ExpatError, ParserCreate

from holdfast.broker.xpath import ANY, All, Compared, Condition, Not, Path, Some, Step

LOOKED_AT = 4_096
"""Maximum number of a text's characters that are compared. Literals are shorter, so equality and common beginnings are
exact."""
PIECE = 64 * 1024
"""Bytes given to the parser at a time, so that other threads can run in between."""
TEXT_A_STEP = 64
"""Number of text characters that cost as much as one step."""

_NUMBER = re.compile(r"[ \t\r\n]*(-?(?:\d+(?:\.\d*)?|\.\d+))[ \t\r\n]*", re.ASCII)
_SPACE = re.compile(r"[ \t\r\n]+")


class TooMuch(Exception):
    """The steps exceed the limit."""


class _Element:
    """An open element, or the Body around all of them.

    Attributes:
        attributes: By name.
        children: Bits of the conditions that hold for one of its children.
        below: Bits of the conditions that hold for any descendant.
        tests: Tests that may apply to it.
        start: Start of its text, -1 if no condition needs it.
        texts: Number of comparisons of its text.
    """

    __slots__ = ("attributes", "below", "children", "start", "tests", "text", "texts")

    def __init__(self, attributes: dict[str, str], tests: tuple[_Test, ...], start: int, texts: int = 0) -> None:
        self.attributes = attributes
        self.tests = tests
        self.start = start
        self.texts = texts
        self.children = 0
        self.below = 0
        self.text = ""


_Holds = Callable[[_Element], bool]


@dataclass(frozen=True, slots=True)
class _Cost:
    """The cost of a condition for one element.

    Attributes:
        steps: Fixed steps.
        texts: Number of comparisons of its text.
        named: Number of comparisons of one named attribute.
        every: Number of comparisons of all attributes.
    """

    steps: int = 0
    texts: int = 0
    named: int = 0
    every: int = 0

    def __add__(self, other: _Cost) -> _Cost:
        return _Cost(
            self.steps + other.steps, self.texts + other.texts, self.named + other.named, self.every + other.every
        )

    def of_attributes(self, attributes: dict[str, str]) -> int:
        if not attributes or not (self.named or self.every):
            return 0
        looked = sum([min(len(value), LOOKED_AT) for value in attributes.values()]) // TEXT_A_STEP
        return self.named * looked + self.every * (len(attributes) + looked)


_ONE = _Cost(1)


class _Test:
    """The test of one step: a bit, and the condition that sets it."""

    __slots__ = ("bit", "cost", "holds")

    def __init__(self, bit: int, holds: _Holds, cost: _Cost) -> None:
        self.bit = bit
        self.holds = holds
        self.cost = cost


@dataclass(frozen=True, slots=True)
class _Tests:
    """The tests of elements of one name.

    Attributes:
        tests: All of them.
        cost: The cost of all of them.
    """

    tests: tuple[_Test, ...]
    cost: _Cost

    @classmethod
    def of(cls, tests: Sequence[_Test]) -> _Tests:
        return cls(tuple(tests), sum((one.cost for one in tests), _ONE))


class Program:
    """Several expressions that are decided together.

    Args:
        conditions: From :func:`holdfast.broker.xpath.parse_xpath`.
    """

    def __init__(self, conditions: Sequence[Condition]) -> None:
        self._bits = 0
        self._named: dict[str, list[_Test]] = {}
        made = [self._condition(one) for one in conditions]
        self._top = [holds for holds, _ in made]
        self.around = _Tests((), sum((cost for _, cost in made), _ONE))
        """Conditions on the Body element."""
        self._needs_text = any(
            [self.around.cost.texts, *(one.cost.texts for all in self._named.values() for one in all)]
        )
        self._tests = {name: self._for(name) for name in self._named if not name.endswith(ANY)}
        self._in_namespace = {name[: -len(ANY)]: self._for(name) for name in self._named if name.endswith("}" + ANY)}
        self._any = _Tests.of(self._named.get(ANY, ()))

    def run(self, body: bytes, most: int) -> tuple[list[bool], int]:
        """Return which conditions hold, in their order, and the number of steps used.

        Args:
            body: The content of a message's Body: well-formed, with all its namespaces.
            most: Maximum number of steps.

        Raises:
            TooMuch: It needs more steps.
            ExpatError: The body is not well-formed.
        """
        run = _Run(self, most)
        parser = ParserCreate("utf-8", "}")
        parser.buffer_text = True
        parser.StartElementHandler = run.start
        parser.EndElementHandler = run.end
        parser.CharacterDataHandler = run.text if self._needs_text else None
        parser.Parse(b"<b>", False)
        for at in range(0, len(body), PIECE):
            parser.Parse(body[at : at + PIECE], False)
        parser.Parse(b"</b>", True)
        return [holds(run.document) for holds in self._top], run.steps

    def tests_of(self, name: str) -> _Tests:
        found = self._tests.get(name)
        if found is not None:
            return found
        return self._in_namespace.get(name.rpartition("}")[0] + "}", self._any) if "}" in name else self._any

    def _for(self, name: str) -> _Tests:
        namespace = name.rpartition("}")[0] + "}" + ANY if "}" in name else ""
        names = dict.fromkeys([name, namespace, ANY])
        return _Tests.of([test for one in names for test in self._named.get(one, ())])

    # --- making it ----------------------------------------------------------------------------------------------------

    def _condition(self, one: Condition) -> tuple[_Holds, _Cost]:
        if isinstance(one, Path):
            return self._path(one)
        if isinstance(one, Not):
            holds, cost = self._condition(one.of)
            return (lambda element: not holds(element)), cost + _ONE
        made = [self._condition(part) for part in one.of]
        parts = [part for part, _ in made]
        cost = sum((cost for _, cost in made), _ONE)
        if isinstance(one, All):
            return (lambda element: all(part(element) for part in parts)), cost
        assert isinstance(one, Some)
        return (lambda element: any(part(element) for part in parts)), cost

    def _path(self, path: Path) -> tuple[_Holds, _Cost]:
        """Compile a path from its end: the condition on the element where it starts."""
        holds, cost = _end(path)
        for step in reversed(path.steps):
            bit = self._test(step, holds, cost)
            cost = _ONE
            holds = _has_below(bit) if step.is_below else _has_child(bit)
        return holds, cost

    def _test(self, step: Step, then: _Holds, cost: _Cost) -> int:
        """Create the test of a step; return the bit that it sets if the element meets its conditions and the next steps
        match."""
        parts = [then]
        for condition in step.conditions:
            holds, more = self._condition(condition)
            parts.insert(-1, holds)
            cost += more
        bit = 1 << self._bits
        self._bits += 1
        holds = then if len(parts) == 1 else lambda element: all(part(element) for part in parts)
        self._named.setdefault(step.name, []).append(_Test(bit, holds, cost))
        return bit


def _has_child(bit: int) -> _Holds:
    return lambda element: bool(element.children & bit)


def _has_below(bit: int) -> _Holds:
    return lambda element: bool(element.below & bit)


def _end(path: Path) -> tuple[_Holds, _Cost]:
    name, compared = path.attribute, path.compared
    if name is None:
        if compared is None:
            return (lambda element: True), _ONE
        fits = _comparing(compared)
        return (lambda element: fits(element.text)), _Cost(1, texts=_looks(compared))
    fits = _comparing(compared) if compared is not None else lambda value: True
    if name.endswith(ANY):
        start = name[: -len(ANY)]
        return (
            lambda element: any(
                fits(value[:LOOKED_AT]) for key, value in element.attributes.items() if key.startswith(start)
            )
        ), _Cost(1, every=_looks(compared))
    if compared is not None and compared.is_normalized:  # of nothing, that is an empty text
        return (lambda element: fits(element.attributes.get(name, "")[:LOOKED_AT])), _Cost(1, named=1)
    return (lambda element: name in element.attributes and fits(element.attributes[name][:LOOKED_AT])), _Cost(
        1, named=1
    )


def _looks(compared: Compared | None) -> int:
    if compared is None:
        return 1
    if compared.is_normalized:
        return 16
    return 4 if isinstance(compared.literal, float) or compared.relation in ("<", "<=", ">", ">=") else 1


def _comparing(compared: Compared) -> Callable[[str], bool]:
    fits = _relating(compared.relation, compared.literal)
    if compared.is_normalized:
        return lambda text: fits(_SPACE.sub(" ", text).strip(" "))
    return fits


def _relating(relation: str, literal: str | float) -> Callable[[str], bool]:
    if isinstance(literal, str):
        if relation == "contains":
            return lambda text: literal in text
        if relation == "starts-with":
            return lambda text: text.startswith(literal)
        if relation == "=":
            return lambda text: text == literal
        if relation == "!=":
            return lambda text: text != literal
    number = literal if isinstance(literal, float) else _number(literal)
    return {
        "=": lambda text: _number(text) == number,
        "!=": lambda text: _number(text) != number,
        "<": lambda text: _number(text) < number,
        "<=": lambda text: _number(text) <= number,
        ">": lambda text: _number(text) > number,
        ">=": lambda text: _number(text) >= number,
    }[relation]


def _number(text: str) -> float:
    """Return a text as XPath's number() converts it (XPath 1.0, 4.4)."""
    found = _NUMBER.fullmatch(text)
    return float(found[1]) if found is not None else float("nan")


class _Run:
    def __init__(self, program: Program, most: int) -> None:
        self._program = program
        self._most = most
        self._texts: list[str] = []
        self._wanting = 0
        """Open elements with a text that a condition needs."""
        self.steps = 0
        self._open: list[_Element] = []
        self.document = _Element({}, (), -1)

    def start(self, name: str, attributes: dict[str, str]) -> None:
        tests = self._program.tests_of(name) if self._open else self._program.around
        cost = tests.cost
        self.steps += cost.steps + len(attributes) + cost.of_attributes(attributes)
        if self.steps > self._most:
            raise TooMuch
        element = _Element(attributes, tests.tests, len(self._texts) if cost.texts else -1, cost.texts)
        self._wanting += cost.texts > 0
        if not self._open:
            self.document = element
        self._open.append(element)

    def text(self, text: str) -> None:
        if self._wanting:
            self._texts.append(text)

    def end(self, _name: str) -> None:
        element = self._open.pop()
        if element.start >= 0:
            self._wanting -= 1
            element.text = self._text_from(element.start, element.texts)
            if not self._wanting:
                self._texts.clear()
        bits = 0
        for test in element.tests:
            if test.holds(element):
                bits |= test.bit
        if self._open:
            around = self._open[-1]
            around.children |= bits
            around.below |= bits | element.below

    def _text_from(self, start: int, looks: int) -> str:
        """Return the text from there, up to the compared length plus one character: so a longer text equals no literal.
        Counts the comparisons."""
        parts: list[str] = []
        room = LOOKED_AT + 1
        for index in range(start, len(self._texts)):
            if room <= 0:
                break
            parts.append(self._texts[index])
            room -= len(parts[-1])
        text = "".join(parts)[: LOOKED_AT + 1]
        self.steps += len(parts) + (1 + looks) * (len(text) // TEXT_A_STEP)
        if self.steps > self._most:
            raise TooMuch
        return text


__all__ = ["LOOKED_AT", "ExpatError", "Program", "TooMuch"]
