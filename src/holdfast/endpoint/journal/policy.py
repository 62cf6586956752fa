"""Settings of an event journal. A separate module, so that code that only reads settings need not load the writer."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.settings import check_settings

DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class JournalPolicy:
    """Where an event journal is and how long it is kept.

    Args:
        directory: Its directory; None: ``journal`` in the store's directory. Each of several workers has its own
            directory, ``worker-1`` and so on below it.
        age: Seconds that files are kept; None: no limit.
        size: Maximum bytes of all files together, the oldest are deleted first; None: no limit.
        file_age: Seconds until a file is complete, and becomes Parquet.
        file_size: Bytes after which it is complete before that.

    Raises:
        ConfigurationError: for an invalid number.
    """

    directory: str | None = None
    age: float | None = 7 * DAY
    size: int | None = 1 << 30
    file_age: float = 900.0
    file_size: int = 64 << 20

    def __post_init__(self) -> None:
        check_settings(self)
