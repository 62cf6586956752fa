"""The paper's table: the paper's own figures agree with each other, each row does what it says, and all of it runs."""

from __future__ import annotations

import asyncio
import math
import re
from pathlib import Path
from typing import Any

import pytest

from bench.paper import operations, plots, whole
from bench.paper import table as paper
from holdfast import wire
from holdfast.core.messages import CreateSequence, CreateSequenceResponse, Envelope
from holdfast.store.rocksdb.store import RocksDBStore


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[paper.Row]:
    return paper.measure(2, tmp_path_factory.mktemp("stores"), lambda _done, _total, _name: None)


def test_the_figures_that_were_copied_agree_with_each_other() -> None:
    assert len(paper.PAPER) == 17
    for name, row in paper.PAPER.items():
        # The paper cuts off what it does not round.
        assert row.error == pytest.approx(row.deviation / math.sqrt(100 - row.outliers), abs=0.011), name
        assert row.smallest <= row.mean <= row.largest, name


def test_every_row_of_the_paper_is_measured_or_says_why_not(rows: list[paper.Row]) -> None:
    found = [row for row in rows if row.printed is not None]
    assert [row.name for row in found] == list(paper.PAPER)
    assert [row.name for row in found if not row.times] == list(paper.LEFT_OUT)
    assert all(row.remark for row in found if not row.times)


def test_each_run_is_counted_and_its_memory_seen(rows: list[paper.Row]) -> None:
    for row in rows:
        if row.times:
            assert len(row.times) == len(row.memory) == 2, row.name
            assert min(row.times) > 0, row.name
            assert row.held is not None and row.held >= 0, row.name


def run(name: str) -> Any:
    return operations.of_paper()[name].run()


def test_the_envelopes_that_are_written_say_what_their_rows_say() -> None:
    parsed = run("Parse an envelope to its WSA message information headers")
    assert isinstance(parsed, Envelope)
    assert (parsed.to, parsed.action, parsed.message_id) == (
        operations.SERVICE,
        operations.ACTION,
        operations.MESSAGE_ID,
    )
    targeted = wire.decode(run("Create an envelope targeted to an EPR"))
    assert (targeted.to, len(targeted.reference_parameters or targeted.headers)) == (operations.SERVICE, 1)
    most = wire.decode(run("Same, with most WSA message information headers"))
    assert most.reply_to and most.fault_to and most.from_ and most.relates_to and most.message_id
    assert isinstance(wire.decode(run("Create a CreateSequence request")).control, CreateSequence)
    assert isinstance(wire.decode(run("Create a CreateSequenceResponse")).control, CreateSequenceResponse)
    fault = wire.decode(run("Create a WSRM fault")).fault
    assert fault is not None and fault.code == "UnknownSequence"
    assert run("Add a Sequence element to an existing envelope").sequence.message_number == 4


def test_an_acknowledgement_of_a_set_covers_exactly_the_set() -> None:
    for count, highest in ((10, 14), (996, 1000)):
        numbers = operations.some_numbers(count, highest)
        written = operations.acknowledgement_of(numbers)()
        said = re.findall(r'Lower="(\d+)" Upper="(\d+)"', written)
        covered = {number for lower, upper in said for number in range(int(lower), int(upper) + 1)}
        assert covered == numbers


@pytest.mark.parametrize(("kind", "stored"), [(whole.source, 4), (whole.sink, 3)])
def test_what_is_processed_whole_was_stored(kind: Any, stored: int, tmp_path: Path) -> None:
    """The source's first message opens its Sequence."""

    async def process() -> None:
        async with kind(tmp_path / "store", 1_000) as prepare:
            for _ in range(3):
                await prepare()()

    asyncio.run(process())
    store = RocksDBStore(tmp_path / "store")
    assert sum(end for _, end in store.load().bounds.values()) == stored
    store.close()


def test_a_body_has_the_size_it_is_to_have() -> None:
    assert [len(whole.body_of(size)) for size in whole.SIZES] == list(whole.SIZES)


@pytest.mark.nightly
def test_the_runs_are_drawn(rows: list[paper.Row], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need it: pip install 'holdfast[bench]'")
    files = plots.draw(rows, tmp_path / "figures")
    assert [file.name for file in files] == ["overview.png", "times.png", "memory.png", "whole.png"]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
