"""The table of every buffer: it has each constant that counts bytes, names what there is, and adds up."""

from __future__ import annotations

import ast
import importlib
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

import holdfast
from holdfast.http.exchange import HTTPLimits
from holdfast.wire.limits import Limits

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = ROOT / "src" / "holdfast"
ROOMS = ("core", "endpoint", "http", "store", "broker", "config", "client", "wire")
IS_CONSTANT = re.compile(r"_?[A-Z][A-Z_0-9]+")
COUNTS_BYTES = re.compile(r"_?(?:[A-Z]+_)*(?:BYTES|MEGABYTES|WATER)|_?LARGEST_[A-Z_]+")
LEAST = 1 << 16
"""A number from which on it may count bytes, whatever its constant is called."""
CONSTANT = re.compile(r"`((?:core|endpoint|http|store)\.[a-z_.]+)\.([A-Z_]+)`")
SETTING = re.compile(r"`(\w*(?:Policy|Limits))\.(\w+)`")
BUFFERS = SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "buffers.py")))
MOST = 7 << 30
"""Bytes of a process in which every buffer is full at one time."""


def constants() -> set[tuple[str, str]]:
    """Room and name of each constant that may count bytes."""
    found = set()
    for room in ROOMS:
        for file in sorted((SOURCES / room).rglob("*.py")):
            module = ".".join(file.relative_to(SOURCES).with_suffix("").parts)
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                found.update(
                    (module, one.id) for one in targets if isinstance(one, ast.Name) and counts(module, one.id)
                )
    return found


def counts(module: str, name: str) -> bool:
    """Whether a name at the top of a module may be that of a number of bytes."""
    if COUNTS_BYTES.fullmatch(name):
        return True
    value = getattr(importlib.import_module(f"holdfast.{module}"), name) if IS_CONSTANT.fullmatch(name) else None
    return type(value) is int and value >= LEAST


def test_every_constant_that_may_count_bytes_is_in_the_table_or_said_to_be_no_buffer() -> None:
    in_table = {(room, name) for room, names in BUFFERS.HERE.items() for name in names}
    no_buffers = {(room, name) for room, names in BUFFERS.NO_BUFFERS.items() for name in names}
    assert not in_table & no_buffers
    assert constants() == in_table | no_buffers


def test_the_table_shows_the_constants_that_it_says_it_has() -> None:
    shown = {found for one in (*BUFFERS.PROCESS, *BUFFERS.WORKER) for found in CONSTANT.findall(one.where)}
    missing = {(room, name) for room, names in BUFFERS.HERE.items() for name in names} - shown
    # Those that are a part of what a row counts, which another constant names.
    assert missing <= {
        ("endpoint.admin.data_plane.record_stream", "BLOCK_BYTES"),
        ("http.client.connection", "MAX_HEAD_BYTES"),
        ("store.rocksdb.opening", "MEMTABLE_BYTES"),
    }


@pytest.mark.parametrize("row", [*BUFFERS.PROCESS, *BUFFERS.WORKER], ids=lambda row: row.what[:40])
def test_what_a_row_names_is_in_the_code(row: SimpleNamespace) -> None:
    named = CONSTANT.findall(row.where) + SETTING.findall(row.where)
    assert named, row.where
    for room, name in CONSTANT.findall(row.where):
        assert isinstance(getattr(importlib.import_module(f"holdfast.{room}"), name), int)
    for kind, name in SETTING.findall(row.where):
        owner = getattr(holdfast, kind, None) or {"HTTPLimits": HTTPLimits, "Limits": Limits}.get(kind)
        owner = owner or getattr(importlib.import_module("holdfast.core.policy"), kind)
        assert name in owner.__dataclass_fields__
    assert row.bytes > 0


def test_all_bounds_together_are_the_sums_on_the_page_and_within_the_limit() -> None:
    page = (ROOT / "docs" / "reference" / "memory.md").read_text(encoding="utf-8")
    totals = [sum(row.bytes for row in rows) for rows in (BUFFERS.PROCESS, BUFFERS.WORKER)]
    assert re.findall(r"\| \*\*all of these\*\* \| \*\*([\d,]+) MB\*\* \|", page) == [
        f"{total / (1 << 20):,.0f}" for total in totals
    ]
    assert sum(totals) <= MOST
