"""Admin routes for the event journal: list its files, and send them unchanged.

A reader of the journal needs no access to the disk, and the server needs no pyarrow. Knows nothing of the content of
a file.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from holdfast.endpoint.admin.numbering import Numbering, numbering_of
from holdfast.endpoint.admin.paging import page_of
from holdfast.endpoint.admin.routes import Asked, Joined, Refused, route
from holdfast.endpoint.admin.shapes.answers import JournalList
from holdfast.endpoint.admin.shapes.requests import OctetsQuery, Page
from holdfast.endpoint.destination.running_destination import RunningDestination
from holdfast.endpoint.journal.files import Segment, made_parquet, open_segment, segments
from holdfast.endpoint.journal.writer import Journal

OCTETS = "application/octet-stream"
PIECE = 1 << 18
"""Bytes that are read at a time."""


class JournalRoutes:
    """Answers for one destination."""

    def __init__(self, app: RunningDestination) -> None:
        self._app = app

    def _journal(self) -> Journal:
        journal = self._app.journal
        if journal is None:
            raise Refused(
                404,
                "this server has no event journal",
                "Start it with --journal DIRECTORY, or with its store in a directory, which then contains a journal.",
            )
        return journal

    @route("GET", "journal", JournalList, Page, errors=(404,), joined=Joined.PAGES)
    async def _list(self, asked: Asked) -> object:
        """List the files of the event journal, oldest first."""
        there = await asyncio.to_thread(segments, self._journal().directory)
        shown, following = page_of([((one.name,), one) for one in there], asked.query)
        total = sum(one.size for one in there)
        return {"files": [self._shown(one) for one in shown], "count": len(there), "bytes": total, "next": following}

    def _shown(self, one: Segment) -> dict[str, object]:
        worker = self._app.worker
        return {
            "file": numbering_of(self._app).mark(one.file),
            "bytes": one.size,
            "begun": one.begun,
            "written": one.written,
            "sealed": not one.is_live,
            "worker": worker.number if worker is not None else None,
        }

    @route("GET", "journal/{file}", OCTETS, OctetsQuery, errors=(404, 416), joined=Joined.STREAM)
    async def _read(self, asked: Asked, file: str) -> None:
        """Read a file of the event journal, or a part of it."""
        directory, exchange, numbers = self._journal().directory, asked.exchange, numbering_of(self._app)
        file = numbers.own_name(file)
        found = await asyncio.to_thread(open_segment, directory, file)
        if found is None:
            raise await asyncio.to_thread(_missing, directory, file, numbers)
        with found:
            size = os.fstat(found.fileno()).st_size
            at, end = asked.query.start, size if asked.query.end is None else asked.query.end
            if not at <= end <= size:
                raise Refused(416, f"{file} has {size:,} bytes", "Request fewer bytes.", detail={"bytes": size})
            exchange.start(200, OCTETS.encode())
            while at < end and exchange.wants_content:
                data = await asyncio.to_thread(os.pread, found.fileno(), min(PIECE, end - at), at)
                if not data:
                    break  # it was cut off meanwhile: who asked for so many bytes sees that some are missing
                at += len(data)
                if not exchange.write(data):
                    await exchange.drain()
            exchange.finish()


def _missing(directory: Path, file: str, numbers: Numbering) -> Refused:
    made = made_parquet(directory, file)
    if made is not None:
        return Refused(
            404,
            f"{file[:200]} has been converted to Parquet",
            f"Ask for {numbers.mark(made.file)}.",
            detail={"file": numbers.mark(made.file), "bytes": made.size},
        )
    return Refused(
        404,
        f"the journal has no file {file[:200]}: it was deleted, or never existed",
        "List the files, then read those, as holdfast audit does.",
    )
