"""The directory of a cache is emptied in the end, whatever fails meanwhile."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from holdfast.exceptions import StoreError, StoreFormatError
from holdfast.store import directory
from holdfast.store.kafka import cache

IDENTITY = {"cluster": "c", "topic": "t", "topic_id": "i", "partition": "0"}


def filled(place: Path) -> Path:
    engine = place / directory.ENGINE
    place.mkdir(exist_ok=True)
    cache.mark(place, IDENTITY)
    (engine / "links").mkdir(parents=True)
    for file in (engine / "000004.sst", engine / "links" / "000005.sst"):
        file.write_bytes(bytes(500))
    return engine


@pytest.mark.parametrize("name", ["stat", "lstat", "open", "scandir", "unlink", "rmdir"])
def test_a_cache_that_a_disk_did_not_empty_is_emptied_at_the_next_attempt(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original: Any = getattr(os, name)
    for step in count():
        engine, calls = filled(tmp_path / str(step)), count()

        def fails(*arguments: Any, calls: Any = calls, step: int = step, **named: Any) -> Any:
            if next(calls) == step:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return original(*arguments, **named)

        with monkeypatch.context() as patch, suppress(StoreError, OSError):
            patch.setattr(os, name, fails)
            cache.clear_closed(engine.parent, IDENTITY)
        cache.clear_closed(engine.parent, IDENTITY)
        assert not engine.exists()
        if next(calls) <= step:
            assert step, "no such call failed"
            break


def test_a_cache_that_its_last_owner_forgot_is_emptied_and_its_bytes_are_counted(tmp_path: Path) -> None:
    engine = filled(tmp_path)
    cache.forget(tmp_path)
    assert cache.clear_closed(tmp_path, IDENTITY) >= 1000
    assert not engine.exists()
    assert cache.clear_closed(tmp_path, IDENTITY) == cache.clear_closed(tmp_path / "none", IDENTITY) == 0


def test_what_is_not_a_cache_of_the_log_stays(tmp_path: Path) -> None:
    engine = filled(tmp_path)
    with pytest.raises(StoreFormatError, match="belongs to another log"):
        cache.clear_closed(tmp_path, IDENTITY | {"topic_id": "another"})
    cache.forget(tmp_path)
    (tmp_path / "letter.txt").touch()
    with pytest.raises(StoreFormatError, match="not a cache"):
        cache.clear_closed(tmp_path, IDENTITY)
    assert engine.exists()
