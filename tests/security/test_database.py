"""Where validators and sources remember nonces, sessions and tokens: what cannot be opened is told by its setting, and
what does not answer is logged once."""

from __future__ import annotations

import inspect
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from public_callables import public_callables
from saml import AUDIENCE, ISSUER
from signers import Issued, authority, issue

import holdfast
from holdfast.cluster.shared.tables import TablesAway
from holdfast.security import database
from holdfast.security.database import FileDatabase, _ClusterDatabase
from holdfast.security.nonces import FileNonces

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


class Place:
    """A place that a test takes away and gives back: a way to read it, and one to add to it.

    Attributes:
        is_away: Whether it answers nothing that adds.
    """

    is_away = False

    def add(self) -> None: ...

    def read(self) -> None: ...


class Tables(Place):
    """Tables of a cluster that can be read, but not written."""

    is_kept = False

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._db = _ClusterDatabase(self, "tokens")

    def run(self, schema: str, *statements: str, **values: Any) -> list[tuple[Any, ...]]:
        if self.is_away and "SELECT" not in statements[0]:
            raise TablesAway("Broker: Topic authorization failed", "Permit it.")
        return []

    def rest(self) -> None: ...

    def add(self) -> None:
        self._db.run("", "INSERT INTO one VALUES (1)")

    def read(self) -> None:
        self._db.run("", "SELECT * FROM one")


class CancelledTokens(Tables):
    """Requests at such tables that only delete."""

    def add(self) -> None:
        self._db.run("", "DELETE FROM one")


class LockedFile(Place):
    """A file of SQLite that another process locks, which then can only be read."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(database, "_PATIENCE", 0.0)
        self._db = FileDatabase(directory / "file", "tokens")
        self._other = sqlite3.connect(directory / "file", isolation_level=None)
        self._db.run("CREATE TABLE one (two)", "SELECT 1")

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "is_away":
            self._other.execute("BEGIN IMMEDIATE" if value else "COMMIT")
        super().__setattr__(name, value)

    def add(self) -> None:
        self._db.run("CREATE TABLE one (two)", "INSERT INTO one VALUES (1)")

    def read(self) -> None:
        self._db.run("CREATE TABLE one (two)", "SELECT * FROM one")


class FullDisk(Place):
    """A directory of nonces on a disk that is full."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write = os.write

        def write_(file: int, data: bytes) -> int:
            if self.is_away:
                raise OSError("No space left on device")
            return write(file, data)

        monkeypatch.setattr(os, "write", write_)
        self._nonces = FileNonces(directory / "file")
        self._count = 0

    def add(self) -> None:
        self._count += 1
        self._nonces.is_new(60.0, self._count.to_bytes(8, "big"), 600.0, 60.0)

    def read(self) -> None:
        self._nonces.knows(60.0, bytes(8))


@pytest.mark.parametrize("kind", [Tables, CancelledTokens, LockedFile, FullDisk])
def test_a_place_that_does_not_answer_is_logged_once_and_so_is_its_return(
    kind: Callable[..., Place], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although it can still be read: each message does both."""
    told: list[tuple[str, dict[str, Any]]] = []
    for level in ("warning", "info"):
        monkeypatch.setattr(database.log, level, lambda event, **fields: told.append((event, fields)))
    place = kind(tmp_path, monkeypatch)
    for outage in range(1, 3):
        place.read()
        place.add()
        place.is_away = True
        for _ in range(5):
            place.read()
            with pytest.raises(holdfast.MessageFlowError, match="cannot check messages now"):
                place.add()
        assert len(told) == 2 * outage - 1
        place.is_away = False
        place.read()
        place.add()
        assert len(told) == 2 * outage
    names = [name for name, _ in told]
    assert names == ["security.database_away", "security.database_back"] * 2
    setting = "nonces" if kind is FullDisk else "tokens"
    assert all(fields["setting"] == setting and (fields.get("remedy") or "seconds" in fields) for _, fields in told)
    if kind in (Tables, CancelledTokens):
        assert (told[0][1]["why"], told[0][1]["remedy"]) == ("Broker: Topic authorization failed", "Permit it.")
