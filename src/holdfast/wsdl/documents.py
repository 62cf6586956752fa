"""The WSDL and XSD documents of one service: each loaded once, from allowed places, bounded in number and in bytes."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urljoin

from lxml import etree

from holdfast.exceptions import ConfigurationError, EnvelopeError, clause
from holdfast.http.client.client import HTTPClient
from holdfast.http.outcome import NEEDS_HTTPS, TransportError, first_line
from holdfast.http.urls import split_url
from holdfast.wire.body import in_utf8, parse_element
from holdfast.wire.wsdl import WSDL, Description
from holdfast.wsdl.xml_namespace import XML_SCHEMA, is_xml_schema

MOST_DOCUMENTS = 100
"""Maximum number of documents of one WSDL."""
MOST_BYTES = 16 * 1024 * 1024
"""Maximum size of all documents of one WSDL together."""
SCHEMA = "http://www.w3.org/2001/XMLSchema"
_ADDRESS_REMEDY = "Check whether the URL must end with ?wsdl."
_WEB = ("http://", "https://")


class Documents:
    """The documents of one WSDL.

    Args:
        location: The http or https URL of the WSDL, or the path of its file.
        fetch: Returns the content of a URL.
        allow: URL prefixes of other places that documents may be imported from. Without a prefix, documents come only
            from the WSDL's own host, or from files if the WSDL is a file.
    """

    def __init__(self, location: str | Path, fetch: Callable[[str], bytes], allow: Iterable[str] = ()) -> None:
        text = str(location)
        self.first = text if text.startswith(_WEB) else os.path.abspath(text)
        self._fetch = fetch
        self._allow = tuple(allow)
        self._loaded: dict[str, bytes] = {}
        self._parsed: dict[str, etree._Element] = {}

    def load(self, location: str) -> bytes:
        """Return the content of a document.

        Raises:
            ConfigurationError: the document is not in an allowed place, cannot be read, is not XML or has a document
                type; or the documents exceed a limit.
            TransportError: the document cannot be fetched.
        """
        if is_xml_schema(location):
            return XML_SCHEMA
        found = self._loaded.get(location)
        if found is None:
            self._check_place(location)
            found = self._fetch(location) if location.startswith(_WEB) else _read(location)
            self._check_limits(location, found)
            found, self._parsed[location] = _parse(location, found)
            self._loaded[location] = found
        return found

    def root(self, location: str) -> etree._Element:
        """Return the root element of a document; errors as for :meth:`load`."""
        data = self.load(location)
        return self._parsed[location] if location in self._parsed else parse_element(data)

    def roots(self) -> list[etree._Element]:
        return list(self._parsed.values())

    def beside(self, location: str, imported: str) -> str:
        if location.startswith(_WEB) or "://" in imported:
            split_url(imported)  # urljoin raises ValueError
            return urljoin(location, imported)
        return os.path.realpath(os.path.join(os.path.dirname(location), imported))

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
            remedy=f"Save all its documents as files, or give a WSDL that is one document (.NET: {self._single()}). "
            "`holdfast wsdl` and the transports of holdfast.zeep can allow other places.",
        )

    def _single(self) -> str:
        """The URL at which .NET serves the whole WSDL as one document."""
        return f"{self.first.partition('?')[0] if self.first.startswith(_WEB) else ''}?singleWsdl"

    def _check_limits(self, location: str, data: bytes) -> None:
        if len(self._loaded) >= MOST_DOCUMENTS:
            raise ConfigurationError(
                f"The WSDL {self.first} imports more than {MOST_DOCUMENTS} documents.",
                remedy="Check that it is a WSDL.",
            )
        if sum(map(len, self._loaded.values())) + len(data) > MOST_BYTES:
            raise ConfigurationError(
                f"The documents of the WSDL {self.first} exceed {MOST_BYTES:,} bytes at {location}.",
                remedy="Check that it is a WSDL.",
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
    own = _origin(str(first))

    async def fetch(url: str) -> bytes:
        client = HTTPClient(ssl_context=ssl_context, proxy=proxy, total_timeout=timeout, max_response=MOST_BYTES)
        async with client:
            try:
                answer = await client.fetch("GET", url, b"", (headers or {}) if _origin(url) == own else {})
            except TransportError as error:
                error.remedy = error.remedy or "Check the URL, and whether the server runs."
                raise
        if answer.status != 200:
            line = first_line(answer)
            is_elsewhere = answer.status in (400, 404, 405) and line != NEEDS_HTTPS
            raise TransportError(
                f"{url} responded with {answer.status}" + (f": {line}" if line else " and no document"),
                connected=True,
                status=answer.status,
                remedy=_ADDRESS_REMEDY if is_elsewhere else "",
            )
        return answer.body

    def fetch_and_wait(url: str) -> bytes:
        with ThreadPoolExecutor(1) as thread:  # the caller's thread may have a running loop
            return thread.submit(asyncio.run, fetch(url)).result()

    return fetch_and_wait


def _origin(location: str) -> tuple[str, str]:
    parts = split_url(location)
    return (parts.scheme, parts.netloc) if "://" in location else ("", "")


def _parse(location: str, data: bytes) -> tuple[bytes, etree._Element]:
    try:
        text = in_utf8(data)
        return text, parse_element(text)
    except EnvelopeError as error:
        raise ConfigurationError(
            f"{location} is not a WSDL or XML schema: {clause(error.message.replace('the body', 'it'))}.",
            remedy=_ADDRESS_REMEDY if location.startswith(_WEB) else "Save the document again.",
        ) from None


def _read(path: str) -> bytes:
    try:
        size = os.path.getsize(path)
        if size > MOST_BYTES:
            raise ConfigurationError(f"{path} exceeds {MOST_BYTES:,} bytes.", remedy="Check that it is a WSDL.")
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: no path has a zero byte
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"{path} cannot be read: {clause(str(reason))}.", remedy="Check the path.") from error
