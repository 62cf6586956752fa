"""The WSDLs of the services behind a broker, as the broker serves them: with its own address and its own policy.

A WSDL is offered at the addresses of which the broker forwards an operation to the service. ``wsdl.documents`` loads
the documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from urllib.parse import quote

from lxml import etree

from holdfast.endpoint.background_tasks import BackgroundTasks
from holdfast.endpoint.destination.wsdl import (
    MOST_ADDRESSES,
    NO_SUCH_POLICY,
    Asked,
    address_of,
    asked_for,
    imports_of,
    set_address,
)
from holdfast.endpoint.engine.opening import in_thread
from holdfast.endpoint.logs import log
from holdfast.exceptions import ConfigurationError, HoldfastError
from holdfast.http.exchange import Exchange
from holdfast.http.retry_after import retry_after
from holdfast.wire.body import parse_element
from holdfast.wire.names import WSA_NS
from holdfast.wire.policy.assertions import MTOM_ASSERTIONS
from holdfast.wire.policy.expressions import POLICY
from holdfast.wire.policy.writing import WSP, PolicyVersion
from holdfast.wire.wsdl import WSDL, defined_name, full_name
from holdfast.wsdl.documents import XML_NAMESPACE, Documents

FETCH_SECONDS = 10.0
"""How long a request for a WSDL may wait for the service that has it."""
_REMEDY = "Check the URL, or save the WSDL with its documents as files and name its file."
_WEB = ("http://", "https://")
_POLICY_PARTS = [f"{{{namespace}}}{name}" for namespace in POLICY for name in ("Policy", "PolicyReference")]
_POLICY_URIS = [f"{{{namespace}}}PolicyURIs" for namespace in POLICY]
_REFERENCES = [f"{{{namespace}}}EndpointReference" for namespace in WSA_NS.values()]
_NO_SERVICE = b"No operation of a service with a WSDL is forwarded from this address.\n"
_AWAY = b"The WSDL of the service cannot be fetched now.\n"

Policy = Callable[[str, PolicyVersion], str]
"""Returns the content of a wsp:Policy for clients that reach the broker at an address."""
PortName = tuple[str, str]
"""The names of a wsdl:service and of its wsdl:port."""


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
    def _content(self) -> list[bytes]:
        """The content of the files. What a URL returns is no setting."""
        documents = self._documents
        return [] if documents is None or self.is_remote else [documents.load(one) for one in self._locations]

    def load(self, fetch: Callable[[str], bytes]) -> None:
        """Read all documents. It may block.

        Args:
            fetch: Returns the content of a URL.

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
        self._locations, self._documents = locations, documents

    def write(
        self, number: int, address: str, ports: frozenset[PortName], name: str, policy: str, version: PolicyVersion
    ) -> bytes | None:
        """Return a document as the broker serves it; None if there is no document with that number.

        Args:
            number: 0 for the WSDL itself, more for those that it imports.
            address: Where clients reach the broker.
            ports: The ports that are offered there. The others are removed: they are not at the broker.
            name: What the service is called in the URLs of its documents.
            policy: The content of the broker's wsp:Policy, which replaces all policies of the service.
        """
        documents = self._documents
        if documents is None or number >= len(self._locations):
            return None
        location = self._locations[number]
        root = parse_element(documents.load(location))
        for element, attribute, kind in list(imports_of(root)):
            imported = element.get(attribute, "")
            place = documents.beside(location, imported)
            if imported and element.get("namespace") != XML_NAMESPACE and place in self._locations:
                element.set(attribute, f"{address}?{kind}={quote(name)}/{self._locations.index(place)}")
        _remove_policies(root)
        _offer(root, ports, address)
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


class ForwardedServices:
    """The services behind a broker.

    Args:
        policy: Returns the broker's policy for an address.
        queues: The queues that messages with an Action and a To may get to.
    """

    def __init__(self, policy: Policy, queues: Callable[[str, str], frozenset[str]]) -> None:
        self._policy, self._queues = policy, queues
        self._services: dict[str, tuple[str, ServiceWSDL, Callable[[str], bytes]]] = {}
        self._tasks = BackgroundTasks()
        self._waiting: list[Exchange] = []
        self._write = lru_cache(MOST_ADDRESSES)(self._written)

    def add(self, name: str, queue: str, wsdl: ServiceWSDL, fetch: Callable[[str], bytes]) -> None:
        """Add a service.

        Args:
            name: That of its forwarder.
            queue: The queue of the messages that are forwarded to it.
            fetch: Returns the content of a URL. It may block.
        """
        self._services[name] = queue, wsdl, fetch

    def give(self, exchange: Exchange) -> bool:
        """Answer a request for a WSDL or one of its documents, now or when it has been fetched.

        Returns:
            Whether it does: without services, it does not.
        """
        if not self._services:
            return False
        if all(wsdl.is_loaded for _, wsdl, _ in self._services.values()):
            self._answer(exchange)
            return True
        self._waiting.append(exchange)
        if len(self._waiting) == 1:
            self._tasks.start(self._fetch())
        return True

    async def _fetch(self) -> None:
        for name, (_, wsdl, fetch) in self._services.items():
            if not wsdl.is_loaded:
                try:
                    await in_thread(partial(wsdl.load, fetch))
                except HoldfastError as error:
                    log.warning("wsdl.not_fetched", forwarder=name, error=error.message, remedy=_REMEDY)
        waiting, self._waiting = self._waiting, []
        for exchange in waiting:
            self._answer(exchange)

    def _answer(self, exchange: Exchange) -> None:
        request = exchange.request
        asked, address = asked_for(request), address_of(request)
        assert asked is not None  # the caller saw to it
        offered = {name: found for name in self._services if (found := self._offered(name, address))}
        if asked.name:
            name, _, number = asked.name.partition("/")
        else:
            name, number = next(iter(offered), ""), "0"
        if asked.version is None:
            exchange.respond(404, NO_SUCH_POLICY, b"text/plain")
        elif not offered and any(not wsdl.is_loaded for _, wsdl, _ in self._services.values()):
            exchange.respond(503, _AWAY, b"text/plain", retry_after(5))
        elif not asked.name and len(offered) > 1:
            urls = "".join(f"{address}?wsdl={quote(one)}\n" for one in offered)
            text = f"Several services are behind this address. Their WSDLs:\n{urls}"
            exchange.respond(404, text.encode(), b"text/plain")
        else:
            self._respond(exchange, asked, address, name, number or "0", offered.get(name))

    def _respond(
        self,
        exchange: Exchange,
        asked: Asked,
        address: str,
        name: str,
        number: str,
        ports: frozenset[PortName] | None,
    ) -> None:
        document = None
        if ports is not None and asked.version is not None and number.isdecimal() and number.isascii():
            document = self._write(name, int(number[:9]), address, ports, asked.version)
        if document is None:
            exchange.respond(404, _NO_SERVICE, b"text/plain")
        else:
            exchange.respond(200, document, b"text/xml; charset=utf-8")

    def _offered(self, name: str, address: str) -> frozenset[PortName] | None:
        """Return the ports of a service of which an operation is forwarded from an address; None without one."""
        queue, wsdl, _ = self._services[name]
        return frozenset(
            port
            for port, actions in wsdl.actions.items()
            if any(queue in self._queues(action, address) for action in actions)
        )

    def _written(
        self, name: str, number: int, address: str, ports: frozenset[PortName], version: PolicyVersion
    ) -> bytes | None:
        wsdl = self._services[name][1]
        return wsdl.write(number, address, ports, name, self._policy(address, version), version)


def _remove_policies(root: etree._Element) -> None:
    for part in list(root.iter(*_POLICY_PARTS)):
        _remove(part)
    for element in root.iter("*"):
        for name in _POLICY_URIS:
            element.attrib.pop(name, None)


def _offer(root: etree._Element, ports: Iterable[PortName], address: str) -> None:
    """Set the address of some ports, and remove the others, and services without ports."""
    for service in root.findall(f"{{{WSDL}}}service"):
        for port in service.findall(f"{{{WSDL}}}port"):
            if (service.get("name", ""), port.get("name", "")) not in ports or not set_address(port, address):
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
