"""The order in which a source tries versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Source, SourcePolicy
from holdfast.broker.config_file import parse_config
from holdfast.core.versions import ALL_VERSIONS, Addressing
from holdfast.endpoint.source.profiles import BY_PREFERENCE, PREFERRED, PROFILES


def test_every_combination_that_is_in_use_is_tried_once() -> None:
    """The drafts of 2003 and 2004 are used only where they are named: nobody's refusal is worth their attempts."""
    assert sorted(PREFERRED, key=str) == sorted([one for one in ALL_VERSIONS if one.rm in ("1.0", "1.1")], key=str)
    assert sorted(BY_PREFERENCE, key=str) == sorted(ALL_VERSIONS, key=str)


def test_what_wcf_s_bindings_speak_comes_before_anything_with_the_old_addressing() -> None:
    """WSHttpBinding, the commonest, and WS2007HttpBinding."""
    oldest = next(place for place, one in enumerate(PREFERRED) if one.addressing is Addressing.V2004_08)
    assert {PREFERRED.index(PROFILES[name]) for name in ("wcf", "wcf-2007")} == set(range(oldest))


@pytest.mark.parametrize("profile", ["wcf", "wcf-2007"])
def test_what_goes_to_wcf_is_repeated_every_eight_seconds_at_least(profile: str) -> None:
    assert Source("http://service/", ":memory:", profile=profile).policy.retransmission.cap == 8.0
    text = f"[queues.q]\n[forwarders.service]\nqueue = 'q'\nto = 'http://service/'\nprofile = '{profile}'\n"
    (forwarder,) = parse_config(text.encode(), "broker.toml", Path()).forwarders
    assert (forwarder.policy.sending or SourcePolicy()).retransmission.cap == 8.0
