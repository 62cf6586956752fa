"""The WSDLs of the services behind a broker, as the broker serves them: with its own address and its own policy.

A WSDL is offered at the addresses of which the broker forwards an operation to the service. ``wsdl.documents`` loads
the documents.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Protocol, TypeVar
from urllib.parse import quote
from xml.sax.saxutils import escape

from lxml import etree

from holdfast.endpoint.background_tasks import BackgroundTasks
from holdfast.endpoint.destination.wsdl import (
    NO_STORE,
    asked_for,
    give_document,
    imports_of,
    set_address,
)
from holdfast.endpoint.engine.opening import in_thread
from holdfast.endpoint.logs import LineLimit, log
from holdfast.exceptions import ConfigurationError, HoldfastError
from holdfast.http.exchange import Exchange
from holdfast.http.outcome import TransportError
from holdfast.http.retry_after import retry_after
from holdfast.wire.body import parse_element
from holdfast.wire.names import WSA_NS
from holdfast.wire.policy.assertions import MTOM_ASSERTIONS
from holdfast.wire.policy.expressions import POLICY
from holdfast.wire.policy.writing import WSP, PolicyVersion
from holdfast.wire.wsdl import WSDL, defined_name, full_name
from holdfast.wsdl.documents import XML_NAMESPACE, Documents

FETCH_SECONDS = 10.0
"""How long all documents of a service may take, and a request for its WSDL waits."""
AWAY_SECONDS = 5
"""How long the broker does not ask a service again after a failure. Each further failure doubles it."""
MOST_AWAY_SECONDS = 60
MOST_FETCHES = 8
"""Services that are asked at the same time."""
MOST_KEPT = 64
"""Documents that are kept as they were written, without the address; they depend on the configuration only."""
_REMEDY = "Check the URL, or save the WSDL with its documents as files and name its file."
_WEB = ("http://", "https://")
_POLICY_PARTS = [f"{{{namespace}}}{name}" for namespace in POLICY for name in ("Policy", "PolicyReference")]
_POLICY_URIS = [f"{{{namespace}}}PolicyURIs" for namespace in POLICY]
_REFERENCES = [f"{{{namespace}}}EndpointReference" for namespace in WSA_NS.values()]
_ADDRESS = "http://address-of-this-broker.invalid/"
"""Stands for the address of a request in a document that is written once for all addresses."""
_AWAY = b"The WSDL of the service cannot be fetched now.\n"
_FAILED = b"The WSDL cannot be returned. The log of the broker has the reason.\n"
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

Policy = Callable[[str, PolicyVersion], str]
"""Returns the content of a wsp:Policy for clients that reach the broker at an address."""
Fetcher = Callable[[float], Callable[[str], bytes]]
"""Returns a function that returns the content of a URL. It takes at most so many seconds, in which it blocks."""
PortName = tuple[str, str]
"""The names of a wsdl:service and of its wsdl:port."""


class Routes(Protocol):
    """Routes to queues, by numbers in their order."""

    def routes_to(self, to: str) -> tuple[int, ...]:
        """Return the routes that may take messages with a To."""
        ...

    def reachable(self, action: str | None, routes: Iterable[int]) -> frozenset[str]:
        """Return the queues that messages with an Action, or with any, may get to by these routes."""
        ...


class ServiceWSDL:
    """The WSDL 1.1 of one service, with the documents that it imports.

    Args:
        location: The path of its file, which is read now, or its http or https URL, which is fetched when it is needed.

    Raises:
        ConfigurationError: A file cannot be read, is not WSDL 1.1, or has no port for SOAP over HTTP.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        self.actions: dict[PortName, frozenset[str]] = {}
        """Port -> the actions of its requests."""
        self._documents: Documents | None = None
        self._locations: list[str] = []
        self._bindings: dict[PortName, str] = {}
        self._mtom: list[tuple[str, bool]] = []
        """Its assertions of MTOM, and whether each is optional: a broker forwards bodies in the form they have."""
        if not self.is_remote:
            self.load(lambda _url: b"")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ServiceWSDL) and (self.location, self._content) == (other.location, other._content)

    def __hash__(self) -> int:
        return hash(self.location)

    def __repr__(self) -> str:
        return self.location

    @property
    def is_remote(self) -> bool:
        """Whether it is fetched from a URL."""
        return self.location.lower().startswith(_WEB)

    @property
    def is_loaded(self) -> bool:
        return self._documents is not None

    @property
    def count(self) -> int:
        """The number of its documents, as far as they are loaded."""
        return len(self._locations)

    @property
    def _content(self) -> list[bytes]:
        """The content of the files. What a URL returns is no setting."""
        documents = self._documents
        return [] if documents is None or self.is_remote else [documents.load(one) for one in self._locations]

    def load(self, fetch: Callable[[str], bytes]) -> None:
        """Read all documents. It may block.

        Raises:
            ConfigurationError: As for the constructor.
            TransportError: A document cannot be fetched.
        """
        documents = Documents(self.location, fetch)
        locations = documents.load_all()
        description = documents.description()
        if not description.port_names():
            raise ConfigurationError(
                f"{self.location} has no port for SOAP over HTTP.", remedy="Name the WSDL with the wsdl:service."
            )
        roots = [root for _, root in documents.wsdl()]
        self._bindings = {
            (service.get("name", ""), port.get("name", "")): full_name(port, port.get("binding", ""))
            for root in roots
            for service in root.iterfind(f"{{{WSDL}}}service")
            for port in service.iterfind(f"{{{WSDL}}}port")
        }
        optional = [f"{{{namespace}}}Optional" for namespace in POLICY]
        found = {
            str(one.tag): any(one.get(name) in ("true", "1") for name in optional)
            for root in roots
            for one in root.iter(*MTOM_ASSERTIONS)
        }
        self.actions, self._mtom = description.actions_of_ports(), sorted(found.items())
        # Its schema is known, so the one that a service names is not loaded; but clients need a place to load it from.
        self._locations, self._documents = [*locations, XML_NAMESPACE], documents

    def write(self, number: int, ports: frozenset[PortName], name: str, policy: str, version: PolicyVersion) -> bytes:
        """Return a document as the broker serves it, with :data:`_ADDRESS` as the broker's address. It may block.

        Args:
            number: 0 for the WSDL itself, more for those that it imports, less than :attr:`count`.
            ports: The ports that are offered there. The others are removed: they are not at the broker.
            name: What the service is called in the URLs of its documents.
            policy: The content of the broker's wsp:Policy, which replaces all policies of the service.
        """
        documents = self._documents
        assert documents is not None
        location = self._locations[number]
        root = parse_element(documents.load(location))
        for element, attribute, kind in list(imports_of(root)):
            imported = element.get(attribute, "")
            is_xml = element.get("namespace") == XML_NAMESPACE
            place = XML_NAMESPACE if is_xml else documents.beside(location, imported)
            if imported and place in self._locations:
                element.set(attribute, f"{_ADDRESS}?{kind}={quote(name)}/{self._locations.index(place)}")
        _remove_policies(root)
        _offer(root, ports)
        bindings = {self._bindings[port] for port in ports}
        for binding in root.iterfind(f"{{{WSDL}}}binding"):
            if defined_name(binding) in bindings:
                documentation = binding.find(f"{{{WSDL}}}documentation")
                at = 0 if documentation is None else binding.index(documentation) + 1
                binding.insert(at, self._policy(policy, version))
        return etree.tostring(root.getroottree(), encoding="utf-8", xml_declaration=True)

    def _policy(self, content: str, version: PolicyVersion) -> etree._Element:
        wsp = WSP[version]
        made = parse_element(f'<wsp:Policy xmlns:wsp="{wsp}">{content}</wsp:Policy>'.encode())
        for name, is_optional in self._mtom:
            etree.SubElement(made, name, {f"{{{wsp}}}Optional": "true"} if is_optional else {})
        return made


@dataclass(eq=False)
class _Service:
    """A service behind the broker."""

    queue: str
    wsdl: ServiceWSDL
    fetcher: Fetcher
    fetching: asyncio.Task[None] | None = None
    until: float = 0.0
    """When it must have been fetched."""
    away_until: float = -inf
    pause: float = AWAY_SECONDS


class ForwardedServices:
    """The services behind a broker."""

    def __init__(self, policy: Policy, routes: Routes, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy, self._routes, self._clock = policy, routes, clock
        self._services: dict[str, _Service] = {}
        self._tasks = BackgroundTasks()
        # The threads of the store and of large messages must not wait for services that are away.
        self._threads = ThreadPoolExecutor(MOST_FETCHES, "wsdl")
        self._turn = asyncio.Lock()
        self._failures = LineLimit()
        self._offered: dict[tuple[str, tuple[int, ...]], frozenset[PortName]] = {}
        self._written: dict[tuple[str, int, frozenset[PortName], str, PolicyVersion], bytes] = {}

    def add(self, name: str, queue: str, wsdl: ServiceWSDL, fetcher: Fetcher) -> None:
        """Add a service."""
        self._services[name] = _Service(queue, wsdl, fetcher)

    def give(self, exchange: Exchange, address: str, otherwise: Callable[[Exchange], None]) -> None:
        """Answer a request for a WSDL or one of its documents, now or when it has been fetched.

        Args:
            address: The URL at which the client reaches the broker.
            otherwise: Answers it if it is not for a document of a service.
        """
        if self._services:
            self._tasks.start(self._give(exchange, address, otherwise))
        else:
            otherwise(exchange)

    def close(self) -> None:
        """End all fetching. The requests that wait for it are answered."""
        for one in self._services.values():
            if one.fetching is not None:
                one.until = -inf
                one.fetching.cancel()

    async def _give(self, exchange: Exchange, address: str, otherwise: Callable[[Exchange], None]) -> None:
        try:
            await self._answer(exchange, address, otherwise)
        except Exception as error:
            if (left_out := self._failures.admit()) is not None:
                log.error("wsdl.not_given", target=exchange.request.target, left_out=left_out, exc_info=error)
            exchange.respond(500, _FAILED, b"text/plain")

    async def _answer(self, exchange: Exchange, address: str, otherwise: Callable[[Exchange], None]) -> None:
        asked = asked_for(exchange.request)
        assert asked is not None  # the caller saw to it
        name, _, number = asked.name.partition("/")
        routes = self._routes.routes_to(address)
        queues = self._routes.reachable(None, routes)
        possible = {key: one for key, one in self._services.items() if one.queue in queues and name in ("", key)}
        if asked.version is None or not possible or not (number or "0").isdecimal() or not number.isascii():
            otherwise(exchange)
            return
        await self._fetch_missing(possible)
        offered: dict[str, frozenset[PortName]] = {}
        for key, one in possible.items():
            if one.wsdl.is_loaded:
                ports = await self._kept(self._offered, (key, routes), partial(self._ports, one, routes))
                offered |= {key: ports} if ports else {}
        if not offered and any(not one.wsdl.is_loaded for one in possible.values()):
            exchange.respond(503, _AWAY, b"text/plain", retry_after(AWAY_SECONDS))
        elif len(offered) > 1:
            urls = "".join(f"{address}?wsdl={quote(one)}\n" for one in offered)
            text = f"Several services are behind this address. Their WSDLs:\n{urls}"
            exchange.respond(404, text.encode(), b"text/plain", NO_STORE)
        else:
            document = None
            for key, ports in offered.items():
                document = await self._document(key, int(number[:9] or "0"), address, ports, asked.version)
            if document is None:
                otherwise(exchange)
            else:
                give_document(exchange, document)

    async def _fetch_missing(self, services: Mapping[str, _Service]) -> None:
        """Fetch the services that are not loaded, together, except those that could not be fetched just now."""
        now, fetching = self._clock(), []
        for name, one in services.items():
            if not one.wsdl.is_loaded and one.away_until <= now:
                if one.fetching is None or one.fetching.done():
                    one.until = now + FETCH_SECONDS
                    one.fetching = self._tasks.start(self._fetch(name, one))
                fetching.append(one.fetching)
        if fetching:
            await asyncio.wait(fetching)

    async def _fetch(self, name: str, one: _Service) -> None:
        def fetch(url: str) -> bytes:
            left = one.until - self._clock()
            if left <= 0:
                raise TransportError(f"{url} was not fetched: the time for all documents is over", connected=False)
            return one.fetcher(left)(url)

        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, one.wsdl.load, fetch)
        except Exception as error:  # whatever it is: other services do not depend on it
            one.away_until = self._clock() + min(one.pause, MOST_AWAY_SECONDS)
            one.pause *= 2
            said = error.message if isinstance(error, HoldfastError) else repr(error)
            log.warning("wsdl.not_fetched", forwarder=name, error=said, remedy=_REMEDY)

    def _ports(self, one: _Service, routes: tuple[int, ...]) -> frozenset[PortName]:
        """Return the ports of a service of which these routes send an operation to it."""
        return frozenset(
            port
            for port, actions in one.wsdl.actions.items()
            if any(one.queue in self._routes.reachable(action, routes) for action in actions)
        )

    async def _document(
        self, name: str, number: int, address: str, ports: frozenset[PortName], version: PolicyVersion
    ) -> bytes | None:
        wsdl, policy = self._services[name].wsdl, self._policy(address, version)
        if number >= wsdl.count:
            return None
        write = partial(wsdl.write, number, ports, name, policy, version)
        written = await self._kept(self._written, (name, number, ports, policy, version), write)
        return written.replace(_ADDRESS.encode(), escape(address, {'"': "&quot;"}).encode())

    async def _kept(self, kept: dict[_Key, _Value], key: _Key, make: Callable[[], _Value]) -> _Value:
        """Return a kept value, or make it in a thread: one at a time, as any client may ask."""
        async with self._turn:
            if key not in kept:
                if len(kept) >= MOST_KEPT:
                    kept.clear()
                kept[key] = await in_thread(make)
            return kept[key]


def _remove_policies(root: etree._Element) -> None:
    for part in list(root.iter(*_POLICY_PARTS)):
        _remove(part)
    for element in root.iter("*"):
        for name in _POLICY_URIS:
            element.attrib.pop(name, None)


def _offer(root: etree._Element, ports: Iterable[PortName]) -> None:
    """Give some ports the broker's address, and remove the others, and services without ports."""
    for service in root.findall(f"{{{WSDL}}}service"):
        for port in service.findall(f"{{{WSDL}}}port"):
            if (service.get("name", ""), port.get("name", "")) not in ports or not set_address(port, _ADDRESS):
                _remove(port)
                continue
            for reference in port.findall("*"):
                if reference.tag in _REFERENCES:  # its identity is that of the service
                    _remove(reference)
        if service.find(f"{{{WSDL}}}port") is None:
            _remove(service)


def _remove(element: etree._Element) -> None:
    parent = element.getparent()
    if parent is not None:  # not that of a policy that has been removed with the one around it
        element.tail = None
        parent.remove(element)
