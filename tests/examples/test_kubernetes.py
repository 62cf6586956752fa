"""The example for Kubernetes: what it names exists in the product, and its times fit the product's."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from holdfast.broker.broker import Broker
from holdfast.broker.config import BrokerConfig
from holdfast.broker.config_file import read_config
from holdfast.cli.running.broker import broker
from holdfast.endpoint import shutdown
from holdfast.endpoint.admin import guard as admin_guard
from holdfast.endpoint.admin.merged import application as joined_admin
from holdfast.store import address

yaml: Any = pytest.importorskip("yaml")

EXAMPLE = Path(__file__).parents[2] / "examples" / "kubernetes.yaml"
PROBES = {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}


@pytest.fixture(scope="module")
def parts() -> dict[str, dict[str, Any]]:
    """Its objects, by kind."""
    return {one["kind"]: one for one in yaml.safe_load_all(EXAMPLE.read_text())}


@pytest.fixture
def pod(parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = parts["StatefulSet"]["spec"]["template"]["spec"]
    return found


@pytest.fixture
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod["containers"]
    return dict(found)


@pytest.fixture
def config(parts: dict[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BrokerConfig:
    monkeypatch.setenv("HOLDFAST_ADMIN_TOKEN", "s3cret")
    (tmp_path / "broker.toml").write_text(parts["ConfigMap"]["data"]["broker.toml"])
    return read_config(tmp_path / "broker.toml")


def test_the_parts_name_each_other(parts: dict[str, dict[str, Any]], pod: dict[str, Any]) -> None:
    name = parts["StatefulSet"]["metadata"]["name"]
    labels = parts["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert parts["StatefulSet"]["spec"]["selector"]["matchLabels"] == labels
    assert parts["Service"]["spec"]["selector"] == labels
    assert parts["StatefulSet"]["spec"]["serviceName"] == parts["Service"]["metadata"]["name"] == name
    assert [one["configMap"]["name"] for one in pod["volumes"]] == [parts["ConfigMap"]["metadata"]["name"]]
    assert parts["StatefulSet"]["spec"]["replicas"] == 1  # one process has a store open


def test_the_broker_listens_where_kubernetes_looks(
    parts: dict[str, dict[str, Any]], container: dict[str, Any], config: BrokerConfig
) -> None:
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports == {"messages": config.listen.port, "admin": config.admin.port}
    assert {one["port"] for one in parts["Service"]["spec"]["ports"]} == set(ports.values())
    assert {one["targetPort"] for one in parts["Service"]["spec"]["ports"]} == set(ports)
    assert {config.listen.host, config.admin.host} == {"0.0.0.0"}
    assert f"{parts['Service']['metadata']['name']}.default.svc" in config.admin.names


def test_the_command_reads_the_mounted_file_and_keeps_the_store_on_the_volume(
    parts: dict[str, dict[str, Any]], container: dict[str, Any], config: BrokerConfig
) -> None:
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    program, command, *arguments = container["command"]
    assert (program, command) == ("holdfast", "broker")
    options = {name for parameter in broker.params for name in parameter.opts}
    assert {one for one in arguments if one.startswith("-")} <= options
    assert f"{mounts['configuration']}/broker.toml" in arguments
    (claim,) = parts["StatefulSet"]["spec"]["volumeClaimTemplates"]
    assert Path(str(config.store)).parent == Path(mounts[claim["metadata"]["name"]])


async def test_the_probes_ask_what_the_broker_answers_without_a_token(
    container: dict[str, Any], config: BrokerConfig
) -> None:
    asked = {name: container[name]["httpGet"] for name in PROBES}
    assert {name: one["path"] for name, one in asked.items()} == PROBES
    assert {one["port"] for one in asked.values()} == {"admin"}
    assert set(PROBES.values()) <= set(admin_guard.OPEN_TO_ALL)
    here = dataclasses.replace(
        config,
        store=":memory:",
        listen=dataclasses.replace(config.listen, host="127.0.0.1", port=0),
        admin=dataclasses.replace(config.admin, host="127.0.0.1", port=0),
    )
    running = Broker(here)
    await running.service.start()
    try:
        async with aiohttp.ClientSession() as session:
            for path in PROBES.values():
                async with session.get(running.service.admin_url + path) as answer:
                    assert answer.status == 200, await answer.text()
    finally:
        await running.service.close(0.0)


def test_kubernetes_waits_as_long_as_the_broker_may_take(pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert pod["terminationGracePeriodSeconds"] > shutdown.LONGEST_PROGRESS
    for name in PROBES:
        assert container[name]["timeoutSeconds"] > joined_admin.SOON  # a worker that is started again is waited for
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] > address.DEFAULT_PATIENCE
