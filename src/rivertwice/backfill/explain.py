"""A plan in words: what will be read, recomputed and replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rivertwice.backfill.model import BackfillPlan, count_offsets
from rivertwice.backfill.ranges import HalfOpenRange
from rivertwice.instants import iso_of_ms

SHOWN = 6


def explain_plan(plan: BackfillPlan) -> str:
    """Return the plan as text for a person: one fact a line."""
    lines = [f"backfill   {plan.id} of {plan.pipeline} ({plan.reason})", *_what(plan)]
    for part in plan.cut:
        lines.append(f"left out   [{iso_of_ms(part.start_ms)}, {iso_of_ms(part.end_ms)}): {part.why}")
    lines.append(f"read       {plan.records} records as of the last committed batch")
    for name, runs in (("archive", plan.archive), ("Kafka", plan.kafka)):
        for topic, parts in runs.items():
            lines.append(f"           {count_offsets({topic: parts})} from {name}, {topic}: {_offsets(parts)}")
    estimates = [chunk.estimate for chunk in plan.chunks]
    lines += [
        f"work       {len(plan.chunks)} chunk{'s' if len(plan.chunks) != 1 else ''}, one commit each, "
        f"about {max(estimates, default=0)} rows in the largest",
        f"changes    {_changes(plan)}; "
        + (f"replaces what {', '.join(plan.replaces)} published" if plan.replaces else "no publication is replaced"),
        f"runs       bundle {plan.bundle}; serves while the head's semantics are {plan.semantics[:12]}",
    ]
    if plan.amendments:
        lines.append(f"amended    decisions about dead letters are applied up to {plan.amendments}")
    if plan.attempt:
        lines.append(f"attempt    {plan.attempt + 1}: the audit of the same work failed before")
    return "\n".join(lines)


def _what(plan: BackfillPlan) -> list[str]:
    """Return which windows are published, or which sessions and which of them reach beyond what was asked."""
    if plan.sessions is None:
        ranges = [f"           {line}" for line in _ranges(plan.ranges)]
        return [f"windows    {plan.windows} of {_windows(plan)}, {_pieces(plan.ranges)}", *ranges]
    sessions = plan.sessions
    (first, *more) = _ranges(sessions.asked)
    lines = [
        f"asked      sessions that hold a time of {first}",
        *(f"           {line}" for line in more),
        f"sessions   {plan.windows} settled, gap {_duration(plan.window_ms)}",
    ]
    if sessions.vanishing:
        lines.append(f"           {len(sessions.vanishing)} that are served vanish: no record is theirs any more")
    if sessions.beyond_count:
        lines.append(
            f"extended   {sessions.beyond_count} of them, with what is served of their records, reach out of what was asked: a session is "
            "published whole"
        )
        lines += [
            f"           [{iso_of_ms(session.start_ms)}, {iso_of_ms(session.end_ms)}) of {session.key}"
            for session in sessions.beyond
        ]
        rest = sessions.beyond_count - len(sessions.beyond)
        lines += [f"           and {rest} more"] if rest else []
    return lines


def _changes(plan: BackfillPlan) -> str:
    if plan.sessions is None:
        return f"{plan.late} of the windows were found LATE"
    return f"{plan.late} are served with fewer records now, or in other sessions"


def _ranges(ranges: Sequence[HalfOpenRange]) -> list[str]:
    shown = [f"[{iso_of_ms(start)}, {iso_of_ms(end)})" for start, end in ranges[:SHOWN]]
    return shown if len(ranges) <= SHOWN else [*shown, f"and {len(ranges) - SHOWN} more"]


def _pieces(ranges: Sequence[HalfOpenRange]) -> str:
    return "in one piece" if len(ranges) == 1 else f"in {len(ranges)} pieces"


def _offsets(parts: Mapping[int, tuple[HalfOpenRange, ...]]) -> str:
    return ", ".join(f"{p} " + " ".join(f"[{start}, {end})" for start, end in runs) for p, runs in parts.items())


def _windows(plan: BackfillPlan) -> str:
    size = _duration(plan.window_ms)
    return (
        f"{size}, closed"
        if plan.step_ms is None
        else f"{size} every {_duration(plan.step_ms)}, closed, by their starts"
    )


def _duration(ms: int) -> str:
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms % size == 0:
            return f"{ms // size} {unit}"
    return f"{ms} ms"
