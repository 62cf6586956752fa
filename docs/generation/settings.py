"""The tables of settings, from the classes that define them."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from enum import Enum
from typing import Any

from generation.docstrings import as_markdown, split_docstring
from holdfast.settings import meaning_of, values_of

SETTINGS = {
    "DestinationPolicy": ("core.policy", "holdfast.Destination(policy=…)"),
    "SourcePolicy": ("core.policy", "holdfast.Source(policy=…)` and `holdfast.DestinationHTTP(policy=…)"),
    "SourceHTTP": ("endpoint.source.http_settings", "holdfast.Source(http=…)"),
    "DestinationHTTP": ("endpoint.destination.http_settings", "holdfast.Destination(http=…)"),
    "RetransmissionPolicy": ("core.retransmission", "holdfast.SourcePolicy(retransmission=…)"),
    "PollingPolicy": ("core.policy", "holdfast.SourcePolicy(polling=…)"),
    "RetentionPolicy": ("core.queues.retention", "holdfast.Destination(queues=…)"),
    "HandlingPolicy": ("core.handling.handler_cursor", "holdfast.Destination(handling=…)"),
    "CircuitPolicy": ("core.policy", "circuit of [policies] and [forwarders.NAME.policy] of a broker's file"),
    "ForwardingPolicy": ("core.policy", "[policies] and [forwarders.NAME.policy] of a broker's file"),
    "StagingPolicy": ("core.policy", "holdfast.DestinationHTTP(staging=…)"),
    "HTTPLimits": ("http.exchange", "holdfast.DestinationHTTP(limits=…)` and `Listeners(limits=…)"),
    "Listeners": ("endpoint.listener_settings", "holdfast.endpoint.serve.Service(listeners=…)"),
    "AdminListener": ("endpoint.listener_settings", "Listeners(admin=…)"),
    "Limits": ("wire", "holdfast.DestinationHTTP(envelopes=…)"),
    "JournalPolicy": ("endpoint.journal.policy", "holdfast.Destination(journal=…)` and `holdfast.Source(journal=…)"),
}
"""Settings class -> its module, and where it is given."""


def class_of(module: str, name: str) -> type[Any]:
    found: type[Any] = getattr(importlib.import_module(f"holdfast.{module}"), name)
    return found


def _default(field: dataclasses.Field[Any]) -> str:
    """Return the default of a setting as Python writes it."""
    if field.default_factory is not dataclasses.MISSING:
        return f"{getattr(field.default_factory, '__name__', '')}()"
    default = field.default
    if default is dataclasses.MISSING:
        return "required"
    if isinstance(default, Enum):
        return str(default)
    if dataclasses.is_dataclass(default):
        return f"{type(default).__name__}()"
    return number_text(default) if isinstance(default, int) and not isinstance(default, bool) else repr(default)


def number_text(number: int) -> str:
    return f"{number:_}" if number >= 10_000 else str(number)


def settings(name: str) -> str:
    """Return the section of a settings class: heading, place of use, table.

    Raises:
        LookupError: the docstring does not explain a field.
    """
    module, where = SETTINGS[name]
    cls = class_of(module, name)
    first = split_docstring(inspect.cleandoc(cls.__doc__ or ""))[0][0]
    public = "holdfast" if name in importlib.import_module("holdfast").__all__ else f"holdfast.{module}"
    lines = ["| setting | values | default | meaning |", "| --- | --- | --- | --- |"]
    for field in dataclasses.fields(cls):
        meaning = as_markdown(meaning_of(cls, field.name))
        lines.append(f"| `{field.name}` | {values_of(cls, field.name)} | `{_default(field)}` | {meaning} |")
    table = "\n".join(lines)
    return f"{first} `{public}.{name}`, given to `{where}`.\n\n{table}"
