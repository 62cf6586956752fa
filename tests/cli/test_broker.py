"""`holdfast broker check`: what a configuration would open, or every mistake in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
        "store       data, 4 partitions",
        "listens     http://127.0.0.1:8080/",
        "queue       orders, keeps 7d 10GB readers 30d",
        "routes      1, else refused",
        "forwarder   orders, orders to https://partner.example/orders, paused",
    ):
        assert told in result.out
    facts = json.loads(run("broker", "check", "broker.toml", "--json").out)
    assert facts["forwarders"]["orders"]["paused"] is True
    assert facts["default_queue"] is None


def test_a_bad_file_says_all_that_is_wrong_and_ends_with_1(run: Any, tmp_path: Path) -> None:
    (tmp_path / "broker.toml").write_text(GOOD.replace("paused", "pausd").replace('"orders"', '"ordrs"', 1))
    result = run("broker", "check", "broker.toml")
    assert (result.code, result.out) == (1, "")
    assert "broker.toml has 2 mistakes, and nothing of it is used:" in result.err
    assert "broker.toml:7: routes[1].queues: there is no queue 'ordrs'. Did you mean 'orders'?" in result.err
    assert "broker.toml:11: forwarders.orders.pausd: there is no key 'pausd' here. Did you mean 'paused'?" in result.err
    told = json.loads(run("broker", "check", "--json", "broker.toml").out)
    assert [(one["line"], one["key"]) for one in told["mistakes"]] == [
        (7, "routes[1].queues"),
        (11, "forwarders.orders.pausd"),
    ]
    assert told["kind"] == "ConfigurationMistakes"


def test_no_file_is_wrong_usage(run: Any) -> None:
    assert run("broker", "check", "none.toml").code == 2
    assert run("broker", "check").code == 2
