"""Forwarders: opens their outboxes as the configuration says, and sets how each address is reached.

The core decides how a record is forwarded and retransmitted, and in which Sequence (``core.sending.outbound``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from holdfast.broker.config import ForwarderConfig
from holdfast.broker.config_warnings import forwarders_alone
from holdfast.broker.routing import Router
from holdfast.config.values import host_of
from holdfast.core.messages import MC_ANONYMOUS
from holdfast.core.queues.queue import Queue
from holdfast.core.sending.outbox_registry import OutboxRegistry
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.steering import PAUSED, UNCONFIGURED, Steering
from holdfast.core.versions import creation_choices
from holdfast.endpoint.destination.forwarded_services import Fetcher, ForwardedServices, Policy, ServiceWSDL
from holdfast.endpoint.destination.running_destination import RunningDestination
from holdfast.endpoint.logs import log
from holdfast.endpoint.sending.http_settings import HTTPSettings
from holdfast.endpoint.sending.outboxes import forwarder_key, forwarder_of
from holdfast.endpoint.sending.sender import Way
from holdfast.exceptions import ConfigurationError
from holdfast.wsdl.documents import fetcher

CONNECTIONS = 128
"""Maximum number of connections from a forwarder to its destination. A request occupies one until the service answers,
so a service that is slow for some sessions must leave enough for the others."""


class Forwarders:
    """The forwarders of a broker: one outbox, and so one Sequence, for each partition of their queue."""

    def __init__(self, configs: Iterable[ForwarderConfig]) -> None:
        self.configs = {config.name: config for config in configs}
        self._choices = {name: creation_choices(config.versions, config.offer) for name, config in self.configs.items()}
        """One list for all outboxes of a forwarder: what one learns about its destination applies to all."""

    def begin(self, destination: RunningDestination) -> None:
        """Resume the forwarders in the store, and open new ones.

        A forwarder that is in the store but not in the configuration is suspended, and its unsent messages are kept.

        Raises:
            ConfigurationError: In the store, a forwarder has another queue; or another address, and its Sequence cannot
                continue at the new one.
        """
        self.check(destination)
        for config in self.configs.values():
            if config.to not in destination.sender.ways:  # forwarders with the same address have the same transport
                destination.sender.use(config.to, way_of(config))
        self._begin_all(destination)

    def new_ways(self, other: Forwarders) -> dict[str, Way | None]:
        """Return address -> transport, where it differs from that of other forwarders; None: the default. Transports
        with TLS are created again, because their files may have changed.

        Raises:
            ConfigurationError: A TLS file is not valid.
        """
        before = {config.to: config for config in self.configs.values()}
        after = {config.to: config for config in other.configs.values()}
        made: dict[str, Way | None] = {
            to: way_of(config)
            for to, config in after.items()
            if to not in before or config.tls is not None or _said_of_way(config) != _said_of_way(before[to])
        }
        return dict.fromkeys(before.keys() - after.keys()) | made

    def take_over(self, destination: RunningDestination, ways: Mapping[str, Way | None]) -> None:
        """Replace other forwarders, with the result of :meth:`new_ways`. Messages in flight continue. :meth:`check`
        must have passed.
        """
        for to, way in ways.items():
            destination.sender.use(to, way)
        self._begin_all(destination)

    def _begin_all(self, destination: RunningDestination) -> None:
        registry = destination.engine.protocol.outbound.registry
        redirected = {config.name: one.to or "" for one, config in self._known(registry) if one.to != config.to}
        for config in self.configs.values():
            queue = destination.queues[config.queue]
            for partition, one in enumerate(queue.partitions):
                if partition < queue.description.shared or one.end:  # the others once a session gets them
                    self._begin_one(destination, config, partition)
        sessions = destination.engine.protocol.sessions
        if sessions is not None:
            sessions.on_begin = partial(self._begin_session, destination)
        for name, earlier in redirected.items():
            what = "all its messages go to the new address, those of open Sequences too"
            log.warning("forwarder.redirected", forwarder=name, earlier=earlier, to=self.configs[name].to, what=what)
        if redirected:
            registry.redirected(redirected.values())
        self._hold_back_others(destination)

    def _begin_session(self, destination: RunningDestination, partition: int) -> None:
        protocol = destination.engine.protocol
        outboxes = protocol.outbound.outboxes
        for config in self.configs.values():
            first = outboxes.get(forwarder_key(config.name, 0))
            if first is None or forwarder_key(config.name, partition) in outboxes:
                continue  # it was deleted, or follows that partition already
            self._begin_one(destination, config, partition)
            if first.lifecycle.suspended is not None:
                Steering(protocol).suspend(outboxes[forwarder_key(config.name, partition)], first.lifecycle.suspended)

    def check(self, destination: RunningDestination) -> None:
        """Check that the store has none of these forwarders with other ends.

        Raises:
            ConfigurationError: It has; see :meth:`begin`.
        """
        registry = destination.engine.protocol.outbound.registry
        known = self._known(registry)
        addresses = {outbox.key: config.to for outbox, config in known}
        for outbox, config in known:
            _check_queue(config, outbox, destination.queues[config.queue])
            if outbox.to != config.to and not registry.may_redirect(outbox, addresses):
                raise _cannot_redirect(config, outbox)

    def _known(self, registry: OutboxRegistry) -> list[tuple[Outbox, ForwarderConfig]]:
        """Return the outboxes in the store of these forwarders, with what the configuration says of them."""
        return [
            (outbox, self.configs[name])
            for key, outbox in registry.outboxes.items()
            if (name := forwarder_of(key)) in self.configs
        ]

    def _hold_back_others(self, destination: RunningDestination) -> None:
        steering = Steering(destination.engine.protocol)
        for key, outbox in destination.engine.protocol.outbound.outboxes.items():
            name = forwarder_of(key)
            if name is None or name in self.configs:
                continue
            outbox.is_configured = False
            if not outbox.lifecycle.is_held_back:
                steering.suspend(outbox, UNCONFIGURED)
                log.warning(
                    "forwarder.not_configured",
                    forwarder=name,
                    waiting=outbox.records.durable_end - outbox.records.first,
                    what="the forwarder is suspended; the broker keeps its unsent messages",
                    remedy="Add it to the configuration again, or delete it: holdfast forwarders delete",
                )

    def _begin_one(self, destination: RunningDestination, config: ForwarderConfig, partition: int) -> None:
        protocol = destination.engine.protocol
        outbox = protocol.outbound.forward(
            forwarder_key(config.name, partition),
            config.to,
            self._choices[config.name],
            destination.queues[config.queue],
            partition,
            policy=config.policy,
            address=MC_ANONYMOUS if config.poll else config.address or "",
        )
        outbox.is_configured = True
        if outbox.to != config.to:
            protocol.outbound.registry.redirect(outbox, config.to)
        self._pause(Steering(protocol), config, outbox, destination.engine.clock())

    @staticmethod
    def _pause(steering: Steering, config: ForwarderConfig, outbox: Outbox, now: float) -> None:
        if config.paused and not outbox.lifecycle.is_held_back:
            steering.suspend(outbox, PAUSED)
        elif not config.paused and outbox.lifecycle.suspended in (PAUSED, UNCONFIGURED):
            steering.resume(outbox, now)

    def follows(self, queue: str) -> bool:
        """Return whether a forwarder reads the queue."""
        return any(config.queue == queue for config in self.configs.values())

    def has_replies(self, queue: str) -> bool:
        """Return whether replies to a queue's forwarders may also come later than in the HTTP response."""
        return any(config.queue == queue and config.has_replies for config in self.configs.values())

    def addresses(self) -> dict[str, str]:
        """Return address -> the queue with records that go only there; of several, that of the first forwarder."""
        return {to: several[0].queue for to, several in forwarders_alone(self.configs.values()).items()}


def _check_queue(config: ForwarderConfig, outbox: Outbox, queue: Queue) -> None:
    if (stored := outbox.records.queue) is not queue:
        raise ConfigurationError(
            f"in the store, the forwarder {config.name!r} reads the queue {stored.name!r}, not {queue.name!r}",
            remedy="Give the forwarder of the other queue a new name. The broker keeps the unsent messages of the "
            "old one.",
        )


def _cannot_redirect(config: ForwarderConfig, outbox: Outbox) -> ConfigurationError:
    return ConfigurationError(
        f"the forwarder {config.name!r} is configured to send to {config.to}, but has an open Sequence with "
        f"{outbox.to}, which cannot continue there",
        remedy="Restore the old address, and change it when the forwarder has nothing to send: a forwarder that "
        "polls, or whose new destination uses the same Identifier already, cannot take its Sequence along.",
    )


def way_of(config: ForwarderConfig) -> Way:
    """Return how a forwarder reaches its address.

    Raises:
        ConfigurationError: A TLS file is not valid.
    """
    http = _http_of(config)
    return Way(http.new_client(connections_per_host=CONNECTIONS), http.headers or {})


def _http_of(config: ForwarderConfig) -> HTTPSettings:
    return HTTPSettings(
        headers={"Authorization": config.credentials.authorization()} if config.credentials is not None else {},
        ssl_context=config.tls.context() if config.tls is not None else None,
        proxy=config.proxy.location() if config.proxy is not None else None,
        timeout=config.timeout,
    )


def services_of(configs: Iterable[ForwarderConfig], router: Router, policy: Policy) -> ForwardedServices:
    """Return the services whose WSDLs the broker serves.

    Args:
        router: Decides which service the messages to an address reach.
        policy: The broker's own.

    Raises:
        ConfigurationError: A TLS file is not valid.
    """
    services = ForwardedServices(policy, router)
    for config in configs:
        if config.wsdl is not None:
            services.add(config.name, config.queue, config.wsdl, _wsdl_fetcher(config, config.wsdl))
    return services


def _wsdl_fetcher(config: ForwarderConfig, wsdl: ServiceWSDL) -> Fetcher:
    http, location = _http_of(config), wsdl.location
    # The credentials are for the destination: its WSDL may be at another host.
    headers = http.headers if wsdl.is_remote and host_of(location) == host_of(config.to) else None
    return lambda seconds: fetcher(location, headers, ssl_context=http.ssl_context, proxy=http.proxy, timeout=seconds)


def _said_of_way(config: ForwarderConfig) -> tuple[object, ...]:
    return config.timeout, config.tls, config.proxy, config.credentials
