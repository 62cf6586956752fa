"""``holdfast serve``: serve a Destination that a module defines, with Holdfast's own HTTP server."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
import traceback
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

import holdfast
from holdfast.cli.program import (
    log_options,
    parse_address,
    peer_options,
    run_loop,
    server_tls,
    setting_option,
    tell_traces,
    tls_options,
    to_peers,
    trace_option,
    wrong_usage,
)
from holdfast.cli.running.workers import become_worker, tell_ready, worker_options
from holdfast.client.option_types import with_options
from holdfast.endpoint.listener_settings import AdminAddress, AdminListener, Listeners, MessageAddress
from holdfast.exceptions import ConfigurationError, HoldfastError
from holdfast.http.exchange import HTTPLimits

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from holdfast.endpoint.destination.destination import Destination
    from holdfast.endpoint.envelopes.processors import Processor
    from holdfast.endpoint.journal.policy import JournalPolicy
    from holdfast.endpoint.serve import Service
    from holdfast.endpoint.workers.supervisor import Post


FILE = click.Path(exists=True, dir_okay=False)


listen_options = with_options(
    peer_options,
    setting_option(MessageAddress, "host", "--host"),
    setting_option(MessageAddress, "port", "--port"),
    click.option(
        "--public-url",
        metavar="URL",
        help="URL at which clients reach the service, if a reverse proxy or a gateway changes the host, the port or "
        "the path. The WSDL names it. {path} at its end stands for the path of the request.",
    ),
    click.option(
        "--admin",
        metavar="[HOST:]PORT",
        help="Open the admin listener, for Spark, operators and metrics. Keep it private.  [default: off]",
    ),
    trace_option,
    *tls_options("--tls", "Serve https. "),
    click.option(
        "--users",
        type=FILE,
        help="Refuse messages without a user name and password of this file, with a line NAME:PASSWORD for "
        "each user (WS-Security UsernameToken).",
    ),
    click.option(
        "--admin-token-file",
        type=FILE,
        help="Token that clients of --admin must send.  [env: HOLDFAST_ADMIN_TOKEN]",
    ),
    click.option(
        "--admin-metrics-token-file",
        type=FILE,
        help="Another token, with which Prometheus may read the metrics of --admin, and nothing else.",
    ),
    *tls_options("--admin-tls", "Serve --admin by https. "),
    setting_option(AdminAddress, "names", "--admin-name", "admin_names", multiple=True, metavar="HOST"),
    setting_option(HTTPLimits, "max_body", "--max-body"),
    setting_option(HTTPLimits, "max_connections", "--max-connections"),
)
"""Decorator: the options of the listeners and the limits for peers."""


journal_option = click.option(
    "--journal",
    metavar="DIRECTORY",
    help='Directory of the event journal; "off" for no journal.  [default: journal in the store\'s directory]',
)


restored_option = click.option(
    "--restored",
    is_flag=True,
    help="The store was restored from an older copy: do not reuse any identifier. Use it for one start only.",
)


def to_journal(given: str | None) -> bool | JournalPolicy | None:
    """Return the journal policy of the option; None without it."""
    from holdfast.endpoint.journal.policy import JournalPolicy

    return given if given is None else False if given == "off" else JournalPolicy(given)


queue_options = with_options(
    click.option(
        "--retention",
        metavar="WORDS",
        help='How long the queue keeps messages: "7d", "12h 10GB", "none", "7d readers 30d".',
    ),
    restored_option,
    journal_option,
)


@click.command()
@click.argument("target", metavar="MODULE:ATTRIBUTE")
@listen_options
@queue_options
@worker_options
@log_options("info")
def serve(
    target: str,
    retention: str | None,
    restored: bool,
    journal: str | None,
    workers: int | None,
    log_level: str,
    log_json: bool,
    **where: Any,
) -> None:
    """Serve the Destination that MODULE defines as ATTRIBUTE. Modules in the current directory are found too.

    \b
    holdfast serve orders:app --port 8080
    holdfast serve shop.orders:app --host 0.0.0.0 --port 8443 --tls-cert server.pem --admin 8081

    The server recovers every Sequence of its store before it listens, and then prints `listening on http://...`.
    SIGTERM or Ctrl-C stops it after the work in progress; a second one stops it at once. If the store fails, the server
    ends with exit code 1, and every acknowledged message is there at the next start. If the store is damaged, the
    server keeps running and answers 503; /readyz of the admin listener gives the reason.

    With --workers, several processes share the Sequences behind one address. A worker that dies is restarted, and only
    its Sequences wait meanwhile.
    """
    from holdfast.endpoint.logs import configure_logs

    configure_logs(log_level, json=log_json)
    messages, admin = (where["host"], where["port"]), parse_address(where["admin"])
    post = become_worker(workers or 1, messages, admin, where["max_connections"], tell_ready)
    if post is not None:
        configure_logs(log_level, json=log_json, worker=post.place.worker.number)
    app = load_destination(target)
    with wrong_usage():
        app.keep(retention, restored=restored, journal=to_journal(journal))
    service = make_service(app, post, **where)
    run_loop(run_service(service))


def make_service(
    app: Destination,
    post: Post | None = None,
    *,
    host: str,
    port: int,
    public_url: str | None,
    admin: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    tls_client_ca: str | None,
    users: str | None,
    admin_token_file: str | None,
    admin_metrics_token_file: str | None,
    admin_tls_cert: str | None,
    admin_tls_key: str | None,
    admin_tls_client_ca: str | None,
    admin_names: tuple[str, ...],
    max_body: int,
    max_connections: int,
    traces: bool,
) -> Service:
    """Return the service for the options of :func:`listen_options`."""
    from holdfast.endpoint.admin.token import read_token
    from holdfast.endpoint.serve import Service

    tell_traces(app, traces)
    told = to_peers() | {"public_url": public_url}
    settings = app.settings
    with wrong_usage():
        settings.http = replace(settings.http, **{name: value for name, value in told.items() if value is not None})
    if admin is None and (admin_token_file or admin_metrics_token_file or admin_tls_cert or admin_names):
        raise click.UsageError("--admin-token-file, --admin-tls-cert and the like need --admin.")
    if users is not None:
        settings.envelopes.add_processor(_validator(users, app, post))
    if post is not None:
        check_shared_memory(app)
    admin_context = server_tls("--admin-tls", admin_tls_cert, admin_tls_key, admin_tls_client_ca)
    operators = None
    if (address := parse_address(admin)) is not None:
        token = read_token(admin_token_file)
        metrics_token = read_token(admin_metrics_token_file) if admin_metrics_token_file is not None else None
        operators = AdminListener(*address, admin_names, admin_context, token, metrics_token=metrics_token)
    buffered = max(max_body, HTTPLimits().max_buffered)
    limits = HTTPLimits(max_body=max_body, max_connections=max_connections, max_buffered=buffered)
    context = server_tls("--tls", tls_cert, tls_key, tls_client_ca)
    return Service(app, Listeners(host, port, context, limits, operators), post)


def check_shared_memory(app: Destination) -> None:
    """Check that several workers remember together what was received.

    Raises:
        ConfigurationError: Each would accept again what another one has accepted.
    """
    alone = next((one for one in app.settings.envelopes.processors if one._remembers_alone), None)
    if alone is not None:
        raise ConfigurationError(
            f"{type(alone).__name__} remembers in memory what was received, so each worker would accept it again",
            remedy='Give it nonces="nonces.db", or the URL of a PostgreSQL database. Or serve with one worker.',
        )


def _validator(file: str, app: Destination, post: Post | None) -> Processor:
    """Return the processor that accepts the users of a file only.

    Raises:
        click.UsageError: Several workers cannot share the nonces that they have seen.
        ConfigurationError: The file is not valid.
    """
    from holdfast.endpoint.logs import log
    from holdfast.security.username_token import UsernameTokenValidator
    from holdfast.security.users import Users, nonces_of
    from holdfast.store.directory import is_public, public_remedy

    users, nonces = Users(file), nonces_of(app.settings.location)
    if nonces is None and post is not None:
        raise click.UsageError(
            "--users with several workers needs a store in a directory. With a database, write "
            "UsernameTokenValidator(Users(FILE), nonces=FILE) in the module."
        )
    if is_public(Path(file)):
        log.warning("secret.public", file=file, remedy=public_remedy(file))
    return UsernameTokenValidator(users, nonces=nonces)


async def run_service(
    service: Service, stop: asyncio.Event | None = None, on_ready: Callable[[], None] = lambda: None
) -> None:
    """Serve until the process is stopped. Print where the service listens.

    Raises:
        HoldfastError: The service cannot start.
    """

    def ready() -> None:
        (tell_ready if service.post is None else service.post.tell_ready)(service.facts)
        on_ready()

    await service.run(stop, ready)


def load_destination(target: str) -> Destination:
    """Import the Destination with the name ``module:attribute``.

    Raises:
        click.UsageError: The text does not have that form.
        ConfigurationError: The module or attribute does not exist, is not a Destination, or cannot be imported.
    """
    from holdfast.endpoint.destination.destination import Destination

    name, _, attribute = target.partition(":")
    if not name or not attribute:
        raise click.UsageError(f"{target!r} does not have the form MODULE:ATTRIBUTE, such as orders:app.")
    if name.endswith(".py") or os.sep in name:
        place, file = os.path.split(name.removesuffix(".py"))
        where = f"cd {shlex.quote(place)} && " if place not in ("", ".") else ""
        raise ConfigurationError(
            f"{name} is a file, but the command takes the name of a module",
            remedy=f"Write: {where}holdfast serve {shlex.quote(f'{file}:{attribute}')}",
        )
    module = _import(name)
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise ConfigurationError(
                f"the module {name} has no attribute {attribute!r}", remedy=_instead(module, name, part)
            )
        value = getattr(value, part)
    if not isinstance(value, Destination):
        raise ConfigurationError(
            f"{target} has the type {type(value).__name__}, not holdfast.Destination",
            remedy=_instead(module, name, attribute),
        )
    return value


def _import(name: str) -> ModuleType:
    directory = os.getcwd()
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _broken(name, error) from error  # the module exists, but imports one that does not
        raise ConfigurationError(
            f"the module {name!r} is neither installed nor in {directory}",
            remedy="Run the command in the module's directory, or add that directory to PYTHONPATH.",
        ) from None
    except Exception as error:
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> ConfigurationError:
    """The error that a module raised during its import, with the lines of the module that led to it."""
    between = ("<frozen", "<string>", importlib.__file__, __file__)  # "<string>": what dataclasses make
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(between)]
    if isinstance(error, HoldfastError):
        package = Path(holdfast.__file__).parent
        theirs = [frame for frame in frames if package not in Path(frame.filename).parents]
        return ConfigurationError(
            f"{theirs[-1].filename}, line {theirs[-1].lineno}: {error.message}", remedy=error.remedy
        )
    lines = [f"the module {name} cannot be imported\n", *traceback.format_list(frames)]
    return ConfigurationError("".join([*lines, *traceback.format_exception_only(error)]).rstrip())


def _instead(module: ModuleType, name: str, attribute: str) -> str:
    from holdfast.endpoint.destination.destination import Destination

    destinations = [key for key, value in vars(module).items() if isinstance(value, Destination)]
    if not destinations:
        return f"{name} defines no Destination. Add one: app = holdfast.Destination(store='inbox')"
    near = get_close_matches(attribute, destinations, 1, 0.0)
    return f"{name} has a Destination named {near[0]}: holdfast serve {name}:{near[0]}"
