"""A typed Python module for the operations of a WSDL: a class that calls them, and a TypedDict for each structure."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterator
from dataclasses import replace

from holdfast.exceptions import ConfigurationError
from holdfast.wsdl.contract import Contract, Operation
from holdfast.wsdl.fields import IS_NIL
from holdfast.wsdl.shapes import DURATION, Field, Shape, Shapes

WRITTEN_BY = "Written by `holdfast wsdl --stubs`."
"""A sentence that only such modules have."""
_HEAD = '''"""Operations of {where}.

{mark} Write it again when the WSDL changes, instead of editing it.
"""

from __future__ import annotations

import collections.abc
import datetime
from decimal import Decimal
from typing import Any, Literal, NotRequired, TypedDict, cast

import holdfast
import holdfast.sync

__all__ = [{names}]
'''

_OPTIONS = (
    '_sequence_key: str = "", _message_id: str | None = None, _headers: {}, '
    "_attachments: collections.abc.Sequence[holdfast.Attachment] = (), _timeout: float | None = 60.0"
)
_PASSED = ", ".join(f"{one}={one}" for one in re.findall(r"(_\w+):", _OPTIONS))
_REPLY_HEADERS = "_reply_headers: {} | None = None"
_PASSED_REPLY_HEADERS = '_reply_headers=cast("dict[str, Any] | None", _reply_headers)'
_NIL = "NilValue"
_NIL_CLASS = f'{_NIL} = TypedDict("{_NIL}", {{"{IS_NIL}": Literal[True]}})'
"""The value of an optional field that is nil, not absent."""
_DURATION = f"# A datetime.timedelta, an isodate.Duration if it has years or months, or text.\n{DURATION} = Any"
_USED = {"bool", "bytes", "collections", "datetime", "dict", "float", "holdfast", "int", "list", "self", "str", "value"}
_USED |= {"Any", "Decimal", "Literal", "NotRequired", "TypedDict", "cast", "tuple", "_source", _NIL, DURATION}
"""Names that the module itself uses: a class, method or parameter with one of them would hide it."""


def typed_module(contract: Contract) -> str:
    """Return the source text of a module for the operations of a contract. ``mypy --strict`` accepts it."""
    shapes = Shapes(contract, taken=contract.operations)  # a method hides a class with its name
    options: dict[str, tuple[str, str]] = {}
    """Name of an operation -> its parameters for options, and how they are passed on."""
    for operation in contract.operations.values():
        shapes.input(operation)
        shapes.output(operation)
        shapes.faults(operation)
        options[operation.name] = _options(operation, shapes)
    structures = {_identifier(one.name): _structure(one) for one in shapes.named}
    name = _identifier(contract.name)
    name = f"{name}Operations" if {name, f"Blocking{name}"} & set(structures) else name
    classes = [
        "\n".join(_class(contract, shapes, options, f"{prefix}{name}", is_blocking=is_blocking))
        for prefix, is_blocking in (("", False), ("Blocking", True))
    ]
    if any(f"| {_NIL} |" in one for one in classes):
        structures = {_NIL: _NIL_CLASS, **structures}
    if any(DURATION in one for one in (*structures.values(), *classes)):
        structures = {DURATION: _DURATION, **structures}
    names = sorted([name, f"Blocking{name}", *structures])
    where = f"the port {contract.port}" if contract.port else f"the binding {contract.name}"
    head = _HEAD.format(mark=WRITTEN_BY, where=_text(where), names=", ".join(f'"{one}"' for one in names))
    return "\n\n".join([head, *structures.values(), *classes]) + "\n"


def _options(operation: Operation, shapes: Shapes) -> tuple[str, str]:
    """Return the parameters of a method for the options of ``call``, and how they are passed on."""
    kind, parameters, passed = 'bytes = b""', _OPTIONS, _PASSED
    if operation.headers:
        made = shapes.structure(f"{operation.name}Headers", shapes.headers(operation.headers))
        default = "" if any(not one.is_optional for one in made.fields) else ' = b""'
        kind = f"{_type(made)} | bytes{default}"
    if operation.reply_headers:
        given = [replace(one, is_optional=True) for one in shapes.headers(operation.reply_headers)]
        made = shapes.structure(f"{operation.name}ReplyHeaders", given)
        parameters, passed = f"{parameters}, {_REPLY_HEADERS.format(_type(made))}", f"{passed}, {_PASSED_REPLY_HEADERS}"
    return parameters.format(kind), passed


def _class(
    contract: Contract, shapes: Shapes, options: dict[str, tuple[str, str]], name: str, *, is_blocking: bool
) -> Iterator[str]:
    source = "holdfast.sync.Source" if is_blocking else "holdfast.Source"
    yield f"class {name}:"
    yield f'    """Calls the operations with a :class:`{source}` that has the WSDL."""'
    yield ""
    yield f"    def __init__(self, source: {source}) -> None:"
    yield "        self._source = source"
    for operation in contract.operations.values():
        yield ""
        yield from _method(operation, shapes, *options[operation.name], is_blocking=is_blocking)


def _method(operation: Operation, shapes: Shapes, options: str, passed: str, *, is_blocking: bool) -> Iterator[str]:
    fields = shapes.input(operation)
    ordered = [*(one for one in fields if not one.is_optional), *(one for one in fields if one.is_optional)]
    names = _parameter_names(operation, fields, options)
    parameters = [f"{names[one.name]}: {_parameter(one)}" for one in ordered]
    bare = shapes.bare_input(operation)
    may_be_nil = " | None" if bare is not None and operation.input.nillable else ""
    first = f"self, value: {_type(bare)}{may_be_nil}, *, " if bare is not None else "self, *, "
    result = _result(operation, shapes, is_blocking=is_blocking)
    start = "    def" if is_blocking else "    async def"
    yield f"{start} {_identifier(operation.name)}({first}{', '.join([*parameters, options])}) -> {result}:"
    faults = [f"{name} ({_type(one)})" for name, one in shapes.faults(operation).items()]
    raised = f"Raises OperationFault: {', '.join(faults)}." if faults else ""
    told = "\n\n        ".join(filter(None, (_text(operation.documentation), _text(raised))))
    if told:
        yield f'        """{told}"""'
    plain = [f"{name}={name}" for name, own in names.items() if own == name]
    other = [f"{_literal(name)}: {own}" for name, own in names.items() if own != name]
    given = [_literal(operation.name), *(["value"] if bare is not None else []), *plain, passed]
    if other:
        given.append(f'**cast("dict[str, Any]", {{{", ".join(other)}}})')
    call = f"{'' if is_blocking else 'await '}self._source.call({', '.join(given)})"
    yield f"        {call}" if result == "None" else f"        return cast({_literal(result)}, {call})"


def _parameter_names(operation: Operation, fields: list[Field], options: str) -> dict[str, str]:
    """Return the parameter of each field. Two names of a schema may be the same one in Python.

    Raises:
        ConfigurationError: A field has the name of an option.
    """
    taken, names = {*re.findall(r"(_\w+):", options)}, dict[str, str]()
    for one in fields:
        if one.name in taken:
            raise ConfigurationError(
                f"The operation {operation.name} has the field {one.name}, and call() has an option with that name.",
                remedy="Call this operation without a typed module, with the values of its first fields by position.",
            )
    for one in fields:
        name = _identifier(one.name)
        while name in taken:
            name += "_"
        taken.add(name)
        names[one.name] = name
    return names


def _result(operation: Operation, shapes: Shapes, *, is_blocking: bool) -> str:
    if operation.is_one_way:
        return "holdfast.sync.Sent" if is_blocking else "holdfast.Sent"
    output = shapes.output(operation)
    if output is None:
        return "None"
    if isinstance(output, Shape):
        return _type(output)
    return _value(output) + (" | None" if output.is_optional or (output.is_nillable and not output.is_list) else "")


def _parameter(one: Field) -> str:
    text = _value(one)
    may_be_none = one.is_nillable and not one.is_list
    if one.is_optional:
        return f"{text} | {_NIL} | None = None" if may_be_none else f"{text} | None = None"
    return f"{text} | None" if may_be_none else text


def _structure(shape: Shape) -> str:
    entries = []
    for one in shape.fields:
        text = _value(one)
        may_be_none = one.is_nillable and not one.is_list
        text = f"NotRequired[{text} | None]" if one.is_optional else f"{text} | None" if may_be_none else text
        entries.append((one.name, text))
    name = _identifier(shape.name)
    if all(_identifier(one) == one for one, _ in entries):
        lines = [f"    {one}: {text}" for one, text in entries] or ["    pass"]
        return "\n".join([f"class {name}(TypedDict):", *lines])
    inner = ", ".join(f"{_literal(one)}: {_literal(text)}" for one, text in entries)
    return f'{name} = TypedDict("{name}", {{{inner}}})'


def _value(one: Field) -> str:
    if one.is_list:
        return f"list[{_type(one.shape)} | None]" if one.is_nillable else f"list[{_type(one.shape)}]"
    return _type(one.shape)


def _type(shape: Shape) -> str:
    choices = [*map(_type, shape.choices), *([shape.python] if shape.choices and shape.python else [])]
    text = " | ".join(dict.fromkeys(choices)) or shape.python or _identifier(shape.name)
    if shape.values and shape.python == "str" and not shape.choices:
        text = f"Literal[{', '.join(map(_literal, shape.values))}]"
    return f"list[{text}]" if shape.is_list else text


def _literal(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _identifier(name: str) -> str:
    text = re.sub(r"\W", "_", name)
    if not text or text[0].isdigit():
        text = f"_{text}"
    return f"{text}_" if keyword.iskeyword(text) or text in _USED else text


def _text(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"""', "'''").removesuffix('"')
