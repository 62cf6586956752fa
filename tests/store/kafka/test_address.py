"""URLs of logs, the settings that a topic must have, and the directories of caches. Covers store/kafka/requirements.py
and store/kafka/cache.py.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from holdfast.endpoint.worker import Worker
from holdfast.exceptions import ConfigurationError, StoreFormatError
from holdfast.store import is_kafka, is_remote, open_store, shown
from holdfast.store.kafka import cache
from holdfast.store.kafka.address import KafkaAddress, read_kafka_address
from holdfast.store.kafka.replay import Checkpoint
from holdfast.store.kafka.requirements import require_compacted, require_safe, settings_of, settings_of_compacted

URL = "kafka://a:9092,b:9093/orders?cache=/var/cache"


def test_a_url_names_the_brokers_the_topic_and_the_cache() -> None:
    found = read_kafka_address(f"{URL}&partition=3&replicas=2&patience=5&security.protocol=SSL&ssl.ca.location=/ca")
    assert (found.servers, found.topic, found.partition) == ("a:9092,b:9093", "orders", 3)
    assert found.place == Path("/var/cache/partition-3")
    assert (found.partitions, found.replicas, found.patience) == (24, 2, 5.0)
    assert found.options == {"security.protocol": "SSL", "ssl.ca.location": "/ca"}


def test_a_user_and_a_password_are_those_of_sasl_and_are_not_shown() -> None:
    found = read_kafka_address("kafka://me:s3cret%2F@a:1/orders?cache=/c&sasl.mechanism=PLAIN&partition=2")
    assert found.options == {"sasl.username": "me", "sasl.password": "s3cret/", "sasl.mechanism": "PLAIN"}
    assert found.shown == "kafka://me@a:1/orders?cache=/c&partition=2"
    assert "s3cret" not in repr(found)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("kafka:///orders?cache=/c", "names no brokers"),
        ("kafka://a/orders?cache=/c", "names no brokers"),
        ("kafka://a:1,b/orders?cache=/c", "names no brokers"),
        ("kafka://a:1?cache=/c", "names no topic"),
        ("kafka://a:1/or/ders?cache=/c", "names no topic"),
        ("kafka://a:1/..?cache=/c", "names no topic"),
        ("kafka://a:1/orders", "names no directory"),
        ("kafka://a:1/orders?cache=relative", "names no directory"),
        (f"{URL}&partition=x", "not a valid partition"),
        (f"{URL}&partitions=0", "not a valid partitions"),
        (f"{URL}&replicas=-1", "not a valid replicas"),
        (f"{URL}&acks=1", "unknown option 'acks'"),
        (f"{URL}&sasl.password=x", "as an option"),
    ],
)
def test_a_wrong_url_is_refused_with_a_remedy(url: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        read_kafka_address(url)
    assert caught.value.remedy


def test_a_setting_that_kafkas_client_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="refuses a setting"):
        open_store(f"{URL}&ssl.nothing=1")


def test_each_worker_has_the_partition_of_its_number() -> None:
    assert Worker(0, 3).store_of(URL) == URL
    assert Worker(2, 3).store_of(f"{URL}&partition=0") == f"{URL}&partition=2"
    assert is_kafka("KAFKA://x") and is_remote(URL) and not is_kafka("/kafka://x")
    assert shown(URL) == URL


# --- topics ----------------------------------------------------------------------------------------------------------


WRONG = {
    "cleanup.policy": ("compact", "compact,delete"),
    "retention.ms": ("604800000",),
    "retention.bytes": ("1000000",),
    "unclean.leader.election.enable": ("true",),
    "min.insync.replicas": ("1",),
    "max.message.bytes": ("1000",),
}
"""Settings of a topic -> values that are not safe."""


def wanting(replicas: int, options: str = "") -> KafkaAddress:
    return read_kafka_address(f"kafka://a:9092,b:9093/orders?cache=/c&replicas={replicas}{options}")


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_new_topic_is_safe(replicas: int) -> None:
    assert require_safe(settings_of(replicas), replicas, wanting(replicas)) == (8 << 20) - 256


@pytest.mark.parametrize(("changed", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_topic_that_may_lose_messages_is_refused(changed: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=changed) as caught:
        require_safe({**settings_of(3), changed: value}, 3, wanting(3))
    assert f"--add-config {changed}=" in caught.value.remedy


@pytest.mark.parametrize("count", range(1, len(WRONG) + 1))
def test_one_error_names_all_wrong_settings_and_its_command_repairs_them(count: int) -> None:
    for names in combinations(WRONG, count):
        found = {**settings_of(3), **{name: WRONG[name][0] for name in names}}
        with pytest.raises(ConfigurationError) as caught:
            require_safe(found, 3, wanting(3))
        error = caught.value
        assert [name for name in WRONG if f"{name} is" in error.message] == list(names)
        assert "'orders'" in error.message
        command = error.remedy.partition(": ")[2].split()
        assert command[:3] == ["kafka-configs", "--bootstrap-server", "a:9092,b:9093"]
        assert command[3:-1] == ["--alter", "--entity-type", "topics", "--entity-name", "orders", "--add-config"]
        repaired = dict(one.split("=") for one in command[-1].split(","))
        assert repaired.keys() == set(names)
        require_safe({**found, **repaired}, 3, wanting(3))


def test_the_command_for_a_kafka_with_logins_has_a_place_for_them() -> None:
    with pytest.raises(ConfigurationError) as caught:
        require_safe({**settings_of(3), "retention.ms": "1"}, 3, wanting(3, "&security.protocol=SSL"))
    assert " --command-config FILE " in caught.value.remedy


def test_a_new_topic_of_the_nodes_is_safe_and_one_that_forgets_keys_is_refused() -> None:
    require_compacted({**settings_of_compacted(3), "max.message.bytes": "1048588"}, 3, wanting(3))
    with pytest.raises(ConfigurationError, match=r"cleanup\.policy is 'delete'"):
        require_compacted(settings_of(3), 3, wanting(3))


def test_fewer_replicas_than_required_are_refused_unless_the_url_accepts_them() -> None:
    with pytest.raises(ConfigurationError, match="1 replica, and 3 are required"):
        require_safe(settings_of(3), 1, wanting(3))
    with pytest.raises(ConfigurationError, match=r"retention\.ms is '1'.*1 replica, and 3 are required"):
        require_safe({**settings_of(3), "retention.ms": "1"}, 1, wanting(3))
    require_safe({**settings_of(1), "max.message.bytes": "1048588"}, 1, wanting(1))


# --- caches ----------------------------------------------------------------------------------------------------------

LOG = {"cluster": "c", "topic": "orders", "topic_id": "t", "partition": "0"}


def test_a_cache_is_known_by_its_log(tmp_path: Path) -> None:
    cache.require_own(tmp_path / "missing", LOG)
    cache.require_own(tmp_path, LOG)
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "old").touch()
    cache.mark(tmp_path, LOG)
    assert not (tmp_path / "db").exists(), "nobody knows what the old content was"
    (tmp_path / "db").mkdir()
    cache.mark(tmp_path, LOG)
    assert (tmp_path / "db").exists()
    cache.require_own(tmp_path, LOG)


@pytest.mark.parametrize("changed", ["cluster", "topic_id", "partition"])
def test_the_cache_of_another_log_is_refused_and_stays(tmp_path: Path, changed: str) -> None:
    cache.mark(tmp_path, {**LOG, changed: "another"})
    before = (tmp_path / cache.MARKER).read_bytes()
    with pytest.raises(StoreFormatError, match="belongs to another log") as caught:
        cache.require_own(tmp_path, LOG)
    assert "rm -r" in caught.value.remedy
    assert (tmp_path / cache.MARKER).read_bytes() == before


def test_a_directory_with_other_files_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "letters").touch()
    with pytest.raises(StoreFormatError, match="'letters'"):
        cache.require_own(tmp_path, LOG)


def test_a_cache_of_another_format_or_with_a_torn_marker_is_rebuilt(tmp_path: Path) -> None:
    for text in ('{"format": 99, "cluster": "other"}', '{"format"', "[]"):
        (tmp_path / cache.MARKER).write_text(text)
        (tmp_path / "db").mkdir()
        cache.require_own(tmp_path, LOG)
        cache.mark(tmp_path, LOG)
        assert not (tmp_path / "db").exists()


def test_a_checkpoint_is_read_as_it_was_written() -> None:
    checkpoint = Checkpoint(7, 2, 5, 1 << 40, 3)
    assert cache.decode_checkpoint(cache.encode_checkpoint(checkpoint)) == checkpoint
    assert cache.decode_checkpoint(None) is None
