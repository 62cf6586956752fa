"""Without the extra, everything else works, and what needs zeep says how to install it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from order_service import WSDL

LOADS_NO_ZEEP = """
import sys
import holdfast, holdfast.sync
holdfast.Source("http://a.example/", ":memory:"), holdfast.Destination(":memory:", wsdl=sys.argv[1])
from holdfast.cli.main import cli
assert not {"zeep", "requests"} & set(sys.modules), "zeep is loaded"
"""

WITHOUT_ZEEP = """
import asyncio, sys
sys.modules["zeep"] = None
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "zeep" else find(name, *more)
import holdfast

async def call():
    async with await holdfast.Source.from_wsdl(sys.argv[1], ":memory:") as source:
        await source.call("Price", item="nail")

for attempt in (
    lambda: asyncio.run(call()),
    lambda: holdfast.Destination(":memory:", wsdl=sys.argv[1]).operation("Price"),
    lambda: holdfast.zeep,
):
    try:
        attempt()
    except holdfast.ConfigurationError as error:
        assert "pip install 'holdfast[wsdl]'" in str(error), error
    else:
        raise AssertionError("no error")
"""


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program, WSDL], capture_output=True, text=True, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr


def test_nothing_loads_zeep_before_an_operation_is_named() -> None:
    run(LOADS_NO_ZEEP)


def test_without_zeep_each_way_in_says_how_to_install_it() -> None:
    run(WITHOUT_ZEEP)
