"""The header blocks that a WSDL declares for a message: their names, and where they are in a message.

``Contract`` converts their values. Blocks that Holdfast itself or a processor writes have no values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from lxml import etree
from zeep.exceptions import LookupError as UnknownName
from zeep.exceptions import NamespaceError

from holdfast.exceptions import EnvelopeError
from holdfast.settings import suggestion
from holdfast.wire.body import parse_element
from holdfast.wire.names import OWN_NAMESPACES, ROLE_ATTRIBUTE, ROLES_OF_OURS, SOAP_NS
from holdfast.wire.wsdl import HeaderBlock
from holdfast.wsdl.fields import as_field

_OF_ENVELOPES = (
    *SOAP_NS.values(),
    "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-utility-1.0.xsd",
)
"""Namespaces of attributes that any header block may have, whatever its schema declares: mustUnderstand, wsu:Id."""


@dataclass(frozen=True)
class Block:
    """A header block.

    Attributes:
        key: The name of its value: its local name, or "{namespace}local" if the message has two with that one.
        element: zeep's element, as a field.
        part: The name of its part in the WSDL.
        is_required: Whether the WSDL says that it must be there.
    """

    key: str
    element: Any
    part: str
    is_required: bool

    @property
    def name(self) -> str:
        """The name of its element, as "{namespace}local"."""
        return str(self.element.qname.text)


class Blocks(Mapping[str, Block]):
    """The header blocks that a WSDL declares for a message, by their keys.

    Args:
        message: The message, in words.
        declared: The declarations.
        types: zeep's schema.
    """

    def __init__(self, message: str, declared: Iterable[HeaderBlock], types: Any) -> None:
        self._message = message
        found = [(one, _element(one.name, types)) for one in declared if _has_values(one.name)]
        local = [element.name for _, element in found if element is not None]
        self._blocks: dict[str, Block] = {}
        for one, element in found:
            if element is not None:
                key = element.name if local.count(element.name) == 1 else one.name
                self._blocks[key] = Block(key, element, one.part, one.is_required)

    def __getitem__(self, key: str) -> Block:
        return self._blocks[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    def named(self, name: object) -> Block:
        """Return a block by its local name, its name as "{namespace}local", or that of its part.

        Raises:
            EnvelopeError: There is no such block.
        """
        for block in self.values():
            if name in (block.key, block.name):
                return block
        by_part = [block for block in self.values() if name == block.part]
        if len(by_part) == 1:
            return by_part[0]
        hint = suggestion(str(name), self, f"It declares: {', '.join(self) or 'none'}.")
        raise EnvelopeError(f"The WSDL declares no header {name!r} for {self._message}.", remedy=hint)

    def check_complete(self, given: Collection[str]) -> None:
        """Check that the message has the required blocks.

        Args:
            given: The keys of the present blocks.

        Raises:
            EnvelopeError: A required block is missing; the message names each of them.
        """
        missing = [block.key for block in self.values() if block.is_required and block.key not in given]
        if missing:
            raise EnvelopeError(
                f"The WSDL requires the header{'s' * (len(missing) > 1)} {', '.join(missing)} for {self._message}.",
                remedy='Give a value in call(…, _headers={"NAME": …}), in WithHeaders(reply, {"NAME": …}), or in JSON '
                'under the key "@headers".',
            )

    def elements(self, headers: bytes) -> dict[str, etree._Element]:
        """Return the declared blocks among header blocks, by key, without those for other nodes.

        Raises:
            EnvelopeError: One is there twice, or a required one is missing; or the header blocks are not XML.
        """
        found: dict[str, etree._Element] = {}
        for key, one in self._for_receiver(headers):
            if key in found:
                raise EnvelopeError(
                    f"The message has the header {key} twice, and a value holds only one.",
                    remedy="Receive it as XML: message.headers, or reply.headers.",
                )
            found[key] = bare(one)
        self.check_complete(found)
        return found

    def check_present(self, headers: bytes) -> None:
        """Check that header blocks have the required ones, whatever their content.

        Raises:
            EnvelopeError: A required one is missing.
        """
        if any(block.is_required for block in self.values()):  # else every message would be parsed for nothing
            self.check_complete([key for key, _ in self._for_receiver(headers)])

    def _for_receiver(self, headers: bytes) -> Iterator[tuple[str, etree._Element]]:
        keys = {block.name: block.key for block in self.values()}
        for one in parse_element(b"<headers>" + headers + b"</headers>") if keys else ():
            key = keys.get(str(one.tag))
            if key is not None and _is_for_receiver(one):
                yield key, one


def _is_for_receiver(block: etree._Element) -> bool:
    """Whether a header block is for the node that handles the message, and not for an intermediary."""
    return all(block.get(f"{{{ROLE_ATTRIBUTE[soap]}", "").strip() in roles for soap, roles in ROLES_OF_OURS.items())


def bare(block: etree._Element) -> etree._Element:
    """Return a copy of a header block without the attributes that belong to the envelope."""
    copied = deepcopy(block)
    copied.tail = None
    for name in copied.attrib:
        if etree.QName(name).namespace in _OF_ENVELOPES:
            del copied.attrib[name]
    return copied


def _has_values(name: str) -> bool:
    own = etree.QName(name)
    return own.namespace not in OWN_NAMESPACES and own.localname != "Security"  # of any WS-Security: for processors


def _element(name: str, types: Any) -> Any:
    try:
        return as_field(types.get_element(name))
    except (NamespaceError, UnknownName):  # the header can only be given as XML
        return None
