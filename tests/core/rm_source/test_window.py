"""Window: what each kind of evidence does to the number of messages in flight."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.rm_source.window import MOST_UNPAID, PRICE, Early, Window


def grown(size: int, most: int = 32) -> Window:
    window = Window(1, most, 0.0)
    for _ in range(size - 1):
        window.arrived(behind=True)
    assert window.size == size
    return window


def pay(window: Window, messages: int = PRICE) -> None:
    for _ in range(messages):
        window.arrived(behind=False)


def test_each_message_that_arrives_opens_the_window_by_one_while_nothing_was_dropped() -> None:
    window = Window(4, 6, 0.0)
    sizes = []
    for _ in range(4):
        window.arrived(behind=False)
        sizes.append(window.size)
    assert sizes == [5, 6, 6, 6]


def test_messages_dropped_together_halve_the_window_once() -> None:
    window = grown(16)
    for _ in range(5):
        window.dropped(sent_at=1.0, now=1.5)
    assert window.size == 8
    window.dropped(sent_at=2.0, now=2.5)
    assert window.size == 4


def test_the_window_is_never_below_one() -> None:
    window = grown(2)
    for at in range(1, 6):
        window.dropped(float(at), at + 0.5)
    assert window.size == 1


def test_each_dropped_message_is_paid_for_before_the_window_grows_again() -> None:
    window = grown(2)
    window.dropped(1.0, 1.5)
    window.dropped(1.0, 1.5)
    pay(window, 2 * PRICE)
    assert window.size == 1
    pay(window, 1)
    assert window.size == 2


def test_what_is_to_be_paid_is_bounded() -> None:
    window = grown(2)
    for at in range(1, 100):
        window.dropped(float(at), at + 0.5)
    pay(window, MOST_UNPAID + 1)
    assert window.size == 2


def test_above_one_the_window_grows_only_with_messages_that_were_sent_behind_others() -> None:
    window = grown(2)
    window.dropped(1.0, 1.5)
    pay(window, PRICE + 1)
    pay(window, 1000)
    assert window.size == 2, "a caller that waits for each acknowledgement shows nothing"
    for _ in range(3):
        window.arrived(behind=True)
    assert window.size == 3


def test_a_destination_that_takes_early_messages_drops_none() -> None:
    window = grown(8)
    window.dropped(1.0, 1.5)
    window.takes_early()
    assert window.early is Early.TAKES
    window.dropped(2.0, 2.5)
    assert window.size == 4
    for _ in range(4):
        window.arrived(behind=False)
    assert window.size == 8


@pytest.mark.parametrize("early", list(Early))
def test_a_loss_halves_the_window_once_in_each_timeout_and_leaves_one(
    early: Early,
) -> None:
    window = grown(16)
    window.early = early
    window.lost(1.0, 0.5)
    assert window.size == 16
    window.lost(1.0, 1.0)
    window.lost(1.0, 1.5)
    assert window.size == 8
    window.narrow()
    assert window.size == 1


@given(st.integers(1, 64), st.lists(st.booleans(), max_size=40))
def test_where_each_second_message_of_a_window_is_dropped_few_are_sent_in_vain(most: int, keeps: list[bool]) -> None:
    window = Window(4, most, 0.0)
    now, arrived, dropped = 0.0, 0, 0
    while arrived < 2_000:
        now += 1.0
        size = window.size
        assert 1 <= size <= max(4, most)
        is_dropping = size > 1 and not (keeps and keeps.pop())
        for number in range(size):
            if is_dropping and number % 2:
                window.dropped(now, now + 0.5)
                dropped += 1
            arrived += 1
            window.arrived(behind=number > 0)
    assert dropped <= most + arrived / PRICE
