"""Why a part that Holdfast depends on does not serve for now, and how long that lasts: a disk, a database, Kafka."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.exceptions import clause


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why something does not work for now.

    Args:
        what: The problem, as a clause or a sentence.
        remedy: What to do about it, as one or more sentences; "": the problem itself says what to check.
    """

    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{clause(self.what)}. {self.remedy}" if self.remedy else self.what


class Away(Exception):
    """Something that Holdfast depends on does not answer, or cannot do something now.

    Args:
        why: The reason.
        remedy: What to do if waiting alone does not help; "": wait.
    """

    def __init__(self, why: str, remedy: str = "") -> None:
        super().__init__(why)
        self.remedy = remedy

    @property
    def trouble(self) -> Trouble:
        """Return why, and what to do."""
        return Trouble(str(self), self.remedy)


class Outage:
    """The time for which something does not work, and what the log has of it.

    Args:
        clock: Returns the time in seconds, by a clock that never goes back.

    Attributes:
        trouble: Why; None: it works.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since = 0.0
        self._logged: set[str] = set()
        self.trouble: Trouble | None = None

    def go_on(self, trouble: Trouble) -> bool:
        """Begin the outage, or continue it.

        Returns:
            Whether to log it: at the beginning, and once for each further remedy.
        """
        is_first, self.trouble = self.trouble is None, trouble
        if is_first:
            self._since = self._clock()
            self._logged.clear()
        is_new = is_first or bool(trouble.remedy and trouble.remedy not in self._logged)
        self._logged.add(trouble.remedy)
        return is_new

    def end(self) -> float | None:
        """End the outage; return how many seconds it took, or None if there was none."""
        if self.trouble is None:
            return None
        self.trouble = None
        return round(self._clock() - self._since, 3)
