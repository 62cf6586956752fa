"""Policy: settings for one Sequence, or for a set of Sequences by destination, action or name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.core.policy import SourcePolicy
from holdfast.endpoint.arguments import check_class, to_assurance
from holdfast.exceptions import ConfigurationError, EnvelopeError
from holdfast.settings import brief_value, suggestion
from holdfast.wire.body import parse_element
from holdfast.wire.policy.attachment import Attachments
from holdfast.wire.policy.choice import choose, needs_of
from holdfast.wire.policy.settings import StatedSettings, for_source, stated

EVERY = "*"


@dataclass(frozen=True)
class Policy:
    """Settings for a set of a source's Sequences: ``Source(url, policy=[Policy({"window": 64}, name="bulk-*")])``.

    A pattern is the text itself, or its beginning followed by ``*``. Of several policies for a Sequence, each sets what
    it has, and a later one overrides an earlier one.

    Args:
        settings: Settings of :class:`SourcePolicy` by name, with those of ``retransmission`` in a mapping of their own.
            Or the path of a WS-Policy document (1.2 or 1.5): its assertions set what they set in a WSDL.
        to: The destinations, as a pattern of their URLs.
        name: The names of the Sequences: a pattern of the ``sequence_key``.
        action: A pattern of actions. Messages with these actions and without a ``sequence_key`` get a Sequence of
            their own, with ``name`` as its key, or else this pattern. They keep their order among themselves, not with
            other messages.

    Raises:
        ConfigurationError: A setting does not exist or has a wrong value, or the document cannot be read.
    """

    settings: Mapping[str, Any] | str | Path
    _: KW_ONLY
    to: str = EVERY
    name: str = EVERY
    action: str = ""
    _stated: StatedSettings | None = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        for word in (self.to, self.name, self.action):
            if not isinstance(word, str) or EVERY in word[:-1]:
                raise ConfigurationError(
                    f"{brief_value(word)} is not a pattern",
                    remedy="Give a text, or the beginning of a text followed by *.",
                )
        if self.action and self.name.endswith(EVERY) and self.name != EVERY:
            raise ConfigurationError(
                f"Policy(action={self.action!r}) cannot have the name {self.name!r}",
                remedy="Give the one Sequence of these actions a name without *.",
            )
        check_class("Policy.settings", self.settings, (Mapping, str, Path), optional=False)
        if not isinstance(self.settings, Mapping):
            object.__setattr__(self, "_stated", _read(Path(self.settings)))
        self.applied(SourcePolicy())

    @property
    def key(self) -> str:
        """The ``sequence_key`` of the messages with these actions; "" without actions."""
        return (self.name if self.name != EVERY else self.action) if self.action else ""

    def fits(self, to: str, key: str) -> bool:
        """Whether it applies to the Sequences to an address with that ``sequence_key``."""
        return fits(self.to, to) and (key == self.key if self.action else fits(self.name, key))

    def applied(self, policy: SourcePolicy) -> SourcePolicy:
        """Return a policy with these settings instead of its own."""
        if self._stated is not None:
            return for_source(self._stated, policy)
        assert isinstance(self.settings, Mapping)
        changed: SourcePolicy = _replaced(policy, self.settings)
        return changed


class SequencePolicies:
    """The policies of a source.

    Args:
        usual: The settings that no policy sets.
        policies: The policies, from general to particular.
    """

    def __init__(self, usual: SourcePolicy, policies: Iterable[Policy] = ()) -> None:
        self.usual = usual
        self._policies = tuple(policies)
        for one in self._policies:
            if not isinstance(one, Policy):
                raise ConfigurationError(
                    f"{brief_value(one)} is not a Policy",
                    remedy='Write policy=[holdfast.Policy({"window": 64}, name="bulk")].',
                )

    def of(self, to: str, key: str) -> SourcePolicy:
        policy = self.usual
        for one in self._policies:
            if one.fits(to, key):
                policy = one.applied(policy)
        return policy

    def key_of(self, action: object) -> str:
        """Return the ``sequence_key`` of messages with an action that name none."""
        if not isinstance(action, str):
            return ""  # refused when the message is made
        return next((one.key for one in self._policies if one.action and fits(one.action, action)), "")


def to_policies(
    given: SourcePolicy | Iterable[Policy] | SequencePolicies | None, usual: SourcePolicy | None = None
) -> SequencePolicies:
    """Return the policies of an argument ``policy``.

    Raises:
        ConfigurationError: It is something else.
    """
    if isinstance(given, SequencePolicies):
        return given
    if given is None or isinstance(given, SourcePolicy):
        return SequencePolicies(given or usual or SourcePolicy())
    if isinstance(given, Policy | str | Mapping) or not isinstance(given, Iterable):
        raise ConfigurationError(
            f"policy cannot be {brief_value(given)}", remedy="Give a SourcePolicy, or a list of holdfast.Policy."
        )
    return SequencePolicies(usual or SourcePolicy(), given)


def fits(pattern: str, text: str) -> bool:
    return text.startswith(pattern[:-1]) if pattern.endswith(EVERY) else text == pattern


def _replaced(settings: Any, changes: Mapping[str, Any]) -> Any:
    names = [one.name for one in fields(settings)]
    changed = {}
    for name, value in changes.items():
        if name not in names:
            raise ConfigurationError(
                f"{type(settings).__name__} has no setting {name!r}",
                remedy=suggestion(str(name), names, f"It has: {', '.join(names)}."),
            )
        own = getattr(settings, name)
        if isinstance(value, Mapping) and is_dataclass(own):
            value = _replaced(own, value)
        elif name == "assurance":
            value = to_assurance(value)
        changed[name] = value
    return replace(settings, **changed)


def _read(path: Path) -> StatedSettings:
    """Read what a WS-Policy document states about Sequences."""
    try:
        root = parse_element(path.read_bytes())
    except (OSError, ValueError) as error:  # ValueError: no path has a zero byte
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"cannot read the policy {path}: {reason}", remedy="Check the path.") from None
    except EnvelopeError:
        raise ConfigurationError(f"{path} is not well-formed XML", remedy="Check the file.") from None
    policy = Attachments({root: str(path)}).document(root)
    alternative = choose(policy, None, f"the policy {path}")[0]
    needs = needs_of(alternative, None)
    if needs:
        raise ConfigurationError(
            f"the policy {path} demands more than settings of Sequences: {'; '.join(dict.fromkeys(map(str, needs)))}",
            remedy="Remove these assertions, or give the WSDL of the service to Source.from_wsdl, which checks them.",
        )
    return stated(alternative)
