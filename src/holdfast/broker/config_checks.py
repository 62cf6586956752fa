"""What in a configuration does not go together, though each value by itself may be so.

Each check yields where it is wrong, what, and the mend. What was no value of its kind is told already, and is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from holdfast.broker.config import (
    MAX_ROUTES,
    AdminConfig,
    BrokerConfig,
    ClientTLS,
    CredentialsConfig,
    ForwarderConfig,
    LimitsConfig,
    ListenConfig,
    ProxyConfig,
    RouteConfig,
    ServerTLS,
    resolved_policy,
)
from holdfast.broker.xpath import check_name, parse_xpath, qualified
from holdfast.config.lines import KeyPath
from holdfast.config.patterns import matches
from holdfast.config.values import Secret, Unfit, host_of, told_value
from holdfast.core.messages import Expects
from holdfast.endpoint.admin.token import checked_token
from holdfast.endpoint.destination.allow_list import AllowList
from holdfast.exceptions import ConfigurationError
from holdfast.http.tls import client_context, server_context
from holdfast.store.address import read_address

Wrong = tuple[KeyPath, str, str]
"""Where, what, and the mend."""
Said = Mapping[str, Any]
_OWN_HOSTS = ("localhost", "127.0.0.1", "::1")


def check_config(config: BrokerConfig) -> None:
    """See that a configuration that a program made goes together; of one that a file made that is known.

    Raises:
        ConfigurationError: it does not; says all that is wrong.
    """
    said = {one.name: getattr(config, one.name) for one in fields(config)}
    found = list(contradictions(said, {"queues": {one.name: one for one in config.queues}, "routes": config.routes}))
    for key, several in (("queues", config.queues), ("forwarders", config.forwarders)):
        names = [one.name for one in several]
        again = {name for name in names if names.count(name) > 1}
        found += [((key, name), "there are several of that name", "Give each one of its own.") for name in again]
    if found:
        lines = [f"{'.'.join(map(str, path))}: {what}. {remedy}" for path, what, remedy in found]
        raise ConfigurationError("\n".join(["the broker's configuration does not go together:", *lines]))


def contradictions(said: Said, data: Said) -> Iterator[Wrong]:
    """All that does not go together.

    Args:
        said: Field of BrokerConfig -> what was read of it.
        data: The file as TOML has it, for the names of what could not be read.
    """
    queues = list(data["queues"]) if isinstance(data.get("queues"), dict) else ["inbox"]
    yield from _of_the_store(said)
    yield from _of_listeners(said)
    yield from _of_queues(said, data, queues)
    yield from _of_routes(said.get("routes", ()), data.get("routes"), queues, said.get("namespaces", {}))
    if None not in said.get("forwarders", ()) and len(said.get("forwarders", ())) == len(data.get("forwarders", ())):
        yield from _of_what_is_expected(said)  # a forwarder that cannot be read may be the one
    for one in said.get("forwarders", ()):
        yield from _of_a_forwarder(one, queues, said.get("listen", ListenConfig()))
    yield from _of_ways(said.get("forwarders", ()))
    yield from _of_what_may_be_sent_to(said)
    try:
        resolved_policy(said.get("policies", ()), "")
    except ConfigurationError as error:
        yield ("policies", "*"), error.message, error.remedy


def not_there(name: str, names: list[str]) -> tuple[str, str]:
    """That there is no queue of that name, and the nearest one."""
    near = get_close_matches(name, names, 1, 0.6)
    remedy = f"Did you mean '{near[0]}'?" if near else f"There are {', '.join(names)}."
    return f"there is no queue '{name}'", remedy if names else f"Write [queues.{name}]."


# --- the store, listeners, queues -----------------------------------------------------------------------------------


def _of_the_store(said: Said) -> Iterator[Wrong]:
    store = said.get("store", BrokerConfig.store)
    passwords = [key for key in ("store_password_file", "store_password_env") if said.get(key) is not None]
    yield from _one_secret((), passwords, "the password of the database")
    if passwords and "://" not in store:
        yield (passwords[0],), "the store is a directory, which has no password", "Leave it out."
    elif passwords and "@" not in store.partition("://")[2].partition("/")[0]:
        yield ("store",), "there is a password, and no user in the URL", "Write it as postgresql://user@host/name."
    if "://" in store:
        try:
            read_address(store)
        except ConfigurationError as error:
            yield ("store",), error.message, error.remedy
    if store == ":memory:" and said.get("workers", 1) > 1:
        what = "several processes cannot share a store in the memory of one"
        yield ("workers",), what, "Give the store a directory, or leave workers out."


def _of_listeners(said: Said) -> Iterator[Wrong]:
    listen, admin = said.get("listen", ListenConfig()), said.get("admin", AdminConfig())
    if admin is not None and admin.enabled:
        if listen is not None and listen.port and (listen.host, listen.port) == (admin.host, admin.port):
            what = f"both listeners cannot be at {admin.host}:{admin.port}"
            yield ("admin", "port"), what, "Give the admin listener a port of its own, such as 8081."
        tokens = [key for key in ("token_file", "token_env") if getattr(admin, key) is not None]
        yield from _one_secret(("admin",), tokens, "the token")
        if len(tokens) == 1:
            yield from _of_a_token(("admin", tokens[0]), getattr(admin, tokens[0]))
    for name, one in (("listen", listen), ("admin", admin)):
        if one is not None and one.tls is not None:
            yield from _of_server_tls((name, "tls"), one.tls)


def _of_server_tls(path: KeyPath, tls: ServerTLS) -> Iterator[Wrong]:
    try:
        server_context(tls.certificate, tls.key, tls.client_ca)
    except ConfigurationError as error:
        yield path, error.message, error.remedy


def _one_secret(path: KeyPath, keys: list[str], told: str) -> Iterator[Wrong]:
    if len(keys) > 1:
        yield (*path, keys[1]), f"{told} is named twice, by {' and '.join(keys)}", "Leave one of them out."


def _of_a_token(path: KeyPath, token: Secret) -> Iterator[Wrong]:
    try:
        checked_token(token.reveal(), token.origin)
    except ConfigurationError as error:
        yield path, error.message, error.remedy


def _of_queues(said: Said, data: Said, queues: list[str]) -> Iterator[Wrong]:
    if not queues:
        yield ("queues",), "there is no queue", "Write [queues.inbox], or leave queues out."
    most = (said.get("limits") or LimitsConfig()).max_queues
    if len(queues) > most:
        what = f"there are {len(queues):,} queues, and limits.max_queues is {most:,}"
        yield ("queues",), what, "Raise limits.max_queues, or have fewer."
    default = said.get("default_queue")
    if default is not None and default not in queues:
        yield ("default_queue",), *not_there(default, queues)
    routes = said.get("routes", ())
    if default is not None and routes and _takes_all(routes[-1]) and len(routes) == len(data.get("routes", ())):
        what = f"no message comes here: the route at the end, routes[{len(routes)}], takes all"
        yield ("default_queue",), what, "Leave out one of the two."


# --- routes ---------------------------------------------------------------------------------------------------------


def _of_routes(
    routes: tuple[RouteConfig | None, ...], data: Any, queues: list[str], namespaces: Mapping[str, str]
) -> Iterator[Wrong]:
    if len(routes) > MAX_ROUTES:
        yield ("routes",), f"there are {len(routes):,} routes, and {MAX_ROUTES:,} may be", "Put some together."
        return
    for index, route in enumerate(routes):
        path: KeyPath = ("routes", index)
        if route is None:  # one mistake in it must not hide another
            yield from _of_an_xpath(path, data[index].get("xpath"), namespaces)
            continue
        for name in route.queues:
            if name not in queues:
                yield (*path, "queues"), *not_there(name, queues)
        yield from _of_what_is_asked(path, route, namespaces)
        earlier = next((n for n, one in enumerate(routes[:index]) if one is not None and hides(one, route)), None)
        if earlier is not None:
            what = f"no message comes here: routes[{earlier + 1}] before it takes all that it would take"
            yield path, what, "Put it before that one, or leave it out."


def _of_what_is_expected(said: Said) -> Iterator[Wrong]:
    replied = {one.queue for one in said.get("forwarders", ()) if one.may_reply}
    for index, route in enumerate(said.get("routes", ())):
        if route is not None and route.expects is Expects.REQUEST and replied.isdisjoint(route.queues):
            what = "no forwarder of these queues brings a reply"
            yield (
                ("routes", index, "expects"),
                what,
                'Add a forwarder that offers a Sequence or has an address, or write "one_way".',
            )


def _of_what_is_asked(path: KeyPath, route: RouteConfig, namespaces: Mapping[str, str]) -> Iterator[Wrong]:
    yield from _of_an_xpath(path, route.xpath, namespaces)
    if route.header is not None:
        try:
            check_name(route.header.name)
            qualified(route.header.name, namespaces)
        except Unfit as unfit:
            yield (*path, "header", "name"), unfit.what, unfit.remedy


def _of_an_xpath(path: KeyPath, xpath: object, namespaces: Mapping[str, str]) -> Iterator[Wrong]:
    try:
        if xpath and isinstance(xpath, str):
            parse_xpath(xpath, namespaces)
    except Unfit as unfit:
        yield (*path, "xpath"), unfit.what, unfit.remedy


def _takes_all(route: RouteConfig | None) -> bool:
    return route is not None and not (route.to or route.action or route.header or route.xpath)


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


def _of_a_forwarder(one: ForwarderConfig, queues: list[str], listen: ListenConfig) -> Iterator[Wrong]:
    path: KeyPath = ("forwarders", one.name)
    if one.queue not in queues:
        yield (*path, "queue"), *not_there(one.queue, queues)
    said = [key for key in ("rm", "addressing", "soap") if getattr(one, key) is not None]
    if one.profile is not None and said:
        yield (*path, said[0]), f"the profile '{one.profile}' says the versions", "Leave out this, or the profile."
    elif not one.versions:
        what = f"{' and '.join(f'{key} {getattr(one, key)}' for key in said)} do not go together"
        yield (*path, said[0]), what, "WS-ReliableMessaging 1.1 is defined with WS-Addressing 2005/08 only."
    host, port = host_of(one.to)
    if listen is not None and listen.port == port and host in (*_OWN_HOSTS, listen.host):
        what = "this is where the broker itself listens: what it sends would come back for ever"
        yield (*path, "to"), what, "Name the destination's address."
    if one.address == one.to:
        what = "this is the destination's own URL: its replies would not come back"
        yield (*path, "address"), what, "Name the URL at which the destination reaches this broker."
    if one.tls is not None:
        yield from _of_client_tls((*path, "tls"), one.tls, one.to)
    if one.proxy is not None:
        yield from _of_a_proxy((*path, "proxy"), one.proxy)
    if one.credentials is not None:
        yield from _of_credentials((*path, "credentials"), one.credentials)


def _of_ways(forwarders: tuple[ForwarderConfig, ...]) -> Iterator[Wrong]:
    """One address is reached in one way: what is known of it, such as that it wants a pause, holds for all who send."""
    seen: dict[str, ForwarderConfig] = {}
    for one in forwarders:
        other = seen.setdefault(one.to, one)
        for key in ("timeout", "tls", "proxy", "credentials"):
            if getattr(one, key) != getattr(other, key):
                what = f"the forwarder '{other.name}' says another {key} for the same address"
                yield ("forwarders", one.name, key), what, "Say the same in both."


def _of_client_tls(path: KeyPath, tls: ClientTLS, to: str) -> Iterator[Wrong]:
    if not to.startswith("https:"):
        yield path, f"{told_value(to)} is not sent to by TLS", "Leave it out, or write https."
    try:
        client_context(tls.ca, tls.certificate, tls.key)
    except ConfigurationError as error:
        yield path, error.message, error.remedy


def _of_a_proxy(path: KeyPath, proxy: ProxyConfig) -> Iterator[Wrong]:
    passwords = [key for key in ("password_file", "password_env") if getattr(proxy, key) is not None]
    yield from _one_secret(path, passwords, "the password")
    if passwords and not proxy.username:
        yield path, "there is a password, and no username", "Write username = … there."
    if proxy.username and not passwords:
        yield path, "there is a username, and no password", "Write password_file = … or password_env = … there."


def _of_credentials(path: KeyPath, one: CredentialsConfig) -> Iterator[Wrong]:
    passwords = [key for key in ("password_file", "password_env") if getattr(one, key) is not None]
    tokens = [key for key in ("token_file", "token_env") if getattr(one, key) is not None]
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


def _of_what_may_be_sent_to(said: Said) -> Iterator[Wrong]:
    for index, address in enumerate(said.get("allow_addresses", ())):
        try:
            AllowList([address])
        except ConfigurationError as error:
            yield ("allow_addresses", index), error.message.removeprefix("allow_addresses "), error.remedy
