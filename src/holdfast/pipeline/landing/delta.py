"""Landed rows as a Delta table, with ``deltalake``; no jar is needed.

Spark writes the files of a batch to ``rows/BATCH/TOKEN``, which readers ignore. One commit to the table's log then adds
them, and records the newest batch in Delta's transaction identifier. If Spark repeats a batch after a crash, the batch
is either in the log, and is not written again, or it is written next to the remains of the earlier attempt, which are
deleted after the commit. So no driver deletes files that another driver might still add: if two drivers are alive, the
log decides which files count. If a batch replaces the table, the same commit removes the earlier rows.
"""

from __future__ import annotations

import json
import math
import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from pyspark.sql.types import DateType, IntegerType, StructField, StructType

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.bodies.templates import nullable
from holdfast.pipeline.landing import statistics
from holdfast.pipeline.landing.layout import BATCH, DAYS, LOG, Layout, day_of, landed_by_another, nothing, write_rows
from holdfast.pipeline.landing.parquet import foreign
from holdfast.pipeline.landing.widening import adds, fits, merged
from holdfast.pipeline.spark import files

if TYPE_CHECKING:
    from deltalake import DeltaTable as Table
    from pyspark.sql import DataFrame, SparkSession

APP = "holdfast-land"
"""Application id of a landing's transactions. One landing owns a table, as it owns a directory."""

_ORIGIN = "holdfast-origin"
"""Key in the metadata of a commit: the query of the batch, and the start and end of the batch."""
_LOOKED_BACK = 100
"""Number of commits to search for the newest batch; compactions and others may follow it."""


class DeltaTable:
    """Landed rows as a Delta table; ``parquet.ParquetTable`` documents the methods.

    Args:
        spark: A classic session.
        out: Directory that both Spark and delta-rs can write to, by the same name.

    Raises:
        ConfigurationError: ``deltalake`` is not installed.
    """

    kind = "delta"

    def __init__(self, spark: SparkSession, out: str) -> None:
        try:
            import deltalake  # noqa: F401
        except ImportError as error:
            raise ConfigurationError(
                f"{out} is a Delta table, or becomes one by default, which needs the package deltalake: {error}",
                remedy="pip install 'holdfast[spark]', or write a new table in the format parquet",
            ) from error
        self._spark = spark
        self._out = out

    def begun(self) -> str:
        """Return a non-empty name once the table has a batch; an empty table has not begun."""
        return "rows" if self.has(0) else ""

    def foreign(self) -> str:
        """Return foreign data in the directory, or that it is another writer's table. Others may add rows to ours."""
        if not self.there():
            return foreign(self._spark, self._out)
        # A table of ours has this column from its creation, and a transaction only from its first batch.
        is_ours = BATCH in self._layout(self._table()).schema.fieldNames()
        return "" if is_ours else "a Delta table"

    def newest(self) -> tuple[int, str] | None:
        batch = self._table().transaction_version(APP) if self.there() else None
        return None if batch is None else (batch, self.origin(batch))

    def origin(self, batch: int) -> str:
        """Return the origin of the newest batch as passed to ``write``; "" for other batches."""
        if self._table().transaction_version(APP) != batch:
            return ""
        told = (one.get(_ORIGIN) for one in self._table().history(_LOOKED_BACK))
        return next((str(one) for one in told if one), "")

    def there(self) -> bool:
        return LOG in files.names(self._spark, self._out)

    def numbers(self) -> list[int]:
        return [row[0] for row in self.read().select(BATCH).distinct().orderBy(BATCH).collect()]

    def check(self, layout: Layout) -> None:
        """Check that ``prepare`` can make room for rows of this layout; change nothing."""
        if self.there():
            self._further(layout, self._table())

    def prepare(self, layout: Layout) -> None:
        """Create the table, or add missing columns, and missing fields of structs at any depth."""
        from deltalake import DeltaTable as Table

        if not self.there():
            columns = _columns(layout)
            Table.create(self._url(), _delta(columns, layout.by), mode="ignore", partition_by=_by(layout))
            return
        table = self._table()
        if new := self._further(layout, table):
            table.alter.add_columns(_delta(StructType(new)).fields)

    def _further(self, layout: Layout, table: Table) -> list[StructField]:
        """Return the columns that the table lacks, or that have fields which it lacks: Delta merges these."""
        columns, there = _columns(layout), self._layout(table)
        if there.by != layout.by:
            raise ConfigurationError(
                f"{self._out} is {_partitioned(there.by)}, and cannot become {_partitioned(layout.by)}",
                remedy="Land as before, or parse the rows into another table with `holdfast reland`; continue there",
            )
        merged([columns, there.schema])  # raises if the schemas are incompatible
        known = {field.name: field.dataType for field in there.schema.fields}
        for field in columns.fields:
            if not fits(field.dataType, known.get(field.name, field.dataType)):
                raise ConfigurationError(
                    f"{field.name} would become {field.dataType.simpleString()}, but is "
                    f"{known[field.name].simpleString()} in {self._out}, and a Delta table cannot change a type; it "
                    "can only add fields",
                    remedy="Parse the rows into another table with `holdfast reland`; continue there",
                )
        return [one for one in columns.fields if one.name not in known or adds(one.dataType, known[one.name])]

    def has(self, batch: int) -> bool:
        return self.there() and _is_in(self._table(), batch)

    def write(
        self, rows: DataFrame, batch: int, layout: Layout, origin: str = "", *, only: bool = False, if_any: bool = False
    ) -> None:
        """Write the files of a batch and add them in one commit, which replaces the table if ``only`` is set."""
        from pyspark.sql import functions as F

        attempts, token = f"{self._out}/rows/{batch}", secrets.token_hex(6)
        place = f"{attempts}/{token}"
        try:
            write_rows(rows.withColumn(BATCH, F.lit(batch).cast("int")), place, layout)
            added = self.actions(place, layout)
        except Exception as error:
            if self.has(batch):  # the other driver has deleted this attempt
                raise landed_by_another(batch, self._out) from error
            raise
        if if_any and not added:
            files.delete(self._spark, attempts if files.names(self._spark, attempts) == [token] else place)
            return
        self.commit(added, batch, layout, origin, only=only)
        for name in files.names(self._spark, attempts):
            # The log has decided, so an earlier attempt can no longer be added.
            if name != token:
                files.delete(self._spark, f"{attempts}/{name}")

    def commit(self, added: list[Any], batch: int, layout: Layout, origin: str = "", *, only: bool = False) -> None:
        """Add written files in one commit, which creates the table if it does not exist.

        Args:
            added: The files, as ``actions`` returns them.
            batch, layout, origin, only: As of ``write``. The table then has all batches up to this one.

        Raises:
            PipelineError: Another driver has committed the batch in the meantime.
        """
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError, DeltaError
        from deltalake.transaction import create_table_with_add_actions

        told = CommitProperties({_ORIGIN: origin} if origin else None, app_transactions=[Transaction(APP, batch)])
        how: dict[str, Any] = {"partition_by": _by(layout), "commit_properties": told}
        try:
            if not self.there():
                schema = _delta(_columns(layout), layout.by)
                create_table_with_add_actions(self._url(), schema, added, "error", **how)
                return
            table = self._table()
            if _is_in(table, batch):
                raise landed_by_another(batch, self._out)
            if only and table.transaction_version(APP) is None and table.file_uris():
                raise ConfigurationError(
                    f"{self._out} has rows that others have put there, and each batch would replace them",
                    remedy="Name another table",
                )
            table.create_write_transaction(added, "overwrite" if only else "append", table.schema(), **how)
        except (CommitFailedError, DeltaError) as error:  # also if another driver has committed it in the meantime
            if self.has(batch):
                raise landed_by_another(batch, self._out) from error
            raise

    def actions(self, place: str, layout: Layout) -> list[Any]:
        """Return the log entry for each file with rows in a directory below the table's."""
        from deltalake.transaction import AddAction
        from pyspark.sql import functions as F

        rows = self._spark.read.parquet(place)
        about = ["_metadata.file_path", "_metadata.file_size", "_metadata.file_modification_time"]
        day = F.col(layout.by).cast("string") if layout.by else F.lit(None)
        known = statistics.described(layout.schema)
        counted = rows.groupBy(*about, day.alias("day")).agg(*statistics.asked(known)).collect()
        root = urlsplit(files.qualified(self._spark, self._out)).path.rstrip("/") + "/"
        return [
            AddAction(
                quote(unquote(urlsplit(row.file_path).path).removeprefix(unquote(root)), safe="/=-_."),
                row.file_size,
                {layout.by: row.day} if layout.by else {},
                int(row.file_modification_time.timestamp() * 1000),
                True,
                json.dumps(statistics.told(known, row.asDict())),
            )
            for row in counted
        ]

    def read(self) -> DataFrame:
        """Return all rows, with the day computed from its time, because Spark alone cannot read the table's log."""
        found = [f"{self._out}/{path}" for path in self.paths()] if self.there() else []
        if not (found or self.begun()):
            raise nothing(self._out)
        layout, spark = self._layout(self._table()), self._spark
        rows = spark.read.schema(layout.schema).parquet(*found) if found else spark.createDataFrame([], layout.schema)
        return rows.withColumn(layout.by, day_of(layout.by)) if layout.by else rows

    def compact(self, target: int, keep: float) -> tuple[int, int, int]:
        """Merge small files with Delta's own compaction, and delete files replaced more than ``keep`` seconds ago.

        Delta counts in hours, so ``keep`` is rounded up to whole hours.

        Returns:
            Number of replaced files, of new files, and of deleted files.
        """
        table = self._table()
        done = table.optimize.compact(target_size=target)
        hours = math.ceil(keep / 3600)
        deleted = table.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False)
        return done["numFilesRemoved"], done["numFilesAdded"], len(deleted)

    def paths(self) -> list[str]:
        """Return the files of the table, below its directory."""
        import pyarrow as pa

        return [unquote(str(path)) for path in pa.table(self._table().get_add_actions())["path"].to_pylist()]

    def _url(self) -> str:
        """Return the directory's name for delta-rs, which does not know Hadoop's settings."""
        url = files.qualified(self._spark, self._out)
        return unquote(urlsplit(url).path) if url.startswith("file:") else url

    def _table(self) -> Table:
        from deltalake import DeltaTable as Table

        return Table(self._url())

    def _layout(self, table: Table) -> Layout:
        schema = StructType.fromJson(json.loads(table.schema().to_json()))
        day = next((name for name in table.metadata().partition_columns if name in DAYS.values()), None)
        return Layout(StructType([field for field in schema.fields if field.name != day]), day)


def _is_in(table: Table, batch: int) -> bool:
    version = table.transaction_version(APP)
    return version is not None and version >= batch


def _columns(layout: Layout) -> StructType:
    columns = nullable(StructType([*layout.schema.fields, StructField(BATCH, IntegerType())]))
    assert isinstance(columns, StructType)
    return columns


def _delta(columns: StructType, day: str | None = None) -> Any:
    from deltalake import Schema
    from pyspark.sql.pandas.types import to_arrow_schema

    whole = StructType([*columns.fields, *([StructField(day, DateType())] if day else [])])
    return Schema.from_arrow(to_arrow_schema(whole, timezone="UTC"))


def _by(layout: Layout) -> list[str] | None:
    return [layout.by] if layout.by else None


def _partitioned(day: str | None) -> str:
    return f"partitioned by {day}" if day else "not partitioned"
