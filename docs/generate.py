"""Writes the pages generated from the code: ``python docs/generate.py``. ``tests/docs`` checks that they are current.

It generates a whole page, or the part between a pair of marker lines in a page written by hand. The package
``generation`` makes the texts.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import results
from buffers import table as buffers
from generation import DOCS, configuration, measurements, server, spark
from generation.api import api
from generation.commands import commands
from generation.settings import SETTINGS, settings
from generation.states import states, tables
from policy_assertions import table as policy_assertions

WHOLE: dict[str, Callable[[], str]] = {"reference/api.md": api, "reference/commands.md": commands}
PARTS: dict[str, Callable[[], str]] = {
    **{f"settings {name}": partial(settings, name) for name in SETTINGS},
    "broker keys": configuration.broker_keys,
    "broker example": configuration.broker_example,
    "audit rules": server.audit_rules,
    "journal columns": server.journal_columns,
    "journal events": server.journal_events,
    "kafka topics": configuration.kafka_topics,
    "pipeline keys": configuration.pipeline_keys,
    "pipeline example": configuration.pipeline_example,
    "metrics": server.metrics,
    "pipeline metrics": partial(server.metrics, "pipeline/mediation/execution/metrics.py"),
    "routes": server.routes,
    "incidents": server.incidents,
    "paper": measurements.paper,
    "comparison": measurements.comparison,
    "backlog": measurements.backlog,
    **{f"capacity {part}": partial(measurements.capacity, part) for part in ("model", "simulation")},
    "buffers": buffers,
    "runs": results.runs,
    "scenarios": results.scenarios,
    **{f"interop {peer}": partial(results.interop, peer) for peer in results.PEERS},
    "policy assertions": policy_assertions,
    "spark options": spark.options,
    "spark write options": partial(spark.options, "writer.options", "WriteOptions"),
    "spark columns": spark.columns,
    "spark letters": spark.letters,
    **{f"states {name}": partial(states, name) for name in tables()},
}
_PART = re.compile(r"(<!-- drawn: ([^>]+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def draw(path: Path) -> str:
    """Return the current text of a page.

    Raises:
        KeyError: a marker names an unknown part.
    """
    whole = WHOLE.get(path.relative_to(DOCS).as_posix())
    if whole is not None:
        return whole()
    text = path.read_text(encoding="utf-8")
    if path == DOCS / "reference" / "conformance.md":
        text = results.conformance(text)
    return _PART.sub(lambda match: f"{match[1]}\n{PARTS[match[2]]()}\n\n{match[4]}", text)


def pages() -> list[Path]:
    """Return every page that is generated, wholly or in part."""
    drawn = {DOCS / name for name in WHOLE}
    return sorted(drawn | {path for path in DOCS.rglob("*.md") if "<!-- drawn: " in path.read_text(encoding="utf-8")})


def main() -> None:
    """Write the pages that are not current."""
    for path in pages():
        text = draw(path)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"{path.relative_to(DOCS.parent)}\n")


if __name__ == "__main__":
    main()
