"""Without an extra, only the modules that need its packages cannot be imported, and everything else runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from holdfast.cli import main
from holdfast.testing.ports import free_ports

ROOT = Path(__file__).resolve().parents[1]
EXTRAS: dict[str, list[str]] = {
    name: sorted({re.split(r"[\[<>=]", one)[0] for one in packages})
    for name, packages in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ].items()
    if name not in ("demo", "bench", "dev")
}
MODULES = {"confluent-kafka": "confluent_kafka", "opentelemetry-sdk": "opentelemetry"}
"""Distribution -> what is imported, if the name differs."""
NEEDS = {
    "kafka": ("cluster.group.", "cluster.shared.topic_tables", "store.kafka."),
    "sql": ("cluster.", "store.sql."),
    "spark": ("pipeline.",),
    "wsdl": ("wsdl.", "zeep"),
    "x509": ("security.",),
}
"""Extra -> where the modules are that need it. The rooms above them import these only where the settings ask for it."""
IMPORTED = """
import importlib, json, pkgutil, sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None
import holdfast
from holdfast.exceptions import ConfigurationError
missing = []
for found in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
    if not found.name.endswith("__main__") and found.name.startswith(tuple(sys.argv[2].split(","))):
        try:
            importlib.import_module(found.name)
        except (ModuleNotFoundError, ConfigurationError):
            missing.append(found.name.removeprefix("holdfast."))
print(json.dumps(missing))
"""


def test_each_package_of_an_extra_is_known_to_the_commands() -> None:
    packages = {
        MODULES.get(package, package.replace("-", "_")): extra
        for extra in ("kafka", "spark", "report", "sql", "wsdl", "x509")
        for package in EXTRAS[extra]
    }
    assert packages | {"py4j": "spark"} == main.EXTRAS


def blocked(*extras: str) -> list[str]:
    """The packages of all extras but these, as they are imported."""
    mine = {package for extra in extras for package in EXTRAS[extra]}
    others = {package for packages in EXTRAS.values() for package in packages} - mine
    return sorted(MODULES.get(one, one) for one in others)


def missing(names: list[str], *rooms: str) -> list[str]:
    """The modules of these rooms that cannot be imported without these packages."""
    command = [sys.executable, "-c", IMPORTED, ",".join(names), ",".join(f"holdfast.{room}" for room in rooms)]
    return list(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=300).stdout))


def test_without_extras_only_their_rooms_are_missing() -> None:
    rooms = tuple(room for found in NEEDS.values() for room in found)
    assert [name for name in missing(blocked(), "") if not name.startswith(rooms)] == []


@pytest.mark.parametrize("extra", NEEDS)
def test_an_extra_needs_no_other_one(extra: str) -> None:
    kafka = NEEDS["kafka"] if extra != "kafka" else ()
    assert [name for name in missing(blocked(extra), *NEEDS[extra]) if not name.startswith(kafka)] == []


def test_a_broker_runs_without_any_extra(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({blocked()!r}))\n")
    port, admin = free_ports(2)
    (tmp_path / "broker.toml").write_text(
        f'store = "store"\nlisten.port = {port}\nadmin.port = {admin}\n[queues.orders]\n[security]\nusers = "users"\n'
    )
    (tmp_path / "users").write_text("alice:secret\n")
    (tmp_path / "users").chmod(0o600)
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    broker = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli.main", "broker", "--config", "broker.toml"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert broker.stdout is not None
    first = broker.stdout.readline()
    broker.send_signal(signal.SIGTERM)
    broker.communicate(timeout=60)
    assert (first, broker.returncode) == (f"listening on http://127.0.0.1:{port}/\n", 0)
