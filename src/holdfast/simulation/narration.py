"""The output of ``holdfast simulate``: runs of the simulator and searches of the explorer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.simulation.explorer.exploration import Exploration, Explorer
from holdfast.simulation.explorer.situation import Bounds
from holdfast.simulation.simulator import Report, SimulationFailed, Simulator

Say = Callable[[str], None]

_ROWS = (
    ("requests", "requests sent"),
    ("messages transmitted", "messages transmitted"),
    ("exchanges lost", "exchanges lost"),
    ("message.duplicate_dropped", "duplicates dropped"),
    ("fault.raised", "faults raised"),
    ("crashes", "crashes"),
    ("forged", "messages forged by a stranger"),
    ("batches", "batches durable"),
    ("restarts compared", "destinations compared with restarted ones"),
    ("sequence.created", "Sequences created"),
    ("sequence.terminated", "Sequences terminated"),
    ("sequence.lost", "Sequences reported as lost"),
    ("handed over", "handler calls"),
)


@dataclass(slots=True)
class Runs:
    """The totals of several runs."""

    runs: int = 0
    events: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[SimulationFailed] = field(default_factory=list)

    def add(self, report: Report) -> None:
        self.runs += 1
        self.events += report.events
        self.seconds += report.seconds
        self.counts.update(report.counts)

    def table(self) -> list[str]:
        """Return the lines of the closing table."""
        rows = [("runs", self.runs), ("events, every invariant checked after each", self.events)]
        rows += [(label, self.counts.get(name, 0)) for name, label in _ROWS]
        rows.append(("guarantees broken", len(self.failures)))
        lines = [f"{label:<44}{number:>12,}" for label, number in rows]
        return [*lines, f"{'virtual seconds':<44}{self.seconds:>12,.1f}"]


def simulate(
    first_seed: int, runs: int = 1, *, loss: float | None = None, trace: bool = False, say: Say = print
) -> Runs:
    """Run the simulator and print its results.

    Args:
        first_seed: The seed of the first run; the next ones follow.
        loss: Replaces the drawn loss of requests and of responses, 0 to 1; None: as drawn.
        trace: Whether to print every step.
        say: Called with each line.

    Returns:
        The totals; ``failures`` holds every broken guarantee.
    """
    total = Runs()
    for seed in range(first_seed, first_seed + runs):
        simulator = Simulator(seed, loss=loss, trace=say if trace else None)
        if runs == 1:
            say(f"seed {seed}")
            for line in simulator.options.lines():
                say(f"  {line}")
        try:
            simulator.run()
        except SimulationFailed as failure:
            total.failures.append(failure)
            say(f"seed {seed} breaks {failure.invariant}: {failure.what}")
            more = f" --loss {loss:g}" if loss is not None else ""
            say(f"  reproduce: holdfast simulate --seed {seed}{more} --trace")
        total.add(simulator.report)
    for line in total.table():
        say(line)
    return total


def explore(bounds: Bounds, *, say: Say = print, progress: Callable[[int, int], None] | None = None) -> Exploration:
    """Search every interleaving within the bounds and print the results.

    Returns:
        The result; ``violation`` is None if no invariant broke.
    """
    say(f"every interleaving of at most {bounds}")
    result = Explorer(bounds, progress=progress).run()
    if result.violation is not None:
        say(f"an invariant breaks after {len(result.schedule)} steps, the fewest possible:")
        for line in result.trace:
            say(f"  {line}")
    found = "the search is complete" if result.is_complete else "the search stopped early"
    say(f"{result.states:,} states, {result.transitions:,} transitions, at most {result.depth} steps deep: {found}")
    return result
