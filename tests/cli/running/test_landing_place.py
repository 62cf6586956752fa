"""Where received messages are put: whole or not at all, each once however often it is handed over."""

from __future__ import annotations

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast import Attachment, ConfigurationError, Message
from holdfast.cli.running.landing_place import Directory, Lines


def message(number: int, sequence: str = "urn:uuid:1234", body: bytes = b"<a>\xc3\xa9</a>") -> Message:
    return Message("urn:a", body, sequence, number, f"urn:m:{number}", None, None, None, "1.2", b"", 12.5, 12.5)


def test_a_directory_gets_a_file_for_each_body_and_keeps_nothing_half_written(tmp_path: Path) -> None:
    place = Directory(tmp_path / "deep" / "landed")
    place.take(message(1))
    place.take(message(2, "http://example/x y"))
    place.take(message(1))
    place.close()
    names = sorted(path.name for path in (tmp_path / "deep" / "landed").iterdir())
    assert names == ["1234-1.xml", "http%3A%2F%2Fexample%2Fx%20y-2.xml"]
    assert (tmp_path / "deep" / "landed" / "1234-1.xml").read_bytes() == b"<a>\xc3\xa9</a>"


def test_new_files_and_directories_have_durable_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync of a file alone may leave it without a name after a power failure."""
    synced: set[tuple[int, int]] = set()
    original = os.fsync

    def fsync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        synced.add((found.st_dev, found.st_ino))
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    Lines(tmp_path / "a" / "b" / "got.jsonl").close()
    Directory(tmp_path / "c" / "d").close()
    for name in (".", "a", "a/b", "c"):
        found = (tmp_path / name).stat()
        assert (found.st_dev, found.st_ino) in synced, name
    synced.clear()
    Lines(tmp_path / "a" / "b" / "got.jsonl").close()
    assert synced == {((tmp_path / "a" / "b").stat().st_dev, (tmp_path / "a" / "b").stat().st_ino)}


def test_attachments_are_files_before_the_body_or_base64_in_its_line(tmp_path: Path) -> None:
    one = message(1)
    one.attachments = [Attachment(b"a", "text/plain; charset=utf-8"), Attachment(b"\xff", "application/x-none")]
    place = Directory(tmp_path / "landed")
    place.take(one)
    place.close()
    names = sorted(path.name for path in (tmp_path / "landed").iterdir())
    assert names == ["1234-1.1.txt", "1234-1.2.bin", "1234-1.xml"]
    lines = Lines(tmp_path / "got.jsonl")
    lines.take(one)
    lines.close()
    (line,) = (tmp_path / "got.jsonl").read_text().splitlines()
    assert json.loads(line)["attachments"][1] == {
        "content_id": "",
        "media_type": "application/x-none",
        "base64": "/w==",
    }


def test_a_directory_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot write to"):
        Directory(tmp_path / "file")
    with pytest.raises(ConfigurationError, match="cannot write to"):
        Directory(tmp_path / "file" / "below")


def test_a_line_names_the_user_who_sent_the_message(tmp_path: Path) -> None:
    one = message(1)
    one.user = "alice"
    place = Lines(tmp_path / "got.jsonl")
    place.take(one)
    place.close()
    assert json.loads((tmp_path / "got.jsonl").read_text(encoding="utf-8"))["user"] == "alice"


def test_lines_are_json_with_all_that_is_known(tmp_path: Path) -> None:
    place = Lines(tmp_path / "got.jsonl")
    place.take(message(1))
    place.close()
    assert json.loads((tmp_path / "got.jsonl").read_text(encoding="utf-8")) == {
        "sequence": "urn:uuid:1234",
        "message_number": 1,
        "message_id": "urn:m:1",
        "action": "urn:a",
        "received_at": 12.5,
        "body": "<a>é</a>",
    }


def test_an_existing_file_is_read_in_large_pieces(tmp_path: Path) -> None:
    counts = Path("/proc/self/io")
    if not counts.exists():
        pytest.skip("this system does not count reads")

    def reads() -> int:
        return int(next(line for line in counts.read_text().splitlines() if line.startswith("syscr")).split()[1])

    path = tmp_path / "got.jsonl"
    place = Lines(path)
    for number in range(1, 201):
        place.take(message(number))
    place.close()
    before = reads()
    Lines(path).close()
    assert reads() - before < path.stat().st_size / 100


def test_a_repeated_message_is_no_second_line_even_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "got.jsonl"
    place = Lines(path)
    for number in (1, 2, 2, 4):
        place.take(message(number))
    place.close()
    with path.open("ab") as file:
        file.write(b'{"sequence": "urn:uuid:1234", "mess')
    place = Lines(path)
    for number in (1, 2, 3, 4, 5):
        place.take(message(number))
    place.close()
    found = [json.loads(line)["message_number"] for line in path.read_text(encoding="utf-8").splitlines()]
    assert found == [1, 2, 4, 3, 5]


def test_threads_write_whole_lines(tmp_path: Path) -> None:
    place = Lines(tmp_path / "got.jsonl")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: place.take(message(number, body=b"<a>%s</a>" % (b"x" * 5000))), range(1, 101)))
    place.close()
    lines = (tmp_path / "got.jsonl").read_text(encoding="utf-8").splitlines()
    assert sorted(json.loads(line)["message_number"] for line in lines) == list(range(1, 101))


def test_a_disk_that_is_full_leaves_no_half_line_and_the_message_can_be_taken_again(tmp_path: Path) -> None:
    place = Lines(tmp_path / "got.jsonl")
    place.take(message(1))
    file = place._file

    class Full:
        """Writes half of what it is given, then has no room."""

        def __init__(self) -> None:
            self.is_first = True

        def write(self, data: memoryview) -> int:
            if not self.is_first:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.is_first = False
            return file.write(data[: len(data) // 2])

        def truncate(self, size: int) -> int:
            return file.truncate(size)

    place._file = Full()  # type: ignore[assignment]
    with pytest.raises(OSError, match="No space left"):
        place.take(message(2))
    place._file = file
    place.take(message(2))
    place.close()
    lines = (tmp_path / "got.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["message_number"] for line in lines] == [1, 2]


@pytest.mark.parametrize("content", ["not json\n", "[]\n", '{"sequence": "s"}\n'])
def test_a_file_that_holds_something_else_is_refused_and_left_as_it_is(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match="line 1"):
        Lines(path)
    assert path.read_text() == content
