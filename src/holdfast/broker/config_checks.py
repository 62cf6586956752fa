"""What in a configuration does not go together, though each value by itself may be so.

Each check yields where it is wrong, what, and the mend. What was no value of its kind is told already; a check that
needs it ends (``config.unreadable``). So there is one check for each thing that does not go together.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from holdfast.broker.config import (
    MAX_ROUTES,
    BrokerConfig,
    ForwarderConfig,
    RouteConfig,
    ServerTLS,
    resolved_policy,
)
from holdfast.broker.xpath import check_name, parse_xpath, qualified
from holdfast.config.lines import KeyPath
from holdfast.config.patterns import matches
from holdfast.config.unreadable import is_given, readable
from holdfast.config.values import Secret, Unfit, host_of, told_value
from holdfast.core.messages import Expects
from holdfast.endpoint.admin.token import checked_token
from holdfast.endpoint.arguments import LONGEST_ADDRESS
from holdfast.endpoint.destination.allow_list import AllowList
from holdfast.exceptions import ConfigurationError
from holdfast.http.tls import client_context, server_context
from holdfast.store.address import read_address

Wrong = tuple[KeyPath, str, str]
"""Where, what, and the mend."""
_OWN_HOSTS = ("localhost", "127.0.0.1", "::1")


def check_config(config: BrokerConfig) -> None:
    """See that a configuration that a program made goes together; of one that a file made that is known.

    Raises:
        ConfigurationError: it does not; says all that is wrong.
    """
    found = list(contradictions(config))
    for key, several in (("queues", config.queues), ("forwarders", config.forwarders)):
        names = [one.name for one in several]
        again = {name for name in names if names.count(name) > 1}
        found += [((key, name), "there are several of that name", "Give each one of its own.") for name in again]
    if found:
        lines = [f"{'.'.join(map(str, path))}: {what}. {remedy}" for path, what, remedy in found]
        raise ConfigurationError("\n".join(["the broker's configuration does not go together:", *lines]))


def contradictions(config: BrokerConfig) -> Iterator[Wrong]:
    """All that does not go together.

    Args:
        config: What was read, whole or in part: a check that needs a value which could not be read finds nothing.
    """
    yield from readable(
        _of_the_store(config),
        _of_workers(config),
        _of_addresses(config),
        _of_the_token(config),
        _of_server_tls(config, "listen"),
        _of_server_tls(config, "admin"),
        _of_the_number_of_queues(config),
        _of_the_default_queue(config),
        _of_the_last_route(config),
        _of_routes(config),
        _of_what_is_expected(config),
        _of_forwarders(config),
        _of_ways(config),
        _of_what_may_be_sent_to(config),
        _of_the_usual_policy(config),
    )


def not_there(name: str, names: list[str]) -> tuple[str, str]:
    """That there is no queue of that name, and the nearest one."""
    near = get_close_matches(name, names, 1, 0.6)
    remedy = f"Did you mean '{near[0]}'?" if near else f"There are {', '.join(names)}."
    return f"there is no queue '{name}'", remedy if names else f"Write [queues.{name}]."


# --- the store, listeners, queues -----------------------------------------------------------------------------------


def _of_the_store(config: BrokerConfig) -> Iterator[Wrong]:
    passwords = [key for key in ("store_password_file", "store_password_env") if is_given(config, key)]
    yield from _one_secret((), passwords, "the password of the database")
    store = config.store
    if passwords and "://" not in store:
        yield (passwords[0],), "the store is a directory, which has no password", "Leave it out."
    elif passwords and "@" not in store.partition("://")[2].partition("/")[0]:
        yield ("store",), "there is a password, and no user in the URL", "Write it as postgresql://user@host/name."
    if "://" in store:
        try:
            read_address(store)
        except ConfigurationError as error:
            yield ("store",), error.message, error.remedy


def _of_workers(config: BrokerConfig) -> Iterator[Wrong]:
    if config.store == ":memory:" and config.workers > 1:
        what = "several processes cannot share a store in the memory of one"
        yield ("workers",), what, "Give the store a directory, or leave workers out."


def _of_addresses(config: BrokerConfig) -> Iterator[Wrong]:
    listen, admin = config.listen, config.admin
    if admin.enabled and listen.port and (listen.host, listen.port) == (admin.host, admin.port):
        what = f"both listeners cannot be at {admin.host}:{admin.port}"
        yield ("admin", "port"), what, "Give the admin listener a port of its own, such as 8081."


def _of_the_token(config: BrokerConfig) -> Iterator[Wrong]:
    admin = config.admin
    if not admin.enabled:
        return
    tokens = [key for key in ("token_file", "token_env") if is_given(admin, key)]
    yield from _one_secret(("admin",), tokens, "the token")
    if len(tokens) == 1:
        yield from _of_a_token(("admin", tokens[0]), getattr(admin, tokens[0]))


def _of_server_tls(config: BrokerConfig, listener: str) -> Iterator[Wrong]:
    tls: ServerTLS | None = getattr(config, listener).tls
    if tls is None:
        return
    try:
        server_context(tls.certificate, tls.key, tls.client_ca)
    except ConfigurationError as error:
        yield (listener, "tls"), error.message, error.remedy


def _one_secret(path: KeyPath, keys: list[str], told: str) -> Iterator[Wrong]:
    if len(keys) > 1:
        yield (*path, keys[1]), f"{told} is named twice, by {' and '.join(keys)}", "Leave one of them out."


def _of_a_token(path: KeyPath, token: Secret) -> Iterator[Wrong]:
    try:
        checked_token(token.reveal(), token.origin)
    except ConfigurationError as error:
        yield path, error.message, error.remedy


def _queues(config: BrokerConfig) -> list[str]:
    return [one.name for one in config.queues]


def _of_the_number_of_queues(config: BrokerConfig) -> Iterator[Wrong]:
    count = len(config.queues)
    if not count:
        yield ("queues",), "there is no queue", "Write [queues.inbox], or leave queues out."
    most = config.limits.max_queues
    if count > most:
        what = f"there are {count:,} queues, and limits.max_queues is {most:,}"
        yield ("queues",), what, "Raise limits.max_queues, or have fewer."


def _of_the_default_queue(config: BrokerConfig) -> Iterator[Wrong]:
    default, queues = config.default_queue, _queues(config)
    if default is not None and default not in queues:
        yield ("default_queue",), *not_there(default, queues)


def _of_the_last_route(config: BrokerConfig) -> Iterator[Wrong]:
    routes = config.routes
    if is_given(config, "default_queue") and routes and _takes_all(routes[-1]):
        what = f"no message comes here: the route at the end, routes[{len(routes)}], takes all"
        yield ("default_queue",), what, "Leave out one of the two."


# --- routes ---------------------------------------------------------------------------------------------------------


def _of_routes(config: BrokerConfig) -> Iterator[Wrong]:
    routes = config.routes
    if len(routes) > MAX_ROUTES:
        yield ("routes",), f"there are {len(routes):,} routes, and {MAX_ROUTES:,} may be", "Put some together."
        return
    for index, route in enumerate(routes):
        path: KeyPath = ("routes", index)
        yield from readable(
            _of_its_queues(path, route, config),
            _of_an_xpath(path, route, config),
            _of_a_header(path, route, config),
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
        what = f"no message comes here: routes[{first + 1}] before it takes all that it would take"
        yield path, what, "Put it before that one, or leave it out."


def _hiding(first: RouteConfig, second: RouteConfig) -> Iterator[bool]:
    yield hides(first, second)


def _of_what_is_expected(config: BrokerConfig) -> Iterator[Wrong]:
    replied = {one.queue for one in config.forwarders if one.may_reply}
    for index, route in enumerate(config.routes):
        yield from readable(_of_a_request(("routes", index, "expects"), route, replied))


def _of_a_request(path: KeyPath, route: RouteConfig, replied: set[str]) -> Iterator[Wrong]:
    if route.expects is Expects.REQUEST and replied.isdisjoint(route.queues):
        what = "no forwarder of these queues brings a reply"
        yield path, what, 'Add a forwarder that offers a Sequence or has an address, or write "one_way".'


def _of_a_header(path: KeyPath, route: RouteConfig, config: BrokerConfig) -> Iterator[Wrong]:
    if route.header is not None:
        try:
            check_name(route.header.name)
            qualified(route.header.name, config.namespaces)
        except Unfit as unfit:
            yield (*path, "header", "name"), unfit.what, unfit.remedy


def _of_an_xpath(path: KeyPath, route: RouteConfig, config: BrokerConfig) -> Iterator[Wrong]:
    try:
        if route.xpath:
            parse_xpath(route.xpath, config.namespaces)
    except Unfit as unfit:
        yield (*path, "xpath"), unfit.what, unfit.remedy


def _takes_all(route: RouteConfig) -> bool:
    return not (route.to or route.action or route.header or route.xpath)


def hides(first: RouteConfig, second: RouteConfig) -> bool:
    """Whether the first of two routes takes all that the second would, as far as that can be seen of them."""
    if not (_covers(first.to, second.to) and _covers(first.action, second.action)):
        return False
    if first.xpath and first.xpath.split() != second.xpath.split():
        return False
    if first.header is None:
        return True
    header = second.header
    return header is not None and header.name == first.header.name and _covers(first.header.value, header.value)


def _covers(first: tuple[str, ...], second: tuple[str, ...]) -> bool:
    """Whether whatever one of the second patterns takes is taken by one of the first; no pattern takes all."""
    if not first:
        return True
    return bool(second) and all(any(matches(one, other) for one in first) for other in second)


# --- forwarders -----------------------------------------------------------------------------------------------------


def _of_forwarders(config: BrokerConfig) -> Iterator[Wrong]:
    for one in config.forwarders:
        path: KeyPath = ("forwarders", one.name)
        yield from readable(
            _of_its_queue(path, one, config),
            _of_its_versions(path, one),
            _of_its_destination(path, one, config),
            _of_its_address(path, one),
            _of_a_destination_without_tls((*path, "tls"), one),
            _of_client_tls((*path, "tls"), one),
            _of_a_proxy((*path, "proxy"), one),
            _of_credentials((*path, "credentials"), one),
        )


def _of_its_queue(path: KeyPath, one: ForwarderConfig, config: BrokerConfig) -> Iterator[Wrong]:
    queues = _queues(config)
    if one.queue not in queues:
        yield (*path, "queue"), *not_there(one.queue, queues)


def _of_its_versions(path: KeyPath, one: ForwarderConfig) -> Iterator[Wrong]:
    given = [key for key in ("rm", "addressing", "soap") if is_given(one, key)]
    if is_given(one, "profile") and given:
        yield (*path, given[0]), "the profile says the versions", "Leave out this, or the profile."
    elif not one.versions:
        what = f"{' and '.join(f'{key} {getattr(one, key)}' for key in given)} do not go together"
        yield (*path, given[0]), what, "WS-ReliableMessaging 1.1 is defined with WS-Addressing 2005/08 only."


def _of_its_destination(path: KeyPath, one: ForwarderConfig, config: BrokerConfig) -> Iterator[Wrong]:
    (host, port), listen = host_of(one.to), config.listen
    if listen.port == port and host in (*_OWN_HOSTS, listen.host):
        what = "this is where the broker itself listens: what it sends would come back for ever"
        yield (*path, "to"), what, "Name the destination's address."


def _of_its_address(path: KeyPath, one: ForwarderConfig) -> Iterator[Wrong]:
    if one.address == one.to:
        what = "this is the destination's own URL: its replies would not come back"
        yield (*path, "address"), what, "Name the URL at which the destination reaches this broker."
    if one.address is not None and len(one.address) > LONGEST_ADDRESS:
        what = f"this URL has {len(one.address):,} characters, and destinations accept {LONGEST_ADDRESS:,}"
        yield (*path, "address"), what, "Use a shorter URL."


def _of_ways(config: BrokerConfig) -> Iterator[Wrong]:
    """One address is reached in one way: what is known of it, such as that it wants a pause, holds for all who send."""
    seen: dict[str, ForwarderConfig] = {}
    for one in config.forwarders:
        yield from readable(_of_a_way(one, seen))


def _of_a_way(one: ForwarderConfig, seen: dict[str, ForwarderConfig]) -> Iterator[Wrong]:
    other = seen.setdefault(one.to, one)
    for key in ("timeout", "tls", "proxy", "credentials"):
        yield from readable(_of_both(key, one, other))


def _of_both(key: str, one: ForwarderConfig, other: ForwarderConfig) -> Iterator[Wrong]:
    if one is not other and getattr(one, key) != getattr(other, key):
        what = f"the forwarder '{other.name}' says another {key} for the same address"
        yield ("forwarders", one.name, key), what, "Say the same in both."


def _of_a_destination_without_tls(path: KeyPath, one: ForwarderConfig) -> Iterator[Wrong]:
    if is_given(one, "tls") and not one.to.startswith("https:"):
        yield path, f"{told_value(one.to)} is not sent to by TLS", "Leave it out, or write https."


def _of_client_tls(path: KeyPath, one: ForwarderConfig) -> Iterator[Wrong]:
    if one.tls is None:
        return
    try:
        client_context(one.tls.ca, one.tls.certificate, one.tls.key)
    except ConfigurationError as error:
        yield path, error.message, error.remedy


def _of_a_proxy(path: KeyPath, one: ForwarderConfig) -> Iterator[Wrong]:
    proxy = one.proxy
    if proxy is None:
        return
    passwords = [key for key in ("password_file", "password_env") if is_given(proxy, key)]
    yield from _one_secret(path, passwords, "the password")
    if passwords and not proxy.username:
        yield path, "there is a password, and no username", "Write username = … there."
    if proxy.username and not passwords:
        yield path, "there is a username, and no password", "Write password_file = … or password_env = … there."


def _of_credentials(path: KeyPath, forwarder: ForwarderConfig) -> Iterator[Wrong]:
    one = forwarder.credentials
    if one is None:
        return
    passwords = [key for key in ("password_file", "password_env") if is_given(one, key)]
    tokens = [key for key in ("token_file", "token_env") if is_given(one, key)]
    yield from _one_secret(path, passwords, "the password")
    yield from _one_secret(path, tokens, "the token")
    if tokens and (passwords or one.username):
        yield (*path, tokens[0]), "there is a token, and a user besides", "Leave out one of the two: one is shown."
    elif tokens:
        yield from _of_a_token((*path, tokens[0]), getattr(one, tokens[0]))
    elif not one.username or not passwords:
        lacking = "username" if not one.username else "password_file or password_env"
        yield path, f"{lacking} is missing", "Write a username and where its password is, or where a token is."
    elif ":" in one.username:
        yield (*path, "username"), "a user's name has no colon (RFC 7617)", "Leave it out."


def _of_what_may_be_sent_to(config: BrokerConfig) -> Iterator[Wrong]:
    for index, address in enumerate(config.allow_addresses):
        try:
            AllowList([address])
        except ConfigurationError as error:
            yield ("allow_addresses", index), error.message.removeprefix("allow_addresses "), error.remedy


def _of_the_usual_policy(config: BrokerConfig) -> Iterator[Wrong]:
    try:
        resolved_policy(config.policies, "")
    except ConfigurationError as error:
        yield ("policies", "*"), error.message, error.remedy
