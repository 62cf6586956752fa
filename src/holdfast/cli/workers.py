"""``--workers``: the option, and becoming several processes behind one address."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.program import parse_address

if TYPE_CHECKING:
    import socket

    from holdfast.endpoint.supervisor import Post

Sockets = tuple["list[socket.socket]", "list[socket.socket]"]


def worker_options(command: Any) -> Any:
    """Add how many processes serve."""
    return click.option(
        "--workers",
        type=click.IntRange(1, 64),
        default=1,
        show_default=True,
        help="Processes that share the Sequences, each with a store of its own, behind one address.",
    )(command)


def become_worker(
    count: int, *, host: str, port: int, admin: str | None, max_connections: int
) -> tuple[Post | None, Sockets]:
    """Become one of ``count`` processes that listen at the same addresses; a supervisor stays behind, which ends with
    them. For one there is nothing to become.

    Returns:
        In each worker, where it stands, and what it listens on: for messages, and for the admin listener.

    Raises:
        ConfigurationError: The system does not let us listen there.
    """
    if count == 1:
        return None, ([], [])
    if admin is not None:
        raise click.UsageError("--admin serves one process: leave out --workers, or --admin.")
    from holdfast.endpoint.listening import listening_at
    from holdfast.endpoint.supervisor import Supervisor
    from holdfast.http.binding import bind

    with listening_at(host, port):
        messages = bind(host, port, max_connections)
    admin_host, admin_port = parse_address(admin)
    admins: list[socket.socket] = []
    if admin_port is not None:
        with listening_at(admin_host, admin_port):
            admins = bind(admin_host, admin_port, max_connections)
    post = Supervisor(count, [*messages, *admins], tell_ready).run()
    post.end_with_supervisor()
    return post, (messages, admins)


def tell_ready(facts: Mapping[str, Any]) -> None:
    """Say where it is listened, on standard output."""
    click.echo(f"listening on {facts['url']}")
    if facts["admin_url"]:
        click.echo(f"admin on {facts['admin_url']}")
    sys.stdout.flush()
