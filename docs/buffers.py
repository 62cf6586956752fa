"""Every buffer of a server's process, with its bound: ``docs/generate.py`` writes the table, ``tests/docs`` adds it up.

Numbers come from the code. A constant that may count bytes, by its name or by its size, is in ``HERE`` or in
``NO_BUFFERS``.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.handling import delivery as handling
from holdfast.core.policy import DestinationPolicy, StagingPolicy
from holdfast.core.receiving import held_messages as held
from holdfast.core.sending import outbound_room
from holdfast.core.sending import read_ahead_buffer as here
from holdfast.core.sending.polling import mailboxes
from holdfast.endpoint.admin.data_plane import record_stream
from holdfast.endpoint.admin.data_plane import sinks as sinks_admin
from holdfast.endpoint.admin.merged import application as merged_admin
from holdfast.endpoint.admin.resources import queues as queues_admin
from holdfast.endpoint.engine.store_reads import MOST_AT_A_TIME
from holdfast.endpoint.handling import dead_letters as letters
from holdfast.endpoint.journal import writer as journal
from holdfast.endpoint.source import enqueued_messages
from holdfast.endpoint.workers import identifier_table as identifiers
from holdfast.endpoint.workers import node_listener, placement, relays
from holdfast.endpoint.workers import routing as neighbours
from holdfast.endpoint.workers.frames import large_answers, packets, sealed_transport
from holdfast.endpoint.workers.frames import session as frame_session
from holdfast.http import tls_transport
from holdfast.http.client import answer_room
from holdfast.http.client import connection as client_connection
from holdfast.http.client.client import HTTPClient
from holdfast.http.exchange import HTTPLimits
from holdfast.store.rocksdb import opening
from holdfast.wire.attachments import stored

LIMITS, INBOUND, SINKS = HTTPLimits(), DestinationPolicy(), StagingPolicy()
LARGEST = LIMITS.max_body
"""The largest message: ``max_body``."""
READ = 1 << 20
"""Bytes that a store reads at once for the core (``Store.read``), in addition to one record."""
HIGH_WATER = tls_transport.HIGH_WATER
"""Bytes that a transport accepts before it reports that it is full, plain or in TLS."""
CONNECTION = 16 << 10
"""Approximate bytes of a connection's objects."""
PAGE = max(letters.PAGE_BYTES, queues_admin.PEEKED_BYTES)
"""Bytes of records in a page for people, in addition to one record."""
PAGE_COPIES = 7
"""Bytes of a page's text and of its JSON, twice, for each byte of the records: JSON writes at most three for one."""
CLIENTS = HTTPClient.__init__.__kwdefaults__["max_connections"]


@dataclass(frozen=True)
class Buffer:
    """One row of the table.

    Args:
        what: Its content.
        each: Bytes of one.
        count: Maximum number.
        beyond: What happens to content beyond the limit.
        where: The setting, or the constant in the code.
    """

    what: str
    each: int
    count: int
    beyond: str
    where: str

    @property
    def bytes(self) -> int:
        """Total bytes."""
        return self.each * self.count


PROCESS = [
    Buffer(
        "requests at the listeners for messages and for the admin, until they are answered; unfinished headers",
        LIMITS.max_buffered, 2, "503; the sender retries. One address may use half of it for contents above 64 KB",
        "`HTTPLimits.max_buffered`",
    ),
    Buffer(
        "decoded messages of these requests, until they are on the disk",
        LIMITS.max_buffered, 1, "each belongs to such a request", "`HTTPLimits.max_buffered`",
    ),
    Buffer(
        "the batch of changes that is being written, encoded",
        LIMITS.max_buffered + held.BLOCK_BYTES + LARGEST, 1, "later changes share the next batch",
        "`HTTPLimits.max_buffered`, `core.receiving.held_messages.BLOCK_BYTES`",
    ),
    Buffer(
        "the envelope that is being decoded in the thread: its tree and its pieces",
        2 * LARGEST, 1, "others wait undecoded", "`HTTPLimits.max_body`",
    ),
    Buffer(
        "answers that peers do not read, with the pieces that readers of records do not read",
        LIMITS.max_unsent, 2, "the connection that waits longest is closed; the reply is kept",
        "`HTTPLimits.max_unsent`, `endpoint.admin.data_plane.record_stream.PIECE_BYTES`",
    ),
    Buffer(
        "answers below 64 KB in the buffers of connections, and the connections themselves",
        HIGH_WATER + CONNECTION, 2 * LIMITS.max_connections, "503", "`HTTPLimits.max_connections`",
    ),
    Buffer(
        "TLS connections of the listeners and to destinations: OpenSSL's state and buffers",
        5 * tls_transport.RECORD_BYTES, 2 * LIMITS.max_connections + CLIENTS, "503; the message is retransmitted",
        "`http.tls_transport.RECORD_BYTES`, `HTTPLimits.max_connections`, `max_connections` of the client",
    ),
    Buffer(
        "held messages that move into their queue: a block, and one more message",
        held.BLOCK_BYTES + LARGEST, 1, "the next block follows when this one is durable",
        "`core.receiving.held_messages.BLOCK_BYTES`",
    ),
    Buffer(
        "records for handlers, and one more record",
        handling.MAX_HELD_BYTES + LARGEST, 1, "read from the store when there is room",
        "`core.handling.delivery.MAX_HELD_BYTES`",
    ),
    Buffer(
        "the message of more than 1 MB that becomes values for a handler of `@app.operation`",
        6 * LARGEST, 1, "others wait; a message that is larger with its attachments in base64 gets a fault",
        "`Limits.max_bytes`",
    ),
    Buffer(
        "the values of attachments that these handlers have",
        LARGEST, handling.HandlingPolicy().concurrency, "other messages wait for a handler",
        "`HandlingPolicy.concurrency`, `Limits.max_bytes`",
    ),
    Buffer(
        "records being read for the core",
        READ + LARGEST, MOST_AT_A_TIME, "the next read follows", "`endpoint.engine.store_reads.MOST_AT_A_TIME`",
    ),
    Buffer(
        "messages that other transactions enqueued for a source: one round, and one more message",
        enqueued_messages.ROUND_BYTES + LARGEST, 1, "the next round follows when this one is durable",
        "`endpoint.source.enqueued_messages.ROUND_BYTES`",
    ),
    Buffer(
        "records of forwarders, sources and replies before they are sent, and one more record",
        here.MOST_OF_ALL + LARGEST, 1, "the forwarder that read longest ago reads its records again",
        "`core.sending.read_ahead_buffer.MOST_OF_ALL`",
    ),
    Buffer(
        "messages other than replies that wait for peers that poll with MakeConnection",
        mailboxes.MOST_BYTES_IN_ALL, 1, "the oldest of an address is dropped; the peer's next message causes it again",
        "`core.sending.polling.mailboxes.MOST_BYTES_IN_ALL`",
    ),
    Buffer(
        "messages in transit to destinations: the record, its envelope, and a transport's copy of the envelope",
        3 * outbound_room.MOST_BYTES, 1, "forwarders wait in turn; one destination has at most 32 MB of messages",
        "`core.sending.outbound_room.MOST_BYTES`",
    ),
    Buffer(
        "blocks of large records that wait for readers, and one more record",
        record_stream.WAITING_BYTES + LARGEST, 1, "the oldest is dropped, and read again later",
        "`endpoint.admin.data_plane.record_stream.WAITING_BYTES`",
    ),
    Buffer(
        "blocks being read for readers, and their copies; or pages of records and dead letters, as text and as JSON",
        max(2 * (record_stream.BLOCK_BYTES + LARGEST), PAGE_COPIES * (PAGE + LARGEST)),
        record_stream.READING_AT_A_TIME, "the next one follows",
        "`endpoint.admin.data_plane.record_stream.READING_AT_A_TIME`, `endpoint.handling.dead_letters.PAGE_BYTES`, "
        "`endpoint.admin.resources.queues.PEEKED_BYTES`",
    ),
    Buffer(
        "large answers of destinations",
        answer_room.MOST_BYTES, 1, "the connection is not read until there is room",
        "`http.client.answer_room.MOST_BYTES`",
    ),
    Buffer(
        "answers of destinations below 64 KB, with their headers",
        answer_room.SMALL_ANSWER + client_connection.MAX_HEAD_BYTES, CLIENTS, "an error; the message is retransmitted",
        "`http.client.answer_room.SMALL_ANSWER`, `max_connections` of the client",
    ),
    Buffer(
        "parts of sinks that are being checked",
        LARGEST, 2 * sinks_admin.AT_ONCE, "others wait undecoded", "`endpoint.admin.data_plane.sinks.AT_ONCE`",
    ),
    Buffer(
        "tables of the embedded store that are not on the disk yet",
        opening.MEMTABLE_BYTES, opening.MEMTABLES, "commits wait", "`store.rocksdb.opening.MEMTABLES`",
    ),
    Buffer("its cache", opening.CACHE_BYTES, 1, "the oldest block is dropped", "`store.rocksdb.opening.CACHE_BYTES`"),
    Buffer(
        "events of an enabled journal that wait for the disk",
        300, journal.MOST_GATHERED, "lost; a gap event reports how many", "`endpoint.journal.writer.MOST_GATHERED`",
    ),
    Buffer(
        "open or remembered Sequences: 5 KB each, or 25 KB with the maximum of gaps and parameters",
        25_000, INBOUND.max_sequences + INBOUND.max_remembered, "CreateSequence is refused; the oldest is forgotten",
        "`DestinationPolicy.max_sequences`, `max_remembered`",
    ),
    Buffer(
        "addresses of requesters without an Offer: the outbox of their replies", 13_000, INBOUND.max_sequences // 4,
        "a request with a further ReplyTo is not accepted yet", "`DestinationPolicy.max_sequences`",
    ),
    Buffer("sinks", 2_000, SINKS.max_sinks, "507", "`StagingPolicy.max_sinks`"),
    Buffer("parts of sinks", 3_000, SINKS.max_parts, "507", "`StagingPolicy.max_parts`"),
]  # fmt: skip
"""The buffers with a bounded number for each process."""

WORKERS = 2
"""Number of workers for the workers' table: the minimum. With more workers, each has less."""
WORKER = [
    Buffer(
        "requests that another worker passes on",
        LIMITS.max_buffered // WORKERS + neighbours.HEAD_ROOM, 1, "503; the sender retries",
        "`HTTPLimits.max_buffered`, `endpoint.workers.routing.HEAD_ROOM`",
    ),
    Buffer(
        "requests that another node of a cluster passes on",
        LIMITS.max_buffered // WORKERS + neighbours.HEAD_ROOM, 1, "503; the sender retries",
        "`HTTPLimits.max_buffered`, `endpoint.workers.routing.HEAD_ROOM`",
    ),
    Buffer(
        "requests that another node of a cluster passes on in frames, with those that have not arrived completely",
        frame_session.MOST_BYTES + packets.MOST_REQUESTS, node_listener.MOST_SESSIONS,
        "nothing more is read from that node for now",
        "`endpoint.workers.frames.session.MOST_BYTES`, `endpoint.workers.frames.packets.MOST_REQUESTS`, "
        "`endpoint.workers.node_listener.MOST_SESSIONS`",
    ),
    Buffer(
        "answers of another node's workers in frames, until they have arrived completely",
        packets.MOST_ANSWERS, WORKERS, "the connection ends; the sender retries",
        "`endpoint.workers.frames.packets.MOST_ANSWERS`",
    ),
    Buffer(
        "large messages and replies that pass between nodes, in both directions of a sealed connection",
        2 * (sealed_transport.MOST_BYTES + HIGH_WATER), node_listener.MOST_PIPES,
        "503; the sender retries. What the connections do not accept waits in a temporary file",
        "`endpoint.workers.frames.sealed_transport.MOST_BYTES`, `endpoint.workers.node_listener.MOST_PIPES`",
    ),
    Buffer(
        "the first pieces of large replies that wait for another node",
        stored.PIECE, large_answers.MOST_WAITING, "the first one expires; the sender asks again",
        "`endpoint.workers.frames.large_answers.MOST_WAITING`",
    ),
    Buffer(
        "answers to large messages for which the sender did not wait",
        relays.MOST_BYTES, relays.MOST_KEPT, "the first one is dropped; a repeat goes to the owner",
        "`endpoint.workers.relays.MOST_BYTES`, `endpoint.workers.relays.MOST_KEPT`",
    ),
    Buffer(
        "where the workers of a cluster are, which all processes of a node share",
        placement.MOST_BYTES, 1, "a node with a longer URL is refused",
        "`endpoint.workers.placement.MOST_BYTES`",
    ),
    Buffer(
        "records of another worker in transit to readers",
        3 * merged_admin.RELAYED, LIMITS.max_connections // WORKERS, "the next piece follows when this one has left",
        "`endpoint.admin.merged.application.RELAYED`, `HTTPLimits.max_connections`",
    ),
    Buffer(
        "Identifiers that destinations granted, which all workers share",
        16 * identifiers.MOST_CLAIMS, WORKERS, "the grant is treated as a refusal",
        "`endpoint.workers.identifier_table.MOST_CLAIMS`",
    ),
    Buffer(
        "Identifiers that clients offered, which all workers share",
        16 * identifiers.MOST_CLAIMS, WORKERS, "503; the client retries",
        "`endpoint.workers.identifier_table.MOST_CLAIMS`",
    ),
]  # fmt: skip
"""Additional buffers of a worker."""

NO_BUFFERS = {
    "client.option_types": {"LARGEST": "no bytes"},
    "core.messages": {"MAX_MESSAGE_NUMBER": "no bytes"},
    "core.sending.outbound_room": {"MOST_OF_ONE": "of MOST_BYTES, for one destination"},
    "core.sending.polling.mailboxes": {"MOST_BYTES": "of MOST_BYTES_IN_ALL, for one address"},
    "core.staged_blocks": {"MOST_BYTES": "what held.BLOCK_BYTES is", "ROW_BYTES": "counted, not held"},
    "core.sending.read_ahead_buffer": {
        "MOST_BYTES": "of MOST_OF_ALL, for one outbox",
        "RECORD_BYTES": "counted, not held",
    },
    "core.queues.retention": {"MEASURE_BYTES": "a distance between marks", "RECORD_BYTES": "counted, not held"},
    "core.rm_destination.saved_state": {"UNKNOWN_BYTES": "counted, not held"},
    "core.sending.identifier_claims": {"DIGEST_BYTES": "of a claim"},
    "endpoint.admin.data_plane.admission": {"FOREVER": "a time", "SECOND": "a time"},
    "endpoint.admin.data_plane.record_stream": {"CONTENT_BYTES": "read instead of a block"},
    "endpoint.admin.numbering": {"LETTERS": "no bytes"},
    "endpoint.admin.resources.journal": {"PIECE": "of a connection's buffer"},
    "endpoint.envelopes.attachments": {
        "MOST_IN_MEMORY": "of a message that a program sends",
        "STORED_FROM": "a threshold",
        "_WHOLE_BASE64": "of a line that is written",
        "_SMALL": "a threshold",
    },
    "endpoint.envelopes.chain": {"LONGEST_WAIT": "a time"},
    "endpoint.envelopes.decoder": {"OFF_LOOP": "a threshold"},
    "endpoint.envelopes.temporary_content": {"_BUFFER": "of a reader's file"},
    "endpoint.envelopes.package_spool": {
        "FLUSH_FROM": "of a content that max_buffered counts",
        "MOST_DROPPED": "received, not held",
    },
    "endpoint.heap": {"LARGE": "a threshold"},
    "endpoint.failures": {"MAX_REASON": "of a field"},
    "endpoint.journal.parquet": {
        "ROWS_A_GROUP": "of a separate process",
        "_PIECE": "of a separate process",
        "_TAIL": "of a separate process",
    },
    "endpoint.workers.identifier_table": {"_SEGMENT": "MOST_CLAIMS, in bytes"},
    "endpoint.workers.shared_claims": {"MOST_CLAIMS": "rows of the cluster's database"},
    "endpoint.workers.agent_link": {"MOST_BYTES": "of a supervisor, which stores nothing"},
    "endpoint.workers.placement": {"AWAY": "no bytes"},
    "endpoint.workers.routing": {"MOST_GIVEN": "of a request, which is counted"},
    "endpoint.workers.frames.sealed_transport": {"PIECE": "of a packet"},
    "endpoint.workers.frames.packets": {"DIGEST_BYTES": "of a packet", "TOGETHER": "of a packet"},
    "endpoint.workers.frames.streams": {"MOST_FRAMED": "of a request, which is counted"},
    "endpoint.journal.files": {"LARGEST_FRAME": "of a file"},
    "endpoint.admin.data_plane.rows": {"LARGEST_KEY": "of a field", "MOST_ROWS": "no bytes", "_NO_MORE": "no bytes"},
    "endpoint.envelopes.http_media": {"_MOST_BYTES": "of a header"},
    "endpoint.admin.routes": {"LARGEST_BODY": "of a request, which is counted", "LARGEST_NUMBER": "no bytes"},
    "endpoint.admin.data_plane.next_positions": {"LARGEST_QUERY": "of a request, which is counted"},
    "endpoint.admin.data_plane.sinks": {"LARGEST_TOKENS": "of a request, which is counted"},
    "endpoint.envelopes.transport_facts": {"MAX_BYTES": "of a field"},
    "endpoint.record_blocks": {
        "LENGTH_BYTES": "of a field",
        "MAX_BLOCK": "of a client",
        "TRAILER_OFFSET": "no bytes",
    },
    "endpoint.journal.writer": {"SPARE_BYTES": "of the disk"},
    "http.client.answer_room": {"MOST_OF_ONE": "of MOST_BYTES, for one destination"},
    "http.client.connection": {"LARGE_BODY": "a threshold", "MAX_ATTACHMENTS": "in the store"},
    "http.content_spool": {"SPOOL_FROM": "max_buffered counts it, and the room for answers"},
    "http.server.server_exchange": {"LARGE_BODY": "a threshold"},
    "http.head_memory": {"MAX_HEAD_BYTES": "of a head that is remembered"},
    "http.tls_transport": {
        "TOGETHER_BYTES": "of a connection's buffer",
        "HIGH_WATER": "of a connection's buffer",
        "LOW_WATER": "of a connection's buffer",
    },
    "http.server.asgi": {"HIGH_WATER": "of a connection, which the ASGI server bounds"},
    "store.contents": {"LEAST_FREE": "of a disk", "_BUFFER": "of a reader's file"},
    "store.plan": {"_MOST": "no bytes"},
    "store.rocksdb.log_format": {"_MASK_DELTA": "no bytes", "_POLYNOMIAL": "no bytes"},
    "store.sql.dialects": {"LEAST_PACKET": "of a database"},
    "store.content": {"UNKNOWN_RECORD_BYTES": "counted, not held"},
    "store.rocksdb.free_space": {"CACHE_BYTES": "of the disk", "SHORT_BYTES": "of the disk"},
    "store.rocksdb.reserve": {"RESERVE_BYTES": "of the disk"},
    "store.rocksdb.opening": {
        "BLOCK_BYTES": "within the cache",
        "COMPACTION_BYTES": "of the disk",
        "SPARE_MEGABYTES": "of the disk",
    },
    "store.rocksdb.keeper": {"KEEP_BYTES": "of the log", "COMPACT_BYTES": "of the disk"},
    "store.rocksdb.store": {"_BATCH_BYTES": "counted, not held"},
    "store.staged": {"_TIME_BYTES": "of a field"},
    "store.kafka.frames": {"HEAD_BYTES": "of a record"},
    "store.kafka.requirements": {
        "BATCH_BYTES": "of a record",
        "FEWEST_RECORD_BYTES": "of a setting of Kafka",
        "RECORD_BYTES": "of the batch that is written",
    },
    "store.kafka.contents": {"PIECE_BYTES": "of the batch that is written"},
    "store.kafka.cache": {"APPLY_BYTES": "of a start"},
    "store.kafka.topic": {"_FETCH_BYTES": "of the records that the client reads ahead"},
    "store.kafka.sweep": {"FEWEST_BYTES": "of the log", "STEP_BYTES": "of the batch that is written"},
    "store.sql.changes": {"SWEEP_BYTES": "deleted, not held", "PIECE_BYTES": "of the batch that is written"},
    "store.rocksdb.changes": {"SWEEP_BYTES": "deleted, not held"},
    "store.rocksdb.checking": {"COPY_BYTES": "of a command"},
    "broker.xpath_program": {"PIECE": "of a tree, which is counted"},
    "wire.attachments.root_head": {"PIECE": "of a message in memory, which is counted"},
    "wire.attachments.stored": {"PIECE": "of a connection's buffer"},
    "wire.encoding.outgoing": {"LARGEST_HEADERS": "of a message", "_TOGETHER": "of a message"},
    "wire.policy.port_policies": {"MOST_COMPARED": "no bytes"},
    "wire.rm": {"_MAX_BUFFER": "no bytes"},
    "wire.tree": {"PIECE": "of a tree, which is counted"},
    "config.tables": {"MAX_FILE": "read once, not held"},
    "config.values": {"_LARGEST_FILE": "read once, not held", "MAX_SECRET": "read once, not held"},
}
"""Room -> constants that may count bytes and bound no buffer of a server, and what they are."""

HERE = {
    "core.handling.delivery": {"MAX_HELD_BYTES"},
    "core.sending.outbound_room": {"MOST_BYTES"},
    "core.sending.polling.mailboxes": {"MOST_BYTES_IN_ALL"},
    "core.sending.read_ahead_buffer": {"MOST_OF_ALL"},
    "core.receiving.held_messages": {"BLOCK_BYTES"},
    "endpoint.admin.data_plane.record_stream": {"BLOCK_BYTES", "PIECE_BYTES", "WAITING_BYTES"},
    "endpoint.admin.merged.application": {"RELAYED"},
    "endpoint.handling.dead_letters": {"PAGE_BYTES"},
    "endpoint.journal.writer": {"MOST_GATHERED"},
    "endpoint.workers.frames.packets": {"MOST_ANSWERS", "MOST_REQUESTS"},
    "endpoint.workers.frames.sealed_transport": {"MOST_BYTES"},
    "endpoint.workers.frames.session": {"MOST_BYTES"},
    "endpoint.workers.relays": {"MOST_BYTES"},
    "endpoint.workers.identifier_table": {"MOST_CLAIMS"},
    "endpoint.workers.placement": {"MOST_BYTES"},
    "endpoint.workers.routing": {"HEAD_ROOM"},
    "endpoint.source.enqueued_messages": {"ROUND_BYTES"},
    "endpoint.admin.resources.queues": {"PEEKED_BYTES"},
    "http.client.connection": {"MAX_HEAD_BYTES"},
    "http.client.answer_room": {"MOST_BYTES", "SMALL_ANSWER"},
    "http.tls_transport": {"RECORD_BYTES"},
    "store.rocksdb.opening": {"MEMTABLE_BYTES", "CACHE_BYTES"},
}
"""Room -> constants that the table has."""


def shown(count: int) -> str:
    """Bytes in words."""
    for unit, size in (("MB", 1 << 20), ("KB", 1 << 10)):
        if count >= size:
            return f"{count / size:,.0f} {unit}"
    return f"{count} bytes"


def table() -> str:
    """The tables of a process and of a worker as Markdown, each with its sum."""
    further = f"A process that is one of {WORKERS} workers has besides:"
    return "\n".join([*_rows(PROCESS), "", further, "", *_rows(WORKER)])


def _rows(buffers: list[Buffer]) -> list[str]:
    lines = ["| what | at most | each | beyond it | where |", "| --- | --- | --- | --- | --- |"]
    for one in buffers:
        each = f"{one.count:,} × {shown(one.each)}" if one.count > 1 else ""
        lines.append(f"| {one.what} | {shown(one.bytes)} | {each} | {one.beyond} | {one.where} |")
    return [*lines, f"| **all of these** | **{shown(sum(one.bytes for one in buffers))}** | | | |"]
