"""New positions of cursors: an offset, an end of a queue, or a time in each partition. Moves and deletes forwarders."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.queues.queue import Queue
from holdfast.core.queues.retention import Search
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.steering import Steering
from holdfast.endpoint.admin.numbering import Numbering
from holdfast.endpoint.admin.routes import Refused
from holdfast.endpoint.admin.shapes.requests import Reset
from holdfast.endpoint.engine.engine import Engine
from holdfast.endpoint.envelopes.fault_replies import set_aside

_REMEDY = 'One of {"to": "earliest"}, {"to": "latest"}, {"offset": 12, "partition": 0}, {"time": 1767225600}.'


def asked_partitions(
    queue: Queue, partition: int | None, numbers: Numbering, among: Iterable[int] | None = None
) -> list[int]:
    """Return the requested ones of this worker's partitions, numbered from 0.

    Raises:
        Refused: 400 if the partition does not exist.
    """
    known = list(range(len(queue.partitions)) if among is None else among)
    if partition is None:
        return known
    own = numbers.own(partition)
    if own is None or own not in known:
        there = ", ".join(str(numbers.partition(one)) for one in known)
        raise Refused(400, f"the partition {partition} does not exist", f"The partitions are {there}.")
    return [own]


def check_one_partition(partitions: list[int], partition: int | None, numbers: Numbering) -> None:
    """Check that a request with an offset concerns one partition.

    Raises:
        Refused: 400 if it concerns several, in one worker or in several.
    """
    if len(partitions) > 1 or (partition is None and numbers.count > 1):
        raise Refused(
            400,
            "the queue has several partitions, and an offset belongs to one of them",
            "Name the partition.",
        )


async def find_offsets(
    engine: Engine, queue: Queue, reset: Reset, numbers: Numbering, among: Iterable[int] | None = None
) -> dict[int, int]:
    """Return the offset for each requested one of this worker's partitions, numbered from 0.

    Raises:
        Refused: 400 if the request names no position or several, or an offset without exactly one partition.
        StoreError: the store cannot be read.
    """
    said = [name for name in ("to", "offset", "time") if getattr(reset, name) is not None]
    if len(said) != 1:
        raise Refused(
            400, f"the request names {len(said)} positions" if said else "the request names no position", _REMEDY
        )
    partitions = asked_partitions(queue, reset.partition, numbers, among)
    if reset.offset is not None:
        check_one_partition(partitions, reset.partition, numbers)
        return {partitions[0]: reset.offset}
    if reset.time is not None:
        return {number: await offset_at(engine, queue, number, reset.time) for number in partitions}
    ends = queue.records.firsts if reset.to == "earliest" else queue.records.ends
    return {number: ends[number] for number in partitions}


def within(queue: Queue, places: dict[int, int]) -> dict[int, int]:
    """Return the offsets at which a cursor stands after a move: none is beyond an end of its partition."""
    return {
        number: min(max(offset, queue.partitions[number].first), queue.partitions[number].durable_end)
        for number, offset in places.items()
    }


async def offset_at(engine: Engine, queue: Queue, partition: int, time: float) -> int:
    """Return the offset of the first record delivered at ``time`` or later; the partition's end without one.

    The search reads few records.

    Raises:
        StoreError: The store cannot be read.
    """
    one = queue.partitions[partition]
    search = Search(one.first, one.durable_end, time)
    while (probe := search.probe) is not None:
        found = await engine.records(queue.name, partition, probe, probe + 1)
        if found:
            search.take(found[0][1].delivered_at)
        else:
            search.take(-1.0)  # deleted meanwhile: the wanted record comes later
    return search.found


async def pass_over(engine: Engine, outbox: Outbox, offset: int) -> int:
    """Move a forwarder forward or back, and return its new offset. The move becomes durable with the open batch.

    If the forwarder skips a request, the requester that waits for its reply receives a fault.

    Raises:
        NotSteered: The forwarder cannot be moved.
        StoreError: The store cannot be read.
    """
    await _skip(engine, outbox, offset)
    return Steering(engine.protocol).reset(outbox, offset, engine.clock())


async def delete_forwarder(engine: Engine, outbox: Outbox) -> int:
    """Delete a forwarder's outbox. The requester of each request that it has not sent receives a fault.

    Returns:
        The number of records that it has not certainly sent. The deletion becomes durable with the open batch.

    Raises:
        NotSteered: The forwarder cannot be deleted.
        StoreError: The store cannot be read.
    """
    steering = Steering(engine.protocol)
    steering.check_deletable(outbox)  # requesters receive no fault if the deletion is refused
    before = outbox.records.waiting
    await _skip(engine, outbox)
    return max(before, steering.delete(outbox, engine.clock()))


async def _skip(engine: Engine, outbox: Outbox, below: int | None = None) -> None:
    """Skip the records below that offset, or all of them, and reply to each request among them with a fault.

    One batch skips the records of one read and stores the replies. So even if the process is killed in between, it
    never forwards a request after its requester received a fault.
    """
    steering, position = Steering(engine.protocol), outbox.records.first
    while position < (end := outbox.records.durable_end if below is None else min(below, outbox.records.durable_end)):
        found = await engine.records(outbox.records.queue.name, outbox.records.partition, position, end)
        if not found:
            break
        position = found[-1][0] + 1
        steering.tell_requesters(outbox, found, set_aside, engine.clock())
        if position > outbox.records.first:  # it may have sent them meanwhile
            steering.reset(outbox, position, engine.clock())
        engine.touch()
