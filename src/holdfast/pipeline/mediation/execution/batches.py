"""What a pipeline reports of a batch. Knows no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class MediatedBatch:
    """What came of a batch.

    Args:
        query: The query's name: the source's, or that of a step with state.
        batch: Its number.
        rows: Messages that it read from its source.
        sinks: Sink -> the rows it was given.
        doubles: Records of a Kafka topic that an earlier attempt of the sink that sent them had sent before: read once.
        dead: Rows that went to the dead letters.
        late: Rows that a step with state dropped, since they came later than its watermark: Spark's
            ``numRowsDroppedByWatermark``, which counts rows of one group as one.
        repeated: Whether an earlier attempt had settled it.
        seconds: How long it took, from its start until every sink had its rows.
    """

    query: str
    batch: int
    rows: int
    sinks: Mapping[str, int]
    dead: int
    late: int
    repeated: bool
    doubles: int = 0
    seconds: float = 0.0
