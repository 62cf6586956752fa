"""The tables of a cluster in PostgreSQL, and the statements that read and write them.

``%(space)s`` names the cluster: a database may have several. All times are those of the database.
"""

from __future__ import annotations

from typing import Final

FORMAT: Final = 1
"""The version of the tables that this version of Holdfast reads and writes, and of the requests between nodes. The
stores of the partitions have a version of their own."""

CHANNEL: Final = "holdfast_cluster"
"""The channel of notifications; the payload is the space."""

_KEY = "hashtextextended('holdfast ' || coalesce(current_schema(), '') || ' cluster ' || %(space)s || {}, 0)"
_OF_NODE = _KEY.format("' node ' || {}")
CLAIM_KEY: Final = _KEY.format("''")
NODE_KEY: Final = _OF_NODE.format("%(node)s")
"""The keys of the advisory locks: for claims, and of a node's name."""

CREATE: Final = """
CREATE TABLE IF NOT EXISTS holdfast_cluster (
    space text PRIMARY KEY, id uuid NOT NULL, partitions int NOT NULL, format int NOT NULL, system_identifier text,
    incarnations bigint NOT NULL, timeline text NOT NULL, timeline_since timestamptz NOT NULL, went_back text);
CREATE TABLE IF NOT EXISTS holdfast_node (
    space text, name text, incarnation bigint NOT NULL, url text NOT NULL, expires_at timestamptz NOT NULL,
    is_draining boolean NOT NULL, joined_at timestamptz NOT NULL, secret text NOT NULL,
    report jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (space, name)) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS holdfast_ownership (
    space text, partition int, owner text NOT NULL, incarnation bigint NOT NULL, epoch bigint NOT NULL,
    claimed_at timestamptz, wanted bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (space, partition)) WITH (fillfactor = 50);
"""
"""``incarnations`` counts the joins of all nodes. ``epoch`` counts the claims of a partition. ``wanted`` is the
incarnation of the node that an operator has moved it to. Renewals change only ``expires_at``, which no index has.
``secret`` is a digest of the secret that the nodes share. ``report`` is what the node reports about itself
(:class:`~holdfast.cluster.rows.Report`)."""

ARE_THERE: Final = "SELECT to_regclass('holdfast_ownership') IS NOT NULL"
CREATION_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('holdfast cluster tables', 0))"

_SYSTEM = "(SELECT system_identifier::text FROM pg_control_system())"
_TIMELINE = "substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"

FOUND_CLUSTER: Final = f"""
INSERT INTO holdfast_cluster
SELECT %(space)s, gen_random_uuid(), %(partitions)s, {FORMAT}, {_SYSTEM}, 0, {_TIMELINE}, '-infinity'
ON CONFLICT DO NOTHING RETURNING partitions
"""
OTHER_CLUSTERS: Final = "SELECT space, partitions FROM holdfast_cluster WHERE space <> %(space)s"
FOUND_OWNERSHIP: Final = """
INSERT INTO holdfast_ownership
SELECT %(space)s, partition, '', 0, 0, NULL FROM generate_series(0, %(partitions)s - 1) partition
ON CONFLICT DO NOTHING
"""
CLUSTER: Final = f"""
SELECT id::text, partitions, format, coalesce(system_identifier, {_SYSTEM}) = {_SYSTEM}
FROM holdfast_cluster WHERE space = %(space)s
"""

WENT_BACK: Final = """
SELECT coalesce(to_jsonb(c)->>'went_back', '') FROM holdfast_cluster c WHERE space = %(space)s
"""
"""What a node lost when the database went back to an older copy; "" if no node has found that, or if an operator has
accepted the copy since."""
LACKS_WENT_BACK: Final = "SELECT NOT to_jsonb(c) ? 'went_back' FROM holdfast_cluster c WHERE space = %(space)s"
"""Whether an older version of Holdfast created the table."""
ADD_WENT_BACK: Final = "ALTER TABLE holdfast_cluster ADD COLUMN IF NOT EXISTS went_back text"
RECORD_WENT_BACK: Final = """
UPDATE holdfast_cluster c SET went_back = %(lost)s
WHERE space = %(space)s AND (went_back IS NULL
    OR NOT EXISTS (SELECT FROM holdfast_node n WHERE n.space = c.space AND n.expires_at > clock_timestamp()))
"""
"""An operator who has accepted the copy for the nodes that run now is not overruled by one that was forgotten."""
ACCEPT_COPY: Final = "UPDATE holdfast_cluster SET went_back = '' WHERE space = %(space)s"

SERVER: Final = """
SELECT current_setting('server_version_num')::int,
    pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on', current_setting('fsync'),
    current_setting('full_page_writes'), pg_backend_pid(),
    (SELECT backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid())
"""

LOCK: Final = f"SELECT pg_try_advisory_lock({NODE_KEY})"
END_SESSION: Final = """
SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity
WHERE pid = %(pid)s AND backend_start::text = %(since)s AND usename = current_user
"""

HAS_ROW: Final = "SELECT EXISTS (SELECT FROM holdfast_node WHERE space = %(space)s AND name = %(node)s)"
COUNT_OTHERS: Final = "SELECT count(*) FROM holdfast_node WHERE space = %(space)s AND name <> %(node)s"
NEXT_INCARNATION: Final = """
UPDATE holdfast_cluster SET incarnations = incarnations + 1 WHERE space = %(space)s RETURNING incarnations
"""
JOIN: Final = """
INSERT INTO holdfast_node AS node
VALUES (%(space)s, %(node)s, %(incarnation)s, %(url)s, clock_timestamp() + %(lease)s * interval '1 second',
    %(is_draining)s, clock_timestamp(), %(secret)s)
ON CONFLICT (space, name) DO UPDATE SET incarnation = excluded.incarnation, url = excluded.url,
    expires_at = excluded.expires_at, is_draining = excluded.is_draining, joined_at = excluded.joined_at,
    secret = excluded.secret, report = '{}'
"""
OTHER_SECRET: Final = """
SELECT min(name) FROM holdfast_node
WHERE space = %(space)s AND name <> %(node)s AND secret <> %(secret)s AND expires_at > clock_timestamp()
"""

_MINE = "space = %(space)s AND name = %(node)s AND incarnation = %(incarnation)s"
RENEW: Final = (
    f"UPDATE holdfast_node SET expires_at = clock_timestamp() + %(lease)s * interval '1 second' WHERE {_MINE}"
)
DRAIN: Final = f"UPDATE holdfast_node SET is_draining = true WHERE {_MINE}"
DRAIN_OTHER: Final = "UPDATE holdfast_node SET is_draining = true WHERE space = %(space)s AND name = %(node)s"
RESUME_OTHER: Final = "UPDATE holdfast_node SET is_draining = false WHERE space = %(space)s AND name = %(node)s"
TELL: Final = f"UPDATE holdfast_node SET report = %(report)s::jsonb WHERE {_MINE}"
MOVE: Final = """
UPDATE holdfast_ownership o SET wanted = n.incarnation FROM holdfast_node n
WHERE n.space = %(space)s AND n.name = %(node)s AND NOT n.is_draining AND o.space = n.space
    AND o.partition = ANY(%(partitions)s::int[])
"""
UNMOVE_ALL: Final = """
UPDATE holdfast_ownership SET wanted = 0
WHERE space = %(space)s
    AND wanted = (SELECT incarnation FROM holdfast_node WHERE space = %(space)s AND name = %(node)s)
"""
UNMOVE: Final = """
UPDATE holdfast_ownership SET wanted = 0
WHERE space = %(space)s AND partition = ANY(%(partitions)s::int[]) AND wanted <> 0 RETURNING partition
"""
LEAVE: Final = f"DELETE FROM holdfast_node WHERE {_MINE}"

NEW_TIMELINE: Final = f"""
UPDATE holdfast_cluster SET timeline = {_TIMELINE}, timeline_since = clock_timestamp()
WHERE space = %(space)s AND timeline <> {_TIMELINE}
"""
_LEASE_END = "(extract(epoch FROM expires_at) * 1000000)::bigint"
_MAY_DECLARE = """clock_timestamp() > %(lease)s * interval '1 second' + greatest(pg_postmaster_start_time(),
    (SELECT timeline_since FROM holdfast_cluster WHERE space = %(space)s))"""
LOOK: Final = f"""
WITH held AS MATERIALIZED (
    SELECT (classid::bigint << 32) | objid::bigint AS key FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
SELECT {_MAY_DECLARE},
    (SELECT coalesce(json_agg(json_build_array(name, incarnation, url, {_LEASE_END}, expires_at <= clock_timestamp(),
            EXISTS (SELECT FROM held WHERE key = {_OF_NODE.format("name")}), is_draining,
            ARRAY(SELECT jsonb_object_keys(report->'failed')::int),
            ARRAY(SELECT jsonb_object_keys(report->'unreachable')),
            coalesce(report->'tables', '{{}}')) ORDER BY name), '[]')
        FROM holdfast_node WHERE space = %(space)s),
    (SELECT coalesce(json_agg(json_build_array(partition, owner, incarnation, epoch, wanted) ORDER BY partition), '[]')
        FROM holdfast_ownership WHERE space = %(space)s),
    extract(epoch FROM clock_timestamp())::float8
"""
"""One statement, so that all rows are of one moment."""

_OTHER = f"space = %(space)s AND name = %(node)s AND incarnation = %(incarnation)s AND {_MAY_DECLARE}"
DECLARE_EXPIRED: Final = f"DELETE FROM holdfast_node WHERE {_OTHER} AND expires_at <= clock_timestamp()"
DECLARE_UNLOCKED: Final = f"""
WITH lock AS MATERIALIZED (SELECT pg_try_advisory_xact_lock({NODE_KEY}) AS is_free)
DELETE FROM holdfast_node WHERE {_OTHER} AND (SELECT is_free FROM lock) AND {_LEASE_END} = %(unrenewed)s
"""
"""A renewal that runs at the same time locks the row: the declaration waits for it, and then judges the renewed row."""

HAS_STORES: Final = "SELECT to_regclass('holdfast_spaces') IS NOT NULL"
BATCHES: Final = "SELECT name, epoch, serial FROM holdfast_spaces WHERE name = ANY(%(names)s::bytea[])"
"""The epoch of each store, and the number of its last batch."""

CLAIM_LOCK: Final = f"SELECT pg_advisory_xact_lock({CLAIM_KEY})"
CLAIM: Final = f"""
UPDATE holdfast_ownership SET owner = %(node)s, incarnation = %(incarnation)s, epoch = epoch + 1,
    claimed_at = clock_timestamp(), wanted = CASE WHEN wanted <> %(incarnation)s
        AND wanted = (%(wishes)s::bigint[])[array_position(%(partitions)s::int[], partition)] THEN 0 ELSE wanted END
FROM (SELECT partition AS p, owner AS before FROM holdfast_ownership o
    WHERE space = %(space)s AND partition = ANY(%(partitions)s::int[]) AND (owner = '' OR NOT EXISTS (
        SELECT FROM holdfast_node n WHERE n.space = o.space AND n.name = o.owner AND n.incarnation = o.incarnation))
    ORDER BY array_position(%(partitions)s::int[], partition) LIMIT %(most)s) free
WHERE space = %(space)s AND partition = free.p AND EXISTS (SELECT FROM holdfast_node WHERE {_MINE})
RETURNING partition, epoch, before
"""
"""Claims come one after the other, under a lock that is taken before this statement begins: so it sees every earlier
claim, and the row of each node that made one. A claim of another node ends the wish of an operator that
the node had read, and none that came later."""

END_SESSIONS: Final = """
SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid() AND (
    application_name = ANY(%(applications)s::text[]) OR pid IN (
        SELECT l.pid FROM pg_locks l WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
            AND (l.classid::bigint << 32) | l.objid::bigint = ANY(%(keys)s::bigint[])))
"""
RELEASE: Final = """
UPDATE holdfast_ownership SET owner = '' WHERE space = %(space)s AND owner = %(node)s
    AND incarnation = %(incarnation)s AND (partition, epoch) IN (
        SELECT * FROM unnest(%(partitions)s::int[], %(epochs)s::bigint[]))
"""
NOTIFY: Final = f"SELECT pg_notify('{CHANNEL}', %(space)s)"
