"""The results of one batch, decided once: stored before any sink receives them.

If Spark repeats a batch after a crash, its results may differ: a joined table has grown, or a function has read a
clock. A row that went to one sink would then go to another as well, or to none: the first sink reports that it has this
batch, and the second gets it without the row. So the first attempt that reaches this point settles the results, and
every repeated or concurrent attempt uses them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from holdfast.client.errors import PipelineError
from holdfast.pipeline.landing.layout import WRITING
from holdfast.pipeline.landing.publication import publish
from holdfast.pipeline.mediation.execution.parallel_jobs import side_by_side
from holdfast.pipeline.spark import files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MARKER = "settled.json"
"""Written last: it marks the batch as complete."""
_SCHEMAS = "schemas"
"""Key of the marker for the columns of each output, in addition to counts. No output has this name."""


@dataclass(frozen=True)
class Settled:
    """The results of one batch, in the checkpoint."""

    spark: SparkSession
    directory: str
    batch: int

    @property
    def _place(self) -> str:
        return f"{self.directory}/batch={self.batch}"

    def counts(self) -> dict[str, int] | None:
        """Return the number of rows in each output; None if the batch is not settled yet."""
        if _MARKER not in files.names(self.spark, self._place):
            return None
        told: dict[str, Any] = json.loads(files.read_text(self.spark, f"{self._place}/{_MARKER}"))
        return {name: rows for name, rows in told.items() if name != _SCHEMAS}

    def settle(self, known: Mapping[str, int], outputs: Mapping[str, DataFrame]) -> dict[str, int]:
        """Write the outputs unless another driver has; return the numbers of rows and the other counts of the batch.

        Args:
            known: Further counts to store: under "" the rows that were read.
            outputs: Outputs by name; the names are those of directories.

        Raises:
            PipelineError: Another driver has settled and finished this batch.
        """
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        for name, value in WRITING.items():
            self.spark.conf.set(name, value)

        def written(place: str, output: DataFrame) -> int:
            seen = Observation()
            output.observe(seen, F.count("*").alias("rows")).write.mode("overwrite").parquet(place)
            return int(seen.get["rows"])

        def write(place: str) -> bool:
            works = [partial(written, f"{place}/{name}", output) for name, output in outputs.items()]
            counts = dict(zip(outputs, side_by_side(self.spark, works), strict=True))
            schemas = {name: output.schema.jsonValue() for name, output in outputs.items()}
            told = {**known, **counts, _SCHEMAS: schemas}
            files.publish_text(self.spark, f"{place}/{_MARKER}", json.dumps(told))
            return True

        publish(self.spark, self.directory, f"batch={self.batch}", write)
        settled = self.counts()
        if settled is None:
            raise PipelineError(
                f"the results of batch {self.batch} were deleted while this driver settled it: another driver has "
                "continued",
                remedy="Stop one of the two; no row was written twice",
            )
        return settled

    def read(self, name: str) -> DataFrame:
        told = json.loads(files.read_text(self.spark, f"{self._place}/{_MARKER}"))
        reader = self.spark.read
        if schema := told.get(_SCHEMAS, {}).get(name):  # otherwise Spark reads the files, in a job
            reader = reader.schema(StructType.fromJson(schema))
        return reader.parquet(f"{self._place}/{name}")

    def before(self, name: str) -> DataFrame | None:
        """Return an output of the last earlier batch in the checkpoint; None without one, or if it lacks the output."""
        for batch in sorted(self._earlier(), reverse=True):
            earlier = Settled(self.spark, self.directory, batch)
            counts = earlier.counts()
            if counts is not None:
                return earlier.read(name) if name in counts else None
        return None

    def forget_earlier(self) -> None:
        """Delete batches before this one, once it is settled: Spark has noted that they are done."""
        if self.counts() is None:  # the next batch may need the earlier one
            return
        for batch in self._earlier():
            files.delete(self.spark, f"{self.directory}/batch={batch}")

    def _earlier(self) -> list[int]:
        numbers = [name.partition("=")[2] for name in files.names(self.spark, self.directory)]
        return [int(number) for number in numbers if number.isdigit() and int(number) < self.batch]
