"""The conformance and the interoperability matrix, from ``reference/results.json``.

``scripts/test --results`` runs the tests and records their outcomes in that file (``tests/support/results_file.py``).
``python docs/generate.py`` writes them into the pages. A test without a recorded outcome is *not run*.

    python docs/results.py      prints the tests that the pages need
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
FILE = DOCS / "reference" / "results.json"
PAGE = DOCS / "reference" / "conformance.md"

Outcomes = Counter[str]
"""How often each outcome occurred: ``passed``, ``failed``, or ``skipped: `` with the reason."""


@cache
def recorded() -> dict[str, Any]:
    """Return the contents of the results file, without tests that no longer exist."""
    if not FILE.exists():
        return {"runs": {}, "tests": {}}
    contents: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return contents | {"tests": {test: one for test, one in contents["tests"].items() if _exists(test)}}


def _exists(test: str) -> bool:
    file, _, function = test.partition("::")
    return function in _functions(file)


@cache
def _functions(file: str) -> frozenset[str]:
    path = ROOT / file
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return frozenset(re.findall(r"^ *(?:async )?def (\w+)\(", text, re.MULTILINE))


def runs() -> str:
    """Return a sentence about each recorded run."""
    contents = recorded()
    lines = []
    for name, run in contents["runs"].items():
        results = [one["results"] for one in contents["tests"].values() if one["run"] == name]
        outcomes = _sum(_outcomes(one) for result in results for one in result)
        what = ", ".join(f"{count} {kind}" for kind, count in sorted(_kinds(outcomes).items(), key=lambda one: one[0]))
        changed = " with changes" if run["commit"].endswith("+") else ""
        commit = run["commit"].rstrip("+")
        lines.append(f"- run {name}: {run['date']}, commit `{commit}`{changed}, {len(results)} tests: {what}")
    if len(lines) > 1:
        lines += ["", f"A result without a number is from run {_largest()}."]
    return "\n".join(lines) or "No run is recorded."


def _outcomes(result: dict[str, Any]) -> Outcomes:
    return Counter({name: count for name, count in result.items() if name != "cell"})


def _sum(all_of: Iterable[Outcomes]) -> Outcomes:
    total: Outcomes = Counter()
    for one in all_of:
        total.update(one)
    return total


def _kinds(outcomes: Outcomes) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for name, count in outcomes.items():
        kinds[name.partition(":")[0]] += count
    return kinds


def said(outcomes: Outcomes, of_runs: Iterable[str] = ()) -> str:
    """Return the text of a cell. It names the runs, except the largest one."""
    if not outcomes:
        return "not run"
    total = sum(outcomes.values())
    kinds = _kinds(outcomes)
    if kinds["failed"]:
        text = "failed" if kinds["failed"] == total else f"{kinds['failed']} of {total} failed"
    elif kinds["skipped"]:
        reasons = " / ".join(sorted(name.partition(": ")[2] for name in outcomes if name.startswith("skipped")))
        text = f"skipped: {reasons}" if kinds["skipped"] == total else f"passed; {kinds['skipped']} skipped: {reasons}"
    else:
        text = "passed"
    others = sorted(set(of_runs) - {_largest()})
    return f"{text} (run {', '.join(others)})" if others else text


@cache
def _largest() -> str:
    """Return the name of the run with the most tests."""
    tests = Counter(one["run"] for one in recorded()["tests"].values())
    return tests.most_common(1)[0][0] if tests else ""


# --- conformance -----------------------------------------------------------------------------------------------------

ROLES = {
    "source": (
        *("core/rm_source/", "core/sending/", "core/forwarding/", "core/test_states_obeyed_outbound.py"),
        *("endpoint/source/", "endpoint/sending/", "interop/test_wcf_client_rules.py"),
        *(f"security/conversation/test_{one}.py" for one in ("secure_conversation", "source_tokens", "token_requests")),
        *("wire/policy/test_choice.py", "wire/policy/test_settings.py", "wire/policy/test_intersection.py"),
    ),
    "destination": (
        *("core/rm_destination/", "core/receiving/", "core/handling/", "core/test_states_obeyed_inbound.py"),
        *("core/protocol_messages/", "endpoint/destination/", "endpoint/handling/", "pipeline/landing/"),
        *("interop/test_wcf_server_rules.py", "security/conversation/test_sessions.py"),
    ),
}
"""Where the tests of one role are. All others concern both."""
COLUMNS = ["rule", "clause", *ROLES, "code", "tests"]


def roles(test: str) -> set[str]:
    """Return the roles that a test is made for; empty: both."""
    return {role for role, places in ROLES.items() if test.removeprefix("tests/").startswith(places)}


def conformance_row(cells: list[str]) -> list[str]:
    """Return a row with its results.

    Args:
        cells: As written by hand, or with results already.
    """
    rule, clause, code, tests = cells if len(cells) == 4 else [*cells[:2], *cells[4:]]
    named = _named(tests)
    concerned = set().union(*map(roles, named)) or set(ROLES)
    results = [
        _proved([test for test in named if role in (roles(test) or ROLES)]) if role in concerned else "—"
        for role in ROLES
    ]
    return [rule, clause, *results, code, tests]


def _named(text: str) -> list[str]:
    return re.findall(r"`(tests/[\w/]+\.py::\w+)`", text)


def _proved(tests: list[str]) -> str:
    known = recorded()["tests"]
    if any(test not in known for test in tests):
        return "not run"
    outcomes = _sum(_outcomes(result) for test in tests for result in known[test]["results"])
    return said(outcomes, (known[test]["run"] for test in tests))


def conformance(text: str) -> str:
    """Return the conformance page with the recorded results in its tables."""
    return "\n".join(_line(line) for line in text.split("\n"))


def _line(line: str) -> str:
    cells = line.strip("| ").split(" | ")
    if not line.startswith("| ") or len(cells) not in (4, 6):
        return line
    if cells[0] == "rule":
        cells = COLUMNS
    elif cells[0] == "---":
        cells = ["---"] * len(COLUMNS)
    else:
        cells = conformance_row(cells)
    return f"| {' | '.join(cells)} |"


# --- interoperability ------------------------------------------------------------------------------------------------

FIELDS = ("peer", "role", "broker", "setup", "service", "security", "pattern", "fault", "network")
"""The fields of a cell before its versions, as in ``tests/support/interop_cells.py``."""
PEERS = {
    "gSOAP": "gSOAP 2.8",
    "WCF": "The .NET WCF client",
    "CXF": "Apache CXF 4.2.3",
    "Metro": "Metro 4.0.4",
    "Sandesha2": "Apache Sandesha2 1.6.2",
}
SIX = [
    *(("1.0", "2004/08", "1.1"), ("1.0", "2004/08", "1.2"), ("1.0", "2005/08", "1.1"), ("1.0", "2005/08", "1.2")),
    *(("1.1", "2005/08", "1.1"), ("1.1", "2005/08", "1.2")),
]
"""The combinations of versions that peers have. None has RM 1.1 with WS-Addressing 2004/08."""
UNTESTED = {
    "gSOAP": "The peer is built with WS-Addressing 2005/08.",
    "CXF": "CXF runs with SOAP 1.2 in RM 1.1 only.",
    "Metro": "Metro runs with WS-Addressing 2005/08.",
    "Sandesha2": "Sandesha2 runs with SOAP 1.2 in RM 1.1 only.",
}
"""Why a peer lacks combinations of versions."""
_PATTERNS = ["one-way", "request/reply", "mixed", "no session"]
_CALLS = {"source": "Holdfast calls it", "destination": "it calls Holdfast", "both": "it calls itself"}

Versions = tuple[str, str, str]
Row = tuple[str, ...]


@cache
def _cells() -> dict[str, dict[Row, dict[Versions, tuple[Outcomes, set[str]]]]]:
    """Return the outcomes of each peer, by what a row says, by versions."""
    found: dict[str, dict[Row, dict[Versions, tuple[Outcomes, set[str]]]]] = defaultdict(dict)
    for one in recorded()["tests"].values():
        for result in one["results"]:
            if "cell" not in result:
                continue
            peer, *row, rm, addressing, soap = (part.strip() for part in result["cell"].split("|"))
            columns = found[peer].setdefault(tuple(row), {})
            outcomes, of_runs = columns.setdefault((rm, addressing, soap), (Counter(), set()))
            outcomes.update(_outcomes(result))
            of_runs.add(one["run"])
    return found


def interop(peer: str) -> str:
    """Return the matrix of one peer: what a test does with it, by the combination of versions."""
    rows = _cells().get(peer, {})
    columns = sorted({versions for row in rows.values() for versions in row})
    head = ["direction", "security", "set-up", "messages", "disturbance"]
    lines = [[*head, *map(_title, columns)]]
    lines.append(["---"] * len(lines[0]))
    # Patterns with the same results share a row.
    shared: dict[tuple[Row, tuple[str, ...]], list[str]] = {}
    order = FIELDS.index("pattern") - 1
    for row, results in sorted(rows.items(), key=_order):
        texts = tuple(said(*results[one]) if one in results else "—" for one in columns)
        shared.setdefault(((*row[:order], *row[order + 1 :]), texts), []).append(row[order])
    for (row, texts), patterns in shared.items():
        lines.append([*_words(row, sorted(patterns, key=_PATTERNS.index)), *texts])
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), *_missing(peer, columns)])


_SETUP = FIELDS.index("setup") - 1
_SCRIPTED = "no test: a scripted peer of Holdfast's own sends it"
_WITH_A_MESSAGE = "cannot: its client creates a Sequence with its first message"
_ONE_AT_A_TIME = (
    "cannot: a call of its client returns when its message is acknowledged, so a Sequence that it closes has no gap"
)
_NO_LISTENER = "no test: the client in the tests has no listener"
_NO_POLLS = "cannot: it has no MakeConnection"
_NO_NAME = "cannot: its client does not name its token in CreateSequence, and its service refuses UsesSequenceSTR"
_OFFERED_ONLY = "cannot: its service replies only in a Sequence that was offered"
_TO_ITSELF = "cannot: its service sends the CreateSequence for its replies to itself; its client gets none"
NO_TEST = {
    "1.2": {"CXF": _WITH_A_MESSAGE, "Metro": _WITH_A_MESSAGE, "Sandesha2": _SCRIPTED},
    "1.3": {"Metro": _ONE_AT_A_TIME, "WCF": "cannot: its client ends an incomplete Sequence with a fault, not a close"},
    "1.4": {"WCF": _NO_LISTENER},
    "2.1": {"WCF": _NO_LISTENER},
    "2.2": {
        "CXF": _TO_ITSELF,
        "Metro": _OFFERED_ONLY,
        "WCF": _NO_LISTENER,
    },
    "3.1": {"CXF": _NO_POLLS, "WCF": _NO_POLLS},
    "4.1": {
        "CXF": _NO_NAME,
        "Sandesha2": "no test: the tests have it without WS-Security",
    },
    "4.2": {
        "CXF": _NO_POLLS,
        "Metro": "cannot: its client does not secure its polls, and its service not the answers to them",
        "Sandesha2": "no test: the tests have it without WS-Security",
        "WCF": _NO_POLLS,
    },
}
"""Why there is no result of a scenario of OASIS with a peer, by the number of the scenario."""


def scenarios() -> str:
    """Return the matrices of the OASIS scenarios: Holdfast at both ends, and with each live peer."""
    rows = {row[_SETUP]: results for row, results in _cells().get("Holdfast", {}).items()}
    columns = sorted({versions for results in rows.values() for versions in results})
    lines = [["scenario", *map(_title, columns)], ["---"] * (len(columns) + 1)]
    for scenario, results in sorted(rows.items()):
        lines.append([scenario, *(said(*results[one]) if one in results else "—" for one in columns)])
    peers = ("CXF", "Metro", "Sandesha2", "WCF")
    others = [["scenario", *(PEERS[peer] for peer in peers)], ["---"] * (len(peers) + 1)]
    others += [[scenario, *(_with_peer(scenario, peer) for peer in peers)] for scenario in sorted(rows)]
    return "\n".join(f"| {' | '.join(line)} |" if line else "" for line in [*lines, [], *others])


def _with_peer(scenario: str, peer: str) -> str:
    """Return what is known of a scenario with one peer, in each direction, or why there is nothing."""
    found = []
    for row, results in sorted(_cells().get(peer, {}).items(), key=_order):
        if row[_SETUP] == scenario:
            outcomes = _sum(outcomes for outcomes, _ in results.values())
            of_runs = {run for _, runs in results.values() for run in runs}
            found.append(f"{_CALLS[row[0]]}: {said(outcomes, of_runs)}")
    return "; ".join(found) or NO_TEST.get(scenario[:3], {}).get(peer, "not run")


def _title(versions: Versions) -> str:
    rm, addressing, soap = versions
    return f"RM {rm}, {addressing}, SOAP {soap}"


def _order(item: tuple[Row, Any]) -> tuple[Any, ...]:
    role, *rest = item[0]
    return list(_CALLS).index(role), *rest


def _words(row: Row, patterns: list[str]) -> Iterator[str]:
    role, broker, setup, service, security, fault, network = row
    yield _CALLS[role] + (" through a broker" if broker else "")
    yield security
    yield ", ".join(one for one in (setup, f"{service} service" if service else "") if one) or "—"
    yield ", ".join(patterns)
    yield "; ".join(one for one in (fault, network if network != "clean" or not fault else "") if one)


def _missing(peer: str, columns: list[Versions]) -> list[str]:
    missing = [_title(one) for one in SIX if one not in columns]
    if not missing:
        return []
    return ["", f"No test has {'; '.join(missing)}. {UNTESTED.get(peer, '')}".rstrip()]


def tests() -> list[str]:
    """Return the tests that the pages need: the files with a live peer, and what the conformance page names."""
    live = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if re.search(r"^from interop_cells import", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    named = set(_named(PAGE.read_text(encoding="utf-8")))
    return [*live, *sorted(test for test in named if test.partition("::")[0] not in live)]


if __name__ == "__main__":
    sys.stdout.write("\n".join(tests()) + "\n")
