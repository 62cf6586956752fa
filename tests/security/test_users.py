"""Files of users: each line that is wrong is named, no password is shown; and where a server keeps its nonces."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from holdfast import ConfigurationError, StoreError
from holdfast.security.users import MAX_FILE, Users, nonces_of

SECRET = "geheimnis-7261"


def test_names_and_passwords_are_read_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "users").write_bytes("\ufeff# who may send\n\nalice:a: b \r\nBjörk:pä:ss\n".encode())
    users = Users(tmp_path / "users")
    assert dict(users) == {"alice": "a: b ", "Björk": "pä:ss"}
    assert users.get("eve") is None
    assert repr(users) == f"<2 users in {tmp_path / 'users'}>"
    with pytest.raises(TypeError):
        pickle.dumps(users)


def test_two_files_with_the_same_users_are_equal(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text("alice:secret\n")
    (tmp_path / "three").write_text("alice:other\n")
    one, two, three = (Users(tmp_path / name) for name in ("one", "two", "three"))
    assert one == two
    assert one != three


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "names no user"),
        (b"# nobody\n\n", "names no user"),
        (f"{SECRET}\n".encode(), "line 1 has no colon"),
        (f":{SECRET}\n".encode(), "line 1 does not begin with a name"),
        (f" alice:{SECRET}\n".encode(), "line 1 does not begin with a name"),
        (f"{'a' * 1025}:{SECRET}\n".encode(), "line 1 does not begin with a name"),
        (b"alice:\n", "line 1 has no password"),
        (f"alice:{SECRET}\0\n".encode(), "line 1 has no password of printable characters"),
        (f"alice:{SECRET}\nbob\nalice:{SECRET}\n".encode(), "line 2 has no colon; line 3 repeats a name"),
        (b"\n".join([SECRET.encode()] * 9), "line 5 has no colon; 4 more"),
        (b"\xff:x\n", "it is not UTF-8"),
        (b"a:" + b"b" * MAX_FILE, "is longer than"),
        (b"a:" + b"b" * (MAX_FILE - 2) + "é".encode(), "is longer than"),
    ],
)
def test_what_is_wrong_is_told_by_its_line_and_without_its_content(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "users").write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        Users(tmp_path / "users")
    assert told in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_file_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        Users(tmp_path / "none")


def test_nonces_are_kept_in_the_directory_of_the_store(tmp_path: Path) -> None:
    assert nonces_of(tmp_path / "store") == tmp_path / "store" / "security.db"
    assert (tmp_path / "store").stat().st_mode & 0o077 == 0
    assert nonces_of(":memory:") is None
    assert nonces_of("postgresql://user@host/name") is None
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpeg").write_bytes(b"")
    with pytest.raises(StoreError, match="is not a store of Holdfast"):
        nonces_of(tmp_path / "photos")
    assert [one.name for one in (tmp_path / "photos").iterdir()] == ["cat.jpeg"]
