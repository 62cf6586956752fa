"""Small files of a checkpoint: there whole, or not at all.

Covers pipeline/mediation/execution/settled.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.pipeline.mediation.execution.settled import Settled
from holdfast.pipeline.spark import files
from holdfast.pipeline.spark.checkpoints import reader_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Killed(Exception):
    pass


def settle(spark: SparkSession, place: str) -> object:
    settled = Settled(spark, place, 3)
    return settled.counts() or settled.settle(
        {"": 2}, {"sink-a": spark.range(2), "none": spark.range(2).where("false")}
    )


def reader(spark: SparkSession, place: str) -> object:
    return reader_of(spark, place)


@pytest.mark.parametrize("write", [settle, reader])
def test_a_kill_while_writing_a_checkpoint_file_leaves_no_seemingly_whole_file(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[SparkSession, str], object],
) -> None:
    real = files.write_text

    def killed(session: SparkSession, file: str, text: str) -> None:
        real(session, file, text[: len(text) // 2])
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_text", killed)
        with pytest.raises(Killed):
            write(spark, str(tmp_path))
    whole = write(spark, str(tmp_path))
    assert whole == write(spark, str(tmp_path))
    assert whole == {"": 2, "sink-a": 2, "none": 0} or (isinstance(whole, str) and len(whole) == len("land-") + 12)
