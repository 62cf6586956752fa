"""The settings of a Spark session, and what is said where Spark cannot be used.

Covers pipeline/session.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.reader.options import usable_cores
from holdfast.pipeline.session import _of_the_master, session


@pytest.mark.parametrize(
    ("master", "partitions"), [("local", 1), ("local[*]", usable_cores()), ("local[3]", 3), ("local[4,2]", 4)]
)
def test_a_local_session_has_a_shuffle_partition_per_core_and_stays_local(master: str, partitions: int):
    settings = _of_the_master(master)
    assert settings["spark.sql.shuffle.partitions"] == str(partitions)
    assert settings["spark.driver.host"] == "127.0.0.1"


def test_a_clusters_shuffle_partitions_and_addresses_are_left_alone():
    assert list(_of_the_master("spark://10.0.0.1:7077")) == ["spark.driver.extraJavaOptions"]


def test_without_pyspark_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'holdfast\[spark\]'"):
        session()


@pytest.mark.parametrize("version", ["3.5.9", "4.0.5", "4.1.4"])
def test_a_spark_whose_sources_cannot_limit_a_batch_is_refused_with_the_reason(
    version: str, monkeypatch: pytest.MonkeyPatch
):
    """4.0.5 and 4.1.4 were run: what a source imports is not there."""
    monkeypatch.setattr("pyspark.__version__", version)
    with pytest.raises(ConfigurationError, match=r"needs Spark 4\.2 or newer") as refused:
        session()
    assert version in refused.value.message
    assert "pip install" in refused.value.remedy


def test_sparks_discovery_is_never_broken_by_ours():
    """It imports every module pyspark_*, and fails with the first that fails."""
    code = (
        "import sys, warnings; warnings.simplefilter('always'); sys.modules['holdfast.pipeline.source'] = None;"
        "import pyspark_holdfast; print(hasattr(pyspark_holdfast, 'DefaultSource'))"
    )
    source = str(Path(__file__).parents[3] / "src")
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": source}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
    assert "the wsrm format of Spark is not available" in done.stderr


def test_a_process_of_spark_that_reads_loads_nothing_of_a_server():
    """A first query starts half a dozen of them, and each loads the source: what it loads more is waited for."""
    code = (
        "import sys, pyspark_holdfast, holdfast.pipeline.reader.block_decoder\n"
        "heavy = {'structlog', 'rich', 'httptools', 'lxml', 'rocksdict', 'uvloop', 'pandas', "
        " 'holdfast.core.queues.queue', 'holdfast.endpoint.arguments', 'holdfast.endpoint.admin.routes'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    source = str(Path(__file__).parents[3] / "src")
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": source}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
