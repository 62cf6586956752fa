"""nginx with the lines of docs/how-to/cluster.md before three brokers of one cluster, which are killed or paused."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from broker_cluster import NAMES, PARTITIONS, Brokers, Got
from cluster_clients import Callers, Progress, run
from interop_cells import cell

from holdfast.testing.ports import free_ports

NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "cluster.md"

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.crash,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked"),
    pytest.mark.skipif(NGINX is None, reason="nginx is not installed"),
]

CONFIG = """
daemon off;
worker_processes 1;
pid nginx.pid;
error_log stderr;
events {{ }}
http {{
    access_log access.log;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    {lines}
}}
"""


@contextmanager
def nginx(directory: Path, urls: Sequence[str]) -> Iterator[str]:
    """Run nginx with the lines of the guide before these servers; its URL."""
    assert NGINX is not None
    (lines,) = re.findall(r"```nginx\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    for name, url in zip(NAMES, urls, strict=True):
        lines = lines.replace(f"{name}.example:8080", url.removeprefix("http://").rstrip("/"))
    (port,) = free_ports(1)
    lines = lines.replace("listen 80;", f"listen 127.0.0.1:{port};")
    assert ".example" not in lines and str(port) in lines
    (directory / "nginx.conf").write_text(CONFIG.format(lines=lines))
    with (directory / "nginx.errors").open("w") as errors:
        process = subprocess.Popen(
            [NGINX, "-p", directory, "-c", "nginx.conf", "-e", "stderr"], stderr=errors, stdout=subprocess.DEVNULL
        )
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.wait()


@cell(fault="brokers killed and paused in turn, behind nginx")
async def test_clients_behind_nginx_do_not_notice_nodes_that_are_killed_or_paused(
    brokers: Brokers, got: Got, callers: Callers, tmp_path: Path
) -> None:
    async def trouble(progress: Progress) -> None:
        for name in NAMES:
            await asyncio.to_thread(brokers.nodes[name].kill)
            await progress.each(3)
            await brokers.start(name)
            await brokers.wait_for_owners(lambda owners: {*owners.values()} == {*NAMES})
            brokers.nodes[name].signal(signal.SIGSTOP)
            others = {*NAMES} - {name}
            await brokers.wait_for_owners(
                lambda owners, others=others: len(owners) == PARTITIONS and {*owners.values()} <= others
            )
            await progress.each(1)
            brokers.nodes[name].signal(signal.SIGCONT)
            await progress.each(3)

    with nginx(tmp_path, [brokers.urls[name] for name in NAMES]) as url:
        await run(brokers, got[1], trouble, Callers(lambda _: callers.clients(url)))
