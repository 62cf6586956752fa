"""What comes of one batch, decided once: written down before anybody gets any of it.

A batch that Spark repeats after a crash could come out otherwise: a table that it is joined with has grown, a function
has looked at a clock. A row that was sent one way would then go another way too, or, worse, neither: the first sink
says that it has this batch, the second gets it without the row. So the first attempt that gets as far as that settles
it, and whoever repeats the batch, or makes it at the same time, goes by what is written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.pipeline import files
from holdfast.pipeline.errors import PipelineError
from holdfast.pipeline.landed import WRITING
from holdfast.pipeline.publishing import publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MARKER = "settled.json"
"""Written last: with it all of the batch is there."""


@dataclass(frozen=True)
class Settled:
    """One batch's outcome in the checkpoint.

    Args:
        spark: The batch's session.
        directory: Of the query's batches.
        batch: Which one.
    """

    spark: SparkSession
    directory: str
    batch: int

    @property
    def _place(self) -> str:
        return f"{self.directory}/batch={self.batch}"

    def counts(self) -> dict[str, int] | None:
        """Rows of each output; None if the batch is not settled yet."""
        if _MARKER not in files.names(self.spark, self._place):
            return None
        counts: dict[str, int] = json.loads(files.read_text(self.spark, f"{self._place}/{_MARKER}"))
        return counts

    def settle(self, known: Mapping[str, int], outputs: Mapping[str, DataFrame]) -> dict[str, int]:
        """Write the outputs down, unless another driver has; their rows, and what else is known of the batch.

        Args:
            known: Counts that are written down with those of the outputs: under "" the rows that came in.
            outputs: By their names, which are those of directories.

        Raises:
            PipelineError: Another driver has settled this batch, and is done with it.
        """
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        for name, value in WRITING.items():
            self.spark.conf.set(name, value)
        counts = dict(known)

        def write(place: str) -> None:
            for name, output in outputs.items():
                seen = Observation()
                counted = output.observe(seen, F.count("*").alias("rows"))
                counted.write.mode("overwrite").parquet(f"{place}/{name}")
                counts[name] = seen.get["rows"]
            files.publish_text(self.spark, f"{place}/{_MARKER}", json.dumps(counts))

        publish(self.spark, self.directory, f"batch={self.batch}", write)
        settled = self.counts()
        if settled is None:
            raise PipelineError(
                f"what came of batch {self.batch} was deleted while this driver settled it: another has gone on",
                remedy="one of the two is to be stopped; nothing is twice",
            )
        return settled

    def read(self, name: str) -> DataFrame:
        """An output."""
        return self.spark.read.parquet(f"{self._place}/{name}")

    def forget_earlier(self) -> None:
        """Delete batches before this one: Spark has noted that they are done."""
        for name in files.names(self.spark, self.directory):
            number = name.partition("=")[2]
            if number.isdigit() and int(number) < self.batch:
                files.delete(self.spark, f"{self.directory}/{name}")
