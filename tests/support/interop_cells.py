"""The cells of the interoperability matrix that the live tests prove.

A test declares its cell with the marker ``cell``: for a whole file in ``pytestmark``, and further at the test. The
marker nearest to the test wins. If one test proves several cells, a field is a tuple, or ``versions`` has several
combinations. A marker need not repeat what a parameter says by its name.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.testing.proxy import Faults

cell = pytest.mark.cell
FIELDS = (
    "peer",
    "role",
    "broker",
    "setup",
    "service",
    "security",
    "pattern",
    "fault",
    "network",
    "rm",
    "addressing",
    "soap",
)
"""What makes a cell, in the order of the results file."""
VERSIONS = FIELDS[-3:]
VALUES: dict[str, tuple[str, ...]] = {
    "peer": ("gSOAP", "WCF", "CXF", "Metro", "Sandesha2", "Holdfast"),
    "role": ("source", "destination", "both"),
    "broker": ("", "broker"),
    "service": ("", "slow"),
    "security": (
        "none",
        "https",
        "user name",
        "user name (text)",
        "user name (digest)",
        "user name over https",
        "certificates",
        "certificates and encryption",
        "symmetric key and user name",
        "symmetric key and certificate",
        "symmetric key and secure conversation",
        "secure conversation",
        "SAML 1.1",
        "SAML 2.0",
    ),
    "pattern": ("one-way", "request/reply", "mixed", "no session"),
    "rm": ("1.0", "1.1"),
    "addressing": ("2004/08", "2005/08"),
    "soap": ("1.1", "1.2"),
}
"""The permitted values of fields. A slow service takes longer than the retransmission timeout. ``role`` is Holdfast's:
``both`` is a broker between two programs of the peer."""
SIX = tuple(
    (rm, addressing, soap)
    for rm, addressing in (("1.0", "2004/08"), ("1.0", "2005/08"), ("1.1", "2005/08"))
    for soap in ("1.1", "1.2")
)
"""The combinations of versions that .NET has, for a test that runs them all."""

_USUAL = {"broker": "", "setup": "", "service": "", "security": "none", "fault": "", "network": Faults()}
_PATTERNS = {"notify": "one-way", "echo": "request/reply", "oneway": "one-way", "twoway": "request/reply"}
_BINDINGS = {"ws": ("1.0", "2005/08", "1.2"), "ws2007": ("1.1", "2005/08", "1.2")}
_PROOFS = {
    **dict.fromkeys(("certificate", "unsigned certificate"), "certificate"),
    **{"user name": "user name", "conversation": "secure conversation"},
}
CLUSTERS = {"postgresql": "a cluster, four clients", "kafka": "a cluster on Kafka, four clients"}
_STACKS = {"cxf": "CXF", "metro": "Metro", "sandesha": "Sandesha2"}


def _versions(value: Any) -> dict[str, str]:
    return {name: str(getattr(getattr(value, name), "value", getattr(value, name))) for name in VERSIONS}


def _script(value: str) -> dict[str, str]:
    kinds = "notify" in value, "echo" in value
    return {"pattern": {(True, False): "one-way", (False, True): "request/reply"}.get(kinds, "mixed")}


def _work(value: Any) -> dict[str, Any]:
    return {"pattern": _PATTERNS[value.operation], "network": value.faults, **_sleep(value.milliseconds)}


def _sleep(value: float) -> dict[str, str]:
    return {"service": "slow" if value else ""}


def _listener(value: bool) -> dict[str, str]:
    return {"setup": "listener"} if value else {}


_PARAMETERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "stack": lambda value: {"peer": _STACKS[value.name]},
    "engine": lambda value: {"setup": CLUSTERS[value]},
    "brokered": lambda value: {"broker": "broker" if value else ""},
    "versions": _versions,
    "profile": _versions,
    "binding": lambda value: dict(zip(VERSIONS, _BINDINGS[value], strict=True)),
    "rm": lambda value: {"rm": value if "." in value else f"{value[0]}.{value[1]}"},
    "soap": lambda value: {"soap": value},
    "operation": lambda value: {"pattern": _PATTERNS[value]},
    "mode": lambda value: {"pattern": _PATTERNS[value]},
    "secured": lambda value: {"security": value},
    "proof": lambda value: {"security": f"symmetric key and {_PROOFS[value]}"},
    "saml": lambda value: {"security": f"SAML {value}"},
    "kind": lambda value: {"security": f"user name ({value})"},
    "faults": lambda value: {"network": value},
    "script": _script,
    "loss": lambda value: {"network": Faults(lose_request=value, lose_response=value)},
    **dict.fromkeys(("sleep", "milliseconds"), _sleep),
    "work": _work,
    **dict.fromkeys(("decoupled", "listens", "addressed"), _listener),
}
"""What parameters of these names say of the cell."""


def _words(value: str | Faults | None) -> str | None:
    """Name what a proxy does to the messages."""
    if not isinstance(value, Faults):
        return value
    faults = value
    lost, unanswered = faults.lose_request, faults.lose_response
    said = []
    if lost and lost == unanswered:
        said.append(f"{_percent(lost)} of requests and answers lost")
    elif lost:
        said.append(f"{_percent(lost)} of requests lost")
    elif unanswered:
        said.append(f"{_percent(unanswered)} of answers lost")
    if faults.double:
        said.append("requests doubled" if faults.double == 1 else f"{_percent(faults.double)} of requests doubled")
    if faults.delay:
        said.append(f"{_percent(faults.delay)} of requests delayed")
    return ", ".join(said) or "clean"


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def cells_of(item: pytest.Item) -> list[str]:
    """Return the cells that a test declares, their fields joined as in the results file.

    Raises:
        ValueError: a field is missing, unknown, or has a value that is not in the matrix.
    """
    declared: dict[str, Any] = dict(_USUAL)
    parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    for name, value in parameters.items():
        if name in _PARAMETERS:
            declared |= _PARAMETERS[name](value)
    for marker in reversed(list(item.iter_markers("cell"))):
        declared |= marker.kwargs
    if declared.get("role") == "none":  # no peer, or the peer without Holdfast
        return []
    return sorted(" | ".join(one) for one in _checked(declared))


def declare(items: list[pytest.Item]) -> None:
    """Attach its cells to each of these tests with a live peer, for its report.

    Raises:
        pytest.UsageError: such a test declares no cell, or a wrong one.
    """
    wrong = []
    for item in items:
        try:
            item.user_properties += [("cell", one) for one in cells_of(item)]
        except ValueError as error:
            wrong.append(f"{item.nodeid}: {error}")
    if wrong:
        raise pytest.UsageError(
            "\n".join(["declare the cells of these tests (tests/support/interop_cells.py):", *wrong])
        )


def _checked(declared: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    versions = declared.pop("versions", None)
    for combination in versions or [tuple(declared.get(name) for name in VERSIONS)]:
        named = _versions(combination) if hasattr(combination, "rm") else dict(zip(VERSIONS, combination, strict=True))
        declared |= named
        if wrong := set(declared) ^ set(FIELDS):
            raise ValueError(f"missing in the cell, or unknown: {', '.join(sorted(wrong))}")
        for one in itertools.product(*(_each(declared[name]) for name in FIELDS)):
            for name, value in zip(FIELDS, one, strict=True):
                if value is None or "|" in value or value not in VALUES.get(name, (value,)):
                    raise ValueError(f"{name} of a cell cannot be {value!r}")
            yield one


def _each(value: Any) -> list[str | None]:
    return [_words(one) for one in (value if isinstance(value, tuple) else (value,))]
