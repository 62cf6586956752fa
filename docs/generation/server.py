"""What a server shows to operators: routes, metrics, journal and incidents."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator

import msgspec

from generation import SOURCES


def routes() -> str:
    """Return the table of the admin listener's routes."""
    import holdfast
    from holdfast.endpoint.admin.application import Admin
    from holdfast.endpoint.admin.routes import plain_path

    lines = ["| request | what it does | takes | answers, refusals |", "| --- | --- | --- | --- |"]
    for route in Admin(holdfast.Destination(":memory:")).routes.table:
        takes = [field.encode_name for field in msgspec.structs.fields(route.query)]
        if not isinstance(route.body, str | None):
            takes += [f"{{{field.encode_name}}}" for field in msgspec.structs.fields(route.body)]
        answer = "204" if route.answer is None else "200"
        refusals = ", ".join(str(status) for status in (answer, *route.errors))
        words = ", ".join(f"`{one}`" for one in takes) + (f"; `{route.body}`" if isinstance(route.body, str) else "")
        lines.append(f"| `{route.method} /{plain_path(route.path)}` | {route.summary} | {words} | {refusals} |")
    return "\n".join(lines)


def _texts(call: ast.Call) -> list[str]:
    return [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def _calls(file: str, *names: str) -> Iterator[tuple[str, ast.Call]]:
    tree = ast.parse((SOURCES / file).read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    for node in sorted(calls, key=lambda call: call.lineno):
        assert isinstance(node.func, ast.Name)
        if node.func.id in names:
            yield node.func.id, node


METRICS = {
    "_counter": "counter",
    "CounterMetricFamily": "counter",
    "GaugeMetricFamily": "gauge",
    "_histogram": "histogram",
    "HistogramMetricFamily": "histogram",
}


def metrics(file: str = "endpoint/admin/metrics.py") -> str:
    """Return the table of a file's metrics."""
    lines = ["| metric | kind | labels | meaning |", "| --- | --- | --- | --- |"]
    for function, call in _calls(file, *METRICS):
        texts = _texts(call)
        if len(texts) < 2:
            continue  # the helper itself
        given = [ast.literal_eval(one.value) for one in call.keywords if one.arg == "labels"]
        labels = ", ".join(f"`{label}`" for label in given[0]) if given else ""
        kind = METRICS[function]
        name = f"{texts[0]}_total" if kind == "counter" else texts[0]
        lines.append(f"| `{name}` | {kind} | {labels} | {texts[1]} |")
    return "\n".join(lines)


def journal_columns() -> str:
    """Return the columns of the event journal."""
    columns = importlib.import_module("holdfast.endpoint.journal.columns").COLUMNS
    rows = [f"| `{one.name}` | `{one.type}` | {one.says} |" for one in columns]
    return "\n".join(["| column | type | meaning |", "| --- | --- | --- |", *rows])


def audit_rules() -> str:
    """Return the rules of the audit."""
    rules = importlib.import_module("holdfast.pipeline.audit.rules").RULES
    rows = [f"| {one} | {says} |" for one, says in rules.items()]
    return "\n".join(["| rule | when it is broken |", "| --- | --- |", *rows])


def journal_events() -> str:
    """Return the events of the event journal."""
    events = importlib.import_module("holdfast.endpoint.journal.columns").EVENTS
    rows = [f"| `{one}` | {says} |" for one, says in events.items()]
    return "\n".join(["| event | what happened |", "| --- | --- |", *rows])


def incidents() -> str:
    """Return the names of incidents, with the level of their log line."""
    found: dict[str, set[str]] = {}
    for file in sorted((SOURCES / "core").rglob("*.py")):
        for _, call in _calls(str(file.relative_to(SOURCES)), "Incident"):
            texts = _texts(call)
            if not texts or not isinstance(call.args[0], ast.Constant):
                continue
            levels = [ast.unparse(one.value).strip("'") for one in call.keywords if one.arg == "level"]
            positional = [ast.unparse(one).strip("'") for one in call.args[3:4]]
            level = (levels or positional or ["info"])[0]
            known = ("debug", "info", "warning", "error")
            found.setdefault(texts[0], set()).update([level] if level in known else ["info", "warning"])
    order = ["debug", "info", "warning", "error"]
    rows = [f"| `{name}` | {' or '.join(sorted(found[name], key=order.index))} |" for name in sorted(found)]
    return "\n".join(["| name | level |", "| --- | --- |", *rows])
