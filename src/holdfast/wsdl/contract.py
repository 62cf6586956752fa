"""Contract: the operations of one port of a WSDL, with values on one side and bodies on the other.

zeep parses the WSDL, serializes values and parses bodies. It accepts invalid bodies, so every body is also validated
against the schema, in both directions.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import zeep.exceptions
import zeep.settings
import zeep.transports
import zeep.xsd
from lxml import etree
from zeep.wsdl.bindings.soap import Soap11Binding, Soap12Binding
from zeep.wsdl.messages.soap import DocumentMessage
from zeep.wsdl.wsdl import Document

from holdfast.core.versions import SOAP
from holdfast.exceptions import ConfigurationError, EnvelopeError, HoldfastError, OperationFault, PeerFault
from holdfast.settings import suggestion
from holdfast.wire import check_header_blocks
from holdfast.wire.body import parse_element
from holdfast.wire.names import SOAP_NS
from holdfast.wire.wsdl import Actions, HeaderBlocks
from holdfast.wsdl.defects import check_namespaces, first_defect, unusable_operations
from holdfast.wsdl.documents import Documents
from holdfast.wsdl.fields import ELEMENT, TYPE, as_field, drop_defaults, is_nil
from holdfast.wsdl.groups import parts
from holdfast.wsdl.headers import Blocks, bare
from holdfast.wsdl.schemas import BodySchema, rpc_schemas
from holdfast.wsdl.simple_types import simple_types
from holdfast.wsdl.structures import complete
from holdfast.wsdl.substitutes import DerivedTypes, Substitutes, SubstitutionGroups
from holdfast.wsdl.values import check_one_value, parsed, prepared
from holdfast.wsdl.zeep_documents import ZeepDocuments

_WITHOUT_VALUES = (
    "Correct the WSDL, or ask its owner to do so. Or use its messages without values: source.request(body, action=…) "
    "or source.send(…), and @app.on(action)."
)


class _Loader(zeep.transports.Transport):
    """Gives zeep the documents, and nothing else."""

    def __init__(self, documents: Documents) -> None:
        super().__init__()
        self._documents = ZeepDocuments(documents)

    def load(self, url: str) -> bytes:
        return self._documents.load(url)


class _Document(Document):
    """zeep's WSDL, with simple types that lose no value."""

    def load(self, location: Any) -> None:
        simple_types(self.types)
        super().load(location)


@dataclass(frozen=True)
class Operation:
    """One operation.

    Attributes:
        name: Its name in the WSDL.
        actions: Its wsa:Action values.
        documentation: Its wsdl:documentation, "" without one.
        input: zeep's element of the request's body; None if the body is empty.
        output: zeep's element of the reply's body; None for a one-way operation, or if the body is empty.
        faults: zeep's element of the detail of each declared fault, by the fault's name.
        headers: The header blocks that the WSDL declares for its request.
        reply_headers: Those of its reply.
        fault_headers: Those of its faults.
    """

    name: str
    actions: Actions
    documentation: str
    input: Any
    output: Any
    faults: Mapping[str, Any]
    headers: Blocks
    reply_headers: Blocks
    fault_headers: Blocks

    @property
    def is_one_way(self) -> bool:
        """Whether it has no reply."""
        return not self.actions.reply


class Contract:
    """The operations of one port.

    Args:
        documents: The documents of the WSDL.
        port: The name of the wsdl:port; None: the only one with a policy for reliable messaging, or the first SOAP
            port.

    Raises:
        ConfigurationError: the documents are not a WSDL 1.1 with a SOAP binding, or the port does not exist.
        TransportError: a document cannot be fetched.
    """

    KEYS = (TYPE, ELEMENT)
    """Keys of values that are no fields."""

    def __init__(self, documents: Documents, port: str | None = None) -> None:
        self.documents = documents
        self.description = documents.description()
        self._document = _document(documents)
        self._ports = {
            one.name: one.binding
            for service in self._document.services.values()
            for one in service.ports.values()
            if isinstance(one.binding, Soap11Binding | Soap12Binding)
        }
        self.port, binding = self._binding(port)
        self.zeep_binding = binding
        """zeep's wsdl:binding."""
        self.name = str(etree.QName(binding.port_type.name).localname)
        """The name of its wsdl:portType."""
        self.envelope = SOAP_NS[SOAP.V1_2 if isinstance(binding, Soap12Binding) else SOAP.V1_1]
        """The namespace of its envelopes."""
        refused: dict[str, str] = {}
        self.operations = dict(self._operations(binding, refused))
        self.unusable = unusable_operations(documents, str(binding.name.text), self.operations, self._document.types)
        self.unusable |= refused
        """Operations that the WSDL does not describe completely -> the reason."""
        for name in self.unusable:
            self.operations.pop(name, None)
        bodies = [
            body
            for one in self.operations.values()
            for body in (one.input, one.output, *one.faults.values())
            if body is not None
        ]
        types = self._document.types
        self.substitutes = Substitutes(DerivedTypes(documents, types), SubstitutionGroups(documents, types))
        groups = self.substitutes.elements
        complete((*types.types, *(getattr(one, "type", None) for one in (*types.elements, *bodies))), groups)
        for body in bodies:
            groups.complete(body)
        self._schema: BodySchema | None = None

    @cached_property
    def demands_mtom(self) -> bool:
        """Whether the policy of the port demands MTOM."""
        try:
            return self.description.port(self.port or None).is_mtom
        except ConfigurationError:  # its policy cannot be met, or it has no port
            return False

    def operation(self, name: str) -> Operation:
        """Return the operation with that name.

        Raises:
            ConfigurationError: the port has no such operation. The remedy names the most similar one.
        """
        found = self.operations.get(name)
        if found is not None:
            return found
        if name in self.unusable:
            raise ConfigurationError(
                f"The operation {name!r} of the WSDL is not usable: {self.unusable[name]}.",
                remedy=_WITHOUT_VALUES,
            )
        others = [port for port, binding in self._ports.items() if name in binding.all()]
        if others:
            raise ConfigurationError(
                f"The port {self.port} of the WSDL has no operation {name!r}, but it exists at {', '.join(others)}.",
                remedy=f"Choose the port: port={others[0]!r} in Python, --port {others[0]} in a command.",
            )
        raise ConfigurationError(
            f"The WSDL has no operation {name!r}.",
            remedy=suggestion(name, self.operations, f"It has: {', '.join(self.operations) or 'none'}."),
        )

    def operation_of(self, body: etree._Element | None, action: str = "") -> Operation:
        """Return the operation of a request.

        Args:
            body: The body's element; None for an empty body.
            action: Its wsa:Action or SOAPAction, "" if unknown. It decides between operations with the same element.

        Raises:
            ConfigurationError: the WSDL has no such operation.
        """
        tag = None if body is None else str(body.tag)
        fitting = [one for one in self.operations.values() if _may_be(one.input, tag)]
        for one in fitting:
            if one.actions.request == action:
                return one
        if len(fitting) == 1:
            return fitting[0]
        told, remedy = "several operations" if fitting else "no operation", "Use the WSDL of this service."
        if not fitting and self.unusable:
            reasons = "; ".join(f"{name}, because {reason}" for name, reason in self.unusable.items())
            told, remedy = f"no usable operation ({reasons:.400})", _WITHOUT_VALUES
        raise ConfigurationError(f"The WSDL has {told} with the body {tag}.", remedy=remedy)

    # --- values to bodies -----------------------------------------------------------------------------------------

    def request(
        self, operation: Operation, arguments: tuple[Any, ...], values: Mapping[str, Any], *, is_json: bool = False
    ) -> bytes:
        """Return the body of a request.

        Args:
            operation: The operation.
            arguments: The values of its first fields, or the value of an input without fields.
            values: Its fields by name.
            is_json: Whether the values are from JSON, which has no bytes: binary values are then texts.

        Raises:
            EnvelopeError: the values do not fit the operation's input; the message names the element.
        """
        what = f"the operation {operation.name}"
        return self._write(what, operation.input, arguments, values, is_json=is_json)

    def reply(self, operation: Operation, value: Any) -> bytes:
        """Return the body of a reply.

        Args:
            operation: The operation.
            value: What :meth:`reply_value` returns for it: the value of the only field of the output, or a mapping of
                its fields; None for an output without fields.

        Raises:
            EnvelopeError: the value does not fit the operation's output; the message names the element.
        """
        arguments: tuple[Any, ...]
        values: Mapping[str, Any]
        known = [*fields(operation.output)]
        if not known and value in (None, {}) and not is_bare(operation.output):
            arguments, values = (), {}
        elif isinstance(value, Mapping) and self._is_whole(operation.output, known, value):
            arguments, values = (), value
        elif len(known) == 1:
            arguments, values = (), {known[0]: value}
        else:
            check_one_value(operation.output, value, f"The reply of {operation.name}")
            arguments, values = (value,), {}
        return self._write(f"the reply of {operation.name}", operation.output, arguments, values)

    def _is_whole(self, element: Any, known: list[str], value: Mapping[str, Any]) -> bool:
        """Whether a mapping has all fields of a reply, and is not the value of the only one."""
        if element is not None and element.is_named(value):
            return True
        if TYPE in value and {*known} < {*value} and isinstance(element.type, zeep.xsd.ComplexType):
            return len(known) > 1 or bool(self.substitutes.types.derived(element.type))
        return len(known) > 1 or {*value} == {*known}

    def fault_detail(self, operation: Operation, fault: str, values: Mapping[str, Any]) -> bytes:
        """Return the detail of a declared fault.

        Raises:
            ConfigurationError: the operation declares no such fault.
            EnvelopeError: the values do not fit the fault's element; the message names the element.
        """
        if fault not in operation.faults:
            raise ConfigurationError(
                f"The operation {operation.name} declares no fault {fault!r}.",
                remedy=suggestion(fault, operation.faults, f"It declares: {', '.join(operation.faults) or 'none'}."),
            )
        return self._write(f"the fault {fault}", operation.faults[fault], (), values)

    def header_bytes(self, blocks: Blocks, given: object, *, is_json: bool = False) -> bytes:
        """Return the header blocks of a message.

        Args:
            blocks: The declared ones, of an :class:`Operation`.
            given: Their values by name, where None is no block. A value may be an lxml element, which is written as it
                is. Or all header blocks of the message as XML, declared or not: they are sent as they are.
            is_json: As for :meth:`request`.

        Raises:
            EnvelopeError: A value does not fit, the WSDL declares no such block, or a required one is missing.
        """
        if isinstance(given, bytes):
            if given:
                check_header_blocks(given)
            blocks.check_present(given)
            return given
        if not isinstance(given, Mapping):
            kind = type(given).__name__
            raise EnvelopeError(f"headers must be a dict of values by name, or bytes of XML, not {kind}.")
        written: dict[str, bytes] = {}
        for name, value in given.items():
            block = blocks.named(name)
            if block.key in written:
                raise EnvelopeError(f"The header {block.key} is given twice.", remedy="Give each header one value.")
            if isinstance(value, etree._Element) and value.tag == block.name:
                self._check(bare(value), block.element)
                written[block.key] = etree.tostring(value, with_tail=False, encoding="utf-8")
            elif value is not None:
                what = f"the header {block.key}"
                is_fields = isinstance(value, Mapping) and not is_bare(block.element)
                if not is_fields:
                    check_one_value(block.element, value, what)
                arguments, values = ((), value) if is_fields else ((value,), {})
                written[block.key] = self._write(what, block.element, arguments, values, is_json=is_json)
        blocks.check_complete(written)
        return b"".join(written.values())

    def _write(
        self,
        what: str,
        element: Any,
        arguments: tuple[Any, ...],
        values: Mapping[str, Any],
        *,
        is_json: bool = False,
    ) -> bytes:
        if element is None:
            if arguments or values:
                raise EnvelopeError(f"{what} takes no values: its body is empty")
            return b""
        parent = etree.Element("parent")
        try:
            element.render(parent, prepared(element, arguments, values, self.substitutes, is_json=is_json))
        except EnvelopeError as error:
            raise EnvelopeError(
                f"The values for {what} do not fit the WSDL: {error.message}", remedy=error.remedy
            ) from None
        except RecursionError:
            raise EnvelopeError(
                f"The values for {what} are nested too deeply.",
                remedy="Send fewer levels: a service of Holdfast accepts 64 (max_depth).",
            ) from None
        except Exception as error:  # zeep raises many kinds of errors for values of a wrong type
            raise EnvelopeError(f"The values for {what} do not fit the WSDL: {_reason(error)}") from error
        if len(parent) != 1:
            raise EnvelopeError(f"The values for {what} make no element.")
        written = etree.tostring(parent[0], with_tail=False, encoding="utf-8")
        try:
            self._check(parse_element(written), element)
        except EnvelopeError as error:
            raise EnvelopeError(f"The values for {what} do not fit the WSDL. {error.message}") from None
        return written

    # --- bodies to values -----------------------------------------------------------------------------------------

    def request_values(self, operation: Operation, body: bytes) -> Any:
        """Return the values of a request's body: a dict of the fields, or the value of an element without fields.

        Raises:
            EnvelopeError: the body is not valid; the message names the element.
        """
        return self._read(f"The operation {operation.name} takes", operation.input, body)

    def reply_value(self, operation: Operation, body: bytes, *, is_json: bool = False) -> Any:
        """Return the value of a reply's body: that of the only field of the output, or a dict of its fields.

        Args:
            operation: The operation.
            body: The body.
            is_json: Whether the value is for JSON, which has no bytes: binary values are then texts.

        Raises:
            EnvelopeError: the body is not valid; the message names the element.
        """
        value = self._read(f"The operation {operation.name} returns", operation.output, body, is_json=is_json)
        known = [*fields(operation.output)]
        return value[known[0]] if len(known) == 1 and isinstance(value, dict) and [*value] == known else value

    def header_values(self, blocks: Blocks, headers: bytes, *, is_json: bool = False) -> dict[str, Any]:
        """Return the values of the declared header blocks of a message, by name; None for each absent one.

        ``is_json`` as for :meth:`reply_value`.

        Raises:
            EnvelopeError: A block is not valid, is there twice, or is required and missing.
        """
        found = blocks.elements(headers)
        values: dict[str, Any] = dict.fromkeys(blocks)
        for key, element in found.items():
            try:
                values[key] = self._value(blocks[key].element, element, is_json=is_json)
            except EnvelopeError as error:
                message = f"The header {key} does not fit the WSDL. {error.message}"
                raise EnvelopeError(message, remedy=error.remedy) from None
        return values

    def fault(self, operation: Operation, fault: PeerFault, *, is_json: bool = False) -> PeerFault:
        """Return a fault with the values of its detail if the operation declares it, else the same fault.

        ``is_json`` as for :meth:`reply_value`.
        """
        try:
            detail = parse_element(fault.detail) if fault.detail else None
        except EnvelopeError:  # text, or several elements
            return fault
        fitting = [name for name, one in operation.faults.items() if detail is not None and _may_be(one, detail.tag)]
        if detail is None or not fitting:
            return fault
        # The element decides, since many services send the action of all faults. Faults may share an element.
        name = next((one for one in fitting if operation.actions.of_fault(one) == fault.action), fitting[0])
        try:
            value = self._value(operation.faults[name], detail, is_json=is_json)
        except EnvelopeError:
            return fault
        return OperationFault(
            fault.message, name=name, value=value, code=fault.code, detail=fault.detail, element=fault.element
        )

    def _read(self, what: str, element: Any, body: bytes, *, is_json: bool = False) -> Any:
        if element is None or not body:
            if element is None and not body:
                return {}
            raise EnvelopeError(f"{what} {_shown(element)}, not {_shown(parse_element(body) if body else None)}.")
        found = parse_element(body)
        if not _may_be(element, found.tag):
            raise EnvelopeError(f"{what} {_shown(element, found)}, not {_shown(found, element)}.")
        return self._value(element, found, is_json=is_json)

    def _value(self, element: Any, found: etree._Element, *, is_json: bool = False) -> Any:
        nil = [one for one in found.iter(etree.Element) if is_nil(one)]
        self._check(found, element)
        for one in nil:
            drop_defaults(one)
        try:
            return parsed(element, found, self._document.types, is_json=is_json)
        except EnvelopeError as error:
            raise EnvelopeError(f"{_shown(element)} cannot be read: {error.message}", remedy=error.remedy) from None
        except Exception as error:  # zeep cannot convert a valid body; the sender learns nothing of the program here
            remedy = f"Report this, with the WSDL, as a defect: {_reason(error)}"
            raise EnvelopeError(f"{_shown(element)} is valid, but cannot be converted.", remedy=remedy) from error

    def compile_schema(self) -> None:
        """Compile the schema now, rather than for the first body.

        Raises:
            ConfigurationError: the schema cannot be compiled.
        """
        if self._schema is None:
            bodies = [body for one in self.operations.values() for body in (one.input, one.output) if body is not None]
            self._schema = BodySchema(self.documents, list(rpc_schemas(one for one in bodies if one.is_rpc)))

    def _check(self, written: etree._Element, element: Any) -> None:
        self.compile_schema()
        assert self._schema is not None
        self._schema.check(written, is_rpc=element.is_rpc)

    # --- the WSDL -------------------------------------------------------------------------------------------------

    def _binding(self, port: str | None) -> tuple[str, Any]:
        ports = self._ports
        if port is not None and port not in ports:
            raise ConfigurationError(
                f"The WSDL has no SOAP port {port!r}.",
                remedy=suggestion(port, ports, f"It has: {', '.join(ports) or 'none'}."),
            )
        if port is None and len(ports) > 1:
            try:
                port = self.description.port().name
            except ConfigurationError:
                port = next(filter(self._is_reliable, ports), next(iter(ports)))
        if not ports:
            for binding in self._document.bindings.values():
                if isinstance(binding, Soap11Binding | Soap12Binding):
                    return "", binding
            raise ConfigurationError(
                f"The WSDL {self.documents.first} has no SOAP binding.", remedy="Check that the WSDL is complete."
            )
        name = port or next(iter(ports))
        return name, ports[name]

    def _is_reliable(self, port: str) -> bool:
        try:
            return self.description.port(port).is_reliable
        except ConfigurationError:  # its policy cannot be met
            return False

    def _operations(self, binding: Any, refused: dict[str, str]) -> Iterator[tuple[str, Operation]]:
        port_type = str(binding.port_type.name.text)
        actions = self.description.actions(port_type)
        documentation = self.description.documentation(port_type)
        headers = self.description.headers(str(binding.name.text))
        for name in binding.all():
            found = binding.get(name)
            if name not in actions:
                continue
            faults = {
                fault: next(iter(message.parts.values())).element
                for fault, message in found.abstract.fault_messages.items()
                if message.parts
            }
            has_output = found.abstract.output_message is not None
            try:
                bodies = _body("input", found.input), _body("output", found.output) if has_output else None
            except ConfigurationError as error:
                refused[name] = error.message
                continue
            is_rpc = found.style == "rpc"
            for body in bodies:
                if body is not None:
                    body.is_rpc = is_rpc
            if is_rpc and bodies[1] is not None:  # WS-I Basic Profile 1.1 R2729; zeep takes the name of the message
                bodies[1].qname = etree.QName(bodies[1].qname.namespace, f"{name}Response")
            yield (
                name,
                Operation(
                    name,
                    actions[name],
                    documentation.get(name, ""),
                    *bodies,
                    {fault: as_field(element) for fault, element in faults.items() if element is not None},
                    *self._header_blocks(name, headers.get(name)),
                ),
            )

    def _header_blocks(self, operation: str, declared: HeaderBlocks | None) -> Iterator[Blocks]:
        messages = f"the operation {operation}", f"the reply of {operation}", f"a fault of {operation}"
        for message, blocks in zip(messages, declared or ((), (), ()), strict=True):
            yield Blocks(message, blocks, self._document.types)


def _document(documents: Documents) -> Document:
    check_namespaces(documents)
    settings = zeep.settings.Settings(forbid_dtd=True, forbid_entities=True, force_https=False)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="zeep")  # Contract.unusable has them
            return _Document(documents.first, _Loader(documents), settings=settings)
    except HoldfastError:
        raise
    except Exception as error:  # zeep raises many kinds of errors for a wrong document, and names another one
        raise ConfigurationError(
            f"{documents.first} is not a usable WSDL 1.1: {first_defect(documents) or _reason(error)}",
            remedy="Check that the WSDL and the documents that it imports are complete.",
        ) from error


def _body(word: str, message: Any) -> Any:
    """Return the element of the body of an operation's input or output; None if the body is empty.

    Raises:
        ConfigurationError: There is no such message, or its body has several elements, or one that no schema declares.
    """
    if message is None:
        raise ConfigurationError(f"its binding has no wsdl:{word}")
    element = message.body
    if isinstance(message, DocumentMessage) and message.abstract is not None:
        typed = [name for name, part in message.abstract.parts.items() if part.element is None]
        if typed and (element is None or element.name in typed):  # zeep gives the part's name to an element
            raise ConfigurationError(f"in document style, a part needs an element, and its part {typed[0]} has a type")
    if element is None:
        return None
    if getattr(message, "_is_body_wrapped", False):
        if not element.type.elements:
            return None
        raise ConfigurationError("a body of it has several elements: in document style, a message has one part")
    return as_field(element)


def fields(element: Any) -> dict[str, bool]:
    """Return the fields of a body's element, and whether each may be absent."""
    kind = getattr(element, "type", None)
    if not isinstance(kind, zeep.xsd.ComplexType):
        return {}
    found = {name: is_optional for name, _, is_optional in parts(kind)}
    return found | {name: not getattr(one, "required", False) for name, one in kind.attributes}


def is_bare(element: Any) -> bool:
    """Whether a body's element is one value without fields."""
    return element is not None and not isinstance(element.type, zeep.xsd.ComplexType)


def _may_be(element: Any, tag: object) -> bool:
    """Whether a body with a tag, None for an empty one, is an element or one of its substitution group."""
    return tag is None if element is None else tag in [one.qname.text for one in (element, *element.members)]


def _shown(element: Any, other: Any = None) -> str:
    """Return an element in words, with its namespace if another one has the same local name."""
    if element is None:
        return "an empty body"
    name = _name(element)
    if other is None or _name(other).localname != name.localname:
        return f"the element {name.localname}"
    return f"the element {name.text}" if name.namespace else f"the element {name.localname} in no namespace"


def _name(element: Any) -> etree.QName:
    return element.qname if hasattr(element, "qname") else etree.QName(element)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 500 else f"{text[:500]}…"
