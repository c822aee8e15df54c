"""The one sentence about a pipeline: what is wrong, since when, which served numbers it touches, what to do next. Pure.

All that is wrong is found, the worst comes first. `rivertwice status` and the page print the same sentence. It contains instants and
no ages, so it stays the same while nothing changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from rivertwice.cockpit.facts import Facts
from rivertwice.cockpit.now_data import find_data_problems
from rivertwice.cockpit.now_stream import find_stream_problems
from rivertwice.cockpit.problems import ALERTS, BAD, CALM, DATA, GOOD, LEVELS, NONE, STREAM, WARN, Problem, moment
from rivertwice.supervise.health import UNRESPONSIVE

ORDER = (
    "disk_full", "given_up", "agent_dead", "table_damage", "defect", "served_late", "finding", "nothing_compared", "quality", "dead_share",
    "unresponsive", "driver_down", "retention", "not_comparable", "noted", "starts_again", "alert", "lag_grows",
    "lag_unknown", "stale_verdict", "savepoint_stale", "recovery", "unread", "late_share",
    "restoring", "operation", "first_load", "stream_load", "first_start", "starting", "draining", "catching_up", "not_reconciled",
    "stopped", "not_asked", "well",
)  # fmt: skip
"""Within one level the earlier kind is the worse one."""


@dataclass(frozen=True)
class Light:
    """One of the three lights.

    Attributes:
        tone: one of `LEVELS`. word: its state in one or two words. rule: what makes it so, in words.
    """

    name: str
    tone: str
    word: str
    rule: str


@dataclass(frozen=True)
class Now:
    """The answer to "what is wrong now": the worst problem, and what else is wrong.

    Attributes:
        worst: with `GOOD`, nothing is wrong.
        others: further problems, the worst first.
    """

    worst: Problem
    others: tuple[Problem, ...]
    lights: tuple[Light, ...]

    @property
    def sentence(self) -> str:
        """The sentence, as `rivertwice status` and the page print it."""
        return self.worst.sentence


NOT_SERVED = "no served number depends on it: another version of the pipeline serves"
RULES = {
    STREAM: "Red: no driver, a silent one, no agent, given up, or a full disk. Yellow: it starts again, its lag does not shrink or is not known, "
    "or what a restart needs is too old. Green: a driver runs. Grey: the stream is not wanted.",
    DATA: "Red: served rows that are a DEFECT or lack late records above the limit, a gate that did not pass, a critical expectation "
    "that fails. Yellow: late records above the limit that backfills have put right, too many dead letters among the newest records, rows that cannot be "
    "compared, a verdict that is stale. "
    "Green: the newest verdict holds and agrees. Grey: nothing was compared yet.",
    ALERTS: "Red: a critical alert is open. Yellow: a warning is open. Green: none is.",
}


def decide_now(facts: Facts, now: datetime) -> Now:
    """Return what is wrong with a pipeline, the worst first, and its lights."""
    found = [*find_stream_problems(facts, now), *find_data_problems(facts, now), *_unread(facts)]
    if facts.stream.get("serves") is False:
        found = [replace(each, touches=NOT_SERVED if each.touches else "") for each in found]
    problems = sorted(
        found,
        key=lambda each: (LEVELS.index(each.level), ORDER.index(each.kind)),
    )
    covered = {kind for each in problems for kind in each.covers}
    wrong = [
        each
        for each in problems
        if each.level in (BAD, WARN, CALM) and not (each.kind == "alert" and each.alert in covered)
    ]
    rest = [each for each in problems if each.level == NONE]
    lights = (_stream_light(facts, problems), _data_light(facts, problems), _alert_light(facts))
    if wrong and wrong[0].level != CALM:
        return Now(wrong[0], tuple(wrong[1:]), lights)
    if rest or wrong:  # a stream that is not wanted says so before what is calm
        first, *others = [*rest, *wrong]
        return Now(first, tuple(others), lights)
    return Now(_well(facts), (), lights)


def _unread(facts: Facts) -> list[Problem]:
    """Return a problem for each reason, however many parts cannot be read for it: most read several tables."""
    parts: dict[str, list[str]] = {}
    for what, why in facts.unread:
        parts.setdefault(why, []).append(what)
    return [
        Problem(
            "unread",
            WARN,
            DATA,
            f"its {', '.join(dict.fromkeys(what))} cannot be read: {why}",
            None,
            "",
            f"`rivertwice repair {facts.name}`",
        )
        for why, what in parts.items()
    ]


def _well(facts: Facts) -> Problem:
    verdict, batch = facts.verdict, facts.stream.get("batch")
    rows = 0 if verdict is None else sum(verdict.served.values())
    running = f"the stream runs as wanted, at batch {batch}" if batch is not None else "the stream runs as wanted"
    if verdict is None:
        return Problem("well", GOOD, STREAM, running, None, "", "")
    agree = verdict.served.get("AGREES", 0)
    text = f"{running}; {agree} of {rows} served rows agree with the log, and nothing is wrong with the others"
    return Problem("well", GOOD, STREAM, f"{text}, by the reconcile of {moment(verdict.at)}", None, "", "")


def _worst(problems: Sequence[Problem], light: str) -> Problem | None:
    return next((each for each in problems if each.light == light and each.level in (BAD, WARN, CALM, NONE)), None)


def _stream_light(facts: Facts, problems: Sequence[Problem]) -> Light:
    worst = _worst(problems, STREAM)
    state = facts.observation.state
    if worst is None:
        return Light(STREAM, GOOD, "runs", RULES[STREAM])
    words = {
        "stopped": "stopped",
        "not_asked": "not started",
        "agent_dead": "no agent",
        "savepoint_stale": "old savepoint",
    }
    word = words.get(worst.kind, worst.kind.replace("_", " ") if state != UNRESPONSIVE else UNRESPONSIVE)
    return Light(STREAM, worst.level, word, RULES[STREAM])


def _data_light(facts: Facts, problems: Sequence[Problem]) -> Light:
    worst = _worst(problems, DATA)
    if worst is not None:
        words = {
            "served_late": "late rows missing", "late_share": "late, put right", "defect": "DEFECT", "stale_verdict": "stale",
            "not_reconciled": "not compared", "quality": "quality", "not_comparable": "not comparable", "dead_share": "dead letters",
        }  # fmt: skip
        return Light(DATA, worst.level, words.get(worst.kind, worst.kind.replace("_", " ")), RULES[DATA])
    if facts.verdict is None:
        return Light(DATA, NONE, "not compared", RULES[DATA])
    return Light(DATA, GOOD, "agrees", RULES[DATA])


def _alert_light(facts: Facts) -> Light:
    critical = sum(alert.severity == "critical" for alert in facts.alerts)
    total = len(facts.alerts)
    if not total:
        return Light(ALERTS, GOOD, "none", RULES[ALERTS])
    word = f"{critical} critical" if critical else f"{total} open"
    return Light(ALERTS, BAD if critical else WARN, word, RULES[ALERTS])
