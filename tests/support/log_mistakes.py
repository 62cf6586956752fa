"""Mistakes of processes that want one log, which ``log_world`` must notice, and the worlds that notice them."""

from __future__ import annotations

from typing import Any

from log_world import Process, World

from holdfast.store.kafka.frames import Claim, Copies, Part, decode
from holdfast.store.kafka.replay import Found, Replay, Written


def large(seed: int, **options: Any) -> World:
    """Three processes, and every kind of fault. Some writes have several records, and some logs are trimmed."""
    payloads = [[b"%d-%d" % (one, at) * (1 + 12 * (at % 3 == 1)) for at in range(5)] for one in range(1 + seed % 3)]
    budget = {"unknown": seed % 4, "crash": seed // 3 % 4, "short end": seed // 5 % 3, "refused": seed // 7 % 3}
    return World(payloads, budget, fewest=(150, 400, 1 << 20)[seed % 3], **options)


class AcknowledgesBeforeConfirmed(Process):
    def hear(self, world: World, offsets: list[int] | None) -> None:
        self.owner.claims or offsets or world.acknowledged.append(self.write[0] if self.write else b"")
        super().hear(world, offsets)


class DeliversVoidRecords(Process):
    def read(self, world: World) -> None:
        frame = decode(world.log.records[self.replay.next], "the log")
        super().read(world)
        if not self.serves and isinstance(frame, Part) and frame.parts == 1 and frame.epoch < self.replay.epoch:
            self.content.apply(Written(0, 0, frame.copies, frame.data, False))


class TrimsBeforeTheCopyIsComplete(Replay):
    def _follow_copy(self, first: int, copies: Copies, size: int) -> None:
        super()._follow_copy(first, copies, size)
        if copies & Copies.BEGINS:
            self.trim_to = first


class IgnoresEpochs(Replay):
    def _part(self, offset: int, part: Part | None) -> Written | None:
        if part is not None and not self._is_cut:
            part = Part(self.epoch, part.serial, part.part, part.parts, part.copies, part.data)
        return super()._part(offset, part)


class AcceptsAnyClaim(Replay):
    def _claim(self, claim: Claim) -> Found:  # type: ignore[override]
        if claim.epoch == self.epoch:
            claim = Claim(self.epoch + 1, claim.name, claim.nonce, claim.at)
        return super()._claim(claim)
