"""Checks the rules that the logs of a cluster on Kafka must keep, also while nodes are running.

Each check reads every log from its beginning to its end at that time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

from holdfast.cluster.contents import check_contents
from holdfast.cluster.group.inspection import open_cluster
from holdfast.cluster.operating.verification import Verification, fallen
from holdfast.exceptions import StoreFormatError
from holdfast.store.kafka.address import KafkaAddress, read_topic_address
from holdfast.store.kafka.audit import LogAudit
from holdfast.store.kafka.comparison import compare_cache
from holdfast.store.kafka.login import KafkaAway
from holdfast.store.kafka.topic import KafkaLog

_TRIES: Final = 5
"""How often to begin again with a log that its owner trims while it is read."""


def verify_cluster(location: str, before: Verification | None = None, *, reads_all: bool = False) -> Verification:
    """Check the logs of a cluster. Nothing is changed.

    Args:
        location: The URL of its topic.
        before: An earlier check of the same cluster.
        reads_all: Whether to read the content of each store, too, as a reader sees it, and compare the caches of this
            machine with their logs.

    Raises:
        ConfigurationError, StoreError: As :func:`~holdfast.cluster.group.inspection.open_cluster`.
    """
    with open_cluster(location) as seen:
        count = seen.log.partitions
        owned = Counter(partition for one in seen.picture.members for partition in one.partitions)
    address = read_topic_address(location)
    problems = [f"Cluster partition {one} is assigned to {n} nodes." for one, n in owned.items() if n > 1]
    numbers: dict[str, int] = {}
    stores = records = bodies = caches = 0
    for partition in range(count):
        first, audit = _audit(replace(address, partition=partition), f"cluster partition {partition}")
        problems += audit.problems
        stores, records = stores + bool(audit.epoch), records + audit.records
        numbers[f"first record of the log of cluster partition {partition}"] = first
        numbers[f"epoch of cluster partition {partition}"] = audit.epoch
        numbers[f"number of batches of cluster partition {partition}"] = audit.serial
        if reads_all and audit.epoch:
            contents = check_contents(location, partition)
            problems += contents.problems
            bodies += contents.bodies
            found = _compare(replace(address, partition=partition), f"cluster partition {partition}")
            problems += [found] if found else []
            caches += found is not None
    problems += fallen(before, numbers)
    return Verification(address.shown, tuple(problems), stores, records, numbers, bodies, caches)


def _compare(address: KafkaAddress, place: str) -> str | None:
    """Compare the cache of a log on this machine with the log; see :func:`compare_cache`."""
    log = KafkaLog(address)
    try:
        log.open(creates=False)
        return compare_cache(address.place, log, place)
    except KafkaAway as error:
        raise log.away(error) from error
    finally:
        log.close()


def _audit(address: KafkaAddress, place: str) -> tuple[int, LogAudit]:
    """Return the offset of the first record of a log, and its check."""
    log = KafkaLog(address)
    try:
        for left in reversed(range(_TRIES)):
            first, _ = log.bounds()
            audit = LogAudit(first, place)
            try:
                for offset, record in log.read(first):
                    audit.read(offset, record)
            except StoreFormatError:
                if not left:
                    raise
                continue
            break
        audit.end()
        return first, audit
    except KafkaAway as error:
        raise log.away(error) from error
    finally:
        log.close()
