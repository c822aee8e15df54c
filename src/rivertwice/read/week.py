"""The report of a week, for people who never open the page: what was compared, agreed, repaired, late, lost and proved.

Counts of rows are what the newest reconcile of the week says of all rows; windows, repairs, proofs and alerts are those of the week.
Of tables that grow, only what the week added is decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Self

import pyarrow.compute as pc

from rivertwice.agent import ObjectivesView
from rivertwice.core import RivertwiceError, Settings, TimeRange, parse_iso
from rivertwice.definition import load_definition
from rivertwice.read.alerts import read_past
from rivertwice.reconcile import SERVED, reconcile_runs
from rivertwice.savepoint import view_recovery
from rivertwice.storage import Table, Where
from rivertwice.timeline import Verdict, publications_of, read_sequence

WEEK = timedelta(days=7)


@dataclass(frozen=True)
class PipelineWeek:
    """A week of one pipeline.

    Attributes:
        reconciles: how many ended in the week; the newest one says the counts of rows. windows: those that they compared.
        rows, agree, late, wrong, not_comparable: served rows that were compared, and how many of each verdict.
        lost: records without an explanation in the balance. None: no reconcile ended.
        repairs, repaired_rows: backfills that were published, and their rows. proved: savepoints. incidents: alerts that began.
        unread: why nothing could be read; all else is 0 then.
    """

    name: str
    reconciles: int = 0
    windows: int = 0
    rows: int = 0
    agree: int = 0
    late: int = 0
    wrong: int = 0
    not_comparable: int = 0
    lost: int | None = None
    repairs: int = 0
    repaired_rows: int = 0
    proved: int = 0
    incidents: int = 0
    objectives: ObjectivesView = field(default_factory=ObjectivesView)
    unread: str = ""

    @property
    def is_well(self) -> bool:
        """Whether something was compared, and all of it is right."""
        return bool(self.reconciles) and not (self.wrong or self.lost or self.not_comparable or self.unread)


SUMMED = (
    "reconciles", "windows", "rows", "agree", "late", "wrong", "not_comparable", "lost", "repairs", "repaired_rows", "proved",
    "incidents",
)  # fmt: skip


@dataclass(frozen=True)
class WeekReport:
    """A week of all pipelines, those first that need a look; incidents of the whole home are in the totals alone."""

    since: datetime
    until: datetime
    totals: PipelineWeek
    sentence: str
    pipelines: tuple[PipelineWeek, ...]

    @property
    def page(self) -> str:
        """The report as one HTML file."""
        from rivertwice.read.week_page import page_of

        return page_of(self)

    @classmethod
    def read(cls, settings: Settings, names: Iterable[str], until: datetime) -> Self:
        """Return the week that ends at an instant, of some pipelines."""
        span = TimeRange(until - WEEK, until)
        alerts = [line for line in read_past(settings.home / "alerts.jsonl") if _began_in(line, span)]
        weeks = sorted(
            (_read(settings, name, span, alerts) for name in names), key=lambda each: (each.is_well, each.name)
        )
        sums: dict[str, Any] = {name: sum(getattr(each, name) or 0 for each in weeks) for name in SUMMED}
        sums["incidents"] += _incidents(alerts, None)
        totals = PipelineWeek("all", **sums)
        return cls(span.start, span.end, totals, sentence_of(weeks, totals), tuple(weeks))


def sentence_of(weeks: Sequence[PipelineWeek], totals: PipelineWeek) -> str:
    """Return the totals in one sentence. Pure."""
    if not totals.reconciles:
        return f"Of {len(weeks)} pipelines nothing was compared this week, so nothing is known of their results."
    idle = sum(not each.reconciles for each in weeks)
    without = f" ({idle} of them had no reconcile)" if idle else ""
    return (
        f"{len(weeks)} pipelines{without} compared {totals.windows:,} windows: of {totals.rows:,} served rows {totals.agree:,} agree, "
        f"{totals.late:,} are late, {totals.wrong:,} are wrong and {totals.not_comparable:,} cannot be compared; "
        f"{totals.lost or 0:,} records are lost. {totals.repairs:,} repairs were published, {totals.proved:,} savepoints were proved, "
        f"and {totals.incidents:,} alerts began."
    )


def _read(settings: Settings, name: str, span: TimeRange, alerts: Sequence[Mapping[str, Any]]) -> PipelineWeek:
    try:
        definition = load_definition(settings.definition_folder(name))
        home = settings.pipeline(name)
        objectives = ObjectivesView.read(home, definition, span.end)
        runs = [run for run in reconcile_runs(home, since=span.start) if run["created_at"] < span.end]
        entries = read_sequence(home)
        published = {each.seq for each in entries if span.start <= each.created_at < span.end}
        repairs = [each for each in publications_of(entries) if each.seq in published]
        proofs = [each.proof for each in view_recovery(settings, name).savepoints if each.proof is not None]
        windows = _windows(home.tables.verdicts, [run["run"] for run in runs])
    except (RivertwiceError, OSError, ValueError, KeyError) as error:
        return PipelineWeek(name, incidents=_incidents(alerts, name), unread=str(error))
    newest = runs[-1] if runs else None
    counts = {} if newest is None else newest["counts"].get(SERVED, {})
    agree, late, wrong, unlike = (
        counts.get(each, 0) for each in (Verdict.AGREES, Verdict.LATE, Verdict.DEFECT, Verdict.NOT_COMPARABLE)
    )
    return PipelineWeek(
        name,
        len(runs),
        windows,
        agree + late + wrong + unlike,
        agree,
        late,
        wrong,
        unlike,
        None if newest is None else abs(newest["balance"]["total"]["unexplained"]),
        len(repairs),
        sum(each.rows or 0 for each in repairs),
        sum(span.start <= parse_iso(proof["made_at"]) < span.end for proof in proofs),
        _incidents(alerts, name),
        objectives,
    )


def _windows(verdicts: Any, runs: Sequence[str]) -> int:
    """Return how many closed windows of what is served these runs judged."""
    if not runs:
        return 0
    wanted = Where.all([Where("run").is_among(runs), Where("pair").equals(SERVED)])
    rows = Table(verdicts).read(columns=["window_start", "verdict"], matching=wanted)
    if rows is None:
        return 0
    closed = rows.filter(pc.not_equal(rows["verdict"], Verdict.OPEN))
    return int(pc.count_distinct(closed["window_start"]).as_py())


def _began_in(line: Mapping[str, Any], span: TimeRange) -> bool:
    return bool(line.get("since")) and span.start <= parse_iso(str(line["since"])) < span.end


def _incidents(alerts: Sequence[Mapping[str, Any]], name: str | None) -> int:
    return len({line.get("id") for line in alerts if line.get("pipeline") == name})
