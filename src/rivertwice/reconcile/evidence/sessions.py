"""Rows of sessions: windows of stream and truth may differ though they are made of the same records. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from rivertwice.reconcile.evidence.evidence import Evidence
from rivertwice.reconcile.evidence.explanations import Explained, differing, say_counts
from rivertwice.reconcile.model import LateRow, RowId, ServedSession, SessionGroup, Values
from rivertwice.verdicts import DEFECT, LATE


@dataclass(frozen=True)
class SessionEvidence(Evidence):
    """What a judge of sessions looks at.

    Attributes:
        groups: by address, the sessions that are not the same on both sides, with the records that made them differ.
    """

    groups: Mapping[RowId, SessionGroup] = field(default_factory=dict)

    def group_of(self, row: RowId) -> SessionGroup | None:
        """Return the sessions that a row belongs to, where they are not the same on both sides, or None."""
        return self.groups.get(row)

    def parts_to_serve(self, published: Set[RowId], closed_ms: int) -> set[RowId]:
        """Return the sessions that the stream made of one of the truth, and that no publication replaced."""
        groups = (group for group in self.groups.values() if group.truth not in published)
        return {part for group in groups for part in group.parts if part.end_ms <= closed_ms}

    def explain(self, row: RowId, *, dirty: bool) -> Explained:
        """Explain a session by all that belongs to it, where it is not the same on both sides."""
        group = self.group_of(row)
        return super().explain(row, dirty=dirty) if group is None else self._explain_group(group)

    def explain_served(
        self, row: RowId, got: Values | None, base: Values | None, *, published: bool, late: int, amended: int
    ) -> Explained:
        """Explain what is served of a session that no publication overlaps by all that belongs to it."""
        group = None if published else self.group_of(row)
        if group is None or differing(self.shape, got, base):
            return super().explain_served(row, got, base, published=published, late=late, amended=amended)
        explained = self._explain_group(group)
        if explained.verdict == LATE and row == group.truth:
            return explained._replace(records=len(group.late))
        return explained

    def _explain_group(self, group: SessionGroup) -> Explained:
        """Explain sessions of the stream against the one session of the truth that holds them all.

        No record may be missing but the late ones, and there must be a named record that made them differ: one that was
        dropped, or one that came when a part of its session had been emitted.
        """
        count = self.shape.count
        total = count(self.truth.get(group.truth))
        missing = total - sum(count(self.expected.get(part)) for part in group.parts)
        late, amended = len(group.late), len(group.amended)
        if missing != late + amended:
            caused = late + amended
            reason = f"the late rule and amendments explain {caused} of {missing} missing records of the session"
            return Explained(DEFECT, reason, missing - caused)
        counted = say_counts(late, amended, total, "came too late")
        reasons = [counted] if counted else []
        if group.split:
            reasons.append(_describe_split(group.split, len(group.parts), total))
        if not reasons:
            return Explained(DEFECT, "the session differs, but no record explains it")
        return Explained(LATE, "; ".join(reasons))


def _describe_split(split: Sequence[LateRow], parts: int, total: int) -> str:
    where = f"{split[0].topic}/{split[0].partition}@{split[0].offset}"
    return (
        f"split: the session came apart into {parts}, for {len(split)} of {total} records (the first is {where}) "
        "came when a part of it had been emitted"
    )


def explain_published_session(evidence: Evidence, session: ServedSession, row: RowId, got: Values | None) -> Explained:
    """Explain what is served of a session that publications overlap."""
    total = sum(evidence.shape.count(evidence.truth.get(address)) for address in (session.truth, *session.others))
    names = differing(evidence.shape, got, session.to_serve.get(row))
    missing = len(session.late) + len(session.since) if row == session.truth else 0
    if names:
        difference = evidence.shape.count(session.to_serve.get(row)) - evidence.shape.count(got)
        return Explained(DEFECT, f"what is served differs in {', '.join(names)} and no cause explains it", difference)
    if session.unexplained:
        detail = f"{session.unexplained} of {total} records are in no session that is served, though they came in time"
        return Explained(DEFECT, f"{detail}; no cause explains it", session.unexplained)
    counted = say_counts(len(session.late), len(session.amended), total, "came too late")
    reasons = [counted] if counted else []
    if session.since:
        reasons.append(f"{len(session.since)} of {total} records came after the newest publication")
    if session.former:
        reasons.append(f"{len(session.former)} records of what is published were amended then, and are not so any more")
    if session.split:
        reasons.append(_describe_split(session.split, len(session.to_serve), total))
    if not reasons:
        return Explained(DEFECT, "the session differs, but no record explains it")
    return Explained(LATE, "; ".join(reasons), missing)
