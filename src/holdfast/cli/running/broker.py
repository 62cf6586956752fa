"""``holdfast broker``: run a broker, or check its configuration."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.failure import failure_facts
from holdfast.cli.program import log_options, run_loop, tell_traces, trace_option
from holdfast.cli.running.serve import journal_option, restored_option
from holdfast.cli.running.workers import become_node, become_worker, tell_ready, worker_options
from holdfast.client.command_options import no_effect
from holdfast.exceptions import ConfigurationError, StoreTakenOver, counted
from holdfast.http.urls import in_url

if TYPE_CHECKING:
    from holdfast.broker.broker import Broker
    from holdfast.broker.cluster_config import ClusterConfig
    from holdfast.broker.config import BrokerConfig, QueueConfig


class _Broker(click.Group):
    """The group; it recognises a configuration file that was given as an argument."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the sub-command; for a file, name the option."""
        if args[0] not in self.commands and Path(args[0]).suffix == ".toml":
            ctx.fail(f"There is no command {args[0]!r}. To name the configuration file: --config {args[0]}")
        return super().resolve_command(ctx, args)


@click.group(cls=_Broker, invoke_without_command=True)
@click.option("--config", type=click.Path(exists=True, dir_okay=False), help="Configuration: a TOML file.")
@click.option("--store", metavar="PLACE", help="Directory or database URL of the store; overrides the file.")
@restored_option
@journal_option
@worker_options
@trace_option
@log_options("info")
@click.pass_context
def broker(
    context: click.Context,
    config: str | None,
    store: str | None,
    restored: bool,
    journal: str | None,
    workers: int | None,
    traces: bool,
    log_level: str,
    log_json: bool,
) -> None:
    """Run a broker: it receives messages reliably, stores them and forwards them. Either side may be down meanwhile.

    \b
    holdfast broker
    holdfast broker --config broker.toml
    holdfast broker check broker.toml

    Without a file, the broker has one queue, `inbox`, in the directory `broker`. It listens on 127.0.0.1:8080, and for
    operators and Spark on 127.0.0.1:8081. SIGTERM or Ctrl-C stops it after the work in progress; a second one stops it
    at once. SIGHUP reloads the file without closing a connection. If the file has a mistake, nothing changes.
    """
    if context.invoked_subcommand is not None:
        given = "config", "store", "restored", "journal", "workers", "traces", "log_level", "log_json"
        no_effect(f"before {context.invoked_subcommand}", *given)
        return
    from holdfast.broker.broker import Broker
    from holdfast.broker.config import BrokerConfig, JournalConfig
    from holdfast.broker.config_file import read_config
    from holdfast.endpoint.logs import configure_logs

    configure_logs(log_level, json=log_json)
    instead: dict[str, Any] = {
        name: value for name, value in (("store", store), ("workers", workers)) if value is not None
    }
    if journal is not None:
        instead["journal"] = JournalConfig(enabled=False) if journal == "off" else JournalConfig(directory=journal)
    told = read_config(config, instead=instead) if config is not None else replace(BrokerConfig(), **instead)
    read_again = partial(_read_again, config, instead) if config is not None else None
    ready: Callable[[Mapping[str, Any]], None] = partial(_tell_ready, told, _has_store(told))
    passes = read_again is not None
    if told.cluster is not None:
        post = become_node(told, ready, passes_hang_up=passes, restored=restored)
    else:
        admin = (told.admin.host, told.admin.port) if told.admin.enabled else None
        at = (told.listen.host, told.listen.port), admin, told.limits.http.max_connections
        post = become_worker(told.workers, *at, ready, passes_hang_up=passes)
    if post is not None:
        worker = post.place.worker
        configure_logs(log_level, json=log_json, worker=None if worker.is_gateway else worker.number)
        ready = post.tell_ready
        if post.hang_ups() and read_again is not None:  # this worker replaces one that died after a reload
            told = _newest(told, read_again)
    try:
        made = Broker(told, post, read_again, restored=restored)
        tell_traces(made.destination, traces)
        run_loop(_run(made, ready))
    except Exception as error:
        if post is not None:
            post.tell_failed(error)
        if told.cluster is None or not isinstance(error, StoreTakenOver):  # which the log has, and is no failure
            raise
    if post is not None:
        post.leave()


def _read_again(file: str, instead: Mapping[str, Any], running: BrokerConfig) -> BrokerConfig:
    from holdfast.broker.config_file import read_config

    return read_config(file, running=running, instead=instead)


def _newest(told: BrokerConfig, read_again: Callable[[BrokerConfig], BrokerConfig]) -> BrokerConfig:
    """Return the configuration that the other workers use now: the present file, if it has no errors."""
    from holdfast.endpoint.logs import log

    try:
        return read_again(told)
    except ConfigurationError as error:
        log.error("configuration.unreadable", error=error.message, remedy=error.remedy)
        return told


async def _run(running: Broker, ready: Callable[[Mapping[str, Any]], None]) -> None:
    await running.run(on_ready=lambda: ready(running.service.facts))


def _has_store(config: BrokerConfig) -> bool:
    """Whether the store exists, as far as that is known without opening it."""
    from holdfast.store import is_remote
    from holdfast.store.directory import holds_store

    return not is_remote(config.store) and holds_store(Path(config.store))


def _tell_ready(config: BrokerConfig, is_old: bool, facts: Mapping[str, Any]) -> None:
    tell_ready(facts)
    for line in _summary(config, is_old, facts):
        click.echo(line)
    sys.stdout.flush()


@broker.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
def check(file: str, as_json: bool) -> None:
    """Read the configuration FILE and show what the broker would open, or every mistake in the file.

    \b
    holdfast broker check broker.toml
    holdfast broker check broker.toml --json

    The check opens no store and no connection. It reads certificates, keys and files with secrets, so run it on the
    broker's machine as the broker's user. If the file has mistakes, the exit code is 1.
    """
    from holdfast.broker.config_file import read_config
    from holdfast.exceptions import ConfigurationMistakes
    from holdfast.store import check_client, is_kafka

    try:
        config = read_config(file)
    except ConfigurationMistakes as error:
        if as_json:
            told = [
                {"file": one.file, "line": one.line, "key": one.key, "what": one.what, "remedy": one.remedy}
                for one in error.mistakes
            ]
            failure_facts().more["mistakes"] = told
        raise
    if is_kafka(config.store):
        check_client(config.store_location())
    if as_json:
        click.echo(json.dumps(_facts(config)))
        return
    for line in _summary(config, _has_store(config)):
        click.echo(line)


def _facts(config: BrokerConfig) -> dict[str, Any]:
    """Return the resources that the broker would open, without secrets."""
    from holdfast.broker.config_warnings import (
        expired_assertions,
        forwarders_of_policies,
        public_secrets,
        shared_addresses,
        unused_policies,
    )

    return {
        "store": _absolute(config.store),
        "partitions": config.partitions,
        "sessions": config.sessions,
        "workers": config.workers,
        "cluster": _node(config.cluster) if config.cluster is not None else None,
        "listen": _url(config.listen.host, config.listen.port, config.listen.tls is not None),
        "public_url": config.listen.public_url,
        "admin": _url(config.admin.host, config.admin.port, config.admin.tls is not None)
        if config.admin.enabled
        else None,
        "users": len(config.security.users) if config.security.users is not None else None,
        "signature": config.security.signature is not None,
        "symmetric": config.security.symmetric is not None,
        "assertions": list(config.security.assertions.issuers) if config.security.assertions is not None else None,
        "timestamp_alone": config.security.timestamp_alone,
        "public_secrets": public_secrets(config),
        "expired_assertions": expired_assertions(config),
        "shared_addresses": shared_addresses(config),
        "policies": forwarders_of_policies(config),
        "unused_policies": list(unused_policies(config)),
        "expiring_certificates": config.cluster.expiring_certificates() if config.cluster is not None else {},
        "queues": {one.name: _keeps(config, one) for one in config.queues},
        "routes": len(config.routes),
        "default_queue": config.default_queue or (None if config.routes else config.queues[0].name),
        "forwarders": {one.name: {"queue": one.queue, "to": one.to, "paused": one.paused} for one in config.forwarders},
    }


def _node(cluster: ClusterConfig) -> dict[str, Any]:
    return {
        "node": cluster.node_name(),
        "partitions": cluster.partitions,
        "listen": _url(cluster.host, cluster.port, cluster.tls is not None),
        "url": cluster.node_url(cluster.port),
    }


def _absolute(place: str) -> str:
    return place if place == ":memory:" or "://" in place else str(Path(place).absolute())


def _keeps(config: BrokerConfig, queue: QueueConfig) -> str:
    if queue.retention is None and any(one.queue == queue.name for one in config.forwarders):
        return f"until it is forwarded; after the first read by others {queue.retention_policy}"
    return str(queue.retention_policy)


def _summary(config: BrokerConfig, is_old: bool, running: Mapping[str, Any] | None = None) -> list[str]:
    """Return what a broker opens, in lines. For a running broker, omit the addresses that it has printed."""
    from holdfast.broker.config_warnings import short_lease, unused_policies

    facts = _facts(config)
    node = facts["cluster"]
    each = (
        f", {counted(config.workers, 'worker')}"
        if node is None
        else f", in each of {node['partitions']} cluster partitions"
    )
    lines = [f"store       {facts['store']}, {_partitions(config, is_old)}{each}"]
    if node is not None:
        url = node["url"] or (running or {}).get("node_url")
        lines.append(f"node        {node['node']}, for other nodes at {url or 'a free port'}")
    if created := (running or {}).get("created"):
        lines.append(f"cluster     new: this node has created it in {created}")
    if running is None:
        lines += [f"listens     {facts['listen']}", f"admin       {facts['admin'] or 'none'}"]
    if facts["public_url"] is not None:
        lines.append(f"public URL  {facts['public_url']}, in the WSDLs that clients receive")
    if facts["users"] is not None:
        lines.append(f"users       {facts['users']}; the broker refuses messages without a user name and password")
    if facts["signature"]:
        lines.append("signatures  the broker refuses messages that no trusted certificate has signed")
    if facts["symmetric"]:
        lines.append("encryption  the broker refuses messages that are not signed and encrypted with a symmetric key")
    if facts["assertions"] is not None:
        issuers = ", ".join(facts["assertions"])
        lines.append(f"assertions  the broker refuses messages without a SAML assertion from {issuers}")
    lines += [f"queue       {name}, retention {retention}" for name, retention in facts["queues"].items()]
    lines.append(f"routes      {facts['routes']}, else {facts['default_queue'] or 'refused'}")
    lines += [
        f"forwarder   {name}, {one['queue']} to {one['to']}{', paused' if one['paused'] else ''}"
        for name, one in facts["forwarders"].items()
    ]
    lines += [f"policy      {pattern}, {_applies_to(pattern, names)}" for pattern, names in facts["policies"].items()]
    lines += [f"warning     every user of this machine can read {file}" for file in facts["public_secrets"]]
    lines += [f"warning     the SAML assertion in {file} has expired" for file in facts["expired_assertions"]]
    lines += [
        f"warning     the certificate in {file} expires on {until}"
        for file, until in facts["expiring_certificates"].items()
    ]
    lines += [
        f"warning     the forwarders {' and '.join(names)} have the same address; rows for it go through {names[0]}"
        for names in facts["shared_addresses"].values()
    ]
    if short := short_lease(config):
        lines.append(f"warning     {short}")
    unused = unused_policies(config).items()
    return lines + [f'warning     policies."{pattern}" is unused: {why}' for pattern, why in unused]


def _applies_to(pattern: str, forwarders: list[str]) -> str:
    """Return what a policy applies to. Those of addresses apply to replies, too."""
    from holdfast.broker.destinations import ACTION, NAME
    from holdfast.endpoint.sending.policies import EVERY

    if pattern == EVERY:
        return "for all forwarders and replies"
    word = "forwarder" if len(forwarders) == 1 else "forwarders"
    told = [f"{word} {', '.join(forwarders)}"] if forwarders else []
    if not pattern.startswith((NAME, ACTION)):
        told.append("replies to such addresses")
    return f"for {' and '.join(told) or 'no forwarder'}"


def _partitions(config: BrokerConfig, is_old: bool) -> str:
    from holdfast.broker.config import PARTITIONS, SESSIONS

    shared = PARTITIONS if config.partitions is None else config.partitions
    sessions = SESSIONS if config.sessions is None else config.sessions
    is_left_to_store = config.partitions is None or config.sessions is None
    if is_left_to_store and is_old:
        return "an existing store"  # which has its own numbers
    return f"{counted(shared, 'partition')} and {sessions} for sessions{' in a new store' if is_left_to_store else ''}"


def _url(host: str, port: int, secure: bool) -> str:
    return f"{'https' if secure else 'http'}://{in_url(host)}:{port or '(any free port)'}/"
