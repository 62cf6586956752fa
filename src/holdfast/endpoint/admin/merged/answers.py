"""The answers of several workers as one: their union, with sums, the highest ages and a common epoch. Pure.

Each worker answers with numbers that are unique in the whole endpoint (``endpoint.admin.numbering``), so nothing is
renumbered here, and what belongs to one partition is in one answer. What remains to be merged is what belongs to no
partition: a queue, a reader's cursor, a sink and the totals exist in every worker, and a client must see them once. The
names of their fields tell how, as the shapes of answers use each name in one sense only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from holdfast.endpoint.admin.data_plane.readers import ANOTHER_EPOCH
from holdfast.endpoint.admin.routes import Refused

_SUMS = (
    "bytes",
    "count",
    "deleted",
    "discarded",
    "enqueued",
    "in_doubt",
    "lag",
    "left",
    "max_messages",
    "moving",
    "parts",
    "published",
    "rate",
    "rate_in",
    "records",
    "retried",
    "staged",
    "waiting",
)
"""Numbers of what there is: each worker counts its own."""
UP: Final = "holdfast_worker_up"
CUT_OFF: Final = "holdfast_node_cut_off"
AWAY: Final = "holdfast_node_without_contact"
_OF_THE_NODE: Final = {
    CUT_OFF: "Whether most of the other nodes cannot reach this node: 1 or 0.",
    AWAY: "Whether this node has no contact with the cluster's database or Kafka: 1 or 0.",
}
"""Metrics of the node that answers, with what they mean."""
_MOST = ("age", "batch", "final_at")
"""The age of the oldest record of all workers, and a sink's newest batch."""
_LEAST = ("idle",)
"""A reader is idle only since its last call to any worker."""
_ANY = ("full",)
"""A queue that is full in one worker refuses the messages that are for that worker."""
_IDENTITY = ("name", "queue", "identifier", "key", "partition", "letter", "message", "cursor", "role")
"""Items of lists that are equal in these are the same thing in several workers."""


def epoch_of(epochs: Iterable[str]) -> str:
    """Return the epoch of a queue that several workers hold: their common epoch if they agree.

    The epoch stays the same when a worker is added, because that worker adopts the others' epoch. It changes when one
    of the workers has begun again.
    """
    known = list(dict.fromkeys(epochs))
    return known[0] if len(known) == 1 else hashlib.sha256("\n".join(known).encode()).hexdigest()[:16]


def check_epoch(queue: str, epochs: Iterable[str], epoch: str) -> None:
    """Check that a reader's epoch is the common epoch of a queue that several workers have.

    Raises:
        Refused: 409 if the common epoch differs from the reader's.
    """
    joined = epoch_of(epochs)
    if epoch != joined:
        raise Refused(
            409,
            f"the epoch of queue {queue!r} is {joined}, not {epoch}: a store was created again or restored from a "
            "copy, or this is another server",
            ANOTHER_EPOCH,
        )


def merge(answers: Sequence[Any]) -> Any:
    """Answers of the same kind as one, field by field: numbers of what there is are added, ages the highest, epochs
    joined, lists put one behind the other, where what has the same name is one; of others the first counts."""
    first = answers[0]
    if len(answers) == 1:
        return first
    if isinstance(first, list):
        return _merge_lists(answers)
    if not isinstance(first, dict):
        return next((one for one in answers if one is not None), None)
    names = dict.fromkeys(name for one in answers for name in one)
    return {name: _merge_field(name, [one[name] for one in answers if name in one]) for name in names}


def _merge_field(name: str, values: list[Any]) -> Any:
    if name == "epoch":
        return epoch_of(values)
    numbers = [one for one in values if isinstance(one, int | float) and not isinstance(one, bool)]
    if name in _SUMS and numbers:
        return sum(numbers) if len(numbers) == len(values) else None
    if name in _MOST and numbers:
        return max(numbers)
    if name in _LEAST and numbers:
        return min(numbers)
    if name in _ANY:
        return max((one for one in values if one is not None), key=bool, default=None)
    return merge(values)


def _merge_lists(lists: Sequence[list[Any]]) -> list[Any]:
    merged: dict[Any, list[Any]] = {}
    for number, one in enumerate(lists):
        for place, item in enumerate(one):
            known = tuple((name, item[name]) for name in _IDENTITY if item.get(name) is not None) if _is(item) else ()
            merged.setdefault(known or (number, place), []).append(item)
    return [merge(items) for items in merged.values()]


def _is(item: Any) -> bool:
    return isinstance(item, dict)


def merge_metrics(texts: Mapping[int, str], count: int, node: Mapping[str, bool] | None = None) -> bytes:
    """Merge metrics in Prometheus's text format into one text, each sample with the label ``worker``.

    Args:
        texts: Worker -> its metrics, for those that have answered.
        node: Metrics of the node that answers, in a cluster.
    """
    up = Metric(UP, "Whether the worker has answered this request: 1 or 0. In a cluster, that of a partition.", "gauge")
    for worker in range(count):
        up.add_sample(UP, {"worker": str(worker)}, float(worker in texts))
    families = {UP: up}
    for name, value in (node or {}).items():
        families[name] = Metric(name, _OF_THE_NODE[name], "gauge")
        families[name].add_sample(name, {}, float(value))
    for worker, text in texts.items():
        for found in text_string_to_metric_families(text):
            family = families.setdefault(found.name, Metric(found.name, found.documentation, found.type))
            for sample in found.samples:
                family.samples.append(sample._replace(labels={**sample.labels, "worker": str(worker)}))

    class Found(Collector):
        def collect(self) -> Iterable[Metric]:
            return families.values()

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Found())
    return generate_latest(registry)
