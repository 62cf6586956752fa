"""How tests start Java, and what starts Spark's Python processes quickly."""

from __future__ import annotations

import importlib.util
from pathlib import Path

# Tests are too short for the second compiler and for parallel collectors to pay. Nor do the classes of Spark and of the
# peers need to be verified again in each process: that is a tenth of the processor time of a session of Spark.
FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:-BytecodeVerificationRemote",
)
QUICK_JAVA = " ".join(FLAGS)
"""For ``JAVA_TOOL_OPTIONS``."""


def spark_home_without_sources(directory: Path) -> Path:
    """Return a ``SPARK_HOME`` in which Spark's Python processes find no ``pyspark.zip``, so that they import the
    installed package.

    The archive has no bytecode: each process would compile the sources again, 0.6 seconds of processor time of it. Each
    streaming query starts one such process, and each session about six.
    """
    found = importlib.util.find_spec("pyspark")
    assert found is not None and found.origin is not None
    home = directory / "spark-home"
    home.mkdir()
    for name in ("bin", "jars"):
        (home / name).symlink_to(Path(found.origin).parent / name)
    return home
