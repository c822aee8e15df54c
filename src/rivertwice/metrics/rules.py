"""The alerts on a stream and when they fire. Pure: figures and limits in, a state per rule out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from rivertwice.metrics.model import Measures
from rivertwice.pipeline.limits import AlertLimits

SHORT_S = 120
FIRING, OK, UNKNOWN, OFF = "firing", "ok", "unknown", "off"


@dataclass(frozen=True)
class AlertRule:
    """One alert: a figure above its limit.

    Attributes:
        name: stable; also the alert's kind.
        figure: attribute of `Measures`, and metric `rivertwice_<figure>`.
        limit: attribute of `AlertLimits`; empty if `limit_figure` has the limit.
        severity: `critical` needs a person now.
        says: the fact, with {value} and {limit}.
        meaning: the same without figures, for rules that are written before there are any.
        remedy: what to look at first.
        limit_figure: attribute of `Measures` that has the limit.
    """

    name: str
    figure: str
    limit: str
    severity: str
    says: str
    meaning: str
    remedy: str
    limit_figure: str = ""


RULES: tuple[AlertRule, ...] = (
    AlertRule(
        "backpressure",
        "backpressure_s",
        "backpressure",
        "warning",
        "every batch for {value} was as full as max_offsets_per_trigger allows (limit {limit}): records come faster than they are read",
        "every batch has been as full as max_offsets_per_trigger allows: records come faster than they are read",
        "`rivertwice diagnose` names the narrow place; raise the cap, add partitions or cores",
    ),
    AlertRule(
        "savepoint_stale",
        "savepoint_age_s",
        "savepoint_age",
        "critical",
        "the newest proved savepoint is {value} old (limit {limit}): a damaged checkpoint would cost all batches since",
        "no savepoint was proved for so long: a damaged checkpoint would cost all batches since",
        "look at the runs of rotate__PIPELINE, or `rivertwice savepoint take` and `prove`",
    ),
    AlertRule(
        "recovery",
        "recovery_s",
        "",
        "warning",
        "a fall-back to the newest proved savepoint would take {value} (limit {limit}, by stream.recovery)",
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
        "{value} records wait to be read (limit {limit})",
        "so many records of the log wait to be read",
        "`rivertwice diagnose`; `rivertwice status` shows when the lag will be gone",
    ),
    AlertRule(
        "latency",
        "latency_s",
        "latency",
        "critical",
        "a record waits {value} until it is committed (limit {limit})",
        "a record waits longer than was promised",
        "`rivertwice diagnose`; is the driver running, are the batches slow, is the log uneven",
    ),
    AlertRule(
        "dead_share",
        "dead_share",
        "dead_share",
        "warning",
        "{value} of the newest records cannot be decoded or break a rule (limit {limit})",
        "so large a share of the newest records cannot be decoded or breaks a rule",
        "`rivertwice dead list` names each with its reason; has a producer changed its schema?",
    ),
    AlertRule(
        "dead_unattended",
        "dead_oldest_s",
        "dead_age",
        "warning",
        "a dead letter waits {value} for a decision (limit {limit}): what it should have been is missing from the truth",
        "a dead letter waits for a decision so long: what it should have been is missing from the truth",
        "`rivertwice dead list --state open`, then amend or discard",
    ),
    AlertRule(
        "delivery_lag",
        "delivery_wait_s",
        "delivery",
        "warning",
        "rows wait for a sink that has taken none for {value} (limit {limit}): its readers see older results",
        "rows wait for a sink that has taken none for so long: its readers see older results",
        "`rivertwice deliver status` names the position and the last error; does the destination answer?",
    ),
)


@dataclass(frozen=True)
class AlertState:
    """The state of a rule now.

    Attributes:
        state: `firing`, `ok`, `unknown` (the figure is not known) or `off` (no limit is set).
        note: what else is known of the fact, in words; may be empty.
    """

    rule: AlertRule
    state: str
    value: float | None
    limit: float | None
    note: str = ""

    @property
    def message(self) -> str:
        """Fact, value, consequence and remedy."""
        fact = self.rule.says.format(
            value=_figure(self.rule.figure, self.value), limit=_figure(self.rule.figure, self.limit)
        )
        return "; ".join(part for part in (fact, self.note, self.rule.remedy) if part)


def _figure(name: str, number: float | None) -> str:
    """Return a figure as a sentence contains it: a share in percent, a time in seconds or as h:mm:ss, else a count."""
    if number is None:
        return "not known"
    if name.endswith("_share"):
        return f"{number * 100:.3g} %"
    if name.endswith("_s"):
        return f"{number:.3g} s" if number < SHORT_S else f"{timedelta(seconds=round(number))}"
    return f"{number:,.0f}"


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
    note = {"dead_share": measures.dead_newest, "delivery_wait_s": measures.delivery_waits}.get(rule.figure, "")
    return AlertState(rule, state, None if value is None else float(value), limit, note)


def firing(states: Sequence[AlertState]) -> list[AlertState]:
    """Return those that fire."""
    return [each for each in states if each.state == FIRING]
