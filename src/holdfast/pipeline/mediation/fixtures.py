"""Messages in local files that replace a pipeline's sources in a test.

A file of XML is one message's body. A ``.jsonl`` file has a message on each line, by the columns of the source, or by
those that ``holdfast send --jsonl`` reads. Columns that a file omits have the same values in every run, so that the
resulting rows can be compared.
"""

from __future__ import annotations

import glob
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid5

from lxml import etree

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.mediation.definition.checks import source_options
from holdfast.pipeline.mediation.definition.columns import KAFKA_TABLE, RAW
from holdfast.pipeline.mediation.definition.plan import PipelinePlan, SourcePlan
from holdfast.pipeline.reader.columns import Typed, chosen, spark_struct
from holdfast.pipeline.reader.options import MESSAGES, TABLES, ReadOptions
from holdfast.settings import suggestion

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BEGIN = datetime(2000, 1, 1, tzinfo=UTC)
"""Delivery time of a source's first message; each further one is a second later."""
SEQUENCE = "urn:uuid:00000000-0000-0000-0000-000000000000"
"""The Sequence of the messages without a key."""
KEY, ATTACHMENTS = "key", "attachments"
"""What ``holdfast send --jsonl`` reads besides columns of the source: the key of the message's Sequence, and what no
source has as a column."""

_ENVELOPES = ("http://www.w3.org/2003/05/soap-envelope", "http://schemas.xmlsoap.org/soap/envelope/")
_BY_KIND: Mapping[str, Any] = {"string": "", "integer": 0, "long": 0, "boolean": False, "timestamp": BEGIN}
_PYTHON: Mapping[str, type] = {"string": str, "integer": int, "long": int, "boolean": bool, "timestamp": str}
_A = {kind: f"an {kind}" if kind == "integer" else f"a {kind}" for kind in _PYTHON}
_BITS = {"integer": 31, "long": 63}
_SURROGATE = re.compile("[\ud800-\udfff]")


def message_files(told: Sequence[str], plan: PipelinePlan) -> dict[str, list[Path]]:
    """Find the files of each source.

    Args:
        told: Paths or patterns, each after ``NAME=`` of its source; the name is optional for a pipeline's only source.

    Returns:
        Source -> its files, in the given order; those of one pattern sorted by name.

    Raises:
        ConfigurationError: A file does not exist, or its source is unknown.
    """
    names = [source.name for source in plan.sources]
    found: dict[str, list[Path]] = {name: [] for name in names}
    for one in told:
        before, equals, after = one.partition("=")
        is_named = bool(equals) and before in found
        if not is_named and len(names) > 1:
            raise ConfigurationError(
                f"{one} names no source, but the pipeline has {len(names)}",
                remedy=f"Write {names[0]}={one}; the sources are {', '.join(names)}",
            )
        place = after if is_named else one
        paths = [Path(place)] if Path(place).is_file() else [Path(path) for path in sorted(glob.glob(place))]
        if not paths and equals and not is_named:
            raise ConfigurationError(
                f"{one} is not a file, and the pipeline has no source {before!r}",
                remedy=f"Name a file with messages, or write {names[0]}={after}",
            )
        if not paths:
            raise ConfigurationError(
                f"the file {place} does not exist", remedy="Name a file with messages, or a pattern"
            )
        found[before if is_named else names[0]] += paths
    return found


def messages_of(source: SourcePlan, files: Sequence[Path]) -> list[dict[str, Any]]:
    """Read the messages of a source's files, once: a file may be a pipe.

    Raises:
        ConfigurationError: A file does not contain messages; names the line.
    """
    return [one for file in files for one in _messages(file, source)]


def rows_of(spark: SparkSession, source: SourcePlan, given: Sequence[dict[str, Any]]) -> DataFrame:
    """Return the rows that a source with only these messages would have."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    columns = _columns(source)
    names = [name for name, *_ in columns]
    rows = _rows(source, given)
    values = [tuple(row[name] for name in names) for row in rows]
    if source.kafka is None:
        return spark.createDataFrame(values, spark_struct(columns))
    more = T.StructType.fromDDL("told MAP<STRING, STRING>")
    whole = T.StructType([*spark_struct(columns).fields, *more.fields])
    told = [(*value, row["headers"]) for value, row in zip(values, rows, strict=True)]
    entries = F.transform(
        F.map_entries("told"),
        lambda one: F.struct(one["key"].alias("key"), one["value"].cast("binary").alias("value")),
    )
    raw = [F.lit(None).cast("binary").alias(name) for name in RAW]
    return spark.createDataFrame(told, whole).select(*names, entries.alias("headers"), *raw)


def _columns(source: SourcePlan) -> list[Typed]:
    if source.kafka is not None:
        return KAFKA_TABLE
    options = ReadOptions.parse(source_options(source))
    return chosen(TABLES[options.read], options.names)


def _is_sent(source: SourcePlan) -> bool:
    """Whether the rows of a source are messages that ``holdfast send`` could have sent."""
    return source.kafka is None and ReadOptions.parse(source_options(source)).read == MESSAGES


def _messages(file: Path, source: SourcePlan) -> Iterator[dict[str, Any]]:
    columns = _columns(source)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{file} cannot be read: {error.strerror}", remedy="Name a file with messages"
        ) from None
    if file.suffix != ".jsonl":
        yield {"message_id": file.name, "body": _body(file, content)}
        return
    kinds = {name: kind for name, kind, _ in columns} | ({KEY: "string"} if _is_sent(source) else {})
    required = {name for name, _, nullable in columns if not nullable}
    for number, one in json_lines(file, content):
        for name, value in one.items():
            if name == "headers" and source.kafka is not None and isinstance(value, dict):
                continue
            if name == ATTACHMENTS and _is_sent(source) and isinstance(value, list):
                continue
            if name not in kinds:
                raise ConfigurationError(
                    f"{file}:{number}: its source has no column {name!r}",
                    remedy=suggestion(name, kinds, f"The columns are {', '.join(kinds)}"),
                )
            if value is None and name in required:
                raise ConfigurationError(
                    f"{file}:{number}: {name} is null, but every message has one", remedy="Add a value, or omit the key"
                )
            if value is not None and not _is_of(value, kinds[name]):
                raise ConfigurationError(
                    f"{file}:{number}: {name} is {json.dumps(value, default=str)}, not {_A[kinds[name]]}",
                    remedy="Correct the line",
                )
            if value is not None and kinds[name] == "timestamp":
                one[name] = _time(value, f"{file}:{number}: {name}")
        yield {"message_id": f"{file.name}:{number}", **one}


def _is_of(value: Any, kind: str) -> bool:
    """Whether a column of this kind can contain a value."""
    if kind == "timestamp" and type(value) in (int, Decimal):
        return True
    if type(value) is not _PYTHON[kind]:
        return False
    if kind in _BITS:
        return bool(-(2 ** _BITS[kind]) <= value < 2 ** _BITS[kind])
    return kind != "string" or _SURROGATE.search(str(value)) is None


def _time(value: str | int | Decimal, where: str) -> datetime:
    """Return a time from its text, or from seconds since 1970, as ``holdfast receive --jsonl`` writes them."""
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else EPOCH + timedelta(seconds=float(value))
    except (ValueError, OverflowError):
        shown = repr(value) if isinstance(value, str) else str(value)[:40]
        raise ConfigurationError(
            f"{where} is {shown}, not a time",
            remedy='Write it as "2026-07-01T09:30:00Z", or in seconds since 1970',
        ) from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _body(file: Path, content: bytes) -> str:
    """Decode a body by its XML declaration, which a queue drops; other content stays unchanged."""
    parser = etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=True)
    try:
        root = etree.fromstring(content, parser)
    except etree.XMLSyntaxError:
        return content.decode(errors="replace")
    if root.tag in {f"{{{namespace}}}Envelope" for namespace in _ENVELOPES}:
        raise ConfigurationError(
            f"{file} contains a SOAP envelope, but a message is the content of its Body",
            remedy='Write the element inside the Body; give an Action as "action" in a .jsonl file',
        )
    return etree.tostring(root, encoding="unicode", with_tail=False)


def _rows(source: SourcePlan, given: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Fill the columns of all messages. Those with one key are in one Sequence, as if ``holdfast send`` sent them."""
    columns, numbers = _columns(source), Counter[str]()
    rows = []
    for offset, one in enumerate(given):
        key = (one.get(KEY) or "") if _is_sent(source) else ""
        numbers[key] += 1
        rows.append(_row(offset, one, columns, source, key, numbers[key]))
    return rows


def _row(
    offset: int, given: Mapping[str, Any], columns: list[Typed], source: SourcePlan, key: str, number: int
) -> dict[str, Any]:
    """Fill a message's columns: given values, otherwise those that the message at this offset has in every run.

    Args:
        key: The key of its Sequence.
        number: Its number in the Sequence.
    """
    time = BEGIN + timedelta(seconds=offset)
    names = source.topic if source.kafka is not None else source.queue
    usual = {
        "queue": names[0] if names else "inbox",
        "offset": offset,
        "sequence": uuid5(UUID(int=0), key).urn if key else SEQUENCE,
        "message_number": number,
        "soap_version": "1.2",
        "received_at": time,
        "delivered_at": time,
        "headers": {} if source.kafka is not None else "",
    }
    row = {name: usual.get(name, None if nullable else _BY_KIND[kind]) for name, kind, nullable in columns}
    return {**row, **({"headers": {}} if source.kafka is not None else {}), **given}


def json_lines(file: Path, content: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line number and the object of each line in a file of JSON objects.

    Raises:
        ConfigurationError: A line is something else.
    """
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            one = json.loads(line, parse_float=Decimal)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(
                f"{file}:{number}: is not JSON: {error}", remedy="Write one JSON object on each line"
            ) from None
        if not isinstance(one, dict):
            raise ConfigurationError(f"{file}:{number}: is not a JSON object", remedy='Write {"…": …} on each line')
        yield number, one
