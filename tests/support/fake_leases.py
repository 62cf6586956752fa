"""The rows of a cluster's leases in memory, and what each request of a node does to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from holdfast.cluster.rows import (
    Answer,
    Claim,
    Declare,
    Drain,
    Enter,
    Entered,
    Join,
    Leave,
    Look,
    NodeRow,
    OwnershipRow,
    Picture,
    Release,
    Report,
    Request,
    Tell,
)


@dataclass
class Row:
    incarnation: int
    expires_at: float
    is_draining: bool = False
    report: Report = field(default_factory=Report)


@dataclass(eq=False)
class Session:
    """A connection; its locks end with it."""

    name: str
    is_open: bool = True
    last_exchange: float = 0.0


class Database:
    """The rows, and what each request does to them, at once and as a whole."""

    def __init__(self, partitions: int, lease: float) -> None:
        self.now = 0.0
        self.lease = lease
        self.nodes: dict[str, Row] = {}
        self.ownership = [OwnershipRow(partition, "", 0, 0) for partition in range(partitions)]
        self.locks: dict[str, Session] = {}
        self.started_at = -1000.0
        self.joins = 0
        self.is_up = True
        self.notify: Callable[[Session | None], None] = lambda by: None
        """Called when rows have changed, with the session that changed them; None: that of an operator."""

    def close(self, session: Session) -> None:
        session.is_open = False
        self.locks = {name: one for name, one in self.locks.items() if one is not session}

    def is_mine(self, name: str, incarnation: int) -> bool:
        row = self.nodes.get(name)
        return row is not None and row.incarnation == incarnation

    def is_free(self, row: OwnershipRow) -> bool:
        return not row.owner or not self.is_mine(row.owner, row.incarnation)

    def run(self, session: Session, request: Request) -> Answer | None:
        """Carry a request out.

        Raises:
            ConnectionError: The session has ended, or has lost the lock to another one.
        """
        if not (self.is_up and session.is_open):
            raise ConnectionError
        session.last_exchange = self.now
        answer = self.answer(session, request)
        if answer is not False and not isinstance(request, Enter | Look | Tell):
            self.notify(session)
        return answer

    def answer(self, session: Session, request: Request) -> Answer | None:
        name = session.name
        is_locked = self.locks.setdefault(name, session) is session
        match request:
            case Enter():
                return Entered(is_locked, name in self.nodes)
            case Join():
                if not is_locked:
                    raise ConnectionError
                return self.join(name, request)
            case Look():
                if not is_locked and self.is_mine(name, request.incarnation):
                    raise ConnectionError
                return self.look(name, request)
            case Declare():
                return self.declare(request)
            case Claim():
                return self.claim(name, request)
            case Release():
                for partition, epoch in request.claims.items():
                    row_of = self.ownership[partition]
                    if (row_of.owner, row_of.incarnation, row_of.epoch) == (name, request.incarnation, epoch):
                        self.ownership[partition] = replace(row_of, owner="", incarnation=0)
            case Drain():
                if self.is_mine(name, request.incarnation):
                    self.nodes[name].is_draining = True
            case Tell():
                if self.is_mine(name, request.incarnation):
                    self.nodes[name].report = request.report
            case Leave():
                if self.is_mine(name, request.incarnation):
                    del self.nodes[name]
        return None

    def join(self, name: str, request: Join) -> int:
        self.joins += 1
        self.nodes[name] = Row(self.joins, self.now + self.lease, request.is_draining)
        return self.joins

    def look(self, name: str, request: Look) -> Picture:
        is_member = self.is_mine(name, request.incarnation)
        if is_member and request.renews:
            self.nodes[name].expires_at = self.now + self.lease
        nodes = tuple(
            NodeRow(
                one,
                row.incarnation,
                f"http://{one}/",
                round(row.expires_at * 1e6),
                row.expires_at <= self.now,
                one in self.locks,
                row.is_draining,
                tuple(row.report.failed),
                tuple(row.report.unreachable),
            )
            for one, row in self.nodes.items()
        )
        return Picture(is_member, self.may_declare, nodes, tuple(self.ownership))

    @property
    def may_declare(self) -> bool:
        return self.now > self.started_at + self.lease

    def declare(self, request: Declare) -> bool:
        row = self.nodes.get(request.name)
        if row is None or row.incarnation != request.incarnation or not self.may_declare:
            return False
        is_unrenewed = request.unrenewed == round(row.expires_at * 1e6) and request.name not in self.locks
        if row.expires_at > self.now and not is_unrenewed:
            return False
        del self.nodes[request.name]
        return True

    def claim(self, name: str, request: Claim) -> dict[int, int]:
        claimed: dict[int, int] = {}
        if not self.is_mine(name, request.incarnation):
            return claimed
        for partition, wish in zip(request.partitions, request.wishes, strict=True):
            row = self.ownership[partition]
            if len(claimed) < request.most and self.is_free(row):
                wanted = 0 if request.incarnation != row.wanted == wish else row.wanted
                self.ownership[partition] = OwnershipRow(partition, name, request.incarnation, row.epoch + 1, wanted)
                claimed[partition] = row.epoch + 1
        return claimed
