"""What an open page asks again and again: a row of the overview, and the summary of one pipeline, as plain values.

They hold instants and no ages, and what changes every second is rounded, so an answer stays the same while nothing happens. What is
read is kept for two seconds in this process: ten open pages cost what one costs.
"""

from __future__ import annotations

import hashlib
import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from rivertwice import __version__
from rivertwice.agent import CURVES, LEVELS, ObjectivesView
from rivertwice.core import DamagedFileError, PipelineHome, Settings, to_iso, to_plain
from rivertwice.definition import Definition
from rivertwice.read.fact_lines import FactLine, describe_facts, lag_count, verdict_stale, why_lag_is_stale
from rivertwice.read.facts import Facts
from rivertwice.read.now import Light, Now, decide_now
from rivertwice.read.problems import BAD, NEXT_ACTS, NONE, WARN, Problem
from rivertwice.read.read_facts import collect_facts
from rivertwice.storage import Remembered, Table, read_json, replace_json

if TYPE_CHECKING:
    from rivertwice.read.jobs import Job

log = logging.getLogger(__name__)

KEPT_S = 2.0
SPARK_POINTS = 36
TABS = {
    "health": "Health", "correctness": "Correctness", "timelines": "Timelines", "backfills": "Backfills",
    "letters": "Dead letters", "results": "Sinks, suites", "alerts": "Alerts", "logs": "Logs",
}  # fmt: skip


@dataclass(frozen=True)
class Snapshot:
    """What was read of a pipeline, and what it comes to."""

    facts: Facts
    now: Now
    jobs: tuple[Job, ...]
    at: datetime


def read_cached(settings: Settings, definition: Definition, now: datetime) -> Snapshot:
    """Return what is true of a pipeline; what this process read in the last two seconds is not read again."""
    key = (settings.home, definition.name)
    with _LOCK:
        kept = _SEEN.get(key)
    if kept is not None and time.monotonic() - kept[0] < KEPT_S:
        return kept[1]
    from rivertwice.read.jobs import find_jobs  # plans of backfills, which `rivertwice status` does not show

    with Remembered.glance():
        facts = collect_facts(settings, definition, now)
    seen = Snapshot(facts, decide_now(facts, now), tuple(find_jobs(settings, facts)), now)
    with _LOCK:
        _SEEN[key] = (time.monotonic(), seen)
    return seen


@dataclass(frozen=True)
class TabLink:
    """A tab of the page, and the words of a link to it."""

    tab: str
    text: str


@dataclass(frozen=True)
class ProblemView:
    """A problem as it is shown.

    Attributes:
        sentence: what is wrong; the other parts stand beside it. text: all of it in one text.
        acts: names of the page's acts that may end it; empty: none does, or it is over.
    """

    tone: str
    kind: str
    sentence: str
    since: datetime | None
    touches: str
    next: str
    act: TabLink | None
    text: str
    acts: tuple[str, ...]


@dataclass(frozen=True)
class NowView(ProblemView):
    """What is wrong now: the worst problem, the others, and the lights by name."""

    others: tuple[ProblemView, ...]
    lights: Mapping[str, Light]

    @classmethod
    def read(cls, settings: Settings, definition: Definition, now: datetime) -> Self:
        """Return what is wrong with a pipeline now; nothing is kept for a later question."""
        return cls.of(decide_now(collect_facts(settings, definition, now), now))

    @classmethod
    def of(cls, now: Now) -> Self:
        """Return what is wrong now as it is shown."""
        others = tuple(describe_problem(each) for each in now.others)
        return cls(**vars(describe_problem(now.worst)), others=others, lights=now.lights)


@dataclass(frozen=True)
class LagCurve:
    """The lag of the last hours, oldest first; the newest one, in words, and why it is stale."""

    points: tuple[int | None, ...]
    newest: int | None
    text: str | None
    stale: str | None


@dataclass(frozen=True)
class VerdictAge:
    """When the newest reconcile ran, and why it is stale."""

    at: datetime
    stale: str | None


@dataclass(frozen=True)
class PipelineRow:
    """A pipeline's row of the overview; of its objectives the one with the smallest budget left."""

    name: str
    description: str
    now: ProblemView
    lights: Mapping[str, Light]
    lag: LagCurve
    verdict: VerdictAge | None
    running: tuple[Job, ...]
    objectives: ObjectivesView


@dataclass(frozen=True)
class PipelineSummary:
    """What is polled of one pipeline: the sentence, lights, facts, what runs, counts, and a stamp for each tab."""

    name: str
    description: str
    runbook: str
    now: NowView
    facts: tuple[FactLine, ...]
    running: tuple[Job, ...]
    counts: Mapping[str, int]
    stamps: Mapping[str, str]


class OverviewRows:
    """The rows of the overview that this process read, and those of an earlier one, in `HOME/overview.json`.

    The first look at the tables of a hundred pipelines takes a process some 15 CPU-seconds, so a server that starts shows what an earlier
    one read. The file may be removed at any time.
    """

    EVERY_S = 60.0
    UNCHANGED_S = 3600.0

    def __init__(self, settings: Settings) -> None:
        """Take the settings of the home."""
        self._settings = settings
        self._file = settings.home / "overview.json"
        self._looked_at = self._written_at = -math.inf
        self._read: dict[str, PipelineRow | None] = {}
        try:
            kept = read_json(self._file)
        except (DamagedFileError, OSError) as error:
            log.warning("the rows that an earlier server read are not known: %s", error)
            kept = None
        ours = isinstance(kept, dict) and kept.get("version") == __version__
        self._kept: Mapping[str, Mapping[str, object]] = kept.get("rows", {}) if kept and ours else {}

    @classmethod
    def of(cls, settings: Settings) -> OverviewRows:
        """Return those of this process."""
        with _LOCK:
            if settings.home not in _ROWS:
                _ROWS[settings.home] = cls(settings)
            return _ROWS[settings.home]

    def was_read(self, name: str) -> bool:
        """Say whether this process has read a pipeline, or tried to."""
        return name in self._read

    def kept(self, name: str) -> Mapping[str, object] | None:
        """Return the row that an earlier process read, as JSON has it, with `as_of`, when it was read; None: there is none."""
        return self._kept.get(name)

    def read(self, definition: Definition, now: datetime) -> PipelineRow:
        """Return a pipeline's row as it is now, without what runs in Airflow."""
        self._read.setdefault(definition.name, None)
        row = self._read[definition.name] = describe_row(self._settings, definition, now)
        return row

    def keep(self, names: Sequence[str], now: datetime) -> None:
        """Keep what was read for the next process: once a minute if a row is another than before, and once an hour.

        Args:
            names: of all pipelines; the row of any other is dropped.
        """
        clock = time.monotonic()
        if clock - self._looked_at < self.EVERY_S:
            return
        self._looked_at = clock
        fresh = {row.name: {**to_plain(row), "running": []} for row in self._read.values() if row is not None}
        before = {name: {**row, "as_of": None} for name, row in self._kept.items()}
        after = {name: row for name, row in before.items() if name in names}
        after |= {name: {**row, "as_of": None} for name, row in fresh.items() if name in names}
        if after == before and clock - self._written_at < self.UNCHANGED_S:
            return
        self._written_at = clock
        at = to_iso(now)
        rows = {name: {**row, "as_of": at} if name in fresh else self._kept[name] for name, row in after.items()}
        try:
            replace_json(self._file, {"version": __version__, "rows": rows})
        except OSError as error:
            log.warning("rows of the overview are not kept for the next server: %s", error)
        self._kept = rows


def describe_row(settings: Settings, definition: Definition, now: datetime) -> PipelineRow:
    """Return a pipeline's row of the overview, without what runs in Airflow."""
    seen = read_cached(settings, definition, now)
    facts = seen.facts
    curves = read_ring(settings.pipeline(definition.name), definition, now)
    return PipelineRow(
        definition.name,
        definition.description,
        describe_problem(seen.now.worst),
        {name: replace(light, title=None) for name, light in seen.now.lights.items()},
        LagCurve(curves.lag, facts.stream.lag, lag_count(facts), why_lag_is_stale(facts)),
        None if facts.verdict is None else VerdictAge(facts.verdict.at, verdict_stale(facts, now)),
        seen.jobs,
        curves.objectives.worst,
    )


def describe_summary(settings: Settings, definition: Definition, now: datetime) -> PipelineSummary:
    """Return what is polled of one pipeline, without what runs in Airflow."""
    seen = read_cached(settings, definition, now)
    return PipelineSummary(
        definition.name,
        definition.description,
        definition.runbook,
        NowView.of(seen.now),
        tuple(describe_facts(seen.facts, now)),
        seen.jobs,
        {"alerts": len(seen.facts.alerts)},
        stamps_of(settings, seen.facts, now),
    )


def describe_problem(problem: Problem) -> ProblemView:
    """Return a problem as it is shown."""
    return ProblemView(
        problem.level,
        problem.kind,
        problem.headline,
        problem.since,
        f"{problem.touches[:1].upper()}{problem.touches[1:]}." if problem.touches else "",
        problem.next,
        TabLink(problem.tab, f"Open {TABS[problem.tab]}") if problem.tab else None,
        problem.sentence,
        NEXT_ACTS.get(problem.alert or problem.kind, ()) if problem.level in (BAD, WARN, NONE) else (),
    )


@dataclass(frozen=True)
class RingSummary:
    """What a row of the overview shows of a pipeline's ring, and the definition that it was judged by."""

    definition: Definition
    lag: tuple[int | None, ...]
    objectives: ObjectivesView


def read_ring(home: PipelineHome, definition: Definition, now: datetime) -> RingSummary:
    """Return the lag of the last hours and what is left of the objectives; four levels are read, once in five minutes."""
    step = LEVELS[2].start_of(now)
    with _LOCK:
        kept = _RINGS.get(home.root)
    if kept is not None and kept[0] == step and kept[1].definition is definition:
        return kept[1]
    read = RingSummary(definition, spark_points(home, now), ObjectivesView.read(home, definition, now))
    with _LOCK:
        _RINGS[home.root] = (step, read)
    return read


def spark_points(home: PipelineHome, now: datetime) -> tuple[int | None, ...]:
    """Return the lag of the last six hours in 36 points, oldest first, the largest of each ten minutes; None where it is not known."""
    level = LEVELS[1]
    slots = level.read(home, now)
    points: list[int | None] = [None] * SPARK_POINTS
    width = int(level.span.total_seconds()) // SPARK_POINTS
    first = level.start_of(now) - 299 * level.step_s
    lags = slots["most"][:, CURVES.index("lag")] if len(slots) else np.empty(0)
    for start, lag in zip(slots["start"].tolist(), lags.tolist(), strict=True):
        place = min((start - first) // width, SPARK_POINTS - 1)
        if not math.isnan(lag) and place >= 0:
            points[place] = max(points[place] or 0, int(lag))
    return tuple(points) if any(point is not None for point in points) else ()


def stamps_of(settings: Settings, facts: Facts, now: datetime) -> dict[str, str]:
    """Return a short text for each tab that changes when the data of that tab changed. Files and tables are looked at, not read."""
    home = settings.pipeline(facts.name)
    tables = home.tables
    sequence = max((entry.seq for entry in (facts.head, facts.published) if entry is not None), default=0)
    run = "" if facts.verdict is None else facts.verdict.run
    operation = "" if facts.operation is None else f"{facts.operation.id}/{facts.operation.step}"
    parts: Mapping[str, tuple[object, ...]] = {
        "health": (int(now.timestamp()) // 60, sequence),
        "correctness": (run, sequence),
        "timelines": (
            sequence,
            operation,
            _stat(home.operations),
            *_stats(home.savepoints),
            _stat(home.root / "timelines"),
        ),
        "backfills": (sequence, Table(tables.corrections).newest_commit(), *_stats(home.backfills)),
        "letters": tuple(
            Table(table).newest_commit() for table in (tables.dead_letters, tables.amendments, tables.late_rows)
        ),
        "alerts": (_stat(settings.home / "alerts" / "state.json"), _stat(home.repairs), run, sequence),
    }
    return {tab: hashlib.sha256(repr(each).encode()).hexdigest()[:10] for tab, each in parts.items()}


def _stat(path: object) -> int:
    try:
        return Path(str(path)).stat().st_mtime_ns
    except OSError:
        return -1


def _stats(folder: object) -> tuple[int, ...]:
    """Return when a folder and the folders in it were changed, the newest 50 of them."""
    try:
        inner = [_stat(each) for each in Path(str(folder)).iterdir()]
    except OSError:
        return (-1,)
    return (_stat(folder), *sorted(inner, reverse=True)[:50])


_LOCK = threading.Lock()
_SEEN: dict[tuple[Path, str], tuple[float, Snapshot]] = {}
_RINGS: dict[Path, tuple[int, RingSummary]] = {}
_ROWS: dict[Path, OverviewRows] = {}
