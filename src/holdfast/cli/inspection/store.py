"""``holdfast store``: see whether a store is what was written to it, and save what can be saved of one that is not."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from holdfast.cli.tables import json_option

DONE, NOT_DONE = 0, 1


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def store() -> None:
    """See whether a store is what was written to it, and save what can be saved of one that is not.

    \b
    holdfast store check inbox
    holdfast store repair inbox
    """


@store.command()
@click.argument("store")
@json_option
def check(store: str, as_json: bool) -> int:
    """Read all of STORE, and verify every checksum and whatever it promises by itself. Nothing is changed.

    A store that a server has open can be checked, too, as it is at that moment. The exit code is 0 if nothing is wrong
    with it, 1 if something is.
    """
    from holdfast.store.rocksdb.checking import check_store

    report = check_store(Path(store))
    if as_json:
        facts = asdict(report)
        facts["unreadable"] = [
            {"queue": queue, "partition": partition, "offsets": offsets}
            for (queue, partition), offsets in report.unreadable.items()
        ]
        click.echo(json.dumps(facts, indent=2))
    elif not report.problems:
        click.echo(f"{store} is whole: {report.records:,} records, up to batch {report.serial:,}.")
        if report.is_open:
            click.echo("Somebody has it open; what came since is not in this.")
    else:
        for problem in report.problems:
            click.echo(f"- {problem}")
        click.echo(f"{store} is damaged. Restore it from a copy, or see: holdfast store repair {store}")
    return NOT_DONE if report.problems else DONE


@store.command()
@click.argument("store")
@click.option("--yes", is_flag=True, help="Do it. Without this, it is only said what would be given up.")
def repair(store: str, yes: bool) -> int:
    """Say what a repair of STORE would give up; with --yes, do it. Nobody may have the store open.

    What can be read is copied into new files; the old ones stay beside them, as db.damaged. Records that can be read
    but not kept in the store, such as those behind a damage in a log, are written into saved.jsonl. A source's store of
    which a message cannot be read is not repaired, since its messages go out in order; with --yes the records that can
    be read are saved, and the store stays as it is.
    """
    from holdfast.store.rocksdb.repair import repair_store

    done = repair_store(Path(store), do=yes)
    if not done.is_needed:
        click.echo(f"{store} needs no repair.")
        return DONE
    click.echo(f"{store} {'was repaired. Given up' if yes else 'can be repaired. This would be given up'}:")
    for sentence in done.gives_up or ["nothing; all of it could be read."]:
        click.echo(f"- {sentence}")
    if not yes:
        click.echo(f"To do it: holdfast store repair --yes {store}")
    return DONE if yes else NOT_DONE
