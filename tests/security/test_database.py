"""Where validators and sources remember nonces, sessions and tokens: what cannot be opened is told by its setting."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from public_callables import public_callables
from saml import AUDIENCE, ISSUER
from signers import Issued, authority, issue

import holdfast

SETTINGS = ("nonces", "tokens")


def users(directory: Path, **options: Any) -> Any:
    return holdfast.UsernameTokenValidator({"alice": "secret"}, **options)


def saml(directory: Path, **options: Any) -> Any:
    certificate = authority().files(directory).certificate
    return holdfast.SamlTokenValidator({ISSUER: certificate}, audience=AUDIENCE, **options)


def x509(directory: Path, **options: Any) -> Any:
    shop: Issued = issue("CN=shop")
    return holdfast.X509(*shop.files(directory), trusted=[authority().files(directory).certificate], **options)


def endorsing(directory: Path, **options: Any) -> Any:
    return holdfast.EndorsingCertificates(authority().files(directory).certificate, **options)


def conversation(directory: Path, **options: Any) -> Any:
    return holdfast.SecureConversation("alice", "secret", **options)


MAKERS: dict[tuple[str, str], Callable[..., Any]] = {
    ("UsernameTokenValidator", "nonces"): users,
    ("SamlTokenValidator", "nonces"): saml,
    ("X509", "nonces"): x509,
    ("EndorsingCertificates", "nonces"): endorsing,
    ("SecureConversation", "tokens"): conversation,
}


def test_every_class_with_such_a_setting_is_here() -> None:
    classes = filter(inspect.isclass, public_callables())
    found = {(one.__name__, name) for one in classes for name in SETTINGS if name in inspect.signature(one).parameters}
    assert found == set(MAKERS)


@pytest.mark.parametrize(("which", "make"), MAKERS.items(), ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("place", ["absent/file", 5, b"file", "mysql://db/", "kafka://"])
def test_a_place_that_cannot_be_opened_is_told_by_the_name_of_its_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: tuple[str, str], make: Callable[..., Any], place: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(holdfast.ConfigurationError) as caught:
        make(tmp_path, **{which[1]: place})
    told, other = str(caught.value), next(name for name in SETTINGS if name != which[1])
    assert other not in told and "\n  " in told
    if "://" not in str(place):  # a URL names itself
        assert which[1] in told
