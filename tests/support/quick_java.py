"""How tests start Java."""

from __future__ import annotations

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
