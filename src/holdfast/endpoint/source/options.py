"""Keyword arguments of a Source, as a type: for functions that pass them on."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

from holdfast.core.policy import Assurance, SourcePolicy
from holdfast.core.versions import Versions
from holdfast.endpoint.engine import Clock
from holdfast.endpoint.envelopes.processors import Processor
from holdfast.endpoint.journal.policy import JournalPolicy
from holdfast.http.outcome import Transport


class SourceOptions(TypedDict, total=False):
    """The keyword arguments of :class:`holdfast.Source`, which documents them."""

    versions: Versions | Sequence[Versions] | None
    profile: str | None
    offer: bool | None
    assurance: str | Assurance | None
    policy: SourcePolicy | None
    headers: Mapping[str, str] | None
    ssl_context: ssl.SSLContext | None
    proxy: str | None
    timeout: float
    listen: tuple[str, int] | None
    address: str
    processors: Iterable[Processor]
    journal: bool | JournalPolicy
    transport: Transport | None
    clock: Clock | None
