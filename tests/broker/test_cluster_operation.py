"""What an operator meets in a cluster of real brokers on a real database: nodes that cannot serve, and outages.

Covers endpoint/workers/supervisor.py.
"""

from __future__ import annotations

import json
import os
import signal
import ssl
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import trustme
from crew import wait_until
from databases import PostgreSQL, program
from node_processes import NodeProcess, config_of

import holdfast
from holdfast.cluster.inspection import read_status
from holdfast.cluster.operating.status import ClusterStatus
from holdfast.cluster.verification import verify_cluster
from holdfast.exceptions import ConfigurationError
from holdfast.store.address import shown
from holdfast.testing.ports import free_ports

PARTITIONS = 4

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked"),
]


class Nodes:
    """Brokers of one cluster, and what its status says."""

    def __init__(self, directory: Path, server: PostgreSQL, store: str) -> None:
        self.server = server
        self.store = store
        self._directory = directory
        self.nodes: dict[str, NodeProcess] = {}

    def start(
        self, name: str, change: tuple[str, str] = ("", ""), options: Sequence[str] = (), **environment: str
    ) -> NodeProcess:
        config = config_of(self.store, PARTITIONS, 'memory = "memory"\n', lease=2.0).replace(*change, 1)
        self.nodes[name] = NodeProcess(self._directory, name, config, environment=environment, options=options)
        return self.nodes[name]

    def served_with(self, **states: str) -> ClusterStatus:
        """Wait until all partitions are served while these nodes have these states; that status."""
        found: list[ClusterStatus] = []

        def is_so() -> bool:
            found.append(read_status(self.store))
            now = {one.name: one.state for one in found[-1].nodes}
            return all(one.state == "serving" for one in found[-1].partitions) and now | states == now

        wait_until(is_so)
        return found[-1]


def asked(url: str) -> tuple[int, Any]:
    """The status and the content of an answer."""
    try:
        with urlopen(url, timeout=240) as answer:
            return answer.status, json.loads(answer.read())
    except HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.fixture
def nodes(tmp_path: Path, servers: Callable[[str], PostgreSQL]) -> Iterator[Nodes]:
    server = servers("postgresql")
    made = Nodes(tmp_path, server, server.new_url())
    yield made
    for one in made.nodes.values():
        one.clean()


@pytest.fixture
def restorable(tmp_path: Path, servers: Callable[[str], PostgreSQL]) -> Iterator[Nodes]:
    """Nodes with a database of their own, which is called "restorable"."""
    server = servers("postgresql")
    server.sql("CREATE DATABASE restorable", database="postgres")
    made = Nodes(tmp_path, server, server.url("orders").replace("/holdfast?", "/restorable?"))
    yield made
    for one in made.nodes.values():
        one.clean()
    server.sql("DROP DATABASE IF EXISTS restorable WITH (FORCE)", database="postgres")


def test_the_status_shows_nodes_that_cannot_serve_and_others_serve_for_them(nodes: Nodes) -> None:
    a = nodes.start("a")
    url = a.url()
    nodes.served_with(a="live")
    nodes.start("b", ("partitions = 1\n", "partitions = 2\n"))
    problem = nodes.served_with(b="failing").problems[0]
    assert problem.startswith("Node b could not start cluster partition")
    assert "in this store, the queue 'inbox' has 1 partitions, not 2. " in problem
    nodes.start("c", HOLDFAST_NODE_URL="http://127.0.0.1:1")
    status = nodes.served_with(c="unreachable")
    assert {one.name for one in status.nodes if one.partitions} == {"a"}
    wait_until(lambda: "cluster.cut_off" in nodes.nodes["c"].errors.read_text())
    d = nodes.start("d", ("listen.port = 0", f"listen.port = {url.rpartition(':')[2].strip('/')}"))
    assert d.process.wait(240) == 1
    assert "Address already in use" in d.errors.read_text()
    assert "cluster.joined" not in d.errors.read_text()


@pytest.mark.parametrize("away", ["kill", "pause"])
def test_probes_name_the_database_while_it_is_away_and_no_node_ends(nodes: Nodes, away: str) -> None:
    admins = []
    for name in ("a", "b"):
        node = nodes.start(name)
        node.url()
        admins.append(node.url())
    nodes.served_with(a="live", b="live")
    try:
        getattr(nodes.server, away)()
        for admin in admins:
            wait_until(lambda admin=admin: "no contact with the database" in str(asked(f"{admin}/readyz")[1]))
            assert asked(f"{admin}/readyz")[0] == 503
            assert asked(f"{admin}/healthz")[0] == 200
    finally:
        nodes.server.start() if away == "kill" else nodes.server.resume()
    for admin in admins:
        wait_until(lambda admin=admin: asked(f"{admin}/readyz")[0] == 200)
    nodes.served_with(a="live", b="live")
    assert all(one.process.poll() is None for one in nodes.nodes.values())


def test_a_node_tells_its_addresses_and_its_name_where_it_refuses_a_configuration(nodes: Nodes) -> None:
    a = nodes.start("a")
    a.url()
    admin = a.url()
    assert a.process.stdout is not None
    store, node, created = (a.process.stdout.readline() for _ in range(3))
    assert created == f"cluster     new: this node has created it in {shown(nodes.store)}\n"
    assert "cluster.created" in a.errors.read_text()
    assert store.endswith(f", in each of {PARTITIONS} cluster partitions\n")
    (found,) = nodes.served_with(a="live").nodes
    assert node == f"node        a, for other nodes at {found.url}\n"
    file = a.errors.with_name("a.toml")
    file.write_text(file.read_text() + "lese = 3\n")
    with pytest.raises(HTTPError) as refused:
        urlopen(Request(f"{admin}/reload", method="POST"), timeout=240)
    assert json.loads(refused.value.read())["error"].startswith("node a keeps its configuration: a.toml has a mistake")


def send(url: str, count: int) -> None:
    """Send so many messages, each in a Sequence of its own, and wait for their acknowledgements."""
    for _ in range(count):
        with holdfast.sync.Source(url, store=":memory:") as source:
            source.send("<n/>", action="urn:test:submit").acknowledged(60)


@pytest.mark.crash
def test_no_node_creates_a_cluster_while_its_database_is_restored(restorable: Nodes) -> None:
    server = restorable.server
    a, b = restorable.start("a"), restorable.start("b")
    url = a.url()
    before = restorable.served_with(a="live", b="live")
    send(url, 8)
    login = ("-h", str(server.directory), "-U", "tester")
    with holdfast.sync.Source(url, store=":memory:") as source:
        source.send("<n/>", action="urn:test:submit").acknowledged(60)
        dump = server.run(program("pg_dump"), *login, "restorable")
    send(url, 8)
    server.sql("DROP DATABASE restorable WITH (FORCE)", database="postgres")
    wait_until(lambda: "cluster.database_away" in a.errors.read_text())
    server.sql("CREATE DATABASE restorable", database="postgres")
    b.kill()
    b = restorable.start("b")  # as a process supervisor does
    missing = f"the cluster {before.cluster} is not in the database"
    wait_until(lambda: missing in b.errors.read_text())
    with pytest.raises(ConfigurationError, match="there is no cluster"):
        read_status(restorable.store)
    server.run(program("psql"), "-q", *login, "restorable", input=dump)
    for node in (a, b):
        assert node.process.wait(240) == 1
        assert "went back to an older copy: batch " in node.errors.read_text()
    for name in ("a", "b"):
        restorable.start(name, options=["--restored"])
    after = restorable.served_with(a="live", b="live")
    assert after.cluster == before.cluster
    # The Sequence that was open in the copy: no message may wait in it behind one that was lost.
    wait_until(lambda: any("sequences.closed" in one.errors.read_text() for one in restorable.nodes.values()))
    assert verify_cluster(restorable.store).problems == ()


def test_the_status_warns_of_a_node_with_another_file_until_it_is_reloaded(nodes: Nodes, tmp_path: Path) -> None:
    route = "[[routes]]\naction = 'urn:a'\nqueues = 'inbox'\n"
    for name, text in (("a", ""), ("b", route)):
        nodes.start(name, ('memory = "memory"\n', f'memory = "memory"\n[queues.inbox]\n{text}')).url()
    nodes.served_with(a="live", b="live")

    def warned() -> str:
        return "".join(one for one in read_status(nodes.store).warnings if "configuration" in one)

    wait_until(lambda: "different on node a than on node b: routes" in warned())
    wait_until(lambda: "cluster.configuration_differs" in nodes.nodes["a"].errors.read_text())
    (tmp_path / "a.toml").write_text((tmp_path / "b.toml").read_text())
    nodes.nodes["a"].process.send_signal(signal.SIGHUP)
    wait_until(lambda: not warned())
    wait_until(lambda: "cluster.configuration_same" in nodes.nodes["b"].errors.read_text())


def test_a_reloaded_node_uses_a_new_certificate_unless_others_would_refuse_it(nodes: Nodes, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))

    def renew(issuer: trustme.CA) -> str:
        issued = issuer.issue_cert("127.0.0.1")
        issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "new.pem"))
        (tmp_path / "new.pem").replace(tmp_path / "node.pem")
        return ssl.DER_cert_to_PEM_cert(ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode()))

    def logged(event: str) -> int:
        return nodes.nodes["a"].errors.read_text().count(event)

    def reload() -> None:
        before = logged("configuration.reloaded")
        nodes.nodes["a"].process.send_signal(signal.SIGHUP)
        wait_until(lambda: logged("configuration.reloaded") >= before + 1)

    (port,) = free_ports(1)
    tls = ('memory = "memory"\n', "tls = { certificate = 'node.pem', ca = 'ca.pem' }\n")
    first = renew(authority)
    nodes.start("b", tls).url()
    a = nodes.start("a", (f"port = 0\n{tls[0]}", f"port = {port}\n{tls[1]}"))
    a.url()
    admin = a.url()
    nodes.served_with(a="live", b="live")
    shown = partial(ssl.get_server_certificate, ("127.0.0.1", port))
    assert shown() == first
    second = renew(authority)
    assert shown() == first
    reload()
    wait_until(lambda: shown() == second)
    renew(trustme.CA())
    reload()
    wait_until(lambda: logged("cluster.certificate_not_used"))
    assert shown() == second
    # The answer of the admin listener, also if only other keys have changed since.
    for more in ("", "[limits]\nmax_routed_body = 4096\n"):
        renew(trustme.CA())
        with (tmp_path / "a.toml").open("a") as file:
            file.write(more)
        before = logged("configuration.reloaded")
        with urlopen(Request(f"{admin}/reload", method="POST"), timeout=240) as answer:
            told = json.loads(answer.read())
        assert told["changed"] == ["limits.max_routed_body"] * bool(more)
        assert told["not_used"]["cluster.tls"].startswith("The node keeps its certificate: ")
        wait_until(lambda before=before: logged("configuration.reloaded") > before)
        assert "cluster.tls" not in nodes.nodes["a"].errors.read_text().rpartition("configuration.reloaded")[2]
    assert shown() == second
    nodes.served_with(a="live", b="live")
