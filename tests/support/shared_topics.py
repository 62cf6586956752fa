"""A fake topic that several processes share: a list, with the time at which each record was stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.store.kafka.login import KafkaAway

Change = tuple[str, bytes | None]


class TopicLog:
    """The topic itself.

    Attributes:
        records: Its records, each with its time.
        clock: The time now.
        is_away: Whether nothing is answered.
    """

    def __init__(self) -> None:
        self.records: list[tuple[str, bytes | None, float]] = []
        self.clock = 0.0
        self.is_away = False

    def content(self) -> dict[str, bytes]:
        """What a reader of all of it has at the end."""
        found = {key: value for key, value, _ in self.records}
        return {key: value for key, value in found.items() if value is not None}


class FakeTopic:
    """The view that one process has of a topic.

    Attributes:
        lag: How many of the last records only a reader that asks for the end sees.
        before_write: Called once, before the next write.
        refuses: Whether writes fail.
    """

    def __init__(self, log: TopicLog) -> None:
        self.log = log
        self.position = 0
        self.clock = 0.0
        self.said = ""
        self.lag = 0
        self.refuses = False
        self.before_write: Callable[[], object] = lambda: None
        self._asked = 0
        self._outcomes: list[tuple[Callable[[bool], None], bool]] = []

    def no_answer(self, why: str) -> KafkaAway:
        """See KafkaLog."""
        return KafkaAway(self.said or why)

    def bounds(self, wait: float) -> tuple[int, int]:
        """See SharedTopic."""
        if self.log.is_away:
            raise KafkaAway("no answer")
        self._asked = len(self.log.records)
        return 0, self._asked

    def changes(self, wait: float) -> Iterable[Change]:
        """See SharedTopic."""
        if self.log.is_away:
            raise KafkaAway("no answer")
        end = max(self._asked, len(self.log.records) - self.lag)
        found = self.log.records[self.position : end]
        self.position += len(found)
        self.clock = max([self.clock, *(at for *_, at in found)])
        return [(key, value) for key, value, _ in found]

    def say(self, key: str, value: bytes | None, then: Callable[[bool], None]) -> None:
        """See SharedTopic."""
        before, self.before_write = self.before_write, lambda: None
        before()
        if not self.refuses:
            self.log.records.append((key, value, self.log.clock))
            self._asked = max(self._asked, len(self.log.records))
        self._outcomes.append((then, not self.refuses))

    def hear_outcomes(self, wait: float) -> None:
        """See SharedTopic."""
        outcomes, self._outcomes = self._outcomes, []
        for then, is_written in outcomes:
            then(is_written)
