"""What several workers answer, as one: numbers that are one worker's own, and answers put together. Pure.

Partition p of worker w is number w x P + p of a queue with P partitions in each: so what a worker has keeps its numbers
when there are more of them. So do dead letters: those of worker w begin at w x 10^12.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from holdfast.endpoint.admin.data_plane.readers import ANOTHER_EPOCH
from holdfast.endpoint.admin.routes import Refused

LETTERS: Final = 10**12
"""Dead letters that a worker has numbers for."""

_BY_PARTITION = ("partitions", "offsets", "fingerprints")
_SUMS = (
    "bytes",
    "count",
    "deleted",
    "discarded",
    "in_doubt",
    "lag",
    "left",
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
_MOST = ("age", "batch", "final_at")
_LEAST = ("idle",)
_IDENTITY = ("name", "queue", "identifier", "key", "partition", "letter", "message", "cursor", "role")
_PLACES = re.compile(r"[0-9]{1,18}:[0-9]{1,18}(?::[0-9a-f]*)?(?:,[0-9]{1,18}:[0-9]{1,18}(?::[0-9a-f]*)?)*")
_MARKED = re.compile(r"([1-9][0-9]{0,3}):(.*)", re.DOTALL)


def epoch_of(epochs: Iterable[str]) -> str:
    """Return the epoch of a queue that several workers hold: their common epoch if they agree.

    The epoch stays the same when a worker is added, because that worker adopts the others' epoch. It changes when one
    of the workers has begun again.
    """
    known = list(dict.fromkeys(epochs))
    return known[0] if len(known) == 1 else hashlib.sha256("\n".join(known).encode()).hexdigest()[:16]


def check_epoch(queue: str, epochs: Iterable[str], epoch: str) -> None:
    """See that a reader means the queue that several workers have.

    Args:
        queue: Its name.
        epochs: Those of the workers.
        epoch: The reader's.

    Raises:
        Refused: 409 if their epochs are not, together, what the reader says.
    """
    joined = epoch_of(epochs)
    if epoch != joined:
        raise Refused(
            409,
            f"the epoch of queue {queue!r} is {joined}, not {epoch}: a store was created again or restored from a "
            "copy, or this is another server",
            ANOTHER_EPOCH,
        )


# --- what is asked ----------------------------------------------------------------------------------------------------


def is_places(text: str) -> bool:
    """Whether a parameter names places: ``partition:offset`` or ``partition:position:fingerprint``, with commas."""
    return _PLACES.fullmatch(text) is not None


def split_places(text: str, workers: int, size: int) -> list[str]:
    """Such a parameter for each worker, with its own numbers.

    Raises:
        Refused: 400 for a partition that there is not.
    """
    parts: list[list[str]] = [[] for _ in range(workers)]
    for place in text.split(","):
        partition, _, rest = place.partition(":")
        worker, own = owner_of_partition(partition, workers, size, 400)
        parts[worker].append(f"{own}:{rest}")
    return [",".join(part) for part in parts]


def split_offsets(offsets: Mapping[str, Any], workers: int, size: int) -> list[dict[str, Any]]:
    """What is said of each partition, for each worker, with its own numbers.

    Raises:
        Refused: 400 for a partition that there is not.
    """
    parts: list[dict[str, Any]] = [{} for _ in range(workers)]
    for partition, value in offsets.items():
        worker, own = owner_of_partition(str(partition), workers, size, 400)
        parts[worker][str(own)] = value
    return parts


def owner_of_partition(text: str, workers: int, size: int, status: int = 404) -> tuple[int, int]:
    """Return the worker that owns a partition, and the partition's number in that worker.

    Raises:
        Refused: with ``status``, if there is no such partition.
    """
    if not text.isascii() or not text.isdecimal() or len(text) > 9 or int(text) >= workers * size:
        raise Refused(
            status,
            f"the partition {text[:40]} does not exist",
            f"There are {workers * size} partitions, numbered from 0.",
        )
    return divmod(int(text), size)


def owner_of_letter(text: str, workers: int) -> tuple[int, str]:
    """Return the worker that owns a dead letter, and its number there; worker 0 for text that is not a number."""
    if not text.isascii() or not text.isdecimal() or len(text) > 20:
        return 0, text
    worker, own = divmod(int(text), LETTERS)
    return (worker, str(own)) if worker < workers else (0, text)


def owner_of_marked(text: str, workers: int) -> tuple[int, str]:
    """Return the worker that owns a waiting message or a journal file, and its name in that worker."""
    found = _MARKED.fullmatch(text)
    return (int(found[1]), found[2]) if found is not None and int(found[1]) < workers else (0, text)


# --- what is answered -------------------------------------------------------------------------------------------------


def renumber(answer: Any, worker: int, size: int) -> Any:
    """Return a worker's response with its numbers made unique among all workers.

    Args:
        answer: JSON values.
        worker: The worker that responded.
        size: Partitions of a queue, where the response does not state it for its queue.
    """
    if isinstance(answer, list):
        return [renumber(one, worker, size) for one in answer]
    if not isinstance(answer, dict):
        return answer
    if isinstance(answer.get("partitions"), dict):
        size = len(answer["partitions"])
    renumbered: dict[str, Any] = {}
    for name, value in answer.items():
        if name in _BY_PARTITION and isinstance(value, dict):
            renumbered[name] = {str(worker * size + int(one)): what for one, what in value.items()}
        elif name == "partition" and type(value) is int:
            renumbered[name] = worker * size + value
        elif name == "letter" and type(value) is int:
            renumbered[name] = worker * LETTERS + value
        elif name in ("message", "file") and type(value) is str and worker:
            renumbered[name] = f"{worker}:{value}"
        else:
            renumbered[name] = renumber(value, worker, size)
    return renumbered


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


def merge_metrics(texts: Mapping[int, str]) -> bytes:
    """Metrics in Prometheus's text format as one such text, each sample with the label ``worker``."""
    families: dict[str, Metric] = {}
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
