"""`holdfast broker check`: what a configuration would open, or every mistake in it."""

from __future__ import annotations

import json
import signal
import socket
import time
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from saml import unsigned
from signers import issue

from holdfast.store.rocksdb.store import RocksDBStore

GOOD = """
store = "data"
[queues.orders]
retention = "7d 10GB"
[[routes]]
action = "urn:orders/*"
queues = "orders"
[forwarders.orders]
queue = "orders"
to = "https://partner.example/orders"
paused = true
"""


def test_a_good_file_says_what_would_be_opened(run: Any, tmp_path: Path) -> None:
    (tmp_path / "broker.toml").write_text(GOOD)
    result = run("broker", "check", "broker.toml")
    assert (result.code, result.err) == (0, "")
    for told in (
        f"store       {tmp_path / 'data'}, 64 partitions and 64 for sessions in a new store, 1 worker",
        "listens     http://127.0.0.1:8080/",
        "queue       orders, retention 7d 10GB readers 30d",
        "routes      1, else refused",
        "forwarder   orders, orders to https://partner.example/orders, paused",
    ):
        assert told in result.out
    facts = json.loads(run("broker", "check", "broker.toml", "--json").out)
    assert facts["forwarders"]["orders"]["paused"] is True
    assert facts["default_queue"] is None


def test_check_tells_the_number_of_users_and_a_file_that_all_can_read(run: Any, tmp_path: Path) -> None:
    for name in ("users", "password"):
        (tmp_path / name).write_text("alice:geheim\n")
        (tmp_path / name).chmod(0o644 if name == "password" else 0o600)
    security = 'security = { username = "me", password_file = "password" }\n'
    (tmp_path / "broker.toml").write_text(f"{GOOD}{security}[security]\nusers = 'users'\n")
    result = run("broker", "check", "broker.toml")
    assert result.code == 0, result.err
    assert "users       1; the broker refuses messages without a user name and password" in result.out
    assert f"warning     every user of this machine can read {tmp_path / 'password'}\n" in result.out
    assert "geheim" not in result.out
    facts = json.loads(run("broker", "check", "broker.toml", "--json").out)
    assert (facts["users"], facts["public_secrets"]) == (1, [str(tmp_path / "password")])


NODE = """
store = "postgresql://me@127.0.0.1:1/orders"
partitions = 1
listen.host = "0.0.0.0"
[cluster]
node = "a"
secret_file = "secret"
host = "0.0.0.0"
"""


def test_check_tells_how_other_nodes_reach_a_node_of_a_cluster(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef")
    for more, variable, told in (
        ("", "", f"http://{socket.gethostname()}:8082"),
        ("port = 0", "", "a free port"),
        ("port = 0", "http://a.example:7", "http://a.example:7"),
    ):
        (tmp_path / "broker.toml").write_text(NODE + more)
        monkeypatch.setenv("HOLDFAST_NODE_URL", variable)
        result = run("broker", "check", "broker.toml")
        assert result.code == 0, result.err
        assert f"node        a, for other nodes at {told}\n" in result.out
        assert ", 1 partition and 64 for sessions in a new store, in each of 24 cluster partitions\n" in result.out


def test_check_and_the_start_refuse_a_node_that_others_would_refuse(run: Any, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef")
    (tmp_path / "broker.toml").write_text(
        f"{NODE}url = 'https://node1.example:7'\ntls = {{ certificate = 'node.pem', ca = 'ca.pem' }}\n"
    )
    authority, soon = trustme.CA(), datetime.now(UTC) + timedelta(days=10)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for host in ("node2.example", "node1.example"):
        issued = authority.issue_cert(host, not_after=soon)
        issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "node.pem"))
        if host == "node2.example":
            for command in (("check", "broker.toml"), ("--config", "broker.toml")):
                result = run("broker", *command)
                assert (result.code, result.out) == (1, "")
                assert ": cluster.tls: other nodes would refuse the certificate in " in result.err
    result = run("broker", "check", "broker.toml")
    assert result.code == 0, result.err
    assert f"warning     the certificate in {tmp_path / 'node.pem'} expires on {soon:%Y-%m-%d}\n" in result.out


def test_check_warns_of_a_lease_that_kafka_refuses_by_default(run: Any, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef")
    for lease, count in (("5.9", 1), ("6", 0)):
        (tmp_path / "broker.toml").write_text(
            "store = 'kafka://kafka:9092/orders?cache=/cache'\n[queues.orders]\n"
            f"[cluster]\nsecret_file = 'secret'\nlease = {lease}\n"
        )
        result = run("broker", "check", "broker.toml")
        assert result.code == 0, result.err
        assert result.out.count("warning     cluster.lease is 5.9 s, and Kafka's brokers by default accept") == count


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("sasl.mechanisn=PLAIN", "sasl.mechanisn"),
        ("security.protocol=SASL_SSL&sasl.mechanism=GSSAPI", "GSSAPI"),
        ("security.protocol=SSL&ssl.ca.location=/none/ca.pem", "The file is /none/ca.pem."),
    ],
)
def test_check_refuses_what_the_client_of_kafka_refuses_and_connects_nowhere(
    run: Any, tmp_path: Path, options: str, told: str
) -> None:
    pytest.importorskip("confluent_kafka")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.0)
        base = f"kafka://127.0.0.1:{server.getsockname()[1]}/orders?cache={tmp_path / 'cache'}"
        for url, code in ((base, 0), (f"{base}&{options}", 1)):
            (tmp_path / "broker.toml").write_text(f'store = "{url}"\n')
            result = run("broker", "check", "broker.toml")
            assert (result.code, told in result.out + result.err) == (code, bool(code)), result.err
        with pytest.raises(BlockingIOError):
            server.accept()


def test_an_option_that_contradicts_the_cluster_is_refused_before_anything_starts(run: Any, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef")
    (tmp_path / "broker.toml").write_text(NODE)
    for option, value, key in (("--workers", "2", "workers"), ("--store", "inbox", "store")):
        result = run("broker", "--config", "broker.toml", option, value)
        assert (result.code, result.out) == (1, "")
        assert f": {key}: " in result.err and "cluster." not in result.err


def test_a_bad_file_says_all_that_is_wrong_and_ends_with_1(run: Any, tmp_path: Path) -> None:
    (tmp_path / "broker.toml").write_text(GOOD.replace("paused", "pausd").replace('"orders"', '"ordrs"', 1))
    result = run("broker", "check", "broker.toml")
    assert (result.code, result.out) == (1, "")
    assert "broker.toml has 2 mistakes, and nothing of it is used:" in result.err
    assert "broker.toml:7: routes[1].queues: the queue 'ordrs' does not exist. Did you mean 'orders'?" in result.err
    assert (
        "broker.toml:11: forwarders.orders.pausd: the key 'pausd' does not exist here. Did you mean 'paused'?"
        in result.err
    )
    told = json.loads(run("broker", "check", "--json", "broker.toml").out)
    assert [(one["line"], one["key"]) for one in told["mistakes"]] == [
        (7, "routes[1].queues"),
        (11, "forwarders.orders.pausd"),
    ]
    assert told["kind"] == "ConfigurationMistakes"


def test_a_policy_for_a_forwarder_that_does_not_exist_is_a_warning(run: Any, tmp_path: Path) -> None:
    policies = "".join(f'[policies."{one}"]\nsending.keep_alive = "5s"\n' for one in ("name:ordrs", "name:ord*", "*"))
    (tmp_path / "broker.toml").write_text(GOOD + policies)
    result = run("broker", "check", "broker.toml")
    assert result.code == 0, result.err
    assert result.out.count("warning ") == 1
    assert 'warning     policies."name:ordrs" is unused: no forwarder has this name\n' in result.out
    assert json.loads(run("broker", "check", "--json", "broker.toml").out)["unused_policies"] == ["name:ordrs"]


def test_forwarders_with_one_address_are_a_warning(run: Any, tmp_path: Path) -> None:
    bills = '[queues.bills]\n[[routes]]\nqueues = "bills"\n[forwarders.bills]\nqueue = "bills"\nto = "%s"\n'
    (tmp_path / "broker.toml").write_text(GOOD + bills % "https://partner.example/orders")
    result = run("broker", "check", "broker.toml")
    assert result.code == 0, result.err
    told = "the forwarders orders and bills have the same address; rows for it go through orders"
    assert [one for one in result.out.splitlines() if one.startswith("warning ")] == [f"warning     {told}"]
    facts = json.loads(run("broker", "check", "--json", "broker.toml").out)
    assert facts["shared_addresses"] == {"https://partner.example/orders": ["orders", "bills"]}


FITTING = {
    "*": "for all forwarders and replies",
    "name:ord*": "for forwarder orders",
    "name:*": "for forwarders orders, bills",
    "action:urn:orders/*": "for forwarder orders",
    "partner.example": "for forwarder orders and replies to such addresses",
    "https://other.example/*": "for replies to such addresses",
}
UNUSED = ("name:ordrs", "action:urn:ordrs/*", "action:urn:bills")


def test_check_tells_what_each_policy_applies_to(run: Any, tmp_path: Path) -> None:
    bills = '[queues.bills]\n[[routes]]\nqueues = "bills"\n[forwarders.bills]\nqueue = "bills"\nto = "http://bills/"\n'
    policies = "".join(f'[policies."{one}"]\nsending.keep_alive = "5s"\n' for one in (*FITTING, *UNUSED))
    (tmp_path / "broker.toml").write_text(GOOD + bills + policies)
    result = run("broker", "check", "broker.toml")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    told = {**FITTING, **dict.fromkeys(UNUSED, "for no forwarder")}
    assert [one for one in lines if one.startswith("policy ")] == [
        f"policy      {pattern}, {what}" for pattern, what in told.items()
    ]
    warnings = [one.split()[1] for one in lines if one.startswith("warning ")]
    assert warnings == [f'policies."{pattern}"' for pattern in UNUSED]
    facts = json.loads(run("broker", "check", "--json", "broker.toml").out)
    assert facts["unused_policies"] == list(UNUSED)
    assert facts["policies"]["name:*"] == ["orders", "bills"]


OWN = "certificate = 'own.pem', key = 'own.key', trusted = 'other.pem'"
DEMANDS = {
    "users = 'users'": "users       1; the broker refuses messages without a user name and password",
    f"signature = {{ {OWN} }}": "signatures  the broker refuses messages that no trusted certificate has signed",
    f"symmetric = {{ {OWN} }}": "encryption  the broker refuses messages that are not signed and encrypted with a",
    "assertions = { issuers = { idp = 'own.pem', other = 'own.pem' }, audience = 'me' }": (
        "assertions  the broker refuses messages without a SAML assertion from idp, other\n"
    ),
}


@pytest.mark.parametrize("security", DEMANDS)
def test_check_tells_what_the_broker_demands_of_senders(run: Any, tmp_path: Path, security: str) -> None:
    own = issue("CN=own,O=Example").files(tmp_path)
    own.certificate.rename(tmp_path / "own.pem")
    own.key.rename(tmp_path / "own.key")
    issue("CN=other,O=Example").files(tmp_path).certificate.rename(tmp_path / "other.pem")
    (tmp_path / "users").write_text("alice:geheim\n")
    (tmp_path / "broker.toml").write_text(f"{GOOD}[security]\n{security}\n")
    result = run("broker", "check", "broker.toml")
    assert result.code == 0, result.err
    assert [line for line in DEMANDS.values() if line in result.out] == [DEMANDS[security]]


@pytest.mark.parametrize(("age", "told"), [(0.0, 0), (900.0, 1)])
def test_an_expired_assertion_of_a_forwarder_is_a_warning(run: Any, tmp_path: Path, age: float, told: int) -> None:
    file = tmp_path / "assertion.xml"
    file.write_text(unsigned("2.0", time.time() - age))
    (tmp_path / "broker.toml").write_text(f"{GOOD}security = {{ assertion = 'assertion.xml' }}\n")
    result = run("broker", "check", "broker.toml")
    assert result.code == 0, result.err
    assert result.out.count(f"warning     the SAML assertion in {file} has expired\n") == told


def test_one_mistake_of_a_route_does_not_hide_another(run: Any, tmp_path: Path) -> None:
    (tmp_path / "broker.toml").write_text('[[routes]]\nqueue = "inbox"\nxpath = "]["\n')
    told = json.loads(run("broker", "check", "--json", "broker.toml").out)
    assert [one["key"] for one in told["mistakes"]] == ["routes[1].queue", "routes[1].xpath"]


def test_no_file_is_wrong_usage(run: Any) -> None:
    assert run("broker", "check", "none.toml").code == 2
    assert run("broker", "check").code == 2


def heard(process: Any, *words: str) -> str:
    """The next line of a broker's log that has one of these words in it."""
    while True:
        line = process.stderr.readline()
        assert line, "it ended"
        if any(word in line for word in words):
            return str(line)


RELOADED = ("configuration.reloaded", "configuration.not_reloaded")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_hang_up_lets_it_read_its_file_again(start: Any, tmp_path: Path, workers: int) -> None:
    file = tmp_path / "broker.toml"
    text = f"store = 'data'\nlisten.port = 0\nadmin.port = 0\nworkers = {workers}\n[queues.one]\n[queues.two]\n"
    file.write_text(text)
    broker = start("broker", "--config", "broker.toml")
    broker.url()
    admin = broker.line().rpartition(" ")[2]
    file.write_text("default_queue = 'two'\n" + text)
    broker.process.send_signal(signal.SIGHUP)
    for _ in range(workers):
        assert "changed='default_queue'" in heard(broker.process, *RELOADED)
    file.write_text("default_queue = 'tow'\n" + text)
    broker.process.send_signal(signal.SIGHUP)
    for _ in range(workers):
        told = heard(broker.process, *RELOADED)
        assert "event='configuration.not_reloaded'" in told
        assert "Correct the file" in told
    if workers > 1:  # whoever is asked has all of them told
        file.write_text(text)
        asked = urllib.request.Request(admin + "/reload", method="POST")
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert json.load(answer) == {"changed": ["default_queue"]}
        for _ in range(workers):
            assert "changed='default_queue'" in heard(broker.process, *RELOADED)
    broker.process.send_signal(signal.SIGTERM)
    assert broker.end().code == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_policy_that_no_forwarder_has_is_logged_once_at_each_reading(
    start: Any, tmp_path: Path, workers: int
) -> None:
    file = tmp_path / "broker.toml"
    text = f"store = 'data'\nlisten.port = 0\nadmin.enabled = false\nworkers = {workers}\n[queues.one]\n[queues.two]\n"
    text += "".join(f"[forwarders.{q}]\nqueue = '{q}'\nto = 'http://h/'\npaused = true\n" for q in ("one", "two"))
    file.write_text(f'{text}[policies."name:ordrs"]\nsending.keep_alive = "5s"\n')
    broker = start("broker", "--config", "broker.toml")
    told = heard(broker.process, "policy.unused")
    assert "level='warning'" in told and "pattern='name:ordrs'" in told and "no forwarder has this name" in told
    told = heard(broker.process, "forwarder.address_shared")
    assert "level='warning'" in told and "to='http://h/'" in told
    broker.url()
    file.write_text(f'{text}[policies."name:odrers"]\nsending.keep_alive = "5s"\n')
    broker.process.send_signal(signal.SIGHUP)
    assert "pattern='name:odrers'" in heard(broker.process, "policy.unused")
    broker.process.send_signal(signal.SIGTERM)
    result = broker.end()
    assert (result.code, "policy.unused" in result.err) == (0, False)


def test_an_existing_store_is_not_called_new(run: Any, tmp_path: Path) -> None:
    (tmp_path / "broker.toml").write_text(GOOD)
    RocksDBStore(tmp_path / "data").close()
    result = run("broker", "check", "broker.toml")
    assert f"store       {tmp_path / 'data'}, an existing store, 1 worker\n" in result.out


def test_a_file_in_place_of_a_command_is_told_the_option(run: Any) -> None:
    result = run("broker", "broker.toml")
    assert (result.code, "--config broker.toml" in result.err) == (2, True)
