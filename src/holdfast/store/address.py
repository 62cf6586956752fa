"""The location of a store, as users write it, and as logs and errors show it: without the password of a URL.

This module imports no engine, so that it can recognize a location, and write an error about it, even if no engine is
installed.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from holdfast.exceptions import ConfigurationError
from holdfast.outages import Trouble
from holdfast.settings import brief_value, suggestion

DRIVERS = {"postgresql": "psycopg", "mysql": "pymysql", "mariadb": "pymysql"}
"""The supported databases, and the driver for each."""

DEFAULT_SPACE = "default"
DEFAULT_PATIENCE = 300.0
"""Seconds."""
LONGEST_SPACE = 100

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9.-]*)(?:\+([A-Za-z0-9_]+))?://")
_LOST_SLASH = re.compile(r"([A-Za-z]+)(\+[A-Za-z0-9_]+)?:(?!//)")
_SHOWN = frozenset({"cache", "host", "partition", "port", "space", "unix_socket"})
_OF_A_STORE = ("load", "commit", "read", "close")
_NO_PATH = re.compile("[\x00\ud800-\udc7f\udd00-\udfff]")
_EXAMPLE = "postgresql://user@host/database?space=orders"


_OURS = ("space", "patience", "password_file")
_LIBPQ = """
    application_name channel_binding client_encoding connect_timeout dbname fallback_application_name gssdelegation
    gssencmode gsslib host hostaddr keepalives keepalives_count keepalives_idle keepalives_interval krbsrvname
    load_balance_hosts max_protocol_version min_protocol_version oauth_client_id oauth_client_secret oauth_issuer
    oauth_scope options passfile password port replication require_auth requirepeer scram_client_key scram_server_key
    service servicefile ssl_max_protocol_version ssl_min_protocol_version sslcert sslcertmode sslcompression sslcrl
    sslcrldir sslkey sslkeylogfile sslmode sslnegotiation sslpassword sslrootcert sslsni target_session_attrs
    tcp_user_timeout user
"""
_PYMYSQL = """
    auth_plugin_map bind_address binary_prefix charset client_flag collation compress connect_timeout database db host
    init_command local_infile max_allowed_packet passwd password port program_name read_default_file read_default_group
    read_timeout server_public_key sql_mode ssl ssl_ca ssl_capath ssl_cert ssl_check_hostname ssl_cipher ssl_disabled
    ssl_key ssl_key_password ssl_verify_cert ssl_verify_identity unix_socket use_unicode user write_timeout
"""
_OPTIONS = {driver: frozenset(names.split()) for driver, names in (("psycopg", _LIBPQ), ("pymysql", _PYMYSQL))}
"""The options of each driver that a URL may have."""
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_OFTEN = {
    "psycopg": "libpq, such as host, sslmode, sslrootcert or connect_timeout.",
    "pymysql": "PyMySQL, such as unix_socket, ssl_ca or connect_timeout.",
}


@dataclass(frozen=True, slots=True)
class SQLAddress:
    """A database, and the space in it.

    Args:
        url: For SQLAlchemy, with the driver, and with the password if there is one: never show it.
        database: "postgresql", "mysql" or "mariadb".
        space: The part of the database that belongs to one endpoint or broker.
        patience: Seconds for which an opening retries while the database does not answer. The same limit applies to a
            call of a store without a running endpoint.
        shown: The URL without the password, for people.
        password_file: A file with the password, which is used instead of one in the URL; "": none.
    """

    url: str = field(repr=False)
    database: str
    space: str
    patience: float
    shown: str
    password_file: str = ""

    def password(self) -> str | None:
        """Return what the file contains now, so that a password can be replaced while a server runs; None if there is
        no file, or if it is unreadable."""
        return password_in(self.password_file)


def password_in(file: str) -> str | None:
    """Return the password that a file contains; None if the name is empty or the file is unreadable."""
    try:
        return Path(file).read_text("utf-8-sig").strip("\r\n") if file else None
    except (OSError, ValueError):
        return None


def no_password(file: str) -> Trouble:
    """Return the trouble of a file without a password."""
    what = f"the file with the password, {file}, is empty or cannot be read"
    return Trouble(what, "Write the password into it, and let the user of Holdfast read it.")


def lacking_password(file: str) -> Trouble | None:
    """Return the trouble of a file if it has no password now; None if it has one, or the name is empty."""
    return no_password(file) if file and not password_in(file) else None


_TLS_FILES = frozenset(["sslcert", "sslkey", "sslrootcert", "sslcrl", "ssl_ca", "ssl_cert", "ssl_key"])


def is_sql(location: object) -> bool:
    """Whether a location is the URL of a supported kind of database."""
    found = _SCHEME.match(location) if isinstance(location, str) else None
    return found is not None and _database(found.group(1)) in DRIVERS


def is_kafka(location: object) -> bool:
    return isinstance(location, str) and location[:8].lower() == "kafka://"


def check_location(location: object) -> None:
    """Check that a value is the location of a store, or an open store.

    Raises:
        ConfigurationError: It is neither, or no directory can have that name. Or it is a URL that has lost a slash,
            such as ``mysql:/host/name``.
    """
    if not isinstance(location, str | Path) and not all(
        callable(getattr(location, name, None)) for name in _OF_A_STORE
    ):
        raise ConfigurationError(
            f"store cannot be {brief_value(location)}",
            remedy="Give the path of a directory, the URL of a database, ':memory:', or an open store.",
        )
    if isinstance(location, str | Path) and _NO_PATH.search(str(location)) is not None:
        raise ConfigurationError(
            f"store cannot be {brief_value(str(location))}: no file can have that name",
            remedy="Use a name without null characters and without surrogates.",
        )
    found = _LOST_SLASH.match(location) if isinstance(location, str) else None
    if found is not None and (_database(found[1]) in DRIVERS or found[1].lower() == "kafka"):
        raise ConfigurationError(
            f"the location {found[0]}... of a store lacks a slash: the colon of a URL is followed by two",
            remedy=f"Write {found[0]}//... for the URL. For a directory of that name, write ./ before it.",
        )


def is_remote(location: object) -> bool:
    """Whether a location is a URL, and has no directory of its own."""
    return is_sql(location) or is_kafka(location)


def _database(scheme: str) -> str:
    return "postgresql" if scheme.lower() == "postgres" else scheme.lower()


def shown(location: object) -> str:
    """Return a location for people: of a URL the user, the hosts, the database or topic and the part, and never a
    password."""
    text = str(location)
    scheme, mark, rest = text.partition("://")
    if not mark:
        return text
    # A password may contain characters that should have been quoted, so everything before the last @ may be part of it.
    before, at, after = rest.rpartition("@")
    rest = f"{before.partition(':')[0]}@{after}" if at else after
    place, question, query = rest.partition("?")
    kept = [(name, value) for name, value in parse_qsl(query) if name in _SHOWN]
    return f"{scheme}://{place}" + (f"?{urlencode(kept, safe='/:')}" if question and kept else "")


def read_address(location: str) -> SQLAddress:
    """Return the database and space that a URL names.

    Raises:
        ConfigurationError: It is not the URL of a database, or a part of it is invalid.
    """
    found = _SCHEME.match(location)
    database = _database(found.group(1)) if found is not None else ""
    if found is None or database not in DRIVERS:
        raise ConfigurationError(f"{shown(location)!r} is not the URL of a database.", remedy=f"Example: {_EXAMPLE}")
    driver = DRIVERS[database]
    if found.group(2) not in (None, driver):
        raise ConfigurationError(
            f"The store at {shown(location)} names the driver {found.group(2)!r}, which is not supported.",
            remedy=f"Omit the driver, or name {driver}: {database}+{driver}://…",
        )
    rest, _, query = location[found.end() :].partition("?")
    options = parse_qsl(query, keep_blank_values=True)
    _check_options(options, driver, shown(location))
    _check_modes(options, driver, shown(location))
    _check_ports(rest, options, shown(location))
    space = _last(options, "space", DEFAULT_SPACE)
    if not space or len(space) > LONGEST_SPACE or not space.isprintable():
        raise ConfigurationError(
            f"{space[:LONGEST_SPACE]!r} is not a valid space of a store.",
            remedy=f"Use a name of 1 to {LONGEST_SPACE} visible characters: ?space=orders",
        )
    patience = _seconds(_last(options, "patience", str(DEFAULT_PATIENCE)))
    # libpq takes the name as a parameter, too.
    try:
        path = urlsplit(f"x://{rest}").path
    except ValueError as error:  # half an IPv6 address
        raise ConfigurationError(
            f"{shown(location)!r} is not the URL of a database: {error}", remedy=f"Example: {_EXAMPLE}"
        ) from None
    if not unquote(path.strip("/")) and not _last(options, "dbname", ""):
        raise ConfigurationError(
            f"{shown(location)!r} names no database.", remedy=f"Add its name after the host: {_EXAMPLE}"
        )
    others = urlencode([(name, value) for name, value in options if name not in _OURS], safe="/:")
    url = f"{database}+{driver}://{rest}" + (f"?{others}" if others else "")
    return SQLAddress(url, database, space, patience, shown(location), _last(options, "password_file", ""))


def _check_options(options: list[tuple[str, str]], driver: str, text: str) -> None:
    for name, _ in options:
        if name not in _OURS and name not in _OPTIONS[driver]:
            raise ConfigurationError(
                f"The URL {text!r} has the unknown option {name[:40]!r}.",
                remedy=suggestion(
                    name, (*_OURS, *_OPTIONS[driver]), f"Use {', '.join(_OURS)}, or an option of {_OFTEN[driver]}"
                ),
            )


def unreadable_file(location: str) -> str:
    """Return the option of a database's URL that names a file of TLS which this user cannot read, with that file, as
    ``sslkey=/etc/key.pem``; "" if there is none."""
    for name, file in parse_qsl(location.partition("?")[2]):
        is_file = name in _TLS_FILES and (name, file) != ("sslrootcert", "system")
        if is_file and file and not (Path(file).is_file() and os.access(file, os.R_OK)):
            return f"{name}={file}"
    return ""


def _check_modes(options: list[tuple[str, str]], driver: str, text: str) -> None:
    """Check options with a few values: libpq refuses others only at the first connection."""
    for name, value in options:
        if driver == "psycopg" and name == "sslmode" and value not in _SSL_MODES:
            raise ConfigurationError(
                f"The URL {text!r} has the invalid sslmode {value[:40]!r}.", remedy=f"Use {', '.join(_SSL_MODES)}."
            )


def _check_ports(rest: str, options: list[tuple[str, str]], text: str) -> None:
    """Check the ports: libpq takes several, one for each host."""
    host = rest.partition("/")[0].rpartition("@")[2]
    after = host.rpartition("]")[2] if "]" in host else host
    given = [one.partition(":")[2] for one in after.split(",")]
    given += [port for name, value in options if name == "port" for port in value.split(",")]
    for name, value in options:
        if name == "host" and "/" not in value and "[" not in value:
            given += [one.partition(":")[2] for one in value.split(",") if one.count(":") == 1]
    for port in given:
        if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
            raise ConfigurationError(
                f"The URL {text!r} has the port {port[:40]!r}, which is not a number from 1 to 65535.",
                remedy=f"Example: {_EXAMPLE.replace('host', 'host:5432')}",
            )


def with_password_file(location: str, file: str) -> str:
    """Return a URL with the file that contains the password."""
    return f"{location}{'&' if '?' in location else '?'}{urlencode({'password_file': os.path.abspath(file)}, safe='/')}"


def store_of_part(location: str, number: int) -> str:
    """Return the URL of the store of a worker, or of a cluster partition; the location is that of number 0.

    In a database it is another space, ``SPACE/worker-NUMBER``; in Kafka, another partition of the topic.
    """
    if number == 0:
        return location
    own = "partition", str(number)
    if not is_kafka(location):
        own = "space", f"{read_address(location).space}/worker-{number}"
    rest, _, query = location.partition("?")
    options = [(key, value) for key, value in parse_qsl(query, keep_blank_values=True) if key != own[0]]
    return f"{rest}?{urlencode([*options, own], safe='/:')}"


def _last(options: list[tuple[str, str]], name: str, default: str) -> str:
    return next((value for key, value in reversed(options) if key == name), default)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds <= 1e9:
        raise ConfigurationError(
            f"{text[:40]!r} is not a valid patience of a store.",
            remedy="Use a number of seconds, 0 or more: ?patience=60",
        )
    return seconds
