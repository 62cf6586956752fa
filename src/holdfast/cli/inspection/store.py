"""``holdfast store``: check the integrity of a store, or repair a damaged one."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from holdfast.cli.tables import json_option
from holdfast.exceptions import ConfigurationError, counted

DONE, NOT_DONE = 0, 1


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def store() -> None:
    """Check the integrity of a store, or repair a damaged one.

    \b
    holdfast store check inbox
    holdfast store repair inbox
    """


@store.command()
@click.argument("store")
@json_option
def check(store: str, as_json: bool) -> int:
    """Read all of STORE and verify every checksum and every internal rule. Nothing is changed.

    You can also check a store that a server has open, as it is at that moment. The exit code is 0 if the store is
    undamaged, and 1 otherwise.
    """
    from holdfast.store.rocksdb.checking import check_store

    _require_directory(store)
    report = check_store(Path(store))
    if as_json:
        facts = asdict(report)
        facts["unreadable"] = [
            {"queue": queue, "partition": partition, "offsets": offsets}
            for (queue, partition), offsets in report.unreadable.items()
        ]
        click.echo(json.dumps(facts, indent=2))
    elif not report.problems:
        click.echo(f"{store} is undamaged: {counted(report.records, 'record')}, up to batch {report.serial:,}.")
        if report.is_open:
            click.echo("A process has the store open; the check does not include its later writes.")
    else:
        for problem in report.problems:
            click.echo(f"- {problem}")
        click.echo(
            f"{store} is damaged. Restore a copy, or see what a repair would lose: holdfast store repair {store}"
        )
    return NOT_DONE if report.problems else DONE


@store.command()
@click.argument("store")
@click.option("--yes", is_flag=True, help="Repair the store. Without --yes, the command only shows what would be lost.")
@json_option
def repair(store: str, yes: bool, as_json: bool) -> int:
    """Show what a repair of STORE would lose; with --yes, repair it. No process may have the store open.

    The repair copies everything readable into new files and keeps the old files as db.damaged. It writes records that
    are readable but cannot stay in the store, such as those after a damaged part of a log, to saved.jsonl. A source's
    store with an unreadable message is not repaired, because its messages must go out in order: --yes then only saves
    the readable records.
    """
    from holdfast.store.rocksdb.repair import repair_store

    _require_directory(store)
    done = repair_store(Path(store), do=yes)
    if as_json:
        facts = {"needed": done.is_needed, "repaired": done.is_needed and yes, "losses": done.gives_up}
        click.echo(json.dumps(facts, indent=2))
        return DONE if yes or not done.is_needed else NOT_DONE
    if not done.is_needed:
        click.echo(f"{store} needs no repair.")
        return DONE
    click.echo(f"{store} {'was repaired. Lost' if yes else 'can be repaired. The repair would lose'}:")
    for sentence in done.gives_up or ["nothing; everything was readable."]:
        click.echo(f"- {sentence}")
    if not yes:
        click.echo(f"To repair it: holdfast store repair --yes {store}")
    return DONE if yes else NOT_DONE


def _require_directory(store: str) -> None:
    from holdfast.store import is_remote, shown

    if is_remote(store):
        raise ConfigurationError(
            f"{shown(store)} is on a server, and this command reads directories",
            remedy="The server checks its own files. For the stores of a cluster: holdfast cluster verify.",
        )
