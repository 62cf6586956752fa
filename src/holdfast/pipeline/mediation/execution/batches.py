"""The report of a pipeline's batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class MediatedBatch:
    """The result of a batch.

    Args:
        query: The query's name: the source's, or that of a step with state.
        batch: Its number.
        rows: Messages read from its source.
        sinks: Sink -> number of rows that it has accepted.
        doubles: Records of a Kafka topic that their sink had already sent in an earlier attempt; each was read once.
        dead: Rows that became dead letters.
        late: Rows that a step with state dropped, because they came later than its watermark (Spark's
            ``numRowsDroppedByWatermark``, which counts rows of one group as one), or had no time.
        refused: Sink -> number of rows that its server refused; they became dead letters.
        reasons: Sink -> the most frequent reason of these.
        repeated: Whether an earlier attempt had settled it.
        seconds: Duration from its start until every sink had its rows.
    """

    query: str
    batch: int
    rows: int
    sinks: Mapping[str, int]
    dead: int
    late: int
    repeated: bool
    doubles: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
