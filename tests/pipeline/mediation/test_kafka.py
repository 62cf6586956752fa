"""Pipelines from and to a real Kafka, by Spark's own connector, and between our queues through a topic.

Covers pipeline/mediation/kafka/cluster.py.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import deltalake
import maven_build
import pytest
from kafka_topics import KafkaTopics
from meddler import Meddler
from pipeline_driver import Driver, bodies_in, broker_with

import holdfast

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(maven_build.available() is not None, reason=maven_build.available() or ""),
]

CONNECTOR = Path(__file__).parents[1] / "kafka" / "connector" / "pom.xml"
SOURCE = str(Path(__file__).parents[3] / "src")


@pytest.fixture(scope="session")
def jars(pytestconfig: pytest.Config) -> str:
    """Spark's connector."""
    assert pytestconfig.cache is not None
    try:
        found = maven_build.fetch(pytestconfig.cache.mkdir("kafka-connector"), CONNECTOR)
    except maven_build.Unavailable as error:
        pytest.skip(str(error))
    return ",".join(map(str, sorted(found.glob("*.jar"))))


@pytest.fixture(scope="session")
def kafka(kafka_nodes: Callable[[int], Any]) -> KafkaTopics:
    return KafkaTopics(kafka_nodes(1).servers)


HOP = """\
name = "hop"
checkpoint = "checkpoint"
[sources.incoming]
kafka = "{kafka}"
topic = "in"
once = true
[steps.read]
input = "incoming"
parse = {{ schema = "n INT", element = "a", into = "a" }}
[[routes]]
input = "read"
to = ["out", "kept"]
[[routes]]
input = "incoming"
to = "out"
[sinks.out]
kafka = "{kafka}"
topic = "out"
headers = "map('source', queue)"
[sinks.kept]
table = "kept"
[dead_letters]
table = "dead"
"""


TIMED = """\
name = "timed"
checkpoint = "checkpoint"
[sources.incoming]
kafka = "{0}"
topic = "timed"
[sources.incoming.options]
startingOffsets = '{{"timed": {{"0": 1}}}}'
[steps.read]
sql = "SELECT *, try_cast(body AS TIMESTAMP) AS at FROM incoming"
[steps.counted]
sql = "SELECT at, count(*) AS many FROM read GROUP BY at"
state = {{ time = "at" }}
[[routes]]
input = "counted"
to = "out"
[sinks.out]
table = "out"
[dead_letters]
table = "dead"
"""


QUICK_HOP = """\
name = "quick"
checkpoint = "checkpoint"
[sources.incoming]
kafka = "{0}"
topic = "quick-in"
[[routes]]
input = "incoming"
to = "out"
[sinks.out]
kafka = "{0}"
topic = "quick-out"
key = "key"
"""


@pytest.mark.nightly
def test_a_pipeline_carries_records_with_keys_headers_and_an_identity(
    kafka: KafkaTopics, jars: str, tmp_path: Path
) -> None:
    for topic in ("quick-in", "quick-out"):
        kafka.create(topic, 1)
    kafka.send("quick-in", 0, "<a/>", "k", message_id="urn:1", other="x")
    kafka.send("quick-in", 0, None)
    file = tmp_path / "quick.toml"
    file.write_text(QUICK_HOP.format(kafka.address))
    code, lines, errors = Driver(file, "--jars", jars).run("--available-now")
    assert code == 0, errors
    assert lines[-1]["cursors"] == {"incoming": {"quick-in": {"0": 2}}}
    keyed, tombstone = sorted(kafka.records("quick-out"), key=lambda one: one.value is None)
    assert (keyed.key, keyed.value, keyed.headers["message_id"]) == ("k", "<a/>", "urn:1")
    assert (tombstone.value, tombstone.headers["holdfast_batch"]) == (None, "0")
    assert tombstone.key == "/".join(tombstone.headers[f"holdfast_{name}"] for name in ("writer", "batch", "row"))


@pytest.mark.nightly
def test_a_topic_is_read_once_and_each_sent_record_has_its_own_identity(
    kafka: KafkaTopics, jars: str, tmp_path: Path
) -> None:
    for topic in ("in", "out"):
        kafka.create(topic, 2)
    own = {"holdfast_writer": "w", "holdfast_batch": "3"}
    for row in ("0", "1", "0", "1"):  # sent again after a crash
        kafka.send("in", 0, f"<a><n>{row}</n></a>", "k", **own, holdfast_row=row, message_id=f"urn:{row}")
    kafka.send("in", 1, "<a><n>no number</n></a>", action="urn:act")
    kafka.send("in", 1, None, "gone")
    file = tmp_path / "hop.toml"
    file.write_text(HOP.format(kafka=kafka.address))
    code, lines, errors = Driver(file, "--jars", jars).run("--available-now")
    assert code == 0, errors
    assert [(one["rows"], one["doubles"], one["dead"]) for one in lines if one["event"] == "batch"] == [(6, 2, 2)]
    assert lines[-1]["cursors"] == {"incoming": {"in": {"0": 4, "1": 2}}}
    sent = kafka.records("out")
    good = [one.value for one in sent if one.headers.get("message_id") == "urn:1"]
    assert good == ["<a><n>1</n></a>"] * 2, "by two routes"
    assert len(sent) == 6
    assert len({(one.headers["holdfast_writer"], one.headers["holdfast_row"]) for one in sent}) == 6
    for one in sent:
        assert one.headers["source"] == "in"
        assert one.key == "/".join(one.headers[f"holdfast_{name}"] for name in ("writer", "batch", "row"))
        assert one.headers["holdfast_writer"].startswith("hop.out/")
    tables = [deltalake.DeltaTable(str(tmp_path / name)) for name in ("kept", "dead/query=incoming")]
    kept, letters = (table.to_pyarrow_table().to_pylist() for table in tables)
    assert sorted(row["a"]["n"] for row in kept) == [0, 1]
    assert sorted((row["queue"], row["partition"], row["offset"]) for row in letters) == [("in", 1, 0), ("in", 1, 1)]


@pytest.mark.nightly
def test_records_without_a_time_are_dead_letters_of_a_repeated_first_batch(
    kafka: KafkaTopics, jars: str, tmp_path: Path
) -> None:
    kafka.create("timed", 1)
    for value in ("before the start", "no time", "2020-01-01T00:00:00Z", "never"):
        kafka.send("timed", 0, value)
    file = tmp_path / "timed.toml"
    file.write_text(TIMED.format(kafka.address))

    def letters() -> set[tuple[int, str]]:
        table = deltalake.DeltaTable(tmp_path / "dead" / "query=counted").to_pyarrow_table()
        return {(row["offset"], row["body"]) for row in table.to_pylist()}

    def first_batch() -> tuple[int, ...]:
        code, lines, errors = Driver(file, "--jars", jars).run("--available-now")
        assert code == 0, errors
        batch = next(one for one in lines if one["event"] == "batch")
        return tuple(batch[name] for name in ("batch", "rows", "late", "dead"))

    assert first_batch() == (0, 3, 2, 2)
    assert letters() == {(1, "no time"), (3, "never")}
    # As if the driver had been killed after Spark planned batch 0.
    query = tmp_path / "checkpoint" / "queries" / "counted"
    for place in (query / "commits", query / "holdfast-settled", query / "state", tmp_path / "dead", tmp_path / "out"):
        shutil.rmtree(place, ignore_errors=True)
    for offset in (query / "offsets").iterdir():
        if offset.name.strip(".") not in ("0", "0.crc"):
            offset.unlink()
    kafka.send("timed", 0, "of a later batch")
    assert first_batch() == (0, 3, 2, 2)
    assert letters() == {(1, "no time"), (3, "never"), (4, "of a later batch")}


@pytest.mark.nightly
def test_a_dry_run_samples_topics_and_reports_a_missing_topic_or_connector(
    kafka: KafkaTopics, jars: str, tmp_path: Path
) -> None:
    kafka.create("sampled", 2)
    for number in range(20):
        kafka.send("sampled", number % 2, f"<a><n>{number}</n></a>")
    text = HOP.format(kafka=kafka.address).replace('"in"', '"sampled"')
    file = tmp_path / "hop.toml"
    file.write_text(text.replace('topic = "out"', 'topic = "sampled"'))
    code, lines, errors = Driver(file, "--jars", jars).run("--dry-run", "--rows", "6", verb="check")
    assert code == 0, errors
    sample = lines[0]["sample"]
    assert sample["read"]["rows"] == 6
    assert {row["partition"] for row in sample["incoming"]["first"]} <= {0, 1}
    assert not (tmp_path / "checkpoint").exists()
    assert len(kafka.records("sampled")) == 20

    file.write_text(text.replace('topic = "out"', 'topic = "nowhere"'))
    code, _, errors = Driver(file, "--jars", jars).run("--available-now")
    assert code == 1
    assert "the topic nowhere does not exist" in errors
    assert "nowhere" not in kafka.topics()
    code, _, errors = Driver(file).run("--available-now")
    assert code == 1
    assert "Add --packages org.apache.spark:spark-sql-kafka-0-10_2.13:" in errors


@pytest.mark.nightly
def test_a_secret_of_a_client_that_the_cluster_refuses_is_in_no_output(
    kafka: KafkaTopics, jars: str, tmp_path: Path
) -> None:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    secret = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
    secret += f'sasl.jaas.config={module} required username="u" password="geheim";\n'
    (tmp_path / "client.properties").write_text(secret)
    text = HOP.format(kafka=kafka.address).replace("once = true", 'properties_file = "client.properties"')
    file = tmp_path / "hop.toml"
    file.write_text(text)
    code, lines, errors = Driver(file, "--jars", jars, "--verbose").run("--available-now")
    assert code == 1
    assert f"Kafka at {kafka.address} does not answer" in errors
    assert "geheim" not in errors + json.dumps(lines)


# --- from a queue through a topic to a queue --------------------------------------------------------------------------


ORDERS = 60
OUT = """\
name = "out"
checkpoint = "out.checkpoint"
[sources.incoming]
broker = "{broker}"
queue = "orders"
options = {{ maxRowsPerBatch = 40 }}
[[routes]]
input = "incoming"
to = ["topic", "sent"]
[sinks.topic]
kafka = "{kafka}"
topic = "orders"
key = "sequence"
[sinks.sent]
queue = "sent"
"""
IN = """\
name = "in"
checkpoint = "in.checkpoint"
[sources.incoming]
kafka = "{kafka}"
topic = "orders"
once = true
options = {{ maxOffsetsPerTrigger = 35 }}
[[routes]]
input = "incoming"
to = "arrived"
[sinks.arrived]
broker = "{broker}"
queue = "arrived"
key = "key"
message_id = "message_id"
"""


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[tuple[str, str]]:
    async with broker_with(tmp_path, "sent", "arrived") as at:
        yield at


def queued(admin: str, queue: str) -> list[tuple[int, str]]:
    """Customer and number of each order in a queue."""
    found = []
    for body in bodies_in(admin, queue):
        match = re.search(r"<order>(\d+)-(\d+)</order>", body)
        assert match is not None
        found.append((int(match[1]), match[2]))
    return found


async def until_done(driver: Driver) -> list[dict[str, Any]]:
    """Run a pipeline again and again until no life of it is killed; the lines of all."""
    told = []
    while True:
        code, lines, errors = await asyncio.to_thread(driver.run, "--available-now")
        told += lines
        if code == 0:
            return told
        assert code == -signal.SIGKILL or "failed to connect back" in errors, errors


def killing(driver: Driver, sink: str, when: list[tuple[int, str]], first: Callable[[], object]) -> Callable[..., Any]:
    """What a meddler does: kills the driver at the publication of batches, before or after, when ``first`` is done."""

    def meddle(request: str) -> str | None:
        found = re.search(rf"/sinks/{re.escape(sink)}/batches/(\d+)", request)
        if found is None or not when or int(found[1]) != when[0][0]:
            return None
        first()
        driver.kill()
        return when.pop(0)[1]

    return meddle


@pytest.mark.nightly
@pytest.mark.crash
async def test_drivers_killed_on_both_sides_of_a_topic_carry_each_message_once(
    broker: tuple[str, str], kafka: KafkaTopics, jars: str, tmp_path: Path
) -> None:
    url, admin = broker
    kafka.create("orders", 2)
    async with holdfast.Source(url, ":memory:") as source:
        for number in range(ORDERS):
            customer = number % 3
            await source.send(f"<order>{customer}-{number}</order>", action="urn:o", sequence_key=f"c{customer}")
        await source.flush(60)
    meddler = Meddler(admin)
    places = {"broker": meddler.url, "kafka": kafka.address}
    drivers = []
    for name, text in (("out", OUT), ("in", IN)):
        (tmp_path / f"{name}.toml").write_text(text.format(**places))
        drivers.append(Driver(tmp_path / f"{name}.toml", "--jars", jars))
    out, back = drivers

    def reached(records: int) -> Callable[[], None]:
        def wait() -> None:
            while len(kafka.records("orders")) < records:
                pass

        return wait

    # The topic has all of the batch when its driver dies, so all of it is sent again; the queue beside it, or not.
    whens = [(0, "before"), (0, "after")]
    meddler.on_sink = killing(out, "out.sent", whens, reached(40))
    lines = await until_done(out)
    assert whens == []
    there = kafka.records("orders")
    assert len(there) >= ORDERS + 40, "the first batch was sent again"
    assert sorted(queued(admin, "sent")) == sorted((number % 3, str(number)) for number in range(ORDERS))
    assert any(one["event"] == "batch" and one["repeated"] for one in lines)
    identities = {tuple(one.headers[f"holdfast_{name}"] for name in ("writer", "batch", "row")) for one in there}
    assert len(identities) == ORDERS, "a consumer of its own tells them apart"

    whens = [(0, "before"), (1, "after")]
    meddler.on_sink = killing(back, "in.arrived", whens, lambda: None)
    lines = await until_done(back)
    meddler.stop()
    assert whens == []
    arrived = queued(admin, "arrived")
    assert sorted(arrived) == sorted((number % 3, str(number)) for number in range(ORDERS))
    for customer in range(3):
        numbers = [int(number) for one, number in arrived if one == customer]
        assert numbers == sorted(numbers), "each customer's are in their order"
