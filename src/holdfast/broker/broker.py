"""Broker: receives messages, stores them and forwards them, so that neither side needs the other to be running.

It is a destination without handlers, with routes into its queues and forwarders that read them. Messages, Sequences,
queues and stores belong to the other rooms.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import replace

from holdfast.broker.config import PARTITIONS, SESSIONS, BrokerConfig
from holdfast.broker.config_changes import what_changes, what_nodes_share
from holdfast.broker.config_checks import check_config
from holdfast.broker.config_warnings import public_secrets, shared_addresses, tls_certificates, unused_policies
from holdfast.broker.forwarders import Forwarders, services_of
from holdfast.broker.message_security import MessageSecurity
from holdfast.broker.routing import Router
from holdfast.core.queues.queue_limit import QueueLimit
from holdfast.endpoint.destination.destination import Destination
from holdfast.endpoint.destination.queues import Partitioning, Retentions
from holdfast.endpoint.destination.running_destination import Reload, RunningDestination
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.logs import log, warn_of_tls
from holdfast.endpoint.serve import Service
from holdfast.endpoint.workers.node_proof import NodeProof
from holdfast.endpoint.workers.supervisor import Post
from holdfast.exceptions import ConfigurationError, clause
from holdfast.store import IN_MEMORY
from holdfast.store.directory import public_remedy


class Broker:
    """A broker.

    Args:
        config: The configuration; None: the defaults.
        post: The place of this process among several workers; None if it is the only one.
        read_again: Reads the configuration again, for :meth:`reload`; its argument is the running configuration.
        restored: Whether the store was restored from an older copy; see :class:`holdfast.Destination`.

    Raises:
        ConfigurationError: The configuration is inconsistent.
    """

    def __init__(
        self,
        config: BrokerConfig | None = None,
        post: Post | None = None,
        read_again: Callable[[BrokerConfig], BrokerConfig] | None = None,
        *,
        restored: bool = False,
    ) -> None:
        self.config = config = config or BrokerConfig()
        check_config(config)
        config = self._own(config, post)
        self._read_again = read_again
        self._post = post
        self._heard = post.hang_ups() if post is not None else 0
        self._is_ready = self._is_wanted = False
        self.forwarders = Forwarders(config.forwarders)
        self._security = MessageSecurity(config)
        self.destination = Destination(
            config.store_location(),
            policy=config.sequences,
            http=config.http(),
            processors=self._security.begin(),
            journal=config.journal if config.journal.enabled else False,
        )
        settings = self.destination.settings
        settings.router = router = _router(config, self.forwarders)
        # Of the whole configuration: the gateway of a node, which sends nothing, serves them too.
        settings.wsdl.use(services_of(self.config.forwarders, router, settings.policy_at))
        settings.restored = restored
        settings.partitioning = Partitioning(config.partitions, config.sessions, PARTITIONS, SESSIONS)
        settings.queues = _retentions(config)
        if read_again is not None:
            settings.reload = self._reload if post is None else self._reload_all
        settings.on_recovered = self._recovered
        settings.addresses = lambda: self.forwarders.addresses()
        listeners = _listeners(config)
        self._access = listeners.node
        self.service = Service(self.destination, listeners, post)
        self._warn()

    @staticmethod
    def _own(config: BrokerConfig, post: Post | None) -> BrokerConfig:
        """Return what this process does of a configuration: the gateway of a node stores and sends nothing."""
        if post is None or not post.place.worker.is_gateway:
            return config
        off = replace(config.journal, enabled=False)
        return replace(
            config, store=IN_MEMORY, store_password_file=None, store_password_env=None, forwarders=(), journal=off
        )

    def _recovered(self, destination: RunningDestination) -> None:
        _limit_queues(destination, self.config)
        self.forwarders.begin(destination)

    def reload(self) -> list[str]:
        """Read the configuration again and apply it. Connections, Sequences and messages in flight continue.

        Returns:
            The keys with new values that the broker uses now. TLS files are read again in any case, because their
            content may have changed. If other nodes would refuse a node's new certificate, no key of ``cluster.tls`` is
            among them.

        Raises:
            ConfigurationError: The configuration has mistakes, changes a key that cannot change while the broker runs,
                or does not exist. Nothing changes then.
        """
        return self._reload().changed

    def _reload(self) -> Reload:
        if self._read_again is None:
            raise ConfigurationError(
                "this broker was started without a configuration file", remedy="Restart it with --config broker.toml."
            )
        read = self._read_again(self.config)
        new = self._own(read, self._post)
        # Every step that can fail comes before the first change.
        listeners, forwarders = _listeners(new), Forwarders(new.forwarders)
        router, destination = _router(new, forwarders), self.destination.running
        services = services_of(read.forwarders, router, self.destination.settings.policy_at)
        forwarders.check(destination)
        ways = self.forwarders.new_ways(forwarders)
        security = MessageSecurity(new, self._security)
        refusal = _certificate_refusal(read)
        if refusal is not None:  # keep the certificate that this node has
            listeners = replace(listeners, node=self._access)
        self._access = listeners.node
        self.service.use(listeners)
        self._security = security
        destination.settings.envelopes.process_with(security.begin())  # before a new forwarder sends
        forwarders.take_over(destination, ways)
        self.forwarders = forwarders
        self.destination.settings.wsdl.use(services)
        destination.use(new.sequences, new.http(), router, _retentions(new))
        _limit_queues(destination, new)
        reload = _result_of(self.config, read, refusal)
        self.config = read
        self._warn()
        self._tell_tables()
        log.info("configuration.reloaded", changed=", ".join(reload.changed) or "nothing")
        if refusal is not None and self._is_first:
            log.warning("cluster.certificate_not_used", error=refusal.message, remedy=refusal.remedy)
        return reload

    @property
    def _is_first(self) -> bool:
        """Whether this process logs what all of them find: in a node of a cluster its gateway, which always runs."""
        worker = self._post.place.worker if self._post is not None else None
        return worker is None or worker.is_gateway or (worker.number == 0 and self.config.cluster is None)

    def _warn(self) -> None:
        """Log what a configuration permits but hardly anyone wants."""
        if self._is_first:
            for file in public_secrets(self.config):
                log.warning("secret.public", file=file, remedy=public_remedy(file))
            warn_of_tls(*tls_certificates(self.config))
            for pattern, why in unused_policies(self.config).items():
                log.warning("policy.unused", pattern=pattern, why=why, remedy="Correct the pattern, or remove it.")
            for to, names in shared_addresses(self.config).items():
                remedy = "Rows for this address go through the first. For another, let the sink name its queue."
                log.warning("forwarder.address_shared", to=to, forwarders=names, remedy=remedy)
            expiring = self.config.cluster.expiring_certificates() if self.config.cluster is not None else {}
            for file, until in expiring.items():
                log.warning("cluster.certificate_expires", file=file, until=until)

    def _tell_tables(self) -> None:
        """Let the nodes of the cluster compare their configurations."""
        cluster = self.config.cluster
        if self._post is not None and cluster is not None and self._is_first:
            assert cluster.secret is not None
            proof, tables = NodeProof(cluster.secret.reveal()), what_nodes_share(self.config)
            self._post.tell_tables({name: proof.digest_of(name, text.encode()) for name, text in tables.items()})

    def _reload_all(self) -> Reload:
        """Reload all workers: the supervisor notifies each, and remembers the configuration for later ones."""
        try:
            return self._checked_by_one()
        except ConfigurationError as error:
            if self.config.cluster is None:
                raise
            name = self.config.cluster.node_name()
            what = f"node {name} keeps its configuration: {error.message}"
            raise ConfigurationError(what, remedy=error.remedy) from error

    def _checked_by_one(self) -> Reload:
        assert self._read_again is not None
        new = self._read_again(self.config)
        if self._post is None or not self._post.place.worker.is_gateway:
            Forwarders(new.forwarders).check(self.destination.running)
        os.kill(os.getppid(), signal.SIGHUP)
        return _result_of(self.config, new, _certificate_refusal(new))

    def _hang_up(self) -> None:
        """Handle SIGHUP: reload the configuration at once, or as soon as the broker serves."""
        if not self._is_ready:
            self._is_wanted = True
            return
        try:
            self.reload()
        except ConfigurationError as error:
            remedy = error.remedy or "Correct the file, then reload it. Until then, the broker keeps its configuration."
            log.error("configuration.not_reloaded", error=error.message, remedy=remedy)

    async def run(self, stop: asyncio.Event | None = None, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serve until stopped: see :meth:`Service.run`.

        Raises:
            HoldfastError: The broker cannot start, or its store failed.
        """
        if self._read_again is None:
            await self.service.run(stop, on_ready)
            return
        loop = asyncio.get_running_loop()
        # Before the start: by default, SIGHUP ends a process.
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)

        def ready() -> None:
            self._is_ready = True
            self._tell_tables()
            # The supervisor may have passed a signal on before this process had a handler.
            if self._is_wanted or (self._post is not None and self._post.hang_ups() > self._heard):
                self._hang_up()
            on_ready()

        try:
            await self.service.run(stop, ready)
        finally:
            loop.remove_signal_handler(signal.SIGHUP)


def _certificate_refusal(config: BrokerConfig) -> ConfigurationError | None:
    """Return why other nodes would refuse the certificate in this node's file; None: they would not."""
    try:
        if config.cluster is not None:
            config.cluster.check_certificate()
    except ConfigurationError as error:
        return error
    return None


def _result_of(old: BrokerConfig, new: BrokerConfig, refusal: ConfigurationError | None) -> Reload:
    changed = what_changes(old, new)
    if refusal is None:
        return Reload(changed)
    why = f"The node keeps its certificate: {clause(refusal.message)}. {refusal.remedy}".rstrip()
    return Reload([key for key in changed if not key.startswith("cluster.tls")], {"cluster.tls": why})


def _retentions(config: BrokerConfig) -> Retentions:
    return {one.name: (one.retention_policy, one.retention is None) for one in config.queues}


def _limit_queues(destination: RunningDestination, config: BrokerConfig) -> None:
    destination.engine.protocol.inbound.limits = {
        one.name: QueueLimit(destination.queues[one.name], one.max_messages)
        for one in config.queues
        if one.max_messages is not None
    }


def _router(config: BrokerConfig, forwarders: Forwarders) -> Router:
    default = config.default_queue or (config.queues[0].name if not config.routes else None)
    return Router(
        config.routes,
        config.namespaces,
        default,
        config.limits.max_routed_body,
        forwarders.follows,
        forwarders.has_replies,
    )


def _listeners(config: BrokerConfig) -> Listeners:
    listen, cluster = config.listen, config.cluster
    admin = config.admin.listener() if config.admin.enabled else None
    if admin is not None and cluster is not None:
        admin = replace(admin, url=cluster.given_admin_url() or None)
    return Listeners(
        listen.host,
        listen.port,
        listen.tls.context() if listen.tls is not None else None,
        config.limits.http,
        admin,
        node=cluster.access() if cluster is not None else None,
    )
