"""How long the project's own answers ask peers to wait."""

from __future__ import annotations

import re
from pathlib import Path

import holdfast
from holdfast.http.retry_after import retry_after, spread


def test_peers_that_are_put_off_together_come_back_apart() -> None:
    assert {spread(1) for _ in range(1000)} == {1, 2, 3}
    assert {spread(5) for _ in range(1000)} == set(range(5, 11))
    assert retry_after(0) == ()


def test_no_answer_of_ours_has_a_fixed_retry_after() -> None:
    fixed = re.compile(r"""Retry-After(?:: ?|"[^"\n]*")\d|retry_after=\d+\)""", re.I)
    sources = Path(holdfast.__file__).parent.rglob("*.py")
    found = {path.name for path in sources for line in path.read_text().splitlines() if fixed.search(line)}
    # Refusals are spread where they are sent; those of SAML pause sending, and are no answers.
    assert found == {"refusals.py", "saml_token.py"}
