"""Contents in temporary files: every place can be read, by several readers, and nothing is left of them.

Covers endpoint/envelopes/temporary_content.py.
"""

from __future__ import annotations

import io
import os
from errno import ENOSPC

import pytest

from holdfast.endpoint.envelopes.temporary_content import TemporaryContent
from holdfast.store import contents

DATA = bytes(range(256)) * 3000


@pytest.fixture
def content(tmp_path, monkeypatch) -> TemporaryContent:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = TemporaryContent()
    for start in range(0, len(DATA), 100_000):
        made.write(DATA[start : start + 100_000])
    made.finish()
    return made


def test_several_readers_read_every_place(content, tmp_path):
    with content.hold.open() as one, content.open() as other:
        assert one.read() == DATA
        for place in (0, 255, 262_143, 262_145, len(DATA) - 3):
            other.seek(place)
            assert other.read(3) == DATA[place : place + 3]
        assert other.seek(-5, io.SEEK_END) == len(DATA) - 5 and other.read() == DATA[-5:]
    assert content.size == len(DATA)
    assert not list(tmp_path.iterdir())  # the file has no name


def test_a_content_may_be_empty():
    content = TemporaryContent()
    content.finish()
    with content.open() as file:
        assert file.read() == b""


def test_a_disk_without_room_is_left_to_others(monkeypatch):
    disk = os.statvfs("/")
    monkeypatch.setattr(contents, "LEAST_FREE", disk.f_blocks * disk.f_frsize)
    with pytest.raises(OSError, match="No space") as caught:
        TemporaryContent().write(b"x")
    assert caught.value.errno == ENOSPC
