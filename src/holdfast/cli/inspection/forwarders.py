"""``holdfast forwarders``: the forwarders of a running server: show, suspend, resume, move and delete them."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.inspection.idle_partitions import all_option, folded
from holdfast.cli.inspection.operations import (
    Noun,
    confirm,
    move,
    place_options,
    quoted,
    reason_option,
    steer_options,
    tell,
    yes_option,
)
from holdfast.cli.tables import age_text, print_table
from holdfast.exceptions import counted

if TYPE_CHECKING:
    from holdfast.client.admin_client import AdminClient

COLUMNS = ("forwarder", "queue", "partition", "to", "state", "waiting", "under way", "retracted", "sequence")
_Listed = tuple[dict[str, Any], list[str]]
"""A partition of a forwarder, and its row of the table."""


@click.group(cls=Noun)
def forwarders() -> None:
    """Show forwarders; suspend, resume, move, replay or delete one.

    \b
    holdfast forwarders --admin http://127.0.0.1:8081
    holdfast forwarders suspend --admin http://127.0.0.1:8081 partner --reason "moving house"
    holdfast forwarders replay --admin http://127.0.0.1:8081 partner --ago 2h

    Without a sub-command, `show` runs. A forwarder has one part for each partition of its queue: NAME selects all of
    them, KEY selects one, as --json shows it: forwarder/NAME/PARTITION. With workers and in a cluster, the column
    `partition` counts through all of them: with 128 partitions each, 430 is number 46 of worker or cluster partition 3
    (430 = 3 x 128 + 46), and its key is 3:forwarder/NAME/46. `holdfast outbox` has the same keys.
    """


@forwarders.command(short_help="List forwarders, or show one.")
@click.argument("name", required=False)
@all_option
@steer_options
def show(name: str | None, every: bool, admin: AdminClient, as_json: bool) -> None:
    """List the forwarders by partition, or show one.

    \b
    holdfast forwarders show --admin http://127.0.0.1:8081
    holdfast forwarders show --admin http://127.0.0.1:8081 partner --json

    `waiting` is the number of messages that the destination has not acknowledged, `under way` how many of them were
    sent and how many may be in flight. The `lag` in `holdfast queues` counts from the first of them, also those that
    were acknowledged after it. If the destination refuses a message, `state` names the first such message; --json lists
    up to ten, each with its Sequence. Otherwise, `state` shows what was wrong with the last response.

    `retracted` counts the messages that the destination acknowledged and later no longer did: it has lost them. The log
    names them (`acknowledgement.retracted`).

    The idle partitions of a forwarder, in which nothing waits, are combined in one row with their number, as in
    `holdfast queues`. Those in another state have another row.
    """
    found = (
        admin.all_of("forwarders", "forwarders")
        if name is None
        else admin.ask(f"forwarders/{quoted(name)}").get("forwarders", [])
    )
    if as_json:
        click.echo(json.dumps({"forwarders": found}, indent=2))
    elif found:
        now = time.time()
        rows = [(one, _row(one, now)) for one in sorted(found, key=_place)]
        if not every:
            rows = folded(rows, _idle, _one_row)
        print_table(COLUMNS, [row for _, row in rows], right=("partition", "waiting", "under way", "retracted"))
    else:
        click.echo(f"{admin.place} has no forwarders.")


def _place(one: dict[str, Any]) -> tuple[str, str, bool, int]:
    """Return the sort key of a partition: idle partitions follow the active ones of their forwarder."""
    return one["name"], one["queue"], not one["waiting"], one["partition"]


def _idle(one: _Listed) -> tuple[str, ...] | None:
    """Return what an idle partition has in common with others of its forwarder; None if messages wait in it."""
    name, queue, _partition, to, state, *_ = one[1]
    return None if one[0]["waiting"] else (name, queue, to, state)


def _one_row(idle: list[_Listed]) -> _Listed:
    name, queue, _partition, to, state, waiting, *_ = idle[0][1]
    retracted = sum(one.get("retracted", 0) for one, _ in idle)
    return {}, [name, queue, f"{len(idle):,} idle", to, state, waiting, "", f"{retracted:,}", ""]


def _row(one: dict[str, Any], now: float) -> list[str]:
    flight = one["flight"]
    why, state, circuit = one["stopped"] or one["suspended"], one["state"], one.get("circuit")
    if one.get("stopped_for"):
        why = f"{why}: {one['stopped_for']}"
    if state == "sending" and circuit is not None and circuit["open_for"] is not None:
        state, why = "destination away", circuit["reason"]
    elif state == "sending" and one.get("refused") is not None:
        state, why = "the destination grants no Sequence", one["refused"]
    elif state == "sending" and (refusals := one.get("refusals")):
        first = refusals[0]  # those behind it wait for it, where order is promised
        times, since = first["times"], age_text(max(0.0, now - first["since"]))
        state = f"offset {first['offset']} refused {times} times, first {since} ago"
        if first.get("final_at") is not None:
            left = age_text(max(0.0, first["final_at"] - now))
            state += f" (given up after {first['final_times']} times, in {left} at the earliest)"
        why = f"{first['code']}: {first['reason']} ({first['action'] or 'no action'})"
    elif state == "sending" and one["waiting"] and one.get("last_answer"):
        state, why = "sending, last response", one["last_answer"]
    return [
        one["name"],
        one["queue"],
        str(one["partition"]),
        one["to"] or "",
        state + (f": {why}" if why else ""),
        f"{one['waiting']:,}",
        f"{flight['in_flight']:,}/{flight['window']:,}" if flight else "",
        f"{one.get('retracted', 0):,}",
        one["sequence"] or "",
    ]


@forwarders.command(short_help="Suspend a forwarder.")
@click.argument("name")
@reason_option
@steer_options
def suspend(name: str, reason: str, admin: AdminClient, as_json: bool) -> None:
    """Suspend a forwarder until it is resumed, across restarts. New messages wait in its queue.

    \b
    holdfast forwarders suspend --admin http://127.0.0.1:8081 partner --reason "moving house"
    holdfast forwarders suspend --admin http://127.0.0.1:8081 forwarder/partner/0
    """
    tell(admin.steer(f"forwarders/{quoted(name)}/suspend", reason=reason), f"{name} is suspended.", as_json)


@forwarders.command(short_help="Resume a forwarder.")
@click.argument("name")
@steer_options
def resume(name: str, admin: AdminClient, as_json: bool) -> None:
    """Resume a suspended forwarder.

    \b
    holdfast forwarders resume --admin http://127.0.0.1:8081 partner
    holdfast forwarders resume --admin http://127.0.0.1:8081 partner --json

    A stopped forwarder needs a decision, because some of its messages may have arrived: `holdfast outbox retry`.
    """
    tell(admin.steer(f"forwarders/{quoted(name)}/resume"), f"{name} is resumed.", as_json)


@forwarders.command(short_help="Move a forwarder.")
@click.argument("name")
@place_options
@yes_option
@steer_options
def reset(name: str, where: dict[str, Any], yes: bool, admin: AdminClient, as_json: bool) -> None:
    """Move a forwarder forward or back. It skips messages, or sends messages again in a new Sequence.

    \b
    holdfast forwarders reset --admin http://127.0.0.1:8081 partner --to latest
    holdfast forwarders reset --admin http://127.0.0.1:8081 partner --partition 0 --offset 1200 --yes

    The command first shows how many messages it would skip or send again.
    """
    move(admin, f"forwarders/{quoted(name)}", name, where, "send", yes=yes, as_json=as_json)


@forwarders.command(short_help="Send messages again.")
@click.argument("name")
@place_options
@yes_option
@steer_options
def replay(name: str, where: dict[str, Any], yes: bool, admin: AdminClient, as_json: bool) -> None:
    """Send all messages from a position again, if they are still in the queue.

    \b
    holdfast forwarders replay --admin http://127.0.0.1:8081 partner --ago 2h
    holdfast forwarders replay --admin http://127.0.0.1:8081 partner --to earliest --yes

    The command first shows how many. The forwarder sends them in a new Sequence, so the destination cannot recognise
    them as duplicates.
    """
    move(admin, f"forwarders/{quoted(name)}", name, where, "send", yes=yes, as_json=as_json)


@forwarders.command(short_help="Forget a forwarder.")
@click.argument("name")
@yes_option
@steer_options
def delete(name: str, yes: bool, admin: AdminClient, as_json: bool) -> None:
    """Delete a forwarder that you removed from the configuration.

    \b
    holdfast forwarders delete --admin http://127.0.0.1:8081 partner
    holdfast forwarders delete --admin http://127.0.0.1:8081 partner --yes --json

    Its unsent messages remain in the queue only while other cursors protect them. The requesters of unsent requests
    receive a fault, unless another forwarder still has to send those requests.
    """
    path = f"forwarders/{quoted(name)}"
    waiting = sum(one["waiting"] for one in admin.ask(path).get("forwarders", []))
    unsent = counted(waiting, "unacknowledged message")
    confirm(f"{name} would be deleted if the configuration no longer has it, and would not send its {unsent}.", yes)
    answer = admin.ask(path, "DELETE")
    waiting = int(answer["waiting"])
    tell(answer, f"{name} is deleted; {counted(waiting, 'message was', 'messages were')} not acknowledged.", as_json)
