"""Whatever a program gives to a documented function or method, it works, or it raises an error in Holdfast's words.

What is documented is read from the headings of the API reference, so that a new name is tested too.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import math
import re
from collections.abc import AsyncIterator, Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from order_service import WSDL
from public_callables import fits, parameters

import holdfast
import holdfast.sync
import holdfast.testing
import holdfast.zeep
from holdfast import ConfigurationError, Destination, Source
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service
from holdfast.endpoint.source.wsdl import SourceOptions
from holdfast.exceptions import HoldfastError
from holdfast.pipeline.mediation import XSD, Pipeline

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "api.md"
URL = "http://127.0.0.1:9/"
SCHEMA = b"<schema xmlns='http://www.w3.org/2001/XMLSchema'><element name='order' type='string'/></schema>"
VALUES: list[Any] = [
    *(None, 3, -1, 3.5, math.nan, math.inf, 10**400, True, b"", b"x", "", "x", "a b\0", "\ud800"),
    *(object(), [], [1], ["x"], (), {}, {"a": 1}, {1}, lambda: None, int),
]
GOOD: dict[str, Any] = {
    **{"to": URL, "address": URL, "target": URL, "wsdl": str(WSDL), "store": ":memory:", "location": ":memory:"},
    **{"body": "<a/>", "action": "urn:a", "operation": "CancelOrder", "name": "x", "reason": "x", "value": "x"},
    **{"message_id": "urn:uuid:1", "identifier": "urn:uuid:1", "timeout": 0, "_timeout": 0, "grace": 0, "loss": 0.5},
    **{"text": "7d", "url": URL},
}
"""Arguments that are not the tested one."""
GIVEN_BY_HOLDFAST = ("Exchange", "Record", "MessageContext")
"""Types of arguments that a program has from Holdfast only: it calls nothing with other ones."""
WAITS = ("timeout", "_timeout", "grace", "stop", "on_ready")
"""A valid value of these is only waited for."""
NOT_MADE = {
    **dict.fromkeys(("Mediation", "LandedBatch", "Compaction", "Reassembled"), "needs Spark"),
    **dict.fromkeys(("Processor", "MessageContext", "UsernameToken", "UsernameTokenValidator"), "called by Holdfast"),
    **dict.fromkeys(("SamlToken", "SamlTokenValidator", "SymmetricBinding", "Timestamp", "X509"), "called by Holdfast"),
    **dict.fromkeys(("SymmetricBindingValidator", "EndorsedSymmetricBinding", "Freshness"), "called by Holdfast"),
    **dict.fromkeys(("EndorsingCertificates", "SecureConversation", "PeerCertificate"), "called by Holdfast"),
    **dict.fromkeys(("Reply", "Sent", "LossyProxy", "Network", "ProxyCounts"), "have no methods with such arguments"),
    **dict.fromkeys(("Attachment", "Policy"), "have no methods with such arguments"),
}
"""Documented classes whose methods a program does not call with arguments of its own."""


@cache
def documented() -> tuple[dict[str, Any], dict[str, list[str]]]:
    """The functions and classes by their names with their modules, and the methods of each class."""
    names: dict[str, Any] = {}
    methods: dict[str, list[str]] = {}
    last = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if found := re.fullmatch(r"### (?:class )?([\w.]+)\.(\w+)(?:\(\))?", line):
            last = f"{found[1]}.{found[2]}"
            names[last] = getattr(importlib.import_module(found[1]), found[2])
        elif (found := re.fullmatch(r"#### \w+\.(\w+)\(\)", line)) and found[1] != "__call__":
            methods.setdefault(last, []).append(found[1])
    return names, methods


@contextlib.asynccontextmanager
async def source() -> AsyncIterator[Any]:
    made = await Source.from_wsdl(str(WSDL), ":memory:", to=URL)
    await made.open()
    yield made
    await made.close(0)


@contextlib.asynccontextmanager
async def blocking_source() -> AsyncIterator[Any]:
    made = holdfast.sync.Source.from_wsdl(str(WSDL), ":memory:", to=URL)
    made.open()
    yield made
    made.close(0)


@contextlib.asynccontextmanager
async def destination() -> AsyncIterator[Any]:
    made = Destination(":memory:", wsdl=WSDL)
    await made.start()
    yield made
    await made.close(0)


@contextlib.asynccontextmanager
async def plain(make: Callable[[], Any]) -> AsyncIterator[Any]:
    yield make()


OBJECTS: dict[str, Callable[[], contextlib.AbstractAsyncContextManager[Any]]] = {
    "holdfast.Source": source,
    "holdfast.sync.Source": blocking_source,
    "holdfast.Destination": destination,
    "holdfast.Message": lambda: plain(lambda: holdfast.testing.message("<a/>")),
    "holdfast.Assurance": lambda: plain(lambda: holdfast.Assurance),
    "holdfast.zeep.Transport": lambda: plain(lambda: holdfast.zeep.Transport(":memory:", wsdl=str(WSDL), to=URL)),
    "holdfast.zeep.AsyncTransport": lambda: plain(
        lambda: holdfast.zeep.AsyncTransport(":memory:", wsdl=str(WSDL), to=URL)
    ),
    "holdfast.zeep.Call": lambda: plain(holdfast.zeep.Call),
    "holdfast.endpoint.serve.Service": lambda: plain(lambda: Service(Destination(":memory:"), Listeners(port=0))),
    "holdfast.pipeline.mediation.XSD": lambda: plain(lambda: XSD((("order.xsd", SCHEMA),))),
    "holdfast.pipeline.mediation.Pipeline": lambda: plain(Pipeline),
}


def arguments(function: Any) -> list[str]:
    """The names of its arguments, if a program has values for all of them."""
    found = inspect.signature(function).parameters.items()
    if any(one.annotation in GIVEN_BY_HOLDFAST for _, one in found):
        return []
    return [name for name, one in found if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL) and name != "self"]


async def outcome(function: Any, given: dict[str, Any]) -> Exception | None:
    """The error of a call, None without one."""
    signature = inspect.signature(function)
    positional = [given.pop(name) for name, one in signature.parameters.items() if one.kind is one.POSITIONAL_ONLY]
    try:
        result = function(*positional, **given)
        if inspect.isawaitable(result):
            await result
        elif isinstance(result, contextlib.AbstractContextManager) and hasattr(result, "gen"):
            with result:
                pass
    except Exception as error:
        return error
    return None


async def check(function: Any, name: str, good: dict[str, Any]) -> None:
    annotation = parameters(function).get(name, Any)
    demanded = {
        other: good.get(other, GOOD.get(other, URL))
        for other, one in inspect.signature(function).parameters.items()
        if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
        if one.default is one.empty or other in GOOD or other in good
    }
    for value in VALUES:
        if name in WAITS and (value is None or isinstance(value, int | float) or callable(value)):
            continue
        error = await outcome(function, demanded | {name: value})
        assert error is None or isinstance(error, HoldfastError), f"{value!r:.30}: {error!r}"
        if isinstance(error, ConfigurationError) and not fits(value, annotation):
            assert error.remedy, f"{value!r:.30}: {error!r}"


def test_every_documented_class_is_tested_or_needs_no_test() -> None:
    names, methods = documented()
    assert len(names) > 60
    missing = [one for one in methods if one not in OBJECTS and one.rpartition(".")[2] not in NOT_MADE]
    assert not missing


METHODS = [
    (cls, method, name)
    for cls, methods in documented()[1].items()
    if cls in OBJECTS
    for method in methods
    for name in arguments(getattr(documented()[0][cls], method))
]


@pytest.mark.parametrize(("cls", "method", "name"), METHODS)
async def test_any_argument_of_a_method_is_taken_or_refused_in_words(
    cls: str, method: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with OBJECTS[cls]() as made, asyncio.timeout(300):
        await check(getattr(made, method), name, {})
    for value in (None, "x", -1, math.nan, []) if "close" in method else ():  # a closed one needs no argument
        async with OBJECTS[cls]() as made:
            error = await outcome(getattr(made, method), {name: value})
            assert isinstance(error, HoldfastError) or "Transport" in cls, f"{value!r}: {error!r}"


@pytest.mark.parametrize("option", SourceOptions.__annotations__)
async def test_any_option_of_a_source_from_a_wsdl_is_taken_or_refused_in_words(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for value in VALUES:
        for make in (Source.from_wsdl, holdfast.sync.Source.from_wsdl, holdfast.zeep.Transport, pair):
            given = {"wsdl": str(WSDL), "to": URL, "store": ":memory:", option: value}
            error = await outcome(make, given)
            assert error is None or isinstance(error, HoldfastError), f"{make}: {value!r:.30}: {error!r}"


def pair(wsdl: str, to: str, store: str, **options: Any) -> None:
    with holdfast.testing.pair(Destination(":memory:"), **options):
        pass


IN_THIS_PROCESS = [
    (name, argument)
    for name, one in documented()[0].items()
    if not inspect.isclass(one) and not name.startswith(("holdfast.pipeline", "holdfast.pytest_plugin"))
    for argument in arguments(one)
]


@pytest.mark.parametrize(("name", "argument"), IN_THIS_PROCESS)
async def test_any_argument_of_a_function_is_taken_or_refused_in_words(
    name: str, argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good = {"app": Destination(":memory:"), "endpoint": Destination(":memory:")}
    await check(documented()[0][name], argument, good)


FAULTS = [(holdfast.ApplicationFault, name) for name in arguments(holdfast.ApplicationFault)]


@pytest.mark.parametrize(("one", "name"), [*FAULTS, (Service, "app"), (Service, "listeners"), (XSD, "documents")])
async def test_any_argument_of_a_fault_or_a_service_is_taken_or_refused_in_words(one: Any, name: str) -> None:
    await check(one, name, {"app": Destination(":memory:"), "listeners": Listeners(port=0)})


# --- Spark ------------------------------------------------------------------------------------------------------------


def stand_in(annotation: str) -> Any:
    """Something of the class of a required argument: each function checks all arguments before it asks Spark."""
    name = annotation.split(" | ")[0]
    return (
        "x" if "str" in annotation.split(" | ") or name == "NonEmpty" else [] if "[" in name else type(name, (), {})()
    )


SPARK = [
    (name, argument)
    for name, one in documented()[0].items()
    if inspect.isfunction(one) and name.startswith("holdfast.pipeline")
    for argument in arguments(one)
]


def test_the_functions_of_the_pipeline_are_found() -> None:
    assert {name.rpartition(".")[2] for name, _ in SPARK} >= {"land", "reland", "compact", "run", "watch", "split"}
    assert len(SPARK) > 60


@pytest.mark.parametrize(("name", "argument"), SPARK)
def test_a_wrong_argument_of_a_function_for_spark_is_refused_before_spark_is_asked(name: str, argument: str) -> None:
    function = documented()[0][name]
    demanded = {
        other: stand_in(str(one.annotation))
        for other, one in inspect.signature(function).parameters.items()
        if one.default is one.empty and one.kind is not one.VAR_POSITIONAL and one.kind is not one.VAR_KEYWORD
    }
    refused = 0
    for value in VALUES:
        if is_of(value, str(inspect.signature(function).parameters[argument].annotation)):
            continue
        with pytest.raises(ConfigurationError, match=rf"\b{argument} cannot be") as caught:
            function(**demanded | {argument: value})
        assert caught.value.remedy
        refused += 1
    assert refused > 5


def is_of(value: Any, annotation: str) -> bool:
    """Whether a value may be right, as far as this test says."""
    if value is None:
        return "None" in annotation
    if isinstance(value, bool):
        return "bool" in annotation
    if isinstance(value, int | float):
        is_number = "int" in annotation or "float" in annotation or "Seconds" in annotation
        return is_number and 1 <= value < 100 and (isinstance(value, int) or "int" not in annotation)
    if isinstance(value, str):
        return bool(re.search(r"(?<!\[)\b(str|NonEmpty)\b(?![\],])", annotation)) and (
            value or "NonEmpty" not in annotation
        )
    if callable(value):
        return "Callable" in annotation
    if isinstance(value, bytes):
        return False
    return bool(re.search("Collection|Iterable|Sequence|Mapping", annotation))
