"""A batch read of dead letters: messages that could not be handled or forwarded, with the reasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from holdfast.client.data_plane import DataPlane, Patience
from holdfast.pipeline.reader.bounds import is_read
from holdfast.pipeline.reader.letter_columns import batch_of, micros
from holdfast.pipeline.reader.tasks import PortableReader

if TYPE_CHECKING:
    import pyarrow as pa


class LettersReader(PortableReader, DataSourceReader):
    """The current dead letters: a discarded or handled one is no longer included.

    There are few, so one task reads them.
    """

    def partitions(self) -> Sequence[InputPartition]:
        """In the driver."""
        return [InputPartition("letters")]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task."""
        options = self._options
        patience = Patience(options.away)
        start: int | None = 0
        with closing(DataPlane(options.broker, options.access)) as plane:
            while start is not None:
                letters, start = patience.call(lambda at=start: plane.letters(at))  # type: ignore[misc]
                if wanted := [letter for letter in letters if self._is_wanted(letter)]:
                    yield batch_of(wanted, options.names)

    def _is_wanted(self, letter: dict[str, Any]) -> bool:
        options = self._options
        for name, wanted in (("sequence", options.sequence), ("action", options.action)):
            if wanted and letter[name] != wanted:
                return False
        if (options.queues or options.pattern) and not is_read(options, str(letter.get("queue", ""))):
            return False
        if options.starting_at is None and options.ending_at is None:
            return True
        if letter["failed_at"] is None:
            return False
        at = micros(letter["failed_at"])
        after = options.starting_at is None or at >= options.starting_at
        return after and (options.ending_at is None or at < options.ending_at)
