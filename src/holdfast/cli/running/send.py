"""``holdfast send``: an RM Source for files, or for the unsent messages of an outbox."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from mimetypes import guess_type
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import click

from holdfast.cli.failure import failure_facts
from holdfast.cli.program import (
    log_options,
    peer_options,
    peer_options_given,
    run_interruptible,
    to_peers,
    wrong_usage,
)
from holdfast.cli.progress import Shown, progress
from holdfast.cli.running.message_files import Batch, MessageFiles, Outgoing
from holdfast.cli.running.operation_values import OperationValues, read_values
from holdfast.cli.running.printed_answers import PrintedAnswers
from holdfast.client.option_types import Seconds
from holdfast.core.sending.outboxes.peer_answers import RETRACTED_REMEDY
from holdfast.core.versions import RM_OF_NAME, SOAP, Addressing, newest_rm
from holdfast.exceptions import (
    ConfigurationError,
    DeliveryError,
    EnvelopeError,
    HoldfastError,
    NotAcknowledged,
    PeerFault,
    StoreError,
    clause,
    counted,
)

if TYPE_CHECKING:
    from holdfast.core.versions import Versions
    from holdfast.endpoint.envelopes.attachments import Attachment
    from holdfast.endpoint.source.http_settings import SourceHTTP
    from holdfast.endpoint.source.replies import Reply
    from holdfast.endpoint.source.source import Source

T = TypeVar("T")
RESUME = "holdfast send --resume"
OPTIONS = {
    "headers": "--header",
    "username": "--username",
    "password_file": "--password-file",
    "password_digest": "--password-digest",
}
"""Parameter -> its option, which the store does not keep."""
ACTION = "urn:holdfast:message"


@dataclass
class Run:
    """The task of the command, and its progress.

    Args:
        total: Number of messages to store, None if it is unknown.
        unstored: Name of the first message that may not be stored.
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
    is_open: bool = False
    """Whether the store has been opened."""
    answers: PrintedAnswers = field(default_factory=PrintedAnswers)
    values: OperationValues | None = None
    """The operation that the files are values for; None if they are XML."""
    operation: tuple[str, ...] = ()
    """The options that name it."""
    logs: tuple[str, bool] = ("warning", False)
    attachments: tuple[Attachment, ...] = ()
    """Attached to every message."""
    refused: dict[str, tuple[HoldfastError, list[str]]] = field(default_factory=dict)
    """Sequence key -> why it is stopped, and the messages with that key that were not stored."""

    def __post_init__(self) -> None:
        self.ends_at = None if self.timeout is None else time.monotonic() + self.timeout

    @property
    def left(self) -> float:
        """The seconds until the end of the timeout."""
        assert self.ends_at is not None
        return max(0.001, self.ends_at - time.monotonic())

    @property
    def messages(self) -> MessageFiles:
        is_alone = bool(self.attachments)
        return MessageFiles(self.files, self.is_jsonl, self.action, self.key, self.values, is_alone)


@click.command()
@click.argument("files", nargs=-1, metavar="[FILES]... | -")
@click.option(
    "--to", metavar="URL", help="URL of the destination. With --resume, the store has it. Stored messages keep it."
)
@click.option("--wsdl", metavar="URL|FILE", help="The service's WSDL, which gives the address and the versions.")
@click.option("--port", metavar="NAME", help="The wsdl:port to use, if the WSDL has several.")
@click.option(
    "--store", default="outbox", show_default=True, help="Directory or database URL of the store, or :memory:."
)
@click.option("--action", default=ACTION, show_default=True, metavar="URI", help="wsa:Action of each message.")
@click.option("--key", default="", help="Messages with the same key share a Sequence and keep its order.")
@click.option("--operation", metavar="NAME", help="FILES are JSON objects: the values of this operation of the --wsdl.")
@click.option("--resume", is_flag=True, help="Send the messages in the store, even if sending had stopped.")
@click.option(
    "--request",
    "is_request",
    is_flag=True,
    help="Wait for replies and print their bodies. With --resume, also those in the store.",
)
@click.option(
    "--jsonl",
    "is_jsonl",
    is_flag=True,
    help='Each line of FILES is a message: {"body": "<a/>", "action": …, "key": …}; or with --operation, its values.',
)
@click.option("--timeout", type=Seconds(), help="Seconds for the whole command.  [default: no limit]")
@click.option("--rm", type=click.Choice([*RM_OF_NAME]), help="WS-RM version.  [default: detected]")
@click.option("--addressing", type=click.Choice([one.value for one in Addressing]), help="WS-Addressing version.")
@click.option("--soap", type=click.Choice([one.value for one in SOAP]), help="SOAP version.")
@click.option("--profile", type=click.Choice(["wcf", "wcf-2007", "cxf"]), help="The versions of a known peer.")
@click.option("--assurance", help="Delivery assurance.  [default: the WSDL's, else exactly-once in-order]")
@click.option(
    "--poll",
    is_flag=True,
    help="Poll for late replies and acknowledgements, as MakeConnection of the destination allows.",
)
@click.option(
    "--attach", multiple=True, metavar="FILE", help="Attach this file to every message; its name is the Content-ID."
)
@click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="HTTP header for every request.")
@click.option("--username", metavar="NAME", help="User name for WS-Security; needs --password-file.")
@click.option("--password-file", metavar="FILE", help="File with the password of --username in its first line.")
@click.option("--password-digest", is_flag=True, help="Send a digest of the password instead of the password.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON at the end.")
@peer_options
@log_options("critical")
def send(
    files: tuple[str, ...],
    to: str | None,
    wsdl: str | None,
    port: str | None,
    operation: str | None,
    resume: bool,
    rm: str | None,
    addressing: str | None,
    soap: str | None,
    profile: str | None,
    assurance: str | None,
    headers: tuple[str, ...],
    username: str | None,
    password_file: str | None,
    password_digest: bool,
    attach: tuple[str, ...],
    poll: bool,
    log_level: str,
    log_json: bool,
    **what: Any,
) -> None:
    """Send FILES, each an XML element, in one Sequence. Ends when the destination has acknowledged them all.

    \b
    holdfast send --to http://localhost:8080/ orders/*.xml
    echo "<ping/>" | holdfast send --to http://localhost:8080/ --action urn:Ping --request -
    holdfast send --wsdl 'https://partner.example/Orders.svc?wsdl' --action urn:orders/Submit orders/*.xml
    holdfast send --wsdl 'https://partner.example/Orders.svc?wsdl' --operation SubmitOrder order.json
    holdfast send --to http://localhost:8080/ --attach photo.png claim.xml

    A message with attachments leaves in MTOM if its XML refers to them: <xop:Include href="cid:photo.png"/>. Otherwise
    it leaves as SOAP with Attachments.

    Every message is durable in the store before it is transmitted. If the command is interrupted, killed or refused,
    no stored message is lost. To continue:

    \b
    holdfast send --resume --store outbox

    Stored messages keep the URL that they were stored for. If it was wrong, send the files again to the right URL with
    another --store, and discard the messages of the first one with `holdfast outbox discard`. A store without messages
    accepts another URL.
    """
    _check_usage(files, to or wsdl, resume)
    _check_wsdl_usage(wsdl, port, operation, what["action"])
    from holdfast.endpoint.source.http_settings import SourceHTTP

    run = Run(files, logs=(log_level, log_json), attachments=_attachments(attach), **what)
    peers = to_peers()
    with wrong_usage():
        versions = _versions(rm, addressing, soap, profile)
        http = SourceHTTP(headers=parse_headers(headers), poll=poll or None, **peers)
    options = {"versions": versions, "profile": profile, "assurance": assurance, "http": http}
    options |= _credentials(username, password_file, password_digest)
    try:
        if run.ends_at is not None:
            # A thread that loads a document cannot be stopped, so it must end soon after the command.
            http = replace(http, timeout=min(http.timeout, run.left + 1.0))
            options["http"] = http
        if operation is not None:
            _load_operation(run, str(wsdl), port, operation, http)
        run.source = _source(to, wsdl, port, run, options)
        with _options_of_resume():
            run_interruptible(_send(run.source, run, resume))
    except KeyboardInterrupt:
        if run.source is None:
            raise
        with _options_of_resume():
            raise DeliveryError(f"interrupted; {_so_far(run)}", remedy=_how_to_go_on(run)) from None
    finally:
        if run.source is not None:
            failure_facts().more |= _counts(run.source) | {"outstanding": run.source.progress.outstanding}
    if run.as_json:
        click.echo(json.dumps(_counts(run.source)))


def _source(to: str | None, wsdl: str | None, port: str | None, run: Run, options: dict[str, Any]) -> Source:
    from holdfast.endpoint.source.source import Source

    if wsdl is None:
        with wrong_usage():
            return Source(to, run.store, **options)
    return _loaded(Source.from_wsdl(wsdl, run.store, port=port, to=to, **options), wsdl, run)


def _load_operation(run: Run, wsdl: str, port: str | None, operation: str, http: SourceHTTP) -> None:
    """Let a run read and print the values of an operation of the WSDL, instead of bodies."""
    run.values = run.answers.values = _loaded(asyncio.to_thread(read_values, wsdl, port, operation, http), wsdl, run)
    run.is_request = not run.values.is_one_way
    run.operation = ("--wsdl", wsdl, *(("--port", port) if port else ()), "--operation", operation)


def _loaded(loading: Coroutine[Any, Any, T], wsdl: str, run: Run) -> T:
    """Return the result of loading a WSDL, within the command's time."""
    try:
        return run_interruptible(asyncio.wait_for(loading, run.left if run.ends_at is not None else None))
    except TimeoutError:
        raise NotAcknowledged(
            f"not done within {run.timeout:g} s: the WSDL {wsdl} was not loaded, and no message was stored",
            remedy="Run the command again with a longer --timeout, or with --to instead of --wsdl.",
        ) from None


def _check_usage(files: tuple[str, ...], to: str | None, resume: bool) -> None:
    if not files and not resume:
        raise click.UsageError(
            "Name the files to send, - for standard input, or --resume to send the messages in the store."
        )
    if to is None and not resume:
        raise click.UsageError("Name the destination with --to URL or --wsdl URL.")
    for name in files:
        if name != "-" and not Path(name).is_file():
            raise click.UsageError(f"There is no file {name!r}.")


def _check_wsdl_usage(wsdl: str | None, port: str | None, operation: str | None, action: str) -> None:
    if port is not None and wsdl is None:
        raise click.UsageError("--port names a port of the --wsdl.")
    if operation is not None and wsdl is None:
        raise click.UsageError("--operation names an operation of the --wsdl.")
    if operation is not None and action != ACTION:
        raise click.UsageError("The WSDL has the action of the --operation; omit --action.")


def _versions(rm: str | None, addressing: str | None, soap: str | None, profile: str | None) -> Versions | None:
    from holdfast.core.versions import Versions

    if rm is None and addressing is None and soap is None:
        return None
    if profile is not None:
        raise click.UsageError("--profile sets the versions; omit --rm, --addressing and --soap.")
    return Versions(rm or newest_rm(addressing), addressing, soap or "1.2")


def _credentials(username: str | None, password_file: str | None, digest: bool) -> dict[str, Any]:
    """Return the options of a source that sends a user name and its password."""
    from holdfast.security.username_token import UsernameToken

    if username is None and password_file is None and not digest:
        return {}
    if username is None or password_file is None:
        raise click.UsageError("Name both --username and --password-file; --password-digest needs them too.")
    try:
        lines = Path(password_file).read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--password-file {password_file!r} cannot be read: {error}") from None
    if not lines or not lines[0]:
        raise click.UsageError(f"--password-file {password_file!r} has no password in its first line.")
    if not username:
        raise click.UsageError("--username is empty.")
    with wrong_usage():
        return {"processors": [UsernameToken(username, lines[0], digest=digest)]}


def _attachments(names: tuple[str, ...]) -> tuple[Attachment, ...]:
    from holdfast.cli.running.line_attachments import readable_file
    from holdfast.endpoint.envelopes.attachments import DEFAULT_MEDIA_TYPE, Attachment

    found = []
    for name in names:
        try:
            path = readable_file(name)
        except OSError as error:
            raise click.UsageError(f"--attach {name!r} cannot be read: {error.strerror}") from None
        with wrong_usage():
            media_type = guess_type(path.name)[0] or DEFAULT_MEDIA_TYPE
            found.append(Attachment(path, media_type, quote(path.name, safe="")))
    return tuple(found)


def parse_headers(texts: tuple[str, ...]) -> dict[str, str]:
    headers = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise click.UsageError(f"--header {text!r} is not 'Name: value'.")
        headers[name.strip()] = value.strip()
    return headers


# --- the work ---------------------------------------------------------------------------------------------------------


async def _send(source: Source, run: Run, resume: bool) -> None:
    from holdfast.endpoint.logs import configure_logs

    level, as_json = run.logs
    # Until the store is open, no progress shows that the command waits for a database.
    configure_logs("warning" if level in ("error", "critical") else level, json=as_json)
    run.total = run.messages.count()
    try:
        async with asyncio.timeout(run.left if run.ends_at is not None else None):
            async with source:  # its end confirms the replies that are printed, if there is no error
                run.is_open = True
                before = source.progress.outstanding
                async with progress(lambda: _look(run, before)):
                    configure_logs(level, json=as_json)
                    if resume:
                        source.resume()
                    if run.is_request:
                        await _request(source, run)
                    else:
                        await _store(source, run)
                    try:
                        await _flush(source, run)
                    finally:
                        if resume:
                            await _stored_replies(source, run)
        if source.progress.retracted:  # perhaps by the last acknowledgement, at the end of the Sequence
            raise DeliveryError(source.progress.retracted, remedy=RETRACTED_REMEDY)
        run.answers.raise_faults()
    except NotAcknowledged:
        raise
    except TimeoutError:
        raise NotAcknowledged(
            f"not done within {run.timeout:g} s; {_so_far(run)}{_because(source)}", remedy=_how_to_go_on(run)
        ) from None


async def _batches(run: Run) -> AsyncIterator[Batch]:
    """The messages in batches, read in a thread that an interrupted program does not wait for."""
    loop = asyncio.get_running_loop()
    batches = run.messages.batches()

    def read(answer: asyncio.Future[Batch | None]) -> None:
        done = partial(answer.set_result, next(batches, None))
        with contextlib.suppress(RuntimeError):  # interrupted: the loop is closed
            loop.call_soon_threadsafe(lambda: answer.cancelled() or done())

    while True:
        answer: asyncio.Future[Batch | None] = loop.create_future()
        threading.Thread(target=read, args=(answer,), daemon=True).start()
        batch = await answer
        if batch is None:
            return
        yield batch


async def _each(run: Run, take: Callable[[Outgoing], Any], use: Callable[[Any], None]) -> None:
    """Give every message to ``take``, a batch at a time, and its result to ``use``, in the order of the messages.

    An error of one message is raised once the results of its batch are used.
    """
    async for some, problem in _batches(run):
        failed: HoldfastError | None = None
        run.unstored = some[0].name if some else ""
        run.answers.begun += len(some)
        tasks = [asyncio.ensure_future(take(message)) for message in some]
        try:
            for message, task in zip(some, tasks, strict=True):
                try:
                    result = await task
                except PeerFault as fault:
                    run.answers.fault(message.name, fault)
                except EnvelopeError as error:
                    problem = ConfigurationError(
                        f"{message.name} cannot be sent: {clause(error.message)}", remedy=error.remedy
                    )
                except HoldfastError as error:
                    failed = failed or error
                else:
                    use(result)
        finally:
            for task in tasks:
                task.cancel()
        if failed is not None:
            raise failed
        run.unstored = ""
        if problem is not None:
            raise _not_sent(run, problem) from problem


def _not_sent(run: Run, problem: HoldfastError) -> ConfigurationError:
    """Return the error for a message that cannot be sent: those before it are stored, it and those after it are not."""
    end = "" if problem.remedy.endswith((".", "?", ":")) else "."
    remedy = f"{problem.remedy}{end} " if problem.remedy else ""
    remedy += "Neither this message nor any after it is stored. Correct it, then send them"
    if run.source is not None and run.source.progress.outstanding:
        remedy += f"; do not send the messages before it again.\n  {_how_to_go_on(run)}"
    else:
        remedy += "."
    return ConfigurationError(f"{clause(problem.message)}; {_so_far(run)}", remedy=remedy)


async def _store(source: Source, run: Run) -> None:
    async def take(message: Outgoing) -> None:
        try:
            await source.send(message.body, **message.fields(run.attachments))
        except (EnvelopeError, StoreError):
            raise
        except HoldfastError as error:  # that key is stopped; the others are not
            run.refused.setdefault(message.key, (error, []))[1].append(message.name)

    await _each(run, take, lambda _result: None)


async def _flush(source: Source, run: Run) -> None:
    """Wait until every stored message is acknowledged; then raise for the first key that is stopped."""
    try:
        await source.flush()
    except HoldfastError:
        _raise_refused(run)
        raise
    _raise_refused(run)
    declined = source.progress.declined
    if declined:
        raise DeliveryError(
            f"the service returned faults for {counted(declined, 'message')} that its RM Destination had acknowledged",
            remedy='The log names them ("message.refused_by_service"). They are no longer in the store: fix the '
            "cause, then send them again.",
        )


def _raise_refused(run: Run) -> None:
    for key, (error, names) in run.refused.items():
        error.message += f"; {len(names):,} more with the key {key!r} were not stored, beginning with {names[0]}"
        raise error


async def _request(source: Source, run: Run) -> None:
    async def take(message: Outgoing) -> Reply:
        return await source.request(message.body, **message.fields(run.attachments), timeout=None)

    await _each(run, take, run.answers.reply)


async def _stored_replies(source: Source, run: Run) -> None:
    """Print the replies in the store that no command has printed; without --request, say that there are some."""
    stored = source.unconfirmed()
    if stored and not run.is_request:
        click.echo(
            f"{counted(len(stored), 'reply is', 'replies are')} in the store. To print and delete: "
            f"{_resume_command(run, '--request')}",
            err=True,
        )
        return
    for message_id in stored:
        try:
            run.answers.reply(await source.reply(message_id))
        except PeerFault as fault:
            run.answers.fault(f"the request {message_id}", fault)


# --- output -----------------------------------------------------------------------------------------------------------


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
    if seen.retracted and seen.retracted != seen.problem:
        text += f"; {seen.retracted}"
    total = before + run.total if run.total is not None else None
    return Shown(text, seen.acknowledged, total)


def _counts(source: Source) -> dict[str, int]:
    seen = source.progress
    return {"stored": seen.stored, "acknowledged": seen.acknowledged, "resent": seen.resent}


def _so_far(run: Run) -> str:
    from holdfast.store import shown

    assert run.source is not None
    seen = run.source.progress
    counts = f"{seen.stored:,} stored, {seen.acknowledged:,} acknowledged"
    return counts if run.is_open else f"{counts}: {shown(run.store)} is not open yet"


def _because(source: Source) -> str:
    return f"; {source.progress.problem}" if source.progress.problem else ""


@contextlib.contextmanager
def _options_of_resume() -> Iterator[None]:
    """Name the connection options of this command in the remedy of an error that says how to resume. A value, which may
    be secret, is not shown."""
    try:
        yield
    except HoldfastError as error:
        context = click.get_current_context()
        given = [*peer_options_given(), *(option for name, option in OPTIONS.items() if context.params.get(name))]
        if given and RESUME in error.remedy:
            error.remedy += f"\n  Resume with the same {', '.join(given)}."
        raise


def _resume_command(run: Run, *more: str) -> str:
    from holdfast.store import shown

    if run.is_request:
        more = run.operation or ("--request",)
    return shlex.join([*RESUME.split(), *more, "--store", shown(run.store)])


def _how_to_go_on(run: Run) -> str:
    from holdfast.store import IN_MEMORY, shown

    assert run.source is not None
    waiting = run.source.progress.outstanding
    messages = counted(waiting, "unacknowledged message is", "unacknowledged messages are")
    to_continue = f"To continue: {_resume_command(run)}"
    if not run.is_open:
        remedy = "This command has stored no message, and those of earlier commands stay in the store. "
        remedy += "Check that the store can be opened. "
        remedy += "Then run the command again." if run.files else to_continue
    elif not waiting and run.is_request and run.store != IN_MEMORY:
        remedy = f"Replies that are not printed are safe in {shown(run.store)}. {to_continue}"
    elif not waiting:
        remedy = "No message is waiting."
    elif run.store == IN_MEMORY:
        remedy = (
            f"{messages} lost with the store in memory. To keep unacknowledged messages, name a directory with --store."
        )
    else:
        remedy = f"{messages} safe in {shown(run.store)}. {to_continue}"
    if run.unstored and run.source.progress.stored < run.answers.begun:
        remedy += f"\n  Messages from {run.unstored} on may not be stored: check them, and send the missing ones again."
    return remedy
