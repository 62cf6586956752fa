"""The command's standard streams: open before anything else runs, and with errors of their own.

A shell may close them (``>&-``), and standard output may be a file on a full disk. The event loop aborts the process if
one of them is closed, and a command must not end with success if its output is lost.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any, BinaryIO, TextIO, cast

from holdfast.exceptions import clause


class OutputError(Exception):
    """Standard output cannot be written. Neither a ``HoldfastError`` nor an ``OSError``: no command handles it."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"cannot write to standard output: {clause(reason)}. Redirect it to a file with space, or to /dev/null. "
            "Changes that the command has made remain."
        )


class _Output(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError("it is closed" if error.errno == errno.EBADF else str(error.strerror)) from error


class _ErrorOutput(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)  # there is no place to report it, and the command's work matters more


def open_standard_streams() -> None:
    """Open the closed ones of file descriptors 0 to 2, and report failures of standard output as OutputError."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # Standard output is opened for reading, so that writing to it still fails.
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8")
    if _is_own(sys.stdout):
        sys.stdout = _text(_Output(1, "w", closefd=False), sys.stdout)
    if _is_own(sys.stderr):
        sys.stderr = _text(_ErrorOutput(2, "w", closefd=False), sys.stderr)


def give_up_output() -> None:
    """Discard the unwritten rest of standard output, so that the interpreter can end without a second error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_own(stream: TextIO | None) -> bool:
    """Whether a stream is the interpreter's own, and not a substitute such as a test's."""
    return stream is None or (type(stream) is io.TextIOWrapper and stream.name in ("<stdout>", "<stderr>"))


def _text(raw: io.FileIO, former: TextIO | None) -> TextIO:
    encoding = "utf-8" if former is None else former.encoding
    errors = "backslashreplace" if former is None else former.errors
    if getattr(former, "write_through", False):  # PYTHONUNBUFFERED
        return io.TextIOWrapper(cast("BinaryIO", raw), encoding, errors, write_through=True)
    is_by_line = raw.isatty() or raw.fileno() == 2
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors, line_buffering=is_by_line)
