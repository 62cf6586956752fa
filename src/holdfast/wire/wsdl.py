"""A service described by WSDL 1.1: its ports, and the requirements of their WS-Policy for senders.

This module reads WSDL and policies (WS-Policy 1.2 and 1.5, WS-RM Policy 1.0 and 1.1). It fetches nothing, but returns
the imports of each added document.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from lxml import etree

from holdfast.core.policy import Assurance, Delivery
from holdfast.core.versions import ALL_VERSIONS, RM, SOAP, Addressing, Versions
from holdfast.exceptions import ConfigurationError, EnvelopeError
from holdfast.wire.body import parse_element
from holdfast.wire.dialects.versions import DIALECTS
from holdfast.wire.unmet_assertions import POLICY, is_optional, unmet

WSDL = "http://schemas.xmlsoap.org/wsdl/"
WSDL_2 = "http://www.w3.org/ns/wsdl"
SOAP_BINDINGS = {
    "http://schemas.xmlsoap.org/wsdl/soap/": SOAP.V1_1,
    "http://schemas.xmlsoap.org/wsdl/soap12/": SOAP.V1_2,
}
IDS = (
    "{http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-utility-1.0.xsd}Id",
    "{http://www.w3.org/XML/1998/namespace}id",
)
RM_ASSERTIONS = {dialect.policy_assertion: rm for rm, dialect in DIALECTS.items()}
ADDRESSING_ASSERTIONS = {
    "{http://schemas.xmlsoap.org/ws/2004/08/addressing/policy}UsingAddressing": Addressing.V2004_08,
    "{http://www.w3.org/2006/05/addressing/wsdl}UsingAddressing": Addressing.V2005_08,
    "{http://www.w3.org/2007/05/addressing/metadata}Addressing": Addressing.V2005_08,
}
ACTIONS = ("{http://www.w3.org/2007/05/addressing/metadata}Action", "{http://www.w3.org/2006/05/addressing/wsdl}Action")
DELIVERIES = {
    "AtMostOnce": Delivery.AT_MOST_ONCE,
    "AtLeastOnce": Delivery.AT_LEAST_ONCE,
    "ExactlyOnce": Delivery.EXACTLY_ONCE,
}
MOST_ALTERNATIVES = 256
"""Maximum number of alternatives of one policy. A usual policy has a handful, and each optional assertion doubles them.
"""

_Alternative = tuple[etree._Element, ...]


@dataclass(frozen=True, slots=True)
class Port:
    """One endpoint of a service.

    Args:
        name: The name of the wsdl:port.
        address: Its URL.
        versions: Supported versions; every version that its description leaves open is included.
        is_reliable: Whether its policy mentions WS-ReliableMessaging.
        has_replies: Whether an operation has an output.
        assurance: The delivery assurance it states; None if it states none.
        inactivity_timeout: Seconds without traffic after which it ends a Sequence; None if it states none.
    """

    name: str
    address: str
    versions: frozenset[Versions]
    is_reliable: bool
    has_replies: bool
    assurance: Assurance | None = None
    inactivity_timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Actions:
    """The wsa:Action values of one operation.

    Args:
        request: The action of its input.
        reply: The action of its output; "" for a one-way operation.
        faults: The action of each declared fault that states one, by the fault's name.
    """

    request: str
    reply: str
    faults: dict[str, str]


class Description:
    """A WSDL in one or more documents."""

    def __init__(self) -> None:
        self._roots: list[etree._Element] = []

    def add(self, data: bytes, place: str) -> list[str]:
        """Add one document.

        Args:
            data: The document.
            place: Its location, for errors.

        Returns:
            The locations of its imports, as written.

        Raises:
            ConfigurationError: It is not WSDL 1.1.
        """
        try:
            root = parse_element(data)
        except EnvelopeError as error:
            raise _no_wsdl(place, "it is not well-formed XML, or has a document type") from error
        if root.tag != f"{{{WSDL}}}definitions":
            is_2 = root.tag == f"{{{WSDL_2}}}description"
            raise _no_wsdl(place, "it is WSDL 2.0" if is_2 else f"its root is {etree.QName(root).localname}")
        self._roots.append(root)
        imports = root.iterfind(f"{{{WSDL}}}import")
        return [location for one in imports if (location := one.get("location"))]

    def port(self, name: str | None = None) -> Port:
        """Return the port to send to.

        Args:
            name: Its name; None: the only usable one, or the only usable one with a policy for reliable messaging.

        Raises:
            ConfigurationError: No port or several ports are usable; or the named one is not usable, and why.
        """
        elements = {one.get("name", ""): one for one in self._all("service/port") if _soap_address(one) is not None}
        names = ", ".join(elements) or "none"
        if name is not None:
            if name not in elements:
                raise ConfigurationError(f"the WSDL has no SOAP port {name!r}", remedy=f"It has: {names}.")
            return self._read_port(elements[name])
        ports, refusals = [], []
        for element in elements.values():
            try:
                ports.append(self._read_port(element))
            except ConfigurationError as error:
                refusals.append(error)
        chosen = [port for port in ports if port.is_reliable] or ports
        if len(chosen) == 1:
            return chosen[0]
        if not chosen and refusals:
            raise refusals[0]
        if not chosen:
            raise ConfigurationError(
                "the WSDL has no port for SOAP over HTTP", remedy="Check that the WSDL is complete."
            )
        named = ", ".join(port.name for port in chosen)
        raise ConfigurationError(f"the WSDL has several ports: {named}", remedy="Name one of them with port.")

    def port_names(self) -> list[str]:
        """Return the names of the ports for SOAP over HTTP, usable or not."""
        return [one.get("name", "") for one in self._all("service/port") if _soap_address(one) is not None]

    def operations(self) -> dict[str, str]:
        """The wsa:Action of each operation's request, and of its reply: "" for a one-way operation.

        The action comes from the description (WS-Addressing 1.0 Metadata, section 4.4.1, or its draft that .NET
        writes), or from the binding's soapAction. Operations with neither are omitted.
        """
        found: dict[str, str] = {}
        by_name: dict[str, str] = {}
        for operation in self._all("binding/operation"):
            for one in operation.iterfind("*"):
                if _soap(one) is not None and one.get("soapAction"):
                    by_name[operation.get("name", "")] = one.get("soapAction", "")
        for operation in self._all("portType/operation"):
            asked = operation.find(f"{{{WSDL}}}input")
            action = _action(asked) or by_name.get(operation.get("name", ""), "")
            if asked is None or not action:
                continue
            reply = operation.find(f"{{{WSDL}}}output")
            found[action] = "" if reply is None else _action(reply) or f"{action}Response"
        return found

    def actions(self, port_type: str) -> dict[str, Actions]:
        """Return the actions of each operation of a wsdl:portType, by the operation's name.

        An action that the WSDL does not state is the binding's soapAction, or the default (WS-Addressing 1.0 Metadata,
        section 4.4.4).

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
            owner = kind.getparent()
            namespace = "" if owner is None else owner.get("targetNamespace", "")
            if (f"{{{namespace}}}" if namespace else "") + kind.get("name", "") == port_type:
                yield from kind.iterfind(f"{{{WSDL}}}operation")

    def _soap_actions(self, port_type: str) -> dict[str, str]:
        """The soapAction of each operation in the bindings of a wsdl:portType."""
        found: dict[str, str] = {}
        for binding in self._all("binding"):
            prefix, _, local = binding.get("type", "").strip().rpartition(":")
            namespace = binding.nsmap.get(prefix or None, "")
            if (f"{{{namespace}}}{local}" if namespace else local) != port_type:
                continue
            for operation in binding.iterfind(f"{{{WSDL}}}operation"):
                for one in operation.iterfind("*"):
                    if _soap(one) is not None and one.get("soapAction"):
                        found.setdefault(operation.get("name", ""), one.get("soapAction", ""))
        return found

    def _read_port(self, port: etree._Element) -> Port:
        name = port.get("name", "")
        binding = self._definition("binding", port, port.get("binding", ""))
        style = next((one for one in binding.iterfind("*") if _soap(one) is not None), None)
        address = _soap_address(port)
        if style is None or address is None:
            raise ConfigurationError(f"the port {name} has no SOAP binding", remedy="Name another port.")
        alternatives = self._usable(name, self._effective((port, binding)))
        for part in binding.iterfind(f"{{{WSDL}}}operation"):
            for subject in (part, *(one for one in part.iterfind("*") if etree.QName(one).namespace == WSDL)):
                self._usable(name, self._effective((subject,)))
        rm, addressing = set[RM](), set[Addressing]()
        assertions = [one for alternative in alternatives for one in alternative]
        for one in [*assertions, *binding.iterfind("*")]:
            if one.tag in ADDRESSING_ASSERTIONS:
                addressing.add(ADDRESSING_ASSERTIONS[str(one.tag)])
        reliable = [one for one in assertions if one.tag in RM_ASSERTIONS]
        rm.update(RM_ASSERTIONS[str(one.tag)] for one in reliable)
        versions = frozenset(
            one
            for one in ALL_VERSIONS
            if one.soap is _soap(style)
            and one.rm in (rm or set(RM))
            and one.addressing in (addressing or set(Addressing))
        )
        if not versions:
            raise ConfigurationError(
                f"the port {name} asks for WS-RM 1.1 with WS-Addressing 2004/08, which cannot be combined",
                remedy="Set versions instead of using the WSDL.",
            )
        kind = self._definition("portType", binding, binding.get("type", ""))
        return Port(
            name,
            address,
            versions,
            bool(reliable),
            kind.find(f"{{{WSDL}}}operation/{{{WSDL}}}output") is not None,
            _assurance(reliable),
            _inactivity_timeout(reliable),
        )

    def _all(self, path: str) -> Iterator[etree._Element]:
        steps = "/".join(f"{{{WSDL}}}{step}" for step in path.split("/"))
        for root in self._roots:
            yield from root.iterfind(steps)

    def _definition(self, kind: str, user: etree._Element, qname: str) -> etree._Element:
        """Return the definition that an attribute of ``user`` names."""
        prefix, _, local = qname.strip().rpartition(":")
        namespace = user.nsmap.get(prefix or None, "")
        for one in self._all(kind):
            owner = one.getparent()
            if one.get("name") == local and owner is not None and owner.get("targetNamespace", "") == namespace:
                return one
        raise ConfigurationError(
            f"the WSDL refers to the {kind} {qname!r}, which it does not contain",
            remedy="Check whether a document is missing.",
        )

    # --- policies -------------------------------------------------------------------------------------------------

    def _effective(self, subjects: tuple[etree._Element, ...]) -> list[_Alternative]:
        """Combine the policies attached to the subjects, and return the alternatives (WS-PolicyAttachment 1.5, 3.4)."""
        alternatives: list[_Alternative] = [()]
        for subject in subjects:
            attached = [one for one in subject.iterfind("*") if _policy_word(one) in ("Policy", "PolicyReference")]
            for one in attached:
                alternatives = _both(alternatives, self._alternatives(one, ()))
            for namespace in POLICY:
                for reference in subject.get(f"{{{namespace}}}PolicyURIs", "").split():
                    alternatives = _both(alternatives, self._referred(reference, ()))
        return alternatives

    def _alternatives(self, node: etree._Element, within: tuple[str, ...]) -> list[_Alternative]:
        """Return the normal form (WS-Policy 1.5, 4.1 and 4.3): alternatives, each a list of assertions that apply
        together."""
        word = _policy_word(node)
        if word == "PolicyReference":
            return self._referred(node.get("URI", ""), within)
        if word == "ExactlyOne":
            return [one for child in node.iterfind("*") for one in self._alternatives(child, within)]
        if word in ("Policy", "All"):
            alternatives: list[_Alternative] = [()]
            for child in node.iterfind("*"):
                alternatives = _both(alternatives, self._alternatives(child, within))
            return alternatives
        return [(node,), ()] if is_optional(node) else [(node,)]

    def _referred(self, reference: str, within: tuple[str, ...]) -> list[_Alternative]:
        if reference in within:
            raise ConfigurationError(f"the policy {reference} of the WSDL refers to itself", remedy="Give versions.")
        for root in self._roots:
            for namespace in POLICY:
                for policy in root.iter(f"{{{namespace}}}Policy"):
                    ids = [policy.get(name) for name in IDS]
                    if reference == policy.get("Name") or reference.removeprefix("#") in ids:
                        return self._alternatives(policy, (*within, reference))
        raise ConfigurationError(
            f"the WSDL refers to the policy {reference}, which it does not contain", remedy="Give versions."
        )

    def _usable(self, port: str, alternatives: list[_Alternative]) -> list[_Alternative]:
        """Return the supported alternatives; only the reliable ones if there are any."""
        usable = [one for one in alternatives if not _unable(one)]
        if not usable:
            reason = (
                f"the port {port} requires {_unable(alternatives[0])}, which Holdfast does not support"
                if alternatives
                else ""
            )
            raise ConfigurationError(
                reason or f"the policy of the port {port} cannot be satisfied",
                remedy="Name another port, or ask for one with transport security alone (WCF: <security "
                'mode="Transport" /> or "None").',
            )
        return [one for one in usable if any(part.tag in RM_ASSERTIONS for part in one)] or usable


def _action(message: etree._Element | None) -> str:
    """Return the action of an operation's input or output, "" without one."""
    if message is None:
        return ""
    return next((found for name in ACTIONS if (found := message.get(name, ""))), "")


def _joined(port_type: str) -> str:
    """The beginning of default actions (WS-Addressing 1.0 Metadata, 4.4.4)."""
    namespace, _, name = port_type.removeprefix("{").rpartition("}")
    delimiter = ":" if namespace.lower().startswith("urn:") else "/"
    return f"{namespace.removesuffix(delimiter)}{delimiter}{name}{delimiter}"


def _actions(operation: etree._Element, stated: dict[str, str], start: str) -> Actions:
    name = operation.get("name", "")
    asked, answered = operation.find(f"{{{WSDL}}}input"), operation.find(f"{{{WSDL}}}output")
    own_name = asked.get("name", "") if asked is not None else ""
    request = _action(asked) or stated.get(name, "")
    default = f"{start}{own_name or (name if answered is None else f'{name}Request')}"
    reply = ""
    if answered is not None:
        usual = f"{request}Response" if request else f"{start}{answered.get('name') or f'{name}Response'}"
        reply = _action(answered) or usual
    faults = {one.get("name", ""): _action(one) for one in operation.iterfind(f"{{{WSDL}}}fault") if _action(one)}
    return Actions(request or default, reply, faults)


def _no_wsdl(place: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"{place} is not a WSDL 1.1: {why}", remedy="Check whether the URL must end with ?wsdl.")


def _soap(element: etree._Element) -> SOAP | None:
    return SOAP_BINDINGS.get(etree.QName(element).namespace or "")


def _soap_address(port: etree._Element) -> str | None:
    """Return the URL of a port, if it has a SOAP address over HTTP."""
    for namespace in SOAP_BINDINGS:
        for one in port.iterfind(f"{{{namespace}}}address"):
            location = one.get("location", "").strip()
            if location.startswith(("http://", "https://")):
                return location
    return None


def _policy_word(element: etree._Element) -> str:
    """Return an element's local name if it is one of WS-Policy's own, otherwise ""."""
    name = etree.QName(element)
    return name.localname if name.namespace in POLICY else ""


def _both(left: list[_Alternative], right: list[_Alternative]) -> list[_Alternative]:
    if len(left) * len(right) > MOST_ALTERNATIVES:
        raise ConfigurationError(
            f"a policy of the WSDL has more than {MOST_ALTERNATIVES} alternatives", remedy="Set versions yourself."
        )
    return [(*one, *other) for one, other in product(left, right)]


def _unable(alternative: _Alternative) -> str:
    """Describe the unsupported requirements of an alternative, "" without any."""
    return next((reason for assertion in alternative if (reason := unmet(assertion))), "")


def _assurance(reliable: list[etree._Element]) -> Assurance | None:
    """Return the delivery assurance of the destination (WS-RM Policy 1.2, 2.4)."""
    words = {etree.QName(part).localname for one in reliable for part in one.iter("{*}*")}
    for word, delivery in DELIVERIES.items():
        if word in words:
            return Assurance(delivery, "InOrder" in words)
    return None


def _inactivity_timeout(reliable: list[etree._Element]) -> float | None:
    """Return the inactivity timeout. WS-RM Policy 1.0 defines it, and .NET adds it to 1.1 in another namespace."""
    found = [
        int(text) / 1000
        for one in reliable
        for part in one.iter("{*}InactivityTimeout")
        if (text := part.get("Milliseconds", "")).isdecimal()
    ]
    return min(found, default=None)
