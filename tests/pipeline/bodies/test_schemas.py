"""Fields as they are given: a type, DDL, or a file of one of the two."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import IntegerType, StructField, StructType

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.bodies.schemas import schema_in, schema_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIELDS = StructType([StructField("id", IntegerType(), metadata={"namespace": "urn:o"})])


def test_a_file_has_ddl_or_json(tmp_path: Path) -> None:
    (tmp_path / "json").write_text(FIELDS.json())
    (tmp_path / "ddl").write_text("id INT\n")
    assert schema_in(tmp_path / "json") == FIELDS
    assert schema_in(str(tmp_path / "ddl")) == "id INT"


@pytest.mark.parametrize("text", ['{"type": "struct"}', "{", '{"a": ' * 100_000])
def test_a_file_without_a_schema_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "broken").write_text(text)
    with pytest.raises(ConfigurationError, match="broken contains no schema: ") as caught:
        schema_in(tmp_path / "broken")
    assert "StructType.json()" in caught.value.remedy


@pytest.mark.spark
def test_a_type_is_itself_and_ddl_is_read_or_refused(spark: SparkSession) -> None:
    assert schema_of(FIELDS) is FIELDS
    assert schema_of(None) == StructType()
    assert schema_of("id INT") == StructType([StructField("id", IntegerType())])
    with pytest.raises(ConfigurationError, match="the schema 'id NOTHING' cannot be read") as caught:
        schema_of("id NOTHING")
    assert "SQL" in caught.value.remedy
