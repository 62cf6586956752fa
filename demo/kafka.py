"""The Kafka of a demo: a private broker for one run, from the jars that the tests use."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demo.processes import DemoFailed

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".pytest_cache" / "d" / "kafka-server"
"""Where the jars are kept that Maven fetches at the first run; the tests keep them there too."""


@contextmanager
def private_kafka(cache: Path) -> Iterator[str]:
    """Run a broker of Kafka in a temporary directory, and yield the URL of a topic for a cluster.

    Args:
        cache: Directory for the caches of the nodes.

    Raises:
        DemoFailed: Java, Maven or Kafka's client is not installed, or Kafka does not start.
    """
    support = str(ROOT / "tests" / "support")
    if support not in sys.path:
        sys.path.append(support)
    import maven_build

    try:
        import kafka_nodes
    except ImportError as error:
        raise DemoFailed(f"{error.name} is not installed", remedy="pip install 'holdfast[kafka]'") from error
    if reason := maven_build.available():
        raise DemoFailed(reason, remedy="Install it, or use --engine postgresql.")
    try:
        nodes = kafka_nodes.KafkaNodes(CACHE)
    except maven_build.Unavailable as error:
        raise DemoFailed(str(error), remedy="Check that Maven reaches its repository.") from error
    with nodes:
        yield f"kafka://{nodes.servers}/orders?replicas=1&cache={cache}/cache-{{node}}"
