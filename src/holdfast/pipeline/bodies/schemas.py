"""The fields of a body's element from the user: Spark's type, DDL, or a file with one of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.exceptions import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def schema_of(given: StructType | str | None) -> StructType:
    """Return the fields; none for None. DDL needs an active session.

    Raises:
        ConfigurationError: The DDL is not valid.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    if not isinstance(given, str):
        return given or StructType()
    try:
        return StructType.fromDDL(given)
    except PySparkException as error:
        said = str(error).strip().splitlines()[0]
        raise ConfigurationError(
            f"the schema {given!r} cannot be read: {said}",
            remedy='Write fields and types as in SQL: "carrier STRING, flight BIGINT"',
        ) from error


def schema_in(file: str | Path) -> StructType | str:
    """Return the content of a file: DDL, or the type in Spark's JSON.

    Raises:
        ConfigurationError: The file cannot be read, or contains other JSON.
    """
    from pyspark.sql.types import StructType

    try:
        text = Path(file).read_text(encoding="utf-8").strip()
        return StructType.fromJson(json.loads(text)) if text.startswith("{") else text
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigurationError(
            f"{file} contains no schema: {type(error).__name__}: {error}",
            remedy='Write DDL into it, "carrier STRING, flight INT", or the output of StructType.json()',
        ) from error
