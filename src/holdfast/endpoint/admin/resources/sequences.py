"""Admin routes for Sequences: list them, show one, suspend, resume or terminate it."""

from __future__ import annotations

from typing import Any

from holdfast.core.origin import without_secrets
from holdfast.core.rm_destination.destination import RMDestination
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.steering import Steering
from holdfast.endpoint.admin.inspected import Inspected
from holdfast.endpoint.admin.numbering import numbering_of
from holdfast.endpoint.admin.paging import page_of
from holdfast.endpoint.admin.routes import Asked, Joined, Refused, route
from holdfast.endpoint.admin.shapes.answers import SequenceList, SequenceShown
from holdfast.endpoint.admin.shapes.requests import Reason, SequencePage
from holdfast.endpoint.inspection import describe_flight, describe_parts

Part = RMDestination | Outbox
"""A Sequence: an inbound one; or an outbox, with the one that carries it or without."""


class SequenceRoutes:
    """Answers for one destination.

    Args:
        app: The destination, started; or a stopped store.
    """

    def __init__(self, app: Inspected) -> None:
        self._app = app

    def _parts(self) -> list[tuple[tuple[str, str, str], Part]]:
        """Return every Sequence by its sort key: role, Identifier, key."""
        protocol = self._app.engine.protocol
        inbound: list[tuple[tuple[str, str, str], Part]] = [
            (("destination", name, ""), one) for name, one in protocol.inbound.destinations.items()
        ]
        return inbound + [
            (("source", (one.source.identifier or "") if one.source is not None else "", one.key), one)
            for one in protocol.outbound.outboxes.values()
            if one.source is not None or one.records.waiting
        ]

    @route("GET", "sequences", SequenceList, SequencePage, joined=Joined.PAGES)
    async def _list(self, asked: Asked) -> object:
        """List Sequences."""
        query = asked.query
        sought = without_secrets(query.find)
        found = [
            part
            for part in self._parts()
            if (not query.role or part[0][0] == query.role)
            and (not query.state or _state_of(part[1]) == query.state)
            and (sought in part[0][1] or sought in without_secrets(part[0][2]))
        ]
        shown, following = page_of(found, query)
        return {"sequences": self._describe(shown), "count": len(found), "next": following}

    def _describe(self, parts: list[Part]) -> list[dict[str, Any]]:
        destinations = [part for part in parts if isinstance(part, RMDestination)]
        outboxes = [part for part in parts if isinstance(part, Outbox)]
        numbers = numbering_of(self._app)
        described = describe_parts(destinations, outboxes, self._app.engine.clock())
        return [numbers.describe_row(one) for one in described]

    def _find(self, identifier: str) -> Part:
        protocol = self._app.engine.protocol
        destination = protocol.inbound.destinations.get(identifier)
        if destination is not None:
            return destination
        outboxes = protocol.outbound.sequences.named(identifier)
        if outboxes:
            return outboxes[0]
        raise Refused(404, f"no Sequence {identifier[:500]}", "List the Sequences with holdfast sequences.")

    @route("GET", "sequences/{identifier}", SequenceShown, errors=(404,), joined=Joined.SEQUENCE)
    async def _show(self, asked: Asked, identifier: str) -> object:
        """Show a Sequence with its ranges, gaps and window."""
        return self._show_part(self._find(identifier))

    def _show_part(self, part: Part) -> dict[str, Any]:
        (shown,) = self._describe([part])
        engine = self._app.engine
        if isinstance(part, Outbox) and engine.is_running:
            shown["flight"] = describe_flight(part, engine.clock())
        return shown

    @route(
        "POST",
        "sequences/{identifier}/{how:suspend|resume|close|terminate}",
        SequenceShown,
        body=Reason,
        errors=(404, 409),
        joined=Joined.SEQUENCE,
    )
    async def _steer(self, asked: Asked, identifier: str, how: str) -> object:
        """Suspend, resume, close or terminate a Sequence."""
        part = self._find(identifier)
        engine = self._app.engine
        steering, now = Steering(engine.protocol), engine.clock()
        if isinstance(part, Outbox):
            _steer_outbound(steering, part, how, asked.body.reason, now)
        elif how == "suspend":
            steering.suspend_inbound(part, asked.body.reason)
        elif how == "resume":
            steering.resume_inbound(part)
        elif not engine.protocol.end_inbound(identifier, now, terminate=how == "terminate"):
            raise Refused(404, f"the Sequence {identifier} is not open", "List the Sequences with holdfast sequences.")
        await engine.durable()
        return self._show_part(part)


def _steer_outbound(steering: Steering, outbox: Outbox, how: str, reason: str, now: float) -> None:
    if how == "suspend":
        steering.suspend(outbox, reason)
    elif how == "resume":
        steering.resume(outbox, now)
    else:
        steering.end_outbound(outbox, now, terminate=how == "terminate")


def _state_of(part: Part) -> str:
    if isinstance(part, RMDestination):
        return part.state.value
    return part.source.state.value if part.source is not None else "none"
