"""The alerts on a stream and when they fire. Pure: figures and limits in, a state per rule out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rivertwice.metrics.model import Measures
from rivertwice.pipeline.limits import AlertLimits

FIRING, OK, UNKNOWN, OFF = "firing", "ok", "unknown", "off"


@dataclass(frozen=True)
class AlertRule:
    """One alert: a figure above its limit.

    Attributes:
        name: stable; also the alert's kind.
        figure: attribute of `Measures`, and metric `rivertwice_<figure>`.
        limit: attribute of `AlertLimits`; empty if `limit_figure` has the limit.
        severity: `critical` needs a person now.
        meaning: what it means for the results.
        remedy: what to look at first.
        limit_figure: attribute of `Measures` that has the limit.
    """

    name: str
    figure: str
    limit: str
    severity: str
    meaning: str
    remedy: str
    limit_figure: str = ""


RULES: tuple[AlertRule, ...] = (
    AlertRule(
        "backpressure",
        "backpressure_s",
        "backpressure",
        "warning",
        "every batch has been as full as max_offsets_per_trigger allows: records come faster than they are read",
        "`rivertwice diagnose` names the narrow place; raise the cap, add partitions or cores",
    ),
    AlertRule(
        "savepoint_stale",
        "savepoint_age_s",
        "savepoint_age",
        "critical",
        "no savepoint was proved for so long: a damaged checkpoint would cost all batches since",
        "look at the runs of rotate__PIPELINE, or `rivertwice savepoint take` and `prove`",
    ),
    AlertRule(
        "recovery",
        "recovery_s",
        "",
        "warning",
        "a fall-back to the newest proved savepoint would take longer than stream.recovery allows",
        "look at `rivertwice agent events` (savepoint_due, savepoint_failed) and logs/savepoints.log; batches that are fewer and "
        "larger are replayed faster",
        "recovery_objective_s",
    ),
    AlertRule(
        "lag",
        "lag_records",
        "lag",
        "warning",
        "so many records of the log wait to be read",
        "`rivertwice diagnose`; `rivertwice status` shows when the lag will be gone",
    ),
    AlertRule(
        "latency",
        "latency_s",
        "latency",
        "critical",
        "a record waits longer than was promised",
        "`rivertwice diagnose`; is the driver running, are the batches slow, is the log uneven",
    ),
    AlertRule(
        "dead_share",
        "dead_share",
        "dead_share",
        "warning",
        "so large a share of the newest records cannot be decoded or breaks a rule",
        "`rivertwice dead list` names each with its reason; has a producer changed its schema?",
    ),
    AlertRule(
        "dead_unattended",
        "dead_oldest_s",
        "dead_age",
        "warning",
        "a dead letter waits for a decision so long: what it should have been is missing from the truth",
        "`rivertwice dead list --state open`, then amend or discard",
    ),
)


@dataclass(frozen=True)
class AlertState:
    """The state of a rule now.

    Attributes:
        state: `firing`, `ok`, `unknown` (the figure is not known) or `off` (no limit is set).
    """

    rule: AlertRule
    state: str
    value: float | None
    limit: float | None

    @property
    def message(self) -> str:
        """Fact, value, consequence and remedy in one sentence."""
        shown = "not known" if self.value is None else f"{self.value:g}"
        bound = "no limit is set" if self.limit is None else f"limit {self.limit:g}"
        return f"{self.rule.figure} is {shown} ({bound}): {self.rule.meaning}; {self.rule.remedy}"


def judge_alerts(measures: Measures, limits: AlertLimits) -> list[AlertState]:
    """Return the state of every rule, in order. A stream that nobody wants running fires nothing."""
    return [_judge(rule, measures, limits) for rule in RULES]


def _judge(rule: AlertRule, measures: Measures, limits: AlertLimits) -> AlertState:
    value = getattr(measures, rule.figure)
    limit = getattr(measures, rule.limit_figure) if rule.limit_figure else limits.number(rule.limit)
    if limit is None or measures.desired != "running":
        state = OFF
    elif value is None:
        state = UNKNOWN
    else:
        state = FIRING if value > limit else OK
    return AlertState(rule, state, None if value is None else float(value), limit)


def firing(states: Sequence[AlertState]) -> list[AlertState]:
    """Return those that fire."""
    return [each for each in states if each.state == FIRING]
