"""The log of Spark's source and sink: whole lines, in a process that configures no logging."""

from __future__ import annotations

import re
import subprocess
import sys

CODE = """
from holdfast.pipeline.reader.bounds import refuse_or_tell
from holdfast.pipeline.reader.options import ReadOptions
from holdfast.client.offsets import Range
options = {"broker": "http://h:1", "reader": "r", "failOnDataLoss": "false"}
refuse_or_tell([("orders", Range(3, 0, 20))], ReadOptions.parse(options), "this stream has not read")
"""


def test_a_line_has_time_level_event_and_reader_without_any_configuration() -> None:
    told = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=300, check=True).stderr
    what = "20 records that this stream has not read are deleted, and skipped: queue orders partition 3 offsets 0 to 19"
    line = rf"timestamp='[-0-9]+T[:.0-9]+Z' level='warning' event='records.skipped' reader='r' rows=20 what='{what}'\n"
    assert re.fullmatch(line, told), told
