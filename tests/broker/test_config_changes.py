"""What another configuration changes, and what of it a running broker refuses, with the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.broker.broker import Broker
from holdfast.broker.config import BrokerConfig, ForwarderConfig, RouteConfig
from holdfast.broker.config_changes import what_cannot_change, what_changes, what_nodes_share
from holdfast.broker.config_file import parse_config
from holdfast.exceptions import ConfigurationError, ConfigurationMistakes

BASE = """store = "data"
partitions = 4
listen.port = 8080
[queues.orders]
[queues.bills]
[[routes]]
action = "urn:a"
queues = "orders"
[forwarders.orders]
queue = "orders"
to = "http://partner.example/"
"""


def parse(text: str, running: str | None = None):  # type: ignore[no-untyped-def]
    before = parse(running) if running is not None else None
    return parse_config(text.encode(), "broker.toml", Path("."), running=before)


@pytest.mark.parametrize(
    ("before", "after", "line", "key", "told"),
    [
        ('store = "data"', 'store = "other"', 1, "store", "cannot change while the broker runs"),
        ("partitions = 4", "partitions = 8", 2, "partitions", "cannot change while the broker runs"),
        ("listen.port = 8080", "listen.port = 9090", 3, "listen.port", "cannot change while the broker runs"),
        ("listen.port = 8080", "workers = 2", 3, "workers", "cannot change while the broker runs"),
        ("listen.port = 8080", "admin.enabled = false", 3, "admin.enabled", "cannot change while the broker runs"),
        ("[queues.bills]", "[queues.bills]\n[queues.more]", 6, "queues.more", "a queue cannot be added"),
        ("[queues.bills]", "", 4, "queues.bills", "a queue cannot be removed"),
        (
            "[queues.orders]\n[queues.bills]",
            "[queues.bills]\n[queues.orders]",
            4,
            "queues",
            "the first queue cannot",
        ),
        (
            'queue = "orders"',
            'queue = "bills"',
            10,
            "forwarders.orders.queue",
            "the queue of a forwarder cannot change",
        ),
        ("partner.example", "other.example", 11, "forwarders.orders.to", "the destination of a forwarder"),
    ],
)
def test_what_is_opened_once_is_refused_with_its_line(before: str, after: str, line: int, key: str, told: str) -> None:
    with pytest.raises(ConfigurationMistakes) as caught:
        parse(BASE.replace(before, after), BASE)
    found = [one for one in caught.value.mistakes if one.key == key]
    assert len(found) == 1, caught.value
    assert (found[0].line, told in found[0].what) == (line, True), found
    assert "restart" in found[0].remedy or "another name" in found[0].remedy


def test_whatever_else_changes_is_named_by_its_keys() -> None:
    after = BASE.replace("urn:a", "urn:b").replace("[queues.bills]", '[queues.bills]\nretention = "1d"')
    after += "paused = true\n[forwarders.more]\nqueue = 'bills'\nto = 'http://x/'\n[policies.'*']\nrefusals = 3\n"
    after = "admin.names = 'a.example'\nlimits.max_queues = 7\nlimits.http.max_body = 5\n" + after
    assert what_changes(parse(BASE), parse(after, BASE)) == [
        "admin.names",
        "limits.max_queues",
        "limits.http",
        "queues.bills.retention",
        "routes",
        "forwarders.orders.paused",
        "forwarders.orders.policy",
        "forwarders.more",
        "policies",
    ]
    assert what_changes(parse(BASE), parse(BASE)) == []
    assert list(what_cannot_change(parse(BASE), parse(after))) == []


def test_mistakes_are_told_before_changes_are_looked_at() -> None:
    with pytest.raises(ConfigurationMistakes) as caught:
        parse(BASE.replace("partitions = 4", "partitions = 8").replace("queue =", "quue ="), BASE)
    assert [one.key for one in caught.value.mistakes] == ["forwarders.orders.quue"]


def test_what_a_program_says_is_looked_at_too() -> None:
    forwarder = ForwarderConfig("a", "inbox", "http://x/")
    config = BrokerConfig(
        routes=(RouteConfig(("inbx",), xpath="count(//a)"),),
        forwarders=(forwarder, forwarder),
    )
    with pytest.raises(ConfigurationError) as caught:
        Broker(config)
    for told in (
        "routes.0.queues: the queue 'inbx' does not exist. Did you mean 'inbox'?",
        "'count' at character 1",
        "forwarders.a: several entries",
    ):
        assert told in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "tables"),
    [
        ('store = "data"', 'store = "other"', []),
        ("listen.port = 8080", "listen.port = 9090", []),
        ("listen.port = 8080", "listen.public_url = 'https://api.example/orders'", ["listen.public_url"]),
        ("partitions = 4", "partitions = 8", ["partitions"]),
        ("listen.port = 8080", "default_queue = 'bills'", ["default_queue"]),
        ("listen.port = 8080", "sequences.max_sequences = 5", ["sequences"]),
        ("listen.port = 8080", "limits.max_queues = 5", ["limits"]),
        ("[queues.bills]", "[queues.bills]\nretention = '1d'", ["queues"]),
        ("[queues.bills]", "[queues.bills]\n[queues.more]", ["queues"]),
        ('action = "urn:a"', 'action = "urn:b"', ["routes"]),
        ('action = "urn:a"', "xpath = '/o'", ["routes"]),
        ("partner.example", "other.example", ["forwarders"]),
        ("[queues.orders]", "[policies.'*']\npatience = '1m'\n[queues.orders]", ["forwarders", "policies"]),
    ],
)
def test_nodes_compare_what_they_must_have_alike(before: str, after: str, tables: list[str]) -> None:
    one, other = what_nodes_share(parse(BASE)), what_nodes_share(parse(BASE.replace(before, after, 1)))
    assert one == what_nodes_share(parse(BASE)) and not any(" object at " in text for text in one.values())
    assert [name for name in one if one[name] != other[name]] == tables


def test_nodes_compare_no_secret_and_no_place_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "hidden")
    for name in ("one", "two"):
        (tmp_path / name).write_text("hidden" if name == "one" else "other")
        (tmp_path / f"{name}-users").write_text(f"ann:hidden-{name}\n")

    def shared(users: str, password: str) -> dict[str, str]:
        credentials = f"[forwarders.orders.credentials]\nusername = 'ann'\n{password}\n"
        text = f"{BASE}{credentials}[security]\nusers = '{users}'\n"
        return what_nodes_share(parse_config(text.encode(), "broker.toml", tmp_path))

    one = shared("one-users", "password_file = 'one'")
    assert one == shared("two-users", "password_file = 'two'") == shared("one-users", "password_env = 'PASSWORD'")
    assert not any(word in text for text in one.values() for word in ("hidden", str(tmp_path)))
    (tmp_path / "two-users").write_text("ann:hidden\nbob:hidden\n")
    other = shared("two-users", "password_file = 'one'")
    assert [name for name in one if one[name] != other[name]] == ["security"]


@pytest.mark.parametrize("store", ["postgresql://me@db/orders", "mariadb://me@db/x", "kafka://me@a:1/orders?cache=/c"])
def test_the_password_of_the_store_may_be_replaced_in_its_file(store: str, tmp_path: Path) -> None:
    text = f"store = '{store}'\nstore_password_file = 'password'\n".encode()
    (tmp_path / "password").write_text("old")
    running = parse_config(text, "broker.toml", tmp_path)
    (tmp_path / "password").write_text("new")
    changed = b"allow_addresses = ['http://ann.example']\n" + text
    found = parse_config(changed, "broker.toml", tmp_path, running=running)
    assert found.store_location() == running.store_location()
    assert what_changes(running, found) == ["store_password_file", "allow_addresses"]
    (tmp_path / "other").write_text("new")
    with pytest.raises(ConfigurationMistakes, match="cannot change while the broker runs"):
        parse_config(text.replace(b"'password'", b"'other'"), "broker.toml", tmp_path, running=running)
