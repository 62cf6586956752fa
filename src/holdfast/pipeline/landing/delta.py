"""Landed rows as a Delta table, by ``deltalake``; no jar is needed.

Spark writes a batch's files into ``rows/BATCH/TOKEN``, where nobody looks; then one commit of the table's log adds
them, and says with Delta's own transaction identifier up to which batch rows are in. A batch that Spark repeats after
a crash is either in, and is not written again, or is not, and is written beside what was left, which is deleted once
the new files are in. So no driver takes another's files away that might still be added: where two are alive, the log
says whose count. Where a batch is all of the table, the same commit takes away what the table held.
"""

from __future__ import annotations

import json
import math
import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from pyspark.sql.types import IntegerType, StructField, StructType

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.bodies.templates import nullable
from holdfast.pipeline.landing import statistics
from holdfast.pipeline.landing.directories import BATCH, DAYS, Layout, day_of, landed_by_another, nothing, write_rows
from holdfast.pipeline.landing.widening import merged
from holdfast.pipeline.spark import files

if TYPE_CHECKING:
    from deltalake import DeltaTable as Table
    from pyspark.sql import DataFrame, SparkSession

APP = "holdfast-land"
"""Whose transactions those of a landing are. One landing owns a table, as it owns a directory."""

LOG = "_delta_log"

_ORIGIN = "holdfast-origin"
"""In a commit's own metadata: of which query the batch is, and from where to where it reaches."""
_LOOKED_BACK = 100
"""Commits, of compactions and others, that may have come after the newest batch."""


class DeltaTable:
    """Landed rows as a Delta table; see ``landed.ParquetTable`` for what each method promises.

    Args:
        spark: A classic session.
        out: The directory, which both Spark and delta-rs can write.

    Raises:
        ConfigurationError: ``deltalake`` is not installed.
    """

    kind = "delta"

    def __init__(self, spark: SparkSession, out: str) -> None:
        try:
            import deltalake  # noqa: F401
        except ImportError as error:
            raise ConfigurationError(
                f"{out} is, or is to be, a Delta table, which needs deltalake: {error}",
                remedy="pip install 'holdfast[delta]'",
            ) from error
        self._spark = spark
        self._out = out

    def begun(self) -> str:
        """Whether the table has batches: what is landed to it first, else it would be begun before that."""
        return "rows" if self.has(0) else ""

    def foreign(self) -> str:
        """Nothing: others may put something into the table, and landing leaves it there."""
        return ""

    def newest(self) -> tuple[int, str] | None:
        """The newest batch, and its origin."""
        batch = self._table().transaction_version(APP) if self._there() else None
        return None if batch is None else (batch, self.origin(batch))

    def origin(self, batch: int) -> str:
        """What ``write`` was told of the newest batch; "" for others."""
        if self._table().transaction_version(APP) != batch:
            return ""
        told = (one.get(_ORIGIN) for one in self._table().history(_LOOKED_BACK))
        return next((str(one) for one in told if one), "")

    def _there(self) -> bool:
        return LOG in files.names(self._spark, self._out)

    def numbers(self) -> list[int]:
        """The batches that have rows."""
        return [row[0] for row in self.read().select(BATCH).distinct().orderBy(BATCH).collect()]

    def prepare(self, layout: Layout) -> None:
        """Make the table, or add the columns that it lacks."""
        from deltalake import DeltaTable as Table
        from pyspark.sql.pandas.types import to_arrow_schema

        columns = nullable(StructType([*layout.schema.fields, StructField(BATCH, IntegerType())]))
        assert isinstance(columns, StructType)
        if not self._there():
            whole = _with_day(columns, layout.by)
            schema = to_arrow_schema(whole, timezone="UTC")
            Table.create(self._out, schema, mode="ignore", partition_by=[layout.by] if layout.by else None)
            return
        table = self._table()
        there = self._layout(table)
        if there.by != layout.by:
            raise ConfigurationError(
                f"{self._out} is {_partitioned(there.by)}, and is not to become {_partitioned(layout.by)}",
                remedy="land as before, or land all again, and go on there: holdfast reland",
            )
        merged([columns, there.schema])  # its refusals are ours
        known = {field.name: field.dataType for field in there.schema.fields}
        for field in columns.fields:
            if field.name in known and known[field.name] != field.dataType:
                raise ConfigurationError(
                    f"{field.name} is to be {field.dataType.simpleString()}, but is "
                    f"{known[field.name].simpleString()} in {self._out}, and a Delta table's types stay",
                    remedy="land again by the new schema, and go on there: holdfast reland",
                )
        if new := [field for field in columns.fields if field.name not in known]:
            from deltalake import Schema

            table.alter.add_columns(Schema.from_arrow(to_arrow_schema(StructType(new), timezone="UTC")).fields)

    def has(self, batch: int) -> bool:
        """Whether the batch is in the table's log."""
        return self._there() and _is_in(self._table(), batch)

    def write(self, rows: DataFrame, batch: int, layout: Layout, origin: str = "", *, only: bool = False) -> None:
        """Write the batch's files, then add them to the table, all at once; ``only``: in place of all that it holds."""
        from pyspark.sql import functions as F

        attempts, token = f"{self._out}/rows/{batch}", secrets.token_hex(6)
        write_rows(rows.withColumn(BATCH, F.lit(batch).cast("int")), f"{attempts}/{token}", layout)
        self._add(f"{attempts}/{token}", batch, layout, origin, only)
        for name in files.names(self._spark, attempts):
            if name != token:
                files.delete(self._spark, f"{attempts}/{name}")

    def _add(self, place: str, batch: int, layout: Layout, origin: str, only: bool) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        table = self._table()
        if _is_in(table, batch):
            raise landed_by_another(batch, self._out)
        if only and table.transaction_version(APP) is None and table.file_uris():
            raise ConfigurationError(
                f"{self._out} has rows that others have put there, and each batch would replace them",
                remedy="name another table",
            )
        told = CommitProperties({_ORIGIN: origin} if origin else None, app_transactions=[Transaction(APP, batch)])
        try:
            table.create_write_transaction(
                self._added(place, layout),
                "overwrite" if only else "append",
                table.schema(),
                partition_by=[layout.by] if layout.by else None,
                commit_properties=told,
            )
        except CommitFailedError as error:  # also where another has committed the batch since the table was read
            if self.has(batch):
                raise landed_by_another(batch, self._out) from error
            raise

    def _added(self, place: str, layout: Layout) -> list[Any]:
        """What the log is to say of each file."""
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
        """All rows. The day is computed from its time: Spark alone cannot tell it from the table's log."""
        import pyarrow as pa

        if not self._there():
            raise nothing(self._out)
        table = self._table()
        layout = self._layout(table)
        found = pa.table(table.get_add_actions())["path"].to_pylist()
        if not found:
            raise nothing(self._out)
        rows = self._spark.read.schema(layout.schema).parquet(*(f"{self._out}/{unquote(str(path))}" for path in found))
        return rows.withColumn(layout.by, day_of(layout.by)) if layout.by else rows

    def compact(self, target: int, keep: float) -> tuple[int, int]:
        """Put small files together, by the table's own means; and delete what is replaced since ``keep`` seconds, or
        since the whole hours, which these means count in, that are no less.

        Returns:
            How many files were replaced, and by how many.
        """
        table = self._table()
        done = table.optimize.compact(target_size=target)
        table.vacuum(retention_hours=math.ceil(keep / 3600), dry_run=False, enforce_retention_duration=False)
        return done["numFilesRemoved"], done["numFilesAdded"]

    def retire(self, batch: int) -> None:
        """Nothing: the commit that put it there took the others away."""

    def _table(self) -> Table:
        from deltalake import DeltaTable as Table

        return Table(self._out)

    def _layout(self, table: Table) -> Layout:
        schema = StructType.fromJson(json.loads(table.schema().to_json()))
        day = next((name for name in table.metadata().partition_columns if name in DAYS.values()), None)
        return Layout(StructType([field for field in schema.fields if field.name != day]), day)


def _is_in(table: Table, batch: int) -> bool:
    version = table.transaction_version(APP)
    return version is not None and version >= batch


def _with_day(columns: StructType, day: str | None) -> StructType:
    from pyspark.sql.types import DateType

    return StructType([*columns.fields, *([StructField(day, DateType())] if day else [])])


def _partitioned(day: str | None) -> str:
    return f"partitioned by {day}" if day else "not partitioned"
