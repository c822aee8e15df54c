"""Repairs of windows: which is due, who decides on it, its outcome, and the plan that would do it.

A reconcile's gate finds rows that are served and wrong: DEFECT, or so many LATE ones that the pipeline's limit is passed. The
smallest backfill that cures them has the windows of these rows and no other, without those that were published since. `backfill`
plans and runs it as any other; here is only what a repair adds: the choice, the question to a person, the budget, the outcome.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from rivertwice.backfill import (
    BackfillPlan,
    BackfillRequest,
    HalfOpenRange,
    intersect,
    merge,
    observe_backfill,
    plan_backfill,
    subtract,
)
from rivertwice.core import PipelineHome, RequestError, Settings, counted, iso_of_ms, lock, parse_iso, to_ms, to_plain
from rivertwice.definition import RepairMode, RepairPolicy
from rivertwice.reconcile import SERVED, newest_reconcile
from rivertwice.storage import read_json, replace_json
from rivertwice.timeline import Verdict, rows_of, verdicts_of

DECLINED_FOR = timedelta(days=7)
"""How long a repair that a person declined is not proposed again. If other windows differ too, a person is asked for all."""
VERDICT_OF = {"defect": Verdict.DEFECT, "late_share": Verdict.LATE}
"""Kind of a gate's alert to the verdict of the rows that it is about."""


class RepairOutcome(StrEnum):
    """How a repair is, or how it ended."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    DECLINED = "declined"
    UNANSWERED = "unanswered"
    UNNEEDED = "unneeded"
    FAILED = "failed"

    @property
    def note(self) -> str:
        """How it ended, in a sentence."""
        return _NOTES[self]


_NOTES = {
    RepairOutcome.DONE: "published, and a reconcile found nothing wrong in its windows",
    RepairOutcome.DECLINED: "a person declined it",
    RepairOutcome.UNANSWERED: "there was no answer in time; the next reconcile that finds it again asks again",
    RepairOutcome.UNNEEDED: "these windows were published meanwhile; nothing was left to do",
    RepairOutcome.FAILED: "it failed; the DAG run shows where",
}
SHOWN = 6


@dataclass(frozen=True)
class Proposal:
    """The smallest backfill that cures what a reconcile found.

    Attributes:
        kinds: of the alerts that it cures.
        ranges: where its windows start (epoch ms, half-open); for sessions, the stretches of time of those that differ.
        windows: number of windows, or of sessions.
        rows: verdict to rows that are served now and differ.
        records: records that it reads; None if that is only known once it is planned, as for sessions.
    """

    reconcile: str
    kinds: tuple[str, ...]
    ranges: tuple[HalfOpenRange, ...]
    windows: int
    rows: Mapping[str, int] = field(default_factory=dict)
    records: int | None = None

    @property
    def verdicts(self) -> tuple[str, ...]:
        """The verdicts of the rows that it cures."""
        return tuple(VERDICT_OF[kind] for kind in self.kinds)

    @property
    def text(self) -> str:
        """The smallest backfill in a line."""
        shown = ", ".join(f"[{iso_of_ms(start)}, {iso_of_ms(end)})" for start, end in self.ranges[:SHOWN])
        more = f" and {len(self.ranges) - SHOWN} more" if len(self.ranges) > SHOWN else ""
        cost = "" if self.records is None else f", reads {counted(self.records, 'record', 'records')}"
        verb = "is" if sum(self.rows.values()) == 1 else "are"
        where = counted(self.windows, "window", "windows")
        return f"{count_rows(self.rows)} {verb} served in {where}: {shown}{more}{cost}"

    def question(self, pipeline: str) -> str:
        """Return what is asked of a person, in a line."""
        return f"Repair {counted(self.windows, 'window', 'windows')} of {pipeline}?"

    def ask(self, pipeline: str, decision: Decision, plan: str, reason: str) -> str:
        """Return what a person reads before they approve, as Markdown."""
        parts = [
            f"Asked for: {reason or 'the newest reconcile found it'}. {decision.why[0].upper()}{decision.why[1:]}.",
            f"Served now: {self.text}, as reconcile `{self.reconcile}` of {pipeline} found.",
            f"```\n{plan}\n```" if plan else "The sessions are looked up, and planned, once this is approved.",
            "Approved, it is computed, audited and published; then a reconcile looks at these windows again, and the alert ends with "
            "the numbers of before and after. What was repaired meanwhile is left out.",
        ]
        return "\n\n".join(parts)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Proposal:
        """Read the fields of a proposal, also after JSON."""
        ranges = tuple((int(start), int(end)) for start, end in values["ranges"])
        return cls(**{**values, "kinds": tuple(values["kinds"]), "ranges": ranges})


@dataclass(frozen=True)
class Decision:
    """Whether a repair is made, and who decides.

    Attributes:
        asks: whether a person has to approve.
    """

    wanted: bool
    asks: bool
    why: str


@dataclass(frozen=True)
class RepairRecord:
    """One repair, from its proposal to its end, as it is stored.

    Attributes:
        id: of the DAG run.
        by: who approved or declined it. reason: why it was begun. answer: why it was approved or declined.
        after: verdict to rows that are served in the same windows when it ended; None before that.
        note: how it ended, in a sentence.
    """

    id: str
    proposal: Proposal
    at: datetime
    outcome: RepairOutcome = RepairOutcome.WAITING
    by: str = ""
    reason: str = ""
    answer: str = ""
    backfill: str = ""
    after: Mapping[str, int] | None = None
    ended_at: datetime | None = None
    note: str = ""

    @property
    def is_open(self) -> bool:
        """Whether it waits for a person, or is at work."""
        return self.outcome in (RepairOutcome.WAITING, RepairOutcome.RUNNING)

    @property
    def before(self) -> str:
        """Rows that were wrong when it was proposed, in words."""
        return count_rows(self.proposal.rows)

    @property
    def left(self) -> str | None:
        """Rows that are wrong in the same windows since it ended, in words; None before that."""
        return None if self.after is None else count_rows(self.after)

    @property
    def before_and_after(self) -> str:
        """What a finished repair changed."""
        windows = counted(self.proposal.windows, "window", "windows")
        return (
            f"backfill {self.backfill} repaired it, approved by {self.by}; before: {self.before} served in {windows}; "
            f"after: {count_rows(self.after or {})}"
        )

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RepairRecord:
        """Read a record that was made plain."""
        ended = values["ended_at"]
        return cls(
            **{
                **values,
                "proposal": Proposal.from_json(values["proposal"]),
                "outcome": RepairOutcome(values["outcome"]),
                "at": parse_iso(values["at"]),
                "ended_at": None if ended is None else parse_iso(ended),
            }
        )


def curable(kinds: Collection[str]) -> tuple[str, ...]:
    """Return which of a gate's kinds of alerts a repair is about, the graver first."""
    return tuple(kind for kind in VERDICT_OF if kind in kinds)


def decide(policy: RepairPolicy, proposal: Proposal | None, earlier: Sequence[RepairRecord], now: datetime) -> Decision:
    """Decide whether a repair is made, and whether a person has to approve it.

    A DEFECT is asked for under every policy: a row that no rule explains is looked at before it is replaced. So are windows of
    which a person declined the repair a short time ago: no policy overrules that person.
    """
    if policy.policy == RepairMode.OFF:
        return Decision(False, False, "the definition says repair: {policy: off}")
    if proposal is None or not proposal.windows:
        return Decision(
            False, False, "no served row is DEFECT, and no late share is above its limit; or it was published since"
        )
    declined = _declined(proposal, earlier, now)
    if not subtract(proposal.ranges, declined):
        return Decision(
            False, False, f"a person declined the repair of these windows less than {DECLINED_FOR.days} days ago"
        )
    if Verdict.DEFECT in proposal.verdicts:
        return Decision(True, True, "a DEFECT is looked at by a person before it is replaced")
    if policy.policy != RepairMode.AUTOMATIC:
        return Decision(True, True, "the definition says repair: {policy: ask}")
    if intersect(proposal.ranges, declined):
        return Decision(
            True, True, f"a person declined the repair of some of these windows less than {DECLINED_FOR.days} days ago"
        )
    if proposal.records is None:
        return Decision(True, True, "how many records it reads is only known once it is planned")
    over = [
        f"{cost} {what}, more than the {limit} of the budget"
        for what, cost, limit in (
            ("windows", proposal.windows, policy.budget.windows),
            ("records", proposal.records, policy.budget.records),
        )
        if cost > limit
    ]
    if over:
        return Decision(True, True, "it costs " + " and ".join(over))
    return Decision(True, False, "LATE rows within the budget, as the definition allows")


def _declined(proposal: Proposal, earlier: Sequence[RepairRecord], now: datetime) -> tuple[HalfOpenRange, ...]:
    """Return the windows of which a person declined such a repair a short time ago, and that were not repaired since."""
    declined: tuple[HalfOpenRange, ...] = ()
    for record in earlier:
        ranges = record.proposal.ranges
        if record.outcome == RepairOutcome.DONE:
            declined = subtract(declined, ranges)
        elif (
            record.outcome == RepairOutcome.DECLINED
            and record.ended_at is not None
            and now - record.ended_at < DECLINED_FOR
        ):
            declined = merge([*declined, *ranges]) if set(proposal.kinds) <= set(record.proposal.kinds) else declined
    return declined


def count_rows(rows: Mapping[str, int]) -> str:
    """Return verdicts and their numbers of rows, the graver first."""
    parts = [
        f"{counted(rows[verdict], 'row', 'rows')} {verdict}"
        for verdict in (Verdict.DEFECT, Verdict.LATE)
        if rows.get(verdict)
    ]
    return " and ".join(parts) or "no row DEFECT or LATE"


# Find the smallest backfill that cures what the newest reconcile found, count rows again, and keep the outcome of repairs.

FORMAT = 1
KEPT = 50
"""Repairs that are kept; older ones are in Airflow's own runs."""


def find_proposal(
    settings: Settings, pipeline: str, kinds: Collection[str]
) -> tuple[Proposal, BackfillPlan | None] | None:
    """Return the smallest backfill that cures the newest reconcile's alerts of some kinds, and its plan; None: nothing differs.

    Sessions are only planned from their records, which takes Spark: then there is no plan.

    Raises:
        RequestError: the windows cannot be recomputed: the pipeline is a fold, or they are not closed on the head's path.
        LogGapError: neither the archive nor Kafka has a record that is needed.
        ServiceError: Kafka does not answer.
    """
    home, wanted = settings.pipeline(pipeline), curable(kinds)
    newest = newest_reconcile(home)
    if newest is None or not wanted:
        return None
    verdicts = tuple(VERDICT_OF[kind] for kind in wanted)
    view = observe_backfill(settings, pipeline, verdicts)
    if view.sessions is not None:
        seeds, ranges = view.sessions.stale, view.sessions.stale_starts(view.window_ms)
        if not seeds:
            return None
        rows = count_rows_in(home, newest["run"], ranges, verdicts)
        return Proposal(newest["run"], wanted, ranges, len(seeds), rows), None
    if not view.stale:
        return None
    plan = plan_backfill(BackfillRequest(pipeline, None, "repair", verdicts=verdicts), view)
    rows = count_rows_in(home, newest["run"], plan.ranges, verdicts)
    return Proposal(newest["run"], wanted, plan.ranges, plan.windows, rows, plan.records), plan


def plan_approved(settings: Settings, pipeline: str, proposal: Proposal, reason: str) -> BackfillPlan | None:
    """Return the plan of what was approved and still differs; None: nothing does any more. Sessions are not planned here."""
    view = observe_backfill(settings, pipeline, proposal.verdicts)
    if not still_differs(view.stale, proposal.ranges):
        return None
    request = BackfillRequest(pipeline, None, reason, verdicts=proposal.verdicts, within=proposal.ranges)
    return plan_backfill(request, view)


def sessions_still_differ(settings: Settings, pipeline: str, proposal: Proposal) -> bool:
    """Say whether any of the sessions that were approved still differs."""
    view = observe_backfill(settings, pipeline, proposal.verdicts)
    return view.sessions is not None and bool(view.sessions.stale_within(proposal.ranges))


def still_differs(stale: Sequence[HalfOpenRange], approved: Sequence[HalfOpenRange]) -> bool:
    """Say whether any window of some ranges is still stale. Pure."""
    return any(start < high and low < end for start, end in stale for low, high in approved)


def count_rows_in(
    home: PipelineHome,
    run: str,
    ranges: Sequence[HalfOpenRange],
    verdicts: Sequence[str] = (Verdict.DEFECT, Verdict.LATE),
) -> dict[str, int]:
    """Return verdict to served rows that a reconcile found so, in windows that start in some ranges."""
    counted: Counter[str] = Counter()
    for row in verdicts_of(home, run, ranges=list(ranges), wanted=list(verdicts)):
        start = to_ms(row["window_start"])
        if row["pair"] == SERVED and any(low <= start < high for low, high in ranges):
            counted[row["verdict"]] += rows_of(row)
    return dict(counted)


class Repairs:
    """The repairs of a pipeline, as they are kept in its home."""

    def __init__(self, home: PipelineHome) -> None:
        """Read nothing yet."""
        self._home = home

    def read(self) -> list[RepairRecord]:
        """Return the repairs, oldest first.

        Raises:
            RequestError: the file is of a format that this version does not read.
        """
        stored = read_json(self._home.repairs)
        if stored is None:
            return []
        if stored.get("format") != FORMAT:
            message = f"{self._home.repairs} has format {stored.get('format')!r}, this version reads {FORMAT}; use the version that wrote it"
            raise RequestError(message)
        return [RepairRecord.from_json(record) for record in stored["repairs"]]

    @property
    def kinds_at_work(self) -> frozenset[str]:
        """The kinds of alerts that a repair is at work on, which will end them with the numbers of before and after."""
        running = (record for record in self.read() if record.outcome == RepairOutcome.RUNNING)
        return frozenset(kind for record in running for kind in record.proposal.kinds)

    def keep_answer(self, run: str, reason: str) -> None:
        """Keep why a person approved or declined the repair of a run; nothing is kept of a run that has none."""
        stored = next((record for record in self.read() if record.id == run), None)
        if stored is not None:
            self.write(run, lambda newer: replace(newer or stored, answer=reason))

    def write(self, run: str, change: Callable[[RepairRecord | None], RepairRecord]) -> RepairRecord:
        """Store a repair and return it; one of the same run is replaced, so a task that is tried again leaves one.

        Args:
            run: id of the DAG run.
            change: gives the record from the one that is stored.
        """
        file = self._home.repairs
        with lock(file.with_suffix(".lock"), mode=0o600):
            known = self.read()
            changed = change(next((record for record in known if record.id == run), None))
            kept = [record for record in known if record.id != run]
            records = sorted([*kept, changed], key=lambda record: (record.at, record.id))[-KEPT:]
            replace_json(file, {"format": FORMAT, "repairs": to_plain(records)})
        return changed
