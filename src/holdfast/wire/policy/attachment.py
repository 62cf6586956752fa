"""Policies attached to the parts of a description: found where they are written, and where they are referred to."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urljoin

from lxml import etree

from holdfast.wire.policy.expressions import POLICY, Policy, PolicyReader, merge

IDS = (
    "{http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-utility-1.0.xsd}Id",
    "{http://www.w3.org/XML/1998/namespace}id",
)


class Attachments:
    """The policies of the documents of one description."""

    def __init__(self, documents: Mapping[etree._Element, str]) -> None:
        self._documents = dict(documents)
        self._reader = PolicyReader(self._find, self.place)
        self._named: dict[tuple[str, str], etree._Element] = {}
        """The policies by the location of their document and "#id", and by "" and their Name."""
        for root, location in self._documents.items():
            for namespace in POLICY:
                for policy in root.iter(f"{{{namespace}}}Policy"):
                    for name in IDS:
                        if policy.get(name):
                            self._named.setdefault((location, f"#{policy.get(name)}"), policy)
                    if policy.get("Name"):
                        self._named.setdefault(("", policy.get("Name", "")), policy)

    def place(self, element: etree._Element) -> str:
        return f"line {element.sourceline} of {self._document(element)}"

    def of(self, *subjects: etree._Element) -> Policy:
        """Return the policy of parts of a description that apply together (WS-PolicyAttachment 1.5, 4.1).

        Raises:
            ConfigurationError: As for :meth:`PolicyReader.attached`.
        """
        return merge(map(self._reader.attached, subjects), self.place(subjects[0]))

    def document(self, root: etree._Element) -> Policy:
        """Return the policy that is a document of its own.

        Raises:
            ConfigurationError: It is not a policy; further as for :meth:`PolicyReader.attached`.
        """
        return self._reader.whole(root)

    def _document(self, element: etree._Element) -> str:
        return self._documents[element.getroottree().getroot()]

    def _find(self, uri: str, node: etree._Element) -> etree._Element | None:
        """Return the policy that a URI in an element refers to (WS-Policy 1.5, 4.3.4).

        That is one with that Name, or with that id in the same document, or else in another document.
        """
        location, _, fragment = uri.partition("#") if "#" in uri else ("", "", uri)
        own = self._document(node)
        try:
            places = [urljoin(own, location)] if location else [own, *self._documents.values()]
        except ValueError:  # no URL, so it names no policy
            return None
        found = [("", uri), *((place, f"#{fragment}") for place in places)]
        return next((self._named[one] for one in found if one in self._named), None)
