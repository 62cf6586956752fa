"""``--workers``: the option, and becoming several processes behind one address."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import socket

    from holdfast.endpoint.workers.supervisor import Post


def worker_options(command: Any) -> Any:
    """Add how many processes serve; None if it is not said."""
    return click.option(
        "--workers",
        type=click.IntRange(1, 64),
        help="Number of processes behind one address that share the Sequences, each with its own store.  [default: 1]",
    )(command)


def become_worker(
    count: int,
    messages: tuple[str, int],
    admin: tuple[str, int] | None,
    max_connections: int,
    ready: Callable[[Mapping[str, Any]], None],
    *,
    passes_hang_up: bool = False,
) -> Post | None:
    """Become one of ``count`` processes that listen at the same addresses; a supervisor stays behind, which ends with
    them. For one there is nothing to become.

    Args:
        count: How many.
        messages, admin: Where they listen.
        max_connections: As their limits say it.
        ready: Called in the supervisor when all of them serve.
        passes_hang_up: Whether SIGHUP is passed on to them.

    Returns:
        In each worker, where it stands; None where there is one process.

    Raises:
        ConfigurationError: The system does not let us listen there.
    """
    if count == 1:
        return None
    import holdfast.endpoint.serve  # what is loaded before they part, they share in memory
    import holdfast.store.rocksdb.store  # noqa: F401
    from holdfast.endpoint.workers.supervisor import Supervisor

    bound = _bind(messages, max_connections)
    admin_bound = _bind(admin, max_connections) if admin is not None else []
    post = Supervisor(count, bound, admin_bound, ready, passes_hang_up=passes_hang_up).run()
    post.end_with_supervisor()
    return post


def _bind(address: tuple[str, int], max_connections: int) -> list[socket.socket]:
    from holdfast.endpoint.listeners import listening_at
    from holdfast.http.server.binding import bind

    with listening_at(*address):
        return bind(*address, max_connections)


def tell_ready(facts: Mapping[str, Any]) -> None:
    """Print the addresses of the listeners on standard output."""
    click.echo(f"listening on {facts['url']}")
    if facts["admin_url"]:
        click.echo(f"admin on {facts['admin_url']}")
    sys.stdout.flush()
