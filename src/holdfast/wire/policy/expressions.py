"""Policy expressions, and their normal form: alternatives, each a list of assertions that apply together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, product
from math import prod

from lxml import etree

from holdfast.exceptions import ConfigurationError

POLICY = ("http://www.w3.org/ns/ws-policy", "http://schemas.xmlsoap.org/ws/2004/09/policy")
"""The namespaces of WS-Policy 1.5 and 1.2."""
MOST_ALTERNATIVES = 256
"""Maximum number of alternatives of one policy. A usual policy has a handful, and each optional assertion doubles them.
"""
MOST_ASSERTIONS = 10_000
"""Maximum number of assertions in the normal form of one policy, over all alternatives and nested policies. The largest
known policies, of WS-SecureConversation with a signed and encrypted bootstrap, have about fifty."""
MOST_DEPTH = 100
"""Maximum depth of a policy expression, with the policies that it refers to."""

_REMEDY = "Check the WSDL. To send without it, create the Source with the URL of the service."


@dataclass(frozen=True, slots=True, eq=False)
class Assertion:
    """One assertion of a policy.

    Attributes:
        name: Its qualified name, as "{namespace}Name".
        element: Its element, with its attributes and text.
        place: The line and the document, for errors.
        nested: The normal form of its nested policy; None without one.
        parameters: Its other child elements, read as assertions.
        is_ignorable: Whether it may be ignored (WS-Policy 1.5, 4.5).
        size: The number of assertions in it, with itself.
    """

    name: str
    element: etree._Element
    place: str
    nested: Policy | None = None
    parameters: tuple[Assertion, ...] = ()
    is_ignorable: bool = False
    size: int = 1

    @property
    def local_name(self) -> str:
        """Its name without the namespace."""
        return self.name.rpartition("}")[2]

    def walk(self) -> Iterator[Assertion]:
        """Yield it, its parameters, and the assertions of its nested policy, at any depth."""
        yield self
        for one in chain(self.parameters, *(self.nested or ())):
            yield from one.walk()


Alternative = tuple[Assertion, ...]
Policy = tuple[Alternative, ...]
"""The normal form of a policy. Without alternatives, it cannot be satisfied; one empty alternative demands nothing. The
alternatives of a nested policy stay in their assertion, which is equivalent to one assertion for each (WS-Policy 1.5,
4.3.2), and shorter."""
NO_DEMANDS: Policy = ((),)


def size_of(policy: Policy) -> int:
    return sum(assertion.size for alternative in policy for assertion in alternative)


def merge(policies: Iterable[Policy], place: str) -> Policy:
    """Return the policy that demands all of the given ones (WS-PolicyAttachment 1.5, 3.1).

    Raises:
        ConfigurationError: The result exceeds a limit.
    """
    parts = [one for one in policies if one != NO_DEMANDS]
    if not parts:
        return NO_DEMANDS
    if len(parts) == 1:
        return parts[0]  # the same object, which callers cache by
    count = prod(map(len, parts))
    # Before the product is made: ten optional assertions are a thousand alternatives.
    if count > MOST_ALTERNATIVES:
        raise _too_large(place, f"{MOST_ALTERNATIVES} alternatives")
    if sum(size_of(one) * count // len(one) for one in parts if one) > MOST_ASSERTIONS:
        raise _too_large(place, f"{MOST_ASSERTIONS:,} assertions")
    return tuple(tuple(chain.from_iterable(one)) for one in product(*parts))


class PolicyReader:
    """Reads policy expressions into their normal form. It reads each policy once, however many others refer to it.

    Args:
        find: Returns the policy that a URI in an element refers to, or None.
        place: Returns the line and the document of an element.
    """

    def __init__(
        self, find: Callable[[str, etree._Element], etree._Element | None], place: Callable[[etree._Element], str]
    ) -> None:
        self._find = find
        self._place = place
        self._read: dict[etree._Element, Policy] = {}
        self._within: list[etree._Element] = []

    def attached(self, subject: etree._Element) -> Policy:
        """Return the policy that is attached to an element, as child elements or in an attribute.

        Raises:
            ConfigurationError: The policy exceeds a limit, refers to itself or to a policy that does not exist, or is
                written in another version of WS-Policy.
        """
        found = []
        for child in subject.iterfind("*"):
            name = etree.QName(child)
            if name.localname in ("Policy", "PolicyReference"):
                if name.namespace not in POLICY:
                    raise ConfigurationError(
                        f"{self._place(child)} has a policy of a version that Holdfast does not support: "
                        f"{name.namespace}",
                        remedy=f"Holdfast supports WS-Policy 1.2 ({POLICY[1]}) and 1.5 ({POLICY[0]}). {_REMEDY}",
                    )
                found.append(self._normal(child, 0))
        for namespace in POLICY:
            uris = subject.get(f"{{{namespace}}}PolicyURIs", "").split()
            found.extend(self._referred(uri, subject, 0) for uri in uris)
        return merge(found, self._place(subject))

    def whole(self, root: etree._Element) -> Policy:
        """Return the policy of a wsp:Policy element.

        Raises:
            ConfigurationError: It is another element; further as for :meth:`attached`.
        """
        name = etree.QName(root)
        if name.localname != "Policy" or name.namespace not in POLICY:
            raise ConfigurationError(
                f"{self._place(root)} has the element {name.localname}, which is not a Policy of WS-Policy 1.2 or 1.5",
                remedy=f"Write <wsp:Policy xmlns:wsp={POLICY[0]!r}> with the assertions in it.",
            )
        return self._normal(root, 0)

    def _normal(self, node: etree._Element, depth: int) -> Policy:
        """Return the normal form of an expression (WS-Policy 1.5, 4.3)."""
        if depth > MOST_DEPTH:
            raise _too_large(self._place(node), f"{MOST_DEPTH} levels")
        name = etree.QName(node)
        if name.namespace not in POLICY:
            assertion = self._assertion(node, depth)
            # WS-Policy 1.5, 4.3.1: Optional means with it or without it.
            return ((assertion,), ()) if _flag(node, "Optional") else ((assertion,),)
        if name.localname == "PolicyReference":
            return self._referred(node.get("URI", "").strip(), node, depth)
        if name.localname == "ExactlyOne":
            return self._exactly_one(node, depth)
        if name.localname in ("Policy", "All"):
            return merge((self._normal(child, depth + 1) for child in node.iterfind("*")), self._place(node))
        raise ConfigurationError(
            f"{self._place(node)} has {name.localname}, which is no element of WS-Policy 1.2 or 1.5", remedy=_REMEDY
        )

    def _exactly_one(self, node: etree._Element, depth: int) -> Policy:
        found: list[Alternative] = []
        size = 0
        for child in node.iterfind("*"):
            part = self._normal(child, depth + 1)
            found.extend(part)
            size += size_of(part)
            if len(found) > MOST_ALTERNATIVES:
                raise _too_large(self._place(node), f"{MOST_ALTERNATIVES} alternatives")
            if size > MOST_ASSERTIONS:
                raise _too_large(self._place(node), f"{MOST_ASSERTIONS:,} assertions")
        return tuple(found)

    def _assertion(self, node: etree._Element, depth: int) -> Assertion:
        nested: list[Policy] = []
        parameters = []
        for child in node.iterfind("*"):
            if etree.QName(child).namespace in POLICY:
                nested.append(self._normal(child, depth + 1))
            elif depth < MOST_DEPTH:
                parameters.append(self._assertion(child, depth + 1))
            else:
                raise _too_large(self._place(child), f"{MOST_DEPTH} levels")
        policy = merge(nested, self._place(node)) if nested else None
        size = 1 + size_of(policy or ()) + sum(one.size for one in parameters)
        # WS-Policy 1.2 has no Ignorable.
        is_ignorable = _flag(node, "Ignorable", POLICY[:1])
        return Assertion(str(node.tag), node, self._place(node), policy, tuple(parameters), is_ignorable, size)

    def _referred(self, uri: str, node: etree._Element, depth: int) -> Policy:
        found = self._find(uri, node)
        if found is None:
            raise ConfigurationError(
                f"{self._place(node)} refers to the policy {uri!r}, which the WSDL does not contain", remedy=_REMEDY
            )
        # A reference to a policy around it would never end.
        if found in self._within:
            raise ConfigurationError(f"{self._place(node)}: the policy {uri!r} refers to itself", remedy=_REMEDY)
        if found not in self._read:
            self._within.append(found)
            try:
                self._read[found] = self._normal(found, depth + 1)
            finally:
                self._within.pop()
        return self._read[found]


def _flag(node: etree._Element, name: str, namespaces: tuple[str, ...] = POLICY) -> bool:
    """Whether an attribute of WS-Policy is true."""
    return any(node.get(f"{{{namespace}}}{name}", "").strip() in ("true", "1") for namespace in namespaces)


def _too_large(place: str, limit: str) -> ConfigurationError:
    return ConfigurationError(f"{place}: the policy has more than {limit}", remedy=_REMEDY)
