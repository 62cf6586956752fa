"""Small files on any file system that Spark supports, through its JVM, because a checkpoint may be anywhere.

Classic sessions only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from holdfast.exceptions import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RENAME_KEEPS_OTHERS_OUT = ("file", "hdfs")
"""File systems that rename a directory in one step, so that only one of two writers succeeds; object stores do not."""

_WITH_SYSTEM = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def names_system(path: str) -> bool:
    """Return whether a path names its file system, as ``file:/tmp/x`` and ``s3://bucket/x`` do: only Spark can look."""
    return _WITH_SYSTEM.match(path) is not None


def names(spark: SparkSession, directory: str) -> list[str]:
    """Return the names in a directory, sorted; empty if it does not exist."""
    from py4j.protocol import Py4JJavaError

    system, path = _at(spark, directory)
    try:
        found = system.listStatus(path)
    except Py4JJavaError:
        if system.exists(path):
            raise
        return []
    return sorted(status.getPath().getName() for status in found)


def read_text(spark: SparkSession, file: str) -> str:
    """Return a file's content.

    Raises:
        FileNotFoundError: It does not exist, or no longer.
    """
    from py4j.protocol import Py4JJavaError

    system, path = _at(spark, file)
    try:
        stream = system.open(path)
    except Py4JJavaError as error:
        if system.exists(path):
            raise
        raise FileNotFoundError(f"{file} does not exist") from error
    try:
        return str(spark._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def write_text(spark: SparkSession, file: str, text: str) -> None:
    """Write a file, and create its directories; an existing file is replaced.

    Raises:
        ConfigurationError: It cannot be written; with the file system's reason.
    """
    system, path = _at(spark, file)
    with _written(file):
        stream = system.create(path, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()


def publish_text(spark: SparkSession, file: str, text: str) -> None:
    """Write a file that appears only with all of its text; an existing file is replaced, or has the same text."""
    system, path = _at(spark, file)
    hidden = f"{path.getParent()}/.{path.getName()}.{secrets.token_hex(4)}"
    write_text(spark, hidden, text)
    if not system.rename(_at(spark, hidden)[1], path):
        delete(spark, hidden)


def check_writable(spark: SparkSession, directory: str) -> None:
    """Check that a directory is writable; create it if it does not exist.

    Raises:
        ConfigurationError: It is not; with the file system's reason.
    """
    probe = f"{directory}/_{secrets.token_hex(6)}"
    write_text(spark, probe, "")
    delete(spark, probe)


def renames_at_once(spark: SparkSession, place: str) -> bool:
    """Whether ``rename_unless_there`` is atomic there."""
    return _at(spark, place)[0].getUri().getScheme() in _RENAME_KEEPS_OTHERS_OUT


def rename_unless_there(spark: SparkSession, directory: str, name: str) -> bool:
    """Rename a directory in one step, unless the new name exists; return whether it was renamed.

    Raises:
        ConfigurationError: The directory is gone, or may not be renamed.
    """
    system, path = _at(spark, name)
    source = _at(spark, directory)[1]
    with _written(name):
        if system.getUri().getScheme() != "file":
            return _renamed_by_hadoop(spark, source, path)
        try:  # Hadoop checks before it renames, and copies into a directory that was created in between
            os.rename(source.toUri().getPath(), path.toUri().getPath())
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            return False
    return True


def _renamed_by_hadoop(spark: SparkSession, source: Any, path: Any) -> bool:
    from py4j.protocol import Py4JJavaError

    gateway, jvm = spark.sparkContext._gateway, spark._jvm
    assert gateway is not None
    hadoop = jvm.org.apache.hadoop.fs
    how = gateway.new_array(hadoop.Options.Rename, 1)
    how[0] = hadoop.Options.Rename.NONE
    try:
        context = hadoop.FileContext.getFileContext(path.toUri(), spark._jsc.hadoopConfiguration())
        context.rename(source, path, how)
    except Py4JJavaError as error:
        if error.java_exception.getClass().getSimpleName() != "FileAlreadyExistsException":
            raise
        return False
    return True


@contextlib.contextmanager
def _written(place: str) -> Iterator[None]:
    """Translate a file system's error into one sentence."""
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except (Py4JJavaError, OSError) as error:
        why = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
        raise ConfigurationError(
            f"{place} cannot be written: {why.splitlines()[0]}",
            remedy="Name a place that this user may write to and that has room; then start again",
        ) from error


def size(spark: SparkSession, place: str) -> int:
    """Bytes of a file, or of all files below a directory."""
    system, path = _at(spark, place)
    return int(system.getContentSummary(path).getLength())


def delete(spark: SparkSession, place: str) -> None:
    """Delete a file, or a directory with its content, if it exists."""
    system, path = _at(spark, place)
    system.delete(path, True)


def qualified(spark: SparkSession, place: str) -> str:
    """Return a place's full name: ``file:/tmp/x`` for ``x``."""
    system, path = _at(spark, place)
    return str(system.makeQualified(path).toUri().toString())


def same(spark: SparkSession, one: str, other: str) -> bool:
    """Whether two names refer to the same place."""
    qualified = [system.makeQualified(path) for system, path in (_at(spark, one), _at(spark, other))]
    return bool(qualified[0].equals(qualified[1]))


def contains(spark: SparkSession, one: str, other: str) -> bool:
    """Whether the second place is the first one, or below it. Links in a local file system are followed."""
    outer, inner = (_resolved(qualified(spark, place)) for place in (one, other))
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")


def _resolved(place: str) -> str:
    return f"file:{os.path.realpath(unquote(place.removeprefix('file:')))}" if place.startswith("file:") else place


def _at(spark: SparkSession, place: str) -> tuple[Any, Any]:
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        raise ConfigurationError(
            "files need a classic Spark session, not a Spark Connect session",
            remedy="Run the job in the driver's process, for example with holdfast.pipeline.session()",
        )
    path = jvm.org.apache.hadoop.fs.Path(place)
    return path.getFileSystem(spark._jsc.hadoopConfiguration()), path
