"""Any wrong argument of a public class, method or decorator is refused in words, and never with a raw Python error.

Whether a value fits is what the annotation of its parameter says.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from order_service import WSDL
from public_callables import fits, parameters, public_callables

import holdfast
import holdfast.sync
from holdfast import Attachment, ConfigurationError, Destination, Source, SourceHTTP
from holdfast.endpoint.listener_settings import AdminListener, Listeners
from holdfast.exceptions import HoldfastError
from holdfast.settings import brief_value
from holdfast.zeep import AsyncTransport, Call, Transport

URL = "http://127.0.0.1:9/"
LONGEST = 300
"""Characters of the sentence about a wrong argument."""
GIVEN_BY_HOLDFAST = (
    *(holdfast.Enqueued, holdfast.Message, holdfast.MessageContext, holdfast.PeerCertificate),
    *(holdfast.Processor, holdfast.Progress, holdfast.Reply, holdfast.Sent, holdfast.SoapHeaders),
)
"""Classes that a program does not make."""
LENIENT = {("Destination", "partitions"), ("Destination", "journal"), ("Source", "journal")}
"""Parameters that take None, for their default."""


def generator(*_: Any) -> Iterator[int]:
    yield 1


async def asynchronous_generator(*_: Any) -> AsyncIterator[int]:
    yield 1


async def coroutine(*_: Any) -> None: ...


class Odd:
    """Nothing that any parameter takes, and long when it is shown."""

    def __repr__(self) -> str:
        return "Odd" * 1000


VALUES: list[Any] = [
    *(5, -1, 1.5, float("nan"), True, None, "", "x", "a b\0", "x" * 5000, b"x", b"\xff" * 5000),
    *([], [1], ["x"], (), ("a",), {}, {"a": 1}, {1: 2}, {"x"}, range(3)),
    *(Odd(), object(), int, SourceHTTP, SourceHTTP(), lambda: None, generator, coroutine),
]


def made_by_programs() -> list[Any]:
    found = [one for one in public_callables() if inspect.isclass(one) and not issubclass(one, Exception)]
    found = [one for one in found if one not in GIVEN_BY_HOLDFAST]
    return [*found, Listeners, AdminListener, Transport, AsyncTransport, Call, holdfast.sync.Source]


def demanded(function: Any) -> dict[str, Any]:
    return {
        name: URL
        for name, one in inspect.signature(function).parameters.items()
        if one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    }


EACH = [(one, name) for one in made_by_programs() for name in parameters(one)]


def test_the_classes_that_programs_make_are_found() -> None:
    assert {Source, Destination, Attachment, holdfast.X509, Transport} <= {one for one, _ in EACH}
    assert len(EACH) > 150


@pytest.mark.parametrize(("one", "name"), EACH, ids=lambda value: getattr(value, "__name__", value))
def test_a_wrong_argument_of_a_class_is_refused_in_a_short_sentence(
    one: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    annotation = parameters(one)[name]
    refusals: list[HoldfastError] = []
    for value in VALUES:
        try:
            one(**demanded(one) | {name: value})
        except HoldfastError as error:
            refusals += [error] if not isinstance(value, str | bytes) else []  # texts are shown whole
        else:
            is_lenient = value is None and (one.__name__, name) in LENIENT
            assert is_lenient or fits(value, annotation), f"{value!r:.30} was taken"
    check(refusals)


def check(refusals: list[HoldfastError]) -> None:
    for error in refusals:
        assert len(error.message) < LONGEST, error.message
        assert error.remedy or not isinstance(error, ConfigurationError), error.message


CALLED: list[tuple[str, str]] = [
    (method, name)
    for method in ("send", "request", "reply", "end", "flush", "next_offset", "call", "on")
    for name in inspect.signature(getattr(Source, method)).parameters
    if name not in ("self", "connection", "arguments", "values", "body", "operation") and not name.startswith("_a")
]


@pytest.mark.parametrize(("method", "name"), CALLED)
async def test_a_wrong_argument_of_a_source_is_refused_in_a_short_sentence(method: str, name: str) -> None:
    given: dict[str, Any] = {
        "send": {"body": "<a/>", "action": "urn:a"},
        "request": {"body": "<a/>", "action": "urn:a", "timeout": 0},
        "reply": {"message_id": "urn:uuid:1", "timeout": 0},
        "call": {"_timeout": 0},
        "flush": {"timeout": 0},
    }
    refusals: list[HoldfastError] = []
    async with Source(URL, ":memory:") as source:
        for value in VALUES:
            if name.endswith("timeout") and (value is None or isinstance(value, int | float)):
                continue
            arguments = ("Price",) if method == "call" else ()
            try:
                result = getattr(source, method)(*arguments, **given.get(method, {}) | {name: value})
                if inspect.isawaitable(result) and not (method in ("end", "flush") and fits(value, str)):
                    await result
                elif inspect.iscoroutine(result):
                    result.close()
            except HoldfastError as error:
                refusals += [error] if not isinstance(value, str | bytes) else []
        await source.close(0)
    check(refusals)


# --- decorators -------------------------------------------------------------------------------------------------------


class Generator:
    def __call__(self, *_: Any) -> Iterator[int]:
        yield 1


class Asynchronous:
    async def __call__(self, number: int, connection: Any) -> None: ...


async def in_a_transaction(number: int, connection: Any) -> None: ...


DECORATORS: list[Callable[[], Any]] = [
    lambda: Destination(":memory:").on(),
    lambda: Destination(":memory:").on("urn:a"),
    lambda: Destination(":memory:", wsdl=WSDL).operation("CancelOrder"),
    lambda: Source(URL, ":memory:").on(),
    lambda: holdfast.sync.Source(URL, ":memory:").on("urn:a"),
]


@pytest.mark.parametrize("decorator", DECORATORS, ids=range(len(DECORATORS)))
@pytest.mark.parametrize(
    "handler",
    [
        *(5, None, "x", b"x", [], {}, object(), Odd()),
        *(generator, asynchronous_generator, Generator(), functools.partial(generator, 1)),
        *(in_a_transaction, Asynchronous(), functools.partial(in_a_transaction, 1)),
    ],
    ids=lambda value: f"{getattr(value, '__name__', type(value).__name__)}",
)
def test_every_decorator_refuses_what_would_not_run(decorator: Callable[[], Any], handler: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        decorator()(handler)
    assert caught.value.remedy
    assert len(caught.value.message) < LONGEST


@pytest.mark.parametrize("name", ["on", "operation"])
@pytest.mark.parametrize("wrong", [generator, Odd, 5, b"x", None, Odd()], ids=lambda value: f"{value!r:.20}")
def test_a_decorator_without_its_parentheses_says_how_to_write_it(name: str, wrong: Any) -> None:
    for app in (Destination(":memory:"), Destination(":memory:", wsdl=WSDL)):
        with pytest.raises(ConfigurationError) as caught:
            getattr(app, name)(wrong)
        assert f"@app.{name}(" in caught.value.remedy


# --- attachments ------------------------------------------------------------------------------------------------------


def test_an_attachment_that_cannot_be_read_is_refused_when_it_is_made(tmp_path: Path) -> None:
    path = tmp_path / "scan"
    path.write_bytes(b"scan")
    for content in (str(path), path, path.open("rb"), b"scan"):
        assert Attachment(content).read() == b"scan"
    closed = path.open("rb")
    closed.close()
    refused = {
        "does not exist": [tmp_path / "missing", "missing", "text of the attachment", tmp_path, ""],
        "open for text": [path.open()],
        "not open for reading": [closed, (tmp_path / "new").open("wb")],
    }
    for says, contents in refused.items():
        for content in contents:
            with pytest.raises(ConfigurationError, match=says) as caught:
                Attachment(content)  # type: ignore[arg-type]
            assert caught.value.remedy


# --- how a value is shown ---------------------------------------------------------------------------------------------


def test_a_long_value_is_shown_by_its_class() -> None:
    assert brief_value(5) == "5"
    assert brief_value("x" * 500).startswith("'xxx")
    assert (brief_value(Odd()), brief_value([5] * 100)) == ("an Odd", "a list")
    with pytest.raises(ConfigurationError, match="http cannot be a DestinationHTTP"):
        Source(URL, ":memory:", http=holdfast.DestinationHTTP())  # type: ignore[arg-type]
