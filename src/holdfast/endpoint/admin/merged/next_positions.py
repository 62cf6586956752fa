"""Route for a reader's next batch in the queues of all workers.

Each worker reports its records. If these are more than the reader takes, a search finds the oldest ones of all workers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

from holdfast.endpoint.admin.data_plane.admission import Guess, Probe, oldest
from holdfast.endpoint.admin.data_plane.next_positions import MAX_WAIT
from holdfast.endpoint.admin.merged import answers as joining
from holdfast.endpoint.admin.numbering import Numbering

WAIT: Final = 1.0
"""Seconds that one request to a worker waits for more records."""

Where = tuple[str, int]
"""A queue, and the number of a partition among those of all workers."""
Fetch = Callable[[int, str, str, bytes], Awaitable[Any]]
"""Asks a worker: its number, the method, the target, the content."""
Merge = Callable[[list[Any]], Any]
"""Makes one answer of several workers' answers."""


class NextOfAll:
    """One request to all workers."""

    def __init__(self, fetch: Fetch, merge: Merge, numbers: Numbering, content: Mapping[str, Any]) -> None:
        self._fetch, self._merge = fetch, merge
        self._workers, self._numbers = numbers.count, numbers
        self._content = content
        self._epochs: list[dict[str, str]] = []
        """The epochs that the reader's queues have in each worker."""

    async def answer(self) -> Any:
        """Wait, and find where the batch ends.

        Raises:
            Refused: A worker refuses or does not answer, or a queue has another epoch.
        """
        content = self._content
        self._epochs = await self._epochs_of_all()
        answer = await self._waited()
        since, ends = self._since(answer), self._ends(answer)
        most = content.get("most")
        if most is None or sum(ends.values()) - sum(since.values()) <= most:
            return answer
        search = oldest(since, ends, most, Guess(**answer["guess"]))
        try:
            probe = next(search)
            while True:
                probe = search.send(await self._positions_at(probe))
        except StopIteration as over:
            until, guess = over.value
        chosen = self._merge(await self._ask(self._asked(self._by_queue(until))))["queues"]
        for name in content["queues"].keys() & chosen.keys() & answer["queues"].keys():
            answer["queues"][name] |= {part: chosen[name].get(part, {}) for part in ("offsets", "fingerprints")}
        return answer | {"guess": {"ended": guess.ended, "width": guess.width}}

    # --- asking the workers ---------------------------------------------------------------------------------------

    async def _epochs_of_all(self) -> list[dict[str, str]]:
        answers = await asyncio.gather(*(self._fetch(worker, "GET", "queues", b"") for worker in range(self._workers)))
        found = [self._merge([one])["queues"] for one in answers]
        named = self._content["queues"]
        for name in named:
            if all(name in one for one in found):
                joining.check_epoch(name, [str(one[name]["epoch"]) for one in found], str(named[name]["epoch"]))
        return [{name: str(one[name]["epoch"]) for name in named if name in one} for one in found]

    async def _waited(self) -> Any:
        now = asyncio.get_running_loop().time
        deadline = now() + min(MAX_WAIT, float(self._content.get("wait", 0.0)))
        while True:
            answer = self._merge(await self._ask(self._asked()))
            if now() >= deadline or self._is_enough(answer):
                return answer
            # Short: a worker without new records keeps waiting although another one has some.
            wait = min(deadline - now(), WAIT)
            waits = [asyncio.ensure_future(one) for one in self._requests(self._asked(wait=wait))]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in waits:
                    one.cancel()
                await asyncio.gather(*waits, return_exceptions=True)

    async def _positions_at(self, probe: Probe[Where]) -> dict[Where, int]:
        """Return, for each partition, the first record that was delivered at that time or later."""
        asked: dict[tuple[int, str], list[int]] = {}
        for name, partition in probe.within:
            asked.setdefault((self._numbers.owner(str(partition)), name), []).append(partition)
        requests = []
        for (worker, name), partitions in asked.items():
            at = ",".join(f"{one}:{probe.time}" for one in partitions)
            epoch = quote(self._epochs[worker][name], safe="")
            target = f"queues/{quote(name, safe='')}/offsets?epoch={epoch}&at={at}"
            requests.append(self._fetch(worker, "GET", target, b""))
        found: dict[Where, int] = {}
        for (_, name), one in zip(asked, await asyncio.gather(*requests), strict=True):
            found |= {(name, int(partition)): at for partition, at in self._merge([one])["offsets"].items()}
        return found

    async def _ask(self, asked: list[dict[str, Any]]) -> list[Any]:
        return list(await asyncio.gather(*self._requests(asked)))

    def _requests(self, asked: list[dict[str, Any]]) -> list[Awaitable[Any]]:
        contents = [json.dumps(one).encode() for one in asked]
        return [self._fetch(worker, "POST", "next-positions", one) for worker, one in enumerate(contents)]

    def _asked(self, until: Mapping[str, Mapping[str, int]] | None = None, wait: float = 0.0) -> list[dict[str, Any]]:
        content = self._content
        general = {name: content[name] for name in ("others", "least", "guess") if content.get(name) is not None}
        asked: list[dict[str, Any]] = [general | {"queues": {}, "wait": wait} for _ in range(self._workers)]
        for name, stands in content["queues"].items():
            cut = stands.get("until") if until is None else until[name]
            parts = {part: stands.get(part) or {} for part in ("offsets", "fingerprints")}
            if cut is not None:
                parts["until"] = cut
            for worker, one in enumerate(asked):
                if (epoch := self._epochs[worker].get(name)) is not None:
                    one["queues"][name] = {"epoch": epoch, **parts}
        return asked

    # --- their answers --------------------------------------------------------------------------------------------

    def _ends(self, answer: Any) -> dict[Where, int]:
        found = {name: one.get("offsets", {}) for name, one in answer["queues"].items()}
        return {(name, int(partition)): end for name, one in found.items() for partition, end in one.items()}

    def _since(self, answer: Any) -> dict[Where, int]:
        """Return where the batch begins: behind deleted records."""
        since = {}
        for (name, partition), end in self._ends(answer).items():
            first = answer["queues"][name]["partitions"][str(partition)]["first"]
            since[name, partition] = min(max(first, self._stands(name, partition)), end)
        return since

    def _stands(self, name: str, partition: int) -> int:
        return int((self._content["queues"][name].get("offsets") or {}).get(str(partition), 0))

    def _is_enough(self, answer: Any) -> bool:
        since = self._since(answer)
        rows = sum(self._ends(answer).values()) - sum(since.values())
        has_lost = any(at > self._stands(*where) for where, at in since.items())
        return rows >= self._content.get("least", 1) or has_lost

    @staticmethod
    def _by_queue(positions: Mapping[Where, int]) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for (name, partition), at in positions.items():
            found.setdefault(name, {})[str(partition)] = at
        return found
