"""Forwarders: what is sent on, as the configuration says. Opens their outboxes and says how each address is posted to.

How a record is sent on, again and in which Sequence is the core's (``core.outbound``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from holdfast.broker.config import ForwarderConfig
from holdfast.core.queues.queue import Queue
from holdfast.core.sending.outboxes.lifecycle import Choice
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.steering import Steering
from holdfast.endpoint.destination.destination import Destination
from holdfast.endpoint.logs import log
from holdfast.endpoint.sending.outboxes import forwarder_key, forwarder_of
from holdfast.endpoint.sending.sender import Way
from holdfast.exceptions import ConfigurationError
from holdfast.http.client.client import HTTPClient
from holdfast.http.tls import client_context

PAUSED = "paused by the configuration"
"""Why a forwarder sends nothing whose configuration says so."""
CONNECTIONS = 128
"""Connections of a forwarder to its destination, at most. A request holds one until the service answers, so a service
that is slow for some sessions must leave enough for the others."""
UNCONFIGURED = "not in the configuration"
"""Why one sends nothing that the store knows and the configuration does not."""


def choices_of(config: ForwarderConfig) -> list[Choice]:
    """What a forwarder tries with CreateSequence, first to last."""
    offers = (True, False) if config.offer is None else (config.offer,)
    return [(versions, offer) for offer in offers for versions in config.versions]


class Forwarders:
    """The forwarders of a broker: for each partition of their queue an outbox, so one Sequence each.

    Args:
        configs: What each is told.
    """

    def __init__(self, configs: Iterable[ForwarderConfig]) -> None:
        self.configs = {config.name: config for config in configs}
        self._choices = {name: choices_of(config) for name, config in self.configs.items()}
        """One list for all outboxes of a forwarder: what one learns of its destination serves all."""

    def begin(self, destination: Destination) -> None:
        """Take up what the store knows of them, and open those that are new.

        One that the store knows and the configuration does not sends nothing, and keeps what it has not sent.

        Raises:
            ConfigurationError: the store knows one as another: with another queue, or with another address while
                something is on its way there.
        """
        self.check(destination)
        for config in self.configs.values():
            if config.to not in destination.sender.ways:  # whoever sends there says the same of it
                destination.sender.use(config.to, way_of(config))
        self._begin_all(destination)

    def new_ways(self, other: Forwarders) -> dict[str, Way | None]:
        """Address -> how others than these post there, where that is not the same; None: as usual. A way that TLS is
        spoken on is made anew, as its files may be others.

        Raises:
            ConfigurationError: such files are not what they should be.
        """
        before = {config.to: config for config in self.configs.values()}
        after = {config.to: config for config in other.configs.values()}
        made: dict[str, Way | None] = {
            to: way_of(config)
            for to, config in after.items()
            if to not in before or config.tls is not None or _said_of_way(config) != _said_of_way(before[to])
        }
        return dict.fromkeys(before.keys() - after.keys()) | made

    def take_over(self, destination: Destination, ways: Mapping[str, Way | None]) -> None:
        """Go on in the place of others, with :meth:`new_ways` of theirs. What is on its way to a destination goes on.
        :meth:`check` must have let these pass.
        """
        for to, way in ways.items():
            destination.sender.use(to, way)
        self._begin_all(destination)

    def _begin_all(self, destination: Destination) -> None:
        for config in self.configs.values():
            queue = destination.queues[config.queue]
            for partition, one in enumerate(queue.partitions):
                if partition < queue.shared or one.end:  # the others once a session gets them
                    self._begin_one(destination, config, partition)
        sessions = destination.engine.protocol.sessions
        if sessions is not None:
            sessions.on_begin = partial(self._begin_session, destination)
        self._hold_back_others(destination)

    def _begin_session(self, destination: Destination, partition: int) -> None:
        protocol = destination.engine.protocol
        outboxes = protocol.outbound.outboxes
        for config in self.configs.values():
            first = outboxes.get(forwarder_key(config.name, 0))
            if first is None or forwarder_key(config.name, partition) in outboxes:
                continue  # it was deleted, or follows that partition already
            self._begin_one(destination, config, partition)
            if first.suspended is not None:
                Steering(protocol).suspend(outboxes[forwarder_key(config.name, partition)], first.suspended)

    def check(self, destination: Destination) -> None:
        """See that none of these is known to the store as another.

        Raises:
            ConfigurationError: one is; see :meth:`begin`.
        """
        outboxes = destination.engine.protocol.outbound.outboxes
        for config in self.configs.values():
            queue = destination.queues[config.queue]
            for partition in range(len(queue.partitions)):
                known = outboxes.get(forwarder_key(config.name, partition))
                if known is not None:
                    _check_known(config, known, queue)

    def _hold_back_others(self, destination: Destination) -> None:
        steering = Steering(destination.engine.protocol)
        for key, outbox in destination.engine.protocol.outbound.outboxes.items():
            name = forwarder_of(key)
            if name is not None and name not in self.configs and not outbox.stopped and outbox.suspended is None:
                steering.suspend(outbox, UNCONFIGURED)
                log.warning(
                    "forwarder.not_configured",
                    forwarder=name,
                    waiting=outbox.durable_end - outbox.first,
                    what="it sends nothing, and what it has not sent is kept for it",
                    remedy="configure it again, or delete it: holdfast forwarders delete",
                )

    def _begin_one(self, destination: Destination, config: ForwarderConfig, partition: int) -> None:
        protocol = destination.engine.protocol
        outbox = protocol.outbound.forward(
            forwarder_key(config.name, partition),
            config.to,
            self._choices[config.name],
            destination.queues[config.queue],
            partition,
            policy=config.policy,
            address=config.address or "",
        )
        if outbox.to != config.to:
            protocol.outbound.redirect(outbox, config.to)
        self._pause(Steering(protocol), config, outbox, destination.engine.clock())

    @staticmethod
    def _pause(steering: Steering, config: ForwarderConfig, outbox: Outbox, now: float) -> None:
        if config.paused and not outbox.stopped and outbox.suspended is None:
            steering.suspend(outbox, PAUSED)
        elif not config.paused and outbox.suspended in (PAUSED, UNCONFIGURED):
            steering.resume(outbox, now)

    def replying(self, queue: str) -> bool:
        """Whether requests in a queue are sent on to somebody who may reply."""
        return any(config.queue == queue and config.may_reply for config in self.configs.values())

    def follows(self, queue: str) -> bool:
        """Whether what is in a queue is sent on."""
        return any(config.queue == queue for config in self.configs.values())

    def addresses(self) -> dict[str, str]:
        """Address -> the queue whose records go there and nowhere else."""
        shared = Counter(config.queue for config in self.configs.values())
        return {config.to: config.queue for config in self.configs.values() if shared[config.queue] == 1}

    def outboxes(self, destination: Destination, name: str) -> Sequence[Outbox]:
        """A forwarder's, by partition."""
        outboxes = destination.engine.protocol.outbound.outboxes
        return [outbox for key, outbox in outboxes.items() if forwarder_of(key) == name]


def _check_known(config: ForwarderConfig, outbox: Outbox, queue: Queue) -> None:
    if outbox.queue is not queue:
        raise ConfigurationError(
            f"the forwarder {config.name!r} reads the queue {outbox.queue.name!r} by the store, not {queue.name!r}",
            remedy="Give a forwarder of another queue another name: what the old one has not sent is kept for it.",
        )
    if outbox.to != config.to and outbox.source is not None:
        raise ConfigurationError(
            f"the forwarder {config.name!r} is to send to {config.to}, and has a Sequence open with {outbox.to}",
            remedy="Let it finish with the old address first, or give the new one another name.",
        )


def way_of(config: ForwarderConfig) -> Way:
    """How a forwarder posts to its address.

    Raises:
        ConfigurationError: files of TLS are not what they should be.
    """
    headers = {"Authorization": config.credentials.authorization()} if config.credentials is not None else {}
    tls = config.tls
    return Way(
        HTTPClient(
            connections_per_host=CONNECTIONS,
            total_timeout=config.timeout,
            ssl_context=client_context(tls.ca, tls.certificate, tls.key) if tls is not None else None,
            proxy=config.proxy.location() if config.proxy is not None else None,
        ),
        headers,
    )


def _said_of_way(config: ForwarderConfig) -> tuple[object, ...]:
    return config.timeout, config.tls, config.proxy, config.credentials
