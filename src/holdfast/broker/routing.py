"""Routes: which queues a message goes to. The first route that takes it has it; a route may name several queues.

What is not needed is not looked at: headers are parsed for routes that ask for one, a body for those that ask by XPath,
once for all of them, and both only where To and Action leave the question open. Knows no queue but by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import merge
from pyexpat import ExpatError, ParserCreate

from holdfast.broker.config import HeaderConfig, RouteConfig
from holdfast.broker.xpath import Condition, parse_xpath, qualified
from holdfast.broker.xpath_program import LOOKED_AT, Program, TooMuch
from holdfast.config.patterns import matches
from holdfast.core.faults import addressing_fault
from holdfast.core.messages import Envelope, Expects, Fault, Routed
from holdfast.endpoint.envelopes.decoder import OFF_LOOP

DESTINATION_UNREACHABLE = "DestinationUnreachable"
"""WS-Addressing 1.0 SOAP binding, 6.4.3: no route can be determined to reach the destination."""

_MOST_KNOWN = 1_024
"""Pairs of Action and To whose routes are remembered: those that are usual come again and again."""
_MOST_PROGRAMS = 256
LOOP_STEPS = 20_000
"""Steps that the event loop spends on a body, in a few milliseconds. A thread decides bodies that take more."""
_MOST_TOLD = 200
"""Characters of what a message says that a fault repeats."""

Key = tuple[str, str | None]


class _Texts:
    """What a text must be: one of some, or like one of some patterns."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._exact = frozenset(one for one in patterns if "*" not in one)
        self._patterns = [one for one in patterns if "*" in one]

    def take(self, text: str) -> bool:
        return text in self._exact or any(matches(one, text) for one in self._patterns)


class _Headers:
    """The header blocks of one message, each parsed once at most, however many routes ask for it."""

    def __init__(self, blocks: Sequence[bytes]) -> None:
        self.blocks = blocks
        self._read: dict[int, tuple[str, str]] = {}

    def read(self, index: int) -> tuple[str, str]:
        found = self._read.get(index)
        if found is None:
            found = self._read[index] = read_header(self.blocks[index])
        return found


class _Costly(Exception):
    """The event loop must not decide this."""


class _Header:
    """What a SOAP header must be."""

    def __init__(self, config: HeaderConfig, namespaces: Mapping[str, str]) -> None:
        self._name = qualified(config.name, namespaces)
        self._hint = self._name.rpartition("}")[2].encode()
        self._texts = _Texts(config.value) if config.value else None

    def takes(self, headers: _Headers) -> bool:
        for index, block in enumerate(headers.blocks):
            if self._hint in block:
                name, text = headers.read(index)
                if name == self._name and (self._texts is None or self._texts.take(text)):
                    return True
        return False


class _Route:
    """One route.

    Attributes:
        routed: Where its messages go.
        xpath: What is asked of their bodies; None: nothing.
        asks_more: Whether To and Action do not decide it.
    """

    def __init__(self, config: RouteConfig, routed: Routed, namespaces: Mapping[str, str]) -> None:
        self.routed = routed
        self.actions = config.action
        self._to = _Texts(config.to) if config.to else None
        self._action = _Texts(config.action) if config.action else None
        self.header = _Header(config.header, namespaces) if config.header is not None else None
        self.xpath = parse_xpath(config.xpath, namespaces) if config.xpath else None
        self.asks_more = self.header is not None or self.xpath is not None

    def takes(self, action: str, to: str | None) -> bool:
        """Whether Action and To are as it says."""
        return (self._action is None or self._action.take(action)) and (self._to is None or self._to.take(to or ""))


class _Choice:
    """What is left to decide of the messages with one Action and To.

    Attributes:
        routes: Those that may take them and ask for more, in their order.
        otherwise: Where those go that none of these takes; None: nowhere.
        program: What decides their XPaths; None: they have none.
    """

    __slots__ = ("otherwise", "program", "routes")

    def __init__(self, routes: list[_Route], otherwise: Routed | None, program: Program | None) -> None:
        self.routes = routes
        self.otherwise = otherwise
        self.program = program


class Router:
    """Says of messages where they go.

    Args:
        routes: The routes.
        namespaces: Prefix -> namespace, of their headers and XPaths.
        default: The queue of what none of them takes; None: it is refused.
        max_body: Bytes of a body that is looked into, and steps that may be spent on it.
        replied: Whether somebody behind a queue replies to requests.
        is_sent_on: Whether a forwarder sends on what is in a queue.

    Raises:
        Unfit: an XPath, or the name of a header, is none.
    """

    def __init__(
        self,
        routes: Sequence[RouteConfig],
        namespaces: Mapping[str, str],
        default: str | None,
        max_body: int,
        replied: Callable[[str], bool | None] = lambda _queue: None,
        is_sent_on: Callable[[str], bool] = lambda _queue: False,
    ) -> None:
        def routed(queues: tuple[str, ...], expects: Expects | None = None) -> Routed:
            said = [replied(queue) for queue in queues]
            is_followed = bool(queues) and all(is_sent_on(queue) for queue in queues)
            return Routed(queues, True if True in said else False if False in said else None, expects, is_followed)

        self._routes = [_Route(one, routed(one.queues, one.expects), namespaces) for one in routes]
        self._default = routed((default,)) if default is not None else None
        self._max_body = max_body
        self._of_action: dict[str, list[int]] = {}
        """Action -> the routes that take exactly that one, or others like it by name."""
        self._of_others: list[int] = []
        """The routes that must be asked whatever the Action is."""
        for index, route in enumerate(self._routes):
            if route.actions and not any("*" in action for action in route.actions):
                for action in route.actions:
                    self._of_action.setdefault(action, []).append(index)
            else:
                self._of_others.append(index)
        self._known: dict[Key, _Choice] = {}
        self._programs: dict[tuple[int, ...], Program] = {}

    def __call__(self, envelope: Envelope) -> Routed | Fault:
        """Where a message goes, or the fault for its sender."""
        return self._route(envelope, self._max_body)

    def at_once(self, envelope: Envelope) -> Routed | Fault | None:
        """Return the same if a small body and :data:`LOOP_STEPS` steps suffice, else None."""
        try:
            return self._route(envelope, LOOP_STEPS)
        except _Costly:
            return None

    def _route(self, envelope: Envelope, most: int) -> Routed | Fault:
        choice = self._choice(envelope)
        headers = _Headers(envelope.headers)
        found: list[bool] | None = None
        asked = 0
        for route in choice.routes:
            number, asked = asked, asked + (route.xpath is not None)
            if route.header is not None and not route.header.takes(headers):
                continue
            if route.xpath is None:
                return route.routed
            if found is None:
                assert choice.program is not None
                looked = self._look(choice.program, envelope.body, most)
                if isinstance(looked, Fault):
                    return looked
                found = looked
            if found[number]:
                return route.routed
        return choice.otherwise or _unreachable(envelope)

    def _choice(self, envelope: Envelope) -> _Choice:
        key = (envelope.action, envelope.to)
        choice = self._known.get(key)
        if choice is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            choice = self._known[key] = self._choose(*key)
        return choice

    def _choose(self, action: str, to: str | None) -> _Choice:
        routes: list[_Route] = []
        asking: list[int] = []
        for index in merge(self._of_action.get(action, ()), self._of_others):
            route = self._routes[index]
            if route.takes(action, to):
                if not route.asks_more:
                    return _Choice(routes, route.routed, self._program(asking))
                routes.append(route)
                if route.xpath is not None:
                    asking.append(index)
        return _Choice(routes, self._default, self._program(asking))

    def _program(self, asking: list[int]) -> Program | None:
        """What decides the XPaths of these routes."""
        if not asking:
            return None
        program = self._programs.get(tuple(asking))
        if program is None:
            if len(self._programs) >= _MOST_PROGRAMS:
                self._programs.clear()
            conditions: list[Condition] = [one for index in asking if (one := self._routes[index].xpath) is not None]
            program = self._programs[tuple(asking)] = Program(conditions)
        return program

    def _look(self, program: Program, body: bytes, most: int) -> list[bool] | Fault:
        """Decide all expressions over a body.

        Raises:
            _Costly: In so many steps they cannot be decided, in the steps that the configuration allows perhaps.
        """
        if len(body) > self._max_body:
            return _too_much(f"it has {len(body):,} bytes, and {self._max_body:,} are looked into")
        is_limited = most < self._max_body
        if is_limited and len(body) >= OFF_LOOP:
            raise _Costly
        try:
            return program.run(body, min(most, self._max_body))[0]
        except TooMuch:
            if is_limited:
                raise _Costly from None
            return _too_much("it has more elements than are looked at for its route")
        except ExpatError as error:
            return Fault("Sender", f"Where this message goes is decided by its body, which is not well-formed: {error}")


def read_header(block: bytes) -> tuple[str, str]:
    """The name of a header block, ``namespace}local``, and its text without white space at its ends, as far as it is
    looked at. Of what is no XML: nothing."""
    names: list[str] = []
    texts: list[str] = []
    parser = ParserCreate("utf-8", "}")
    parser.buffer_text = True
    parser.StartElementHandler = lambda name, _attributes: names.append(name) if not names else None
    parser.CharacterDataHandler = texts.append
    try:
        parser.Parse(block, True)
    except ExpatError:
        return "", ""
    return names[0], "".join(texts).strip(" \t\r\n")[: LOOKED_AT + 1]


def _unreachable(envelope: Envelope) -> Fault:
    to = f"To {_told(envelope.to)}" if envelope.to is not None else "no To"
    return addressing_fault(
        DESTINATION_UNREACHABLE,
        f"No route here takes a message with {to} and the Action {_told(envelope.action)}.",
    )


def _told(text: str) -> str:
    return repr(text if len(text) <= _MOST_TOLD else f"{text[:_MOST_TOLD]}...")


def _too_much(why: str) -> Fault:
    return Fault("Sender", f"Where this message goes is decided by its body, and {why} (limits.max_routed_body).")
