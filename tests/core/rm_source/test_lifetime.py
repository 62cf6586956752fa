"""The granted life of a Sequence, and its peer's signs of life."""

from __future__ import annotations

from holdfast.core.rm_source.lifetime import Lifetime


def test_a_granted_life_passes_and_an_endless_one_does_not() -> None:
    life = Lifetime(0.0)
    life.grant(10.0, 5.0)
    assert (life.last_heard, life.is_over(14.9), life.is_over(15.0)) == (5.0, False, True)
    life.grant(None, 5.0)
    assert not life.is_over(1e9)


def test_a_clock_that_was_set_back_grants_no_longer_life() -> None:
    life = Lifetime(0.0)
    life.restore(10.0, 100.0, 5.0)
    assert life.expires_at == 15.0
    life.restore(None, 100.0, 5.0)
    assert life.expires_at == 100.0


def test_a_sequence_that_outlives_its_life_has_it_once_more() -> None:
    life = Lifetime(0.0)
    life.grant(10.0, 0.0)
    life.outlive(10.0)
    assert life.outlives and not life.is_over(19.0) and life.is_over(20.0)


def test_silence_is_counted_from_the_newest_sign_of_life_or_transmission() -> None:
    life = Lifetime(0.0)
    life.heard(10.0)
    assert not life.is_silent(None, 5.0, 15.0) and life.is_silent(None, 5.0, 15.1)
    assert not life.is_silent(14.0, 5.0, 19.0) and life.is_silent(14.0, 5.0, 19.1)
