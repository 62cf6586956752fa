from __future__ import annotations

import pytest

from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.simulation.grid import BACKOFFS, Cell, Grid, parse_grid


def test_a_grid_is_every_combination_in_order():
    grid = Grid(loss=(0.0, 0.5), delay=(0.01,), window=(4, 8), backoff={"usual": BACKOFFS["usual"]}, sequences=7)
    assert grid.cells == [Cell(loss, 0.01, window, "usual") for loss in (0.0, 0.5) for window in (4, 8)]
    assert grid.total == 28


def test_words_say_what_a_grid_has():
    words = ["loss=0,0.1", "delay=10ms,2", "window=8", "backoff=eager,mine:initial=300ms;cap=2s", "messages=20"]
    grid = parse_grid(words, sequences=5, seed=9)
    mine = RetransmissionPolicy(initial=0.3, cap=2.0)
    expected = Grid((0.0, 0.1), (0.01, 2.0), (8,), {"eager": BACKOFFS["eager"], "mine": mine}, 5, 9, messages=20)
    assert grid == expected


def test_what_is_not_said_is_as_it_always_is():
    assert parse_grid([]) == Grid()


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("los=1", "Did you mean 'loss='"),
        ("loss", "the grid has no 'loss'"),
        ("loss=much", "'loss=much' cannot be read"),
        ("loss=1", "Link.loss cannot be 1.0"),
        ("window=0", "cannot be 0"),
        ("backoff=fast", "'fast' is not one of usual, eager, steady, patient"),
        ("backoff=mine:frist=1s", "a backoff has no 'frist'"),
        ("backoff=mine:floor=9s;cap=1s", "is above cap"),
        ("messages=0", "cannot be 0"),
        ("messages=100000000", "100,000,000 messages of each Sequence, but at most 1,000,000 can be simulated"),
        ("delay=-1", "cannot be -1"),
    ],
)
def test_a_word_that_cannot_be_is_refused_with_its_mend(word: str, told: str):
    with pytest.raises(ConfigurationError, match=told) as caught:
        parse_grid([word])
    assert caught.value.remedy


def test_nothing_to_simulate_is_refused():
    with pytest.raises(ConfigurationError, match="no window"):
        Grid(window=())
    with pytest.raises(ConfigurationError, match="nothing to simulate"):
        Grid(sequences=0)


def test_more_than_anybody_can_mean_is_refused():
    with pytest.raises(ConfigurationError, match="but at most 10,000,000,000 can be simulated"):
        parse_grid(["loss=0"], sequences=10**23)
