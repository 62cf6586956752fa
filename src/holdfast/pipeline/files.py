"""Small files on any file system Spark knows, through its JVM: a checkpoint may lie anywhere. Classic sessions only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.exceptions import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def names(spark: SparkSession, directory: str) -> list[str]:
    """The names in a directory, sorted; none if it is not there."""
    system, path = _at(spark, directory)
    return sorted(status.getPath().getName() for status in system.listStatus(path)) if system.exists(path) else []


def read_text(spark: SparkSession, file: str) -> str:
    """A file's content."""
    system, path = _at(spark, file)
    stream = system.open(path)
    try:
        return str(spark._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def write_text(spark: SparkSession, file: str, text: str) -> None:
    """Make a file, and the directories it lies in; one that is there is replaced."""
    system, path = _at(spark, file)
    stream = system.create(path, True)
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()


def delete(spark: SparkSession, place: str) -> None:
    """Delete a file, or a directory with all that is in it, if it is there."""
    system, path = _at(spark, place)
    system.delete(path, True)


def same(spark: SparkSession, one: str, other: str) -> bool:
    """Whether two names are of one place."""
    qualified = [system.makeQualified(path) for system, path in (_at(spark, one), _at(spark, other))]
    return bool(qualified[0].equals(qualified[1]))


def _at(spark: SparkSession, place: str) -> tuple[Any, Any]:
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        raise ConfigurationError(
            "landing needs a classic Spark session, not a Spark Connect one",
            remedy="run the job on the driver's side, for example with holdfast.pipeline.session()",
        )
    path = jvm.org.apache.hadoop.fs.Path(place)
    return path.getFileSystem(spark._jsc.hadoopConfiguration()), path
