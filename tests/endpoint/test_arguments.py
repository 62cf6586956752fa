"""What a program gives to an endpoint is refused where it is given, with what to give instead.

Covers endpoint/handling/handlers.py.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import product
from typing import Any, ForwardRef, NoReturn

import pytest
from hostile_urls import NO_URLS
from lxml import etree

import holdfast
from holdfast import ConfigurationError, Destination, DestinationHTTP, Message, Source, SourceHTTP, Versions
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service
from holdfast.endpoint.source.wsdl import SourceOptions
from holdfast.testing.proxy import Faults, LossyProxy

URL = "http://127.0.0.1:9/"


def refused(make: Callable[[], Any], what: str) -> None:
    with pytest.raises(ConfigurationError, match=what) as caught:
        make()
    assert caught.value.remedy, "it says what to give instead"


# --- handlers ---------------------------------------------------------------------------------------------------------


def no_parameter() -> None: ...


def two_parameters(message: Message, other: object) -> None: ...


def only_by_name(*, message: Message) -> None: ...


async def asynchronous() -> None: ...


def generator(message: Message) -> Iterator[str]:
    yield "<a/>"


async def asynchronous_generator(message: Message) -> AsyncIterator[str]:
    yield "<a/>"


class Handlers:
    def forgot_self(message: Message) -> None: ...  # type: ignore[misc]

    def fit(self, message: Message) -> None: ...

    def __call__(self, message: Message) -> None: ...


@pytest.mark.parametrize(
    "handler",
    [no_parameter, two_parameters, only_by_name, asynchronous, Handlers().forgot_self, Handlers.fit, lambda: 1],
)
def test_a_handler_that_cannot_take_a_message_is_refused(handler: Any) -> None:
    refused(lambda: Destination(":memory:").on("urn:a")(handler), "cannot be called with a message alone")


@pytest.mark.parametrize("handler", [generator, asynchronous_generator])
def test_a_generator_is_no_handler_for_nothing_of_it_would_run(handler: Any) -> None:
    refused(lambda: Destination(":memory:").on("urn:a")(handler), "generator")


def test_what_cannot_be_called_is_no_handler() -> None:
    refused(lambda: Destination(":memory:").on("urn:a")("no function"), "not a handler")  # type: ignore[type-var]


@pytest.mark.parametrize(
    "handler",
    [
        lambda message: None,
        lambda *anything: None,
        lambda message, other=1: None,
        functools.partial(two_parameters, connection=None),
        Handlers().fit,
        Handlers(),
        [].append,
        print,
    ],
)
def test_whatever_can_take_a_message_is_a_handler(handler: Any) -> None:
    app = Destination(":memory:")
    assert app.on("urn:a")(handler) is handler
    assert app.settings.table.handlers == {"urn:a": handler}


def returns_int(message: Message) -> int:
    return 1


def returns_a_dictionary(message: Message) -> dict[str, str] | None:
    return {}


async def awaits_a_number(message: Message) -> float:
    return 1.0


def gives_an_awaitable_number(message: Message) -> Awaitable[int]:
    raise NotImplementedError


class Number:
    def __call__(self, message: Message) -> int:
        return 1


@pytest.mark.parametrize(
    "handler", [returns_int, returns_a_dictionary, awaits_a_number, gives_an_awaitable_number, Number()]
)
def test_a_handler_whose_annotation_says_that_it_returns_no_body_is_refused(handler: Any) -> None:
    refused(lambda: Destination(":memory:").on("urn:a")(handler), "is annotated to return .*one XML element")


def test_a_handler_may_have_any_annotation_even_an_unresolvable_one() -> None:
    def text(message: Message) -> str | None: ...
    async def octets(message: Message) -> bytes: ...  # type: ignore[empty-body]
    def element(message: Message) -> etree._Element: ...  # type: ignore[empty-body]
    def later(message: Message) -> Awaitable[str | bytes]: ...  # type: ignore[empty-body]
    def never(message: Message) -> NoReturn:
        raise NotImplementedError

    def anything(message: Message) -> Any: ...
    def unknown(message: Message) -> OnlyForCheckers: ...  # type: ignore[name-defined] # noqa: F821

    for handler in (text, octets, element, later, never, anything, unknown):
        Destination(":memory:").on()(handler)


def test_from_wsdl_knows_the_keyword_arguments_of_a_source_and_their_types() -> None:
    """For type checkers: a misspelt option of ``from_wsdl`` is an error there, as it is for the class itself."""
    for source in (Source, holdfast.sync.Source):
        parameters = inspect.signature(source).parameters.values()
        own = {one.name: one.annotation for one in parameters if one.kind is one.KEYWORD_ONLY}
        assert inspect.get_annotations(SourceOptions) == {
            name: ForwardRef(annotation, module=SourceOptions.__module__) for name, annotation in own.items()
        }
        assert inspect.signature(source.from_wsdl).parameters["options"].annotation == "Unpack[SourceOptions]"


def test_a_handler_registered_without_parentheses_is_refused() -> None:
    app = Destination(":memory:")

    def submit(message: Message) -> None: ...

    refused(lambda: app.on(submit), "submit is registered without parentheses")  # type: ignore[arg-type]
    refused(lambda: app.on(7), "an action must be text")  # type: ignore[arg-type]
    assert not app.settings.table.handlers


@pytest.mark.parametrize("action", ["two words", "urn:a\nb", "urn:a\0", " urn:a", "http://a/%zz"])
def test_an_action_that_no_peer_accepts_is_refused_where_it_is_given(action: str) -> None:
    app = Destination(":memory:")
    refused(lambda: app.on("urn:a", reply_action=action), "reply_action cannot be used")
    with pytest.raises(holdfast.EnvelopeError):
        holdfast.ApplicationFault("no", action=action)


NO_IRIS = ["http://[::1", "two words", "urn:a\nb", "urn:a\0", " urn:a", "", "http://a/%zz"]


@pytest.mark.parametrize(("name", "value"), [*product(["action", "message_id"], NO_IRIS), ("message_id", "relative")])
async def test_an_iri_that_no_peer_accepts_is_refused_before_it_is_stored(name: str, value: str) -> None:
    async with Source(URL, ":memory:") as source:
        for send in (source.send, source.request):
            with pytest.raises(holdfast.EnvelopeError, match=name):
                await send("<a/>", **{"action": "urn:a", name: value})
        assert source.progress.stored == 0
        await source.close(0)


def test_two_handlers_of_one_action_are_refused() -> None:
    app = Destination(":memory:")
    for action in ("urn:a", ""):
        app.on(action)(print)
        refused(lambda: app.on(action)(print), "two handlers")  # noqa: B023


async def test_a_first_handler_comes_too_late_once_the_destination_runs() -> None:
    app = Destination(":memory:")
    await app.start()
    try:
        refused(lambda: app.on()(print), "is already running")
    finally:
        await app.close()


@pytest.mark.parametrize("endpoint", [Source, holdfast.sync.Source, Destination])
def test_an_endpoint_has_at_most_ten_arguments(endpoint: Any) -> None:
    assert len(inspect.signature(endpoint).parameters) <= 10


# --- a destination ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"partitions": 0}, "partitions cannot be 0"),
        ({"partitions": 2.5}, "partitions cannot be 2.5"),
        ({"queues": {}}, "queues cannot be {}"),
        ({"queues": "inbox"}, "queues cannot be 'inbox'"),
        ({"queues": {"": None}}, "'' is not a valid name of a queue"),
        ({"queues": {"dead-letters": None}}, "Holdfast uses it"),
        ({"queues": {"outbox/a": None}}, "Holdfast uses it"),
        ({"queues": {"inbox": None, "replies": None}}, "Holdfast uses it"),
        ({"assurance": "twice"}, "not a delivery assurance"),
        ({"assurance": 7}, "not a delivery assurance"),
        ({"policy": holdfast.SourcePolicy()}, "policy cannot be"),
        ({"handling": 5}, "handling cannot be 5"),
        ({"http": 5}, "http cannot be 5"),
        ({"store": 5}, "store cannot be 5"),
        ({"store": None}, "store cannot be None"),
    ],
)
def test_a_destination_that_cannot_be_is_refused(given: dict[str, Any], what: str) -> None:
    refused(lambda: Destination(**{"store": ":memory:"} | given), what)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"policy": holdfast.DestinationPolicy()}, "policy cannot be"),
        ({"limits": 5}, "limits cannot be 5"),
        ({"limits": None}, "limits cannot be None"),
        ({"envelopes": 5}, "envelopes cannot be 5"),
        ({"staging": 5}, "staging cannot be 5"),
        ({"allow_addresses": "http://partner.example/"}, "not a list of addresses"),
        ({"allow_addresses": 5}, "not a list of addresses"),
        ({"keep_http_headers": "X-Request-ID"}, "a single name, not a list"),
    ],
)
def test_http_settings_of_a_destination_that_are_not_valid_are_refused(given: dict[str, Any], what: str) -> None:
    refused(lambda: holdfast.DestinationHTTP(**given), what)


def test_http_settings_show_neither_credentials_nor_passwords() -> None:
    shown = repr(
        holdfast.DestinationHTTP(headers={"Authorization": "secret"}, proxy="http://me:secret@proxy.example:3128")
    )
    assert "secret" not in shown


# --- a source ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Source, holdfast.sync.Source])
@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"versions": []}, "not a valid value for versions"),
        ({"versions": "1.0"}, "not a valid value for versions"),
        ({"versions": Versions(), "profile": "wcf"}, "versions are given as well"),
        ({"profile": "websphere"}, r"is not a profile\.\n  The profiles are wcf"),
        ({"assurance": "twice"}, "not a delivery assurance"),
        ({"policy": holdfast.DestinationPolicy()}, "policy cannot be"),
        ({"http": 5}, "http cannot be 5"),
        ({"offer": "yes"}, "offer cannot be 'yes'"),
        ({"store": 5}, "store cannot be 5"),
        ({"to": 5}, "5 is not an http or https URL"),
        ({"to": b"http://a/"}, "is not an http or https URL"),
        ({"to": "http://a b/"}, "is not an http or https URL"),
    ],
)
def test_a_source_that_cannot_be_is_refused(make: Any, given: dict[str, Any], what: str) -> None:
    refused(lambda: make(**{"to": URL, "store": ":memory:"} | given), what)


@pytest.mark.parametrize("settings", [holdfast.SourceHTTP, holdfast.DestinationHTTP])
@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"timeout": -1.0}, r"timeout cannot be -1\.0"),
        ({"timeout": 0}, "timeout cannot be 0"),
        ({"timeout": float("nan")}, "timeout cannot be nan"),
        ({"timeout": "60"}, "timeout cannot be '60'"),
        ({"ssl_context": True}, "ssl_context cannot be True"),
        ({"headers": ["Authorization: x"]}, "headers must be a mapping"),
        ({"headers": {"Two Words": "x"}}, "not the name of an HTTP header"),
        ({"headers": {"Authorization": "x\r\nEvil: y"}}, "the value of the HTTP header Authorization cannot be sent"),
        ({"headers": {"Authorization": None}}, "the value of the HTTP header Authorization cannot be sent"),
    ],
)
def test_settings_of_requests_that_are_not_valid_are_refused(settings: Any, given: dict[str, Any], what: str) -> None:
    refused(lambda: settings(**given), what)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"address": "http://me.example/"}, "there is no listener"),
        ({"listen": 8080}, "listen=8080 is not a host and a port"),
        ({"listen": ("127.0.0.1", 70000)}, "port of listen cannot be 70000"),
    ],
)
def test_a_listener_of_a_source_that_cannot_be_is_refused(given: dict[str, Any], what: str) -> None:
    refused(lambda: holdfast.SourceHTTP(**given), what)


def test_a_header_that_cannot_be_sent_keeps_its_secret() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Source(URL, ":memory:", http=SourceHTTP(headers={"Authorization": "Bearer secret\n"}))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan"), "1"])
async def test_a_wait_of_less_than_no_time_is_refused_and_nothing_is_stored_or_closed(timeout: Any) -> None:
    app = Destination(":memory:")
    app.on("urn:a")(lambda message: None)
    service = Service(app, Listeners(port=0))
    await service.start()
    try:
        async with Source(service.url, ":memory:") as source:
            with pytest.raises(ConfigurationError, match=re.escape(f"timeout cannot be {timeout!r}")):
                await source.request("<a/>", action="urn:a", timeout=timeout)
            assert source.progress.stored == 0
            sent = await source.send("<a/>", action="urn:a")
            waits = (
                lambda: sent.acknowledged(timeout),
                lambda: source.flush(timeout),
                lambda: source.reply("urn:x", timeout),
                lambda: source.end(timeout=timeout),
                lambda: source.close(timeout),
            )
            for wait in waits:
                with pytest.raises(ConfigurationError, match="timeout cannot be"):
                    await wait()
            await sent.acknowledged(60)
    finally:
        await service.close()


@pytest.mark.parametrize("url", NO_URLS)
def test_an_address_that_is_none_is_refused_where_it_is_given(url: str) -> None:
    for make in (
        lambda: Source(url, ":memory:"),
        lambda: holdfast.sync.Source(url, ":memory:"),
        lambda: SourceHTTP(proxy=url),
        lambda: SourceHTTP(listen=("127.0.0.1", 0), address=url),
        lambda: Destination(":memory:", http=DestinationHTTP(allow_addresses=[url])),
        lambda: DestinationHTTP(public_url=url),
        lambda: LossyProxy(url, Faults()),
    ):
        with pytest.raises(ConfigurationError):
            make()


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("api.example/orders", "is not an http or https URL"),
        ("HTTPS://api.example", "is not an http or https URL"),
        ("https://api.example/a b", "is not an http or https URL"),
        (b"https://api.example", "is not an http or https URL"),
        ("https://api.example/orders?wsdl", "has a query or a fragment"),
        ("https://api.example/#orders", "has a query or a fragment"),
        ("https://api.example/{path}", "has a slash before {path}"),
        ("https://api.example:{path}", "has no host, or no valid port"),
        ('https://api.example/"<x>', "must be written as %XX"),
        ("https://api.example/\u00e4", "must be written as %XX"),
        ("ftp://user:secret@h/", "contains a user"),
        ("https://user:secret@h /x", "contains a user"),
        ("https://alice:secret@api.example/", "contains a user"),
        ("https://alice:secret@api.example/?a", "contains a user"),
        ("https://api.example/{path}/orders", "has braces other than {path} at its end"),
        ("https://api.example/{pth}", "has braces other than {path} at its end"),
        ("https://{path}", "has no host, or no valid port"),
        ("https://api.example:0/", "has no host, or no valid port"),
        ("https://api example/", "is not an http or https URL"),
        ("https://a,b/", "names an invalid host"),
        (f"https://api.example/{'a' * 5000}", "has 5,020 characters"),
    ],
)
def test_a_public_url_has_a_scheme_a_host_and_a_path_and_nothing_else(url: object, what: str) -> None:
    refused(lambda: DestinationHTTP(public_url=url), what)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError) as caught:
        DestinationHTTP(public_url=url)  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("path", ["", "/", "/orders", "/a/b.svc", "{path}", "/soap{path}"])
def test_a_public_url_may_have_a_port_and_a_path(path: str) -> None:
    for url in (f"https://api.example{path}", f"http://[2001:db8::1]:8443{path}"):
        assert DestinationHTTP(public_url=url).public_url == url
