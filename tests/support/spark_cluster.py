"""A Spark standalone cluster: a master and workers, each a process of its own."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import socket
import subprocess
from pathlib import Path

from quick_spark import QUICK_JAVA
from waiting import until

from holdfast.pipeline.spark.java import java_home
from holdfast.testing.ports import free_ports


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def _spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    assert spec and spec.origin
    return Path(spec.origin).parent


class Cluster:
    """A standalone cluster in a directory, with a core and 1 GB for each worker.

    Args:
        directory: Where its log is, and what its workers write.
        environ: What its processes find in their environment.
    """

    def __init__(self, directory: Path, **environ: str) -> None:
        self.directory = directory
        self.environ = {
            "JAVA_HOME": str(java_home()),
            "JAVA_TOOL_OPTIONS": QUICK_JAVA,
            "SPARK_HOME": str(_spark_home()),
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_LOCAL_IP": "127.0.0.1",
            **environ,
        }
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, workers: int = 1) -> str:
        """The master's URL."""
        port, master_ui, *worker_uis = free_ports(2 + workers)
        self._run("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(master_ui))
        asyncio.run(until(lambda: _listens(port)))
        url = f"spark://127.0.0.1:{port}"
        for number, ui in enumerate(worker_uis):
            # Each on a host of its own: a host that runs a task is not given another attempt at it.
            worker = ["--host", f"127.0.0.{1 + number}", "--cores", "1", "--memory", "1g"]
            self._run("worker.Worker", *worker, "--webui-port", str(ui), "--work-dir", f"work{number}", url)
        return url

    def executors(self) -> list[int]:
        """The process ids of the executors there are now."""
        lists = [each for one in self._processes[1:] for each in Path(f"/proc/{one.pid}/task").glob("*/children")]
        children = [int(pid) for each in lists for pid in each.read_text().split()]
        return [pid for pid in children if b"CoarseGrainedExecutor" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def _run(self, what: str, *arguments: str) -> None:
        command = [f"{self.environ['SPARK_HOME']}/bin/spark-class", f"org.apache.spark.deploy.{what}", *arguments]
        with (self.directory / "cluster.log").open("ab") as log:
            process = subprocess.Popen(
                command, env=self.environ, cwd=self.directory, stdout=log, stderr=log, start_new_session=True
            )
        self._processes.append(process)

    def stop(self) -> None:
        """End it, workers first."""
        for process in reversed(self._processes):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
