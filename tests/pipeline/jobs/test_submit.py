"""spark-submit to a cluster whose machines have no Holdfast, as docs/how-to/spark-submit.md has it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_server import FakeServer, record
from spark_cluster import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.nightly, pytest.mark.timeout(900)]

SPARK = ("pyspark", "py4j", "pyarrow*", "pandas*", "numpy*", "dateutil", "six.py", "tzdata", "pytz")
"""What a cluster's Python has."""
PACKAGES = ("holdfast", "pyspark_holdfast", "msgspec", "lxml", "click")
GUIDE = Path(__file__).parents[3] / "docs" / "how-to" / "spark-submit.md"
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
DELTA = ("deltalake", "arro3", "deprecated", "wrapt")


def place(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec
    if spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0])
    return Path(str(spec.origin))


class BareCluster(Cluster):
    """One whose Python has no Holdfast; ``packages`` is what is sent along."""

    def __init__(self, directory: Path) -> None:
        bare = directory / "bare"
        venv.create(bare, symlinks=True)
        (libraries,) = bare.glob("lib/python3*/site-packages")
        installed = place("numpy").parent
        for found in (path for name in SPARK for path in installed.glob(name)):
            (libraries / found.name).symlink_to(found)
        self.packages = directory / "deps"
        for name in (*PACKAGES, *DELTA):
            shutil.copytree(place(name), self.packages / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(place("typing_extensions"), self.packages)
        shutil.make_archive(str(self.packages), "zip", self.packages)
        python = bare / "bin" / "python"
        super().__init__(directory, HOME=str(directory), PATH=f"{bare}/bin:{os.defpath}", PYSPARK_PYTHON=str(python))

    def submit(self, *arguments: str) -> str:
        """What the program printed."""
        command = [f"{self.environ['SPARK_HOME']}/bin/spark-submit", "--conf", "spark.ui.enabled=false", *arguments]
        environ = {**self.environ, "PYTHONPATH": str(self.packages)}
        done = subprocess.run(command, env=environ, cwd=self.directory, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr[-20_000:]
        return done.stdout


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BareCluster]:
    cluster = BareCluster(tmp_path)
    yield cluster
    cluster.stop()


LAND = """
from pyspark.sql import SparkSession
from holdfast.pipeline import session

settings = ("spark.master", "spark.sql.shuffle.partitions", "spark.sql.session.timeZone")
spark = session("land")
print({name: spark.conf.get(name) for name in settings})

from holdfast.pipeline.land_job import land_command

land_command()
"""


def test_a_cluster_without_holdfast_lands_a_queue_with_a_package_archive(
    server: FakeServer, cluster: BareCluster, tmp_path: Path
) -> None:
    server.create("orders")
    server.append("orders", 0, [*(record(i) for i in range(9)), record(9, "<order><id>x</id></order>")])
    (tmp_path / "land.py").write_text(LAND)
    master = cluster.start()
    submitted = ["--master", master, "--executor-memory", "512m", "--conf", "spark.sql.shuffle.partitions=7"]
    archive = ["--archives", "deps.zip#deps", "--conf", "spark.executorEnv.PYTHONPATH=deps"]
    job = ["--broker", server.url, "--queue", "orders", "--out", "landed", "--checkpoint", "checkpoint"]
    job += ["--schema", "id INT", "--available-now", "--json"]
    said = cluster.submit(*submitted, *archive, "land.py", *job).splitlines()
    assert said[0] == str(
        {"spark.master": master, "spark.sql.shuffle.partitions": "7", "spark.sql.session.timeZone": "UTC"}
    )
    assert [said.pop(1), said.pop(1)] == ["starting Spark", "Spark started"]
    batch, end = map(json.loads, said[1:3])  # spark-submit prints a program's standard error here, too
    assert said[3].startswith("holdfast: 1 of 10 rows in landed are flagged")
    assert (batch["rows"], batch["first_flagged"]["offset"]) == (10, 9)
    assert end == {"event": "end", "rows": 10, "flagged": 1, "cursor": {"orders": {"0": 10}}}


PIPELINE = """
name = "orders"
checkpoint = "{work}/checkpoint"
[sources.orders]
broker = "{url}"
queue = "orders"
[steps.read]
input = "orders"
parse = {{ schema = "id INT NOT NULL" }}
[steps.flagged]
input = "read"
python = "own:flagged"
[sinks.out]
table = "{work}/out"
[sinks.more]
queue = "more"
action = "'urn:x'"
[[routes]]
input = "flagged"
to = ["out", "more"]
[dead_letters]
table = "{work}/dead"
"""
OWN = """
from pyspark.sql import functions as F

def is_seven(number):
    return number == 7

def flagged(rows):
    seven = F.udf(is_seven, "boolean")("parsed.id")
    return rows.withColumn("problems", F.when(seven, F.array(F.lit("it is 7"))))
"""


def test_a_cluster_without_holdfast_runs_a_pipeline_with_a_package_archive(
    server: FakeServer, cluster: BareCluster, tmp_path: Path
) -> None:
    server.create("orders")
    server.append("orders", 0, [record(place, f"<order><id>{place or 'x'}</id></order>") for place in range(10)])
    (program,) = (block for block in PYTHON.findall(GUIDE.read_text()) if "mediation import run" in block)
    (tmp_path / "mediate.py").write_text(program)
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "orders.toml").write_text(PIPELINE.format(work=tmp_path, url=server.url))
    submitted = ["--master", cluster.start(), "--executor-memory", "512m", "--py-files", "own.py"]
    archive = ["--archives", "deps.zip#deps", "--conf", "spark.executorEnv.PYTHONPATH=deps"]
    said = cluster.submit(*submitted, *archive, "mediate.py", "orders.toml")
    assert "rows=10, sinks={'out': 8, 'more': 8}, dead=2" in said
    assert len(server.sinks["orders.more"].bodies) == 8
