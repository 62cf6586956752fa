"""Every number that can be set is looked at when it is given: no settings class, and no field of one, is left out.

Covers endpoint/listener_settings.py.
"""

from __future__ import annotations

import ast
import importlib
import math
import re
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import holdfast
from holdfast.core.messages import MAX_MESSAGE_NUMBER
from holdfast.endpoint.listener_settings import AdminListener, Listeners
from holdfast.http.exchange import HTTPLimits
from holdfast.settings import Unit, Within, bounds_of, meaning_of, unit_of, values_of
from holdfast.simulation.nodes.network import NetworkFaults
from holdfast.testing.proxy import Faults

SOURCES = Path(__file__).resolve().parent.parent / "src" / "holdfast"
MAY_BE_ZERO = {
    ("CircuitPolicy", "jitter"),
    ("CircuitPolicy", "silence"),
    ("DestinationPolicy", "acknowledgement_interval"),
    ("DestinationPolicy", "max_sequences"),
    ("DestinationPolicy", "remember_terminated"),
    ("DestinationPolicy", "reply_patience"),
    ("ForwardingPolicy", "patience"),
    ("HandlingPolicy", "backoff"),
    ("HandlingPolicy", "backoff_cap"),
    ("Listeners", "port"),
    ("AdminListener", "port"),
    ("PollingPolicy", "jitter"),
    ("RetransmissionPolicy", "floor"),
    ("RetransmissionPolicy", "jitter"),
    ("RetransmissionPolicy", "max_retry_after"),
}


@cache
def settings_classes() -> list[type]:
    """Every dataclass of the source whose name says that it is settings, and that can be left as it is."""
    found = []
    for path in sorted(SOURCES.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if re.search(r"^class \w*(Policy|Limits|Listeners?)\b", source, re.M) is None:
            continue  # unparsed: to parse all takes a second at each collection
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and node.name.endswith(("Policy", "Limits", "Listener", "Listeners")):
                module = ".".join(("holdfast", *path.relative_to(SOURCES).with_suffix("").parts))
                found.append(getattr(importlib.import_module(module), node.name))
    return [cls for cls in (*found, NetworkFaults, Faults) if is_dataclass(cls) and _has_defaults(cls)]


def _has_defaults(cls: Any) -> bool:
    return all(one.default is not MISSING or one.default_factory is not MISSING for one in fields(cls))


def numbers() -> list[tuple[type, str, set[Any]]]:
    found = []
    for cls in settings_classes():
        hints = get_type_hints(cls)
        for field in fields(cls):
            kinds = set(getattr(hints[field.name], "__args__", (hints[field.name],)))
            if kinds & {int, float}:
                found.append((cls, field.name, kinds))
    return found


EACH = pytest.mark.parametrize(("cls", "name", "kinds"), numbers(), ids=lambda value: getattr(value, "__name__", ""))


def test_the_classes_are_found() -> None:
    assert {holdfast.DestinationPolicy, holdfast.SourcePolicy, holdfast.HandlingPolicy, HTTPLimits, Listeners} <= set(
        settings_classes()
    )
    assert len(numbers()) > 40


@EACH
def test_a_number_that_cannot_be_is_refused_by_name_with_what_may_be(cls: type, name: str, kinds: set[Any]) -> None:
    wrong: list[Any] = [-1, -0.5, math.nan, math.inf, -math.inf, True, "1", [1]]
    wrong.append(10**400 if float in kinds else 2.0)
    if (cls.__name__, name) not in MAY_BE_ZERO and cls not in (NetworkFaults, Faults):
        wrong.append(0)
    if type(None) not in kinds:
        wrong.append(None)
    for value in wrong:
        with pytest.raises(holdfast.ConfigurationError, match=rf"{cls.__name__}\.{name} cannot be") as caught:
            cls(**{name: value})
        assert caught.value.remedy.startswith("It may be ")


def test_every_fraction_has_a_unit_and_every_number_of_bytes_is_marked() -> None:
    for cls, name, kinds in numbers():
        hint = get_type_hints(cls, include_extras=True)[name]
        assert (unit_of(hint) is not None) or float not in kinds, f"{cls.__name__}.{name}"
        if "bytes" in name:
            assert unit_of(hint) is Unit.BYTES, f"{cls.__name__}.{name}"


def test_a_setting_is_explained_by_the_class_that_has_it_or_its_base() -> None:
    assert meaning_of(Listeners, "host").startswith("Address to listen on.")
    assert meaning_of(Listeners, "spare_files").endswith("up to ``max_connections``.")
    assert bounds_of(Listeners, "port") == Within(0, 65535)
    with pytest.raises(LookupError, match="Listeners does not explain color"):
        meaning_of(Listeners, "color")


def test_the_values_of_a_setting_are_described_with_unit_and_bounds() -> None:
    assert values_of(holdfast.DestinationPolicy, "max_expires") == "a number above 0 or None (seconds)"
    assert values_of(holdfast.SourcePolicy, "window_bytes") == "a whole number of at least 1 (bytes)"
    assert values_of(holdfast.RetransmissionPolicy, "jitter") == "a number of at least 0 and at most 1"
    assert values_of(Listeners, "port") == "a whole number of at least 0 and at most 65,535"


@EACH
def test_what_a_number_is_by_default_may_be_said(cls: type, name: str, kinds: set[Any]) -> None:
    value = getattr(cls(), name)
    assert getattr(cls(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("cls", "given"),
    [
        (holdfast.HandlingPolicy, {"backoff": 60.0}),
        (holdfast.RetransmissionPolicy, {"floor": 2.0, "cap": 1.0}),
        (HTTPLimits, {"max_body": 1 << 30}),
        (holdfast.DestinationPolicy, {"max_message_number": MAX_MESSAGE_NUMBER + 1}),
        (holdfast.SourcePolicy, {"max_message_number": MAX_MESSAGE_NUMBER + 1}),
        (holdfast.RetransmissionPolicy, {"jitter": 1.5}),
        (Listeners, {"port": 65536}),
        (NetworkFaults, {"lose_request": 1.01}),
    ],
)
def test_numbers_that_contradict_each_other_or_the_specification_are_refused(cls: type, given: dict[str, Any]) -> None:
    with pytest.raises(holdfast.ConfigurationError) as caught:
        cls(**given)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("cls", "given"),
    [
        (holdfast.DestinationPolicy, {"assurance": "exactly-once"}),
        (holdfast.DestinationPolicy, {"advertise_buffer": 1}),
        (holdfast.DestinationPolicy, {"incomplete_sequence_behavior": "NoDiscard"}),
        (holdfast.SourcePolicy, {"retransmission": 2.0}),
        (Listeners, {"host": None}),
    ],
)
def test_what_is_no_number_is_checked_too(cls: type, given: dict[str, Any]) -> None:
    with pytest.raises(holdfast.ConfigurationError, match=rf"{next(iter(given))} cannot be"):
        cls(**given)


@pytest.mark.parametrize(
    ("cls", "given"),
    [
        (holdfast.SourcePolicy, {"window": 1}),  # below initial_window, which grows up to it
        (holdfast.HandlingPolicy, {"attempts": None, "backoff": 0}),
        (holdfast.DestinationPolicy, {"max_sequences": 0, "max_expires": 3600}),
        (holdfast.RetransmissionPolicy, {"floor": 0, "jitter": 1}),
    ],
)
def test_what_can_be_is_taken(cls: type, given: dict[str, Any]) -> None:
    made = cls(**given)
    assert {name: getattr(made, name) for name in given} == given


def test_a_secret_that_cannot_be_is_not_told() -> None:
    with pytest.raises(holdfast.ConfigurationError, match=r"AdminListener\.token cannot be what was given") as caught:
        AdminListener(token=b"secret")  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)
