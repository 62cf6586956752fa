"""``holdfast cluster``: the nodes and partitions of a cluster, a node's drain, and checks of the cluster's rows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.tables import age_text, json_option, print_table
from holdfast.client.option_types import Seconds
from holdfast.exceptions import ConfigurationError, counted

if TYPE_CHECKING:
    from holdfast.cluster.operating.status import ClusterStatus
    from holdfast.cluster.operating.verification import Verification

DONE, NOT_DONE = 0, 1
INTERVAL = 0.5
"""Seconds between two looks at a cluster."""
MOVE_INTERVAL = 0.1
"""The same during a move, which takes less than a second."""
LOOKS = 3
"""Looks in a row that show that a move is over."""
MOST_NUMBERS = 1000


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cluster() -> None:
    """Show a cluster of brokers, move or release partitions, drain or resume a node, or check the cluster's rows.

    \b
    holdfast cluster status broker.toml
    holdfast cluster drain broker.toml node-2
    holdfast cluster resume broker.toml node-2
    holdfast cluster move broker.toml 0-3,7 node-1
    holdfast cluster release broker.toml 0-3,7
    holdfast cluster verify postgresql://holdfast@db/orders

    CLUSTER is the brokers' configuration file, or the URL of their database or of their topic in Kafka. The commands
    work on any machine that reaches it, also while no node runs.
    """


@cluster.command()
@click.argument("cluster")
@json_option
def status(cluster: str, as_json: bool) -> int:
    """Show the nodes of CLUSTER, and the cluster partitions that each of them owns and serves.

    A node `owns` a partition from its claim on, and `serves` it when the process for it accepts requests. The exit code
    is 0 if every partition is served, no node is expired, failing or unreachable, and no node has partitions although
    its disk has no room for new messages. Otherwise it is 1. --json has the state of each partition, why, and the node
    to which `holdfast cluster move` moved it.
    """
    from holdfast.cluster.operating.engines import engine_of

    location = location_of(cluster)
    found = engine_of(location).read_status(location)
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
    else:
        _print_status(found)
    return NOT_DONE if found.problems else DONE


def _print_status(found: ClusterStatus) -> None:
    click.echo(f"Cluster at {found.place}, {found.server}: {len(found.partitions)} cluster partitions.")
    columns = ("node", "state", "partitions", "owns", "serves", "joined", "url")
    rows = [
        (
            one.name,
            one.state,
            str(len(one.partitions)),
            ranges_text(one.partitions),
            ranges_text(one.serving),
            age_text(one.age),
            one.url,
        )
        for one in found.nodes
    ]
    if rows:
        print_table(columns, rows, right=("partitions",))
    else:
        click.echo("No node is in the cluster.")
    moved: dict[str, list[int]] = {}
    for one in found.partitions:
        if one.moved_to is not None:
            moved.setdefault(one.moved_to, []).append(one.partition)
    for node, numbers in sorted(moved.items()):
        click.echo(f"Moved to {node}, which keeps them: {_partitions(numbers)}.")
    for problem in found.problems:
        click.echo(f"Problem: {problem}")
    for warning in found.warnings:
        click.echo(f"Warning: {warning}")


@cluster.command()
@click.argument("cluster")
@click.argument("node")
@click.option(
    "--timeout", type=Seconds(), default=60.0, show_default=True, help="Maximum seconds to wait; 0: do not wait."
)
def drain(cluster: str, node: str, timeout: float) -> int:
    """Move all partitions away from NODE of CLUSTER, and wait until other nodes serve them.

    The node then passes requests on to the other nodes until you stop it. It takes partitions again after a restart or
    `holdfast cluster resume`. The exit code is 1 if another node does not serve one of its partitions at the end of the
    timeout.
    """
    from holdfast.cluster.operating.engines import engine_of
    from holdfast.store.address import shown

    location = location_of(cluster)
    engine = engine_of(location)
    mine: set[int] = set()
    """Partitions that it owned at a look."""
    owned: list[int] = []
    """Those of the last look."""

    def left() -> int:
        partitions = engine.read_status(location).partitions
        owned[:] = [one.partition for one in partitions if one.owner == node]
        mine.update(owned)
        return sum(one.partition in mine and (one.owner == node or one.state != "serving") for one in partitions)

    left()
    engine.drain_node(location, node)
    if not timeout:
        click.echo(f"{node} drains.")
        return DONE

    def text(number: int) -> str:
        if owned:
            return f"{node} still owns {counted(len(owned), 'partition')}."
        return f"{node} owns no partitions, but other nodes do not serve {number} of those it had yet."

    if not _wait_for(0, left, text, timeout, INTERVAL):
        doing = f"{node} keeps draining" if owned else "Do not stop it yet"
        click.echo(f"{doing}. To see the progress: holdfast cluster status {shown(cluster)}")
        return NOT_DONE
    click.echo(f"{node} owns no partitions. You can stop it.")
    return DONE


def _wait_for(
    end: int,
    count: Callable[[], int],
    text: Callable[[int], str],
    timeout: float,
    interval: float,
    *,
    err: bool = False,
    is_over: Callable[[], bool] = lambda: False,
) -> bool:
    """Wait until a count is at its end, or it ``is_over``; print each change, to standard error with ``err``."""
    until = time.monotonic() + timeout
    before = None
    while (now := count()) != end:
        if now != before:
            click.echo(text(now), err=err)
            before = now
        if is_over() or time.monotonic() >= until:
            return False
        time.sleep(interval)
    return True


@cluster.command()
@click.argument("cluster")
@click.argument("node")
def resume(cluster: str, node: str) -> int:
    """Let NODE of CLUSTER take partitions again after a drain. It gets its share within seconds."""
    from holdfast.cluster.operating.engines import engine_of

    location = location_of(cluster)
    engine_of(location).resume_node(location, node)
    click.echo(f"{node} takes partitions again.")
    return DONE


@cluster.command()
@click.argument("cluster")
@click.argument("partitions")
@click.argument("node")
@click.option(
    "--timeout", type=Seconds(), default=60.0, show_default=True, help="Maximum seconds to wait; 0: do not wait."
)
@json_option
def move(cluster: str, partitions: str, node: str, timeout: float, as_json: bool) -> int:
    """Move PARTITIONS of CLUSTER to NODE, and wait until it serves them.

    PARTITIONS are numbers and ranges: 3, or 0-3,7. They stay at NODE until you release them, as long as it is in the
    cluster and does not drain. On PostgreSQL, an owner gives a quarter of them away at a time, and the nodes move other
    partitions to keep their shares equal. On Kafka, they are added to the share of NODE. The exit code is 1 if NODE
    does not serve all of them at the end of the timeout. The command ends earlier if the move is over, because another
    operator moved or released a partition, or NODE drains, ends or has no room on its disk.
    """
    from holdfast.cluster.operating.engines import engine_of
    from holdfast.cluster.operating.status import why_not_moved
    from holdfast.store.address import shown

    location, wanted = location_of(cluster), numbers_in(partitions)
    engine = engine_of(location)
    engine.move_partitions(location, wanted, node)
    name = _partitions(wanted)

    failed: dict[int, str] = {}
    """Kept, because a node reports a failure only until it tries again."""
    whys = [""]
    """Why the move is over, at each look. The last ones count: a node may report a failure just after it gives up."""

    def is_over() -> bool:
        return all(whys[-LOOKS:])

    def served() -> list[int]:
        serving: set[int] = set()
        found = engine.read_status(location)
        for one in found.nodes:
            if one.name == node:
                serving.update(one.serving)
                failed.update((number, why) for number, why in one.failed.items() if number in wanted)
        whys.append(why_not_moved(found, wanted, node))
        return sorted(serving.intersection(wanted))

    def there() -> int:
        return len(served())

    def done(is_done: bool, text: str) -> int:
        facts: dict[str, Any] = {"node": node, "partitions": sorted(wanted), "serving": served() if as_json else []}
        facts["why"] = "" if is_done else text
        click.echo(json.dumps(facts) if as_json else text)
        return DONE if is_done else NOT_DONE

    if not timeout:
        return done(True, f"{node} takes {name}.")

    def text(number: int) -> str:
        return f"{node} serves {number} of {len(wanted)}."

    if _wait_for(len(wanted), there, text, timeout, MOVE_INTERVAL, err=as_json, is_over=is_over):
        return done(True, f"{node} serves {name}.")
    if failed:
        number = min(failed)
        return done(False, f"{node} could not start cluster partition {number}: {failed[number]}")
    if is_over():
        return done(False, f"{node} does not serve all of them, and will not: {whys[-1]}.")
    return done(False, f"{node} does not serve all of them yet. To see why: holdfast cluster status {shown(cluster)}")


@cluster.command()
@click.argument("cluster")
@click.argument("partitions")
@json_option
def release(cluster: str, partitions: str, as_json: bool) -> int:
    """Let the nodes of CLUSTER share PARTITIONS again, which were moved to a node.

    PARTITIONS are numbers and ranges: 3, or 0-3,7. They stay where they are until the nodes move some to make their
    shares equal, within seconds. `holdfast cluster status` shows which partitions were moved.
    """
    from holdfast.cluster.operating.engines import engine_of

    location, wanted = location_of(cluster), numbers_in(partitions)
    released = engine_of(location).release_partitions(location, wanted)
    others = sorted(set(wanted).difference(released))
    if as_json:
        click.echo(json.dumps({"partitions": list(wanted), "released": list(released)}))
        return DONE
    if released:
        click.echo(f"The nodes share {_partitions(released)} again.")
    if others:
        click.echo(f"Not moved to a node before: {_partitions(others)}.")
    return DONE


@cluster.command()
@click.argument("cluster")
@click.option(
    "--watch", type=Seconds(), default=0.0, help="Repeat the check for so many seconds, and report numbers that fall."
)
@click.option("--records", "reads_all", is_flag=True, help="Read every record too, which takes longer.")
@json_option
def verify(cluster: str, watch: float, reads_all: bool, as_json: bool) -> int:
    """Check the rules that the stored data of CLUSTER must obey, also while nodes run. Nothing is changed.

    On PostgreSQL: every partition has one row; no two memberships have the same incarnation; the records of each
    partition of a queue are complete; every store belongs to a partition. On Kafka, each log is read from its
    beginning: claims and writes are in order and complete; the records of queues are complete, and none repeats a
    message number; what a Sequence accepted was stored and stays accepted, and what it holds enters a queue; and the
    messages of an outbound Sequence keep their numbers. With --watch, also: no epoch, serial or first offset ever
    falls. With --records, also: every record can be decoded and its body is XML, each message number of a Sequence
    occurs once in a queue, and no cursor is behind the end of its queue; on Kafka, the caches on this machine have what
    their logs say. The exit code is 0 if all rules hold, and 1 otherwise.
    """
    from holdfast.cluster.operating.engines import verifier_of

    location = location_of(cluster)
    verify_cluster = verifier_of(location)
    until = time.monotonic() + watch
    found = verify_cluster(location, reads_all=reads_all)
    while not found.problems and time.monotonic() < until:
        time.sleep(INTERVAL)
        found = verify_cluster(location, found, reads_all=reads_all)
    _print_verification(found, as_json)
    return NOT_DONE if found.problems else DONE


def _print_verification(found: Verification, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
        return
    for problem in found.problems:
        click.echo(f"- {problem}")
    what = f"{counted(found.partitions, 'store')} with {counted(found.records, 'record')}"
    what += f"; {counted(found.bodies, 'record')} read" if found.bodies else ""
    what += f", and {counted(found.caches, 'cache')}" if found.caches else ""
    click.echo(f"{found.place}: {what}. {'A rule is broken.' if found.problems else 'All rules hold.'}")


def location_of(cluster: str) -> str:
    """Return the URL of the database or topic of a cluster, which may be given as the brokers' file.

    Raises:
        ConfigurationError: The file names neither.
    """
    from holdfast.store.address import is_kafka, is_remote, is_sql, shown

    store = cluster
    if not is_remote(cluster):
        if not Path(cluster).is_file():
            raise ConfigurationError(
                f"{shown(cluster)!r} is neither a file nor the URL of a database",
                remedy="Give the brokers' configuration file, or postgresql://user@host/database",
            )
        from holdfast.broker.config_file import read_store_location

        store = read_store_location(cluster)  # not the secret of the nodes, which operators need not be able to read
    if not (is_sql(store) or is_kafka(store)):
        raise ConfigurationError(
            f"the brokers of {cluster} are no cluster: their store is {shown(store)!r}",
            remedy='A cluster has its store in PostgreSQL or Kafka: store = "postgresql://user@host/database"',
        )
    return store


def numbers_in(text: str) -> tuple[int, ...]:
    """Return the numbers in "0-3,7", in ascending order.

    Raises:
        ConfigurationError: It contains something else.
    """
    found: set[int] = set()
    for part in text.split(","):
        ends = [one.strip() for one in part.split("-")]
        is_valid = len(ends) <= 2 and all(one.isascii() and one.isdecimal() and int(one) < MOST_NUMBERS for one in ends)
        if not is_valid or int(ends[0]) > int(ends[-1]):
            raise ConfigurationError(
                f"{text[:80]!r} is not a list of partitions", remedy="Use numbers and ranges: 0-3,7"
            )
        found.update(range(int(ends[0]), int(ends[-1]) + 1))
    return tuple(sorted(found))


def _partitions(numbers: Sequence[int]) -> str:
    return f"{'partition' if len(numbers) == 1 else 'partitions'} {ranges_text(numbers)}"


def ranges_text(numbers: Sequence[int]) -> str:
    """Return ascending numbers in words: "0-3, 7"."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in ranges)
