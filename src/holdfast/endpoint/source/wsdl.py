"""A service's WSDL, read with the documents it imports, from its URL or from a file. What it says: ``wire.wsdl``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from holdfast.core.policy import Assurance, SourcePolicy
from holdfast.endpoint.logs import log
from holdfast.endpoint.source.http_settings import SourceHTTP
from holdfast.endpoint.source.profiles import PREFERRED
from holdfast.exceptions import ConfigurationError
from holdfast.http.client.client import HTTPClient
from holdfast.http.outcome import TransportError
from holdfast.wire.wsdl import Description, Port

MOST_DOCUMENTS = 50


async def read_port(location: str | Path, name: str | None, network: SourceHTTP | None) -> Port:
    """The port to send to, as the WSDL at ``location`` describes it.

    Args:
        location: An http or https URL, or the path of a file.
        name: The name of the wsdl:port, where there are several.
        network: Settings for the requests.

    Raises:
        TransportError: It cannot be fetched.
        ConfigurationError: It is no WSDL 1.1, imports what is not followed, or has no port that can be used.
    """
    network = network or SourceHTTP()
    async with network.new_client() as client:
        port = (await read_description(location, client, network.headers or {})).port(name)
    if not port.is_reliable:
        log.warning(
            "wsdl.no_rm_policy",
            port=port.name,
            url=port.address,
            remedy="The WSDL contains no WS-RM policy. Check that reliable sessions are enabled at the service "
            '(WCF: <reliableSession enabled="true" />); without them it rejects every message.',
        )
    return port


def source_policy(port: Port) -> SourcePolicy:
    """The defaults, but for what the port's policy states: its assurance, and what keeps its Sequences alive."""
    policy = SourcePolicy(assurance=port.assurance or Assurance())
    if port.inactivity_timeout is None:
        return policy
    return replace(policy, keep_alive=min(policy.keep_alive, port.inactivity_timeout / 2))


def source_options(port: Port, options: Mapping[str, Any]) -> dict[str, Any]:
    """A source's options: those given, each before what the port says."""
    said: dict[str, Any] = {"offer": port.has_replies, "policy": source_policy(port)}
    if options.get("profile") is None:
        said["versions"] = [one for one in PREFERRED if one in port.versions]
    return said | {name: value for name, value in options.items() if value is not None}


async def read_description(location: str | Path, client: HTTPClient, headers: Mapping[str, str]) -> Description:
    """Read the WSDL at ``location`` and all it imports, each once.

    Args:
        location: An http or https URL, or the path of a file.
        client: What fetches it.
        headers: HTTP headers for every request. They go to the URL's own host only, and so do all requests: what a
            document imports from elsewhere is refused.

    Raises:
        TransportError: It cannot be fetched.
        ConfigurationError: It is no WSDL 1.1, or imports what is not followed.
    """
    first = str(location) if _is_url(str(location)) else os.path.normpath(location)
    description = Description()
    waiting, seen = [first], {first}
    while waiting:
        place = waiting.pop(0)
        data = await (_fetch(place, client, headers) if _is_url(first) else _read(place))
        for imported in description.add(data, place):
            found = _beside(place, imported)
            if _origin(found) != _origin(first):
                raise ConfigurationError(
                    f"{place} imports {imported} from another host, which is not loaded",
                    remedy=f"Give a WSDL that is one document: .NET's is {_single(first)}. Or save all parts as files.",
                )
            if found not in seen:
                seen.add(found)
                waiting.append(found)
        if len(seen) > MOST_DOCUMENTS:
            raise ConfigurationError(
                f"{first} imports more than {MOST_DOCUMENTS} documents", remedy="Check that it is a WSDL."
            )
    return description


def _single(location: str) -> str:
    """Return the URL at which .NET serves the whole WSDL as one document."""
    return f"{location.partition('?')[0]}?singleWsdl" if _is_url(location) else "?singleWsdl"


def _is_url(location: str) -> bool:
    return location.startswith(("http://", "https://"))


def _beside(place: str, imported: str) -> str:
    if _is_url(place) or "://" in imported:
        return urljoin(place, imported)
    return os.path.normpath(Path(place).parent / imported)


def _origin(location: str) -> tuple[str, str]:
    parts = urlsplit(location)
    return (parts.scheme, parts.netloc) if "://" in location else ("", "")


async def _fetch(url: str, client: HTTPClient, headers: Mapping[str, str]) -> bytes:
    answer = await client.fetch("GET", url, b"", headers)
    if answer.status != 200:
        raise TransportError(f"{url} responded with {answer.status} and no WSDL", connected=True, status=answer.status)
    return answer.body


async def _read(path: str) -> bytes:
    try:
        return await asyncio.to_thread(Path(path).read_bytes)
    except OSError as error:
        raise ConfigurationError(f"cannot read the WSDL {path}: {error.strerror}", remedy="Check the path.") from error
