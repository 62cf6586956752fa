"""Keyword arguments of a Source, as a type: for functions that pass them on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypedDict

from holdfast.core.policy import Assurance, SourcePolicy
from holdfast.core.versions import Versions
from holdfast.endpoint.envelopes.processors import Processor
from holdfast.endpoint.journal.policy import JournalPolicy
from holdfast.endpoint.sending.policies import Policy, SequencePolicies
from holdfast.endpoint.source.http_settings import SourceHTTP


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
