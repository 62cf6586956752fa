"""NodeMemory: what a node remembers of its cluster between two starts, in a file of its own.

The cluster's identity, and for each partition the epoch of its store and the number of its last batch. So a node that
starts creates no cluster in a database that is being restored, and finds that a database went back to an older copy.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec

Batches = Mapping[int, tuple[int, int]]
"""Partition -> the epoch of its store, and the number of its last batch. Neither ever falls."""

SAVE_SECONDS: Final = 1.0
"""Between two writes of the file, at least."""
LONGEST_FILE: Final = 1 << 20
"""Bytes of the file that are read: many times what all partitions of a cluster need."""

_Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class _Content(msgspec.Struct):
    cluster: str
    batches: dict[_Number, tuple[_Number, _Number]]


class NodeMemory:
    """The memory of one node.

    Args:
        directory: The directory of the file, created if it does not exist; None: it remembers only while it runs.
        node: The name of the node.
        own: Returns the last batches that processes of this node have made durable.

    Attributes:
        cluster: The identity of its cluster; "": it has never been in one.
        trouble: Why the file cannot be read or written; "": it can.
    """

    def __init__(self, directory: str | None, node: str, own: Callable[[], Batches] = dict) -> None:
        self.file = Path(directory) / f"{node}.json" if directory is not None else None
        self.cluster = ""
        self.trouble = ""
        self._own = own
        self._batches: dict[int, tuple[int, int]] = {}
        self._seen: Batches = {}
        self._saved_at: float | None = None
        if self.file is not None:
            self._load(self.file)

    def _load(self, file: Path) -> None:
        try:
            with file.open("rb") as opened:
                content = msgspec.json.decode(opened.read(LONGEST_FILE), type=_Content)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, RecursionError) as error:
            self.trouble = f"{file} cannot be read: {error}"
        else:
            self.cluster, self._batches = content.cluster, content.batches

    def forget_batches(self) -> None:
        """Forget the batches: the operator restored the database from a copy."""
        self._batches, self._seen = {}, {}

    def lost(self, batches: Batches) -> list[str]:
        """Return, as sentences, which partitions have an older state than this node remembers."""
        self._take_own()
        found = []
        for partition, (epoch, batch) in sorted(self._batches.items()):
            epoch_now, batch_now = batches.get(partition, (0, 0))
            if batch_now < batch:
                found.append(f"batch {batch} of cluster partition {partition} was durable, but it has only {batch_now}")
            elif epoch_now < epoch:
                found.append(f"the epoch of cluster partition {partition} fell from {epoch} to {epoch_now}")
        return found

    def meet(self, cluster: str, batches: Batches, now: float) -> None:
        """Remember the cluster at a new connection. Another server may answer, so the batches of an earlier one do not
        count.

        Args:
            cluster, batches, now: As in :meth:`see`.
        """
        self._seen = {}
        self.see(cluster, batches, now)

    def see(self, cluster: str, batches: Batches, now: float) -> None:
        """Remember the cluster, and of other nodes what the database had at the previous call, if it has that or more
        now: what was visible for a moment may not have been durable everywhere.

        Args:
            cluster: The identity of the cluster.
            batches: What the database has now.
            now: The time, in seconds of a clock that never goes back.
        """
        for partition, before in self._seen.items():
            if all(one <= other for one, other in zip(before, batches.get(partition, (0, 0)), strict=True)):
                self._batches[partition] = before
        self._seen = dict(batches)
        is_new = cluster != self.cluster
        self.cluster = cluster
        if is_new or self._saved_at is None or now - self._saved_at >= SAVE_SECONDS:
            self._saved_at = now
            self.save()

    def keep(self, batches: Batches) -> None:
        """Remember batches of all nodes that are durable, and write the file."""
        self._batches.update(batches)
        self.save()

    def _take_own(self) -> None:
        for partition, batch in self._own().items():
            self._batches[partition] = max(self._batches.get(partition, batch), batch, key=lambda one: one[1])

    def save(self) -> None:
        """Write the file. If that fails, ``trouble`` names the reason."""
        if self.file is None:
            return
        self._take_own()
        content = msgspec.json.encode(_Content(self.cluster, self._batches)) + b"\n"
        new = self.file.with_suffix(".new")
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with new.open("wb") as opened:
                opened.write(content)
                opened.flush()
                os.fsync(opened.fileno())  # otherwise a power cut may leave an empty file instead of the old one
            os.replace(new, self.file)
            self.trouble = ""
        except OSError as error:
            self.trouble = f"{self.file} cannot be written: {error.strerror}"
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
