"""What an event journal says: its columns and its events.

Loads next to nothing: every process of Spark that reads imports it.
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
    Column("at", "timestamp", "When it happened; of what is told in ranges, when the last of it did."),
    Column("run", "string", "Which run of which process wrote it: another one at every start."),
    Column("ordinal", "bigint", "Its place among the events of that run, from 0. One that is missing is lost."),
    Column("worker", "int", "The number of the process among several workers; null if it is the only one."),
    Column("event", "string", "What happened; see below."),
    Column("sequence", "string", "The Identifier of the Sequence; null if it is about none."),
    Column("number", "bigint", "The message number in it, the first of a range."),
    Column("count", "bigint", "How many messages, numbers or offsets it is about: a range goes up from its first."),
    Column("queue", "string", "The queue."),
    Column("partition", "int", "The partition of it."),
    Column("offset", "bigint", "The offset in that, the first of a range."),
    Column("since", "timestamp", "When the message had come, or was submitted."),
    Column("peer", "string", "Whose it is: an address, the owner of a certificate, the name of a reader."),
    Column("key", "string", "The outbox: `forwarder/NAME/PARTITION` of a forwarder's."),
    Column("attempt", "int", "Which attempt it was, from 1."),
    Column("detail", "string", "More, as the event says."),
)
"""Every column of the journal, in order. Those after ``ordinal`` and ``worker`` are the event's own."""

EVENTS: Mapping[str, str] = {
    "started": "A process began to write this journal. `attempt`: which run it is, from 1; `detail`: the version.",
    "stopped": "The run ended in order, and lacks no event at its end. Before it, the journal lists again what is "
    "durable, as at the beginning of a file.",
    "recovered": "Its state was read from the store, as the `stands` that follow say. `count`: Sequences.",
    "gap": "`count` events of this run were not written. `detail`: why.",
    "stands": "What is durable of a Sequence where a file of the journal begins. A range of the numbers that are "
    "accepted (`detail`: the state, the assurance), held (`detail`: held), or that the next hop has (with `key`); "
    "`count` 0: none.",
    "queue stands": "`offset`: the end of a partition where a file of the journal begins. `attempt`: as of `started`; "
    "`detail`: the queue's epoch.",
    "handled stands": "Offsets that the handler is durably done with where a file of the journal begins. `detail`: "
    "recovered, if it was before this run.",
    "created": "A Sequence was granted (no `key`; `detail`: its assurance), or a destination granted us one "
    "(`key`; `offset`: of its number 1).",
    "closed": "It takes no new message.",
    "terminated": "It is over. `detail`: the numbers that are missing, the last fault.",
    "expired": "Its time was up: by its Expires, or since nothing came.",
    "forgotten": "It is known no more.",
    "delivered": "A message is durable in its queue for the application. `since`: when it came; null if it was held "
    "since before this run.",
    "held": "A message is durable, and waits for one before it.",
    "discarded": "A held message was thrown away with its incomplete Sequence, or had no queue left to go to.",
    "not queued": "A message was accepted and goes into no queue. `detail`: why.",
    "duplicate": "A message came again, and was dropped.",
    "not taken": "A message came too far beyond a gap; it is to be sent again.",
    "acknowledged": "The peer was told that these are accepted, the first time in this run.",
    "handed over": "A message was given to the handler. `attempt`: which time.",
    "handled": "The handler is done with these, durably.",
    "rewound": "Somebody put the handlers back: from `offset` on they begin again.",
    "read": "A reader (`peer`) is done with everything below `offset`, durably.",
    "staged": "`count` rows from outside are durable for a sink, and wait for their publication, with which each is "
    "`delivered`.",
    "submitted": "A message of ours is durable in an outbox.",
    "transmitted": "Messages were sent for the first time in this run.",
    "retransmitted": "A message was sent again.",
    "replied": "A message went back in the answer to a request, in the Sequence that was offered for it.",
    "arrived": "The next hop says that it has these.",
    "given up": "A message became a dead letter, in `queue` at `offset`; or, with `key`, somebody gave it up.",
    "sending.stopped": "An outbox sends nothing more until somebody decides. `detail`: why.",
    "fault sent": "`detail`: its code and its reason.",
    "fault received": "`detail`: its code and its reason.",
    "deleted": "Records below `offset` are deleted.",
    "incident": "What the log says besides, from `info` on. `detail`: its name, and more.",
    "damaged": "A reader could not believe a file of the journal, or the rest of one, and left it out. No file holds "
    "this event. `detail`: the file, and what is wrong with it.",
}
"""Event -> what it says."""

NAMES = tuple(column.name for column in COLUMNS)
DAMAGED = "damaged"
"""The event that readers add for a file they leave out."""
RECOVERED = "recovered"
"""``detail`` of what stands since before its run."""
LIFE = {"closed": "closed", "closing": "closed", "terminated": "terminated", "terminating": "terminated"}
"""State of an inbound Sequence, as saved -> the event that reports it."""
