"""``holdfast broker``: what a broker is told, checked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.failure import failure_facts

if TYPE_CHECKING:
    from holdfast.broker.config import BrokerConfig


@click.group()
def broker() -> None:
    """Queues between services.

    \b
    holdfast broker check broker.toml
    holdfast broker check broker.toml --json
    """


@broker.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="JSON instead of lines.")
def check(file: str, as_json: bool) -> None:
    """Read the configuration FILE as the broker would, and say what it would open; or every mistake in it.

    \b
    holdfast broker check broker.toml
    holdfast broker check broker.toml --json

    Nothing is opened, and nobody is asked. Certificates, keys and files with secrets are read, so run it where and as
    whom the broker runs. With mistakes the exit code is 1.
    """
    from holdfast.broker.config_file import read_config
    from holdfast.exceptions import ConfigurationMistakes

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
    if as_json:
        click.echo(json.dumps(_facts(config)))
        return
    for line in _summary(config):
        click.echo(line)


def _facts(config: BrokerConfig) -> dict[str, Any]:
    """What it would open; no secret is in it."""
    return {
        "store": config.store,
        "partitions": config.partitions,
        "workers": config.workers,
        "listen": _url(config.listen.host, config.listen.port, config.listen.tls is not None),
        "admin": _url(config.admin.host, config.admin.port, config.admin.tls is not None)
        if config.admin.enabled
        else None,
        "queues": {one.name: str(one.retention_policy) for one in config.queues},
        "routes": len(config.routes),
        "default_queue": config.default_queue or (None if config.routes else config.queues[0].name),
        "forwarders": {one.name: {"queue": one.queue, "to": one.to, "paused": one.paused} for one in config.forwarders},
    }


def _summary(config: BrokerConfig) -> list[str]:
    facts = _facts(config)
    lines = [
        f"store       {facts['store']}, {facts['partitions']} partitions, {facts['workers']} workers",
        f"listens     {facts['listen']}",
        f"admin       {facts['admin'] or 'none'}",
    ]
    lines += [f"queue       {name}, keeps {retention}" for name, retention in facts["queues"].items()]
    lines.append(f"routes      {facts['routes']}, else {facts['default_queue'] or 'refused'}")
    lines += [
        f"forwarder   {name}, {one['queue']} to {one['to']}{', paused' if one['paused'] else ''}"
        for name, one in facts["forwarders"].items()
    ]
    return lines


def _url(host: str, port: int, secure: bool) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"{'https' if secure else 'http'}://{name}:{port or '(any free port)'}/"
