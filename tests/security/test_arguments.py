"""Every argument of every class of message security: wrong values are refused when they are given.

A value that is refused only in operation stops a service at its first message, or opens it.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from signers import issue

import holdfast
from holdfast import ConfigurationError
from holdfast.security.header import strictly
from holdfast.settings import check_texts

CERTIFICATE, PEER = issue("CN=shop,O=Example"), issue("CN=peer,O=Example")


async def asynchronous(*_: Any) -> bool:
    return False


async def streaming(*_: Any) -> AsyncIterator[bool]:
    yield False


class Asynchronous:
    async def __call__(self, *_: Any) -> bool:
        return False


FUNCTIONS = [5, "check", asynchronous, streaming, Asynchronous(), functools.partial(asynchronous, 1)]
FUNCTIONS += [functools.partial(Asynchronous(), 1), functools.partial(functools.partial(asynchronous))]
TEXTS = [None, 5, b"x", "", "a\0b", "\ud800"]
SPANS: list[object] = [None, 0, -1, math.nan, math.inf, "5m", True]
SPANS_OR_ZERO = [one for one in SPANS if one != 0 or one is False]
FILES: list[object] = [5, b"x", True, ["a.pem"], {"a": "b"}, object()]
WORDS = ["Basic128", "", None, 5, True, ["aes256-gcm"]]
SWITCHES = [None, "yes", "no", 1, 0]
WRONG: dict[str, list[Any]] = {
    "name": TEXTS,
    "password": [one for one in TEXTS if one != ""],
    "passwords": [5, "users.txt", ["alice"], {"alice": None}, {"alice": 5}, {b"alice": "x"}, *FUNCTIONS[2:]],
    "authenticate": FUNCTIONS,
    "authorize": FUNCTIONS,
    "clock": [None, *FUNCTIONS, lambda needed: needed],
    "assertion": [None, 5, "", ".", "<a/>", " \n<a/>", b"<a/>", *FUNCTIONS[2:], lambda needed: needed],
    "session": SPANS,
    "longest": SPANS,
    "remember": SPANS_OR_ZERO,
    "digest": SWITCHES,
    "timestamp": SWITCHES,
    "require_digest": SWITCHES,
    "require_timestamp": SWITCHES,
    "derived_keys": SWITCHES,
    "conversation": SWITCHES,
    "confirm": SWITCHES,
    "signed": SWITCHES,
    "certificate": FILES,
    "key": [None, *FILES],
    "own_certificate": [None, *FILES],
    "own_key": [None, *FILES],
    "trusted": [None, [], [3], *(one for one in FILES if not isinstance(one, list))],
    "attesters": FILES,
    "nonces": FILES,
    "tokens": FILES,
    "suite": WORDS,
    "cipher": WORDS,
    "reference": WORDS,
    "version": ["1.2", "", 5, True],
    "subjects": ["CN=shop", [], [5], 5, b"CN=shop"],
    "addresses": ["", [], [5], 5, b"x"],
    "audience": ["", [], [5], 5, b"x"],
    "confirmations": [None, [], "bearer", ["sender"], [5], 5],
    "issuers": [None, {}, "idp.pem", ["idp.pem"], {"i": ["a.pem"]}, {5: "a.pem"}],
    "users": [None, {"alice": "secret"}, "users.txt", 5],
    "freshness": [None, 5.0, (300.0, 60.0), holdfast.Freshness, {}],
    "encrypt": [True, "aes256-cbc", holdfast.Encryption, {}],
}


def wrongs() -> list[Any]:
    classes: list[type] = [holdfast.UsernameToken, holdfast.UsernameTokenValidator, holdfast.SecureConversation]
    classes += [holdfast.SamlToken, holdfast.SamlTokenValidator, holdfast.Timestamp, holdfast.X509]
    classes += [holdfast.SymmetricBinding, holdfast.SymmetricBindingValidator]
    classes += [holdfast.EndorsedSymmetricBinding, holdfast.EndorsingCertificates]
    return [
        pytest.param(cls, name, wrong, id=f"{cls.__name__}-{name}-{number}")
        for cls in classes
        for name in inspect.signature(cls).parameters
        for number, wrong in enumerate(WRONG[name])
    ]


def valid(cls: type, directory: Path) -> dict[str, Any]:
    """Arguments with which a class can be made."""
    files = CERTIFICATE.files(directory)
    found: dict[str, Any] = {"name": "alice", "password": "secret", "certificate": files.certificate, "key": files.key}
    found |= {"own_certificate": files.certificate, "own_key": files.key}
    found |= {"trusted": PEER.files(directory).certificate, "issuers": {"i": files.certificate}, "audience": "urn:shop"}
    found |= {"assertion": "assertion.xml", "users": holdfast.UsernameTokenValidator({"alice": "secret"})}
    if cls is holdfast.UsernameTokenValidator:
        found["passwords"] = {"alice": "secret"}
    return {name: found[name] for name in inspect.signature(cls).parameters if name in found}


@pytest.mark.parametrize(("cls", "name", "wrong"), wrongs())
def test_a_wrong_argument_is_refused_when_it_is_given(cls: type, name: str, wrong: object, tmp_path: Path) -> None:
    arguments = valid(cls, tmp_path)
    cls(**arguments)
    if name == "authenticate":
        del arguments["passwords"]
    with pytest.raises(ConfigurationError) as caught:
        cls(**arguments | {name: wrong})
    assert caught.value.remedy
    assert "<a/>" not in str(caught.value), "an assertion is a secret"


@pytest.mark.parametrize("given", [1, "yes", object(), [True], asynchronous()], ids=lambda one: type(one).__name__)
def test_a_decision_that_is_no_bool_refuses_access(given: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert strictly("authorize", lambda _: given, bool, False)(None) is False
    assert "security.wrong_result" in caplog.text


@pytest.mark.parametrize("given", [5, b"secret", True, asynchronous()], ids=lambda one: type(one).__name__)
def test_a_password_that_is_no_text_is_that_of_an_unknown_user(given: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert strictly("passwords", lambda _: given, str, None)("alice") is None
    assert "security.wrong_result" in caplog.text


def test_what_is_decided_in_the_right_way_counts() -> None:
    decide: Callable[[object], bool] = strictly("authorize", bool, bool, False)
    assert (decide(1), decide(0)) == (True, False)
    look_up = strictly("passwords", {"alice": "secret"}.get, str, None)
    assert (look_up("alice"), look_up("bob")) == ("secret", None)


@pytest.mark.parametrize("wrong", ["https://shop.example/", b"x", 5, None, [5], {"a": "b"}, ["a", b"b"]], ids=repr)
def test_what_is_no_collection_of_texts_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="allow_imports cannot be") as caught:
        check_texts("allow_imports", wrong)
    assert caught.value.remedy
    assert check_texts("allow_imports", iter(["a", "b"])) == ("a", "b")


SENDING = ("UsernameToken", "SecureConversation", "SamlToken", "SymmetricBinding", "EndorsedSymmetricBinding")
CHECKING = ("UsernameTokenValidator", "SamlTokenValidator", "SymmetricBindingValidator")


@pytest.mark.parametrize("name", [*SENDING, *CHECKING])
def test_a_processor_of_the_other_endpoint_is_refused(name: str, tmp_path: Path) -> None:
    """It would leave a destination open to everyone, or do nothing at a source."""
    cls = getattr(holdfast, name)
    processors = [cls(**valid(cls, tmp_path))]
    to_source = functools.partial(holdfast.Source, "http://127.0.0.1/", ":memory:")
    to_destination = functools.partial(holdfast.Destination, ":memory:")
    right, wrong = (to_source, to_destination) if name in SENDING else (to_destination, to_source)
    right(processors=processors)
    with pytest.raises(ConfigurationError, match=f"{name} is not for a (source|destination)") as caught:
        wrong(processors=processors)
    assert processors[0].counterpart in caught.value.remedy
    assert getattr(holdfast, processors[0].counterpart).roles != cls.roles


@pytest.mark.parametrize("second", [*CHECKING, "X509"])
@pytest.mark.parametrize("first", [*CHECKING, "X509"])
def test_a_destination_checks_one_security_header(first: str, second: str, tmp_path: Path) -> None:
    """The first would remove it, and the second would refuse every message."""
    processors = [cls(**valid(cls, tmp_path)) for cls in (getattr(holdfast, first), getattr(holdfast, second))]
    with pytest.raises(
        ConfigurationError, match=f"{first} and {second}, and each checks the header Security"
    ) as caught:
        holdfast.Destination(":memory:", processors=processors)
    assert "a destination of their own" in caught.value.remedy
    holdfast.Destination(":memory:", processors=processors[:1])


@pytest.mark.parametrize("second", [*SENDING, "X509"])
@pytest.mark.parametrize("first", [*SENDING, "X509"])
def test_a_source_writes_one_security_header(first: str, second: str, tmp_path: Path) -> None:
    both = [getattr(holdfast, name) for name in (first, second)]
    processors = [cls(**valid(cls, tmp_path)) for cls in both]
    with pytest.raises(ConfigurationError, match=f"{first} and {second}, and each writes the header Security"):
        holdfast.Source("http://127.0.0.1/", ":memory:", processors=processors)
    holdfast.Source("http://127.0.0.1/", ":memory:", processors=processors[:1])
    with pytest.raises(ConfigurationError, match="each writes the header Security"):
        holdfast.Source("http://127.0.0.1/", ":memory:", processors=[processors[0], processors[0]])


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o600])
def test_a_file_with_keys_is_private_even_if_it_existed(mode: int, tmp_path: Path) -> None:
    for make, name in (
        (lambda path: holdfast.SecureConversation("alice", "secret", tokens=path), "tokens.db"),
        (lambda path: holdfast.UsernameTokenValidator({"alice": "secret"}, nonces=path), "nonces.db"),
    ):
        path = tmp_path / name
        path.touch()
        path.chmod(mode)
        make(path)
        assert {one.stat().st_mode & 0o777 for one in tmp_path.glob(f"{name}*") if one.is_file()} == {0o600}
