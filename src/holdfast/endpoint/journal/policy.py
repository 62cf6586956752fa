"""Settings of an event journal. A separate module, so that code that only reads settings need not load the writer."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.settings import Bytes, Directory, Seconds, check_settings

DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class JournalPolicy:
    """Where an event journal is and how long it is kept.

    Args:
        directory: Directory of the journal. None: ``journal`` in the store's directory; a store in a database has no
            directory, so there is no journal then. Each of several workers writes to its own directory below it,
            ``worker-1`` and so on.
        age: Seconds for which files are kept. None: no limit.
        size: Bytes of all files together. Above it, the oldest files are deleted. None: no limit.
        file_age: Seconds after which a file is closed and converted to Parquet.
        file_size: Bytes at which this happens earlier.

    Raises:
        ConfigurationError: for an invalid number.
    """

    directory: Directory | None = None
    age: Seconds | None = 7 * DAY
    size: Bytes | None = 1 << 30
    file_age: Seconds = 900.0
    file_size: Bytes = 64 << 20

    def __post_init__(self) -> None:
        check_settings(self)
