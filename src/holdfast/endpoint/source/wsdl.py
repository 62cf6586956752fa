"""Options of a source, and what a service's WSDL says to them: address, versions and policy.

The documents of the WSDL are in ``wsdl.documents``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from holdfast.core.policy import Assurance, SourcePolicy
from holdfast.core.versions import Versions
from holdfast.endpoint.arguments import check_class
from holdfast.endpoint.envelopes.processors import Processor
from holdfast.endpoint.journal.policy import JournalPolicy
from holdfast.endpoint.logs import log
from holdfast.endpoint.sending.policies import Policy, SequencePolicies, to_policies
from holdfast.endpoint.source.http_settings import SourceHTTP
from holdfast.endpoint.source.profiles import BY_PREFERENCE
from holdfast.exceptions import ConfigurationError
from holdfast.settings import suggestion
from holdfast.wire.policy.assertions import (
    ANONYMOUS,
    CALLBACKS,
    CLIENT_CERTIFICATE,
    HTTP_BASIC,
    LISTENER,
    POLLS,
    Ability,
)
from holdfast.wire.policy.settings import for_source
from holdfast.wire.wsdl import Port
from holdfast.wsdl.documents import Documents, fetcher


class SourceOptions(TypedDict, total=False):
    """The keyword arguments of :class:`holdfast.Source`, which documents them."""

    versions: Versions | Sequence[Versions] | None
    profile: str | None
    offer: bool | None
    assurance: str | Assurance | None
    policy: SourcePolicy | Iterable[Policy] | SequencePolicies | None
    http: SourceHTTP | None
    processors: Iterable[Processor]
    journal: bool | JournalPolicy


def check_options(where: str, options: Mapping[str, object], further: Iterable[str] = ()) -> None:
    """Check the names of the keyword arguments that are passed on to a source.

    Raises:
        ConfigurationError: A source has no such argument. The remedy names the most similar one.
    """
    known = [*further, *SourceOptions.__annotations__]
    for name in options:
        if name not in known:
            raise ConfigurationError(
                f"{where} has no argument {name!r}.", remedy=suggestion(name, known, f"It has: {', '.join(known)}.")
            )


async def read_port(documents: Documents, name: str | None, to: str | None, options: Mapping[str, Any]) -> Port:
    """The port to send to, as the WSDL describes it.

    Args:
        name: The name of the wsdl:port, where there are several.
        to: The URL to send to instead of the port's.
        options: The source's options: they say which demands of a policy the source meets.

    Raises:
        TransportError: A document cannot be fetched.
        ConfigurationError: It is no WSDL 1.1, imports what is not loaded, or has no port that can be used.
    """
    able = abilities(options.get("http") or SourceHTTP(), options.get("processors") or ())
    port = (await asyncio.to_thread(documents.description)).port(name, able, to)
    if not port.is_reliable:
        log.warning(
            "wsdl.no_rm_policy",
            port=port.name,
            url=port.address,
            remedy="The WSDL contains no WS-RM policy. Check that reliable sessions are enabled at the service "
            '(WCF: <reliableSession enabled="true" />); without them it rejects every message.',
        )
    return port


def abilities(network: SourceHTTP, processors: Iterable[Processor]) -> set[Ability]:
    """Return what a source with these options does, of what a policy may demand."""
    found = {ability for processor in processors for ability in processor.abilities}
    found.update((ANONYMOUS,) if network.listen is None else (LISTENER, CALLBACKS))
    if network.listen is None and network.poll is not False:
        found.add(POLLS)
    if any(name.lower() == "authorization" for name in network.headers or ()):
        found.add(HTTP_BASIC)
    if network.ssl_context is not None:
        found.add(CLIENT_CERTIFICATE)
    return found


def source_options(port: Port, options: Mapping[str, Any]) -> dict[str, Any]:
    """A source's options: those given, each before what the port says."""
    # A WCF service sends its callbacks in a Sequence that the source offers.
    said: dict[str, Any] = {"offer": port.has_replies or any(need.ability is CALLBACKS for need in port.needs)}
    if options.get("profile") is None:
        said["versions"] = [one for one in BY_PREFERENCE if one in port.versions]
    said |= {name: value for name, value in options.items() if value is not None}
    if any(need.ability is POLLS for need in port.needs):  # WS-MakeConnection 3.4
        said["http"] = replace(said.get("http") or SourceHTTP(), poll=True)
    policy = to_policies(options.get("policy"), for_source(port.settings, SourcePolicy()))
    return said | {"policy": policy}


def documents_of(location: str | Path, http: SourceHTTP, allow: Iterable[str] = ()) -> Documents:
    """Return the documents of a WSDL, each fetched when it is first needed.

    Args:
        location, allow: As for :class:`holdfast.wsdl.documents.Documents`.
        http: Its headers, TLS context, proxy and timeout apply to each request.

    Raises:
        ConfigurationError: ``http`` has another class.
    """
    check_class("http", http, SourceHTTP)
    fetch = fetcher(location, http.headers, ssl_context=http.ssl_context, proxy=http.proxy, timeout=http.timeout)
    return Documents(location, fetch, allow)
