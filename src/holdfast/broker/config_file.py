"""Read a broker's configuration file, see ``config.tables``.

Knows the names of the few keys that name a table of tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.broker.config import BrokerConfig, ForwarderConfig, PolicyConfig, actions_of, resolved_policy
from holdfast.broker.config_changes import what_cannot_change
from holdfast.broker.config_checks import contradictions, of_the_node
from holdfast.broker.destinations import check_pattern
from holdfast.config.lines import KeyLines, KeyPath
from holdfast.config.tables import Table, TableReading, kind_of, load_toml, read_file
from holdfast.config.unreadable import Unreadable, is_partial
from holdfast.config.values import Unfit, told_type
from holdfast.core.policy import ForwardingPolicy
from holdfast.exceptions import ConfigurationError


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
        name: The file's name in mistakes.
        base: The directory that relative paths start at.
        running, instead: As in :func:`read_config`.

    Raises:
        ConfigurationMistakes: The file has mistakes; lists all of them.
    """
    text, data = load_toml(content, name)
    reading = Reading(name, KeyLines(text), base)
    config = reading.read(data, instead or {})
    reading.end(what_cannot_change(running, config) if running is not None else of_the_node(config))
    return config


def read_store_location(file: str | Path) -> str:
    """Return the location of the store that a configuration file names, as ``BrokerConfig.store_location``. Reads no
    other key, and no other file than that of the database's password.

    Raises:
        ConfigurationMistakes, ConfigurationError: As :func:`read_config`.
    """
    path = Path(file)
    text, data = load_toml(read_file(path, "configuration", "Check the path."), str(file))
    reading = Reading(str(file), KeyLines(text), path.parent.absolute())
    keys = ("store", "store_password_file", "store_password_env")
    return reading.read({key: data[key] for key in keys if key in data}, {}).store_location()


class Reading(TableReading):
    """Reads one broker file."""

    def __init__(self, file: str, lines: KeyLines, base: Path) -> None:
        super().__init__(file, lines, base)
        self._own: dict[KeyPath, tuple[Mapping[str, Any], bool]] = {}
        """Path of a policy -> its own settings, and whether all of them could be read."""

    def read(self, data: Table, instead: Mapping[str, Any]) -> BrokerConfig:
        """Return the whole configuration.

        Args:
            data: The content of the file.
            instead: Field -> a value that overrides the file.

        Raises:
            ConfigurationMistakes: The file has mistakes.
        """
        special: dict[str, Callable[[Any, KeyPath], Any]] = {
            "policies": self._policies,
            "namespaces": self._namespaces,
        }
        said, unread = self.read_table(BrokerConfig, data, (), special)
        if "forwarders" in said:
            said["forwarders"] = tuple(self._with_policy(one, said) for one in said["forwarders"])
        config: BrokerConfig = self.made(BrokerConfig, {**said, **instead}, unread - instead.keys(), ())
        self.end(contradictions(config))
        return config

    def special(self, cls: type[Any]) -> Mapping[str, Callable[[Any, KeyPath], Any]]:
        """Forwarders' policies are put together once everything is read."""
        return {"policy": self._policy} if cls is ForwarderConfig else {}

    # --- policies ---------------------------------------------------------------------------------------------------

    def _policy(self, value: Any, path: KeyPath) -> Any:
        """Read a policy's own settings, which are later combined with others."""
        before = len(self.mistakes)
        given = self._table(ForwardingPolicy, value, path, partly=True)
        self._own[path] = given or {}, len(self.mistakes) == before
        return given

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

    def _with_policy(self, one: ForwarderConfig, said: Mapping[str, Any]) -> ForwarderConfig:
        """Return a forwarder with its own policy combined with those for its address, its name and its actions."""
        path: KeyPath = ("forwarders", one.name, "policy")
        own, is_readable = self._own.get(path, ({}, True))
        try:
            actions = actions_of(one.queue, said.get("routes", ()), said.get("default_queue"))
            policy = resolved_policy(said.get("policies", ()), one.to, own, one.name, actions)
        except Unreadable:
            return one
        except ConfigurationError as error:
            if is_readable:
                self.wrong(path, f"combined with policies: {error.message}", error.remedy)
            return one
        return one if is_partial(one) else replace(one, policy=policy)

    def _namespaces(self, value: Any, path: KeyPath) -> Mapping[str, str] | None:
        kind = kind_of(BrokerConfig, "namespaces")
        assert kind is not None
        read = self.read_mapping(kind, value, path)
        for prefix in value if isinstance(value, dict) else ():
            if re.fullmatch(r"[^\W\d][\w.-]*", prefix) is None:
                self.wrong((*path, prefix), f"'{prefix}' is not a valid prefix", "Use a word, such as o.")
        return value if read is None and isinstance(value, dict) else read  # a route may use the readable prefixes
