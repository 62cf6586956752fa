"""The systemd unit of the guide: a broker runs by it, with a file that names no store."""

from __future__ import annotations

import configparser
import re
import signal
from pathlib import Path

import pytest
from processes import Process
from waiting import until

from holdfast.testing.ports import free_ports

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "store-and-forward.md"


def unit() -> configparser.ConfigParser:
    match = re.search(r"```ini\n(\[Unit\].*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert match is not None
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign] # systemd minds upper and lower case
    parser.read_string(match[1])
    return parser


@pytest.mark.slow
async def test_a_broker_runs_by_the_unit_of_the_guide(tmp_path: Path) -> None:
    service = unit()["Service"]
    states, etc = tmp_path / "state", tmp_path / "etc"
    program, *arguments = service["ExecStart"].split()
    (configuration,) = [one for one in arguments if one.startswith("/etc/")]
    working = Path(service["WorkingDirectory"].replace("%S", str(states)))
    assert program.endswith("/bin/holdfast")
    assert working == states / service["StateDirectory"], "systemd makes this one, and starts the broker in it"
    working.mkdir(parents=True)
    etc.mkdir()
    port, admin_port = free_ports(2)
    file = etc / Path(configuration).name
    file.write_text(f"listen.port = {port}\nadmin.port = {admin_port}\n[queues.orders]\n")

    fitted = [str(file) if one == configuration else one for one in arguments]
    broker = Process(working, "log", port, *fitted)
    await broker.start()
    try:
        assert (working / "broker" / "HOLDFAST").exists(), "the store of the page"
        assert not (etc / "broker").exists(), "who serves may not write there"
        assert re.fullmatch(r"/bin/kill -HUP \$MAINPID", service["ExecReload"])
        file.write_text(f'default_queue = "orders"\n{file.read_text()}')
        broker.signal(signal.SIGHUP)
        await until(lambda: "configuration." in broker.log.read_text())
        assert re.search("configuration.reloaded.*default_queue", broker.log.read_text()), broker.log.read_text()
        assert await broker.end() == 0
    finally:
        await broker.kill()
