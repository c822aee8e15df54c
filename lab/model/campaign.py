"""Many seeds, over several processes: what was tried, what was reached, what broke; and a failing schedule made small."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import log

from lab.model.coverage import Coverage, Outcome
from lab.model.process import POINTS
from lab.model.rules import Rules
from lab.model.schedule import run_schedule
from lab.model.stories import Decision, Focus

SKETCH_BYTES = 8 << 20
EXPLORED = (
    "lease: "  # points of a protocol that is only explored (`exhaustive/lease.py`): schedules take a lease in one step
)
SLICE = 500  # seeds a process takes at a time


@dataclass(frozen=True)
class Campaign:
    """The result of a campaign.

    Attributes:
        states: distinct states reached, estimated from a bit map of their hashes.
        failures: schedules that broke an invariant, by seed.
    """

    first: int
    coverage: Coverage
    states: int
    failures: tuple[Outcome, ...]
    seconds: float


def run_campaign(first: int, count: int, *, jobs: int = 1, focus: Focus | None = None) -> Campaign:
    """Run `count` seeds from `first` on.

    Args:
        first: the first seed.
        count: how many.
        jobs: processes that share them.
        focus: narrows what all of them draw; None leaves it to the seeds.
    """
    began = time.monotonic()
    slices = [(start, min(SLICE, first + count - start)) for start in range(first, first + count, SLICE)]
    total = Coverage(states=bytearray(SKETCH_BYTES))
    failures: list[Outcome] = []
    for part, part_failures in _parts(slices, jobs, total, focus):
        failures += part_failures
        if part is not total:
            _add(total, part)
    return Campaign(first, total, count_states(total), tuple(failures), time.monotonic() - began)


def _parts(
    slices: Sequence[tuple[int, int]], jobs: int, total: Coverage, focus: Focus | None
) -> Iterator[tuple[Coverage, list[Outcome]]]:
    if jobs <= 1:
        for start, count in slices:
            yield total, run_slice(start, count, total, focus)
        return
    context = multiprocessing.get_context("fork")  # one hash seed for all, so that their bit maps can be joined
    shares = [slices[number::jobs] for number in range(jobs)]
    with context.Pool(jobs) as pool:
        yield from pool.imap_unordered(partial(_share, focus), shares)


def _share(focus: Focus | None, slices: Sequence[tuple[int, int]]) -> tuple[Coverage, list[Outcome]]:
    coverage = Coverage(states=bytearray(SKETCH_BYTES))
    failures: list[Outcome] = []
    for start, count in slices:
        failures += run_slice(start, count, coverage, focus)
    return coverage, failures


def run_slice(start: int, count: int, coverage: Coverage, focus: Focus | None = None) -> list[Outcome]:
    """Run successive seeds; return those that broke an invariant."""
    outcomes = (run_schedule(seed, coverage=coverage, focus=focus) for seed in range(start, start + count))
    return [outcome for outcome in outcomes if outcome.violation is not None]


def _add(total: Coverage, part: Coverage) -> None:
    for total_counts, part_counts in (
        (total.reached, part.reached),
        (total.crashed, part.crashed),
        (total.paused, part.paused),
    ):
        total_counts[:] = [
            total_count + part_count for total_count, part_count in zip(total_counts, part_counts, strict=True)
        ]
    for total_by_name, part_by_name in ((total.errors, part.errors), (total.endings, part.endings)):
        for name, number in part_by_name.items():
            total_by_name[name] = total_by_name.get(name, 0) + number
    total.steps += part.steps
    total.schedules += part.schedules
    if total.states is not None and part.states is not None:
        joined = int.from_bytes(total.states, "little") | int.from_bytes(part.states, "little")
        total.states = bytearray(joined.to_bytes(SKETCH_BYTES, "little"))


def count_states(coverage: Coverage) -> int:
    """Estimate how many distinct hashes set the bits (linear counting)."""
    if coverage.states is None:
        return 0
    bits = len(coverage.states) * 8
    free = bits - int.from_bytes(coverage.states, "little").bit_count()
    return round(-bits * log(free / bits)) if free else bits


def uncovered(coverage: Coverage) -> list[str]:
    """Return the points at which no process was killed."""
    return [
        name
        for name, times in zip(POINTS, coverage.crashed, strict=True)
        if not times and not name.startswith(EXPLORED)
    ]


def shrink(outcome: Outcome, *, rules: Rules | None = None, broken: str = "", focus: Focus | None = None) -> Outcome:
    """Return a failing schedule with as few decisions as still break the same invariant."""
    wanted = None if outcome.violation is None else outcome.violation.invariant
    decisions: list[Decision] = list(outcome.decisions)
    size = max(1, len(decisions) // 2)
    while True:
        start = 0
        while start < len(decisions):
            fewer = decisions[:start] + decisions[start + size :]
            rerun = run_schedule(outcome.seed, rules=rules, broken=broken, decisions=fewer, focus=focus)
            if rerun.violation is not None and rerun.violation.invariant == wanted:
                decisions = fewer
            else:
                start += size
        if size == 1:
            break
        size = max(1, size // 2)
    return run_schedule(outcome.seed, rules=rules, broken=broken, decisions=decisions, focus=focus, trace=True)


def describe_failure(
    outcome: Outcome, *, rules: Rules | None = None, broken: str = "", focus: Focus | None = None
) -> str:
    """Return a failing schedule as a person reads it: its seed, what broke, and the smallest trace found."""
    small = shrink(outcome, rules=rules, broken=broken, focus=focus)
    lines = [
        f"seed {outcome.seed}: {small.violation}",
        f"  repeat: python -m lab.model --seed {outcome.seed} --schedules 1 --trace"
        + (" --versions" if focus is not None and focus.versions else ""),
        f"  smallest trace ({len(small.decisions)} of {len(outcome.decisions)} decisions):",
        *(f"    {line}" for line in small.trace),
    ]
    return "\n".join(lines) + "\n"


def render(result: Campaign) -> str:
    """Return a campaign's figures."""
    coverage = result.coverage
    rate = result.seconds / max(1, coverage.schedules) * 1000
    lines = [
        f"schedules {coverage.schedules} from seed {result.first}; steps {coverage.steps}; distinct states about {result.states}; "
        f"kills {sum(coverage.crashed)}, stops {sum(coverage.paused)}; {result.seconds:.0f} s ({rate:.2f} ms each)",
        f"violations {len(result.failures)}",
        "endings: " + "; ".join(f"{name} {times}" for name, times in sorted(coverage.endings.items()) if name),
        "point                                                    reached    killed   stopped",
    ]
    for name, reached, crashed, paused in zip(POINTS, coverage.reached, coverage.crashed, coverage.paused, strict=True):
        if not name.startswith(EXPLORED):
            lines.append(f"{name:<54}{reached:>10}{crashed:>10}{paused:>10}")
    missing = uncovered(coverage)
    lines.append("never killed at: " + ("; ".join(missing) if missing else "nothing, every point was"))
    return "\n".join(lines) + "\n"
