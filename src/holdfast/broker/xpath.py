"""The XPath of routes: the part of XPath 1.0 that one pass over any body can decide.

Owns its grammar. Everything else (other axes than child, descendant and attribute; positions, counts, variables,
functions) is rejected when the expression is read, because it could make a small body expensive.

    paths          /o:order/o:line, //o:line, o:order//*, o:order/@id, .
    conditions     o:order[@id = '7' and not(o:note)]
    comparisons    = != < <= > >= of a path with a text or a number
    functions      contains, starts-with and normalize-space of . or @name
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.config.values import Unfit
from holdfast.settings import suggestion

MAX_LENGTH = 1_024
"""Maximum number of characters of an expression."""
MAX_NESTING = 16
"""Maximum depth of nested parentheses and brackets."""
ANY = "*"

_TOKENS = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d*)?|\.\d+)|(?P<text>\"[^\"]*\"|'[^']*')"
    r"|(?P<name>[^\W\d][\w.-]*(?::(?!:)(?:[^\W\d][\w.-]*|\*))?)|(?P<sign>//|::|\.\.|!=|<=|>=|[/.@\[\](),=<>*|+$-]))"
)
_NAME = re.compile(r"[^\W\d][\w.-]*(?::[^\W\d][\w.-]*)?")
_FUNCTIONS = ("contains", "starts-with", "normalize-space")
_RELATIONS = ("=", "!=", "<", "<=", ">", ">=")
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_KNOWN = (
    "A route's XPath has paths of /, //, names, * and @, conditions in [ ], and, or, not(), comparisons with a text or "
    "a number, and contains(), starts-with() and normalize-space() of . or @name."
)


@dataclass(frozen=True, slots=True)
class Compared:
    """A condition on the text of a node.

    Args:
        relation: One of XPath's, or "contains", "starts-with".
        literal: The value to compare with; a number is compared as a number.
        is_normalized: Whether white space is normalized first.
    """

    relation: str
    literal: str | float
    is_normalized: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One element of a path.

    Args:
        is_below: Whether it may be at any depth below the previous element; else it is a child of it.
        name: ``namespace}local``, ``local``, ``namespace}*`` or ``*``.
    """

    is_below: bool
    name: str
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class Path:
    """The condition that a node exists.

    Args:
        steps: The steps to an element; none: the element where the path starts.
        attribute: Name of an attribute of it; None: the element itself.
        compared: Condition on its text; None: any text.
    """

    steps: tuple[Step, ...]
    attribute: str | None = None
    compared: Compared | None = None


@dataclass(frozen=True, slots=True)
class Not:
    """The condition that another one is false."""

    of: Condition


@dataclass(frozen=True, slots=True)
class All:
    """The condition that all of several are true."""

    of: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Some:
    """The condition that one of several is true."""

    of: tuple[Condition, ...]


Condition = Path | Not | All | Some


def parse_xpath(text: str, namespaces: Mapping[str, str]) -> Condition:
    """Parse an expression into a condition on a body.

    Raises:
        Unfit: The expression is not valid, or not supported; says where.
    """
    if len(text) > MAX_LENGTH:
        raise Unfit(f"this XPath has {len(text):,} characters, but the limit is {MAX_LENGTH:,}", "Shorten it.")
    reading = _Reading(text, namespaces)
    found = reading.either(0)
    reading.end()
    return found


def check_name(name: str) -> None:
    """Check the name of an element, with or without a prefix.

    Raises:
        Unfit: It is not a valid name.
    """
    if _NAME.fullmatch(name) is None:
        raise Unfit(f"'{name}' is not a valid name", "Write prefix:local, or local for a name without a namespace.")


def qualified(name: str, namespaces: Mapping[str, str]) -> str:
    """Return a name as the parser reports it: ``namespace}local``, or ``local`` without a prefix.

    Raises:
        Unfit: The prefix is not defined.
    """
    prefix, colon, local = name.rpartition(":")
    if not colon:
        return name
    if prefix not in namespaces:
        hint = f'{suggestion(prefix, namespaces)} Write {prefix} = "its namespace" below [namespaces].'
        raise Unfit(f"the prefix '{prefix}' is not defined", hint.lstrip())
    return f"{namespaces[prefix]}}}{local}"


def _no_text() -> Unfit:
    return Unfit("text() is not supported", "Remove it: a comparison uses the element's text.")


class _Reading:
    """Parses one expression, by recursive descent."""

    def __init__(self, text: str, namespaces: Mapping[str, str]) -> None:
        self._text = text
        self._namespaces = namespaces
        self._tokens: list[tuple[str, str, int]] = []
        at = 0
        while text[at:].strip():
            match = _TOKENS.match(text, at)
            if match is None:
                raise self._unknown(text[at:].strip()[0], at + len(text[at:]) - len(text[at:].lstrip()))
            kind = match.lastgroup
            assert kind is not None
            self._tokens.append((kind, match[kind], match.start(kind)))
            at = match.end()
        self._at = 0

    def _unknown(self, what: str, at: int) -> Unfit:
        return Unfit(f"'{what}' at character {at + 1} is not part of the XPath that routes support", _KNOWN)

    def _peek(self, ahead: int = 0) -> tuple[str, str]:
        at = self._at + ahead
        return self._tokens[at][:2] if at < len(self._tokens) else ("end", "")

    def _is(self, sign: str) -> bool:
        return self._peek() == ("sign", sign)

    def _take(self, *signs: str) -> str:
        """Return the next token if it is one of these signs, else ""."""
        kind, value = self._peek()
        if kind == "sign" and value in signs:
            self._at += 1
            return value
        return ""

    def _take_word(self, word: str) -> bool:
        if self._peek() == ("name", word):
            self._at += 1
            return True
        return False

    def _refuse(self) -> Unfit:
        if self._at >= len(self._tokens):
            return Unfit("this XPath is incomplete", _KNOWN)
        _, value, at = self._tokens[self._at]
        return self._unknown(value, at)

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise self._refuse()

    def end(self) -> None:
        if self._at < len(self._tokens):
            raise self._refuse()

    # --- conditions -------------------------------------------------------------------------------------------------

    def either(self, depth: int) -> Condition:
        if depth > MAX_NESTING:
            raise Unfit(f"brackets are nested more than {MAX_NESTING} deep", "Use fewer levels.")
        parts = [self._both(depth)]
        while self._take_word("or"):
            parts.append(self._both(depth))
        return Some(tuple(parts)) if len(parts) > 1 else parts[0]

    def _both(self, depth: int) -> Condition:
        parts = [self._one(depth)]
        while self._take_word("and"):
            parts.append(self._one(depth))
        return All(tuple(parts)) if len(parts) > 1 else parts[0]

    def _one(self, depth: int) -> Condition:
        if self._take("("):
            found = self.either(depth + 1)
            self._expect(")")
            return found
        kind, value = self._peek()
        if kind == "name" and self._peek(1) == ("sign", "("):
            return self._call(value, depth)
        if kind in ("text", "number") or self._is("-"):
            literal = self._literal()
            relation = self._take(*_RELATIONS)
            if not relation:
                raise self._refuse()
            path, is_normalized = self._operand(depth)
            return self._compared(path, Compared(_MIRRORED.get(relation, relation), literal, is_normalized))
        return self._comparison(*self._operand(depth))

    def _call(self, name: str, depth: int) -> Condition:
        if name == "not":
            self._at += 1
            self._expect("(")
            found = self.either(depth + 1)
            self._expect(")")
            return Not(found)
        if name == "text":
            raise _no_text()
        if name not in _FUNCTIONS:
            raise self._refuse()
        if name == "normalize-space":
            return self._comparison(*self._operand(depth))
        self._at += 1
        self._expect("(")
        path, is_normalized = self._operand(depth + 1, single=True)
        self._expect(",")
        if self._peek()[0] != "text":
            raise self._refuse()
        literal = self._literal()
        if not literal:
            raise Unfit(f"the text given to {name}() is empty, so it matches everything", "Remove the condition.")
        self._expect(")")
        return self._compared(path, Compared(name, literal, is_normalized))

    def _comparison(self, path: Path, is_normalized: bool) -> Condition:
        relation = self._take(*_RELATIONS)
        if relation:
            if self._peek()[0] not in ("text", "number") and not self._is("-"):
                raise self._refuse()  # two paths: each of one with each of the other
            return self._compared(path, Compared(relation, self._literal(), is_normalized))
        if is_normalized:
            raise self._refuse()
        if not path.steps and path.attribute is None:
            raise Unfit("'.' alone always exists", "Compare it with a value.")
        return path

    @staticmethod
    def _compared(path: Path, compared: Compared) -> Path:
        return Path(path.steps, path.attribute, compared)

    def _literal(self) -> str | float:
        sign = -1 if self._take("-") else 1
        kind, value = self._peek()
        if kind == "number":
            self._at += 1
            return sign * float(value)
        if kind != "text" or sign < 0:
            raise self._refuse()
        self._at += 1
        return value[1:-1]

    # --- paths ------------------------------------------------------------------------------------------------------

    def _operand(self, depth: int, *, single: bool = False) -> tuple[Path, bool]:
        if depth > MAX_NESTING:
            raise Unfit(f"brackets are nested more than {MAX_NESTING} deep", "Use fewer levels.")
        if self._peek() == ("name", "normalize-space") and self._peek(1) == ("sign", "("):
            self._at += 2
            path, _ = self._operand(depth + 1, single=True)
            self._expect(")")
            return path, True
        start = self._at
        path = self._path(depth)
        if single and path.steps:
            # XPath uses the first of several nodes, which is rarely intended and which one pass cannot determine.
            at = self._tokens[start][2]
            raise Unfit(
                f"the path at character {at + 1} can select several nodes, but a function uses only the first",
                "Put the function in brackets after the path, on . or @name: //o:note[contains(., 'urgent')].",
            )
        return path, False

    def _path(self, depth: int) -> Path:
        steps: list[Step] = []
        before = self._take("/", "//")
        if before and self._inside:
            self._at -= 1
            raise Unfit(
                f"the path at character {self._tokens[self._at][2] + 1} leads out of its brackets",
                "A path in [ ] starts at its element: write .//name, or move the path outside and join it with and.",
            )
        if not before and self._take("."):
            before = self._take("/", "//")
            if not before:
                return Path(())
        while True:
            if self._take("@"):
                if before == "//":
                    self._at -= 1
                    raise Unfit("'//@' can belong to any element", "Write //*[@name = '…'] instead.")
                return Path(tuple(steps), self._name())
            name = self._name()
            conditions = []
            while self._take("["):
                conditions.append(self._condition(depth))
            steps.append(Step(before == "//", name, tuple(conditions)))
            before = self._take("/", "//")
            if not before:
                return Path(tuple(steps))

    _inside = False

    def _condition(self, depth: int) -> Condition:
        if self._peek()[0] == "number" and self._peek(1) == ("sign", "]"):
            raise Unfit("a position in [ ] is not supported", "Select the element by its content, such as [@id = '7'].")
        outside, self._inside = self._inside, True
        found = self.either(depth + 1)
        self._inside = outside
        self._expect("]")
        return found

    def _name(self) -> str:
        if self._take("*"):
            return ANY
        kind, value = self._peek()
        if kind == "name" and value == "text" and self._peek(1) == ("sign", "("):
            raise _no_text()
        if kind != "name" or self._peek(1) in (("sign", "("), ("sign", "::")):
            raise self._refuse()
        self._at += 1
        return qualified(value, self._namespaces)
