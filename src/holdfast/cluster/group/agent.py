"""The agent of a node in a cluster on Kafka: a member of a consumer group that reads no records.

It exchanges the same lines with the supervisor as :mod:`holdfast.cluster.agent`. What the node may do is decided in
:mod:`holdfast.cluster.group.membership`. The group's coordinator forgets a member that is silent for the lease.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, get_args

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from holdfast.cluster.agent import AgentSettings, Report, SupervisorLink, report_created
from holdfast.cluster.group.cache_disk import CacheDisk
from holdfast.cluster.group.describer import GroupDescriber
from holdfast.cluster.group.inspection import described_group
from holdfast.cluster.group.members import LogNote
from holdfast.cluster.group.membership import GroupMembership
from holdfast.cluster.group.notes import Notes, decline_note, forget_note, report_note
from holdfast.cluster.group.pictures import client_id, group_of, pin_client_id, topic_of
from holdfast.cluster.group.refusals import name_taken
from holdfast.cluster.group.shared_topic import SharedTopic
from holdfast.cluster.lease_policy import LONGEST_LEASE
from holdfast.cluster.operating.status import DISK_REMEDY
from holdfast.cluster.rows import Report as NodeReport
from holdfast.cluster.shared.tables import Part
from holdfast.cluster.trust import Trust, trust_clock, wall_offset
from holdfast.exceptions import ConfigurationError, HoldfastError, StoreFailed, StoreLocked
from holdfast.outages import Outage, Trouble
from holdfast.store.directory import DirectoryLock
from holdfast.store.kafka.address import KafkaAddress, read_kafka_address
from holdfast.store.kafka.frames import RESIGNED, Claim, encode_claim
from holdfast.store.kafka.login import KafkaAway, KafkaLogin
from holdfast.store.kafka.topic import KafkaLog

_POLL: Final = 0.05
"""Seconds between two looks at the group's messages and at the supervisor's."""
_QUICK_POLL: Final = 0.01
"""The same while a partition changes its node."""
_PAUSE: Final = 0.5
_FLUSH: Final = 1.0
"""Seconds that a node which leaves waits at most for Kafka to confirm its resignations."""
_CLOCK_SECONDS: Final = 60.0
"""Seconds between two looks at Kafka's clock."""
_CONTACT: Final = "Check Kafka. The node continues on its own when it answers."
_LEASES_OF_THE_DEAD: Final = 1.5
"""Leases after which the group has removed a member that was killed, with time to spare."""
_LONGEST_CALLBACK: Final = 300
"""Seconds after which the group removes a member if its workers do not end."""
_REFUSALS: Final = {
    KafkaError.INVALID_SESSION_TIMEOUT: "Set cluster.lease between group.min.session.timeout.ms (6 s by default) and "
    "group.max.session.timeout.ms of Kafka's brokers.",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "Permit the user to read and to describe the consumer group.",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "Permit the user to read and to describe the topic.",
    KafkaError.INCONSISTENT_GROUP_PROTOCOL: "Find out what else uses the consumer group.",
}


def run_group_agent(settings: AgentSettings, link: socket.socket, trust: Trust, report: Report) -> int:
    """Keep the membership of a node until the supervisor ends it; see :func:`holdfast.cluster.agent.run_agent`."""
    agent = _GroupAgent(settings, link, trust, report)
    try:
        return agent.run()
    finally:
        trust.revoke()
        agent.close()


class _Ended(Exception):
    """The supervisor has ended, or wants the agent to end."""


class _GroupAgent:
    def __init__(self, settings: AgentSettings, link: socket.socket, trust: Trust, report: Report) -> None:
        self._settings = settings
        self._trust = trust
        self._report = report
        self._address: KafkaAddress = replace(read_kafka_address(settings.location), partitions=settings.partitions)
        self._identity: dict[str, str] = {}
        """That of the log of a partition."""
        self._group = group_of(self._address)
        self._since = since = round(time.time(), 6)  # as the client id has it
        self._mark = settings.secret[:8]
        self._client_id = client_id(settings.node, settings.url, since, self._mark)
        self._login = KafkaLogin(self._address)
        """That of the members of the group."""
        self._membership = GroupMembership(
            settings.node, settings.url, settings.partitions, settings.policy, since, self._mark
        )
        self._supervisor = SupervisorLink(link, settings, report)
        self._is_told_to_end = False
        self._shared = SharedTopic(self._address, self._group)
        self._notes = Notes()
        self._are_notes_complete = False
        self._disk = CacheDisk(self._address.cache, settings.policy.lease)
        self._said_report: NodeReport | None = None
        """The report that Kafka has, or gets now."""
        self._is_saying = False
        self._say_again_at = self._say_after = 0.0
        self._said_at = 0.0
        """When the last report was sent, by the clock of this machine, which its time of arrival is compared with."""
        self._describer = GroupDescriber(settings.location)
        self._cache: DirectoryLock | None = None
        """Locked until this process ends."""
        self._consumer: Consumer | None = None
        self._former: Consumer | None = None
        """The member that this one replaces when it is in the group."""
        self._former_until = 0.0
        self._pins: dict[int, Consumer] = {}
        self._told_declined: set[int] = set()
        self._is_subscribed = True
        self._asked_at: float | None = None
        """When the description was asked for that is on its way."""
        self._ask_at = self._refused_at = 0.0
        self._with_worker: set[int] = set()
        """The partitions of which the supervisor may have a worker."""
        self._is_member = False
        self._created = ""
        """Where this node created the cluster; "": it was there."""
        self._said = ""
        self._outage = Outage(trust_clock)
        self._silence = Outage(trust_clock)
        """The time for which Kafka refuses the reports of this node."""

    @property
    def _is_ending(self) -> bool:
        """Whether the supervisor wants the end, or is gone."""
        return self._is_told_to_end or self._supervisor.is_gone

    def run(self) -> int:
        try:
            self._cache = self._lock_cache()
            self._require_topic()
            self._require_name()
            self._read_notes(trust_clock())  # a node without room joins as one that gets no partitions
            self._is_subscribed = self._membership.wants_partitions
            self._compare_clocks()
            self._join()
            while self._membership.refusal is None and not self._is_ending:
                self._follow_wish()
                self._poll()
                self._tick()
                self._keep_pins()
            self._leave()
        except _Ended:
            pass
        except HoldfastError as error:
            self._membership.refusal = ConfigurationError(error.message, remedy=error.remedy)
        return self._supervisor.leave(self._membership.refusal)

    def close(self) -> None:
        """End what else runs for the agent."""
        self._describer.close()

    def _lock_cache(self) -> DirectoryLock:
        """Refuse to share the cache with another node: while that is paused, this one could take no partition over."""
        place = self._address.cache
        try:
            return DirectoryLock(place)
        except StoreLocked:
            raise ConfigurationError(
                f"Another node, of this cluster or another one, uses the cache at {place}",
                remedy="Give each node on this machine another name (HOLDFAST_NODE), and its own cache: write "
                "cache=/DIRECTORY/{node} in the URL of the store.",
            ) from None

    def _require_topic(self) -> None:
        """Wait for Kafka, create missing topics, and check them."""
        log = KafkaLog(self._address)
        others = [SharedTopic(self._address, topic_of(self._address, part)) for part in get_args(Part)]
        try:
            while True:
                try:
                    self._login.settings()  # which waits for the password of the members
                    log.open(creates=True)
                    self._shared.open(creates=True)
                    for one in others:
                        one.open(creates=True)
                    break
                except KafkaAway as error:
                    self._be_away(error)
                    self._wait(_PAUSE)
            self._identity = log.identity
            if log.has_created or self._shared.has_created:
                self._created = f"the topic {self._address.topic}"
                report_created(self._report, self._settings.node, self._address.shown)
            if log.partitions != self._settings.partitions:
                raise ConfigurationError(
                    f"The topic of {self._address.shown} has {log.partitions} partitions, and the file says "
                    f"partitions = {self._settings.partitions}",
                    remedy=f"Write partitions = {log.partitions} in [cluster], or use another topic.",
                )
        finally:
            log.close()
            for one in others:
                one.close()

    def _require_name(self) -> None:
        """Check that no other node has this name, before this one gets partitions.

        An earlier process of this node that was killed stays in the group for a lease.
        """
        node, until = self._settings.node, trust_clock() + _LEASES_OF_THE_DEAD * self._settings.policy.lease
        while True:
            try:
                picture = described_group(self._describer, looks=1)
            except KafkaAway as error:
                self._be_away(error)
            else:
                self._be_back()
                if all(one.node != node for one in picture.members):
                    return
                if trust_clock() > until:
                    raise name_taken(node)
            self._wait(_PAUSE)

    def _compare_clocks(self) -> None:
        """Say the first report, and wait for the answer: a worker needs the time of Kafka when it starts."""
        until = trust_clock() + self._settings.policy.lease
        while self._membership.clock.offset is None and trust_clock() < until:
            self._say_report(trust_clock())
            self._wait(_POLL)

    def _wait(self, seconds: float) -> None:
        until = trust_clock() + seconds
        while trust_clock() < until:
            time.sleep(_POLL)
            self._publish(trust_clock())
            self._listen()
            if self._is_ending:
                raise _Ended

    # --- the group --------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        self._consumer = self._member(self._client_id, self._address.topic if self._is_subscribed else self._group)

    def _member(self, client: str, topic: str) -> Consumer:
        lease = self._settings.policy.lease
        consumer = Consumer(
            {
                **self._login.settings(self._hear),
                "client.id": client,
                "group.id": self._group,
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": int(lease * 1000),
                # A member learns with its next heartbeat that the group assigns partitions again.
                "heartbeat.interval.ms": int(lease * 1000 / 30),
                "max.poll.interval.ms": max(_LONGEST_CALLBACK, int(2 * lease)) * 1000,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "queued.min.messages": 1,
                "queued.max.messages.kbytes": 1,
            }
        )
        consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
        return consumer

    def _keep_pins(self) -> None:
        """Be a member of the group once more for each partition that was moved here, and for no other."""
        wanted = self._membership.pins
        for partition in self._pins.keys() - wanted:
            self._close(self._pins.pop(partition))
        for partition in wanted - self._pins.keys():
            client = pin_client_id(self._settings.node, self._since, partition)
            self._pins[partition] = self._member(client, self._group)
        for consumer in self._pins.values():
            with contextlib.suppress(KafkaException):  # the main member hears why
                consumer.poll(0)

    def _follow_wish(self) -> None:
        """Be a member that gets partitions, or one that gets none: those of a topic that has nothing to be served.

        A consumer that changes what it subscribes to counts its partitions as lost, so another one takes its place.
        It joins before the first one leaves, so that the others always find this node in the group. The workers run on
        until the next nodes have prepared theirs.
        """
        if self._former is None and self._membership.wants_partitions != self._is_subscribed:
            self._former, self._former_until = self._consumer, trust_clock() + self._settings.policy.lease
            self._is_subscribed = not self._is_subscribed
            self._join()
        if self._former is not None:
            assert self._consumer is not None
            # Kafka's client does not leave a group that waits for it to join again.
            is_ready = self._membership.has_joined(self._consumer.memberid())
            if is_ready or trust_clock() > self._former_until:
                former, self._former = self._former, None
                if not self._is_subscribed:
                    self._membership.give_all(trust_clock())
                self._close(former)
            else:
                with contextlib.suppress(KafkaException):
                    self._former.poll(0)

    def _close(self, consumer: Consumer) -> None:
        with contextlib.suppress(KafkaException, RuntimeError):
            consumer.close()

    def _poll(self) -> None:
        assert self._consumer is not None
        self._login.renew(self._consumer, self._former, *self._pins.values())
        try:
            message = self._consumer.poll(_QUICK_POLL if self._membership.is_handing_over else _POLL)
        except KafkaException as error:
            self._refuse(error.args[0])
            return
        if message is not None and (why := message.error()) is not None:
            self._refuse(why)

    def _refuse(self, error: KafkaError) -> None:
        remedy = _REFUSALS.get(error.code())
        if remedy is None:
            self._hear(error)
            return
        self._membership.refusal = ConfigurationError(
            f"Kafka does not accept this node in the group {self._group!r}: {error.str()}", remedy=remedy
        )

    def _assigned(self, consumer: Consumer, found: list[TopicPartition]) -> None:
        # Nothing is read: the workers read their logs.
        places = [TopicPartition(one.topic, one.partition, OFFSET_END) for one in found]
        consumer.incremental_assign(places)
        consumer.pause(places)
        partitions = self._ours(found)
        if not partitions or consumer is self._former:  # also what a pin gets
            return
        self._membership.assigned(partitions, consumer.memberid(), trust_clock())
        self._report("info", "cluster.claimed", node=self._settings.node, partitions=sorted(partitions))
        self._tick()

    def _ours(self, places: Iterable[TopicPartition]) -> set[int]:
        """Return the partitions of the cluster among those of both topics."""
        return {one.partition for one in places if one.topic == self._address.topic}

    def _revoked(self, consumer: Consumer, found: list[TopicPartition]) -> None:
        """Return at once: the workers run on, and the next node does not act before they have ended."""
        self._membership.lost(self._ours(found), trust_clock())

    def _lost(self, consumer: Consumer, found: list[TopicPartition]) -> None:
        partitions = sorted(self._ours(found))
        if not partitions:
            return
        self._report("error", "cluster.lease_lost", node=self._settings.node, partitions=partitions)
        self._membership.lost(partitions, trust_clock(), is_removed=True)
        self._tick()

    def _hear(self, error: KafkaError) -> None:
        self._said = error.str()

    def _look(self) -> None:
        """Ask for the group, and process the answer, without waiting for it."""
        now = trust_clock()
        is_due = self._membership.is_look_due(now) and now >= self._refused_at + _PAUSE
        if self._asked_at is None and (now >= self._ask_at or is_due):
            self._ask_at = now + min(0.5, self._settings.policy.hold / 4)
            self._describer.ask()
            self._asked_at = now
        if self._asked_at is None:
            return
        try:
            picture = self._describer.answer()
        except KafkaAway as error:
            self._asked_at, self._refused_at = None, now
            self._be_away(error)
            return
        if picture is None:
            if (trouble := self._outage.trouble) is not None and self._login.refusal is not None:
                self._be_away(KafkaAway(trouble.what, trouble.remedy))  # the answer may take longer than a lease
            return
        sent, self._asked_at = self._asked_at, None
        self._be_back()
        # The time after the answer: this process may have been paused before it read that.
        self._membership.looked(picture, sent, trust_clock())
        if not self._is_member and any(one.node == self._settings.node for one in picture.members):
            assert self._consumer is not None
            self._is_member = True
            self._report("info", "cluster.joined", node=self._settings.node, incarnation=self._consumer.memberid())

    def _be_away(self, why: KafkaAway) -> None:
        """Log that Kafka does not answer, and again if there is something else to do about it."""
        away = why if why.remedy else self._login.away(str(why) or self._said)
        if self._outage.go_on(away.trouble):
            self._report("warning", "cluster.kafka_away", reason=str(away), remedy=away.remedy or _CONTACT)

    def _be_back(self) -> None:
        if (seconds := self._outage.end()) is not None:
            self._report("info", "cluster.kafka_back", seconds=seconds)
        self._login.answered()

    def _leave(self) -> None:
        """Let other nodes take the partitions, then leave the group."""
        self._membership.end()
        if self._membership.is_alone or self._membership.refusal is not None:
            self._membership.give_all(trust_clock())
        while self._membership.has_workers and not self._supervisor.is_gone:
            if not self._membership.is_alone and self._membership.refusal is None:
                self._follow_wish()
            self._poll()
            self._tick()
            self._keep_pins()
        self._shared.flush(_FLUSH)  # the last resignations, without which the next nodes would wait
        for one in (self._former, self._consumer):
            if one is not None and not self._supervisor.is_gone:
                self._close(one)
        if self._notes.are_of(self._settings.node, self._since):  # else the note of another process
            self._shared.say(*forget_note(self._settings.node), lambda _is_written: None)
            self._shared.hear_outcomes(_PAUSE)
        self._shared.close()

    # --- the notes --------------------------------------------------------------------------------------------------

    def _read_notes(self, now: float) -> None:
        node, membership = self._settings.node, self._membership
        try:
            changes = self._shared.changes()
            self._notes.read(changes)
            self._are_notes_complete = self._are_notes_complete or self._shared.is_at_end
            if self._notes.lack_report(node, self._since, changes):
                self._said_report = None  # another node took the name, and its note the place of this one's
        except (KafkaAway, StoreFailed) as error:  # what operators and the other nodes say is read later
            self._said = str(error)
        # Nodes of two versions would both serve a moved partition, so it is the group's until all have this one.
        are_moves_safe = not self._notes.without_moves(membership.members)
        short = self._look_at_disk(now)
        # At the start, before the other nodes and what they report are known, any of them may have room.
        is_known = self._are_notes_complete and bool(membership.members)
        reports = [(one, self._notes.report_of(one)) for one in membership.members]
        membership.noted(
            is_drained=self._notes.is_drained(node, self._since),
            is_cut_off=self._notes.is_cut_off(node, membership.members),
            cut_off_by=self._notes.cut_off_by(node, membership.members),
            now=now,
            moved=frozenset(
                number
                for number in range(self._settings.partitions)
                if are_moves_safe and self._notes.moved_to(number) == (node, self._since)
            ),
            # A node with another secret is refused; until then, its digests differ whatever its configuration is.
            tables={one.node: report.tables for one, report in reports if one.node != node and one.mark == self._mark},
            short=short,
            resigning=self._notes.resigning(membership.members),
            prepared=frozenset((one.node, p) for one, report in reports for p in report.prepared),
            serving=frozenset((one.node, p) for one, report in reports for p in report.serving),
            ending=frozenset((one.node, p) for one, report in reports for p in report.ending),
            claims=self._notes.claims,
            longest_lease=(
                self._notes.longest_lease(membership.members, (node, self._since))
                if self._are_notes_complete
                else LONGEST_LEASE
            ),
            makes_way=self._disk.makes_way(
                now, self._notes.has_room_beside(node, membership.members) if is_known else None
            ),
        )
        self._told_declined &= membership.declined
        for partition in membership.declined - self._told_declined:
            self._told_declined.add(partition)
            self._shared.say(*decline_note(partition, node, self._since), partial(self._has_declined, partition))

    def _has_declined(self, partition: int, is_written: bool) -> None:
        if not is_written:  # try again
            self._told_declined.discard(partition)

    def _look_at_disk(self, now: float) -> str:
        """Return why the cache has no room for partitions; "": it has room."""
        before, view = self._disk.why, self._supervisor.view
        mine = view.mine if view is not None else {}
        wanted = self._trust.wanted_bytes(mine)
        has_failed, closed = self._membership.has_failed, self._closed_caches
        why = self._disk.look(now, wanted if mine else None, has_failed=has_failed, closed=closed)
        if why and not before:
            self._report("warning", "cluster.disk_full", node=self._settings.node, reason=why, remedy=DISK_REMEDY)
        elif before and not why:
            self._report("info", "cluster.disk_has_room", node=self._settings.node)
        if emptied := self._disk.emptied:
            caches, size = [str(place) for place in emptied], sum(emptied.values())
            self._report("info", "cluster.caches_emptied", node=self._settings.node, caches=caches, bytes=size)
        return why

    def _closed_caches(self) -> dict[Path, dict[str, str]]:
        """Return the caches of the partitions that other nodes serve, and which log each belongs to."""
        owners = self._supervisor.view.owners if self._supervisor.view is not None else {}
        found = {
            p
            for one in self._membership.members
            for p in self._notes.report_of(one).serving
            if owners.get(p) == one.node != self._settings.node
        }
        return {replace(self._address, partition=p).place: {**self._identity, "partition": str(p)} for p in found}

    def _say_report(self, now: float) -> None:
        """Write the report when it has changed, and again after a while: Kafka answers with the time of its clock."""
        self._shared.hear_outcomes()
        report = self._membership.report
        is_due = now >= (self._say_again_at if report == self._said_report else self._say_after)
        if is_due and not self._is_saying:
            self._said_report, self._is_saying = report, True
            self._said_at, self._say_again_at = time.monotonic(), now + _CLOCK_SECONDS
            self._shared.say(*report_note(self._settings.node, self._since, report), self._has_said)

    def _has_said(self, is_written: bool) -> None:
        self._is_saying, node = False, self._settings.node
        if is_written:
            clock = self._membership.clock
            before = clock.ahead
            clock.compare(self._said_at, self._shared.written_at, time.monotonic(), wall_offset())
            clock.report_change(before, self._report, node)
            if (seconds := self._silence.end()) is not None:
                self._report("info", "cluster.report_written", node=node, seconds=seconds)
        else:
            self._said_report, self._say_after = None, trust_clock() + _PAUSE
            why = self._shared.no_answer("no answer")
            if self._silence.go_on(why.trouble):
                remedy = why.remedy or _CONTACT
                self._report("warning", "cluster.report_refused", node=node, reason=str(why), remedy=remedy)

    # --- the supervisor ---------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._look()
        self._read_notes(trust_clock())
        self._read_logs()
        now = trust_clock()
        self._membership.pass_time(now)
        self._publish(now)
        self._say_report(now)
        self._listen()

    def _read_logs(self) -> None:
        """Follow what the workers have read in their logs."""
        own = self._membership.own_workers
        for partition in range(self._settings.partitions):
            self._membership.log_claimed(partition, self._trust.own_claim(partition))
            if partition not in own:
                self._trust.forget_log(partition)
            elif (found := self._trust.log_of(partition)) is not None:
                self._membership.log_noted(partition, LogNote(*found), trust_clock())

    def _resign(self, partition: int) -> None:
        """Say in the log of a partition that its worker has ended, so that another node claims it at once."""
        if own := self._trust.own_claim(partition):
            claim = Claim(own + 1, f"node {self._settings.node} resigns"[:200], RESIGNED, time.time())
            self._shared.append_elsewhere(self._address.topic, partition, encode_claim(claim))

    def _publish(self, now: float) -> None:
        """Write the trust, then the view: a worker must not act on a claim that the view no longer has."""
        membership = self._membership
        self._trust.clock_offset = membership.clock.offset
        for partition in range(self._settings.partitions):
            self._trust.set(partition, membership.trusted_until(partition))
            self._trust.permit(partition, membership.follows_until(partition), membership.vouched(partition))
        why = membership.trouble(now)
        trouble = self._outage.trouble or (Trouble(why) if why else None)
        view = replace(membership.view, trouble=trouble, created=self._created)
        if self._supervisor.show(view):
            self._with_worker |= view.mine.keys() | view.preparing.keys()

    def _listen(self) -> None:
        messages = self._supervisor.heard()
        if any(told.get("end", False) for told in messages):
            self._is_told_to_end = True
            self._membership.end()  # first: workers that have ended already are among these messages
        stopped = {partition for told in messages for partition in told.get("stopped", ())}
        if (view := self._supervisor.view) is not None and not self._is_told_to_end:
            stopped -= view.mine.keys() | view.preparing.keys()  # these had an earlier worker
        self._with_worker -= stopped
        # The supervisor reports once that a worker has ended, and nothing about one that it was not told to start.
        stopped |= self._membership.ending - self._with_worker
        for partition in stopped:
            self._membership.log_claimed(partition, self._trust.own_claim(partition))
        for partition in self._membership.stopped(stopped):
            self._resign(partition)
        for told in messages:
            failures = {int(partition): why for partition, why in told.get("failed", {}).items()}
            self._membership.failed(failures, trust_clock())
            if "serving" in told:
                self._membership.serves(told["serving"], told["unreachable"], told.get("tables"))
        self._supervisor.flush()
