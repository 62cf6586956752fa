"""Directories that are there whole or not at all, and once, however many make them and wherever they die."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.landing.publication import ATTEMPTS, publish
from holdfast.pipeline.spark import files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Killed(BaseException):
    """Nothing that is written for errors runs, as after kill -9."""


def writes(text: str, then: Callable[[], object] = lambda: None) -> Callable[[str], bool]:
    def write(place: str) -> bool:
        Path(place).mkdir(parents=True)
        Path(place, "rows").write_text(text)
        return then() is not False

    return write


def there(out: Path) -> dict[str, str]:
    return {path.name: (path / "rows").read_text() for path in out.iterdir() if path.name != ATTEMPTS}


def attempts(out: Path) -> int:
    return len(list((out / ATTEMPTS).iterdir()))


def test_of_two_who_make_a_directory_at_a_time_the_first_to_end_has_it(spark: SparkSession, tmp_path: Path) -> None:
    def other() -> None:
        assert publish(spark, str(tmp_path), "batch=7", writes("the other's"))

    assert not publish(spark, str(tmp_path), "batch=7", writes("the one's", other))
    assert there(tmp_path) == {"batch=7": "the other's"}
    assert attempts(tmp_path) == 0
    assert not publish(spark, str(tmp_path), "batch=7", writes("a third's"))
    assert there(tmp_path) == {"batch=7": "the other's"}


def test_of_many_threads_one_is_told_that_the_directory_is_its_own(spark: SparkSession, tmp_path: Path) -> None:
    for name in range(5):
        line = threading.Barrier(4)
        told: dict[str, bool] = {}

        def run(text: str, name: int = name, line: threading.Barrier = line, told: dict[str, bool] = told) -> None:
            told[text] = publish(spark, str(tmp_path), f"batch={name}", writes(text, line.wait))

        threads = [threading.Thread(target=run, args=(f"{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (first,) = (text for text, is_first in told.items() if is_first)
        assert len(told) == 4
        assert there(tmp_path)[f"batch={name}"] == first
    assert attempts(tmp_path) == 0


def test_a_kill_before_the_rename_leaves_nothing_visible_and_the_next_sweeps(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise Killed

    with pytest.raises(Killed):
        publish(spark, str(tmp_path), "batch=1", writes("half", killed))
    with pytest.raises(Killed):
        publish(spark, str(tmp_path), "batch=1", writes("whole", killed))
    with monkeypatch.context() as patch:
        patch.setattr(files, "rename_unless_there", killed)
        with pytest.raises(Killed):
            publish(spark, str(tmp_path), "batch=1", writes("whole"))
    assert (there(tmp_path), attempts(tmp_path)) == ({}, 3)
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.pipeline.landing.publication._sweep", killed)
        with pytest.raises(Killed):
            publish(spark, str(tmp_path), "batch=1", writes("it"))
    assert (there(tmp_path), attempts(tmp_path)) == ({"batch=1": "it"}, 3)
    assert publish(spark, str(tmp_path), "batch=2", writes("more"))
    assert (there(tmp_path), attempts(tmp_path)) == ({"batch=1": "it", "batch=2": "more"}, 0)


def test_what_fails_and_what_is_withdrawn_leaves_no_file(spark: SparkSession, tmp_path: Path) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left"):
        publish(spark, str(tmp_path), "batch=1", writes("half", full))
    assert publish(spark, str(tmp_path), "batch=1", writes("nothing", lambda: False))
    assert (there(tmp_path), attempts(tmp_path)) == ({}, 0)


def test_a_writer_with_an_attempt_deleted_as_a_remainder_learns_it_was_not_first(
    spark: SparkSession, tmp_path: Path
) -> None:
    def other() -> None:
        assert publish(spark, str(tmp_path), "batch=7", writes("the other's"))
        raise OSError("what was written is gone")

    assert not publish(spark, str(tmp_path), "batch=7", writes("the one's", other))
    assert there(tmp_path) == {"batch=7": "the other's"}


def test_no_reader_of_parquet_sees_an_attempt(spark: SparkSession, tmp_path: Path) -> None:
    seen: list[int] = []

    def write(place: str) -> bool:
        spark.range(5).write.parquet(place)
        seen.append(spark.read.parquet(str(tmp_path)).count() if there_is_one else 0)
        return True

    for there_is_one in (False, True):
        assert publish(spark, str(tmp_path), f"batch={int(there_is_one)}", write)
    assert seen == [0, 5]
    assert spark.read.parquet(str(tmp_path)).count() == 10


def test_hadoop_renames_as_the_local_file_system_does(spark: SparkSession, tmp_path: Path) -> None:
    """As it does on HDFS, for which there is no server here: at once there, after a look on a local one."""
    for number in range(2):
        writes(str(number))(str(tmp_path / f"from{number}"))
        source, target = (files._at(spark, str(tmp_path / name))[1] for name in (f"from{number}", "to"))
        assert files._renamed_by_hadoop(spark, source, target) == (number == 0)
    assert there(tmp_path) == {"to": "0", "from1": "1"}
    assert files.renames_at_once(spark, str(tmp_path))


def test_where_directories_cannot_be_renamed_at_once_they_are_written_in_their_place(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "renames_at_once", lambda *_: False)
    assert publish(spark, str(tmp_path), "batch=1", writes("it"))

    assert publish(spark, str(tmp_path), "batch=2", writes("nothing", lambda: False))
    assert there(tmp_path) == {"batch=1": "it"}
    assert not (tmp_path / ATTEMPTS).exists()


def test_an_unwritable_directory_is_reported_with_the_reason(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigurationError, match="cannot be written") as caught:
            files.check_writable(spark, str(place))
        assert "may write" in caught.value.remedy
    files.check_writable(spark, str(tmp_path / "new" / "deeper"))
    assert list((tmp_path / "new" / "deeper").iterdir()) == []
