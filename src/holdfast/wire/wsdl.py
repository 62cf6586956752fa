"""A service described by WSDL 1.1: its ports, and the requirements of their policies for senders.

This module reads WSDL, and finds the policies that are attached to its parts; ``policy`` reads them. It fetches
nothing, but returns the imports of each added document.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from lxml import etree

from holdfast.core.versions import ALL_VERSIONS, RM, SOAP, Addressing, Versions
from holdfast.exceptions import ConfigurationError, EnvelopeError, clause
from holdfast.settings import suggestion
from holdfast.wire.body import parse_element
from holdfast.wire.names import WSA_NS
from holdfast.wire.policy.assertions import (
    ADDRESSING_DRAFTS,
    ADDRESSING_METADATA,
    HTTPS,
    MTOM_ASSERTIONS,
    POLLS,
    PROTECTED_TOKENS,
    RM_ASSERTIONS,
    SIGNED_TOKENS,
    Ability,
)
from holdfast.wire.policy.attachment import Attachments
from holdfast.wire.policy.choice import Need, needs_of
from holdfast.wire.policy.expressions import POLICY, Alternative, Policy
from holdfast.wire.policy.port_policies import PortPolicies, is_reliable
from holdfast.wire.policy.settings import StatedSettings, stated

WSDL = "http://schemas.xmlsoap.org/wsdl/"
WSDL_2 = "http://www.w3.org/ns/wsdl"
SOAP_BINDINGS = {
    "http://schemas.xmlsoap.org/wsdl/soap/": SOAP.V1_1,
    "http://schemas.xmlsoap.org/wsdl/soap12/": SOAP.V1_2,
}
ADDRESSING_ASSERTIONS = {
    f"{{{ADDRESSING_DRAFTS[1]}}}UsingAddressing": Addressing.V2004_08,
    f"{{{ADDRESSING_DRAFTS[0]}}}UsingAddressing": Addressing.V2005_08,
    f"{{{ADDRESSING_METADATA}}}Addressing": Addressing.V2005_08,
}
TRIED = {rm for rm in RM if rm.can.is_tried}
"""The versions of WS-RM that a description without a policy leaves open. Older ones must be named."""
PARAMETERS = [f"{{{one}}}{name}" for one in WSA_NS.values() for name in ("ReferenceParameters", "ReferenceProperties")]
ACTIONS = (f"{{{ADDRESSING_METADATA}}}Action", f"{{{ADDRESSING_DRAFTS[0]}}}Action")


@dataclass(frozen=True, slots=True)
class Port:
    """One endpoint of a service.

    Args:
        versions: Supported versions; every version that its description leaves open is included.
        is_reliable: Whether its policy mentions WS-ReliableMessaging.
        has_replies: Whether an operation has an output.
        settings: What its policy states about its Sequences.
        needs: The demands of its policy that depend on how the Source was made.
        is_optional: Whether its policy permits messages without WS-ReliableMessaging.
        is_mtom: Whether its policy demands MTOM.
    """

    name: str
    address: str
    versions: frozenset[Versions]
    is_reliable: bool
    has_replies: bool
    settings: StatedSettings = field(default_factory=StatedSettings)
    needs: tuple[Need, ...] = ()
    is_optional: bool = False
    is_mtom: bool = False


@dataclass(frozen=True, slots=True)
class Actions:
    """The wsa:Action values of one operation.

    Args:
        reply: The action of its output; "" for a one-way operation.
        faults: The action of each declared fault that states one, by the fault's name.
        default_faults: The default action of each declared fault, by the fault's name. It is for messages of
            WS-Addressing 2005/08; in older versions, the default is their action of all faults (2004/08, 3.3.2).
    """

    request: str
    reply: str
    faults: dict[str, str]
    default_faults: dict[str, str]

    def of_fault(self, name: str) -> str:
        """Return the action of a declared fault in WS-Addressing 2005/08."""
        return self.faults.get(name) or self.default_faults.get(name, "")


@dataclass(frozen=True, slots=True)
class HeaderBlock:
    """A header block that a wsdl:binding declares (WSDL 1.1, 3.7).

    Args:
        name: The name of its element, as "{namespace}local".
        part: The name of its part of a wsdl:message.
        is_required: Whether the WSDL says so (``wsdl:required``).
    """

    name: str
    part: str
    is_required: bool = False


class HeaderBlocks(NamedTuple):
    """The header blocks of the request of an operation, of its reply, and of its faults (``soap:headerfault``)."""

    request: list[HeaderBlock]
    reply: list[HeaderBlock]
    faults: list[HeaderBlock]


class Description:
    """A WSDL in one or more documents."""

    def __init__(self) -> None:
        self._places: dict[etree._Element, str] = {}
        """Root -> the location of its document."""
        self._attached: Attachments | None = None
        self._definitions: dict[str, dict[str | None, etree._Element]] = {}
        """Kind -> name -> the first definition with it: a WSDL has thousands of messages."""
        self._parts: dict[etree._Element, dict[str | None, etree._Element]] = {}

    def add(self, data: bytes, place: str) -> list[str]:
        """Add one document.

        Returns:
            The locations of its imports, as written.

        Raises:
            ConfigurationError: It is not WSDL 1.1.
        """
        try:
            root = parse_document(data)
        except EnvelopeError as error:
            raise _no_wsdl(place, clause(error.message.replace("the body", "it"))) from error
        if root.tag != f"{{{WSDL}}}definitions":
            is_2 = root.tag == f"{{{WSDL_2}}}description"
            raise _no_wsdl(place, "it is WSDL 2.0" if is_2 else f"its root is {etree.QName(root).localname}")
        self._places[root] = place
        self._attached = None
        self._definitions.clear()
        imports = root.iterfind(f"{{{WSDL}}}import")
        return [location for one in imports if (location := one.get("location"))]

    def port(
        self, name: str | None = None, abilities: Collection[Ability] | None = None, to: str | None = None
    ) -> Port:
        """Return the port to send to.

        Args:
            name: Its name; None: the only usable one with a policy for reliable messaging; if no port has one,
                the only usable one.
            abilities: What the Source does; None: whatever a Source can do.
            to: The URL that the Source uses instead of the port's.

        Raises:
            ConfigurationError: No port or several ports are usable; or the named one, or the only one with reliable
                messaging, is not usable, and why.
        """
        elements = {one.get("name", ""): one for one in self._all("service/port") if _soap_address(one) is not None}
        names = ", ".join(elements) or "none"
        if name is not None:
            if name not in elements:
                raise ConfigurationError(
                    f"the WSDL has no SOAP port {name!r}", remedy=suggestion(name, elements, f"It has: {names}.")
                )
            return self._read_port(elements[name], abilities, to)
        ports, refusals = [], []
        for element in elements.values():
            try:
                ports.append(self._read_port(element, abilities, to))
            except ConfigurationError as error:
                refusals.append((element, error))
        chosen = [port for port in ports if port.is_reliable]
        if not chosen:
            # A port without reliable messaging is no substitute for one that demands more than the Source can do.
            for element, refusal in refusals:
                if self._offers_reliability(element):
                    raise refusal
            chosen = ports
        if len(chosen) == 1:
            return chosen[0]
        if not chosen and refusals:
            raise refusals[0][1]
        if not chosen:
            raise ConfigurationError(
                "the WSDL has no port for SOAP over HTTP", remedy="Check that the WSDL is complete."
            )
        named = ", ".join(port.name for port in chosen)
        raise ConfigurationError(
            f"the WSDL has several ports: {named}", remedy="Choose one: port= in Python, --port in a command."
        )

    def port_names(self) -> list[str]:
        return [one.get("name", "") for one in self._all("service/port") if _soap_address(one) is not None]

    def operations(self) -> dict[str, str]:
        """The wsa:Action of each operation's request, and of its reply: "" for a one-way operation.

        See :meth:`actions`.
        """
        found: dict[str, str] = {}
        for kind in self._all("portType"):
            name = defined_name(kind) or ""
            stated, start = self._soap_actions(name), _joined(name)
            for operation in kind.iterfind(f"{{{WSDL}}}operation"):
                if operation.find(f"{{{WSDL}}}input") is not None:
                    actions = _actions(operation, stated, start)
                    found[actions.request] = actions.reply
        return found

    def actions_of_ports(self) -> dict[tuple[str, str], frozenset[str]]:
        """Return the actions of the requests of each wsdl:port, by the names of its service and its own."""
        found = {}
        for service in self._all("service"):
            for port in service.iterfind(f"{{{WSDL}}}port"):
                binding = self._find("binding", port, port.get("binding", ""))
                kind = "" if binding is None else full_name(binding, binding.get("type", ""))
                actions = frozenset(one.request for one in self.actions(kind).values())
                found[service.get("name", ""), port.get("name", "")] = actions
        return found

    def headers(self, binding: str) -> dict[str, HeaderBlocks]:
        """Return the header blocks that a wsdl:binding declares (WSDL 1.1, 3.7), by the operation's name.

        Args:
            binding: Its qualified name, as "{namespace}Name".
        """
        found = next((one for one in self._all("binding") if defined_name(one) == binding), None)
        return {} if found is None else self._headers_of(found)

    def headers_of_requests(self) -> dict[str, frozenset[str]]:
        """Return the names of the header blocks that any wsdl:binding declares for a request, by the request's action.

        Each is "{namespace}local".
        """
        found: dict[str, frozenset[str]] = {}
        for binding in self._all("binding"):
            actions = self.actions(full_name(binding, binding.get("type", "")))
            for name, blocks in self._headers_of(binding).items():
                if blocks.request and name in actions:
                    action = actions[name].request
                    found[action] = found.get(action, frozenset()).union(one.name for one in blocks.request)
        return found

    def _headers_of(self, binding: etree._Element) -> dict[str, HeaderBlocks]:
        return {
            operation.get("name", ""): HeaderBlocks(
                self._headers(operation, "input", "header"),
                self._headers(operation, "output", "header"),
                self._headers(operation, "*", "headerfault"),
            )
            for operation in binding.iterfind(f"{{{WSDL}}}operation")
        }

    def _headers(self, operation: etree._Element, message: str, word: str) -> list[HeaderBlock]:
        found: dict[str, HeaderBlock] = {}
        names = [f"{{{namespace}}}{word}" for namespace in SOAP_BINDINGS]
        for header in (one for each in operation.iterfind(f"{{{WSDL}}}{message}") for one in each.iter(*names)):
            definition = self._find("message", header, header.get("message", ""))
            part = None if definition is None else self._parts_of(definition).get(header.get("part"))
            if part is not None and part.get("element"):
                name = full_name(part, part.get("element", ""))
                # Few faults are about a header, so none must have the block of a headerfault.
                is_required = word == "header" and header.get(f"{{{WSDL}}}required") in ("true", "1")
                found[name] = HeaderBlock(name, header.get("part", ""), is_required)
        return list(found.values())

    def actions(self, port_type: str) -> dict[str, Actions]:
        """Return the actions of each operation of a wsdl:portType, by the operation's name.

        An action that the WSDL does not state is the default (WS-Addressing 1.0 Metadata, 4.4.4, with the names of
        WSDL 1.1, 2.4.5). For an input, the binding's soapAction precedes it; for an output, soapAction says nothing.

        Args:
            port_type: Its qualified name, as "{namespace}Name".
        """
        stated = self._soap_actions(port_type)
        start = _joined(port_type)
        return {
            operation.get("name", ""): _actions(operation, stated, start)
            for operation in self._operations_of(port_type)
        }

    def documentation(self, port_type: str) -> dict[str, str]:
        """Return the wsdl:documentation of each operation of a wsdl:portType that has one, by the operation's name."""
        found = {}
        for operation in self._operations_of(port_type):
            text = operation.find(f"{{{WSDL}}}documentation")
            if text is not None:
                found[operation.get("name", "")] = " ".join("".join(map(str, text.itertext())).split())
        return found

    def _operations_of(self, port_type: str) -> Iterator[etree._Element]:
        for kind in self._all("portType"):
            if defined_name(kind) == port_type:
                yield from kind.iterfind(f"{{{WSDL}}}operation")

    def _soap_actions(self, port_type: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for binding in self._all("binding"):
            if full_name(binding, binding.get("type", "")) != port_type:
                continue
            for operation in binding.iterfind(f"{{{WSDL}}}operation"):
                for one in operation.iterfind("*"):
                    action = _uri(one.get("soapAction", ""))
                    if _soap(one) is not None and action:
                        found.setdefault(operation.get("name", ""), action)
        return found

    def _read_port(self, port: etree._Element, abilities: Collection[Ability] | None, to: str | None) -> Port:
        name = port.get("name", "")
        binding = self._definition("binding", port, port.get("binding", ""))
        style = next((one for one in binding.iterfind("*") if _soap(one) is not None), None)
        address = _soap_address(port)
        if style is None or address is None:
            raise ConfigurationError(f"the port {name} has no SOAP binding", remedy="Name another port.")
        kind = self._definition("portType", binding, binding.get("type", ""))
        self._check_extensions(name, (port, binding))
        if abilities is not None:
            is_https = (to or address).startswith("https://")
            abilities = {*abilities} - {HTTPS} | ({HTTPS, PROTECTED_TOKENS, SIGNED_TOKENS} if is_https else set())
        policies = list(self._policies(port, binding, kind))
        messages = list(self._policies_of_messages(policies[0], binding, kind))
        found = PortPolicies(f"the port {name}", policies, messages).alternatives(abilities)
        found.sort(key=lambda one: any(need.ability is POLLS for need in needs_of(one, abilities)))  # only if demanded
        versions = self._versions(found, binding, _soap(style))
        if not versions:
            raise self._no_versions(name, found, binding, _soap(style))
        best = next((one for one in found if self._versions([one], binding, _soap(style))), found[0])
        needs = [need for need in needs_of(best, abilities) if need.ability is not None]
        reliable = any(map(is_reliable, found))
        return Port(
            name,
            address,
            versions,
            reliable,
            kind.find(f"{{{WSDL}}}operation/{{{WSDL}}}output") is not None,
            stated(best),
            tuple(needs),
            reliable and not any(all(map(is_reliable, policy)) for policy in policies),
            all(any(one.name in MTOM_ASSERTIONS for one in alternative) for alternative in found),
        )

    def _offers_reliability(self, port: etree._Element) -> bool:
        """Whether any alternative of a port has reliable messaging, whatever else it demands."""
        binding = self._find("binding", port, port.get("binding", ""))
        kind = None if binding is None else self._find("portType", binding, binding.get("type", ""))
        if binding is None or kind is None:
            return False
        return any(is_reliable(one) for policy in self._policies(port, binding, kind) for one in policy)

    def _check_extensions(self, port: str, parts: tuple[etree._Element, ...]) -> None:
        """Raise if a part has an extension that a client must understand (WSDL 1.1, 2.1.3) and Holdfast does not.

        A port may also extend its address by reference parameters (WS-Addressing 1.0 Metadata, section 4.1).
        """
        for parameters in parts[0].iter(*PARAMETERS):
            if len(parameters):
                raise ConfigurationError(
                    f"the port {port} demands reference parameters, {self._attachments.place(parameters)}, which a "
                    "source does not send",
                    remedy="Name another port.",
                )
        for one in (child for part in parts for child in part.iterfind("*")):
            is_known = _soap(one) is not None or one.tag in ADDRESSING_ASSERTIONS
            is_known |= etree.QName(one).namespace in POLICY
            if one.get(f"{{{WSDL}}}required") in ("true", "1") and not is_known:
                raise ConfigurationError(
                    f"the port {port} requires {etree.QName(one).localname}, {self._attachments.place(one)}, a WSDL "
                    "extension that Holdfast does not support",
                    remedy="Name another port.",
                )

    def _versions(
        self, alternatives: list[Alternative], binding: etree._Element, soap: SOAP | None
    ) -> frozenset[Versions]:
        """Return the versions that any of the alternatives permits; all of them where it states none."""
        found = set[Versions]()
        for alternative in alternatives:
            rm, addressing = _demanded_versions(alternative, binding)
            found |= {
                one
                for one in ALL_VERSIONS
                if one.soap is soap and one.rm in (rm or TRIED) and one.addressing in (addressing or set(Addressing))
            }
        return frozenset(found)

    def _no_versions(
        self, port: str, alternatives: list[Alternative], binding: etree._Element, soap: SOAP | None
    ) -> ConfigurationError:
        """Return the error that no alternative states versions which can be combined. It names those of the first."""
        rm, addressing = _demanded_versions(alternatives[0], binding)
        found = [one for one in ALL_VERSIONS if one.soap is soap and one.rm in (rm or TRIED)]
        supported = ", ".join(sorted({f"{one.rm.value} with {one.addressing.value}" for one in found}))
        over = "" if soap is None else f" over SOAP {soap.value}"
        return ConfigurationError(
            f"the port {port} demands WS-ReliableMessaging {_listed(rm or TRIED)} with WS-Addressing "
            f"{_listed(addressing)}{over}, which cannot be combined. Holdfast supports {supported or 'none'}",
            remedy="Set versions instead of using the WSDL, or name another port.",
        )

    def _all(self, path: str) -> Iterator[etree._Element]:
        steps = "/".join(f"{{{WSDL}}}{step}" for step in path.split("/"))
        for root in self._places:
            yield from root.iterfind(steps)

    def _definition(self, kind: str, user: etree._Element, qname: str) -> etree._Element:
        found = self._find(kind, user, qname)
        if found is None:
            raise ConfigurationError(
                f"the WSDL refers to the {kind} {qname!r}, which it does not contain",
                remedy="Check whether a document is missing.",
            )
        return found

    def _find(self, kind: str, user: etree._Element, qname: str) -> etree._Element | None:
        if kind not in self._definitions:
            found = self._definitions[kind] = {}
            for one in self._all(kind):
                found.setdefault(defined_name(one), one)
        return self._definitions[kind].get(full_name(user, qname))

    def _parts_of(self, message: etree._Element) -> dict[str | None, etree._Element]:
        if message not in self._parts:
            self._parts[message] = {one.get("name"): one for one in message.iterfind(f"{{{WSDL}}}part")}
        return self._parts[message]

    @property
    def _attachments(self) -> Attachments:
        if self._attached is None:
            self._attached = Attachments(self._places)
        return self._attached

    # --- policies -------------------------------------------------------------------------------------------------

    def _policies(self, port: etree._Element, binding: etree._Element, kind: etree._Element) -> Iterator[Policy]:
        """Yield the policy of the endpoint, and then those of its operations and messages (WS-PolicyAttachment 1.5,
        4.1)."""
        attached = self._attachments
        service = port.getparent()
        yield attached.of(port, binding, kind, *(() if service is None else (service,)))
        for holder in (binding, kind):
            for operation in holder.iterfind(f"{{{WSDL}}}operation"):
                yield attached.of(operation)
                for message in operation.iterfind(f"{{{WSDL}}}*"):
                    yield attached.of(message)
                    definition = self._find("message", message, message.get("message", ""))
                    if definition is not None:
                        yield attached.of(definition)

    def _policies_of_messages(
        self, endpoint: Policy, binding: etree._Element, kind: etree._Element
    ) -> Iterator[tuple[str, list[Policy]]]:
        """Yield each input and output, in words, with the policies that apply to it."""
        attached = self._attachments
        by_name: dict[str, list[etree._Element]] = {}
        for one in binding.iterfind(f"{{{WSDL}}}operation"):
            by_name.setdefault(one.get("name", ""), []).append(one)
        for operation in kind.iterfind(f"{{{WSDL}}}operation"):
            name = operation.get("name", "")
            bound = by_name.get(name, [])
            for part in ("input", "output"):
                message = operation.find(f"{{{WSDL}}}{part}")
                if message is None:
                    continue
                definition = self._find("message", message, message.get("message", ""))
                subjects = [operation, *bound, message, *(one.find(f"{{{WSDL}}}{part}") for one in bound), definition]
                policies = [attached.of(one) for one in subjects if one is not None]
                yield f"the {part} of {name}, {attached.place(message)}", [endpoint, *policies]


def _demanded_versions(alternative: Alternative, binding: etree._Element) -> tuple[set[RM], set[Addressing]]:
    names = [*(one.name for one in alternative), *(str(one.tag) for one in binding.iterfind("*"))]
    rm = {RM_ASSERTIONS[one] for one in names if one in RM_ASSERTIONS}
    return rm, {ADDRESSING_ASSERTIONS[one] for one in names if one in ADDRESSING_ASSERTIONS}


def _listed(versions: Iterable[RM | Addressing]) -> str:
    return " or ".join(sorted(one.value for one in versions))


def parse_document(data: bytes) -> etree._Element:
    """Parse a WSDL or XML schema.

    Raises:
        EnvelopeError: As ``parse_element`` does; or a namespace has a brace, which no URI has: then the names of
            elements, as "{namespace}local", could not be read.
    """
    root = parse_element(data)
    if (b"}" in data or b"&#" in data) and any("}" in one for one in namespaces(root)):
        raise EnvelopeError("the body has a namespace with a brace")
    return root


def namespaces(root: etree._Element) -> Iterator[str]:
    """Yield the namespace of each declaration once, and each targetNamespace.

    The axis of XPath has a declaration for each element below it, too.
    """
    declarations = cast("Iterable[tuple[str, tuple[str, str]]]", etree.iterwalk(root, events=("start-ns",)))
    for _, (_, declared) in declarations:
        yield declared
    for one in root.iter("*"):
        yield one.get("targetNamespace", "")


def full_name(user: etree._Element, qname: str) -> str:
    """Return a name that an element uses as "{namespace}local", or "local" without a namespace."""
    prefix, _, local = qname.strip().rpartition(":")
    return _named(user.nsmap.get(prefix or None, ""), local)


def defined_name(definition: etree._Element) -> str | None:
    """Return the name of a child of wsdl:definitions in the same form; None if it has none."""
    owner, name = definition.getparent(), definition.get("name")
    return None if owner is None or name is None else _named(owner.get("targetNamespace", ""), name)


def _named(namespace: str, local: str) -> str:
    return f"{{{namespace}}}{local}" if namespace else local


def _action(message: etree._Element | None) -> str:
    """Return the action of an operation's input or output, "" without one."""
    if message is None:
        return ""
    return next((found for name in ACTIONS if (found := _uri(message.get(name, "")))), "")


def _uri(text: str) -> str:
    """Return the value of an xs:anyURI, whose white space is collapsed (XML Schema 1.0 part 2, 3.2.17)."""
    return " ".join(text.split())


def _joined(port_type: str) -> str:
    """The beginning of default actions (WS-Addressing 1.0 Metadata, 4.4.4)."""
    namespace, _, name = port_type.removeprefix("{").rpartition("}")
    # A URN has colons where a URL has slashes.
    delimiter = ":" if namespace.lower().startswith("urn:") else "/"
    return f"{namespace.removesuffix(delimiter)}{delimiter}{name}{delimiter}"


def _actions(operation: etree._Element, stated: dict[str, str], start: str) -> Actions:
    name = operation.get("name", "")
    asked, answered = operation.find(f"{{{WSDL}}}input"), operation.find(f"{{{WSDL}}}output")
    own_name = asked.get("name", "") if asked is not None else ""
    # WSDL 1.1, 2.4.5: without a name, the input of a two-way operation is called NAMERequest.
    default = f"{start}{own_name or (name if answered is None else f'{name}Request')}"
    request = _action(asked) or stated.get(name, "") or default
    reply = ""
    if answered is not None:
        reply = _action(answered) or f"{start}{answered.get('name') or f'{name}Response'}"
    declared = {one.get("name", ""): one for one in operation.iterfind(f"{{{WSDL}}}fault")}
    stated_faults = {fault: action for fault, one in declared.items() if (action := _action(one))}
    defaults = {fault: default_fault_action(one) for fault, one in declared.items()}
    return Actions(request, reply, stated_faults, defaults)


def default_fault_action(fault: etree._Element) -> str:
    """Return the default action of a fault that an operation of a wsdl:portType declares (Metadata, 4.4.4)."""
    operation = next(fault.iterancestors())
    start = _joined(defined_name(next(operation.iterancestors())) or "")
    delimiter = start[-1]
    return f"{start}{operation.get('name', '')}{delimiter}Fault{delimiter}{fault.get('name', '')}"


def _no_wsdl(place: str, why: str) -> ConfigurationError:
    is_url = place.startswith(("http://", "https://"))
    remedy = "Check whether the URL must end with ?wsdl." if is_url else "Check the file."
    return ConfigurationError(f"{place} is not a WSDL 1.1: {why}", remedy=remedy)


def _soap(element: etree._Element) -> SOAP | None:
    return SOAP_BINDINGS.get(etree.QName(element).namespace or "")


def _soap_address(port: etree._Element) -> str | None:
    for namespace in SOAP_BINDINGS:
        for one in port.iterfind(f"{{{namespace}}}address"):
            location = one.get("location", "").strip()
            if location.startswith(("http://", "https://")):
                return location
    return None
