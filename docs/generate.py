"""Writes the pages generated from the code: ``python docs/generate.py``. ``tests/docs`` checks that they are current.

The script reads sources instead of importing them where possible, so that a page is the same on every machine. It
generates a whole page, or the part between a pair of marker lines in a page written by hand.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import re
import runpy
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import msgspec

from holdfast.settings import meaning_of, values_of

DOCS = Path(__file__).resolve().parent
SOURCES = DOCS.parent / "src" / "holdfast"
DRAWN = "<!-- Drawn from the code by docs/generate.py; do not edit. -->"
BEGIN, END = "<!-- drawn: {} -->", "<!-- end -->"

Section = dict[str, list[tuple[str, str]]]


# --- docstrings ------------------------------------------------------------------------------------------------------


def as_markdown(text: str) -> str:
    """Convert a docstring's roles and double backticks to Markdown."""
    text = re.sub(r":\w+:`~[\w.]*\.(\w+)`", r"`\1`", text)
    text = re.sub(r":\w+:`([\w.]+)`", r"`\1`", text)
    return text.replace("``", "`")


def split_docstring(text: str) -> tuple[list[str], Section]:
    """Return the paragraphs, each on one line, and the entries of Args, Attributes, Returns and Raises."""
    paragraphs: list[str] = []
    sections: Section = {}
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        match = re.fullmatch(r"(Args|Attributes|Returns|Raises):", lines[0].strip())
        if match is None:
            paragraphs.append(" ".join(line.strip() for line in lines))
        else:
            sections[match[1]] = _entries(lines[1:])
    return [as_markdown(paragraph) for paragraph in paragraphs], sections


def _entries(lines: list[str]) -> list[tuple[str, str]]:
    indent = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    entries: list[tuple[str, str]] = []
    for line in lines:
        if len(line) - len(line.lstrip()) > indent and entries:
            name, told = entries[-1]
            entries[-1] = (name, f"{told} {line.strip()}")
            continue
        name, colon, told = line.strip().partition(": ")
        is_name = colon and re.fullmatch(r"[\w, ]+", name)
        if line.strip().endswith(":") and re.fullmatch(r"[\w, ]+:", line.strip()):
            entries.append((line.strip()[:-1], ""))
        else:
            entries.append((name, told) if is_name else ("", line.strip()))
    return [(name, as_markdown(told.strip())) for name, told in entries]


def render_docstring(text: str) -> str:
    """Convert a docstring to Markdown."""
    paragraphs, sections = split_docstring(text)
    parts = ["\n\n".join(paragraphs)]
    for title, entries in sections.items():
        lines = [f"*{title}*", ""]
        for name, told in entries:
            names = ", ".join(f"`{one.strip()}`" for one in name.split(","))
            lines.append(f"- {names}: {told}" if name else f"- {told}")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


# --- the API ---------------------------------------------------------------------------------------------------------

_MEDIATION = ["run", "Mediation", "MediatedBatch", "parse_xml", "validate", "split", "to_xml", "route", "Route"]
_MEDIATION += ["infer_schema", "XSD", "Pipeline"]
API: list[tuple[str, str, list[str]]] = [
    (
        "The two endpoints",
        "holdfast",
        ["Source", "Sent", "Enqueued", "Progress", "Destination", "Message", "ApplicationFault"],
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
            ),
            *("X509", "Encryption"),
        ],
    ),
    ("Traces", "holdfast", ["trace"]),
    ("Versions and assurances", "holdfast", ["Versions", "Assurance"]),
    ("Serving a destination from a program", "holdfast.endpoint.serve", ["Service"]),
    ("The store", "holdfast.store", ["open_store"]),
    ("Spark", "holdfast.pipeline", ["session"]),
    ("Watching streams", "holdfast.pipeline.progress", ["watch", "describe", "lag_of"]),
    ("Landing", "holdfast.pipeline.landing", ["land", "LandedBatch", "read_landed", "reland", "settle"]),
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
    ("Tests of your own code", "holdfast.testing", ["pair", "lossy", "message"]),
    ("The pytest plugin", "holdfast.pytest_plugin", ["holdfast_pair"]),
]
"""Heading, module that users import from, names. Names that do not exist are omitted."""

FILES = {
    "holdfast.sync": ["endpoint/source/sync.py"],
    "holdfast.zeep": ["zeep.py"],
    "holdfast.endpoint.serve": ["endpoint/serve.py"],
    "holdfast.store": ["store/__init__.py"],
    "holdfast.pytest_plugin": ["pytest_plugin.py"],
    "holdfast.pipeline": ["pipeline/session.py"],
    "holdfast.pipeline.progress": ["pipeline/progress.py"],
    "holdfast.pipeline.landing": ["pipeline/landing/tables.py"],
    "holdfast.pipeline.compaction": ["pipeline/landing/compaction.py"],
    "holdfast.pipeline.mediation": [
        "pipeline/mediation/execution/run.py",
        "pipeline/mediation/definition/file.py",
        *(
            f"pipeline/mediation/transformations/{room}.py"
            for room in ("parsing", "problems", "writing", "routing", "inference", "xsd")
        ),
    ],
    "holdfast.pipeline.reassembly": ["pipeline/reassembly/tables.py"],
    "holdfast.pipeline.reassembly_stream": ["pipeline/reassembly/stream.py"],
}

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
        return [str(path.relative_to(SOURCES)) for path in sorted((SOURCES / "testing").glob("*.py"))]
    return FILES[module]


def find(module: str, name: str) -> Definition | None:
    """Return the definition of a name that users import from ``module``; None if the name does not exist."""
    for file in _files(module, name):
        for node in ast.parse((SOURCES / file).read_text(encoding="utf-8")).body:
            if isinstance(node, Definition) and node.name == name:
                return node
    return None


def _is_public(node: ast.stmt) -> bool:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or ast.get_docstring(node) is None:
        return False
    if re.search(r"\b_[A-Z]", ast.unparse(node.args)):
        return False  # users cannot make the arguments
    return not node.name.startswith("_") or node.name == "__call__"


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, *, method: bool) -> str:
    arguments = ast.unparse(node.args)
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
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            one.args = theirs["__init__"].args
        elif isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name):
            name = one.targets[0].id
            same = theirs[name]
            told = ast.Expr(ast.Constant(f"See :meth:`holdfast.Source.{name}`."))
            one = ast.FunctionDef(name, same.args, [told], [], same.returns, lineno=0, type_params=[])
        body.append(one)
    return body


def _class_page(module: str, node: ast.ClassDef) -> Iterator[str]:
    node.body = _derived(module, node)
    initial = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    yield f"### class {module}.{node.name}"
    if initial:
        arguments = re.sub(r"^self(, )?", "", ast.unparse(initial[0].args))
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
        found = [node for name in names if (node := find(module, name)) is not None]
        if not found:
            continue
        parts.append(f"## {title}")
        for node in found:
            if isinstance(node, ast.ClassDef):
                parts.extend(_class_page(module, node))
            else:
                parts.append(f"### {module}.{node.name}()\n\n```text\n{_signature(node, method=False)}\n```")
                parts.append(render_docstring(ast.get_docstring(node) or ""))
    parts.append("## Errors")
    parts.append(_errors())
    return "\n\n".join(parts) + "\n"


def _errors() -> str:
    path = SOURCES / "exceptions.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    public = set(importlib.import_module("holdfast").__all__)
    lines = [
        "Each is a `holdfast.HoldfastError` with a `message` (what happened, and which data is safe) and a `remedy`",
        "(what to do about it).",
        "",
        "| class | base | meaning |",
        "| --- | --- | --- |",
    ]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            told = split_docstring(ast.get_docstring(node) or "")[0][0]
            module = "holdfast" if node.name in public else "holdfast.exceptions"
            bases = ", ".join(f"`{ast.unparse(base)}`" for base in node.bases)
            lines.append(f"| `{module}.{node.name}` | {bases} | {told} |")
    return "\n".join(lines)


# --- settings --------------------------------------------------------------------------------------------------------

SETTINGS = {
    "DestinationPolicy": ("core.policy", "holdfast.Destination(policy=…)"),
    "SourcePolicy": ("core.policy", "holdfast.Source(policy=…)` and `holdfast.DestinationHTTP(policy=…)"),
    "SourceHTTP": ("endpoint.source.http_settings", "holdfast.Source(http=…)"),
    "DestinationHTTP": ("endpoint.destination.http_settings", "holdfast.Destination(http=…)"),
    "RetransmissionPolicy": ("core.retransmission", "holdfast.SourcePolicy(retransmission=…)"),
    "PollingPolicy": ("core.policy", "holdfast.SourcePolicy(polling=…)"),
    "RetentionPolicy": ("core.queues.retention", "holdfast.Destination(queues=…)"),
    "HandlingPolicy": ("core.handling.handler_cursor", "holdfast.Destination(handling=…)"),
    "CircuitPolicy": ("core.policy", "circuit of [policies] and [forwarders.NAME.policy] of a broker's file"),
    "ForwardingPolicy": ("core.policy", "[policies] and [forwarders.NAME.policy] of a broker's file"),
    "StagingPolicy": ("core.policy", "holdfast.DestinationHTTP(staging=…)"),
    "HTTPLimits": ("http.exchange", "holdfast.DestinationHTTP(limits=…)` and `Listeners(limits=…)"),
    "Listeners": ("endpoint.listener_settings", "holdfast.endpoint.serve.Service(listeners=…)"),
    "AdminListener": ("endpoint.listener_settings", "Listeners(admin=…)"),
    "Limits": ("wire", "holdfast.DestinationHTTP(envelopes=…)"),
    "JournalPolicy": ("endpoint.journal.policy", "holdfast.Destination(journal=…)` and `holdfast.Source(journal=…)"),
}
"""Settings class -> its module, and where it is given."""


def _class(module: str, name: str) -> type[Any]:
    found: type[Any] = getattr(importlib.import_module(f"holdfast.{module}"), name)
    return found


def _default(field: dataclasses.Field[Any]) -> str:
    """Return the default of a setting as Python writes it."""
    if field.default_factory is not dataclasses.MISSING:
        return f"{getattr(field.default_factory, '__name__', '')}()"
    default = field.default
    if default is dataclasses.MISSING:
        return "required"
    if isinstance(default, Enum):
        return str(default)
    if dataclasses.is_dataclass(default):
        return f"{type(default).__name__}()"
    return _number(default) if isinstance(default, int) and not isinstance(default, bool) else repr(default)


def _number(number: int) -> str:
    return f"{number:_}" if number >= 10_000 else str(number)


def settings(name: str) -> str:
    """Return the section of a settings class: heading, place of use, table.

    Raises:
        LookupError: the docstring does not explain a field.
    """
    module, where = SETTINGS[name]
    cls = _class(module, name)
    first = split_docstring(inspect.cleandoc(cls.__doc__ or ""))[0][0]
    public = "holdfast" if name in importlib.import_module("holdfast").__all__ else f"holdfast.{module}"
    lines = ["| setting | values | default | meaning |", "| --- | --- | --- | --- |"]
    for field in dataclasses.fields(cls):
        meaning = as_markdown(meaning_of(cls, field.name))
        lines.append(f"| `{field.name}` | {values_of(cls, field.name)} | `{_default(field)}` | {meaning} |")
    table = "\n".join(lines)
    return f"{first} `{public}.{name}`, given to `{where}`.\n\n{table}"


# --- the broker ------------------------------------------------------------------------------------------------------

BROKER = {
    "BrokerConfig": "The top of the file",
    "ListenConfig": "[listen]",
    "ServerTLS": "[listen.tls], [admin.tls]",
    "AdminConfig": "[admin]",
    "ClusterConfig": "[cluster]",
    "SecurityConfig": "[security]",
    "SignatureConfig": "[security.signature], [forwarders.NAME.security.signature]",
    "signature_config.EncryptionConfig": (
        "[security.signature.encryption], [forwarders.NAME.security.signature.encryption]"
    ),
    "signature_config.AssertionsConfig": "[security.assertions]",
    "JournalConfig": "[journal]",
    "LimitsConfig": "[limits]",
    "QueueConfig": "[queues.NAME]",
    "RouteConfig": "[[routes]]",
    "HeaderConfig": "header of a route",
    "ForwarderConfig": "[forwarders.NAME]",
    "ClientTLS": "[forwarders.NAME.tls]",
    "CredentialsConfig": "[forwarders.NAME.credentials]",
    "MessageCredentialsConfig": "[forwarders.NAME.security]",
    "ProxyConfig": "[forwarders.NAME.proxy]",
}
"""Class in ``broker.config`` -> the table of the file that has its fields."""
_BROKER_TABLES = {
    "sequences": "`[sequences]`: keys of [DestinationPolicy](configuration.md#destinationpolicy)",
    "http": "`[limits.http]`: keys of [HTTPLimits](configuration.md#httplimits)",
    "envelopes": "`[limits.envelopes]`: keys of [Limits](configuration.md#limits-of-an-envelope)",
    "sinks": "`[sinks]`: keys of [StagingPolicy](configuration.md#stagingpolicy)",
    "policy": "`[forwarders.NAME.policy]`: keys of [ForwardingPolicy](configuration.md#forwardingpolicy)",
    "policies": '`[policies."PATTERN"]`: keys of [ForwardingPolicy](configuration.md#forwardingpolicy)',
    "journal": "`[journal]`, below",
    "queues": "`[queues.NAME]`, below",
    "routes": "`[[routes]]`, below",
    "forwarders": "`[forwarders.NAME]`, below",
}


PIPELINE = {
    "PipelinePlan": "The top of the file",
    "SourcePlan": "[sources.NAME]",
    "TablePlan": "[tables.NAME]",
    "StepPlan": "[steps.NAME]",
    "ParsePlan": "parse of a step",
    "ValidatePlan": "validate of a step",
    "XmlPlan": "xml of a step",
    "StatePlan": "state of a step",
    "RoutePlan": "[[routes]]",
    "SinkPlan": "[sinks.NAME]",
    "DeadLettersPlan": "[dead_letters]",
}
"""Class of ``pipeline.mediation.definition.plan`` -> the table of the file that has its fields."""
_PIPELINE_TABLES = {
    "sources": "`[sources.NAME]`, below",
    "tables": "`[tables.NAME]`, below",
    "steps": "`[steps.NAME]`, below",
    "routes": "`[[routes]]`, below",
    "sinks": "`[sinks.NAME]`, below",
    "dead_letters": "`[dead_letters]`, below",
}


def broker_keys() -> str:
    """Return every key of a broker's configuration, table by table."""
    return "\n\n".join(_key_table("broker.config", name, title, _BROKER_TABLES) for name, title in BROKER.items())


def pipeline_keys() -> str:
    """Return every key of a pipeline's file, table by table."""
    room = "pipeline.mediation.definition.plan"
    return "\n\n".join(_key_table(room, name, title, _PIPELINE_TABLES) for name, title in PIPELINE.items())


def _key_table(room: str, name: str, title: str, tables: Mapping[str, str]) -> str:
    if "." in name:
        module, name = name.split(".")
        room = f"{room.rpartition('.')[0]}.{module}"
    told_values = importlib.import_module("holdfast.config.tables").told_values
    cls = _class(room, name)
    paragraphs = split_docstring(inspect.cleandoc(cls.__doc__ or ""))[0]
    lines = [
        f"### {title}",
        "",
        *paragraphs[:1],
        "",
        "| key | value | default | meaning |",
        "| --- | --- | --- | --- |",
    ]
    for field in dataclasses.fields(cls):
        key = field.name
        if key == "name" and title.endswith(".NAME]"):
            continue  # the name is part of the table's header
        value = told_values(cls, key) or tables.get(key, "a table, below")
        lines.append(f"| `{key}` | {value} | {_key_default(field)} | {as_markdown(meaning_of(cls, key))} |")
    return "\n".join(lines)


def _key_default(field: dataclasses.Field[Any]) -> str:
    """Return the default of a key as TOML writes it."""
    default = field.default
    if default is dataclasses.MISSING:
        return "required" if field.default_factory is dataclasses.MISSING else ""
    if default in (None, (), ""):
        return ""
    if isinstance(default, tuple):
        return f"one, `{default[0].name}`" if dataclasses.is_dataclass(default[0]) else f"`{json.dumps(default)}`"
    is_number = isinstance(default, int) and not isinstance(default, bool)
    return f"`{_number(default) if is_number else json.dumps(default)}`"


def broker_example() -> str:
    """Return the whole example."""
    return _toml("broker.toml")


def pipeline_example() -> str:
    """Return the whole example."""
    return _toml("mediation/orders.toml")


def _toml(name: str) -> str:
    return f"```toml\n{(DOCS.parent / 'examples' / name).read_text(encoding='utf-8').rstrip()}\n```"


# --- the command line ------------------------------------------------------------------------------------------------


def commands() -> str:
    """docs/reference/commands.md."""
    main = importlib.import_module("holdfast.cli.main")
    parts = [
        "# Commands",
        DRAWN,
        "`holdfast COMMAND --help` prints the same text. Exit codes: 0 success; 1 failure, and standard error states\n"
        "the cause and the remedy; 2 wrong usage. Ctrl-C ends a command cleanly, and a second Ctrl-C immediately.\n"
        "`python -m holdfast` is the same program. A command with `--json` also prints JSON on failure: the\n"
        "`error`, its `remedy`, and its `kind`, which is the name of the error's class.",
    ]
    for name, (module, attribute, summary) in main.COMMANDS.items():
        if find_spec(module) is None:
            continue
        command = getattr(importlib.import_module(module), attribute)
        parts += [f"## holdfast {name}", summary, *_command(name, command)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _command(name: str, command: click.Command) -> Iterator[str]:
    """Yield a command's description and parameters; for a group, those of each command."""
    if not isinstance(command, click.Group):
        yield from (_usage(name, command), _help_text(command.help or ""), _options(command))
        return
    yield _help_text(command.help or "")
    if command.invoke_without_command:
        yield _options(command)
    for part, inner in command.commands.items():
        yield f"### holdfast {name} {part}"
        yield from _command(f"{name} {part}", inner)


def _usage(name: str, command: click.Command) -> str:
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    words = " ".join(_argument(one) for one in arguments)
    return f"```text\nholdfast {name} [OPTIONS]{' ' if words else ''}{words}\n```"


def _argument(argument: click.Argument) -> str:
    metavar = argument.metavar or (argument.name or "").upper()
    return metavar if argument.required or argument.metavar else f"[{metavar}]"


def _help_text(text: str) -> str:
    paragraphs = []
    for block in inspect.cleandoc(text).split("\n\n"):
        if block.startswith("\b"):
            lines = "\n".join(line.rstrip() for line in block.splitlines()[1:])
            paragraphs.append(f"```bash\n{lines}\n```")
        else:
            paragraphs.append(block)
    return "\n\n".join(paragraphs)


def _options(command: click.Command) -> str:
    lines = ["| option | meaning |", "| --- | --- |"]
    for option in command.params:
        if isinstance(option, click.Option):
            names = " or ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
            value = _value(option)
            lines.append(f"| {names}{f' `{value}`' if value else ''} | {_meaning(option)} |")
    return "\n".join(lines)


def _value(option: click.Option) -> str:
    if option.is_flag:
        return ""
    if option.metavar:
        return option.metavar
    if isinstance(option.type, click.Choice):
        return "{" + ",".join(str(choice) for choice in option.type.choices) + "}"
    kinds = {"integer range": "N", "integer": "N", "float range": "SECONDS", "float": "SECONDS", "path": "PATH"}
    return kinds.get(option.type.name, {"file": "FILE"}.get(option.type.name, "TEXT"))


def _meaning(option: click.Option) -> str:
    told = (option.help or "").replace("|", "\\|")
    if option.required:
        told += " Required."
    default: Any = option.default
    if option.show_default and isinstance(default, str | int | float) and not option.is_flag:
        told += f" Default: `{default}`."
    if option.multiple:
        told += " May be repeated."
    return re.sub(r" {2,}", " ", told).strip()


# --- the admin listener -----------------------------------------------------------------------------------------------


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


# --- metrics ---------------------------------------------------------------------------------------------------------


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


# --- Spark -----------------------------------------------------------------------------------------------------------


def spark_options(room: str = "reader.options", name: str = "ReadOptions") -> str:
    """Return the options of the ``wsrm`` source, or of another options class."""
    cls = _class(f"pipeline.{room}", name)
    # The address of the server comes first, the other connection options last.
    fields = sorted(
        dataclasses.fields(cls), key=lambda field: (field.name != "broker", field.name not in cls.__annotations__)
    )
    lines = ["| option | default | meaning |", "| --- | --- | --- |"]
    for field in fields:
        if not field.metadata:
            continue  # computed from the other options
        if field.default is dataclasses.MISSING:
            default = "required"
        elif field.default in ("", None, (), frozenset()):
            default = "none"
        else:
            default = f"`{str(field.default).lower()}`"
        alias = f" Also called `{field.metadata['alias']}`." if field.metadata["alias"] else ""
        lines.append(f"| `{field.metadata['name']}` | {default} | {as_markdown(meaning_of(cls, field.name))}{alias} |")
    return "\n".join(lines)


def spark_columns() -> str:
    """Return the columns of the ``wsrm`` source."""
    return _typed_columns("columns")


def spark_letters() -> str:
    """Return the columns of dead letters."""
    return _typed_columns("letter_columns")


def _typed_columns(room: str) -> str:
    columns = importlib.import_module(f"holdfast.pipeline.reader.{room}").COLUMNS
    lines = ["| column | type | may be null |", "| --- | --- | --- |"]
    return "\n".join([*lines, *(f"| `{name}` | {kind} | {'yes' if null else 'no'} |" for name, kind, null in columns)])


# --- state tables ----------------------------------------------------------------------------------------------------


def states(name: str) -> str:
    """Return one diagram and its table."""
    module = importlib.import_module("holdfast.core.states.drawing")
    table = module.TABLES[name]
    lines = ["```mermaid", module.diagram(name).rstrip(), "```", "", "| state | event | origin | action | next state |"]
    lines.append("| --- | --- | --- | --- | --- |")
    order, events = list(table.states), list(table.events)
    for state, event in sorted(table.cells, key=lambda cell: (order.index(cell[0]), events.index(cell[1]))):
        action, after = table.cells[state, event]
        origin = "ours" if event.is_ours else "the peer's"
        moved = after.value if after is not state else "—"
        lines.append(f"| {state.value} | {event.value} | {origin} | {action.value} | {moved} |")
    return "\n".join(lines)


def tables() -> list[str]:
    """Return the names of the state tables."""
    return list(importlib.import_module("holdfast.core.states.drawing").TABLES)


# --- measurements ----------------------------------------------------------------------------------------------------


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


def buffers() -> str:
    """Return the table of every buffer of a server, with its bound."""
    found: str = runpy.run_path(str(DOCS / "buffers.py"))["table"]()
    return found


def results(name: str, *arguments: str) -> str:
    """Return a part of a page that is made from the recorded results of tests."""
    found: str = _results()[name](*arguments)
    return found


@cache
def _results() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "results.py"))


def policy_assertions() -> str:
    """Return the table of the policy assertions that demand something of a source."""
    found: str = runpy.run_path(str(DOCS / "policy_assertions.py"))["table"]()
    return found


# --- pages -----------------------------------------------------------------------------------------------------------

WHOLE: dict[str, Callable[[], str]] = {"reference/api.md": api, "reference/commands.md": commands}
PARTS: dict[str, Callable[[], str]] = {
    **{f"settings {name}": partial(settings, name) for name in SETTINGS},
    "broker keys": broker_keys,
    "broker example": broker_example,
    "audit rules": audit_rules,
    "journal columns": journal_columns,
    "journal events": journal_events,
    "pipeline keys": pipeline_keys,
    "pipeline example": pipeline_example,
    "metrics": metrics,
    "pipeline metrics": partial(metrics, "pipeline/mediation/execution/metrics.py"),
    "routes": routes,
    "incidents": incidents,
    "paper": paper,
    "comparison": comparison,
    "backlog": backlog,
    "buffers": buffers,
    "runs": partial(results, "runs"),
    "scenarios": partial(results, "scenarios"),
    **{f"interop {peer}": partial(results, "interop", peer) for peer in _results()["PEERS"]},
    "policy assertions": policy_assertions,
    "spark options": spark_options,
    "spark write options": partial(spark_options, "writer.options", "WriteOptions"),
    "spark columns": spark_columns,
    "spark letters": spark_letters,
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
        text = results("conformance", text)
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
