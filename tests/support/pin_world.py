"""One partition in small worlds: the group assigns it to one node, and pins of two others come and go. The
nodes find out by looking, late and seldom. See ``tests/cluster/group``."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import product

from group_world import STEP, EarlierPolicy

from holdfast.cluster.group.members import GroupMember, GroupPicture, LogNote, Pin
from holdfast.cluster.group.membership import GroupMembership

POLICY = EarlierPolicy(6.0)
"""With a hold that is as long as a node keeps a partition: then fewer looks make a mistake show."""


@dataclass
class Look:
    """A node asks for the group at one moment, the coordinator describes it at another, and the answer comes later."""

    sent: float
    seen: float
    answered: float
    picture: GroupPicture | None = None


def look_at_pins(
    kind: type[GroupMembership],
    seconds: float,
    pinned: Callable[[float, Mapping[str, Look]], Collection[Pin]],
    look: Callable[[str, float], Look],
    *,
    resigns: bool = False,
) -> list[tuple[float, str]]:
    """A partition is assigned to node a, and pins of b and c come and go. The nodes find out by looking. At
    most one may act. Returns which one does, "" for none, at each time.

    Args:
        kind: How they decide.
        seconds: How long.
        pinned: The time and the present looks -> the pins.
        look: The node and the time -> its next look.
        resigns: Whether a node whose worker has ended resigns. Otherwise the log has no owner for any of them, and who
            may act depends on the looks alone.
    """
    log, own = LogNote(1, True), dict.fromkeys("abc", 0)
    now = 100.0
    nodes = [kind(name, f"http://{name}", 1, POLICY, now) for name in "abc"]
    members = tuple(GroupMember(f"{one.node}-1", one.node, "", 100.0) for one in nodes)
    nodes[0].assigned([0], "a-1", now)
    known = frozenset((one.node, now) for one in nodes) if resigns else frozenset[tuple[str, float]]()

    def reports_prepared(one: GroupMembership) -> bool:
        return 0 in one.own_workers and 0 in one.report.prepared  # most nodes have no worker, and a report is dear

    def note(one: GroupMembership) -> None:
        moved = frozenset({0} if one.node != "a" else ())
        prepared = frozenset((other.node, 0) for other in nodes if reports_prepared(other))
        one.noted(is_drained=False, is_cut_off=False, now=now, moved=moved, resigning=known, prepared=prepared)

    for one in nodes:
        note(one)
    looks = {one.node: look(one.node, now) for one in nodes}
    found: list[tuple[float, str]] = []
    for step in range(int(seconds / STEP)):
        now = 100.0 + step * STEP
        pins = tuple(pinned(now, looks))
        for one in nodes:
            mine = looks[one.node]
            if mine.picture is None and now >= mine.seen:
                mine.picture = GroupPicture(members, True, pins)
            if mine.picture is not None and now >= mine.answered:
                one.looked(mine.picture, mine.sent, now)
                looks[one.node] = look(one.node, now)
            note(one)
            one.pass_time(now)
            one.log_claimed(0, own[one.node])
            if one.stopped(one.ending) and resigns and own[one.node] == log.epoch:
                log = LogNote(log.epoch + 1, True)
            if 0 not in one.own_workers:
                continue
            one.log_noted(0, LogNote(log.epoch, log.is_free, own[one.node]), now)
            one.pass_time(now)
            is_known = log.is_free or log.epoch <= max(own[one.node], one.vouched(0))
            until = max(one.trusted_until(0), one.follows_until(0))
            if resigns and own[one.node] != log.epoch and is_known and now < until:
                log = LogNote(log.epoch + 1, False)
                own[one.node] = log.epoch
                one.log_noted(0, LogNote(log.epoch, False, log.epoch), now)
        acting = [one.node for one in nodes if now < one.trusted_until(0) and 0 in one.view.mine]
        if resigns:  # a worker that has never claimed the log does not act, but one that has lost it may
            acting = [one for one in acting if own[one]]
        assert len(acting) <= 1, f"{now:.1f}: {acting} act"
        found.append((now, "".join(acting)))
    return found


def flip_pins(seed: int, kind: type[GroupMembership] = GroupMembership, *, resigns: bool = False) -> None:
    """Pins come and go at any time, often just before the coordinator answers a slow look."""
    chance, pins, flip_at = random.Random(seed), dict[str, Pin](), 100.0
    slow = {name: chance.choice([0.0, 0.0, 0.1]) for name in "abc"}

    def look(node: str, now: float) -> Look:
        sent = now + STEP * chance.choice([1, 3])
        delay = POLICY.keep * chance.choice([0.8, 2, 6, 9] if chance.random() < slow[node] else [0.05, 0.2, 0.4])
        return Look(sent, sent + delay * chance.choice([0.0, 0.5, 1.0]), sent + delay)

    def pinned(now: float, looks: Mapping[str, Look]) -> Collection[Pin]:
        nonlocal pins, flip_at
        if now >= flip_at:
            before_slowest = max(one.seen for one in looks.values()) - STEP
            is_slow = before_slowest > now + POLICY.keep and chance.random() < 0.7
            flip_at = before_slowest if is_slow else now + POLICY.keep * chance.choice([0.1, 0.9, 2, 4, 6])
            wanted = chance.choice(["", "", "b", "c", "bc"])
            kept = {name: pin for name, pin in pins.items() if chance.random() < 0.8}
            pins = {name: kept.get(name) or Pin(f"{name}-{now}", name, 100.0, 0) for name in wanted}
        return pins.values()

    look_at_pins(kind, 60.0, pinned, look, resigns=resigns)


def overlook_pin(
    kind: type[GroupMembership],
    gap: float,
    start: float,
    length: float,
    seen: float,
    delay: float,
    next_after: float | None = None,
    *,
    resigns: bool = False,
) -> None:
    """Node a asks thrice, and one pin comes and goes in the meantime. Its node learns that late. Other looks are quick.

    Args:
        kind: How the nodes decide.
        gap: Holds between the first look and the second one.
        start, length: Holds after the first look when the pin comes, and for which it stays.
        seen: Which share of the gap has passed when the coordinator describes the group the first time.
        delay: Holds until the coordinator describes the group the second time.
        next_after: Steps from the second look until another pin comes; None: none comes.
    """
    first = 100.0 + 3 * POLICY.keep
    begin = first + start * POLICY.keep
    end = begin + length * POLICY.keep

    def look(node: str, now: float) -> Look:
        sent = now + STEP
        if node == "a" and first <= now < first + 3 * STEP:
            return Look(sent, sent + seen * gap * POLICY.keep, sent + gap * POLICY.keep)
        if node == "a" and first + gap * POLICY.keep <= now < first + gap * POLICY.keep + 3 * STEP:
            return Look(sent, sent + delay * POLICY.keep, sent + delay * POLICY.keep)
        if node == "b" and end - 3 * STEP <= now < end:
            return Look(sent, end, end + POLICY.keep)
        return Look(sent, sent, sent)

    def pinned(now: float, _: Mapping[str, Look]) -> Collection[Pin]:
        if next_after is not None and now >= first + gap * POLICY.keep + next_after * STEP:
            return [Pin("c-1", "c", 100.0, 0)]
        return [Pin("b-1", "b", 100.0, 0)] if begin <= now < end else []

    look_at_pins(kind, (gap + length + 8) * POLICY.keep, pinned, look, resigns=resigns)


def search_pins(kind: type[GroupMembership], seeds: int, *, resigns: bool = False) -> None:
    """Take all orders of a few looks and one pin, then some of many."""
    for case in product([0.5, 1.5, 3, 4, 5, 7], [0.1, 1], [0.5, 1.5, 2.5, 3.5, 4.5], [0, 1], [0, 1.1]):
        overlook_pin(kind, *case, resigns=resigns)
    for next_after in range(10):
        overlook_pin(kind, 5, 0.1, 4.5, 1, 0, next_after, resigns=resigns)
    for seed in range(seeds):
        flip_pins(seed, kind, resigns=resigns)
