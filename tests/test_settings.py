"""Every number that can be set is looked at when it is given: no settings class, and no field of one, is left out.

Covers endpoint/listener_settings.py.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import math
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from public_callables import public_callables

import holdfast
from holdfast.core.messages import MAX_MESSAGE_NUMBER
from holdfast.endpoint.listener_settings import AdminListener, Listeners
from holdfast.http.exchange import HTTPLimits
from holdfast.settings import Unit, Within, bounds_of, check_callable, meaning_of, suggestion, unit_of, values_of
from holdfast.simulation.nodes.network import NetworkFaults
from holdfast.testing.proxy import Faults
from holdfast.zeep import _Reliable

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


def arguments_of(annotation: object) -> int | None:
    """Return the number of arguments of the function that an annotation permits; None if it permits none."""
    for node in ast.walk(ast.parse(str(annotation), mode="eval")) if isinstance(annotation, str) else ():
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Callable":
            assert isinstance(node.slice, ast.Tuple) and isinstance(node.slice.elts[0], ast.List)
            return len(node.slice.elts[0].elts)
    return None


def taken_functions() -> list[tuple[Any, str, int]]:
    """Each function that a caller gives to one of them, and the number of its arguments."""
    return [
        (one, name, arguments)
        for one in public_callables()
        for name, parameter in inspect.signature(one).parameters.items()
        if not name.startswith("_") and (arguments := arguments_of(parameter.annotation)) is not None
    ]


def given(one: Any, name: str, value: object) -> Any:
    """Call it with that argument, and something for each one that it demands."""
    demanded = [
        other
        for other, parameter in inspect.signature(one).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    return one(**dict.fromkeys(demanded, "http://127.0.0.1/") | {name: value})


def test_the_functions_that_callers_give_are_found() -> None:
    found = {(one.__name__, name) for one, name, _ in taken_functions()}
    wanted = {("UsernameTokenValidator", "authenticate"), ("SamlTokenValidator", "authorize"), ("run", "on_batch")}
    assert found >= {*wanted, ("DestinationHTTP", "policy_for"), ("LossyProxy", "on_relayed"), ("watch", "tell")}
    assert len(found) >= 14


@pytest.mark.parametrize(
    ("one", "name", "arguments"),
    taken_functions(),
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_what_is_no_function_is_refused_when_it_is_given(one: Any, name: str, arguments: int) -> None:
    """A coroutine or a generator would count as true: as a password that is accepted, for example."""

    async def asynchronous(*_: Any) -> bool:
        return False

    def generator(*_: Any) -> Iterator[bool]:
        yield False

    class Asynchronous:
        async def __call__(self, *_: Any) -> bool:
            return False

    def demanding(*_: Any, another: Any) -> bool:
        return False

    for wrong in (5, object(), asynchronous, generator, Asynchronous(), demanding):
        with pytest.raises(holdfast.ConfigurationError, match=rf"(^|\.){name} ") as caught:
            given(one, name, wrong)
        assert caught.value.remedy
    if arguments:
        with pytest.raises(
            holdfast.ConfigurationError, match=rf"(^|\.){name} cannot be called with {arguments} argument"
        ):
            given(one, name, lambda: None)


def test_what_can_be_called_may_be_given() -> None:
    for value, arguments in ((print, 1), (len, 1), (str, 1), (lambda *_: True, 2), (dict[str, str]().get, 1)):
        check_callable("value", value, arguments)
    check_callable("value", None, 1, optional=True)
    with pytest.raises(holdfast.ConfigurationError, match="value cannot be of the type NoneType"):
        check_callable("value", None, 1)


def test_a_function_of_progress_is_checked_when_it_is_set() -> None:
    for source in (holdfast.Source("http://127.0.0.1/", ":memory:"), holdfast.sync.Source("http://127.0.0.1/")):
        with pytest.raises(holdfast.ConfigurationError, match="on_progress cannot be of the type int"):
            source.on_progress = 5  # type: ignore[assignment]


@pytest.mark.parametrize("token", ["", " ", "two words", "gr\u00fcn", "a\nb"], ids=repr)
def test_a_token_that_no_client_can_send_is_refused(token: str) -> None:
    """An empty one would open the admin interface."""
    with pytest.raises(holdfast.ConfigurationError, match="a token is one word") as caught:
        AdminListener(token=token)
    assert caught.value.remedy
    assert AdminListener(token="secret\n").token == "secret", "as the command line reads it from a file"


def taken_texts() -> list[tuple[Any, str]]:
    """Each collection of texts that a caller gives."""
    wanted = {"Iterable", "Sequence", "Collection", "tuple", "list", "set", "frozenset"}
    return [
        (one, name)
        for one in (*public_callables(), AdminListener, _Reliable)
        for name, parameter in inspect.signature(one).parameters.items()
        if isinstance(parameter.annotation, str)
        for node in ast.walk(ast.parse(parameter.annotation, mode="eval"))
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) in wanted
        if ast.unparse(node.slice) in ("str", "(str, ...)") and "str | Seq" not in parameter.annotation
        if inspect.isclass(one)  # the pipeline's functions compare with the words that they know
        if one.__module__ != "holdfast.http.tls"  # what a peer showed is no setting
    ]


def test_the_collections_of_texts_that_callers_give_are_found() -> None:
    found = {(one.__name__, name) for one, name in taken_texts()}
    assert found >= {("_Reliable", "allow_imports"), ("DestinationHTTP", "allow_addresses"), ("AdminListener", "names")}
    assert len(found) >= 6


@pytest.mark.parametrize(("one", "name"), taken_texts(), ids=lambda value: getattr(value, "__name__", value))
def test_a_single_text_is_no_collection_of_its_characters(one: Any, name: str) -> None:
    """Of a URL that may be imported from, each character would permit the URLs that begin with it: all of http."""
    with pytest.raises(holdfast.ConfigurationError, match=name) as caught:
        given(one, name, "https://shop.example/")
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("ordres", "Did you mean 'orders'?"),
        ("ORDERS", "Did you mean 'orders'?"),
        ("maxRowPerBatch", "Did you mean 'maxRowsPerBatch'?"),
        ("maxrowperbatch", "Did you mean 'maxRowsPerBatch'?"),
        ("zzz", "There are others."),
        ("", "There are others."),
    ],
)
def test_an_unknown_name_gets_the_nearest_known_one_or_all(name: str, remedy: str) -> None:
    assert suggestion(name, (one for one in ("orders", "returns", "maxRowsPerBatch")), "There are others.") == remedy
