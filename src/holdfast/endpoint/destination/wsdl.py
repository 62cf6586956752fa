"""``?wsdl`` and ``?xsd=``: the description of a destination, given or generated, for those who make a client from it.

A WSDL may import other documents: files in its directory are served with it. Each answer names the public URL, or the
address that the request used, so one description serves any host name, port and proxy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import parse_qsl, quote, unquote

from lxml import etree

from holdfast.core.messages import MC_NS
from holdfast.core.versions import RM, Addressing
from holdfast.exceptions import ConfigurationError, EnvelopeError, clause
from holdfast.http.exchange import Exchange, Request
from holdfast.http.urls import at_path, split_url
from holdfast.settings import brief_value
from holdfast.wire.body import in_utf8, parse_element
from holdfast.wire.dialects.versions import DIALECTS
from holdfast.wire.names import WSA_NS
from holdfast.wire.policy.assertions import PROOFS
from holdfast.wire.policy.expressions import POLICY
from holdfast.wire.policy.writing import WSP, PolicyVersion
from holdfast.wire.wsdl import ACTIONS, SOAP_BINDINGS, WSDL, Description, default_fault_action

MC_SUPPORTED = f"{{{MC_NS}}}MCSupported"
"""The policy assertion of an endpoint that answers polls (WS-MakeConnection 3.4)."""
MOST_DOCUMENTS = 50
MOST_ADDRESSES = 64
"""Documents as they were given out at so many addresses are kept."""

NO_STORE = ((b"cache-control", b"no-store"),)
"""A header of each answer with the address of its request: a shared cache would give it to other clients."""
_UNKNOWN = b"The WSDL of this endpoint imports no such document.\n"
_NO_SUCH_POLICY = b"The policy is written in the versions 1.5 and 1.2 of WS-Policy: ?wsdl&policy=1.2\n"
_SCHEMA = "http://www.w3.org/2001/XMLSchema"
_FORWARDED = (b"x-forwarded-proto", b"x-forwarded-host")
"""What a proxy says of its client's request; of several proxies, the first value counts."""
_IMPORTS = {
    f"{{{WSDL}}}import": ("wsdl", "location"),
    **{f"{{{_SCHEMA}}}{word}": ("xsd", "schemaLocation") for word in ("import", "include", "redefine")},
}
"""Element that refers to another document -> kind of that document, and the attribute with its location."""


class Behind(Protocol):
    """The services behind a broker: see ``forwarded_services``."""

    def give(self, exchange: Exchange, address: str, otherwise: Callable[[Exchange], None]) -> None:
        """Answer a request for a description at an address, or let the other function do it."""
        ...

    def close(self) -> None:
        """Fetch nothing more."""
        ...


class ServiceDescription:
    """A service's WSDL 1.1, with the documents that it imports.

    Args:
        given: The path of a file, or the bytes of a WSDL that is one document; None for no WSDL.
        generate: Returns a WSDL for clients that reach the service at an address, with the policy in a version, if none
            is given.
        accepts: Whether the destination accepts messages with an action.
        public_url: Returns the public URL of the destination; None: requests show it.

    Raises:
        ConfigurationError: there is no such file, it is no WSDL 1.1, or it imports a file that does not exist, or
            imports files and is given as bytes.
    """

    def __init__(
        self,
        given: str | Path | bytes | None,
        generate: Callable[[str, PolicyVersion], bytes],
        accepts: Callable[[str], bool] = lambda _: True,
        public_url: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._generate, self._accepts, self._public_url = generate, accepts, public_url
        self._documents: dict[str, bytes] = {}
        """Query ("" for the WSDL itself, else "wsdl=name" or "xsd=name") -> the document."""
        self._places: dict[str, Path | None] = {}
        self._description = Description()
        self.operations: dict[str, str] = {}
        """The action of each request -> that of its reply, "" for a one-way operation."""
        self.headers: dict[str, frozenset[str]] = {}
        """The action of a request -> the header blocks that the WSDL declares for it."""
        self._ports: Mapping[tuple[str, str], Collection[str]] = {}
        """Service and port -> the actions of its requests."""
        self.is_given = given is not None
        self._behind: Behind | None = None
        if given is not None:
            self._take(
                "", given if isinstance(given, bytes) else _read(given), None if isinstance(given, bytes) else given
            )
            self.operations = self._description.operations()
            self.headers = self._description.headers_of_requests()
            self._ports = self._description.actions_of_ports()
        self._written = lru_cache(MOST_ADDRESSES)(self._write)

    def _take(self, key: str, given: bytes, place: str | Path | None) -> None:
        try:
            data = self._documents[key] = in_utf8(given)
        except EnvelopeError as error:
            reason = f"{place or 'the wsdl'} cannot be read: {clause(error.message.replace('the body', 'it'))}"
            raise ConfigurationError(reason, remedy="Save the document again.") from None
        self._places[key] = None if place is None else Path(place)
        if len(self._documents) > MOST_DOCUMENTS:
            raise ConfigurationError(
                f"the WSDL imports more than {MOST_DOCUMENTS} documents", remedy="Check that it is a WSDL."
            )
        if key.startswith("xsd="):
            root = _parsed(data, place)
        else:
            self._description.add(data, str(place or "wsdl"))
            root = parse_element(data)
        for element, attribute, kind in imports_of(root):
            location = element.get(attribute, "")
            if place is None and location and not split_url(location).scheme:
                raise ConfigurationError(
                    f"the WSDL imports {location}, and it is given as bytes, which do not tell where that file is",
                    remedy='Give the path of the WSDL: Destination(wsdl="service.wsdl").',
                )
            found = self._beside(key, kind, location)
            # Documents may import each other in circles.
            if found is not None and found[0] not in self._documents:
                self._take(found[0], _read(found[1]), found[1])

    def _beside(self, key: str, kind: str, location: str) -> tuple[str, Path] | None:
        """Return the query and the file of an imported document; None if this endpoint does not serve it."""
        place, main = self._places[key], self._places[""]
        if place is None or main is None or not location:
            return None
        parts = split_url(location)
        asked = dict(parse_qsl(parts.query)).get(kind)
        if asked:  # as a .NET service names its parts: http://host/Orders.svc?xsd=xsd0
            files = [place.parent / f"{asked}.{kind}", place.parent / asked]
        elif parts.scheme or parts.netloc:
            return None
        else:
            files = [place.parent / unquote(parts.path)]
        file = next((one for one in files if one.is_file()), None)
        if file is None and parts.netloc:
            return None
        if file is None:
            reason = f"{place} imports {location}, but the file {files[0]} does not exist"
            raise ConfigurationError(reason, remedy="Save that document there.")
        name = os.path.relpath(file, main.parent).replace(os.sep, "/")
        return f"{kind}={name}", file

    def demanded_proofs(self) -> list[str]:
        """Return in words what the policies of the given WSDL demand as a proof of who sends a message."""
        found: dict[str, None] = {}
        for name in self._description.port_names():
            with suppress(ConfigurationError):  # no source meets it, so none sends to it
                needs = self._description.port(name).needs
                found |= {str(one): None for one in needs if one.ability in PROOFS}
        return list(found)

    def document(self, url: str, address: str) -> bytes:
        """Return a document as it is served at that address.

        Raises:
            ConfigurationError: the WSDL has no such document.
        """
        _, mark, asked = url.partition("?")
        word, _, value = asked.partition("&")[0].partition("=")
        key = f"{word}={unquote(value)}" if value else ""
        if not url.startswith(address) or not mark or key not in self._documents:
            raise ConfigurationError(f"The WSDL has no document {url}.", remedy="Save it next to the WSDL.")
        return self._written(key, address, self._offered(), False)

    def in_files(self, text: str, address: str) -> str:
        """Return a text in which files are named instead of the URLs that they are served at."""
        for key, place in sorted(self._places.items(), reverse=True):
            kind, _, name = key.partition("=")
            url = f"{address}?{kind}={quote(name)}" if key else f"{address}?wsdl"
            text = text.replace(url, str(place or "of the destination"))
        return text

    def give(self, exchange: Exchange) -> bool:
        """Answer a GET for ``?wsdl`` or ``?xsd=``, in any case: 200 with the document, or 404.

        ``?wsdl&policy=1.2`` asks for the generated WSDL with its policy in the version that older programs read.

        Returns:
            Whether it was such a request.
        """
        asked = asked_for(exchange.request)
        if asked is None:
            return False
        address = address_of(exchange.request, self._public_url())
        if self._behind is None:
            self._give(exchange, asked, address)
        else:
            self._behind.give(exchange, address, lambda exchange: self._give(exchange, asked, address))
        return True

    def use(self, behind: Behind) -> None:
        """Serve the WSDLs of the services behind a broker, instead of those that were behind it."""
        self.close()
        self._behind = behind

    def close(self) -> None:
        """Fetch no documents any more for requests that wait."""
        if self._behind is not None:
            self._behind.close()

    def _give(self, exchange: Exchange, asked: Asked, address: str) -> None:
        key = f"{asked.kind}={asked.name}" if asked.name or asked.kind == "xsd" else ""
        if not self._documents and not key:
            if asked.version is not None:
                give_document(exchange, self._generate(address, asked.version))
            else:
                exchange.respond(404, _NO_SUCH_POLICY, b"text/plain")
        elif key not in self._documents:
            exchange.respond(404, _UNKNOWN, b"text/plain")
        else:
            give_document(exchange, self._written(key, address, self._offered(), True))

    def _offered(self) -> frozenset[tuple[str, str]]:
        """Return the ports of which the destination accepts an operation: all of them if it accepts none."""
        found = frozenset(port for port, actions in self._ports.items() if any(map(self._accepts, actions)))
        return found or frozenset(self._ports)

    def _write(self, key: str, address: str, offered: frozenset[tuple[str, str]], is_for_clients: bool) -> bytes:
        data = self._documents[key]
        root = parse_element(data)
        is_changed = False
        for element, attribute, kind in imports_of(root):
            found = self._beside(key, kind, element.get(attribute, ""))
            if found is not None:
                asked, _, name = found[0].partition("=")
                element.set(attribute, f"{address}?{asked}={quote(name)}")
                is_changed = True
        is_changed |= _assert_polling(root)
        if is_for_clients:  # this destination keeps the default, which WS-Addressing 2004/08 has not
            is_changed |= _state_fault_actions(root)
        for service in root.iterfind(f"{{{WSDL}}}service"):
            for port in service.iterfind(f"{{{WSDL}}}port"):
                # Another port is served elsewhere: clients that came here would be rejected.
                if (service.get("name", ""), port.get("name", "")) in offered:
                    is_changed |= set_address(port, address)
        if not is_changed:
            return data
        return etree.tostring(root.getroottree(), encoding="utf-8", xml_declaration=True)


class Asked(NamedTuple):
    """A request for a description.

    Args:
        kind: "wsdl" or "xsd".
        name: The name of a document; "" for the WSDL itself.
        version: The version of WS-Policy; None: one that does not exist.
    """

    kind: str
    name: str
    version: PolicyVersion | None


def asked_for(request: Request) -> Asked | None:
    """Return what a request asks for; None if it is not for a description."""
    asked, _, more = request.target.partition("?")[2].partition("&")
    word, _, value = asked.partition("=")
    kind = word.lower().removeprefix("single")
    if kind not in ("wsdl", "xsd") or request.method not in ("GET", "HEAD"):
        return None
    version = next((one for one in WSP if one == dict(parse_qsl(more)).get("policy", "1.5")), None)
    return Asked(kind, unquote(value), version)


def give_document(exchange: Exchange, data: bytes) -> None:
    """Answer with a document that names the address of the request."""
    exchange.respond(200, data, b"text/xml; charset=utf-8", NO_STORE)


def set_address(port: etree._Element, address: str) -> bool:
    """Set the address of a port if it is SOAP over HTTP; return whether it is."""
    addresses = [one for namespace in SOAP_BINDINGS for one in port.iterfind(f"{{{namespace}}}address")]
    mine = [one for one in addresses if one.get("location", "").strip().startswith(("http://", "https://"))]
    for one in mine:
        one.set("location", address)
    for version in Addressing if mine else ():
        namespace = WSA_NS[version]  # .NET says it there again
        for stated in port.iterfind(f"{{{namespace}}}EndpointReference/{{{namespace}}}Address"):
            stated.text = address
    return bool(mine)


def _state_fault_actions(root: etree._Element) -> bool:
    """Write the default action of each declared fault that states none; return whether there is one.

    A WCF client that is generated from a WSDL without them does not recognise the faults by their default actions.
    """
    faults = root.iterfind(f"{{{WSDL}}}portType/{{{WSDL}}}operation/{{{WSDL}}}fault")
    unstated = [fault for fault in faults if not any(fault.get(name, "").strip() for name in ACTIONS)]
    for fault in unstated:
        for name in ACTIONS:
            fault.set(name, default_fault_action(fault))
    return bool(unstated)


def _assert_polling(root: etree._Element) -> bool:
    """Add MakeConnection's optional policy assertion beside each one of WS-RM 1.1; return whether one was added."""
    # WS-MakeConnection 3.4
    (reliable,) = DIALECTS[RM.V1_1].policy_assertions
    alone = [
        (one, namespace)
        for one in root.iter(reliable)
        if (parent := one.getparent()) is not None and parent.find(MC_SUPPORTED) is None
        if (namespace := _policy_of(one)) is not None
    ]
    for assertion, namespace in alone:
        added = etree.Element(MC_SUPPORTED, {f"{{{namespace}}}Optional": "true"}, nsmap={"wsmc": MC_NS})
        assertion.addnext(added)
    return bool(alone)


def _policy_of(assertion: etree._Element) -> str | None:
    """Return the namespace of the policy that an assertion is in; None outside of a policy."""
    parent = assertion.getparent()
    namespace = etree.QName(parent).namespace if parent is not None else None
    return namespace if namespace in POLICY else None


def imports_of(root: etree._Element) -> Iterator[tuple[etree._Element, str, str]]:
    """Yield the elements that refer to other documents, with the attribute of the location and the kind of document."""
    for name, (kind, attribute) in _IMPORTS.items():
        for element in root.iter(name):
            yield element, attribute, kind


def address_of(request: Request, public_url: str | None = None) -> str:
    """The URL by which a client reaches this endpoint, without a query. Only the requester receives it.

    Args:
        public_url: The public URL of the endpoint; None: the headers of the request show it.
    """
    if public_url is not None:
        return at_path(public_url, request.path)
    headers = request.headers
    named = headers.get(b"host", b"localhost")
    said, forwarded = (headers.get(name, b"").partition(b",")[0].strip() for name in _FORWARDED)
    scheme = "https" if request.secure or said.lower() == b"https" else "http"
    # Many proxies keep the port only in Host: nginx's $host has none.
    is_host = not forwarded or forwarded.lower() == named.rpartition(b":")[0].lower()
    host = "".join(filter(str.isprintable, (named if is_host else forwarded).decode("latin-1")))
    return f"{scheme}://{host}{request.path}"


def _parsed(data: bytes, place: str | Path | None) -> etree._Element:
    try:
        return parse_element(data)
    except EnvelopeError as error:
        raise ConfigurationError(
            f"{place} is not a valid XML schema: {error.message}", remedy="Save the document again."
        ) from None


def _read(place: str | Path) -> bytes:
    try:
        return Path(place).read_bytes()
    except (OSError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"the WSDL {brief_value(place)} cannot be read: {getattr(error, 'strerror', None) or error}",
            remedy="wsdl must be the path of a file, or its bytes.",
        ) from error
