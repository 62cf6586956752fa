"""``--workers``: the option, and becoming several processes behind one address, or those of a cluster's node."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from holdfast.client.option_types import Count
from holdfast.settings import MAX_WORKERS
from holdfast.store.address import is_kafka

if TYPE_CHECKING:
    import socket

    from holdfast.broker.config import BrokerConfig
    from holdfast.cluster.trust import Trust
    from holdfast.endpoint.workers.supervisor import Post


def worker_options(command: Any) -> Any:
    """Add how many processes serve; None if it is not said."""
    return click.option(
        "--workers",
        type=Count(1, MAX_WORKERS),
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


def become_node(
    config: BrokerConfig, ready: Callable[[Mapping[str, Any]], None], *, passes_hang_up: bool, restored: bool
) -> Post | None:
    """Become the processes of a node of a cluster: its agent, a gateway, and a worker for each partition that it owns
    now. A supervisor stays behind, which ends with them.

    Args:
        config: The configuration. Without a cluster there is nothing to become.
        ready: Called in the supervisor when the node first serves the partitions that it owns.
        passes_hang_up: Whether SIGHUP is passed on to the gateway and the workers.
        restored: Whether the database was restored from an older copy.

    Returns:
        In the gateway and in each worker, where it stands; None without a cluster.

    Raises:
        ConfigurationError: The system does not let us listen there.
    """
    cluster = config.cluster
    if cluster is None:
        return None
    import holdfast.endpoint.serve

    if is_kafka(config.store):
        import holdfast.store.kafka.store
    else:
        import holdfast.store.sql.store  # noqa: F401 # as above
    from holdfast.cluster.trust import Trust
    from holdfast.endpoint.workers.agent_link import AgentLink
    from holdfast.endpoint.workers.shared_claims import SharedClaims
    from holdfast.endpoint.workers.supervisor import Supervisor

    most = config.limits.http.max_connections
    nodes = _bind((cluster.host, cluster.port), most)
    trust = Trust(cluster.partitions)
    node, url = cluster.node_name(), cluster.node_url(nodes[0].getsockname()[1])
    assert url is not None
    messages = _bind((config.listen.host, config.listen.port), most)
    admin = _bind((config.admin.host, config.admin.port), most) if config.admin.enabled else []
    # Last of all: a node that cannot listen must not join the cluster.
    link = AgentLink.start(partial(_run_agent, config, node, url, restored, [*nodes, *messages, *admin], trust), trust)
    supervisor = Supervisor(
        cluster.partitions,
        messages,
        admin,
        lambda facts: ready({**facts, "node_url": url}),
        passes_hang_up=passes_hang_up,
        agent=link,
        nodes=nodes,
        claims=partial(SharedClaims, config.store_location()),
    )
    post = supervisor.run()
    post.end_with_supervisor()
    return post


def _run_agent(
    config: BrokerConfig,
    node: str,
    url: str,
    restored: bool,
    listening: list[socket.socket],
    trust: Trust,
    link: socket.socket,
) -> None:
    for one in listening:
        one.close()
    run_agent(config, node, url, trust, link, restored=restored)


def run_agent(
    config: BrokerConfig, node: str, url: str, trust: Trust, link: socket.socket, *, restored: bool = False
) -> None:
    """Keep the lease of a node, until its supervisor ends."""
    from holdfast.cluster import agent
    from holdfast.cluster.lease_policy import LeasePolicy
    from holdfast.endpoint.logs import log
    from holdfast.endpoint.workers.node_proof import NodeProof

    cluster = config.cluster
    assert cluster is not None and cluster.secret is not None
    mark = NodeProof(cluster.secret.reveal(), is_encrypted=cluster.tls is not None).mark
    policy = LeasePolicy(cluster.lease)
    settings = agent.AgentSettings(
        config.store_location(), node, url, cluster.partitions, policy, mark, cluster.memory, restored
    )
    run = agent.run_agent
    if is_kafka(config.store):
        from holdfast.cluster.group.agent import run_group_agent as run
    run(settings, link, trust, lambda level, event, **fields: getattr(log, level)(event, **fields))


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
