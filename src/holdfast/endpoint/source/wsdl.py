"""What a service's WSDL says to a source: its address, versions and policy. The documents: ``wsdl.documents``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.core.policy import Assurance, SourcePolicy
from holdfast.endpoint.logs import log
from holdfast.endpoint.source.http_settings import SourceHTTP
from holdfast.endpoint.source.profiles import PREFERRED
from holdfast.wire.wsdl import Port
from holdfast.wsdl.documents import Documents, fetcher


async def read_port(documents: Documents, name: str | None) -> Port:
    """The port to send to, as the WSDL describes it.

    Args:
        documents: Of the WSDL.
        name: The name of the wsdl:port, where there are several.

    Raises:
        TransportError: A document cannot be fetched.
        ConfigurationError: It is no WSDL 1.1, imports what is not loaded, or has no port that can be used.
    """
    port = (await asyncio.to_thread(documents.description)).port(name)
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


def documents_of(location: str | Path, http: SourceHTTP, allow: Iterable[str] = ()) -> Documents:
    """Return the documents of a WSDL, each fetched when it is first needed.

    Args:
        location, allow: As for :class:`holdfast.wsdl.documents.Documents`.
        http: Its headers, TLS context, proxy and timeout apply to each request.
    """
    fetch = fetcher(location, http.headers, ssl_context=http.ssl_context, proxy=http.proxy, timeout=http.timeout)
    return Documents(location, fetch, allow)
