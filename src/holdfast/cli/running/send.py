"""``holdfast send``: an RM Source for files, or for what an outbox still holds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from holdfast.cli.failure import failure_facts
from holdfast.cli.program import Seconds, log_options, peer_options, run_interruptible, to_peers, wrong_usage
from holdfast.cli.progress import Shown, progress
from holdfast.core.versions import RM_OF_NAME, SOAP, Addressing, newest_rm
from holdfast.exceptions import (
    ConfigurationError,
    DeliveryError,
    EnvelopeError,
    HoldfastError,
    NotAcknowledged,
    PeerFault,
    StoreError,
)

if TYPE_CHECKING:
    from holdfast.core.versions import Versions
    from holdfast.endpoint.source.replies import Reply
    from holdfast.endpoint.source.source import Source

TOGETHER = 256
"""Messages given to the store at a time, so that they share a sync."""
END_PATIENCE = 10.0
"""Seconds to wait for the end of a Sequence whose messages are all acknowledged."""
ACTION = "urn:holdfast:message"
KEYS = ("body", "action", "key", "message_id")
"""What a line of ``--jsonl`` may have."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message as the command line or a line of JSON describes it; ``name`` says where it came from."""

    name: str
    body: bytes | str
    action: str
    key: str
    message_id: str | None = None


@dataclass
class Run:
    """What is to be done and how far it is.

    Args:
        total: Messages to store, None if nobody knows.
        unstored: The name of the first message that is not known to be stored.
    """

    files: tuple[str, ...]
    action: str
    key: str
    is_jsonl: bool
    is_request: bool
    timeout: float | None
    as_json: bool
    store: str
    total: int | None = None
    unstored: str = ""
    source: Source | None = None
    logs: tuple[str, bool] = ("warning", False)
    refused: dict[str, tuple[HoldfastError, list[str]]] = field(default_factory=dict)
    """Key -> why it is stopped, and the messages with it that were not stored."""


@click.command()
@click.argument("files", nargs=-1, metavar="[FILES]... | -")
@click.option("--to", metavar="URL", help="The destination; with --resume the store knows it.")
@click.option("--wsdl", metavar="URL|FILE", help="The service's WSDL: where to send, and what to speak there.")
@click.option("--port", metavar="NAME", help="Which wsdl:port is meant, where the WSDL has several.")
@click.option(
    "--store", default="outbox", show_default=True, help="Directory or database URL of the store, or :memory:."
)
@click.option("--action", default=ACTION, show_default=True, metavar="URI", help="wsa:Action of each message.")
@click.option("--key", default="", help="Messages with equal keys share a sequence and its order.")
@click.option("--resume", is_flag=True, help="Send what the store holds, even where sending had stopped.")
@click.option("--request", "is_request", is_flag=True, help="Wait for the replies and print their bodies.")
@click.option(
    "--jsonl",
    "is_jsonl",
    is_flag=True,
    help='Each line of FILES is a message: {"body": "<a/>", "action": …, "key": …}.',
)
@click.option("--timeout", type=Seconds(), help="Seconds for all of it.  [default: as long as it takes]")
@click.option("--rm", type=click.Choice([*RM_OF_NAME]), help="WS-RM version.  [default: found out]")
@click.option("--addressing", type=click.Choice([one.value for one in Addressing]), help="WS-Addressing version.")
@click.option("--soap", type=click.Choice([one.value for one in SOAP]), help="SOAP version.")
@click.option("--profile", type=click.Choice(["wcf", "wcf-2007", "cxf"]), help="The versions of a known peer.")
@click.option("--assurance", help="What is promised.  [default: the WSDL's, else exactly-once in-order]")
@click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="HTTP header of every request.")
@click.option("--json", "as_json", is_flag=True, help="End with a line of JSON on standard output.")
@peer_options
@log_options("critical")
def send(
    files: tuple[str, ...],
    to: str | None,
    wsdl: str | None,
    port: str | None,
    resume: bool,
    rm: str | None,
    addressing: str | None,
    soap: str | None,
    profile: str | None,
    assurance: str | None,
    headers: tuple[str, ...],
    log_level: str,
    log_json: bool,
    **what: Any,
) -> None:
    """Send FILES, each an XML element, in one sequence; end when the destination has them all.

    \b
    holdfast send --to http://localhost:8080/ orders/*.xml
    echo "<ping/>" | holdfast send --to http://localhost:8080/ --action urn:Ping --request -
    holdfast send --wsdl https://partner.example/Orders.svc?wsdl --action urn:orders/Submit orders/*.xml

    Every message is durable in the store before it leaves. Interrupted, killed or refused, nothing stored is lost:

    \b
    holdfast send --resume --store outbox
    """
    _check_usage(files, to or wsdl, resume, what["is_request"])
    if port is not None and wsdl is None:
        raise click.UsageError("--port names a port of the --wsdl.")
    run = Run(files, logs=(log_level, log_json), **what)
    with wrong_usage():
        versions = _versions(rm, addressing, soap, profile)
    how = {"versions": versions, "profile": profile, "assurance": assurance, "headers": _headers(headers)}
    options = how | to_peers()
    try:
        run.source = _source(to, wsdl, port, run.store, options)
        run_interruptible(_send(run.source, run, resume))
    except KeyboardInterrupt:
        if run.source is None:
            raise
        raise DeliveryError(f"interrupted; {_so_far(run)}", remedy=_how_to_go_on(run)) from None
    finally:
        if run.source is not None:
            failure_facts().more |= _counts(run.source) | {"outstanding": run.source.progress.outstanding}
    if run.as_json:
        click.echo(json.dumps(_counts(run.source)))


def _source(to: str | None, wsdl: str | None, port: str | None, store: str, options: dict[str, Any]) -> Source:
    from holdfast.endpoint.source.source import Source

    if wsdl is None:
        with wrong_usage():
            return Source(to, store, **options)
    return run_interruptible(Source.from_wsdl(wsdl, store, port=port, to=to, **options))


def _check_usage(files: tuple[str, ...], to: str | None, resume: bool, is_request: bool) -> None:
    if not files and not resume:
        raise click.UsageError(
            "Name the files to send, - for standard input, or --resume to send what the store holds."
        )
    if to is None and not resume:
        raise click.UsageError("Say where to send, with --to URL or --wsdl URL.")
    if resume and is_request and not files:
        raise click.UsageError("--resume sends what is stored; --request needs files to send.")
    for name in files:
        if name != "-" and not Path(name).is_file():
            raise click.UsageError(f"There is no file {name!r}.")


def _versions(rm: str | None, addressing: str | None, soap: str | None, profile: str | None) -> Versions | None:
    from holdfast.core.versions import Versions

    if rm is None and addressing is None and soap is None:
        return None
    if profile is not None:
        raise click.UsageError("--profile says the versions; leave out --rm, --addressing and --soap.")
    return Versions(rm or newest_rm(addressing), addressing or "2005/08", soap or "1.2")


def _headers(texts: tuple[str, ...]) -> dict[str, str]:
    headers = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise click.UsageError(f"--header {text!r} is not 'Name: value'.")
        headers[name.strip()] = value.strip()
    return headers


# --- the messages -----------------------------------------------------------------------------------------------------


def _outgoing(run: Run) -> Iterator[Outgoing]:
    for name in run.files:
        if run.is_jsonl:
            yield from _lines(name, run)
        else:
            body = _read(name)
            if not body.strip():
                raise ConfigurationError(f"{name} is empty", remedy="A message is one XML element.")
            yield Outgoing(name, body, run.action, run.key)


def _read(name: str) -> bytes:
    try:
        with _open(name) as file:
            return file.read()
    except OSError as error:
        raise ConfigurationError(f"cannot read {name}: {error.strerror}") from error


def _open(name: str) -> BinaryIO:
    # Not sys.stdin: whoever waits in it would hold its lock when the program is interrupted.
    return open(0, "rb", closefd=False) if name == "-" else open(name, "rb")


def _lines(name: str, run: Run) -> Iterator[Outgoing]:
    with _open(name) as file:
        for number, line in enumerate(file, 1):
            where = f"{name}, line {number}"
            found = _line(where, line)
            action, key = found.get("action", run.action), found.get("key", run.key)
            yield Outgoing(where, found["body"], action, key, found.get("message_id"))


def _line(where: str, line: bytes) -> dict[str, str]:
    """One line of JSON, seen to be a message."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError too
        raise _no_message(where, f"it is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise _no_message(where, f"it is no object, but {type(found).__name__}")
    for name, value in found.items():
        if name not in KEYS:
            near = get_close_matches(name, KEYS, 1)
            raise _no_message(where, f"it has the key {name!r}{f'; is {near[0]!r} meant?' if near else ''}")
        if not isinstance(value, str):
            raise _no_message(where, f"its {name} is no text, but {type(value).__name__}")
    if not found.get("body", "").strip():
        raise _no_message(where, "its body is empty" if "body" in found else "it has no body")
    return found


def _no_message(where: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{where} is no message: {why}",
        remedy=f'Each line: {{"body": "<order/>", "action": "urn:Submit"}}; there are the keys {", ".join(KEYS)}.',
    )


def _count(run: Run) -> int | None:
    if not run.is_jsonl:
        return len(run.files)
    if "-" in run.files:
        return None
    total = 0
    for name in run.files:
        with Path(name).open("rb") as file:
            total += sum(1 for _ in file)
    return total


# --- the work ---------------------------------------------------------------------------------------------------------


async def _send(source: Source, run: Run, resume: bool) -> None:
    from holdfast.endpoint.logs import configure_logs

    run.total = _count(run)
    try:
        async with asyncio.timeout(run.timeout):
            async with _opened(source):
                before = source.progress.outstanding
                async with progress(lambda: _look(run, before)):
                    configure_logs(run.logs[0], json=run.logs[1])
                    if resume:
                        source.resume()
                    if run.is_request:
                        await _request(source, run)
                    else:
                        await _store(source, run)
                    await _flush(source, run)
                    await source.close(END_PATIENCE)
    except NotAcknowledged:
        raise
    except TimeoutError:
        raise NotAcknowledged(
            f"not done within {run.timeout:g} s; {_so_far(run)}{_because(source)}", remedy=_how_to_go_on(run)
        ) from None


@contextlib.asynccontextmanager
async def _opened(source: Source) -> AsyncIterator[None]:
    await source.open()
    try:
        yield
    finally:
        await source.close(0.0)


async def _batches(run: Run) -> AsyncIterator[list[Outgoing]]:
    """The messages, many at a time; read in a thread, which an interrupted program does not wait for."""
    loop = asyncio.get_running_loop()
    messages = _outgoing(run)

    def read(answer: asyncio.Future[list[Outgoing]]) -> None:
        try:
            done = partial(answer.set_result, list(islice(messages, TOGETHER)))
        except HoldfastError as error:
            done = partial(answer.set_exception, error)
        with contextlib.suppress(RuntimeError):  # interrupted: the loop is closed
            loop.call_soon_threadsafe(lambda: answer.cancelled() or done())

    while True:
        answer: asyncio.Future[list[Outgoing]] = loop.create_future()
        threading.Thread(target=read, args=(answer,), daemon=True).start()
        some = await answer
        if not some:
            return
        yield some


async def _each(run: Run, take: Callable[[Outgoing], Any]) -> AsyncIterator[list[Any]]:
    """Give every message to ``take``, many at a time; what it returned for them."""
    async for some in _batches(run):
        run.unstored = some[0].name
        results = await asyncio.gather(*(take(message) for message in some), return_exceptions=True)
        for message, result in zip(some, results, strict=True):
            if isinstance(result, EnvelopeError):
                raise ConfigurationError(
                    f"{message.name} cannot be sent: {result.message}; {_so_far(run)}",
                    remedy=result.remedy or "Put it right, and send it and what follows it again.",
                ) from result
            if isinstance(result, PeerFault):
                raise PeerFault(
                    f"the service answered {message.name} with a fault: {result.message}",
                    code=result.code,
                    detail=result.detail,
                    remedy=result.remedy,
                ) from result
            if isinstance(result, BaseException):
                raise result
        yield results
    run.unstored = ""


async def _store(source: Source, run: Run) -> None:
    async def take(message: Outgoing) -> None:
        try:
            await source.send(
                message.body, action=message.action, sequence_key=message.key, message_id=message.message_id
            )
        except (EnvelopeError, StoreError):
            raise
        except HoldfastError as error:  # that key is stopped; the others are not
            run.refused.setdefault(message.key, (error, []))[1].append(message.name)

    async for _ in _each(run, take):
        pass


async def _flush(source: Source, run: Run) -> None:
    """Wait for all that is stored; then tell of the first key that takes nothing."""
    try:
        await source.flush()
    except HoldfastError:
        _raise_refused(run)
        raise
    _raise_refused(run)
    declined = source.progress.declined
    if declined:
        raise DeliveryError(
            f"the service sent faults for {declined:,} of the messages, which its RM Destination acknowledged",
            remedy='The log names them ("refused by the service"). They are not in the store any more: send them again '
            "when the reason is mended.",
        )


def _raise_refused(run: Run) -> None:
    for key, (error, names) in run.refused.items():
        error.message += f"; {len(names):,} more with the key {key!r} were not stored, from {names[0]} on"
        raise error


async def _request(source: Source, run: Run) -> None:
    async def take(message: Outgoing) -> Reply:
        reply = await source.request(
            message.body,
            action=message.action,
            sequence_key=message.key,
            message_id=message.message_id,
            timeout=None,
        )
        return reply

    async for replies in _each(run, take):
        for reply in replies:
            click.echo(reply.body_bytes)
            reply.done()


# --- what is told -----------------------------------------------------------------------------------------------------


def _look(run: Run, before: int) -> Shown:
    assert run.source is not None
    seen = run.source.progress
    stored = f"{seen.stored:,}/{run.total:,}" if run.total is not None else f"{seen.stored:,}"
    before_text = f"{before:,} from before, " if before or not run.files else ""
    text = f"{before_text}{f'{stored} stored, ' if run.files else ''}{seen.acknowledged:,} acknowledged, "
    text += f"{seen.resent:,} resent"
    if seen.declined:
        text += f", {seen.declined:,} refused by the service"
    if seen.problem:
        text += f"; {seen.problem}"
    total = before + run.total if run.total is not None else None
    return Shown(text, seen.acknowledged, total)


def _counts(source: Source) -> dict[str, int]:
    seen = source.progress
    return {"stored": seen.stored, "acknowledged": seen.acknowledged, "resent": seen.resent}


def _so_far(run: Run) -> str:
    assert run.source is not None
    seen = run.source.progress
    return f"{seen.stored:,} stored, {seen.acknowledged:,} acknowledged"


def _because(source: Source) -> str:
    return f"; {source.progress.problem}" if source.progress.problem else ""


def _how_to_go_on(run: Run) -> str:
    from holdfast.store import IN_MEMORY, shown

    assert run.source is not None
    waiting = run.source.progress.outstanding
    messages = f"{waiting:,} unacknowledged message{'s are' if waiting != 1 else ' is'}"
    if not waiting:
        remedy = "Nothing is waiting."
    elif run.store == IN_MEMORY:
        remedy = f"{messages} lost with the store in memory. Name a directory with --store to keep what has to wait."
    else:
        remedy = f"{messages} safe in {shown(run.store)}. To go on: holdfast send --resume --store {shown(run.store)}"
    if run.unstored:
        remedy += f"\n  Look from {run.unstored} on: what is not stored is to be sent again."
    return remedy
