"""Admin routes for forwarders and other outboxes: list, suspend, resume and move them.

A forwarder sends the records of a queue to a destination. It has one outbox for each partition; a request acts on all
of them, or on the one that it names by its key.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from holdfast.core.sending.outboxes.forwarder_state import Refusal
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.steering import NotSteered, Steering
from holdfast.endpoint.admin.inspected import Inspected
from holdfast.endpoint.admin.numbering import numbering_of
from holdfast.endpoint.admin.paging import page_of
from holdfast.endpoint.admin.places import delete_forwarder, find_offsets, pass_over, within
from holdfast.endpoint.admin.routes import Asked, Joined, Refused, route
from holdfast.endpoint.admin.shapes.answers import ForwarderDeleted, ForwarderList, Moved
from holdfast.endpoint.admin.shapes.requests import Page, Reason, Reset
from holdfast.endpoint.inspection import describe_flight
from holdfast.endpoint.sending.outboxes import check_one, forwarder_of, is_called, state_of

MOST_REFUSALS = 10
"""Maximum number of refused messages shown for one outbox: the first ones delay the others."""


def name_of(key: str) -> str:
    """Return the name of the forwarder that owns an outbox; for any other outbox, its key."""
    name = forwarder_of(key)
    return key if name is None else name


def describe_refusal(outbox: Outbox, offset: int, refusal: Refusal) -> dict[str, Any]:
    """Return the report on a message that the destination answered with a fault but may still accept."""
    source, record, policy = outbox.source, outbox.records.record(offset), outbox.forwarding
    is_carried = source is not None and source.identifier is not None and outbox.records.may_have_left(offset)
    return {
        "offset": offset,
        "sequence": source.identifier if source is not None and is_carried else None,
        "number": offset - source.numbers.start + 1 if source is not None and is_carried else None,
        "action": record.action if record is not None else "",
        "code": refusal.fault.code,
        "reason": refusal.fault.reason,
        "since": refusal.first_at,
        "times": refusal.times,
        "final_times": policy.refusals if policy is not None else None,
        "final_at": refusal.first_at + policy.patience if policy is not None else None,
    }


def describe_forwarder(outbox: Outbox, now: float, circuit: dict[str, Any] | None) -> dict[str, Any]:
    source = outbox.source
    return {
        "name": name_of(outbox.key),
        "key": outbox.key,
        "queue": outbox.records.queue.name,
        "partition": outbox.records.partition,
        "to": outbox.to,
        "state": state_of(outbox),
        "suspended": outbox.lifecycle.suspended,
        "stopped": outbox.lifecycle.stopped,
        "stopped_for": outbox.lifecycle.stopped_for,
        "refused": outbox.lifecycle.unwelcome.reason if outbox.lifecycle.unwelcome is not None else None,
        "last_answer": outbox.last_answer or None,
        "refusals": [describe_refusal(outbox, *one) for one in islice(outbox.refused_now(), MOST_REFUSALS)],
        "first": outbox.records.first,
        "end": outbox.records.durable_end,
        "waiting": outbox.records.waiting,
        "retracted": outbox.lifecycle.retracted.count,
        "sequence": source.identifier if source is not None else None,
        "flight": describe_flight(outbox, now),
        "circuit": circuit,
    }


class ForwarderRoutes:
    """Answers for one destination.

    Args:
        app: The destination, started; or a stopped store.
    """

    def __init__(self, app: Inspected) -> None:
        self._app = app

    def _all(self) -> list[Outbox]:
        outboxes = self._app.engine.protocol.outbound.outboxes.values()
        return sorted((one for one in outboxes if not one.is_for_replies), key=lambda one: one.key)

    def _find(self, name: str) -> list[Outbox]:
        mark = numbering_of(self._app).mark
        found = [one for one in self._all() if is_called(name, mark(one.key)) or is_called(name, name_of(one.key))]
        check_one(name, len({name_of(one.key) for one in found}))
        if not found:
            raise Refused(404, f"no forwarder {name[:500]}", "List the forwarders with holdfast forwarders.")
        return found

    def _described(self, outboxes: list[Outbox]) -> list[dict[str, Any]]:
        now = self._app.engine.clock()
        circuits = {one["to"]: one for one in self._app.engine.protocol.outbound.circuits.describe(now)}
        numbers = numbering_of(self._app)
        described = [describe_forwarder(one, now, circuits.get(one.to or "")) for one in outboxes]
        return [numbers.describe_row(one | {"key": numbers.mark(one["key"])}) for one in described]

    @route("GET", "forwarders", ForwarderList, Page, joined=Joined.WHOLE)
    async def _list(self, asked: Asked) -> object:
        """List forwarders."""
        every = self._all()
        shown, following = page_of([((one.key,), one) for one in every], asked.query)
        return {"forwarders": self._described(shown), "count": len(every), "next": following}

    @route("GET", "forwarders/{name}", ForwarderList, errors=(404, 409))
    async def _show(self, asked: Asked, name: str) -> object:
        """Show a forwarder by partition."""
        found = self._find(name)
        return {"forwarders": self._described(found), "count": len(found), "next": None}

    @route(
        "POST",
        "forwarders/{name}/{how:suspend|resume}",
        ForwarderList,
        body=Reason,
        errors=(404, 409),
        joined=Joined.WILLING,
    )
    async def _steer(self, asked: Asked, name: str, how: str) -> object:
        """Suspend or resume a forwarder."""
        found = self._find(name)
        engine = self._app.engine
        steering, now = Steering(engine.protocol), engine.clock()
        refusals = []
        for outbox in sorted(found, key=lambda one: not one.lifecycle.stopped):  # report stopped ones first
            try:
                steering.suspend(outbox, asked.body.reason) if how == "suspend" else steering.resume(outbox, now)
            except NotSteered as error:
                refusals.append(error)
        await engine.durable()
        if len(refusals) == len(found):
            raise refusals[0]
        return {"forwarders": self._described(found), "count": len(found), "next": None}

    @route("POST", "forwarders/{name}/reset", Moved, body=Reset, errors=(404, 409))
    async def _reset(self, asked: Asked, name: str) -> object:
        """Move a forwarder forward or back; repeated messages go in a new Sequence."""
        found = {one.records.partition: one for one in self._find(name)}
        engine = self._app.engine
        queue, numbers = next(iter(found.values())).records.queue, numbering_of(self._app)
        places = await find_offsets(engine, queue, asked.body, numbers, list(found))
        before = {own: found[own].records.first for own in places}
        if asked.body.dry_run:
            stands = within(queue, places)
        else:
            stands = {own: await pass_over(engine, found[own], place) for own, place in places.items()}
            await engine.durable()
        return {"offsets": numbers.numbered(stands), "before": numbers.numbered(before)}

    @route("DELETE", "forwarders/{name}", ForwarderDeleted, errors=(404, 409))
    async def _delete(self, asked: Asked, name: str) -> object:
        """Delete a forwarder that is not in the configuration, with its unsent messages."""
        found = self._find(name)
        engine = self._app.engine
        waiting = 0
        try:
            for outbox in found:
                waiting += await delete_forwarder(engine, outbox)
        finally:
            engine.touch()  # the outboxes before one that cannot be deleted are already deleted
        await engine.durable()
        return {"deleted": len(found), "waiting": waiting}
