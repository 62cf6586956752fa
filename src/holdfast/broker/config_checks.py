"""Contradictions in a configuration between values that are valid on their own.

Each check yields the key's path, what is wrong, and how to fix it. A value of the wrong kind has already been reported;
a check that needs it ends (``config.unreadable``). There is one check for each contradiction.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from holdfast.broker.cluster_config import SHORTEST_SECRET
from holdfast.broker.config import (
    MAX_ROUTES,
    AdminConfig,
    BrokerConfig,
    ForwarderConfig,
    ListenConfig,
    RouteConfig,
    actions_of,
    resolved_policy,
)
from holdfast.broker.security_checks import checks_of_credentials, checks_of_senders, one_secret
from holdfast.broker.xpath import check_name, parse_xpath, qualified
from holdfast.config.lines import KeyPath
from holdfast.config.patterns import matches
from holdfast.config.tables import Wrong, did_you_mean, raised
from holdfast.config.unreadable import is_given, readable
from holdfast.config.values import Secret, Unfit, host_of, told_value
from holdfast.core.messages import Expects
from holdfast.core.versions import RM, RM_OF_NAME
from holdfast.endpoint.arguments import LONGEST_ADDRESS
from holdfast.endpoint.destination.allow_list import AllowList
from holdfast.endpoint.listener_settings import ONLY_A_HOST, check_metrics_token, is_bare_host
from holdfast.exceptions import ConfigurationError
from holdfast.settings import checked_token
from holdfast.store.address import is_kafka, read_address, unreadable_file
from holdfast.store.kafka.address import PARTITIONS, read_kafka_address

_DATABASE = 'Write store = "postgresql://user@host/name" or "kafka://…", or remove [cluster].'
_LITERAL_OR_SPACE = re.compile(r"""("[^"]*"|'[^']*')|\s+""")
_OWN_HOSTS = ("localhost", "127.0.0.1", "::1")


def check_config(config: BrokerConfig) -> None:
    """Check the consistency of a configuration that a program made; that of a file is already checked.

    Raises:
        ConfigurationError: It is inconsistent; lists all contradictions.
    """
    found = list(contradictions(config))
    for key, several in (("queues", config.queues), ("forwarders", config.forwarders)):
        names = [one.name for one in several]
        again = {name for name in names if names.count(name) > 1}
        found += [
            ((key, name), "several entries have this name", "Give each entry a different name.") for name in again
        ]
    if found:
        lines = [f"{'.'.join(map(str, path))}: {what}. {remedy}" for path, what, remedy in found]
        raise ConfigurationError("\n".join(["the broker's configuration is inconsistent:", *lines]))


def contradictions(config: BrokerConfig) -> Iterator[Wrong]:
    """Yield all contradictions.

    Args:
        config: The values read, all or some: a check finds nothing if it needs a value that could not be read.
    """
    yield from readable(
        _of_the_store(config),
        _of_workers(config),
        _of_the_cluster(config),
        _of_addresses(config),
        _of_the_token(config),
        _of_server_tls(config, "listen"),
        _of_server_tls(config, "admin"),
        checks_of_senders(config),
        _of_the_number_of_queues(config),
        _of_the_default_queue(config),
        _of_the_last_route(config),
        _of_routes(config),
        _of_what_is_expected(config),
        _of_forwarders(config),
        _of_replies_to_the_listener(config),
        _of_ways(config),
        _of_what_may_be_sent_to(config),
        _of_the_usual_policy(config),
    )


def of_the_node(config: BrokerConfig) -> Iterator[Wrong]:
    """Yield why the other nodes of its cluster would refuse a node that starts.

    A node that runs keeps its partitions when its certificate expires, and still starts processes for them.
    """
    if config.cluster is not None:
        yield from raised(("cluster", "tls"), config.cluster.check_certificate)


def not_there(name: str, names: list[str]) -> tuple[str, str]:
    return f"the queue '{name}' does not exist", did_you_mean(name, names) if names else f"Write [queues.{name}]."


# --- the store, listeners, queues -----------------------------------------------------------------------------------


def _of_the_store(config: BrokerConfig) -> Iterator[Wrong]:
    passwords = [key for key in ("store_password_file", "store_password_env") if is_given(config, key)]
    yield from one_secret((), passwords, "the database password")
    store = config.store
    if passwords and "://" not in store:
        yield (passwords[0],), "the store is a directory, and directories have no password", "Remove this key."
    elif passwords and "@" not in store.partition("://")[2].partition("/")[0]:
        yield ("store",), "a password is set, but the URL names no user", "Write it as postgresql://user@host/name."
    if "://" in store:
        try:
            if is_kafka(store):
                yield from _of_the_log(config)
            else:
                read_address(store)
                if file := unreadable_file(store):
                    what = f"the URL has {file}, a file that this user cannot read"
                    yield ("store",), what, "Correct the path, or let the broker's user read the file."
        except ConfigurationError as error:
            yield ("store",), error.message, error.remedy


def _of_the_log(config: BrokerConfig) -> Iterator[Wrong]:
    cluster = config.cluster
    address = read_kafka_address(config.store, cluster.partitions if cluster is not None else PARTITIONS)
    if address.partition and (config.workers > 1 or cluster is not None):
        yield ("store",), "each process uses the partition of its number", "Remove partition from the URL."
    if cluster is not None and address.partitions != cluster.partitions:
        what = f"a cluster of {cluster.partitions} partitions needs a topic with as many, not {address.partitions}"
        yield ("store",), what, "Remove partitions from the URL: a new topic gets as many as the cluster."


def _of_workers(config: BrokerConfig) -> Iterator[Wrong]:
    if config.store == ":memory:" and config.workers > 1:
        what = "several worker processes cannot share a store in memory"
        yield ("workers",), what, "Set store to a directory, or remove workers."


def _is_writable(directory: Path) -> bool:
    """Whether a directory may be written to, or may be created: a start on another machine shows the latter."""
    if directory.exists():
        return directory.is_dir() and os.access(directory, os.W_OK | os.X_OK)
    return all(one.is_dir() for one in directory.parents if one.exists())


def _of_the_cluster(config: BrokerConfig) -> Iterator[Wrong]:
    cluster = config.cluster
    if cluster is None:
        return
    if not config.store.startswith(("postgresql:", "postgresql+", "postgres:", "kafka:")):
        yield ("store",), "the nodes of a cluster need a common PostgreSQL database or Kafka topic", _DATABASE
    if config.workers > 1:
        what = "a node of a cluster runs one process for each of its partitions"
        yield ("workers",), what, "Remove workers, and the option --workers."
    given = [key for key in ("secret_file", "secret_env") if is_given(cluster, key)]
    yield from one_secret(("cluster",), given, "the secret of the nodes")
    if not given:
        yield ("cluster",), "the secret that the nodes share is missing", "Write secret_file or secret_env there."
    elif len(given) == 1 and len(getattr(cluster, given[0]).reveal()) < SHORTEST_SECRET:
        what = f"the secret is shorter than {SHORTEST_SECRET} characters"
        yield ("cluster", given[0]), what, "Write a random one: openssl rand -hex 32"
    if cluster.memory is not None and not _is_writable(Path(cluster.memory)):
        what = "the node cannot write to this directory, so it could not recognize a restored database"
        yield ("cluster", "memory"), what, "Name a directory that the broker's user may write to."
    for name, one in (("listen", config.listen), ("admin", config.admin)):
        if cluster.port and (cluster.host, cluster.port) == (one.host, one.port):
            what = f"both listeners use {one.host}:{one.port}"
            yield ("cluster", "port"), what, f"Set cluster.port to another port than {name}.port."
    if (tls := cluster.tls) is not None:
        yield from raised(("cluster", "tls"), lambda: (tls.accepting(), tls.asking()))
    if cluster.url:
        yield from raised(("cluster", "url"), lambda: cluster.node_url(cluster.port))
    if is_kafka(config.store) and cluster.memory is not None:
        what = "a log in Kafka shows by itself that it went back"
        yield ("cluster", "memory"), what, "Remove this key."
    if config.security.nonces is not None:
        what = "a file on one machine cannot remember what the other nodes of a cluster have received"
        yield ("security", "nonces"), what, "Remove this key: the nodes remember nonces in their database or in Kafka."


def _of_addresses(config: BrokerConfig) -> Iterator[Wrong]:
    listen, admin = config.listen, config.admin
    if admin.enabled and listen.port and (listen.host, listen.port) == (admin.host, admin.port):
        what = f"both listeners use {admin.host}:{admin.port}"
        yield ("admin", "port"), what, "Set admin.port to another port than listen.port."
    for name, one in (("listen", listen), ("admin", admin), ("cluster", config.cluster)):
        if one is not None and not is_bare_host(one.host):
            yield (name, "host"), f"{told_value(one.host)} is not a host", ONLY_A_HOST


def _of_the_token(config: BrokerConfig) -> Iterator[Wrong]:
    admin = config.admin
    if not admin.enabled:
        return
    tokens = [key for key in ("token_file", "token_env") if is_given(admin, key)]
    yield from one_secret(("admin",), tokens, "the token")
    if len(tokens) == 1:
        yield from _of_a_token(("admin", tokens[0]), getattr(admin, tokens[0]))
    if (of_metrics := admin.metrics_token_file) is not None:
        path = ("admin", "metrics_token_file")
        yield from _of_a_token(path, of_metrics)
        yield from raised(path, lambda: check_metrics_token(admin.token(), of_metrics.reveal()))


def _of_server_tls(config: BrokerConfig, listener: str) -> Iterator[Wrong]:
    yield from _of_tls((listener, "tls"), getattr(config, listener))


def _of_tls(path: KeyPath, one: ListenConfig | AdminConfig | ForwarderConfig) -> Iterator[Wrong]:
    if one.tls is not None:
        yield from raised(path, one.tls.context)


def _of_a_token(path: KeyPath, token: Secret) -> Iterator[Wrong]:
    yield from raised(path, lambda: checked_token(token.reveal(), token.origin))


def _queues(config: BrokerConfig) -> list[str]:
    return [one.name for one in config.queues]


def _of_the_number_of_queues(config: BrokerConfig) -> Iterator[Wrong]:
    count = len(config.queues)
    if not count:
        yield ("queues",), "no queue is configured", "Add [queues.inbox], or remove queues to use the default."
    most = config.limits.max_queues
    if count > most:
        what = f"{count:,} queues are configured, but limits.max_queues is {most:,}"
        yield ("queues",), what, "Raise limits.max_queues, or configure fewer queues."


def _of_the_default_queue(config: BrokerConfig) -> Iterator[Wrong]:
    default, queues = config.default_queue, _queues(config)
    if default is not None and default not in queues:
        yield ("default_queue",), *not_there(default, queues)


def _of_the_last_route(config: BrokerConfig) -> Iterator[Wrong]:
    routes = config.routes
    if is_given(config, "default_queue") and routes and _takes_all(routes[-1]):
        what = f"no message reaches this queue: the last route, routes[{len(routes)}], matches every message"
        yield ("default_queue",), what, "Remove one of the two."


# --- routes ---------------------------------------------------------------------------------------------------------


def _of_routes(config: BrokerConfig) -> Iterator[Wrong]:
    routes = config.routes
    if len(routes) > MAX_ROUTES:
        yield (
            ("routes",),
            f"{len(routes):,} routes are configured, but the limit is {MAX_ROUTES:,}",
            "Combine some of them.",
        )
        return
    for index, route in enumerate(routes):
        path: KeyPath = ("routes", index)
        yield from readable(
            _of_its_queues(path, route, config),
            _of_an_xpath(path, route, config),
            _of_a_header(path, route, config),
            _of_a_user(path, route, config),
            _of_earlier_routes(path, route, routes[:index]),
        )


def _of_its_queues(path: KeyPath, route: RouteConfig, config: BrokerConfig) -> Iterator[Wrong]:
    queues = _queues(config)
    for name in route.queues:
        if name not in queues:
            yield (*path, "queues"), *not_there(name, queues)


def _of_earlier_routes(path: KeyPath, route: RouteConfig, earlier: tuple[RouteConfig, ...]) -> Iterator[Wrong]:
    first = next((index for index, one in enumerate(earlier) if any(readable(_hiding(one, route)))), None)
    if first is not None:
        what = (
            f"no message reaches this route: routes[{first + 1}] comes first and matches every message that "
            "this one matches"
        )
        yield path, what, "Move this route before that one, or remove it."


def _hiding(first: RouteConfig, second: RouteConfig) -> Iterator[bool]:
    yield hides(first, second)


def _of_what_is_expected(config: BrokerConfig) -> Iterator[Wrong]:
    replied = {one.queue for one in config.forwarders}
    for index, route in enumerate(config.routes):
        yield from readable(_of_a_request(("routes", index, "expects"), route, replied))


def _of_a_request(path: KeyPath, route: RouteConfig, replied: set[str]) -> Iterator[Wrong]:
    if route.expects is Expects.REQUEST and replied.isdisjoint(route.queues):
        what = "no forwarder reads these queues, so no reply can come"
        yield path, what, 'Add a forwarder, or write "one_way".'


def _of_a_header(path: KeyPath, route: RouteConfig, config: BrokerConfig) -> Iterator[Wrong]:
    if route.header is not None:
        try:
            check_name(route.header.name)
            qualified(route.header.name, config.namespaces)
        except Unfit as unfit:
            yield (*path, "header", "name"), unfit.what, unfit.remedy


def _of_a_user(path: KeyPath, route: RouteConfig, config: BrokerConfig) -> Iterator[Wrong]:
    users = config.security.users
    proofs = ("signature", "symmetric", "assertions")
    if route.user and users is None and not any(is_given(config.security, key) for key in proofs):
        yield (*path, "user"), "no message has a user, because [security] names none", "Set security.users."
    elif users is not None and route.user and not any(matches(one, user) for one in route.user for user in users):
        yield (*path, "user"), "no user of security.users matches this", "Correct the name, or remove the route."


def _of_an_xpath(path: KeyPath, route: RouteConfig, config: BrokerConfig) -> Iterator[Wrong]:
    try:
        if route.xpath:
            parse_xpath(route.xpath, config.namespaces)
    except Unfit as unfit:
        yield (*path, "xpath"), unfit.what, unfit.remedy


def _takes_all(route: RouteConfig) -> bool:
    return not (route.to or route.action or route.header or route.user or route.xpath)


def hides(first: RouteConfig, second: RouteConfig) -> bool:
    """Return whether the first of two routes takes every message that the second would, as far as the routes show."""
    pairs = (first.to, second.to), (first.action, second.action), (first.user, second.user)
    if not all(_covers(*pair) for pair in pairs):
        return False
    if first.xpath and _spaced(first.xpath) != _spaced(second.xpath):
        return False
    if first.header is None:
        return True
    header = second.header
    return header is not None and header.name == first.header.name and _covers(first.header.value, header.value)


def _spaced(xpath: str) -> str:
    """Return an XPath with single spaces between its parts; white space in a literal stays as it is."""
    return _LITERAL_OR_SPACE.sub(lambda found: found[1] or " ", xpath).strip()


def _covers(first: tuple[str, ...], second: tuple[str, ...]) -> bool:
    """Return whether every text that matches one of the second patterns matches one of the first; no pattern: all."""
    if not first:
        return True
    return bool(second) and all(any(matches(one, other) for one in first) for other in second)


# --- forwarders -----------------------------------------------------------------------------------------------------


def _of_forwarders(config: BrokerConfig) -> Iterator[Wrong]:
    for one in config.forwarders:
        path: KeyPath = ("forwarders", one.name)
        yield from readable(
            _of_its_queue(path, one, config),
            _of_its_wsdl((*path, "wsdl"), one, config),
            _of_its_versions(path, one),
            _of_its_destination(path, one, config),
            _of_its_address(path, one),
            _of_a_destination_without_tls((*path, "tls"), one),
            _of_tls((*path, "tls"), one),
            _of_a_proxy((*path, "proxy"), one),
            _of_credentials((*path, "credentials"), one),
            checks_of_credentials((*path, "security"), one),
        )


def _of_its_queue(path: KeyPath, one: ForwarderConfig, config: BrokerConfig) -> Iterator[Wrong]:
    queues = _queues(config)
    if one.queue not in queues:
        yield (*path, "queue"), *not_there(one.queue, queues)


def _of_its_wsdl(path: KeyPath, one: ForwarderConfig, config: BrokerConfig) -> Iterator[Wrong]:
    """A WSDL whose operations no route sends to the service would not be served."""
    if one.wsdl is not None and one.wsdl.is_loaded:
        routed = actions_of(one.queue, config.routes, config.default_queue)
        actions = sorted({action for some in one.wsdl.actions.values() for action in some})
        if routed and not any(matches(pattern, action) for pattern in routed for action in actions):
            what = f"no route sends an operation of this WSDL to the queue '{one.queue}'"
            yield path, what, f"Its actions are: {', '.join(actions[:5]) or 'none'}. Correct the routes."


def _of_its_versions(path: KeyPath, one: ForwarderConfig) -> Iterator[Wrong]:
    given = [key for key in ("rm", "addressing", "soap") if is_given(one, key)]
    if is_given(one, "profile") and given:
        yield (*path, given[0]), "the profile already sets the versions", "Remove this key or the profile."
    elif not one.versions:
        what = f"{' and '.join(f'{key} {getattr(one, key)}' for key in given)} cannot be combined"
        rm = RM_OF_NAME[one.rm or RM.V1_1.value]
        remedy = f"WS-ReliableMessaging {rm.value} is defined with WS-Addressing {rm.addressing_in_words} only."
        yield (*path, given[0]), what, remedy


def _of_its_destination(path: KeyPath, one: ForwarderConfig, config: BrokerConfig) -> Iterator[Wrong]:
    (host, port), listen = host_of(one.to), config.listen
    if listen.port == port and host in (*_OWN_HOSTS, listen.host):
        what = "this is the broker's own address: it would send messages to itself without end"
        yield (*path, "to"), what, "Set the destination's address."


def _of_its_address(path: KeyPath, one: ForwarderConfig) -> Iterator[Wrong]:
    if one.address == one.to:
        what = "this is the destination's own URL: replies would not reach this broker"
        yield (*path, "address"), what, "Set the URL at which the destination reaches this broker."
    if one.address is not None and one.poll:
        what = "poll and address are both set, but replies arrive in one way only"
        yield (*path, "poll"), what, "Remove poll if the destination can connect to this broker, else remove address."
    if one.address is not None and len(one.address) > LONGEST_ADDRESS:
        what = f"this URL has {len(one.address):,} characters, but destinations accept at most {LONGEST_ADDRESS:,}"
        yield (*path, "address"), what, "Use a shorter URL."


def _of_replies_to_the_listener(config: BrokerConfig) -> Iterator[Wrong]:
    """Check that answers that a destination posts to the listener are checked as its HTTP responses are."""
    for one in config.forwarders:
        if one.security is None or not is_given(one, "address"):
            continue
        path = ("forwarders", one.name, "address")
        if is_given(one.security, "signature") and not is_given(config.security, "signature"):
            what = "the listener does not check the signatures of what the destination posts there"
            yield path, what, "Remove the address, or add [security.signature]."
        elif is_given(one.security, "symmetric"):
            what = "the destination can protect only the answers to a request: they have the key of the request"
            yield path, what, "Remove the address, or write poll = true instead."


def _of_ways(config: BrokerConfig) -> Iterator[Wrong]:
    """Check that each address has one transport: a pause that it asks for, for example, holds for all forwarders."""
    seen: dict[str, ForwarderConfig] = {}
    for one in config.forwarders:
        yield from readable(_of_a_way(one, seen))


def _of_a_way(one: ForwarderConfig, seen: dict[str, ForwarderConfig]) -> Iterator[Wrong]:
    other = seen.setdefault(one.to, one)
    for key in ("timeout", "tls", "proxy", "credentials", "security"):
        yield from readable(_of_both(key, one, other))


def _of_both(key: str, one: ForwarderConfig, other: ForwarderConfig) -> Iterator[Wrong]:
    if one is not other and getattr(one, key) != getattr(other, key):
        what = f"the forwarder '{other.name}' has a different {key} for the same address"
        yield ("forwarders", one.name, key), what, "Set the same value in both."


def _of_a_destination_without_tls(path: KeyPath, one: ForwarderConfig) -> Iterator[Wrong]:
    if is_given(one, "tls") and not one.to.startswith("https:"):
        yield path, f"{told_value(one.to)} does not use TLS", "Remove tls, or use an https URL."


def _of_a_proxy(path: KeyPath, one: ForwarderConfig) -> Iterator[Wrong]:
    proxy = one.proxy
    if proxy is None:
        return
    passwords = [key for key in ("password_file", "password_env") if is_given(proxy, key)]
    yield from one_secret(path, passwords, "the password")
    if passwords and not proxy.username:
        yield path, "a password is set, but no username", "Add username = … to this table."
    if proxy.username and not passwords:
        yield path, "a username is set, but no password", "Add password_file = … or password_env = … to this table."


def _of_credentials(path: KeyPath, forwarder: ForwarderConfig) -> Iterator[Wrong]:
    one = forwarder.credentials
    if one is None:
        return
    passwords = [key for key in ("password_file", "password_env") if is_given(one, key)]
    tokens = [key for key in ("token_file", "token_env") if is_given(one, key)]
    yield from one_secret(path, passwords, "the password")
    yield from one_secret(path, tokens, "the token")
    if tokens and (passwords or one.username):
        yield (*path, tokens[0]), "a token and a user are both set", ("Remove one of them: a request carries only one.")
    elif tokens:
        yield from _of_a_token((*path, tokens[0]), getattr(one, tokens[0]))
    elif not one.username or not passwords:
        lacking = "username" if not one.username else "password_file or password_env"
        yield (
            path,
            f"{lacking} is missing",
            ("Set username with password_file or password_env, or set token_file or token_env."),
        )
    elif ":" in one.username:
        yield (*path, "username"), "a username must not contain a colon (RFC 7617)", "Remove the colon."


def _of_what_may_be_sent_to(config: BrokerConfig) -> Iterator[Wrong]:
    for index, address in enumerate(config.allow_addresses):
        try:
            AllowList([address])
        except ConfigurationError as error:
            yield ("allow_addresses", index), error.message.removeprefix("allow_addresses "), error.remedy


def _of_the_usual_policy(config: BrokerConfig) -> Iterator[Wrong]:
    yield from raised(("policies", "*"), lambda: resolved_policy(config.policies, ""))
