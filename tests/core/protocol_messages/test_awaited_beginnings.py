"""How long a Sequence may still begin after one of its later messages."""

from __future__ import annotations

from holdfast.core.protocol_messages.awaited_beginnings import MOST_AWAITED, AwaitedBeginnings


def test_it_may_begin_within_the_patience_after_the_first_of_its_later_messages() -> None:
    awaited = AwaitedBeginnings()
    assert awaited.may_still_begin("urn:s", 60.0, 100.0)
    assert awaited.may_still_begin("urn:s", 60.0, 160.0)
    assert not awaited.may_still_begin("urn:s", 60.0, 160.1)
    assert awaited.may_still_begin("urn:s", 60.0, 40.0), "the clock was set back"
    awaited.begun("urn:s")
    assert awaited.may_still_begin("urn:s", 60.0, 500.0)


def test_what_is_remembered_is_bounded_and_the_oldest_is_forgotten() -> None:
    awaited = AwaitedBeginnings()
    for number in range(MOST_AWAITED + 1):
        assert awaited.may_still_begin(f"urn:{number}", 1.0, 0.0)
    assert not awaited.may_still_begin(f"urn:{MOST_AWAITED}", 1.0, 9.0)
    assert awaited.may_still_begin("urn:0", 1.0, 9.0)
