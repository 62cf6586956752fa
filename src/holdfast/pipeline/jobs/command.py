"""Shared parts of the Spark commands: a session for one command, errors as sentences, and options of body readers."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.client.command_options import flag_of
from holdfast.client.option_types import Count, with_options
from holdfast.client.terminal_text import few
from holdfast.exceptions import HoldfastError, counted
from holdfast.pipeline.bodies.leniencies import ALSO, LENIENCIES, MAX_ELEMENTS
from holdfast.pipeline.bodies.schemas import schema_in
from holdfast.pipeline.jobs.waiting import progress_reported
from holdfast.pipeline.session import check_spark, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

PYTHON_IS_LATE = "Python worker failed to connect back"
Calling = Callable[[list[tuple[str, str, str]]], list[str]]
"""Returns the steps that call a function of a traceback, from its frames: file, line, function."""
STARTS = 6
"""Maximum number of starts. Spark ends the query if a source's Python process needs more than ten seconds to start, as
on a busy machine."""

WAIT_AT_END = 5.0
"""Default seconds to wait for a server that does not answer, if the command ends on its own."""

_OUR_ERROR = re.compile(r"holdfast\.\w[\w.]*: (.+(?:\n  \S.*)?)")
_CAUSE = re.compile(
    r"^(?:: |Caused by: )?((?:[A-Za-z_$][\w$]*\.)*[A-Z]\w*(?:Error|Exception|Invalid|Interrupt)\b.*)", re.M
)
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+), in (\S+)', re.M)
_LIBRARY = re.compile(r"[/\\](?:site-packages|pyspark(?:\.zip)?|lib[/\\]python[\d.]+)[/\\]|^<")
_OWN = str(Path(__file__).parents[2])
_CARRIERS = ("Py4JJavaError", "An exception was thrown from the Python worker", "SparkException: Job aborted")
_ENDED = re.compile(r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: (.+?)(?: SQLSTATE: \w+)?$")
_TWO_RUNS = "[CONCURRENT_STREAM_LOG_UPDATE]"
"""Spark's condition if two queries write to one checkpoint."""
_OFFSETS = re.compile(r"^Current (?:Committed|Available) Offsets: \{(?:[^{}]*: (\{.*\}))?\}$", re.M)


spark_options = with_options(
    click.option("--verbose", is_flag=True, help="Show Spark's own errors with their tracebacks."),
    click.option("--master", help="Spark master.  [default: the one given to spark-submit, else local[*]]"),
)
"""Decorator: the options for Spark's master and its own errors; see ``command_session``."""

jar_options = with_options(
    click.option("--packages", help="Maven coordinates for Spark to fetch, separated by commas."),
    click.option("--jars", help="Jar files for Spark, separated by commas."),
)
"""Decorator: the options for additional packages of Spark; see ``jars_of``."""


def jars_of(arguments: dict[str, Any]) -> dict[str, str]:
    """Return the Spark settings for the options of ``jar_options``, and remove these from the arguments."""
    told = {"spark.jars.packages": arguments.pop("packages"), "spark.jars": arguments.pop("jars")}
    return {name: value for name, value in told.items() if value}


reading_options = with_options(
    click.option("--schema", help='Fields of the body\'s element: "carrier STRING, flight INT".'),
    click.option(
        "--schema-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="File with the fields, or with Spark's JSON of them.",
    ),
    click.option(
        "--xsd",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="XML Schema that declares the body's element, and so the fields. If it declares several "
        "elements, add --element.",
    ),
    click.option("--element", default="", help="The body's element. A body with another element is flagged."),
    click.option("--prefix", default="", help="Prefix for the names of the parsed columns."),
    click.option(
        "--lenient",
        multiple=True,
        type=click.Choice(list(LENIENCIES)),
        help="Accept without a flag: " + " ".join(f"{name}: {what}" for name, what in LENIENCIES.items()),
    ),
    click.option(
        "--max-elements",
        type=Count(),
        default=MAX_ELEMENTS,
        show_default=True,
        help="Maximum number of elements of a body; a larger one is flagged and not read.",
    ),
    click.option(
        "--also",
        multiple=True,
        type=click.Choice(ALSO),
        help="Another column of the messages. Can be repeated.",
    ),
)
"""Decorator: the options for parsing bodies; see ``reading``."""


FILE = click.Path(exists=True, dir_okay=False, resolve_path=True)
"""Resolved, because Spark reads it in a separate process."""

_ACCESS = {
    "token_file": "tokenFile",
    "ca": "caFile",
    "cert": "certificateFile",
    "cert_key": "keyFile",
    "proxy": "proxy",
}
"""Argument of a command -> option of the source."""


access_options = with_options(
    click.option("--token-file", type=FILE, help="Token of the admin listener.  [env: HOLDFAST_ADMIN_TOKEN]"),
    click.option("--ca", type=FILE, help="PEM file of the certificate authorities to trust instead of the system's."),
    click.option("--cert", type=FILE, help="PEM file of the client certificate for the admin listener."),
    click.option("--cert-key", type=FILE, help="Private key, unless the certificate's file has it."),
    click.option("--proxy", metavar="URL", help="HTTP proxy to the admin listener: http://HOST:PORT."),
)
"""Decorator: the options for access to a server's admin listener; see ``source_access``."""


def named_values(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Callback of a repeatable option NAME=VALUE: return the values by name."""
    found = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE", context, option)
        found[name] = text
    return found


def _further(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found = named_values(context, option, values)
    for name in found:
        if flag := flag_of(context.command, name):
            raise click.BadParameter(f"{name} is {flag} here", context, option)
    return found


further_option = click.option(
    "--option",
    "further",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_further,
    help="An option of the wsrm source without its own flag: failOnDataLoss=false, startingTimestamp=…",
)


def source_access(arguments: dict[str, Any]) -> dict[str, str]:
    """Return the options of the ``wsrm`` source for the options of ``access_options``."""
    return {option: str(arguments[name]) for name, option in _ACCESS.items() if arguments.get(name) is not None}


table_options = with_options(
    click.option(
        "--format",
        "table",
        type=click.Choice(["delta", "parquet"]),
        help="Format of a new table. An existing table keeps its format.  [default: delta]",
    ),
    click.option(
        "--by-day",
        type=click.Choice(["delivered", "received"]),
        help="Partition by the UTC day on which messages were put into the queue, or received.",
    ),
)
"""Decorator: the options for the kind of the landed table; see ``table``."""


def table(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``land`` and ``reland`` for the kind of the landed table."""
    return {name: arguments[name] for name in ("by_day", "table")}


def reading(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``land`` and ``reland`` for parsing bodies; to call before Spark starts.

    Raises:
        click.UsageError: There are two schemas.
        ConfigurationError: The file does not contain a schema, or the XML Schema does not declare the element.
    """
    schemas = [name for name in ("schema", "schema_file", "xsd") if arguments[name]]
    if len(schemas) > 1:
        first, second = (name.replace("_", "-") for name in schemas[:2])
        raise click.UsageError(f"--{first} and --{second} exclude each other")
    given = {name: arguments[name] for name in ("prefix", "lenient", "max_elements", "also", "element")}
    if file := arguments["schema_file"]:
        return {"schema": schema_in(file), **given}
    if not arguments["xsd"]:
        return {"schema": arguments["schema"] or None, **given}
    from holdfast.pipeline.mediation.transformations.xsd import XSD

    xsd = XSD.read(arguments["xsd"])
    element = xsd.element(given["element"])
    return {"schema": xsd.columns(element), **given, "element": element}


@contextlib.contextmanager
def job_session(name: str, arguments: dict[str, Any], stop: threading.Event | None = None) -> Iterator[SparkSession]:
    """Return a session for one command, stopped at its end; see ``command_session``.

    Raises:
        HoldfastError: The cause of the command's end, as one sentence.
    """
    safe = "Landed rows are safe"
    with command_session(name, arguments["master"], verbose=arguments["verbose"], remedy=safe, stop=stop) as spark:
        yield spark


def hear(stop: threading.Event, *, raises: bool = False) -> None:
    """Let SIGINT and SIGTERM set ``stop``, so that work ends in an orderly way; a second signal ends the process
    immediately.

    Args:
        stop: The event to set.
        raises: Whether the first signal also raises KeyboardInterrupt.
    """

    def on_signal(*_: object) -> None:
        if stop.is_set():
            os._exit(130)
        stop.set()
        if raises:
            logging.disable()  # py4j would report the interrupted request
            raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)


_CHATTER = re.compile(
    rb"\s*$|\s+at |\s+\.\.\. \d+ more|Exception in thread \"stream execution thread|WARNING: Using incubator modules"
    rb"|Setting default log level|To adjust logging level|(Starting )?Streaming TransformWithState"
    rb"|During handling of the above exception|The above exception was the direct cause"
)
"""Messages of Spark's Java and its workers about themselves, and the lines of a stack trace."""
_TRACEBACK_END = re.compile(rb"(?!(?:java|javax|jdk|sun|scala|org\.apache)\.)[A-Za-z_][\w.]*(?::|\s*$)")
"""The last line of a Python traceback. A worker that is killed prints none."""


def _told(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The part of Spark's standard error for the user of a command: no chatter, no stack traces.

    The cause of a command's end becomes one sentence. The end of a stopped query, or of a worker that Spark no longer
    waits for, is omitted.
    """
    tracebacks = 0  # several workers may print theirs at the same time, line by line
    for line in lines:
        if line.startswith(b"Traceback "):
            tracebacks += 1
        elif _CHATTER.match(line) or (tracebacks and line.startswith(b" ")):
            continue
        elif tracebacks and _TRACEBACK_END.match(line):
            tracebacks -= 1
        else:
            yield line


def _until(stop: threading.Event) -> int:
    """Return a file descriptor; text written to it goes to standard error as ``_told``, until ``stop`` is set.

    After that, Spark reports interrupted work, such as its workers, with pages of tracebacks.
    """
    reader, writer = os.pipe()

    def pass_on() -> None:
        with open(reader, "rb") as lines:
            for line in _told(lines):
                if not stop.is_set():
                    os.write(2, line)

    threading.Thread(target=pass_on, name="errors", daemon=True).start()
    return writer


@contextlib.contextmanager
def command_session(
    name: str,
    master: str | None,
    *,
    verbose: bool,
    remedy: str,
    stop: threading.Event | None = None,
    config: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """A classic session for one command, stopped at its end; Spark prints nothing unless ``verbose``.

    Without a ``stop``, the command also reports every few seconds what Spark does.

    Args:
        name: Name of the application.
        master: Spark's; None: the one given to spark-submit, else ``local[*]``.
        verbose: Whether Spark's own errors are shown.
        remedy: Which data is safe if Spark fails, and what to do then.
        stop: Set by SIGINT and SIGTERM, see ``hear``; None: the signals end Spark's work and the command.
        config: Further settings of the session.

    Raises:
        HoldfastError: The cause of the command's end, as one sentence.
        KeyboardInterrupt: A signal arrived without a ``stop``.
    """
    check_spark()
    from pyspark.logger import PySparkLogger

    click.echo("starting Spark", err=True)  # seconds, on a busy machine minutes
    heard = stop or threading.Event()
    errors = os.dup(2) if verbose else _until(heard)
    with in_a_sentence(remedy):
        try:
            settings = {"spark.sql.streaming.numRecentProgressUpdates": "20", **(config or {})}
            spark = session(name, master, errors=errors, **settings)
        except Exception as error:
            if "JAVA_GATEWAY_EXITED" not in str(error) or "spark.jars.packages" not in settings:
                raise
            raise HoldfastError(
                f"Spark did not start with the packages {settings['spark.jars.packages']}",
                remedy="Check the lines above; correct the coordinates, or download the jar files and name them "
                "with --jars",
            ) from error
        finally:
            os.close(errors)
        try:
            if threading.current_thread() is threading.main_thread():
                hear(heard, raises=stop is None)  # Spark has replaced the signal handlers
            if not verbose:  # the error that ends the query is reported in one sentence
                log4j = spark._jvm.org.apache.logging.log4j
                for package in ("org.apache.spark", "org.apache.hadoop"):
                    log4j.core.config.Configurator.setLevel(package, log4j.Level.OFF)
                logging.getLogger("py4j").setLevel(logging.CRITICAL)
                for logger in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):  # they print JSON of each error
                    PySparkLogger.getLogger(logger).setLevel(logging.CRITICAL)
            click.echo("Spark started", err=True)
            with progress_reported(spark.sparkContext.statusTracker()) if stop is None else contextlib.nullcontext():
                yield spark
        finally:
            spark.stop()


@contextlib.contextmanager
def errors_reported() -> Iterator[None]:
    """Show the error that ends a job under spark-submit as a sentence with its remedy, and exit with 1."""
    try:
        yield
    except HoldfastError as error:
        click.echo(f"holdfast: {error}", err=True)
        sys.exit(1)


def patiently(run: Callable[[], T]) -> T:
    """Return the result of ``run``; repeat it if Spark did not wait for its Python process.

    Raises:
        HoldfastError: That happened in each of several attempts.
        Exception: Any other error.
    """
    for left in reversed(range(STARTS)):
        try:
            return run()
        except Exception as error:
            if not (PYTHON_IS_LATE in str(error) or PYTHON_IS_LATE in str(error.__cause__)):
                raise
            if not left:
                raise _overloaded() from error
            note = "Spark waited ten seconds in vain for its Python process; the next attempt begins"
            click.echo(f"holdfast: {note} ({STARTS - left + 1} of {STARTS})", err=True)
    raise AssertionError


def _overloaded() -> HoldfastError:
    return HoldfastError(
        f"Spark did not get a Python process in time, in {STARTS} attempts: it waits ten seconds for a process to "
        "start, and this machine is overloaded",
        remedy="Rows already written are safe; start again to continue. If this recurs, use fewer processors, such as "
        '--master "local[2]", or let Spark repeat a task: --master "local[2,4]" makes four attempts',
    )


@contextlib.contextmanager
def in_a_sentence(remedy: str) -> Iterator[None]:
    """Translate Spark's errors, including the end of its Java process, into one sentence.

    That process may be killed, or stopped together with this one, as systemd does.
    """
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:
        from py4j.protocol import Py4JJavaError, Py4JNetworkError
        from pyspark.errors import PySparkException

        if isinstance(error, PySparkException | Py4JJavaError | FileNotFoundError):
            raise failure(str(error), remedy) from error
        if isinstance(error, Py4JNetworkError | ConnectionError):
            raise HoldfastError(
                "Spark's Java process has ended", remedy=f"{remedy}; start again to continue"
            ) from error
        raise


def own_frames(text: str) -> list[tuple[str, str, str]]:
    """Return the file, the line and the function of each entry of a traceback that is of the user's own functions."""
    return [one for one in _FRAME.findall(text) if not (_LIBRARY.search(one[0]) or one[0].startswith(_OWN))]


def failure(text: str, safe: str, otherwise: str = "", calling: Calling = lambda _: []) -> HoldfastError:
    """Return the error for the report of a failed query or action.

    Args:
        text: The report.
        safe: Which data is safe.
        otherwise: What to do, unless a function of the user's has failed: it fails again.
        calling: Returns the names of the steps that lead to entries of :func:`own_frames`.
    """
    if _TWO_RUNS in text:
        return HoldfastError(
            "another process runs with the same checkpoint, and has continued",
            remedy=f"{safe}. Run only one at a time: before you start this one again, stop the other",
        )
    own = own_frames(text)
    if not own or _OUR_ERROR.search(text):
        return HoldfastError(sentence(text), remedy="; ".join(filter(None, (safe, otherwise))))
    file, line, function = own[-1]
    steps = calling(own)
    of_step = f", in the step {' or '.join(steps)}" if steps else ""
    return HoldfastError(
        f"{sentence(text)}, raised by {function} ({file}, line {line}){of_step}",
        remedy=f"{safe}. Correct the function, or let it return a column `problems` with the reason for such rows, "
        "which then become dead letters",
    )


def sentence(text: str) -> str:
    """Return the cause and the place of a failure in a query's report, which otherwise is a page of tracebacks.

    This is Holdfast's own error, which names the offset, or else the root cause and the offsets of the batch.
    """
    if ours := _OUR_ERROR.findall(text):
        return str(ours[-1])
    causes = [cause for cause in _CAUSE.findall(text) if not any(carrier in cause for carrier in _CARRIERS)]
    if not causes:
        first = text.strip().splitlines()[0]
        return ended[1] if (ended := _ENDED.match(first)) else first
    return f"the batch{_between(text)} failed: {causes[-1]}" if _OFFSETS.search(text) else str(causes[-1])


def _between(text: str) -> str:
    """Return the start and end offset of each partition in the report."""
    told = [json.loads(found) if found else {} for found in _OFFSETS.findall(text)]
    ranges = [{name: at for name, at in offset.items() if name.rpartition("/")[2].isdigit()} for offset in told]
    if len(ranges) != 2:
        return ""
    start, end = ranges
    parts = [
        f"{_partition(name)} offsets {start.get(name, 'its first')} to {at}"
        for name, at in end.items()
        if start.get(name, 0) != at  # without a start and an end, it has no messages
    ]
    return f" of {few(parts)}" if parts else ""


def _partition(name: str) -> str:
    queue, mark, number = name.rpartition("/")
    return f"queue {queue} partition {number}" if mark else f"partition {number}"


def tell_of_flags(flagged: int, rows: int, out: str) -> None:
    """Report at a command's end that some rows could not be read, and how to continue."""
    if flagged:
        click.echo(
            f"holdfast: {flagged} of {counted(rows, 'row')} in {out} are flagged: corrupt_record contains the "
            "reason\n  holdfast reland reads them again, with another --schema or with --lenient",
            err=True,
        )
