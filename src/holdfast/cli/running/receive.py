"""``holdfast receive``: a Destination for whatever comes, into files, JSON lines or a queue for a reader."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.program import log_options, run_loop, wrong_usage
from holdfast.cli.progress import Shown, progress
from holdfast.cli.running.landing_place import Directory, Lines
from holdfast.cli.running.serve import listen_options, make_service, queue_options, run_service, to_journal
from holdfast.client.option_types import Count

if TYPE_CHECKING:
    from holdfast.endpoint.destination.destination import Destination
    from holdfast.endpoint.destination.running_destination import RunningDestination
    from holdfast.endpoint.serve import Service

END_PATIENCE = 5.0
"""Seconds that sources have to end their Sequences once ``--count`` is reached."""
LOOK_EVERY = 0.05


@click.command()
@listen_options
@click.option(
    "--store", default="inbox", show_default=True, help="Directory or database URL of the store, or :memory:."
)
@click.option("--out", type=click.Path(path_type=Path), help="Write each body to a file there: SEQUENCE-NUMBER.xml.")
@click.option("--jsonl", type=click.Path(path_type=Path), help="Append each message to this file as a line of JSON.")
@click.option(
    "--assurance",
    default="exactly-once in-order",
    show_default=True,
    help="at-most-once, at-least-once or exactly-once, with or without in-order.",
)
@click.option("--count", type=Count(), help="End when so many messages have been received.")
@queue_options
@log_options("warning")
def receive(
    store: str,
    out: Path | None,
    jsonl: Path | None,
    assurance: str,
    count: int | None,
    retention: str | None,
    restored: bool,
    journal: str | None,
    log_level: str,
    log_json: bool,
    **where: Any,
) -> None:
    """Receive messages with any action. Write each body to a file, or each message as a line of JSON.

    \b
    holdfast receive --port 8080 --store inbox --out landed
    holdfast receive --store inbox --jsonl orders.jsonl --count 1000

    A message is acknowledged as soon as it is durable in the store, and written to its file soon after. If the command
    is killed, it continues at the next start, and it retries failed writes until they succeed. Written messages are
    deleted from the store, unless another reader has ever read them.

    With neither --out nor --jsonl, messages stay in the store's queue `inbox` for seven days, or as long as --retention
    says. Readers such as `holdfast land` read them through --admin.
    """
    if out is not None and jsonl is not None:
        raise click.UsageError("--out and --jsonl exclude each other.")
    from holdfast.core.handling.handler_cursor import HandlingPolicy
    from holdfast.endpoint.destination.destination import Destination

    with wrong_usage():
        # What cannot be written, as on a full disk, waits in the store until it can.
        app = Destination(store, assurance=assurance, handling=HandlingPolicy(attempts=None))
        app.keep(retention, restored=restored, journal=to_journal(journal))
    place = Directory(out) if out is not None else Lines(jsonl) if jsonl is not None else None
    if place is not None:
        app.on()(place.take)
    service = make_service(app, **where)
    note = ""
    if place is None:
        from holdfast.store import shown

        note = f"messages stay in the queue of {shown(store)}, for a reader (--out or --jsonl take them out)"
    try:
        run_loop(_receive(app, service, count, note, (log_level, log_json)))
    finally:
        if place is not None:
            place.close()


async def _receive(app: Destination, service: Service, count: int | None, note: str, logs: tuple[str, bool]) -> None:
    from holdfast.endpoint.logs import configure_logs

    stop = asyncio.Event()
    waiting: list[asyncio.Task[None]] = []
    running: RunningDestination | None = None

    def ready() -> None:
        nonlocal running
        running = app.running
        if note:
            click.echo(note, err=True)
        if count is not None:
            waiting.append(asyncio.ensure_future(_stop_after(running, count, stop)))

    async with progress(lambda: _look(running, count)):
        configure_logs(logs[0], json=logs[1])
        try:
            await run_service(service, stop, ready)
        finally:
            for task in waiting:
                task.cancel()


def _received(running: RunningDestination) -> int:
    return running.dispatcher.handling.succeeded if running.dispatcher is not None else running.accepted


def _look(running: RunningDestination | None, count: int | None) -> Shown:
    if running is None:
        return Shown("", 0, count)
    received, duplicates = _received(running), running.incidents["message.duplicate_dropped"]
    failed = running.dispatcher.handling.failed if running.dispatcher is not None else 0
    total = f"{received:,}/{count:,}" if count is not None else f"{received:,}"
    text = f"{total} received, {duplicates:,} duplicates dropped"
    return Shown(f"{text}, {failed:,} attempts to write failed" if failed else text, received, count)


async def _stop_after(running: RunningDestination, count: int, stop: asyncio.Event) -> None:
    while _received(running) < count:
        await asyncio.sleep(LOOK_EVERY)
    # The acknowledgements are on their way. A source that then ends its Sequence must still find the listener here.
    inbound = running.engine.protocol.inbound
    try:
        async with asyncio.timeout(END_PATIENCE):
            while not all(one.is_over for one in inbound.destinations.values()):
                await asyncio.sleep(LOOK_EVERY)
    except TimeoutError:
        pass
    stop.set()
