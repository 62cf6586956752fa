"""RunningHandlers: when it reports that all handlers hang, and when that they are free again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.events import Handle
from holdfast.core.handling.running_handlers import REPORT_AFTER, REPORT_EVERY, RunningHandlers
from holdfast.core.records import Record

MOST = 3
STEPS = st.lists(
    st.one_of(
        st.just("begin"),
        st.integers(0, MOST - 1),
        st.sampled_from([1.0, REPORT_AFTER / 2, REPORT_AFTER, REPORT_EVERY]),
    ),
    max_size=40,
)


def handle(number: int) -> Handle:
    return Handle("inbox", 0, number, Record("urn:s", number, "urn:a", b"<m/>", 0.0), 1)


@given(STEPS)
def test_the_log_says_it_when_no_handler_starts_or_ends_for_long(steps: list[str | int | float]) -> None:
    """The state is recomputed from the whole past in each step."""
    handlers, now, begun = RunningHandlers(MOST), 1000.0, 0
    running: dict[int, float] = {}
    quiet_since, told_at = now, None
    for step in steps:
        told = []
        if step == "begin" and len(running) < MOST:
            begun += 1
            running[begun] = quiet_since = now
            handlers.begin(handle(begun), now)
            told_at = told_at if len(running) == MOST else None
        elif isinstance(step, int) and step < len(running):
            ended = list(running)[step]
            del running[ended]
            quiet_since = now
            told = [one.name for one in handlers.end(handle(ended), now)]
            assert told == (["handlers.free"] if told_at is not None else [])
            told_at = None
        elif isinstance(step, float):
            now += step
            found = handlers.pump(now)
            is_stuck = len(running) == MOST and now - quiet_since >= REPORT_AFTER
            is_due = is_stuck and (told_at is None or now - told_at >= REPORT_EVERY)
            assert bool(found) == is_due
            assert (handlers.stuck_since is not None) == is_stuck
            for one in found:
                told_at = now
                oldest = min(running.values())
                assert (one.number, one.detail["seconds"]) == (next(iter(running)), now - oldest)  # type: ignore[index]
        assert len(handlers) == len(running)
        assert handlers.oldest(now) == now - min(running.values(), default=now)
        assert (handlers.due is None) == (len(running) < MOST)
