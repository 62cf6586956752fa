"""The WSDL and XSD documents of one service: each loaded once, from allowed places, bounded in number and in bytes."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urljoin

from lxml import etree

from holdfast.exceptions import ConfigurationError, EnvelopeError, HoldfastError, clause
from holdfast.http.client.client import HTTPClient
from holdfast.http.outcome import NEEDS_HTTPS, TransportError, words_of
from holdfast.http.urls import split_url
from holdfast.wire.body import in_utf8, parse_element
from holdfast.wire.wsdl import WSDL, Description, full_name, parse_document

XML_NAMESPACE = "http://www.w3.org/XML/1998/namespace"

KNOWN_SCHEMAS = {
    ("www.w3.org", "xml.xsd"): "xml.xsd",
    ("www.w3.org", "ws-addr.xsd"): "ws-addr.xsd",
    ("www.w3.org", "xmlmime"): "xmlmime.xsd",
    ("www.w3.org", "xmlmime.xsd"): "xmlmime.xsd",
    ("ws-i.org", "swaref.xsd"): "swaref.xsd",
}
"""Host and last part of a URL -> the file in ``known_schemas`` with that schema, which many WSDLs import. These are the
schemas of xml:lang, of WS-Addressing 1.0, and of binary values. They are never fetched."""
MOST_DOCUMENTS = 100
"""Maximum number of documents of one WSDL."""
MOST_BYTES = 16 * 1024 * 1024
"""Maximum size of all documents of one WSDL together."""
SCHEMA = "http://www.w3.org/2001/XMLSchema"
IMPORTS = {
    f"{{{WSDL}}}import": "location",
    **{f"{{{SCHEMA}}}{word}": "schemaLocation" for word in ("import", "include", "redefine")},
}
"""Element that refers to another document -> the attribute with its location."""
USES = {
    "type": ("complexType", "simpleType"),
    "base": ("complexType", "simpleType"),
    "itemType": ("simpleType",),
    "memberTypes": ("simpleType",),
    "substitutionGroup": ("element",),
}
"""Attribute of a schema's element -> what it names. "ref" names a definition of the same kind as its own element."""
_ADDRESS_REMEDY = "Check whether the URL must end with ?wsdl."
_NO_WSDL = "Check that it is a WSDL."
_OWNER = "Ask the owner of the WSDL to correct it, or save all its documents as files and correct them."
_SAVED = (
    "To open an outbox while the service is down, save its WSDL as a file, and give the file and the address: "
    "Source.from_wsdl(file, store, to=url), or in the shell --wsdl FILE --to URL."
)
_PROXY = 'Give the proxy its user name and password: SourceHTTP(proxy="http://user:password@host:port").'
_CREDENTIALS = (
    "Give the credentials as an HTTP header: Source.from_wsdl(url, store, "
    "http=holdfast.SourceHTTP(headers={\"Authorization\": …})), or in the shell --header 'Authorization: …'. If the "
    "server asks for a client certificate, give it as ssl_context (--cert). A user name of WS-Security is for messages "
    "only. You can also save the WSDL with a browser, and give the file."
)
_WEB = ("http://", "https://")
_START = 10_000
"""Number of bytes in which the root of an HTML page and its title are looked for: the patterns take squared time."""
_HTML = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml.*?\?>\s*)?(?:(?><!--.*?-->)\s*)*<(?:!doctype\s+)?html[\s>]",
    re.IGNORECASE | re.DOTALL,
)
_TITLE = re.compile(rb"<title[^>]*>(.*?)</title", re.IGNORECASE | re.DOTALL)


class Schema(NamedTuple):
    """An xs:schema.

    Attributes:
        location: That of its document.
        namespace: Its target namespace, or that of the schema that includes it, if it has none; "" without one.
        root: Its element.
    """

    location: str
    namespace: str
    root: etree._Element

    def defined(self, name: str) -> str:
        """Return the name of one of its definitions in the form of ``full_name``."""
        return f"{{{self.namespace}}}{name}" if self.namespace else name

    def named(self, user: etree._Element, name: str) -> str:
        """Return a name that an element in it uses, in the form of ``full_name``."""
        found = full_name(user, name)
        is_own = not found.startswith("{") and not self.root.get("targetNamespace")
        return self.defined(found) if is_own else found


class Documents:
    """The documents of one WSDL.

    Args:
        location: The http or https URL of the WSDL, or the path of its file.
        fetch: Returns the content of a URL.
        allow: URL prefixes of other places that documents may be imported from. Without a prefix, documents come only
            from the WSDL's own host, or from files if the WSDL is a file.
        elsewhere: What to do about a document of another place; "": the remedy for the reader of a WSDL of others.

    Raises:
        ConfigurationError: The location has another scheme than http, https and file, or names a file of another host.
    """

    def __init__(
        self, location: str | Path, fetch: Callable[[str], bytes], allow: Iterable[str] = (), *, elsewhere: str = ""
    ) -> None:
        self.first = _normal(str(location).strip())
        if "://" in self.first and not self.first.startswith(_WEB):
            raise ConfigurationError(
                f"{self.first} is neither an http or https URL nor a file.", remedy="Save the WSDL as a file."
            )
        self._fetch = fetch
        self._allow, self._elsewhere = tuple(allow), elsewhere
        self._loaded: dict[str, bytes] = {}
        self._parsed: dict[str, etree._Element] = {}

    def load(self, location: str) -> bytes:
        """Return the content of a document.

        Raises:
            ConfigurationError: the document is not in an allowed place, cannot be read, is not XML or has a document
                type; or the documents exceed a limit.
            TransportError: the document cannot be fetched.
        """
        location = self._located(location)
        if location == XML_NAMESPACE:
            return _known_schema("xml.xsd")
        found = self._loaded.get(location)
        if found is None:
            try:
                found = self._load(location)
            except HoldfastError as error:
                importer = self._importer(location)
                if importer:
                    error.message = f"{clause(error.message)}. It is imported by {importer}."
                raise
        return found

    def _load(self, location: str) -> bytes:
        parts = split_url(location)
        known = KNOWN_SCHEMAS.get((parts.hostname or "", parts.path.rpartition("/")[2]))
        if known is not None and location != self.first:
            found = _known_schema(known)
        else:
            self._check_place(location)
            found = self._fetch(location) if location.startswith(_WEB) else _read(location)
        self._check_limits(location, found)
        is_first = location == self.first
        found, root = _parse(location, found, is_first=is_first)
        if not is_first and root.tag not in (f"{{{WSDL}}}definitions", f"{{{SCHEMA}}}schema"):
            raise ConfigurationError(
                f"{location} is not an XML schema or WSDL: its root is {etree.QName(root).localname}.", remedy=_OWNER
            )
        self._loaded[location], self._parsed[location] = found, root
        return found

    def root(self, location: str) -> etree._Element:
        """Return the root element of a document; errors as for :meth:`load`."""
        data = self.load(location)
        location = self._located(location)
        return self._parsed[location] if location in self._parsed else parse_element(data)

    def load_all(self) -> list[str]:
        """Load every document that another one imports, includes or redefines; errors as for :meth:`load`.

        Returns:
            Their locations, that of the WSDL first.
        """
        waiting, seen = [self.first], dict[str, None]()
        while waiting:
            location = waiting.pop(0)
            if location not in seen:
                seen[location] = None
                waiting.extend(self._imported(location, self.root(location)))
        return list(seen)

    def schemas(self) -> list[Schema]:
        """Return every xs:schema of the loaded documents, once for each namespace that it is included in."""
        name = f"{{{SCHEMA}}}schema"
        inner = [(location, one) for location, root in self._parsed.items() for one in root.iter(name)]
        waiting = [Schema(location, one.get("targetNamespace", ""), one) for location, one in inner]
        found: dict[tuple[str, int], Schema] = {}
        included: set[int] = set()
        while waiting:
            schema = waiting.pop(0)
            if (schema.namespace, id(schema.root)) in found:
                continue
            found[schema.namespace, id(schema.root)] = schema
            for one in schema.root.iterchildren(f"{{{SCHEMA}}}include", f"{{{SCHEMA}}}redefine"):
                place = self.beside(schema.location, one.get("schemaLocation", ""))
                root = self._parsed.get(place)
                if root is not None and root.tag == name and not root.get("targetNamespace") and schema.namespace:
                    included.add(id(root))
                    waiting.append(Schema(place, schema.namespace, root))
        return [one for one in found.values() if one.namespace or id(one.root) not in included]

    def beside(self, location: str, imported: str) -> str:
        """Return the location of a document that another one imports."""
        imported = imported.strip()
        if location.startswith(_WEB) or _has_scheme(imported):
            split_url(imported)  # urljoin raises ValueError
            return self._located(urljoin(location, imported))
        return self._located(_real(os.path.join(os.path.dirname(location), imported)))

    def _located(self, location: str) -> str:
        """Return a location in its one form, as zeep's resolved ones are not."""
        if self.first.startswith(_WEB) and not location.lower().startswith(_WEB):
            return location
        found, directory = _normal(location), os.path.dirname(self.first)
        if not found.startswith(_WEB):
            # Locations in documents are URLs, with %20 for a space; and some tools write paths of Windows.
            inner = unquote(found.removeprefix(directory)).replace("\\", "/").split("/")
            other = _real(directory + "/".join(one.strip() for one in inner))
            is_inside = found.startswith(directory) and not os.path.exists(found)
            return other if is_inside and os.path.exists(other) else found
        if not self.first.startswith(_WEB):
            # A .NET service names its parts http://host/Orders.svc?xsd=xsd0; saved next to the WSDL, one is xsd0.xsd.
            for kind, name in parse_qsl(split_url(found).query):
                file = os.path.join(directory, f"{os.path.basename(name)}.{kind}")
                if kind in ("xsd", "wsdl") and os.path.isfile(file):
                    return _real(file)
        return found

    def _importer(self, location: str) -> str:
        """Return the location of a document that imports another one, "" if no loaded document does."""
        for place, root in self._parsed.items():
            if location in self._imported(place, root):
                return place
        return ""

    def _imported(self, location: str, root: etree._Element) -> Iterator[str]:
        """Yield the locations of the documents that a document refers to."""
        for owner in root.iter(f"{{{WSDL}}}definitions", f"{{{SCHEMA}}}schema"):
            for one in owner.iterchildren(*IMPORTS):
                place = one.get(IMPORTS[str(one.tag)])
                if place and one.get("namespace") != XML_NAMESPACE:
                    yield self.beside(location, place)

    def wsdl(self) -> list[tuple[str, etree._Element]]:
        """Return every WSDL document with its location, the first one first; errors as for :meth:`load`."""
        found: dict[str, etree._Element] = {}
        waiting = [self.first]
        while waiting:
            location = waiting.pop(0)
            root = self.root(location)
            if location in found or (root.tag != f"{{{WSDL}}}definitions" and location != self.first):
                continue
            found[location] = root
            imports = [one.get("location", "") for one in root.iterfind(f"{{{WSDL}}}import")]
            waiting.extend(self.beside(location, one) for one in imports if one)
        return list(found.items())

    def description(self) -> Description:
        """Return what the WSDL documents describe together; errors as for :meth:`load`, or it is not WSDL 1.1."""
        made = Description()
        for location, _ in self.wsdl():
            made.add(self.load(location), location)
        return made

    def _check_place(self, location: str) -> None:
        if location == self.first or _origin(location) == _origin(self.first):
            return
        if location.startswith(_WEB) and location.startswith(self._allow or ("\0",)):
            return
        raise ConfigurationError(
            f"The WSDL {self.first} imports {location}, which is in another place, so it is not loaded.",
            remedy=self._elsewhere
            or f"Save all its documents as files, or give a WSDL that is one document (.NET: {self._single()}). "
            "`holdfast wsdl` and the transports of holdfast.zeep can allow other places.",
        )

    def _single(self) -> str:
        """The URL at which .NET serves the whole WSDL as one document."""
        return f"{self.first.partition('?')[0] if self.first.startswith(_WEB) else ''}?singleWsdl"

    def _check_limits(self, location: str, data: bytes) -> None:
        if len(self._loaded) >= MOST_DOCUMENTS:
            raise ConfigurationError(
                f"The WSDL {self.first} imports more than {MOST_DOCUMENTS} documents.",
                remedy=_NO_WSDL,
            )
        if sum(map(len, self._loaded.values())) + len(data) > MOST_BYTES:
            raise ConfigurationError(
                f"The documents of the WSDL {self.first} exceed {MOST_BYTES:,} bytes at {location}.",
                remedy=_NO_WSDL,
            )


def fetcher(
    first: str | Path,
    headers: Mapping[str, str] | None = None,
    *,
    ssl_context: ssl.SSLContext | None = None,
    proxy: str | None = None,
    timeout: float = 60.0,
) -> Callable[[str], bytes]:
    """Return a blocking function that fetches a URL and returns its content, for :class:`Documents`.

    It raises TransportError if the URL cannot be fetched. It may be called in a thread with a running event loop.

    Args:
        first: The location of the WSDL. Only its own host gets the headers, which may have a password.
        headers, ssl_context, proxy, timeout: As for the requests of a source.
    """
    first = _normal(str(first).strip())
    own = _origin(first)

    async def fetch(url: str) -> bytes:
        client = HTTPClient(ssl_context=ssl_context, proxy=proxy, total_timeout=timeout, max_response=MOST_BYTES)
        async with client:
            is_own = _origin(url) == own
            try:
                answer = await client.fetch("GET", url, b"", (headers or {}) if is_own else {})
            except TransportError as error:
                if error.is_too_large:
                    error.remedy = _NO_WSDL
                elif 300 <= error.status < 400 and url != first:
                    error.remedy = _OWNER
                check = "" if error.connected else "Check the URL, and whether the server runs. "
                error.remedy = error.remedy or f"{check}{_SAVED}"
                raise
        if answer.status != 200:
            line = words_of(answer)
            raise TransportError(
                f"{url} responded with {answer.status}" + (f": {line}" if line else " and no document"),
                connected=True,
                status=answer.status,
                remedy=_status_remedy(answer.status, headers or {}, line, is_own=is_own),
            )
        return answer.body

    def fetch_and_wait(url: str) -> bytes:
        with ThreadPoolExecutor(1) as thread:  # the caller's thread may have a running loop
            return thread.submit(asyncio.run, fetch(url)).result()

    return fetch_and_wait


def _status_remedy(status: int, headers: Mapping[str, str], line: str, *, is_own: bool) -> str:
    if status in (401, 403):
        if not is_own:
            return "Only the WSDL's own host gets HTTP headers: save all documents of the WSDL as files."
        if any(name.lower() == "authorization" for name in headers):
            return "The server does not accept the header Authorization: check the credentials in it."
        return _CREDENTIALS
    if status == 407:
        return _PROXY
    if status >= 500:
        return _SAVED
    return _ADDRESS_REMEDY if status in (400, 404, 405) and line != NEEDS_HTTPS else ""


def _has_scheme(location: str) -> bool:
    return "://" in location or location[:5].lower() == "file:"


def _real(path: str) -> str:
    """Return the path without links; as it is if it has characters that no path has: reading it says so."""
    try:
        return os.path.realpath(path)
    except ValueError:
        return path


def _normal(location: str) -> str:
    """Return a URL with its scheme in lower case, or the absolute path of a file, also if its URL is given."""
    scheme, colon, rest = location.partition(":")
    if colon and f"{scheme.lower()}://" in _WEB and rest.startswith("//"):
        return f"{scheme.lower()}:{rest}"
    if not _has_scheme(location):
        return os.path.abspath(location)
    if scheme.lower() != "file":
        return location
    parts = split_url(location)
    if parts.netloc.lower() not in ("", "localhost"):
        raise ConfigurationError(
            f"{location} names a file of the host {parts.netloc}.",
            remedy=f"For a file of this machine, write its path: {parts.netloc}{parts.path}.",
        )
    return os.path.abspath(unquote(parts.path))


def _origin(location: str) -> tuple[str, str]:
    parts = split_url(location)
    return (parts.scheme, parts.netloc) if "://" in location else ("", "")


def _parse(location: str, data: bytes, *, is_first: bool) -> tuple[bytes, etree._Element]:
    start = data[:_START]
    if _HTML.match(start) is not None:
        title = _TITLE.search(start)
        words = "" if title is None else " ".join(title[1].decode("utf-8", "replace").split())
        words = words and f" with the title {words[:80]!r}"
        raise ConfigurationError(
            f"{location} is an HTML page{words}, not a WSDL or XML schema.",
            remedy=f"{_ADDRESS_REMEDY} If the page asks for a login: {_CREDENTIALS}" if is_first else _OWNER,
        )
    try:
        text = in_utf8(data)
        return text, parse_document(text)
    except EnvelopeError as error:
        raise ConfigurationError(
            f"{location} is not a WSDL or XML schema: {clause(error.message.replace('the body', 'it'))}.",
            remedy=_OWNER
            if not is_first
            else _ADDRESS_REMEDY
            if location.startswith(_WEB)
            else "Save the document again.",
        ) from None


def _read(path: str) -> bytes:
    try:
        size = os.path.getsize(path)
        if size > MOST_BYTES:
            raise ConfigurationError(f"{path} exceeds {MOST_BYTES:,} bytes.", remedy=_NO_WSDL)
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: no path has a zero byte
        reason = getattr(error, "strerror", None) or error
        remedy = "Check the path. A URL begins with http:// or https://."
        raise ConfigurationError(f"{path} cannot be read: {clause(str(reason))}.", remedy=remedy) from error


def _known_schema(name: str) -> bytes:
    return Path(__file__).with_name("known_schemas").joinpath(name).read_bytes()
