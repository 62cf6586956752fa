"""Columns and events of an event journal.

Imports only light modules, because every Spark process that reads a journal imports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the journal.

    Args:
        name: What it is called.
        type: Of Spark's: ``timestamp``, ``string``, ``int`` or ``bigint``.
        says: What it means.
    """

    name: str
    type: str
    says: str


COLUMNS = (
    Column("at", "timestamp", "When it happened; for a range, the time of its last event."),
    Column("run", "string", "The run of the process that wrote the event; every start is another run."),
    Column("ordinal", "bigint", "Number of the event in that run, from 0. A missing number is a lost event."),
    Column("worker", "int", "Number of the process among several workers; null for a single process."),
    Column("event", "string", "What happened; see below."),
    Column("sequence", "string", "Identifier of the Sequence; null without one."),
    Column("number", "bigint", "Message number in the Sequence, the first of a range."),
    Column("count", "bigint", "Number of messages, numbers or offsets of the event: a range that starts at its first."),
    Column("queue", "string", "The queue."),
    Column("partition", "int", "The partition of the queue."),
    Column("offset", "bigint", "The offset in the partition, the first of a range."),
    Column("since", "timestamp", "When the message was received or submitted."),
    Column(
        "peer",
        "string",
        "The other party: an address, the owner of a certificate, the name of a reader, or `sink/NAME`.",
    ),
    Column("key", "string", "The outbox; for a forwarder `forwarder/NAME/PARTITION`."),
    Column("attempt", "int", "Number of the attempt, from 1."),
    Column("detail", "string", "More details, depending on the event."),
)
"""Every column of the journal, in order. Those after ``ordinal`` and ``worker`` are the event's own."""

EVENTS: Mapping[str, str] = {
    "started": "A process started to write this journal. `attempt`: the number of the run, from 1; in a "
    "database or Kafka, how often the store was opened; `detail`: the "
    "version.",
    "stopped": "The run ended normally, without losing events at its end. Before this event, the journal lists the "
    "durable state again, as at the beginning of a file.",
    "recovered": "The process read its state from the store; the following `stands` events describe it. `count`: "
    "Sequences.",
    "gap": "`count` events of this run were not written. `detail`: why.",
    "stands": "The durable state of a Sequence at the beginning of a journal file: a range of numbers that are "
    "accepted (`detail`: the state, the assurance), held (`detail`: held), or acknowledged by the next "
    "hop (with `key`); `count` 0: none.",
    "queue stands": "`offset`: the end of a partition at the beginning of a journal file. `attempt`: as in "
    "`started`; `detail`: the queue's epoch.",
    "handled stands": "Offsets that the handler has durably completed at the beginning of a journal file. "
    "`detail`: recovered, if before this run.",
    "created": "This side granted a Sequence (no `key`; `detail`: its assurance), or a destination granted one "
    "(`key`; `offset`: that of its number 1).",
    "closed": "The Sequence accepts no new messages.",
    "terminated": "The Sequence has ended. `detail`: the missing numbers, the last fault.",
    "expired": "The Sequence reached its Expires, or its inactivity timeout.",
    "forgotten": "The process no longer remembers the Sequence.",
    "delivered": "A message is durable in its queue for the application. `since`: when it was received; null if it "
    "was held since an earlier run. `peer`: the sink that published it, if any.",
    "held": "A message is durable, and waits for a lower number.",
    "discarded": "A held message was discarded with its incomplete Sequence, or its queue no longer exists.",
    "not queued": "A message was accepted without going into a queue. `detail`: why.",
    "duplicate": "A message was received again, and dropped.",
    "not taken": "A message was received too far beyond a gap; the source must retransmit it.",
    "acknowledged": "This side acknowledged these messages, for the first time in this run.",
    "handed over": "The handler received a message. `attempt`: the number of the attempt.",
    "handled": "The handler has durably completed these messages.",
    "rewound": "An operator moved the handlers back: they start again at `offset`.",
    "read": "A reader (`peer`) has durably completed everything below `offset`.",
    "staged": "`count` rows of an external writer are durable in a sink. Each is `delivered` when they are published.",
    "submitted": "An outgoing message is durable in an outbox.",
    "transmitted": "Messages were sent for the first time in this run.",
    "retransmitted": "A message was retransmitted.",
    "replied": "A reply was sent in the answer to a request, in the Sequence that the request's source offered.",
    "arrived": "The next hop acknowledged these messages.",
    "given up": "A message became a dead letter, in `queue` at `offset`; or, with `key`, it was discarded.",
    "sending.stopped": "An outbox sends nothing until an operator decides. `detail`: why.",
    "fault sent": "`detail`: its code and its reason.",
    "fault received": "`detail`: its code and its reason.",
    "deleted": "Records below `offset` are deleted.",
    "incident": "Other log events of level `info` and above. `detail`: the name, and more.",
    "damaged": "A reader found a damaged journal file and skipped it, or the rest of it. No file contains this "
    "event. `detail`: the file, and its damage.",
}
"""Event -> what it says."""

NAMES = tuple(column.name for column in COLUMNS)
DAMAGED = "damaged"
"""The event that readers add for a file they leave out."""
RECOVERED = "recovered"
"""``detail`` of what stands since before its run."""
SINK_PEER = "sink/"
"""``peer`` of a row that a sink published begins with this; the name of the sink follows."""
LIFE = {"closed": "closed", "closing": "closed", "terminated": "terminated", "terminating": "terminated"}
"""State of an inbound Sequence, as saved -> the event that reports it."""
