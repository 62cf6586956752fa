"""The events of workers and of a cluster that the log can have, and those that its reference lists: the same."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LOGGED = re.compile(r"""(?:\blog\.|\b_?report\(")(\w+)(?:\(|",)\s*"((?:cluster|worker)\.\w+)"((?:[^()]|\([^()]*\))*)""")
ROW = re.compile(r"^\| (`(?:cluster|worker)\.[^|]*) \| (\w+) \| ([^|]*) \|", re.MULTILINE)
WORD = re.compile(r"`([\w.]+)`")


def test_every_event_of_workers_and_nodes_is_documented_with_its_level_and_fields() -> None:
    logged: dict[str, tuple[str, set[str]]] = {}
    for path in (ROOT / "src").rglob("*.py"):
        for level, event, rest in LOGGED.findall(path.read_text(encoding="utf-8")):
            fields = set(re.findall(r"\b(\w+)=(?!=)", rest))
            logged[event] = level, fields | logged.get(event, (level, set()))[1]
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    documented = {
        event: (level, set(WORD.findall(fields)))
        for events, level, fields in ROW.findall(page)
        for event in WORD.findall(events)
    }
    assert len(logged) > 15
    assert logged == documented
