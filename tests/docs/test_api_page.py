"""The API reference has every name that a program meets: in a signature, as an attribute, or as an error."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import exceptions

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))  # as for a script there
api = importlib.import_module("generation.api")
render_docstring = importlib.import_module("generation.docstrings").render_docstring
PAGE = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
SETTINGS = (ROOT / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
NOT_FOR_USERS = {
    **dict.fromkeys(("Envelope", "Exchange", "Record", "Request", "Receive"), "belongs to a host or to the broker"),
    **dict.fromkeys(("Assertion", "Token", "Kind", "Post", "PipelinePlan", "SequencePolicies"), "is passed on only"),
    **dict.fromkeys(("SourceOptions", "TransportOptions", "MakePair"), "stands for the arguments of another"),
    **dict.fromkeys(
        ("Column", "Connection", "DBConnection", "Event", "Path", "Sequence"), "is Python's or a library's"
    ),
    "Store": "is what open_store returns, with its own page",
    "Turn": "belongs to a node of a cluster",
    "Queues": "is a class of the core, and here the name of a type that the docstring explains",
}
"""Classes of the source whose names are in signatures, and why the page needs no section on them."""
RAISED_BY_PROCESSORS = {"Invalid", "Unproven"}
"""Errors of hooks that Holdfast calls, and catches itself."""


def is_error(one: Any) -> bool:
    return isinstance(one, type) and one.__module__ == exceptions.__name__


def documented() -> set[str]:
    sections = re.findall(r"^### (?:class )?[\w.]+\.(\w+)", PAGE, re.M)
    rows = re.findall(r"^\| `[\w.]+\.(\w+)` \|", PAGE, re.M)
    return {*sections, *rows, *re.findall(r"^#+ (\w+)$", SETTINGS, re.M)}


def classes() -> set[str]:
    """Every class of the source."""
    return {
        node.name
        for path in (ROOT / "src" / "holdfast").rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    }


def raised() -> set[str]:
    """The errors in sections of Raises."""
    sections = re.findall(r"\*Raises\*\n\n((?:- .*\n?)+)", PAGE)
    lines = [line for section in sections for line in section.splitlines()]
    found = [re.match(r"- ((?:`\w+`(?:, )?)+):", line) for line in lines]
    return {name for one in found if one is not None for name in re.findall(r"\w+", one[1])}


def test_every_public_name_has_its_section() -> None:
    assert not {*holdfast.__all__} - documented() - {"__version__", "sync"}


def test_every_name_of_the_reference_exists() -> None:
    for _, module, names in api.API:
        for name in names:
            assert api.find(module, name).name == name


def test_every_class_in_a_signature_is_on_the_page_or_needs_no_section() -> None:
    signatures = "\n".join(re.findall(r"```text\n(.*?)```", PAGE, re.S))
    named = {*re.findall(r"\b[A-Z]\w*", signatures)} & classes()
    assert len(named) > 20
    assert not named - documented() - {*NOT_FOR_USERS}
    assert {*NOT_FOR_USERS} <= named, "what is no longer named needs no reason"


def test_every_error_that_a_call_raises_is_on_the_page() -> None:
    errors = raised()
    assert {"ConfigurationError", "NotAcknowledged", "StoreError", "PeerFault", "OperationFault"} <= errors
    assert not (errors & classes()) - documented() - RAISED_BY_PROCESSORS


@pytest.mark.parametrize(
    "name",
    sorted(name for name in vars(exceptions) if is_error(vars(exceptions)[name])),
)
def test_every_attribute_of_an_error_is_on_the_page(name: str) -> None:
    error = vars(exceptions)[name]
    tree = ast.parse((ROOT / "src" / "holdfast" / "exceptions.py").read_text(encoding="utf-8"))
    own = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    set_here = set(re.findall(r"^ +self\.([a-z]\w*)(?:: [^=]+)? = ", ast.unparse(own), re.M))
    if error is holdfast.HoldfastError:
        assert set_here == {"message", "remedy"}  # the sentence before the table has them
        return
    section = PAGE.partition(f".{name}\n\n*Attributes*")[2].partition("\n#")[0]
    for attribute in set_here:
        assert re.search(rf"`{attribute}`", section), f"{name}.{attribute}"


def test_what_a_call_returns_is_one_paragraph() -> None:
    written = render_docstring(
        "Do it.\n\nReturns:\n    The reply. It is kept until the program says\n    that it has it: so."
    )
    assert written == "Do it.\n\n*Returns*\n\nThe reply. It is kept until the program says that it has it: so."
    assert not re.search(r"\*Returns\*\n\n- ", PAGE)
