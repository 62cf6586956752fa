"""The table [cluster]: what a broker needs to be one of several nodes, and what is refused there."""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from holdfast.broker.cluster_config import ClusterConfig
from holdfast.broker.config import BrokerConfig
from holdfast.broker.config_changes import what_changes
from holdfast.broker.config_file import parse_config
from holdfast.exceptions import ConfigurationError, ConfigurationMistakes

SECRET = "0123456789abcdef" * 2
STORE = "store = 'postgresql://u@h/n'\n"
CLUSTER = f"{STORE}[cluster]\nsecret_env = 'CLUSTER_SECRET'\n"
ON_KAFKA = CLUSTER.replace("postgresql://u@h/n", "kafka://k1:9092/holdfast?cache=/var/cache/holdfast")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTER_SECRET", SECRET)
    monkeypatch.setenv("SHORT_SECRET", SECRET[:15])
    monkeypatch.delenv("HOLDFAST_NODE", raising=False)
    monkeypatch.delenv("HOLDFAST_NODE_URL", raising=False)


def parse(text: str, running: BrokerConfig | None = None) -> BrokerConfig:
    return parse_config(text.encode(), "broker.toml", Path("."), running=running)


def test_a_file_without_the_table_is_one_of_a_single_broker() -> None:
    assert parse(STORE).cluster is None


def test_a_node_is_named_after_its_machine_unless_something_else_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = parse(CLUSTER).cluster
    assert cluster is not None
    assert cluster.secret is not None
    assert cluster.secret.reveal() == SECRET
    assert cluster.node_name() == socket.gethostname()
    monkeypatch.setenv("HOLDFAST_NODE", "b")
    assert cluster.node_name() == "b"
    assert ClusterConfig(node="a").node_name() == "a"


@pytest.mark.parametrize("name", ["a b", "-a", "a" * 65])
def test_a_name_in_the_environment_is_checked_too(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("HOLDFAST_NODE", name)
    with pytest.raises(ConfigurationError, match="is not a valid name of a node") as caught:
        ClusterConfig().node_name()
    assert "HOLDFAST_NODE" in caught.value.remedy


@pytest.mark.parametrize(
    ("keys", "url"),
    [
        ({}, "http://127.0.0.1:9"),
        ({"host": "::1"}, "http://[::1]:9"),
        ({"host": "0.0.0.0"}, f"http://{socket.gethostname()}:9"),
        ({"host": "0.0.0.0", "url": "http://b.example:7/"}, "http://b.example:7"),
    ],
)
def test_the_url_of_a_node_follows_from_its_listener(keys: dict[str, str], url: str) -> None:
    assert ClusterConfig(**keys).node_url(9) == url  # type: ignore[arg-type]


def test_the_environment_gives_the_url_that_the_file_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_NODE_URL", "http://c.example:7/")
    assert ClusterConfig().node_url(9) == "http://c.example:7"
    assert ClusterConfig(url="http://d.example").node_url(9) == "http://d.example"
    monkeypatch.setenv("HOLDFAST_NODE_URL", "c.example:7")
    with pytest.raises(ConfigurationError, match="HOLDFAST_NODE_URL"):
        ClusterConfig().node_url(9)


def test_the_url_of_the_admin_listener_may_be_given_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_NODE_ADMIN_URL", raising=False)
    assert ClusterConfig().given_admin_url() == ""
    monkeypatch.setenv("HOLDFAST_NODE_ADMIN_URL", "https://c.example:8081/")
    assert ClusterConfig().given_admin_url() == "https://c.example:8081"
    assert ClusterConfig(admin_url="https://d.example:8081").given_admin_url() == "https://d.example:8081"
    monkeypatch.setenv("HOLDFAST_NODE_ADMIN_URL", "c.example:8081")
    with pytest.raises(ConfigurationError, match="HOLDFAST_NODE_ADMIN_URL"):
        ClusterConfig().given_admin_url()


@pytest.mark.parametrize(
    ("text", "key", "what", "remedy"),
    [
        (
            "[cluster]\nsecret_env='CLUSTER_SECRET'",
            "store",
            "common PostgreSQL database",
            "postgresql://user@host/name",
        ),
        (CLUSTER.replace("postgresql", "mysql"), "store", "common PostgreSQL database", "postgresql://"),
        ("workers = 2\n" + CLUSTER, "workers", "one process for each of its partitions", "Remove workers"),
        (f"{STORE}[cluster]", "cluster", "the secret that the nodes share is missing", "secret_file"),
        (f"{STORE}[cluster]\nsecret_env='SHORT_SECRET'", "cluster.secret_env", "shorter than 16", "openssl rand"),
        (f"{STORE}[cluster]\nsecret_file='secret'", "cluster.secret_file", "cannot be read", "Relative paths"),
        (f"{CLUSTER}partitions = 65", "cluster.partitions", "it cannot be 65", "at most 64"),
        (f"{CLUSTER}lease = '500ms'", "cluster.lease", 'it cannot be "500ms"', "at least 1"),
        (f"{CLUSTER}port = 8081", "cluster.port", "both listeners use 127.0.0.1:8081", "than admin.port"),
        (f"{CLUSTER}host = '0.0.0.0:8082'", "cluster.host", '"0.0.0.0:8082" is not a host', "the port is a setting"),
        (f"{CLUSTER}url = 'http://a:8082/b'", "cluster.url", "has a path", "only the scheme"),
        (f"{CLUSTER}node = 'a b'", "cluster.node", "not a valid name", "letters"),
        (f"{CLUSTER}[security]\nusers = {{}}", "security.users", "not the path", "quotes"),
        (ON_KAFKA.replace("?", "?partitions=6&"), "store", "24 partitions needs a topic with as many, not 6", "Remove"),
        (f"{ON_KAFKA}memory = '.'", "cluster.memory", "by itself", "Remove this key"),
    ],
)
def test_each_mistake_names_its_key_and_the_remedy(text: str, key: str, what: str, remedy: str) -> None:
    with pytest.raises(ConfigurationMistakes) as caught:
        parse(text)
    (one,) = caught.value.mistakes
    assert (one.key, what in one.what, remedy in one.remedy) == (key, True, True), one


@pytest.mark.parametrize("memory", ["file", "file/below", "locked", "new/below", "."])
def test_a_memory_that_cannot_be_written_is_refused(
    memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "locked").mkdir()
    monkeypatch.setattr("os.access", lambda path, mode: Path(path).name != "locked")
    text = f"{CLUSTER}memory = '{memory}'\n".encode()
    if memory in ("new/below", "."):
        assert parse_config(text, "broker.toml", tmp_path).cluster is not None
        return
    with pytest.raises(ConfigurationMistakes) as caught:
        parse_config(text, "broker.toml", tmp_path)
    (one,) = caught.value.mistakes
    assert (one.key, "restored database" in one.what, "may write to" in one.remedy) == ("cluster.memory", True, True)


@pytest.mark.parametrize("cluster", [CLUSTER, ON_KAFKA])
def test_a_cluster_remembers_in_its_database_and_not_in_a_file_of_one_machine(cluster: str, tmp_path: Path) -> None:
    (tmp_path / "users.txt").write_text("alice:s3cret\n")
    text = f"{cluster}[security]\nusers = 'users.txt'\n"
    assert parse_config(text.encode(), "broker.toml", tmp_path).security.users is not None
    with pytest.raises(ConfigurationMistakes) as caught:
        parse_config(f"{text}nonces = 'nonces.db'".encode(), "broker.toml", tmp_path)
    (one,) = caught.value.mistakes
    assert (one.key, "remember nonces in their database" in one.remedy) == ("security.nonces", True)


def test_what_overrides_the_file_is_checked_like_the_file() -> None:
    for instead, key in (({"workers": 3}, "workers"), ({"store": "inbox"}, "store")):
        with pytest.raises(ConfigurationMistakes) as caught:
            parse_config(CLUSTER.encode(), "broker.toml", Path(), instead=instead)
        assert [one.key for one in caught.value.mistakes] == [key]


def test_the_url_is_not_known_before_the_node_listens_at_a_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ClusterConfig(host="0.0.0.0").node_url(0) is None
    monkeypatch.setenv("HOLDFAST_NODE_URL", "http://c.example:7/")
    assert ClusterConfig(host="0.0.0.0").node_url(0) == "http://c.example:7"


def test_with_tls_the_urls_of_nodes_are_https(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "node.pem"))
    text = f"{CLUSTER}tls = {{ certificate = 'node.pem', ca = 'ca.pem' }}\n"
    cluster = parse_config(text.encode(), "broker.toml", tmp_path).cluster
    assert cluster is not None
    assert cluster.node_url(9) == "https://127.0.0.1:9"
    access = cluster.access()
    assert access.is_encrypted and access.accepting is not None
    assert access.accepting.verify_mode is ssl.CERT_REQUIRED
    monkeypatch.setenv("HOLDFAST_NODE_URL", "http://c.example:7/")
    with pytest.raises(ConfigurationError, match="cannot be the URL of a node in a cluster with TLS") as caught:
        cluster.node_url(9)
    assert "https://" in caught.value.remedy
    wrong_files = f"{CLUSTER}tls = {{ certificate = 'ca.pem', ca = 'ca.pem' }}"
    for key, wrong in (("cluster.url", f"{text}url = 'http://c.example:7'"), ("cluster.tls", wrong_files)):
        with pytest.raises(ConfigurationMistakes) as mistakes:
            parse_config(wrong.encode(), "broker.toml", tmp_path)
        assert [one.key for one in mistakes.value.mistakes] == [key]


TLS = f"{CLUSTER}tls = {{ certificate = 'node.pem', ca = 'ca.pem' }}\n"
NODE1 = "url = 'https://node1.example:7'\n"


def test_an_authority_that_expires_within_two_weeks_is_told_too(tmp_path: Path) -> None:
    until = datetime.now(UTC) + timedelta(days=10)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nodes")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(until - timedelta(days=90)).not_valid_after(until)
    old = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True).sign(key, SHA256())
    write_certificates(tmp_path, "127.0.0.1")
    cluster = parse_config(TLS.encode(), "broker.toml", tmp_path).cluster
    assert cluster is not None and cluster.expiring_certificates() == {}
    with (tmp_path / "ca.pem").open("ab") as file:
        file.write(old.public_bytes(Encoding.PEM))
    assert cluster.expiring_certificates() == {str(tmp_path / "ca.pem"): f"{until:%Y-%m-%d}"}


def write_certificates(directory: Path, *names: str, days: float = 365, stranger: bool = False) -> None:
    """Write what TLS names: a certificate for these names that is valid for so many days."""
    authority, until = trustme.CA(), datetime.now(UTC) + timedelta(days=days)
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    leaf = (trustme.CA() if stranger else authority).issue_cert(*names, not_after=until)
    leaf.private_key_and_cert_chain_pem.write_to_path(str(directory / "node.pem"))


@pytest.mark.parametrize(
    ("names", "more", "variable"),
    [
        (("127.0.0.1",), "", ""),
        (("127.0.0.1",), "port = 0", ""),
        (("::1",), "host = '::1'", ""),
        (("node1.example",), NODE1, ""),
        (("node1.example",), "host = '0.0.0.0'", "https://node1.example:7"),
        ((socket.gethostname(),), "host = '0.0.0.0'", ""),
    ],
)
def test_a_node_starts_with_a_certificate_for_the_host_in_its_url(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, names: tuple[str, ...], more: str, variable: str
) -> None:
    monkeypatch.setenv("HOLDFAST_NODE_URL", variable)
    write_certificates(tmp_path, *names)
    cluster = parse_config(f"{TLS}{more}".encode(), "broker.toml", tmp_path).cluster
    assert cluster is not None and cluster.expiring_certificates() == {}


@pytest.mark.parametrize(
    ("names", "days", "stranger", "reason"),
    [
        (("node1.example",), -1, False, "certificate has expired"),
        (("node2.example",), 365, False, "not valid for 'node1.example'"),
        (("127.0.0.1",), 365, False, "not valid for 'node1.example'"),
        (("node1.example",), 365, True, "unable to get local issuer certificate"),
    ],
)
def test_a_node_whose_certificate_others_would_refuse_does_not_start(
    tmp_path: Path, names: tuple[str, ...], days: float, stranger: bool, reason: str
) -> None:
    write_certificates(tmp_path, *names, days=days, stranger=stranger)
    with pytest.raises(ConfigurationMistakes) as caught:
        parse_config(f"{TLS}{NODE1}".encode(), "broker.toml", tmp_path)
    (one,) = caught.value.mistakes
    assert (one.key, one.line) == ("cluster.tls", 4)
    assert "other nodes would refuse" in one.what and reason in one.what
    assert "must be for node1.example" in one.remedy and "ca.pem" in one.remedy


def test_a_node_that_runs_reloads_with_a_certificate_that_others_have_come_to_refuse(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_certificates(tmp_path, "127.0.0.1", days=10)
    running = parse_config(TLS.encode(), "broker.toml", tmp_path)
    monkeypatch.setenv("HOLDFAST_NODE_URL", "https://node2.example:7")
    with pytest.raises(ConfigurationMistakes, match="other nodes would refuse"):
        parse_config(TLS.encode(), "broker.toml", tmp_path)
    again = parse_config(TLS.encode(), "broker.toml", tmp_path, running=running).cluster
    assert again is not None and again.expiring_certificates() == {}


def test_a_running_node_takes_other_certificates_but_keeps_tls_and_all_else(tmp_path: Path) -> None:
    write_certificates(tmp_path, "127.0.0.1")
    running = parse_config(TLS.encode(), "broker.toml", tmp_path)
    write_certificates(tmp_path, "127.0.0.1")
    again = parse_config(TLS.encode(), "broker.toml", tmp_path, running=running)
    assert what_changes(running, again) == ["cluster.tls.certificate", "cluster.tls.ca"]
    for text, key in ((CLUSTER, "cluster.tls"), (f"{TLS}lease = 9\n", "cluster.lease")):
        with pytest.raises(ConfigurationMistakes, match="cannot change while the broker runs") as caught:
            parse_config(text.encode(), "broker.toml", tmp_path, running=running)
        assert [one.key for one in caught.value.mistakes] == [key]


@pytest.mark.parametrize(("days", "is_told"), [(13, True), (15, False)])
def test_a_certificate_that_expires_within_two_weeks_is_told_with_its_last_day(
    tmp_path: Path, days: float, is_told: bool
) -> None:
    write_certificates(tmp_path, "127.0.0.1", days=days)
    cluster = parse_config(TLS.encode(), "broker.toml", tmp_path).cluster
    assert cluster is not None
    told = cluster.expiring_certificates()
    assert list(told) == ([str(tmp_path / "node.pem")] if is_told else [])
    assert all(datetime.fromisoformat(day) > datetime.now() + timedelta(days=11) for day in told.values())


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        (CLUSTER, f"{CLUSTER}lease = 9", "cluster.lease"),
        (f"{CLUSTER}lease = 9", CLUSTER, "cluster.lease"),
        (STORE, CLUSTER, "cluster"),
        (CLUSTER, STORE, "cluster"),
    ],
)
def test_a_running_broker_does_not_change_its_cluster(old: str, new: str, key: str) -> None:
    with pytest.raises(ConfigurationMistakes, match="cannot change while the broker runs") as mistakes:
        parse(new, running=parse(old))
    assert [one.key for one in mistakes.value.mistakes] == [key]
