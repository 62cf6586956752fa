"""Recorded measurements as tables."""

from __future__ import annotations

import json
from typing import Any

from generation import DOCS


def paper() -> str:
    """Return the recorded output of ``python -m bench.paper --json`` as a table with notes."""
    rows = json.loads((DOCS / "internals" / "paper" / "run.json").read_text(encoding="utf-8"))["rows"]
    lines = [
        "| operation | 2005 | here | times as fast | deviation | error | outliers | min | max | memory | 2005 |",
        "| --- |" + " ---: |" * 10,
    ]
    notes: dict[str, int] = {}
    for row in rows:
        name, here, printed = row["operation"], row["here"], row["paper"]
        if row["remark"]:
            name += f" ({notes.setdefault(row['remark'], len(notes) + 1)})"
        then = f"{row['paper_mean']:,.2f}" if row["paper_mean"] is not None else ""
        figures = [""] * 8
        if here is not None:
            ratio = f"{row['times_as_fast']:.1f}" if row["times_as_fast"] is not None else ""
            middle = [f"{here[one]:,.2f}" for one in ("deviation", "error")]
            ends = [f"{here[one]:,.2f}" for one in ("smallest", "largest")]
            figures = [f"{here['mean']:,.2f}", ratio, *middle, str(here["outliers"]), *ends, f"{row['memory']:,}"]
        memory = f"{printed['memory']:,}" if printed is not None else ""
        lines.append(f"| {' | '.join([name, then, *figures, memory])} |")
    return "\n".join([*lines, "", *(f"{number}. {note}" for note, number in notes.items())])


def _run_of(name: str) -> Any:
    return json.loads((DOCS / "internals" / "runs" / f"{name}.json").read_text(encoding="utf-8"))


def _conditions(run: Any) -> str:
    return (
        f"{run['date']}, {run['processors']} processors, {run['python']}; processes that wanted a processor: "
        f"{run['load_before']} before, {run['load_after']} at the end, including the measured ones."
    )


def _table(columns: str, rows: list[list[str]]) -> str:
    names = columns.split("|")
    lines = [f"| {' | '.join(names)} |", "| --- |" + " ---: |" * (len(names) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _quantiles(row: Any) -> list[str]:
    return [f"{row[name]:.2f}" for name in ("p50", "p90", "p99", "p999")]


def comparison() -> str:
    """Return the recorded output of ``bench/broker.py --json``."""
    run = _run_of("broker")
    parts = [_conditions(run)]
    for body in dict.fromkeys(row["body"] for row in run["rows"]):
        found = [row for row in run["rows"] if row["body"] == body]
        rows = []
        for row in found:
            ratios = [f"{row[name]:.1f}" if name in row else "" for name in ("times_less_cpu", "times_the_rate")]
            units = f"{row['units']:.1f}" if "units" in row else ""
            figures = [units, f"{row['cpu_us']:,.0f}", f"{row['rate']:,.0f}", *_quantiles(row)]
            rows.append([row["system"], str(row["connections"] or ""), *figures, *ratios])
        head = "|connections|units|CPU µs|a second|p50 ms|p90|p99|p99.9|times less CPU|times the rate"
        parts.append(f"### Bodies of {body:,} bytes\n\n{_table(head, rows)}")
        rows = []
        for row in found:
            if "moderate" in row:
                seen = row["moderate"]
                figures = [f"{seen['rate']:,.0f}", f"{seen['server_cpu_us']:,.0f}", *_quantiles(seen)]
                rows.append([row["system"], *figures, f"{seen['p50_in_syncs']:.1f}"])
        if rows:
            share = next(row["moderate"]["share"] for row in found if "moderate" in row)
            head = f"at {share:.0%} of that rate|a second|CPU µs|p50 ms|p90|p99|p99.9|p50 in syncs"
            parts.append(_table(head, rows))
    return "\n\n".join(parts)


def backlog() -> str:
    """Return the recorded output of ``bench/backlog.py --json``."""
    run = _run_of("backlog")
    rows = []
    for row in run["sizes"]:
        written = (
            [f"{row['written']['rate']:,.0f}", f"{row['written']['cpu_us']:.1f}"] if "written" in row else ["", ""]
        )
        times = [f"{row[name]:.2f}" for name in ("up_seconds", "first_acknowledged_seconds")]
        memory = [f"{row['started']['resident']:,.0f}", f"{row['loaded']['most']:,.0f}"]
        load = [f"{row['load']['rate']:,.0f}", f"{row['load']['p99']:.1f}"]
        rows.append([f"{row['messages']:,}", *written, *times, *memory, *load])
    head = "waiting|written a second|CPU µs|up after s|first acknowledged s|MiB then|MiB at most|taken a second|p99 ms"
    parts = [f"`{run['system']}`, bodies of {run['bytes']:,} bytes. {_conditions(run)}", _table(head, rows)]
    rows = [
        [
            how,
            f"{one['messages'] / one['seconds']:,.0f}",
            f"{one['bytes'] / one['seconds'] / 1e6:,.0f}",
            f"{one['cpu_us']:.2f}",
        ]
        for how, one in run["reads"].items()
    ]
    return "\n\n".join([*parts, _table("read in order, nothing of it in memory|messages a second|MB/s|CPU µs", rows)])


def capacity(part: str) -> str:
    """Return the ``model`` or the ``simulation`` from the recorded output of ``bench/cluster_capacity.py``."""
    printed = (DOCS / "internals" / "runs" / "cluster-capacity.txt").read_text(encoding="utf-8").strip()
    model, nodes, simulation = printed.partition("50 nodes, ")
    return f"```text\n{(model if part == 'model' else nodes + simulation).strip()}\n```"
