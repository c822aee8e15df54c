"""Which repair is due, who decides on it, and what became of it. Pure.

A reconcile's gate finds rows that are served and wrong: DEFECT, or so many LATE ones that the pipeline's limit is passed. The
smallest backfill that cures them has the windows of these rows and no other, without those that were published since. `backfill`
plans and runs it as any other; here is only what a repair adds: the choice, the question to a person, the budget, the outcome.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

from rivertwice.backfill.ranges import HalfOpenRange, intersect, merge, subtract
from rivertwice.instants import iso_of_ms, parse_iso, to_iso
from rivertwice.pipeline.repair_policy import AUTOMATIC, OFF, RepairPolicy
from rivertwice.printable import counted
from rivertwice.verdicts import DEFECT, LATE

DECLINED_FOR = timedelta(days=7)
"""A repair that a person declined is not proposed again for so long. If other windows differ too, a person is asked for all."""
VERDICT_OF = {"defect": DEFECT, "late_share": LATE}
"""Kind of a gate's alert to the verdict of the rows that it is about."""
WAITING, RUNNING, DONE, DECLINED, UNANSWERED, UNNEEDED, FAILED = (
    "waiting",
    "running",
    "done",
    "declined",
    "unanswered",
    "unneeded",
    "failed",
)
SHOWN = 6


@dataclass(frozen=True)
class Proposal:
    """The smallest backfill that cures what a reconcile found.

    Attributes:
        reconcile: the run that found it.
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

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Proposal:
        """Read what `to_json` returned, also after JSON."""
        ranges = tuple((int(start), int(end)) for start, end in values["ranges"])
        return cls(**{**values, "kinds": tuple(values["kinds"]), "ranges": ranges})


@dataclass(frozen=True)
class Decision:
    """Whether a repair is made, and who decides.

    Attributes:
        wanted: whether anything is to be done at all.
        asks: whether a person has to approve.
        why: the reason, in a sentence.
    """

    wanted: bool
    asks: bool
    why: str


@dataclass(frozen=True)
class RepairRecord:
    """One repair, from its proposal to its end, as it is stored.

    Attributes:
        id: of the DAG run.
        outcome: one of the words above.
        by: who approved or declined it. reason: why it was begun. answer: why it was approved or declined.
        after: verdict to rows that are served in the same windows when it ended; None before that.
        note: how it ended, in a sentence.
    """

    id: str
    proposal: Proposal
    at: datetime
    outcome: str = WAITING
    by: str = ""
    reason: str = ""
    answer: str = ""
    backfill: str = ""
    after: Mapping[str, int] | None = None
    ended_at: datetime | None = None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain values, instants as text."""
        ended = None if self.ended_at is None else to_iso(self.ended_at)
        return {**asdict(self), "at": to_iso(self.at), "ended_at": ended}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RepairRecord:
        """Read what `to_json` returned."""
        ended = values["ended_at"]
        return cls(
            **{
                **values,
                "proposal": Proposal.from_json(values["proposal"]),
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
    if policy.policy == OFF:
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
    if DEFECT in proposal.verdicts:
        return Decision(True, True, "a DEFECT is looked at by a person before it is replaced")
    if policy.policy != AUTOMATIC:
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
        if record.outcome == DONE:
            declined = subtract(declined, ranges)
        elif record.outcome == DECLINED and record.ended_at is not None and now - record.ended_at < DECLINED_FOR:
            declined = merge([*declined, *ranges]) if set(proposal.kinds) <= set(record.proposal.kinds) else declined
    return declined


def headline(pipeline: str, proposal: Proposal) -> str:
    """Return what is asked of a person, in a line."""
    return f"Repair {counted(proposal.windows, 'window', 'windows')} of {pipeline}?"


def describe(proposal: Proposal) -> str:
    """Return the smallest backfill in a line."""
    shown = ", ".join(f"[{iso_of_ms(start)}, {iso_of_ms(end)})" for start, end in proposal.ranges[:SHOWN])
    more = f" and {len(proposal.ranges) - SHOWN} more" if len(proposal.ranges) > SHOWN else ""
    cost = "" if proposal.records is None else f", reads {counted(proposal.records, 'record', 'records')}"
    is_one = sum(proposal.rows.values()) == 1
    where = counted(proposal.windows, "window", "windows")
    return f"{count_rows(proposal.rows)} {'is' if is_one else 'are'} served in {where}: {shown}{more}{cost}"


def count_rows(rows: Mapping[str, int]) -> str:
    """Return verdicts and their numbers of rows, the graver first."""
    parts = [f"{counted(rows[verdict], 'row', 'rows')} {verdict}" for verdict in (DEFECT, LATE) if rows.get(verdict)]
    return " and ".join(parts) or "no row DEFECT or LATE"


def before_and_after(record: RepairRecord) -> str:
    """Return what a finished repair changed."""
    return (
        f"backfill {record.backfill} repaired it, approved by {record.by}; before: {count_rows(record.proposal.rows)} served in "
        f"{counted(record.proposal.windows, 'window', 'windows')}; after: {count_rows(record.after or {})}"
    )


def ask(pipeline: str, proposal: Proposal, decision: Decision, plan: str, reason: str) -> str:
    """Return what a person reads before they approve, as Markdown."""
    parts = [
        f"Asked for: {reason or 'the newest reconcile found it'}. {decision.why[0].upper()}{decision.why[1:]}.",
        f"Served now: {describe(proposal)}, as reconcile `{proposal.reconcile}` of {pipeline} found.",
        f"```\n{plan}\n```" if plan else "The sessions are looked up, and planned, once this is approved.",
        "Approved, it is computed, audited and published; then a reconcile looks at these windows again, and the alert ends with "
        "the numbers of before and after. What was repaired meanwhile is left out.",
    ]
    return "\n\n".join(parts)
