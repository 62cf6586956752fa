"""``holdfast outbox``: what waits to be sent, in a store or at a running server."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.inspection.operations import ListedNoun, quoted
from holdfast.cli.tables import (
    admin_and_rest,
    admin_option,
    age_text,
    json_option,
    print_one,
    print_table,
    size_text,
)
from holdfast.client.option_types import Count
from holdfast.client.terminal_text import LINES, shown
from holdfast.exceptions import ConfigurationError, counted

if TYPE_CHECKING:
    from holdfast.client.admin_client import AdminClient

COLUMNS = ("message", "action", "message id", "state", "number", "bytes", "age")
LIMIT = 1000


@click.group(cls=ListedNoun)
def outbox() -> None:
    """Show unacknowledged messages; retry stopped ones, or discard a message.

    \b
    holdfast outbox outbox
    holdfast outbox list --admin http://127.0.0.1:8081
    holdfast outbox show outbox 3
    holdfast outbox discard outbox orders/17 --yes
    holdfast outbox retry outbox

    They are in STORE, the directory of a source's store that no process has open, or with --admin at a running server.
    `list` and `show` also work on a store that a process has open. MESSAGE is the message's place as `list` shows it:
    KEY/OFFSET, or the offset alone if the key is empty. Without a sub-command, `list` runs.
    """


@outbox.command(name="list")
@click.argument("store", required=False)
@click.option("--limit", type=Count(1, LIMIT), default=LIMIT, show_default=True, help="Maximum number of messages.")
@admin_option
@json_option
def list_(store: str | None, limit: int, admin: str | None, as_json: bool) -> None:
    """List the unacknowledged messages of STORE by key, oldest first.

    \b
    holdfast outbox list outbox
    holdfast outbox list --admin http://127.0.0.1:8081 --json

    `state` is `waiting` for messages that were never sent, and `sent` for messages that were sent, or may have been
    before a restart. The last line counts the messages of transactions, `send(…, connection=…)`, that the source has
    not put into its outbox yet.
    """
    client, _ = admin_and_rest((store,), admin)
    answer = client.ask(f"outbox?limit={limit}")
    shown, count = client.listed(answer, "messages"), int(answer.get("count", 0))
    enqueued = answer.get("enqueued")
    if as_json:
        click.echo(json.dumps({"messages": shown, "count": count, "enqueued": enqueued}, indent=2))
    elif shown:
        print_table(COLUMNS, [_row(one, time.time()) for one in shown], right=("number", "bytes", "age"))
        if count > len(shown):
            click.echo(f"The total is {count:,}; these are the first.", err=True)
    elif not enqueued:
        click.echo(f"No message is waiting in {client.place}.")
    if enqueued and not as_json:
        told = counted(enqueued, "committed message waits", "committed messages wait")
        click.echo(f"{told} in holdfast_outgoing of {client.place} until the source is open.")


@outbox.command()
@click.argument("store", required=False, metavar="[STORE]")
@click.argument("message", required=False, metavar="MESSAGE")
@admin_option
@json_option
def show(store: str | None, message: str | None, admin: str | None, as_json: bool) -> None:
    """Show one message in full.

    \b
    holdfast outbox show outbox orders/17
    holdfast outbox show --admin http://127.0.0.1:8081 3 --json
    """
    client, name = _one_message(store, message, admin)
    one = client.ask(f"outbox/{quoted(name)}")
    if as_json:
        click.echo(json.dumps(one, indent=2))
        return
    texts = [(part, str(one.pop(part, ""))) for part in ("headers", "body")]
    one["age"] = max(0.0, time.time() - float(one.pop("stored_at")))
    print_one(one)
    for part, text in texts:
        click.echo(f"\n{part}:\n{shown(text, keep=LINES)}" if text else f"\n{part}: none")


@outbox.command()
@click.argument("store", required=False, metavar="[STORE]")
@click.argument("message", required=False, metavar="MESSAGE")
@click.option("--yes", is_flag=True, help="Discard it. Without --yes, the command only shows the consequences.")
@admin_option
@json_option
def discard(store: str | None, message: str | None, yes: bool, admin: str | None, as_json: bool) -> None:
    """Discard a message: it is not sent, and the messages after it can proceed.

    \b
    holdfast outbox discard outbox orders/17
    holdfast outbox discard outbox orders/17 --yes

    The command skips a message that never left. If the message left or may have left, the command cannot skip its
    number, so its Sequence ends as well. Acknowledged messages of that Sequence are not sent again. Messages that were
    sent without an acknowledgement may have arrived: they are sent again in a new Sequence, but only after `holdfast
    outbox retry`.

    The requester of a forwarded request receives a fault, unless another forwarder still has to send that request.
    """
    client, name = _one_message(store, message, admin)
    if not yes:
        one = client.ask(f"outbox/{quoted(name)}")
        means = (
            "It was never sent, so no other message is affected."
            if one["state"] == "waiting"
            else _what_it_means(int(one["in_doubt"] or 0))
        )
        raise ConfigurationError(f"the message {name} is not discarded yet\n  {means}", remedy="To confirm, add --yes.")
    answer = client.ask(f"outbox/{quoted(name)}/discard", "POST")
    in_doubt, count = int(answer["in_doubt"]), answer["count"]
    if as_json:
        click.echo(json.dumps({"discarded": 1, "in_doubt": in_doubt, "count": count}))
    else:
        click.echo(f"The message {name} is discarded. {(_what_it_means(in_doubt) if in_doubt else '')}".rstrip())


def _what_it_means(in_doubt: int) -> str:
    if not in_doubt:
        return "It was sent, or may have been, and may have arrived. Its Sequence ends with it."
    return (
        f"Its Sequence ends with it. {in_doubt:,} more messages of the Sequence may have arrived. To send them "
        "again: holdfast outbox retry"
    )


@outbox.command()
@click.argument("store", required=False)
@click.option(
    "--sequence-key",
    help="Only the messages with this key, as --json of list shows it.  [default: all stopped keys]",
)
@admin_option
@json_option
def retry(store: str | None, sequence_key: str | None, admin: str | None, as_json: bool) -> None:
    """Retry stopped messages: a running server does so at once, a store when it is next opened.

    A running server also sends the messages that wait for their next attempt.

    \b
    holdfast outbox retry outbox
    holdfast outbox retry --admin http://127.0.0.1:8081 --sequence-key to/http://partner.example/rm

    With exactly-once, this is a decision: some of the unacknowledged messages may have arrived.
    """
    client, _ = admin_and_rest((store,), admin)
    answer = client.ask("outbox/retry" + (f"?key={quoted(sequence_key)}" if sequence_key is not None else ""), "POST")
    done, count = int(answer["retried"]), answer["count"]
    if as_json:
        click.echo(json.dumps({"retried": done, "count": count}))
    else:
        when = "now" if client.is_running else f"when {client.place} is next opened"
        keys = "key resumes" if done == 1 else "keys resume"
        wait = "waits" if count == 1 else "wait"
        more = " and are sent now, without waiting for their next attempt" if client.is_running and not done else ""
        more = more.replace("are sent", "is sent").replace("their", "its") if count == 1 else more
        waiting = "" if count is None else f"; {counted(count, 'message')} {wait}{more if count else ''}"
        click.echo(f"{done:,} stopped {keys} {when}{waiting}.")


def _one_message(store: str | None, message: str | None, admin: str | None) -> tuple[AdminClient, str]:
    client, (name,) = admin_and_rest((store, message), admin)
    if name is None:
        raise click.UsageError("Give the place of the MESSAGE; holdfast outbox list shows the places.")
    return client, name


def _row(one: dict[str, Any], now: float) -> list[str]:
    return [
        str(one["message"]),
        str(one["action"]),
        str(one["message_id"] or ""),
        str(one["state"]) + (f", stopped: {one['stopped']}" if one["stopped"] else ""),
        str(one["number"] or ""),
        size_text(one),
        age_text(max(0.0, now - one["stored_at"])),
    ]
