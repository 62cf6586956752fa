"""Read a broker's configuration file, see ``config.tables``.

Knows the names of the few keys that name a table of tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.broker.config import BrokerConfig, ForwarderConfig, PolicyConfig, resolved_policy
from holdfast.broker.config_changes import what_cannot_change
from holdfast.broker.config_checks import contradictions
from holdfast.broker.destinations import check_pattern
from holdfast.config.lines import KeyLines, KeyPath
from holdfast.config.tables import Table, TableReading, load_toml, read_file
from holdfast.config.unreadable import Unreadable, is_partial
from holdfast.config.values import Unfit, told_type, told_value
from holdfast.core.policy import ForwardingPolicy
from holdfast.exceptions import ConfigurationError, ConfigurationMistakes


def read_config(
    file: str | Path, *, running: BrokerConfig | None = None, instead: Mapping[str, Any] | None = None
) -> BrokerConfig:
    """Read the configuration in a file.

    Args:
        file: Its path.
        running: The configuration of the running broker that will apply this one; None: a broker that starts.
        instead: Field of BrokerConfig -> a value from elsewhere, such as the command line, which overrides the file.

    Raises:
        ConfigurationMistakes: The file has mistakes; lists all of them.
        ConfigurationError: The file cannot be read.
    """
    path = Path(file)
    content = read_file(
        path, "configuration", "Check the path. Without --config, the broker uses the default configuration."
    )
    return parse_config(content, str(file), path.parent.absolute(), running=running, instead=instead)


def parse_config(
    content: bytes,
    name: str,
    base: Path,
    *,
    running: BrokerConfig | None = None,
    instead: Mapping[str, Any] | None = None,
) -> BrokerConfig:
    """Parse the content of a configuration file.

    Args:
        content: The content.
        name: The file's name in mistakes.
        base: The directory that relative paths start at.
        running, instead: As in :func:`read_config`.

    Raises:
        ConfigurationMistakes: The file has mistakes; lists all of them.
    """
    text, data = load_toml(content, name)
    reading = Reading(name, KeyLines(text), base)
    config = reading.read(data)
    if config is not None:
        config = replace(config, **(instead or {}))
        for path, what, remedy in what_cannot_change(running, config) if running is not None else ():
            reading.wrong(path, what, remedy)
    if reading.mistakes or config is None:
        raise ConfigurationMistakes(sorted(reading.mistakes, key=lambda mistake: (mistake.line, mistake.key)))
    return config


class Reading(TableReading):
    """Reads one broker file."""

    def read(self, data: Table) -> BrokerConfig | None:
        """Return the whole configuration; None if any part of it could not be read."""
        special: dict[str, Callable[[Any, KeyPath], Any]] = {
            "policies": self._policies,
            "namespaces": self._namespaces,
        }
        said, unread = self.read_table(BrokerConfig, data, (), special)
        forwarders = data.get("forwarders")
        if isinstance(forwarders, dict):
            said["forwarders"] = self._with_policies(said["forwarders"], forwarders, said.get("policies", ()))
        config: BrokerConfig = self.made(BrokerConfig, said, unread, ())
        for path, what, remedy in contradictions(config):
            self.wrong(path, what, remedy)
        return config if not self.mistakes else None

    def special(self, cls: type[Any]) -> Mapping[str, Callable[[Any, KeyPath], Any]]:
        """Forwarders' policies are put together once everything is read."""
        return {"policy": self._policy} if cls is ForwarderConfig else {}

    # --- policies ---------------------------------------------------------------------------------------------------

    def _policy(self, value: Any, path: KeyPath) -> Any:
        """Read a policy's own settings, which are later combined with others."""
        return self._table(ForwardingPolicy, value, path, partly=True)

    def _policies(self, value: Any, path: KeyPath) -> tuple[PolicyConfig, ...]:
        if not isinstance(value, dict):
            self.wrong(path, f"{told_type(value)} is not a table", 'Write [policies."*"] with its keys below.')
            return ()
        made = []
        for pattern, table in value.items():
            here = (*path, pattern)
            try:
                check_pattern(pattern)
            except Unfit as unfit:
                self.wrong(here, unfit.what, unfit.remedy)
                continue
            given = self._policy(table, here)
            if given is not None:
                made.append(PolicyConfig(pattern, given))
        return tuple(made)

    def _with_policies(
        self, forwarders: tuple[ForwarderConfig, ...], tables: Table, policies: tuple[PolicyConfig, ...]
    ) -> tuple[ForwarderConfig, ...]:
        """Return the forwarders with their own policies combined with those for their addresses."""
        return tuple(
            self._with_policy(one, tables[one.name], policies) if isinstance(tables[one.name], dict) else one
            for one in forwarders
        )

    def _with_policy(self, one: ForwarderConfig, table: Table, policies: tuple[PolicyConfig, ...]) -> ForwarderConfig:
        path: KeyPath = ("forwarders", one.name, "policy")
        quiet = Reading(self._file, self._lines, self._base)  # its mistakes are reported already
        own = quiet._policy(table.get("policy", {}), path)
        try:
            policy = resolved_policy(policies, one.to, own)
        except Unreadable:
            return one
        except ConfigurationError as error:
            if not quiet.mistakes:
                self.wrong(path, f"combined with policies: {error.message}", error.remedy)
            return one
        return one if is_partial(one) else replace(one, policy=policy)

    def _namespaces(self, value: Any, path: KeyPath) -> Mapping[str, str] | None:
        if not isinstance(value, dict):
            self.wrong(
                path,
                f"{told_type(value)} is not a table",
                'Write [namespaces] with lines such as o = "urn:orders" below.',
            )
            return None
        for prefix, namespace in value.items():
            if not isinstance(namespace, str) or not namespace:
                self.wrong(
                    (*path, prefix), f"{told_value(namespace)} is not a namespace", "Write the namespace in quotes."
                )
            elif re.fullmatch(r"[^\W\d][\w.-]*", prefix) is None:
                self.wrong((*path, prefix), f"'{prefix}' is not a valid prefix", "Use a word, such as o.")
        return {prefix: str(namespace) for prefix, namespace in value.items()}
