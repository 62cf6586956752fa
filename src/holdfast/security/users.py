"""The users of a server: a file of names and passwords, and the file in which their nonces are remembered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from holdfast.exceptions import ConfigurationError
from holdfast.security.header import MAX_NAME
from holdfast.store.directory import SECURITY, make_private, read_format

MAX_FILE: Final = 16 * 1024 * 1024
"""Maximum bytes of a file of users."""
_MOST_TOLD = 5


class Users(Mapping[str, str]):
    """User names and their passwords, read from a file.

    Each line is ``NAME:PASSWORD``. The password may contain colons and blanks. Empty lines and lines that begin with #
    do not count. No error and no ``repr`` shows a password.

    Raises:
        ConfigurationError: The file cannot be read, names no user, or a line is not valid.
    """

    def __init__(self, file: str | Path) -> None:
        self.file = str(file)
        self._passwords: dict[str, str] = {}
        wrong: list[str] = []
        for number, line in enumerate(self._lines(), 1):
            if line and not line.startswith("#"):
                name, colon, password = line.partition(":")
                what = self._mistake(name, password if colon else None)
                if what:
                    wrong.append(f"line {number} {what}")
                self._passwords[name] = password
        if wrong:
            more = f"; {len(wrong) - _MOST_TOLD} more" if len(wrong) > _MOST_TOLD else ""
            raise ConfigurationError(f"{file}: {'; '.join(wrong[:_MOST_TOLD])}{more}", remedy="Write NAME:PASSWORD.")
        if not self._passwords:
            raise ConfigurationError(f"{file} names no user", remedy="Write a line NAME:PASSWORD for each user.")

    def _lines(self) -> list[str]:
        try:
            with Path(self.file).open("rb") as file:
                content = file.read(MAX_FILE + 1)
            if len(content) > MAX_FILE:  # before it is decoded: the end may be a part of a character
                raise ConfigurationError(f"{self.file} is longer than {MAX_FILE:,} bytes", remedy="Name fewer users.")
            text = content.decode("utf-8-sig")
        except (OSError, ValueError) as error:
            told = getattr(error, "strerror", None) or "it is not UTF-8"
            raise ConfigurationError(
                f"the users cannot be read from {self.file}: {told}", remedy="Write a line NAME:PASSWORD for each user."
            ) from None
        return [line.removesuffix("\r") for line in text.split("\n")]

    def _mistake(self, name: str, password: str | None) -> str:
        """Return what is wrong with a line, without its content, which may be a password."""
        if password is None:
            return "has no colon"
        if not name or name != name.strip() or len(name) > MAX_NAME or not name.isprintable():
            return "does not begin with a name"
        if not password or not password.isprintable():
            return "has no password of printable characters"
        return "repeats a name" if name in self._passwords else ""

    def __getitem__(self, name: str) -> str:
        return self._passwords[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._passwords)

    def __len__(self) -> int:
        return len(self._passwords)

    def __repr__(self) -> str:
        return f"<{len(self)} users in {self.file}>"

    def __reduce__(self) -> Any:
        raise TypeError("passwords cannot be serialized")


def nonces_of(location: object) -> Path | None:
    """Return the file for the nonces of a server, in the directory of its store; None if the store has no directory.

    Raises:
        StoreError: The directory contains something else.
    """
    if not isinstance(location, str | Path) or str(location) == ":memory:" or "://" in str(location):
        return None
    path = Path(location)
    read_format(path)
    with suppress(OSError):  # opening the file fails then, and says why
        make_private(path)
    return path / SECURITY
