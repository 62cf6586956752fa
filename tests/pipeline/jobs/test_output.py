"""The output of Spark commands: sentences, and with --json the same as lines of JSON."""

from __future__ import annotations

import json
import queue
from collections import Counter
from contextlib import nullcontext

import pytest
from click.testing import CliRunner

from holdfast.exceptions import HoldfastError
from holdfast.pipeline.jobs import compact as compact_job
from holdfast.pipeline.jobs.command import failure, in_a_sentence, sentence
from holdfast.pipeline.jobs.land import _report
from holdfast.pipeline.jobs.mediation import _SAFE, _tell
from holdfast.pipeline.jobs.output import sparse
from holdfast.pipeline.jobs.reassemble import _text
from holdfast.pipeline.landing import compaction
from holdfast.pipeline.landing.compaction import Compaction
from holdfast.pipeline.landing.tables import LandedBatch
from holdfast.pipeline.mediation.execution.batches import MediatedBatch
from holdfast.pipeline.mediation.execution.metrics import PipelineCollector
from holdfast.pipeline.reassembly.report import Figures


def test_a_landed_batch_is_a_sentence_without_offsets(capsys: pytest.CaptureFixture[str]) -> None:
    ends = json.dumps({f"orders/{number}": 0 for number in range(128)})
    progress = {"sources": [{"endOffset": ends, "latestOffset": ends}], "durationMs": {"triggerExecution": 1234}}
    _report(progress, LandedBatch(0, 1, 0, None), 1)
    _report(progress, LandedBatch(7, 2000, 3, ("orders", 5, 12, "id is missing"), {"order": 1500, "other": 500}), 2001)
    assert capsys.readouterr().out.splitlines() == [
        "batch 0: 1 message in 1.2 s, 1 in all",
        "batch 7: 2,000 messages (order 1,500, other 500) in 1.2 s, 2,001 in all; "
        "3 flagged, first offset 12 of orders, partition 5: id is missing",
    ]


def test_texts_of_peers_in_a_sentence_steer_no_terminal_and_make_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "'\x1b[2J\r\n0 violations\u202e' is not an integer"
    progress = {"sources": [{"endOffset": "{}", "latestOffset": "{}"}], "durationMs": {}}
    _report(progress, LandedBatch(0, 2, 1, ("orders", 0, 1, hostile)), 2)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith(r"partition 0: '\x1b[2J\r\n0 violations\u202e' is not an integer")


def test_a_batch_of_a_pipeline_names_what_did_not_arrive(capsys: pytest.CaptureFixture[str]) -> None:
    batches: queue.SimpleQueue[MediatedBatch] = queue.SimpleQueue()
    batches.put(MediatedBatch("incoming", 0, 5, {"first": 3, "others": 1}, 1, 2, False, seconds=3.41))
    batches.put(MediatedBatch("incoming", 1, 5, {"first": 5}, 0, 0, True, 2))
    _tell(batches, Counter(), PipelineCollector({"incoming": ["first", "others"]}))
    assert capsys.readouterr().out.splitlines() == [
        "incoming batch 0: 5 messages read in 3.4 s, 3 to first, 1 to others, 1 dead letter, 2 late rows",
        "incoming batch 1: 5 messages read in 0.0 s, 5 to first, 2 records sent before, settled by an earlier attempt",
    ]


def test_positions_in_json_omit_partitions_without_records() -> None:
    many = {str(one): 0 for one in range(128)}
    assert sparse({"orders": {**many, "5": 7}}) == {"orders": {"5": 7}}
    offset = {"v": 1, "queue": "orders", "epoch": "e", **many, "3": 9, "orders/4": 0, "orders/5": 2}
    assert sparse(offset) == {"v": 1, "queue": "orders", "epoch": "e", "3": 9, "orders/5": 2}
    assert sparse(None) is None


def test_a_failed_batch_of_many_partitions_is_one_short_sentence() -> None:
    start, end = ({str(one): at for one in range(128)} for at in (0, 5))
    text = f"ValueError: no\nCurrent Committed Offsets: {{X: {json.dumps(start)}}}\n"
    told = sentence(text + f"Current Available Offsets: {{X: {json.dumps(end)}}}\n")
    assert "partition 7 offsets 0 to 5 and 120 more" in told
    assert len(told) < 400


def test_partitions_without_messages_are_not_named_for_a_failed_batch() -> None:
    end = {"orders/0": 0, "orders/1": 0, "orders/2": 7}
    text = "ValueError: no\nCurrent Committed Offsets: {}\n"
    told = sentence(f"{text}Current Available Offsets: {{X: {json.dumps(end)}}}\n")
    assert told == "the batch of queue orders partition 2 offsets its first to 7 failed: ValueError: no"


FRAMES = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/usr/lib/python3.11/site-packages/pyspark/worker.py", line 7, in main
  File "<frozen runpy>", line 1, in main
{}ValueError: customer boom is not for me
"""


def test_the_failure_of_a_users_function_names_it_and_does_not_say_start_again() -> None:
    own = '  File "/srv/holdfast/own.py", line 6, in risky\n'
    told = failure(FRAMES.format(own), "Rows are safe", "start again to continue")
    assert told.message == "ValueError: customer boom is not for me, raised by risky (/srv/holdfast/own.py, line 6)"
    assert "`problems`" in told.remedy
    assert "start again" not in told.remedy
    asked: list[object] = []
    for steps, more in ((["clean"], ", in the step clean"), (["clean", "price"], ", in the step clean or price")):
        named = failure(FRAMES.format(own), "Rows are safe", calling=lambda frames, s=steps: asked.append(frames) or s)
        assert named.message == told.message + more
    assert asked == [[("/srv/holdfast/own.py", "6", "risky")]] * 2
    other = failure(FRAMES.format(""), "Rows are safe", "start again to continue")
    assert other.message == "ValueError: customer boom is not for me"
    assert other.remedy == "Rows are safe; start again to continue"


@pytest.mark.parametrize("remedy", [_SAFE, "Landed rows are safe", "Nothing was changed"])
def test_the_end_of_java_gives_each_hint_once(remedy: str) -> None:
    with pytest.raises(HoldfastError) as caught, in_a_sentence(remedy):
        raise ConnectionError
    assert caught.value.remedy == f"{remedy}; start again to continue"


def test_the_figures_of_a_reassembly_are_a_sentence() -> None:
    figures = Figures(2, 1, 0, 1, 12, 13, 1, 0, {})
    assert _text(figures) == "2 Sequences (1 complete, 1 of unknown end); 12 messages, 1 repeat dropped, 0 missing"


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        ([], "4 files became 1; 2 replaced files deleted"),
        (["--json"], '{"event": "end", "replaced": 4, "made": 1, "deleted": 2}'),
    ],
)
def test_json_is_printed_only_if_the_command_is_told_so(
    monkeypatch: pytest.MonkeyPatch, options: list[str], printed: str
) -> None:
    monkeypatch.setattr(compact_job, "command_session", lambda *_, **__: nullcontext())
    monkeypatch.setattr(compaction, "compact", lambda *_, **__: Compaction(4, 1, 2))
    result = CliRunner().invoke(compact_job.compact_command, ["--out", "landed", *options])
    assert result.stdout == printed + "\n", result.output
