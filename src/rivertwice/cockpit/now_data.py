"""What is wrong with what a pipeline serves, by its newest reconcile, its own suite and its open alerts. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from rivertwice.alerts.kinds import KINDS, PIPELINE, TASK_FAILED, meaning_of
from rivertwice.alerts.model import CRITICAL, Alert
from rivertwice.cockpit.facts import Facts, Finding, Verdict
from rivertwice.cockpit.problems import ALERTS, BAD, DATA, NONE, WARN, Problem, moment, share
from rivertwice.printable import counted
from rivertwice.reconcile.gate import DEAD_SHARE
from rivertwice.verdicts import DEFECT, LATE, NOT_COMPARABLE

UNSCHEDULED = timedelta(days=1)
"""Where no reconcile is scheduled, a verdict that is older than this, with new batches since, is stale."""
_OWN = frozenset({"defect", "late_share", "not_comparable", "quality", DEAD_SHARE})


def find_data_problems(facts: Facts, now: datetime) -> Iterator[Problem]:
    """Yield what is wrong with what is served, and the open alerts about anything else."""
    if facts.verdict is None:
        yield from _never(facts, now)
    else:
        yield from _defect(facts, facts.verdict)
        yield from _late(facts, facts.verdict)
        yield from _not_comparable(facts, facts.verdict)
        yield from _findings(facts, facts.verdict)
    yield from _dead(facts)
    yield from _quality(facts)
    yield from _stale(facts, now)
    yield from (_alert(facts, alert) for alert in facts.alerts)


def expected_every(facts: Facts) -> timedelta:
    """Return how old a verdict may be while new batches come: two rounds of the reconcile's schedule."""
    return UNSCHEDULED if facts.reconcile_every is None else 2 * facts.reconcile_every


def why_stale(facts: Facts) -> str | None:
    """Return why the newest verdict is not about what is served now; None if it is, whatever its age."""
    verdict = facts.verdict
    if verdict is None:
        return None
    if verdict.left_by is not None:
        return f"it is from before the head moved to {verdict.left_by.payload['timeline']} at {moment(verdict.left_by.created_at)}"
    if facts.published is not None and verdict.sequence < facts.published.seq:
        return f"it is from before {facts.published.payload['backfill']} was published at {moment(facts.published.created_at)}"
    return None


def _reconcile(facts: Facts) -> str:
    return f"`rivertwice reconcile {facts.name}`, or start the DAG reconcile"


def _never(facts: Facts, now: datetime) -> Iterator[Problem]:
    if not facts.compare or facts.began_at is None:
        return
    is_due = now - facts.began_at > expected_every(facts)
    what = "no reconcile has compared anything yet, so it is not known whether what is served is right"
    yield Problem(
        "not_reconciled", WARN if is_due else NONE, DATA, what, facts.began_at, "", _reconcile(facts), "correctness"
    )


def _defect(facts: Facts, verdict: Verdict) -> Iterator[Problem]:
    served, stream = verdict.served.get(DEFECT, 0), verdict.stream.get(DEFECT, 0)
    next_command = (
        f"`rivertwice verdicts {facts.name} --verdict {DEFECT}` names them; a backfill of their windows replaces them"
    )
    covers = frozenset({"defect"})
    if served:
        what = f"{counted(served, 'served row is', 'served rows are')} not what the log gives ({DEFECT}){_where(verdict, DEFECT)}"
        touches = f"{served:,} of {sum(verdict.served.values()):,} served rows are wrong"
        then, tab = _waiting_repair(facts, covers) or (next_command, "correctness")
        yield Problem("defect", BAD, DATA, what, verdict.at, touches, then, tab, covers)
    elif stream:
        what = f"the stream has emitted {counted(stream, 'row', 'rows')} that the log does not give ({DEFECT})"
        yield Problem(
            "defect",
            BAD,
            DATA,
            what,
            verdict.at,
            "what is served was put right by backfills",
            next_command,
            "correctness",
            covers,
        )


def _late(facts: Facts, verdict: Verdict) -> Iterator[Problem]:
    what = _too_late(verdict)
    if what is None:
        return
    served, stream = verdict.served.get(LATE, 0), verdict.stream.get(LATE, 0)
    covers = frozenset({"late_share"})
    if served:
        rows = sum(verdict.served.values())
        touches = f"{counted(served, 'served row lacks', 'served rows lack')} late records, of {rows:,}{_where(verdict, LATE)}"
        next_act = f"repair them by a backfill: `rivertwice backfill plan {facts.name}` shows it"
        then, tab = _waiting_repair(facts, covers) or (next_act, "backfills")
        yield Problem("served_late", BAD, DATA, what, verdict.at, touches, then, tab, covers)
        return
    touches = f"the stream missed them in {counted(stream, 'row', 'rows')}; backfills have put right all that is served"
    next_act = "wait longer for late records: `rivertwice advise` measures what a longer watermark would cost"
    yield Problem("late_share", WARN, DATA, what, verdict.at, touches, next_act, "correctness", covers)


def _waiting_repair(facts: Facts, kinds: frozenset[str]) -> tuple[str, str] | None:
    """Return what to do about alerts of some kinds whose repair waits for a person, and where; None if none does."""
    if any(alert.cause.kind in kinds and alert.details.get("repair_run") for alert in facts.alerts):
        return "a repair is proposed: look at it, then approve or decline it", "alerts"
    return None


def _too_late(verdict: Verdict) -> str | None:
    """Return that more records came too late than the limit allows, in all or in one partition; None if they did not."""
    if verdict.late_share is not None and verdict.late_share > verdict.limit:
        return f"{share(verdict.late_share)} of the records came too late, above the limit of {share(verdict.limit)}"
    return next((each.message for each in verdict.findings if each.kind == "late_share"), None)


def _not_comparable(facts: Facts, verdict: Verdict) -> Iterator[Problem]:
    found = [each for each in verdict.findings if each.kind in ("not_comparable", "nothing_compared")]
    if not found:
        return
    served = verdict.served.get(NOT_COMPARABLE, 0)
    nothing = any(each.severity == CRITICAL for each in found)
    rows = served or verdict.stream.get(NOT_COMPARABLE, 0)
    which = "served rows" if served else "rows of the stream"
    what = f"{rows:,} {which} cannot be compared, for reasons that are named{_where(verdict, NOT_COMPARABLE)}"
    kind = "nothing_compared" if nothing else "not_comparable"
    then = f"`rivertwice verdicts {facts.name} --verdict {NOT_COMPARABLE}` names the reasons"
    covers = frozenset({"not_comparable", "nothing_compared"})
    yield Problem(
        kind, BAD if nothing else WARN, DATA, what, verdict.at, KINDS[kind].meaning, then, "correctness", covers
    )


def _findings(facts: Facts, verdict: Verdict) -> Iterator[Problem]:
    """Yield what the gate found beyond rows: of each kind one, the critical ones first."""
    said = (*_OWN, "nothing_compared")
    others = [each for each in verdict.findings if each.kind not in said and each.repeats not in said]
    seen: set[str] = set()
    for each in sorted(others, key=lambda one: one.severity != CRITICAL):
        if each.kind in seen:
            continue
        seen.add(each.kind)
        alike = sum(one.kind == each.kind for one in others)
        yield _finding(facts, verdict, each, alike)


def _finding(facts: Facts, verdict: Verdict, found: Finding, alike: int) -> Problem:
    more = f" (and {alike - 1} more of this kind)" if alike > 1 else ""
    kind = KINDS.get(found.kind)
    return Problem(
        "finding" if found.severity == CRITICAL else "noted", BAD if found.severity == CRITICAL else WARN, DATA, f"the reconcile found ({found.kind}): {found.message}{more}",
        verdict.at, "" if kind is None else kind.meaning, "" if kind is None else f"`{_command(kind.verb, facts.name)}`", "correctness",
        frozenset({found.kind}),
    )  # fmt: skip


def _dead(facts: Facts) -> Iterator[Problem]:
    if facts.dead:
        kind = KINDS[DEAD_SHARE]
        then, covers = f"`{_command(kind.verb, facts.name)}`", frozenset({DEAD_SHARE})
        yield Problem(DEAD_SHARE, WARN, DATA, facts.dead, None, kind.meaning, then, "letters", covers)


def _quality(facts: Facts) -> Iterator[Problem]:
    view = facts.quality
    failing = {} if view is None else {word: number for word, number in view["failing"].items() if number}
    if view is None or not failing:
        return
    is_critical = bool(failing.get(CRITICAL))
    counts = ", ".join(f"{number} {word}" for word, number in failing.items())
    what = f"{counts} of {view['expectations']} expectations of the pipeline's own suite fail: {view['found'][0]['message']}"
    if not is_critical and not failing.get("warning"):
        return
    covers = frozenset({"quality"})
    then = f"`rivertwice quality {facts.name}`"
    yield Problem(
        "quality", BAD if is_critical else WARN, DATA, what, None, KINDS["quality"].meaning, then, "correctness", covers
    )


def _stale(facts: Facts, now: datetime) -> Iterator[Problem]:
    verdict = facts.verdict
    if verdict is None:
        return
    why = why_stale(facts)
    if why is not None and verdict.left_by is not None:
        touches = "what is served now was not compared yet"
        yield Problem(
            "stale_verdict",
            WARN,
            DATA,
            f"the verdict is stale: {why}",
            verdict.left_by.created_at,
            touches,
            _reconcile(facts),
            "correctness",
        )
        return
    batch = facts.stream.get("batch")
    has_news = batch is not None and (facts.stream.get("timeline"), batch) != (verdict.timeline, verdict.batch)
    if (
        facts.compare
        and has_news
        and facts.stream.get("desired") == "running"
        and now - verdict.at > expected_every(facts)
    ):
        what = f"the verdict is older than it should be: it is of batch {verdict.batch}, and the stream is at batch {batch}"
        touches = "windows that closed since were not compared yet"
        yield Problem("stale_verdict", WARN, DATA, what, verdict.at, touches, _reconcile(facts), "correctness")


def _alert(facts: Facts, alert: Alert) -> Problem:
    kind = KINDS.get(alert.cause.kind)
    command = "" if kind is None else f"`{_command(kind.verb, alert.cause.pipeline)}`"
    about = f" ({alert.cause.subject})" if alert.cause.subject else ""
    return Problem(
        "table_damage" if alert.cause.kind == "table_damage" else "alert", _gravity(alert), ALERTS,
        f"the alert {alert.cause.kind}{about} is open: {alert.message.rstrip('.')}", alert.since, meaning_of(alert.cause), command, "alerts",
        alert=alert.cause.kind,
    )  # fmt: skip


def _gravity(alert: Alert) -> str:
    """Return the level of an alert; no served number depends on a task that failed, so that one is less than a dead driver."""
    return BAD if alert.severity == CRITICAL and alert.cause.kind != TASK_FAILED else WARN


def _command(verb: tuple[str, ...], pipeline: str) -> str:
    words = [pipeline if word == PIPELINE else word for word in verb if word != PIPELINE or pipeline]
    return " ".join(("rivertwice", *words))


def _where(verdict: Verdict, word: str) -> str:
    """Return in which windows served rows have a verdict."""
    windows = verdict.windows.get(word)
    if windows is None:
        return ""
    if windows.count == 1:
        return f", in the window of {moment(windows.first)}"
    return f", in {windows.count:,} windows from {moment(windows.first)} to {moment(windows.last)}"
