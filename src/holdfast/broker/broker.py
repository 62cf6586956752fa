"""Broker: takes messages for others, keeps them, and sends them on, so that neither side needs the other to be up.

It is a destination without handlers, whose queues are routed to, and the forwarders that read them. What a message, a
Sequence, a queue or a store is like is the other rooms'.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from holdfast.broker.config import BrokerConfig, ServerTLS
from holdfast.broker.forwarders import Forwarders
from holdfast.broker.routing import Router
from holdfast.endpoint.destination import Destination
from holdfast.endpoint.serve import Listeners, Service
from holdfast.endpoint.supervisor import Post
from holdfast.http.tls import server_context


class Broker:
    """A broker.

    Args:
        config: What it is told; None: as without a file.
        post: Where this process stands among several that do the same; None if it is the only one.
    """

    def __init__(self, config: BrokerConfig | None = None, post: Post | None = None) -> None:
        self.config = config = config or BrokerConfig()
        self.forwarders = Forwarders(config.forwarders)
        first, *further = config.queues
        self.destination = Destination(
            config.store_location(),
            queue=first.name,
            further_queues=dict.fromkeys(one.name for one in further),
            router=self._router(),
            partitions=config.partitions,
            policy=config.sequences,
            allow_addresses=config.allow_addresses,
            limits=config.limits.http,
            wire_limits=config.limits.envelopes,
        )
        for one in config.queues:
            queue = self.destination.queues[one.name]
            queue.retention, queue.drops_passed = one.retention_policy, one.retention is None
        self.destination.on_recovered = lambda: self.forwarders.begin(self.destination)
        self.service = Service(self.destination, self._listeners(), post)

    def _router(self) -> Router:
        config = self.config
        default = config.default_queue or (config.queues[0].name if not config.routes else None)
        return Router(
            config.routes, config.namespaces, default, config.limits.max_routed_body, self.forwarders.replying
        )

    def _listeners(self) -> Listeners:
        listen, admin = self.config.listen, self.config.admin
        token = admin.token
        return Listeners(
            listen.host,
            listen.port,
            admin.host,
            admin.port if admin.enabled else None,
            _context(listen.tls),
            self.config.limits.http,
            _context(admin.tls),
            token.reveal() if token is not None else None,
            admin.names,
        )

    async def run(self, stop: asyncio.Event | None = None, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serve until it is told to end: see :meth:`Service.run`.

        Raises:
            HoldfastError: what starting raises, or the store's failure.
        """
        await self.service.run(stop, on_ready)


def _context(tls: ServerTLS | None) -> ssl.SSLContext | None:
    return server_context(tls.certificate, tls.key, tls.client_ca) if tls is not None else None
