"""Numbers that are unique in the whole endpoint, whichever worker owns what they name. Pure.

Partition p of worker w is partition w x P + p of a queue with P partitions in each worker. So a partition keeps its
number when there are more workers. Dead letters of worker w begin at w x 10^12. The names of waiting messages and of
journal files, and the keys of outboxes, also in the names of their cursors, begin with ``w:``, except for worker 0. An
endpoint without workers is worker 0.

The admin interface of each worker reads and writes these numbers. The store and the core number partitions from 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeVar

from holdfast.core.queues.cursors import OUTBOUND, Cursor
from holdfast.core.queues.queue import Queue
from holdfast.endpoint.admin.routes import Refused
from holdfast.endpoint.worker import Worker
from holdfast.settings import suggestion

LETTERS: Final = 10**12
"""Dead letters that a worker has numbers for."""

_MARKED = re.compile(r"([1-9][0-9]{0,3}):(.*)", re.DOTALL)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Numbering:
    """The numbers of one worker's part of an endpoint.

    Args:
        size: The number of partitions that a queue has in each worker.
    """

    worker: int
    count: int
    size: int

    def of(self, queue: Queue) -> Numbering:
        """Return the same for a queue with another number of partitions, such as that of the dead letters."""
        return replace(self, size=len(queue.partitions))

    # --- partitions -----------------------------------------------------------------------------------------------

    @property
    def total(self) -> int:
        """The number of partitions that a queue has in all workers."""
        return self.count * self.size

    def partition(self, own: int) -> int:
        """Return the number of one of this worker's partitions."""
        return self.worker * self.size + own

    def own(self, number: int) -> int | None:
        """Return which of this worker's partitions has that number; None if another worker owns it."""
        own = number - self.worker * self.size
        return own if 0 <= own < self.size else None

    def numbered(self, by_own: Mapping[int, _T]) -> dict[str, _T]:
        """Return the values by the numbers of their partitions, as answers have them."""
        return {str(self.partition(own)): value for own, value in by_own.items()}

    def owned(self, by_number: Mapping[int, _T]) -> dict[int, _T]:
        """Return the values for this worker's own partitions.

        Raises:
            Refused: 400 if no worker has one of the partitions.
        """
        self.check(by_number)
        return {own: value for number, value in by_number.items() if (own := self.own(number)) is not None}

    def check(self, numbers: Iterable[int]) -> None:
        """Check that a worker has each of these partitions.

        Raises:
            Refused: 400 if none has.
        """
        for number in numbers:
            if not 0 <= number < self.total:
                raise _no_partition(str(number), self, 400)

    def find(self, text: str) -> int:
        """Return which of this worker's partitions a path names.

        Raises:
            Refused: 404 if this worker has no such partition.
        """
        own = self.own(_number(text, self, 404))
        if own is None:
            raise _no_partition(text, self, 404)
        return own

    def owner(self, text: str, status: int = 404) -> int:
        """Return the worker that owns a partition.

        Raises:
            Refused: With ``status``, if no worker has it.
        """
        return _number(text, self, status) // self.size

    def bounds(self, queue: Queue) -> dict[str, dict[str, int]]:
        return self.numbered(
            {own: {"first": one.first, "end": one.durable_end} for own, one in enumerate(queue.partitions)}
        )

    def describe_cursor(self, shown: dict[str, Any]) -> dict[str, Any]:
        """Convert the name and the partition numbers in the report on one cursor."""
        return shown | {"name": self.cursor(shown["name"]), "offsets": self.numbered(shown["offsets"])}

    def describe_row(self, shown: dict[str, Any]) -> dict[str, Any]:
        """Convert the partition number in a row, if it has one."""
        own = shown.get("partition")
        return shown if own is None else shown | {"partition": self.partition(own)}

    # --- dead letters, waiting messages, journal files ------------------------------------------------------------

    def letter(self, own: int) -> int:
        """Return the number of one of this worker's dead letters."""
        return self.worker * LETTERS + own

    def own_letter(self, number: int) -> int:
        """Return a dead letter's number in this worker; below 0 if it is one of a worker before this one."""
        return number - self.worker * LETTERS

    def owner_of_letter(self, text: str) -> int:
        """Return the worker that owns a dead letter; worker 0 for text that names none."""
        worker = int(text) // LETTERS if text.isascii() and text.isdecimal() and len(text) <= 20 else 0
        return worker if worker < self.count else 0

    def mark(self, name: str) -> str:
        """Return the name of one of this worker's waiting messages, outboxes or journal files."""
        return f"{self.worker}:{name}" if self.worker else name

    def cursor(self, own: str) -> str:
        """Return the name of a cursor. Those of readers and handlers are in all workers; each outbox is in one."""
        return f"{OUTBOUND}{self.mark(own.removeprefix(OUTBOUND))}" if own.startswith(OUTBOUND) else own

    def own_cursor(self, text: str) -> str | None:
        """Return the name that a cursor has in this worker; None if it is that of an outbox of another worker."""
        if not text.startswith(OUTBOUND):
            return text
        name = text.removeprefix(OUTBOUND)
        return f"{OUTBOUND}{self.own_name(name)}" if self.owner_of_name(name) == self.worker else None

    def find_cursor(self, queue: Queue, text: str, hint: str = "List the cursors with holdfast cursors.") -> Cursor:
        """Return the cursor of this worker that a path names.

        Args:
            hint: What to do if no name is like it.

        Raises:
            Refused: 404 if this worker has no such cursor.
        """
        found = queue.cursors.get(own) if (own := self.own_cursor(text)) is not None else None
        if found is None:
            known = map(self.cursor, queue.cursors)
            raise Refused(404, f"the cursor {text[:200]!r} does not exist", suggestion(text, known, hint))
        return found

    def own_name(self, text: str) -> str:
        return text.removeprefix(f"{self.worker}:") if self.worker else text

    def owner_of_name(self, text: str) -> int:
        """Return the worker that owns a waiting message, an outbox or a journal file."""
        found = _MARKED.fullmatch(text)
        return int(found[1]) if found is not None and int(found[1]) < self.count else 0


class Numbered(Protocol):
    """Object with partitions: a destination, or a stopped store."""

    @property
    def worker(self) -> Worker | None:
        """This process among several; None for a single one, or a stopped store."""
        ...

    @property
    def queues(self) -> Mapping[str, Queue]:
        """The queues that store messages, by name."""
        ...


def numbering_of(app: Numbered) -> Numbering:
    """Return the numbers of an endpoint's part; every queue that stores messages has as many partitions."""
    worker = app.worker
    size = next((len(queue.partitions) for queue in app.queues.values()), 1)
    return Numbering(0, 1, size) if worker is None else Numbering(worker.number, worker.count, size)


def _number(text: str, numbers: Numbering, status: int) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 9 or int(text) >= numbers.total:
        raise _no_partition(text, numbers, status)
    return int(text)


def _no_partition(text: str, numbers: Numbering, status: int) -> Refused:
    return Refused(
        status,
        f"the partition {text[:40]} does not exist",
        f"There are {numbers.total} partitions, numbered from 0.",
    )
