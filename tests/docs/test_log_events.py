"""The events of workers, of a cluster and of security in the code, and those that the reference lists: the same."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
ROOMS = "cluster|worker|security|certificate"
LOGGED = re.compile(rf"""(?:\blog\.|\b_?report\(")(\w+)(?:\(|",)\s*"((?:{ROOMS})\.\w+)"((?:[^()]|\([^()]*\))*)""")
NAMED = re.compile(rf"""^[A-Z_]+(?:: Final)? = "((?:{ROOMS})\.\w+)"$""", re.MULTILINE)
"""Events that are constants, logged by the one call of their module with ``self._event``."""
OF_NAMED = re.compile(r"""\blog\.(\w+)\(self\._event, ((?:[^()]|\([^()]*\))*)""")
ROW = re.compile(rf"^\| (`(?:{ROOMS})\.[^|]*) \| (\w+) \| ([^|]*) \|", re.MULTILINE)
WORD = re.compile(r"`([\w.]+)`")


def test_every_event_of_nodes_and_security_is_documented_with_its_level_and_fields() -> None:
    logged: dict[str, tuple[str, set[str]]] = {}
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        named = [(level, event, rest) for event in NAMED.findall(text) for level, rest in OF_NAMED.findall(text)]
        for level, event, rest in [*LOGGED.findall(text), *named]:
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
