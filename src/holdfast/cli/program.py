"""Shared parts of all commands: running a coroutine until it ends or is interrupted, addresses, logs, TLS files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import ssl
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.failure import failure_facts
from holdfast.client.option_types import LARGEST, Count
from holdfast.exceptions import ConfigurationError
from holdfast.http.tls import ClientTLS, ServerTLS
from holdfast.settings import Unit, bounds_of, hints_of, meaning_of, unit_of

if TYPE_CHECKING:
    from holdfast.endpoint.destination.destination import Destination

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def log_options(default: str) -> Callable[[F], F]:
    """Add ``--log-level`` and ``--log-json``."""

    def add(command: F) -> F:
        levels = click.Choice(["debug", "info", "warning", "error", "critical"])
        told = "Log JSON lines instead of key=value."
        command = click.option("--log-json", is_flag=True, help=told, callback=_note_form)(command)
        return click.option(
            "--log-level", type=levels, default=default, show_default=True, help="What goes to standard error."
        )(command)

    return add


def _note_form(context: click.Context, _parameter: click.Parameter, is_json: bool) -> bool:
    failure_facts(context).logs_json = is_json
    return is_json


def setting_option(cls: type[Any], field: str, *option: str, before: str = "", **more: Any) -> Callable[[F], F]:
    """Return an option for a field of a settings class, which has its default, its bounds and its meaning.

    Args:
        field: The field: a text, a whole number or a file.
        option: How the option is written, and the name of its argument if it has another.
        before: The beginning of the help, before the field's meaning.
        more: Further arguments of ``click.option``.
    """
    default = next(one.default for one in fields(cls) if one.name == field)
    bounds, unit = bounds_of(cls, field), unit_of(hints_of(cls)[field])
    if unit is Unit.FILE:
        more["type"] = click.Path(exists=True, dir_okay=False)
    elif isinstance(default, int):
        least = 1 if bounds.least is None else int(bounds.least)
        more["type"] = Count(least, int(bounds.most) if bounds.most is not None else LARGEST)
    if isinstance(default, int | str):
        more |= {"default": default, "show_default": True}
    return click.option(*option, help=before + meaning_of(cls, field).replace("``", ""), **more)


def tls_options(option: str, before: str) -> list[Callable[[F], F]]:
    """Return the options of a listener's certificate; :func:`server_tls` makes its context.

    Args:
        option: How the options begin.
        before: The beginning of the help, before the certificate's meaning.
    """
    return [
        setting_option(ServerTLS, "certificate", f"{option}-cert", before=before),
        setting_option(ServerTLS, "key", f"{option}-key"),
        setting_option(ServerTLS, "client_ca", f"{option}-client-ca"),
    ]


def trace_option(command: F) -> F:
    """Add ``--traces``; :func:`tell_traces` does it."""
    text = "Send spans of OpenTelemetry where OTEL_EXPORTER_OTLP_ENDPOINT says."
    return click.option("--traces", is_flag=True, help=text)(command)


def tell_traces(app: Destination, traces: bool) -> None:
    """Report a destination's work as spans, if requested; before its start.

    Raises:
        ConfigurationError: A required package is not installed.
    """
    if traces:
        from holdfast.endpoint.trace import exporting_provider, trace

        trace(app, exporting_provider())


@contextlib.contextmanager
def wrong_usage() -> Iterator[None]:
    """Report a ConfigurationError in the block as wrong usage: the block only checks values of options.

    Raises:
        click.UsageError: instead of ConfigurationError.
    """
    try:
        yield
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the fastest event loop there is."""
    from holdfast.http.server.server import event_loop_factory

    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        return runner.run(main)


def run_interruptible(main: Coroutine[Any, Any, T]) -> T:
    """The same; the first SIGINT or SIGTERM cancels it so that it can put things in order, a second ends the process.

    Raises:
        KeyboardInterrupt: it was cancelled so.
    """
    return run_loop(_interruptible(main))


async def _interruptible(main: Coroutine[Any, Any, T]) -> T:
    loop = asyncio.get_running_loop()
    task = loop.create_task(main)
    interrupted = False

    def on_signal() -> None:
        nonlocal interrupted
        if interrupted:
            os._exit(130)
        interrupted = True
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    try:
        return await task
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def parse_address(text: str | None) -> tuple[str, int] | None:
    """Parse ``HOST:PORT``, ``[V6]:PORT``, ``:PORT`` or ``PORT``; without a host: 127.0.0.1. None: no address.

    Raises:
        click.BadParameter: It has another form.
    """
    if text is None:
        return None
    from holdfast.endpoint.listeners import listen_address

    try:
        return listen_address(text)
    except ConfigurationError as error:
        raise click.BadParameter(f"{text!r} is not HOST:PORT, such as 127.0.0.1:8081 or 8081") from error


def server_tls(option: str, certificate: str | None, key: str | None, client_ca: str | None) -> ssl.SSLContext | None:
    """Return the TLS context of a server, None without a certificate.

    Args:
        option: How the options begin.
        certificate, key, client_ca: Files, as in :class:`holdfast.http.tls.ServerTLS`.

    Raises:
        click.UsageError: a key or an authority without a certificate.
        ConfigurationError: the files are not what they should be.
    """
    if certificate is None:
        if key is not None or client_ca is not None:
            raise click.UsageError(f"{option}-key and {option}-client-ca need {option}-cert.")
        return None
    from holdfast.endpoint.logs import warn_of_tls

    context = ServerTLS(certificate, key, client_ca).context()
    warn_of_tls(certificate)
    return context


CLIENT_TLS = {
    "ca": ("--ca", "FILE", meaning_of(ClientTLS, "ca")),
    "certificate": ("--cert", "FILE", meaning_of(ClientTLS, "certificate")),
    "key": ("--cert-key", "FILE", meaning_of(ClientTLS, "key")),
}
"""Field -> its option, its value and its help, for :func:`remembered_options`."""
_PEER = {
    **CLIENT_TLS,
    "proxy": ("--proxy", "URL", "HTTP proxy for requests: http://[USER:WORD@]HOST:PORT."),
}


def peer_options(command: F) -> F:
    """Add options for connections to peers: certificates, trust, and a proxy; :func:`to_peers` returns their values."""
    return remembered_options(command, _PEER, __name__)


def remembered_options(command: F, options: dict[str, tuple[str, str, str]], place: str) -> F:
    """Add options that do not become arguments: ``context.meta[place]`` keeps their values for other functions.

    Args:
        options: Name -> the option, its value ("FILE": an existing one) and its help.
        place: A name in the context, such as the module's.
    """

    def remember(name: str) -> Callable[[click.Context, click.Parameter, str | None], None]:
        def callback(context: click.Context, _option: click.Parameter, value: str | None) -> None:
            context.meta.setdefault(place, {})[name] = value

        return callback

    for name, (option, metavar, text) in reversed(options.items()):
        kind = click.Path(exists=True, dir_okay=False) if metavar == "FILE" else click.STRING
        # click names the parameter after its option: the command may have another of the field's name, such as --key.
        command = click.option(
            option, metavar=metavar, type=kind, help=text, expose_value=False, callback=remember(name)
        )(command)
    return command


def peer_options_given() -> list[str]:
    """Return the options of :func:`peer_options` that the running command was given, without their values."""
    given = click.get_current_context().meta.get(__name__, {})
    return [option for name, (option, _, _) in _PEER.items() if given.get(name) is not None]


def to_peers() -> dict[str, Any]:
    """Return ``ssl_context`` and ``proxy`` from the options of :func:`peer_options`, for the running command.

    Raises:
        click.UsageError: The proxy is not valid.
        ConfigurationError: A file is not valid.
    """
    from holdfast.endpoint.arguments import check_proxy
    from holdfast.endpoint.logs import warn_of_tls

    given = dict(click.get_current_context().meta[__name__])
    proxy = given.pop("proxy")
    with wrong_usage():
        check_proxy(proxy)
    context = ClientTLS(**given).context()
    warn_of_tls(given.get("certificate"))
    return {"ssl_context": context, "proxy": proxy}
