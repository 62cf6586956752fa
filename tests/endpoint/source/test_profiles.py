"""The order in which a source tries versions."""

from __future__ import annotations

from holdfast.core.versions import ALL_VERSIONS, Addressing
from holdfast.endpoint.source.profiles import PREFERRED, PROFILES


def test_every_combination_is_tried_once() -> None:
    assert sorted(PREFERRED, key=str) == sorted(ALL_VERSIONS, key=str)


def test_what_wcf_s_bindings_speak_comes_before_anything_with_the_old_addressing() -> None:
    """WSHttpBinding, the commonest, and WS2007HttpBinding."""
    oldest = next(place for place, one in enumerate(PREFERRED) if one.addressing is Addressing.V2004_08)
    assert {PREFERRED.index(PROFILES[name]) for name in ("wcf", "wcf-2007")} == set(range(oldest))
