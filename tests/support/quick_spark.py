"""How tests start Java, and what starts Spark's Python processes quickly."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

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
# Nor does it pay to compile the plan of a query for a few rows: that is a tenth of all processor time of such tests.
_DEFAULTS = """\
spark.sql.codegen.wholeStage false
spark.sql.codegen.factoryMode NO_CODEGEN
"""


def quick_spark(memory: str = "1g") -> dict[str, str]:
    """Return the environment variables with which a program starts Spark quickly, in a JVM of so much memory.

    In this ``SPARK_HOME``, Spark's Python processes find no ``pyspark.zip``, so that they import the installed package.
    The archive has no bytecode: each process would compile the sources again, 0.6 seconds of processor time of it. Each
    streaming query starts one such process, and each session about six.
    """
    return {"JAVA_TOOL_OPTIONS": f"{QUICK_JAVA} -Xmx{memory}", "SPARK_HOME": _home().name}


@cache
def _home() -> TemporaryDirectory[str]:
    """Kept until this process ends."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None and found.origin is not None
    home = TemporaryDirectory(prefix="holdfast-spark-home-")
    for name in ("bin", "jars"):
        Path(home.name, name).symlink_to(Path(found.origin).parent / name)
    Path(home.name, "conf").mkdir()
    Path(home.name, "conf", "spark-defaults.conf").write_text(_DEFAULTS)
    return home
