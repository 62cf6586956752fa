"""A version of WS-ReliableMessaging that does not exist: one row, one dialect, and everything speaks it.

The package is copied, the row and the dialect are put into the copy, and the copy runs in a process of its own.

Covers wire/dialects/dialect.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

PACKAGE = Path(holdfast.__file__).parent

ROW = """
    V2_0 = (
        "2.0",
        Capabilities(
            addressing=(Addressing.V2005_08,),
            faults=_FAULTS | {exceptions.LastMessageNumberExceeded.code},
            closes=False,
            answers_terminate=True,
            marks_last=True,
            has_last_message=True,
            names_last_number=False,
            has_final=True,
            acknowledges_nothing=True,
            offers_endpoint=False,
            rollover_ends=False,
        ),
    )

"""
"""A mixture that no real version is."""

DIALECT = """
from holdfast.core.versions import RM
from holdfast.wire.dialects.dialect import Dialect

DIALECT = Dialect(
    rm=RM.V2_0,
    namespace="urn:made-up:rm",
    policy_assertions=("{urn:made-up:policy}RMAssertion",),
    nothing_accepted="<wsrm:None/>",
    range_of_nothing=None,
    detail_wrapped=False,
    has_behavior=False,
    fault_action="/oops",
)
"""

TALK = """
import asyncio, sys
import holdfast
from holdfast.core.messages import CloseSequence, Envelope, LastMessage, Sequence
from holdfast.core.states.drawing import diagram
from holdfast.core.states.inbound import DESTINATION_TABLES, DestinationState
from holdfast.core.versions import ALL_VERSIONS, RM
from holdfast.testing import lossy, pair
from holdfast.wire import action_of, decode, encode

made_up = holdfast.Versions("2.0", "2005/08", "1.1")
assert [versions for versions in ALL_VERSIONS if versions.rm is RM.V2_0] == [made_up, holdfast.Versions("2.0")]
try:
    holdfast.Versions("2.0", "2004/08")
except holdfast.ConfigurationError:
    pass
else:
    raise AssertionError("it is not defined with 2004/08")

last = Envelope(made_up.soap, made_up.addressing, made_up.rm, control=LastMessage())
last.sequence = Sequence("urn:s", 3, True)
said = encode(last)
assert b"urn:made-up:rm/LastMessage" in said, said
assert decode(said).rm is RM.V2_0 and isinstance(decode(said).control, LastMessage)
try:
    encode(Envelope(made_up.soap, made_up.addressing, made_up.rm, control=CloseSequence("urn:s")))
except holdfast.ConfigurationError as error:
    assert "WS-RM 2.0 has no CloseSequence" in str(error), error
else:
    raise AssertionError("it has no CloseSequence")

states = {state for state, event in DESTINATION_TABLES[RM.V2_0]}
assert DestinationState.CLOSED not in states and DestinationState.TERMINATING in states
assert "closed" not in diagram("destination-2.0")

seen = []
app = holdfast.Destination(assurance="exactly-once in-order")

@app.on("urn:orders/Submit")
async def submit(message: holdfast.Message) -> None:
    seen.append(message.body.text)

@app.on("urn:orders/Price")
def price(message: holdfast.Message) -> str:
    return f"<price>{message.body.text}</price>"

async def talk() -> None:
    async with pair(app, network=lossy(0.3, seed=int(sys.argv[1])), versions=made_up) as source:
        for number in range(20):
            await source.send(f"<order>{number}</order>", action="urn:orders/Submit")
        reply = await source.request("<item>7</item>", action="urn:orders/Price")
        assert reply.body.text == "7"
        assert {one.versions for one in app.running.engine.protocol.inbound.destinations.values()} == {made_up}

asyncio.run(talk())
assert seen == [str(number) for number in range(20)], seen
print("spoken")
"""


def made(tmp_path: Path, *, dialect: str = DIALECT, entered: bool = True) -> Path:
    """A copy of the package with one version more."""
    package = tmp_path / "holdfast"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    versions = package / "core" / "versions.py"
    text = versions.read_text()
    end = "\n\nRM_OF_NAME"
    assert text.count(end) == 1
    versions.write_text(text.replace(end, ROW.rstrip() + "\n" + end))
    if entered:
        dialects = package / "wire" / "dialects"
        (dialects / "rm_209901.py").write_text(dialect)
        table = dialects / "versions.py"
        text = table.read_text()
        for known, more in (
            ("import rm_200303, rm_200403,", "import rm_209901, rm_200303, rm_200403,"),
            ("in (rm_200303.DIALECT,", "in (rm_209901.DIALECT, rm_200303.DIALECT,"),
        ):
            assert text.count(known) == 1, known
            text = text.replace(known, more)
        table.write_text(text)
    return tmp_path


def run(place: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it with the copy in the place of the package."""
    environment = {**os.environ, "PYTHONPATH": str(place)}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_made_up_version_is_one_row_and_one_dialect(tmp_path: Path, seed: int) -> None:
    place = made(tmp_path)
    spoken = run(place, TALK, str(seed))
    assert (spoken.returncode, spoken.stdout) == (0, "spoken\n"), spoken.stderr


def test_a_version_without_a_dialect_is_an_error_at_import(tmp_path: Path) -> None:
    place = made(tmp_path, entered=False)
    refused = run(place, "import holdfast.wire")
    assert refused.returncode != 0
    assert "WS-RM 2.0 has no dialect" in refused.stderr
