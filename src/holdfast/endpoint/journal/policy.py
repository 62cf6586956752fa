"""How an event journal is kept. By itself, so that whoever only looks at settings need not load what writes one."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.settings import check_settings

DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class JournalPolicy:
    """Where an event journal is and how long it is kept.

    Args:
        directory: Where it is; None: ``journal`` in the store's directory. Of several workers each has one of its own,
            ``worker-1`` and so on below it.
        age: Seconds that files are kept; None: however long.
        size: Bytes that they may take together, the oldest go first; None: however many.
        file_age: Seconds until a file is complete, and becomes Parquet.
        file_size: Bytes after which it is complete before that.

    Raises:
        ConfigurationError: for a number that cannot be.
    """

    directory: str | None = None
    age: float | None = 7 * DAY
    size: int | None = 1 << 30
    file_age: float = 900.0
    file_size: int = 64 << 20

    def __post_init__(self) -> None:
        check_settings(self)
