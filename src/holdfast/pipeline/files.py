"""Small files on any file system Spark knows, through its JVM: a checkpoint may lie anywhere. Classic sessions only."""

from __future__ import annotations

import secrets
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


def publish_text(spark: SparkSession, file: str, text: str) -> None:
    """Make a file that nobody sees before all of its text is there; one of this name is replaced or has the same."""
    system, path = _at(spark, file)
    hidden = f"{path.getParent()}/.{path.getName()}.{secrets.token_hex(4)}"
    write_text(spark, hidden, text)
    if not system.rename(_at(spark, hidden)[1], path):
        delete(spark, hidden)


def size(spark: SparkSession, place: str) -> int:
    """Bytes of a file, or of all files below a directory."""
    system, path = _at(spark, place)
    return int(system.getContentSummary(path).getLength())


def modified(spark: SparkSession, file: str) -> float:
    """When a file was written, in seconds since 1970 by its system's clock."""
    system, path = _at(spark, file)
    return float(system.getFileStatus(path).getModificationTime() / 1000)


def delete(spark: SparkSession, place: str) -> None:
    """Delete a file, or a directory with all that is in it, if it is there."""
    system, path = _at(spark, place)
    system.delete(path, True)


def qualified(spark: SparkSession, place: str) -> str:
    """A place's whole name: ``file:/tmp/x`` of ``x``."""
    system, path = _at(spark, place)
    return str(system.makeQualified(path).toUri().toString())


def same(spark: SparkSession, one: str, other: str) -> bool:
    """Whether two names are of one place."""
    qualified = [system.makeQualified(path) for system, path in (_at(spark, one), _at(spark, other))]
    return bool(qualified[0].equals(qualified[1]))


def _at(spark: SparkSession, place: str) -> tuple[Any, Any]:
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        raise ConfigurationError(
            "files can be handled in a classic Spark session, not in a Spark Connect one",
            remedy="run the job on the driver's side, for example with holdfast.pipeline.session()",
        )
    path = jvm.org.apache.hadoop.fs.Path(place)
    return path.getFileSystem(spark._jsc.hadoopConfiguration()), path
