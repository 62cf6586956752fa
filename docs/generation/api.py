"""The reference of the names that applications use, from their docstrings.

Reads the sources without importing them, so that the page is the same on every machine. A site could replace this
module with mkdocstrings, which renders HTML when a site is built, and writes no Markdown.
"""

from __future__ import annotations

import ast
import importlib
import re
import textwrap
from collections.abc import Iterator
from typing import Annotated, get_args, get_origin

import holdfast.settings
from generation import DRAWN, SOURCES
from generation.docstrings import render_docstring, split_docstring

_MEDIATION = ["run", "Mediation", "MediatedBatch", "parse_xml", "validate", "split", "to_xml", "route", "Route"]
_MEDIATION += ["infer_schema", "XSD", "Pipeline"]
API: list[tuple[str, str, list[str]]] = [
    (
        "The two endpoints",
        "holdfast",
        [
            *("Source", "Sent", "Enqueued", "Progress", "Destination", "Message", "Reply", "ApplicationFault"),
            *("Attachment", "WithAttachments", "WithHeaders", "SoapHeaders"),
        ],
    ),
    ("Blocking code", "holdfast.sync", ["Source", "Sent"]),
    ("Clients with zeep", "holdfast.zeep", ["Transport", "AsyncTransport", "Call", "Fault"]),
    (
        "Processors",
        "holdfast",
        [
            *(
                "Processor",
                "MessageContext",
                "UsernameToken",
                "UsernameTokenValidator",
                "SecureConversation",
                "SamlToken",
                "SamlTokenValidator",
                "Timestamp",
                "SymmetricBinding",
                "SymmetricBindingValidator",
                "EndorsedSymmetricBinding",
                "EndorsingCertificates",
            ),
            *("X509", "Encryption", "Freshness", "PeerCertificate"),
        ],
    ),
    ("Traces", "holdfast", ["trace"]),
    ("Versions and assurances", "holdfast", ["Versions", "Assurance", "Policy"]),
    ("Serving a destination from a program", "holdfast.endpoint.serve", ["Service"]),
    ("The store", "holdfast.store", ["open_store"]),
    ("Spark", "holdfast.pipeline", ["session"]),
    ("Watching streams", "holdfast.pipeline.progress", ["watch", "describe", "lag_of"]),
    ("Landing", "holdfast.pipeline.landing", ["land", "LandedBatch", "read_landed", "reland"]),
    ("Compaction", "holdfast.pipeline.compaction", ["compact", "Compaction"]),
    (
        "Reassembly",
        "holdfast.pipeline.reassembly",
        ["capture_of", "as_capture", "reassemble", "read_reassembled", "Reassembled"],
    ),
    ("Mediation", "holdfast.pipeline.mediation", _MEDIATION),
    (
        "Reassembly of a stream",
        "holdfast.pipeline.reassembly_stream",
        ["capture_stream", "reassemble_stream", "is_idle", "read_streamed", "reassembled"],
    ),
    ("Tests of your own code", "holdfast.testing", ["pair", "Pair", "lossy", "Network", "NetworkFaults", "message"]),
    (
        "A proxy that loses messages",
        "holdfast.testing.proxy",
        ["LossyProxy", "Faults", "Fate", "Relayed", "ProxyCounts"],
    ),
    ("The pytest plugin", "holdfast.pytest_plugin", ["holdfast_pair"]),
]
"""Heading, module that users import from, names."""

FILES = {
    "holdfast.sync": ["endpoint/source/sync.py"],
    "holdfast.zeep": ["zeep.py"],
    "holdfast.endpoint.serve": ["endpoint/serve.py"],
    "holdfast.store": ["store/__init__.py"],
    "holdfast.pytest_plugin": ["pytest_plugin.py"],
    "holdfast.testing.proxy": ["testing/proxy.py"],
    "holdfast.pipeline": ["pipeline/session.py"],
    "holdfast.pipeline.progress": ["pipeline/progress.py"],
    "holdfast.pipeline.landing": ["pipeline/landing/tables.py"],
    "holdfast.pipeline.compaction": ["pipeline/landing/compaction.py"],
    "holdfast.pipeline.mediation": [
        "pipeline/mediation/execution/run.py",
        "pipeline/mediation/execution/batches.py",
        "pipeline/mediation/definition/file.py",
        *(
            f"pipeline/mediation/transformations/{room}.py"
            for room in ("parsing", "problems", "writing", "routing", "inference", "xsd")
        ),
    ],
    "holdfast.pipeline.reassembly": ["pipeline/reassembly/tables.py"],
    "holdfast.pipeline.reassembly_stream": ["pipeline/reassembly/stream.py"],
}

GIVEN = ("Sent", "Pair")
"""Classes that Holdfast makes: how it does so is of no use to applications."""

BASES = {
    "ASGIApplication": "endpoint/destination/asgi_application.py",
    "HandlerRegistration": "endpoint/destination/registration.py",
    "OperationCalls": "endpoint/source/operation_calls.py",
    "_Reliable": "zeep.py",
}
"""Base class whose public methods belong to a public class -> its file."""

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _files(module: str, name: str) -> list[str]:
    if module == "holdfast":
        homes: dict[str, str] = importlib.import_module("holdfast")._HOMES
        return [homes.get(name, "exceptions").replace(".", "/") + ".py"]
    if module == "holdfast.testing":
        files = [str(path.relative_to(SOURCES)) for path in sorted((SOURCES / "testing").glob("*.py"))]
        return ["simulation/nodes/network.py", *(one for one in files if not one.endswith("proxy.py"))]
    return FILES[module]


def find(module: str, name: str) -> Definition:
    """Return the definition of a name that users import from ``module``.

    Raises:
        LookupError: The name does not exist.
    """
    for file in _files(module, name):
        for node in ast.parse((SOURCES / file).read_text(encoding="utf-8")).body:
            if isinstance(node, Definition) and node.name == name:
                return node
    raise LookupError(f"{module} has no {name}")


def _is_public(node: ast.stmt) -> bool:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or ast.get_docstring(node) is None:
        return False
    if re.search(r"\b_[A-Z]", ast.unparse(node.args)):
        return False  # users cannot make the arguments
    return not node.name.startswith("_") or node.name == "__call__"


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, *, method: bool) -> str:
    arguments = ast.unparse(_Plain().visit(node.args))
    if method:
        arguments = re.sub(r"^(self|cls)(, )?", "", arguments)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    awaited = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    return _wrapped(f"{awaited}{node.name}({arguments}){returns}")


def _wrapped(signature: str) -> str:
    return "\n".join(textwrap.wrap(signature, 110, subsequent_indent="    ", break_long_words=False))


def _decorators(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {ast.unparse(one) for one in node.decorator_list}


def _derived(module: str, node: ast.ClassDef) -> list[ast.stmt]:
    """A class's definitions. Those that the blocking source derives from the asynchronous one have its arguments."""
    if module != "holdfast.sync" or node.name != "Source":
        return node.body
    asynchronous = find("holdfast", "Source")
    assert isinstance(asynchronous, ast.ClassDef)
    methods = [*_inherited(asynchronous), *asynchronous.body]
    theirs = {one.name: one for one in methods if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    body: list[ast.stmt] = []
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name in ("__init__", "send"):
            one.args = theirs[one.name].args
        elif isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name):
            name = one.targets[0].id
            same = theirs[name]
            told = ast.Expr(ast.Constant(f"See :meth:`holdfast.Source.{name}`."))
            one = ast.FunctionDef(name, same.args, [told], [], same.returns, lineno=0, type_params=[])
        body.append(one)
    return body


class _Plain(ast.NodeTransformer):
    """Leaves out what an annotation demands besides the type: the error of a wrong value says it."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Replace ``Annotated[X, …]`` with ``X``."""
        self.generic_visit(node)
        is_annotated = isinstance(node.value, ast.Name) and node.value.id == "Annotated"
        return node.slice.elts[0] if is_annotated and isinstance(node.slice, ast.Tuple) else node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Replace the name of such an annotation with that of its type."""
        alias = getattr(holdfast.settings, node.id, None)
        if get_origin(alias) is not Annotated:
            return node
        return ast.Name(get_args(alias)[0].__name__)


def _class_page(module: str, node: ast.ClassDef) -> Iterator[str]:
    node.body = _derived(module, node)
    initial = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    yield f"### class {module}.{node.name}"
    if initial and node.name not in GIVEN:
        arguments = re.sub(r"^self(, )?", "", ast.unparse(_Plain().visit(initial[0].args)))
        yield f"```text\n{_wrapped(f'{node.name}({arguments})')}\n```"
    yield render_docstring(ast.get_docstring(node) or "")
    own = {one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    inherited = [one for one in _inherited(node) if getattr(one, "name", "") not in own]
    for method in [*node.body, *inherited]:
        if not _is_public(method):
            continue
        assert isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        if _decorators(method) & {"property", "cached_property"}:
            yield f"#### {node.name}.{method.name}"
        else:
            yield f"#### {node.name}.{method.name}()\n\n```text\n{_signature(method, method=True)}\n```"
        yield render_docstring(ast.get_docstring(method) or "")


def _inherited(node: ast.ClassDef) -> Iterator[ast.stmt]:
    """The methods of a class's bases that users do not see."""
    for base in node.bases:
        file = BASES.get(ast.unparse(base))
        if file is not None:
            for one in ast.parse((SOURCES / file).read_text(encoding="utf-8")).body:
                if isinstance(one, ast.ClassDef) and one.name == ast.unparse(base):
                    yield from one.body


def api() -> str:
    """docs/reference/api.md."""
    parts = [
        "# API",
        DRAWN,
        "The names that applications use, with their docstrings. All others may change without notice.\n"
        "Settings are on [a separate page](configuration.md), and errors are at the end of this one.",
    ]
    for title, module, names in API:
        found = [find(module, name) for name in names]
        parts.append(f"## {title}")
        for node in found:
            if isinstance(node, ast.ClassDef):
                parts.extend(_class_page(module, node))
            else:
                parts.append(f"### {module}.{node.name}()\n\n```text\n{_signature(node, method=False)}\n```")
                parts.append(render_docstring(ast.get_docstring(node) or ""))
    parts.append("## Errors")
    parts.append(_errors())
    parts.extend(_attributes_of_errors())
    return "\n\n".join(parts) + "\n"


def _error_classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """Each error with the module that users import it from."""
    public = set(importlib.import_module("holdfast").__all__)
    for path in ("exceptions.py", "http/outcome.py", "client/errors.py"):
        for node in ast.parse((SOURCES / path).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and (path != "http/outcome.py" or node.name in public):
                home = path.removesuffix(".py").replace("/", ".")
                yield "holdfast" if node.name in public else f"holdfast.{home}", node


def _attributes_of_errors() -> Iterator[str]:
    """Every error that has attributes besides ``message`` and ``remedy``: the arguments that it is made with."""
    for module, node in _error_classes():
        entries = split_docstring(ast.get_docstring(node) or "")[1].get("Args", [])
        lines = [f"- {', '.join(f'`{one}`' for one in name.split(', '))}: {told}" for name, told in entries]
        if lines:
            yield f"### class {module}.{node.name}"
            yield "\n".join(["*Attributes*", "", *lines])


def _errors() -> str:
    lines = [
        "Each is a `holdfast.HoldfastError` with a `message` (what happened, and which data is safe) and a `remedy`",
        "(what to do about it).",
        "",
        "| class | base | meaning |",
        "| --- | --- | --- |",
    ]
    for module, node in _error_classes():
        told = split_docstring(ast.get_docstring(node) or "")[0][0]
        bases = ", ".join(f"`{ast.unparse(base)}`" for base in node.bases)
        lines.append(f"| `{module}.{node.name}` | {bases} | {told} |")
    return "\n".join(lines)
