"""Routes: the queues of a message. The first matching route decides; a route may name several queues.

Only what is needed is parsed: headers for routes with a header condition, the body once for all routes with an XPath,
and both only if To and Action leave the decision open. Knows queues only by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import merge
from pyexpat import ExpatError, ParserCreate

from holdfast.broker.config import HeaderConfig, RouteConfig
from holdfast.broker.xpath import Condition, parse_xpath, qualified
from holdfast.broker.xpath_program import LOOKED_AT, Program, TooMuch
from holdfast.config.patterns import matches
from holdfast.core.faults import addressing_fault
from holdfast.core.messages import Envelope, Expects, Fault, Routed
from holdfast.endpoint.envelopes.decoder import OFF_LOOP
from holdfast.endpoint.envelopes.transport_facts import read_facts

DESTINATION_UNREACHABLE = "DestinationUnreachable"
"""WS-Addressing 1.0 SOAP binding, 6.4.3: no route can be determined to reach the destination."""

_MOST_KNOWN = 1_024
"""Maximum number of pairs of Action and To whose routes are cached: the common pairs recur."""
_MOST_PROGRAMS = 256
LOOP_STEPS = 20_000
"""Steps that the event loop spends on one body, a few milliseconds. A thread decides bodies that need more."""
_MOST_TOLD = 200
"""Maximum number of a message's characters that a fault quotes."""

Key = tuple[str, str | None]


class _Texts:
    """A condition on a text: equal to one of some, or matching one of some patterns."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._exact = frozenset(one for one in patterns if "*" not in one)
        self._patterns = [one for one in patterns if "*" in one]

    def take(self, text: str) -> bool:
        return text in self._exact or any(matches(one, text) for one in self._patterns)


class _Headers:
    """The header blocks of one message, each parsed at most once for all routes."""

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
    """A condition on a SOAP header."""

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
        routed: The queues of its messages.
        xpath: Condition on the body; None: none.
        asks_more: Whether To and Action do not decide it.
    """

    def __init__(self, config: RouteConfig, routed: Routed, namespaces: Mapping[str, str]) -> None:
        self.routed = routed
        self.actions = config.action
        self._to = _Texts(config.to) if config.to else None
        self._action = _Texts(config.action) if config.action else None
        self.header = _Header(config.header, namespaces) if config.header is not None else None
        self.user = _Texts(config.user) if config.user else None
        self.xpath = parse_xpath(config.xpath, namespaces) if config.xpath else None
        self.asks_more = not (self.header is None and self.user is None and self.xpath is None)

    def takes(self, action: str, to: str | None) -> bool:
        return self.takes_action(action) and self.takes_to(to or "")

    def takes_action(self, action: str) -> bool:
        return self._action is None or self._action.take(action)

    def takes_to(self, to: str) -> bool:
        return self._to is None or self._to.take(to)


class _Choice:
    """The open decision for messages with one Action and To.

    Attributes:
        routes: Routes that may match but have more conditions, in their order.
        otherwise: The queues of messages that none of these routes takes; None: none.
        program: Decides their XPaths; None: they have none.
    """

    __slots__ = ("otherwise", "program", "routes")

    def __init__(self, routes: list[_Route], otherwise: Routed | None, program: Program | None) -> None:
        self.routes = routes
        self.otherwise = otherwise
        self.program = program


class Router:
    """Assign messages to queues.

    Args:
        namespaces: Prefix -> namespace, for headers and XPaths.
        default: The queue of messages without a matching route; None: they are refused.
        max_body: Largest body that is searched, in bytes, and the number of steps for it.
        is_sent_on: Whether a forwarder reads a queue: its destination may reply.
        has_replies: Whether replies to a queue's forwarder may also come later than in the HTTP response.

    Raises:
        Unfit: An XPath, or the name of a header, is not valid.
    """

    def __init__(
        self,
        routes: Sequence[RouteConfig],
        namespaces: Mapping[str, str],
        default: str | None,
        max_body: int,
        is_sent_on: Callable[[str], bool] = lambda _queue: False,
        has_replies: Callable[[str], bool] = lambda _queue: True,
    ) -> None:
        def routed(queues: tuple[str, ...], expects: Expects | None = None) -> Routed:
            followed = [is_sent_on(queue) for queue in queues]
            at_once = any(followed) and not any(has_replies(queue) for queue in queues)
            return Routed(queues, any(followed), expects, bool(queues) and all(followed), at_once)

        self._routes = [_Route(one, routed(one.queues, one.expects), namespaces) for one in routes]
        self._default = routed((default,)) if default is not None else None
        self._max_body = max_body
        self._of_action: dict[str, list[int]] = {}
        """Action -> the routes for exactly that Action, or for a pattern that matches it."""
        self._of_others: list[int] = []
        """The routes to check for every Action."""
        for index, route in enumerate(self._routes):
            if route.actions and not any("*" in action for action in route.actions):
                for action in route.actions:
                    self._of_action.setdefault(action, []).append(index)
            else:
                self._of_others.append(index)
        self._known: dict[Key, _Choice] = {}
        self._programs: dict[tuple[int, ...], Program] = {}

    def __call__(self, envelope: Envelope) -> Routed | Fault:
        """Return the queues of a message, or the fault for its sender."""
        return self._route(envelope, self._max_body)

    def at_once(self, envelope: Envelope) -> Routed | Fault | None:
        """Return the same if a small body and :data:`LOOP_STEPS` steps suffice, else None."""
        try:
            return self._route(envelope, LOOP_STEPS)
        except _Costly:
            return None

    def routes_to(self, to: str) -> tuple[int, ...]:
        """Return the numbers of the routes that take messages with a To, depending on what else is in them."""
        return tuple(number for number, route in enumerate(self._routes) if route.takes_to(to))

    def reachable(self, action: str | None, routes: Iterable[int]) -> frozenset[str]:
        """Return the queues that messages may get to by some routes or without one, whatever else is in them.

        Args:
            action: Their Action; None: any.
            routes: The numbers of the routes that take their To.
        """
        found: list[Routed] = []
        for route in (self._routes[number] for number in routes):
            if action is None or route.takes_action(action):
                found.append(route.routed)
                if not route.asks_more and (action is not None or not route.actions):
                    break
        else:
            found += [] if self._default is None else [self._default]
        return frozenset(queue for routed in found for queue in routed.queues)

    def _route(self, envelope: Envelope, most: int) -> Routed | Fault:
        choice = self._choice(envelope)
        headers = _Headers(envelope.headers)
        found: list[bool] | None = None
        asked = 0
        for route in choice.routes:
            # The program has the expressions of these routes, in their order.
            number, asked = asked, asked + (route.xpath is not None)
            if route.user is not None and not route.user.take(read_facts(envelope.transport).user):
                continue
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
            _Costly: The steps did not suffice; the number that the configuration allows might.
        """
        if len(body) > self._max_body:
            return _too_much(f"its {len(body):,} bytes exceed the limit of {self._max_body:,}")
        is_limited = most < self._max_body
        if is_limited and len(body) >= OFF_LOOP:
            raise _Costly
        try:
            return program.run(body, min(most, self._max_body))[0]
        except TooMuch:
            if is_limited:
                raise _Costly from None
            return _too_much("it has too many elements")
        except ExpatError as error:
            return Fault("Sender", f"The body decides the route of this message, but is not well-formed: {error}")


def read_header(block: bytes) -> tuple[str, str]:
    """Return the name of a header block, ``namespace}local``, and its text without white space at its ends, up to the
    length that is compared. Return empty texts if the block is not XML."""
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
        f"No route matches a message with {to} and the Action {_told(envelope.action)}.",
    )


def _told(text: str) -> str:
    return repr(text if len(text) <= _MOST_TOLD else f"{text[:_MOST_TOLD]}...")


def _too_much(why: str) -> Fault:
    return Fault("Sender", f"The body decides the route of this message, but {why} (limits.max_routed_body).")
