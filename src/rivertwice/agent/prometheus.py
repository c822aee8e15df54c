"""The figures as Prometheus text, the alerts as Prometheus rules, and the Grafana dashboard (`dashboard.json`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from rivertwice.agent.figures import Measures
from rivertwice.definition import AlertLimits, Definition

# The alerts on a stream and when they fire. Pure: figures and limits in, a state per rule out.

SHORT_S = 120
FIRING, OK, UNKNOWN, OFF = "firing", "ok", "unknown", "off"


@dataclass(frozen=True)
class AlertRule:
    """One alert: a figure above its limit.

    Attributes:
        name: stable; also the alert's kind.
        figure: attribute of `Measures`, and metric `rivertwice_<figure>`.
        limit: attribute of `AlertLimits`; empty if `limit_figure` has the limit.
        says: the fact, with {value} and {limit}.
        meaning: the same without figures, for rules that are written before there are any.
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
        "`rivertwice status --why` names the narrow place; raise the cap, add partitions or cores",
    ),
    AlertRule(
        "checkpoint_slow",
        "checkpoint_wait_s",
        "checkpoint",
        "warning",
        "the newest batch is committed and waits {value} for its checkpoint (limit {limit}): it fails, or its disk is slow",
        "the newest batch is committed and its checkpoint has not ended within the limit: it fails, or its disk is slow",
        "`rivertwice logs PIPELINE` has the error; is the disk of the checkpoint full or slow",
    ),
    AlertRule(
        "savepoint_stale",
        "savepoint_age_s",
        "savepoint_age",
        "critical",
        "the newest proved savepoint is {value} old (limit {limit}): a damaged checkpoint would cost all batches since",
        "no savepoint was proved for longer than the limit: a damaged checkpoint would cost all batches since",
        "look at the runs of care__PIPELINE, or `rivertwice savepoint take` and `prove`",
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
        "more records than the limit wait to be read",
        "`rivertwice status --why`; `rivertwice status` shows when the lag will be gone",
    ),
    AlertRule(
        "latency",
        "latency_s",
        "latency",
        "critical",
        "a record waits {value} until it is committed (limit {limit})",
        "a record waits longer than was promised",
        "`rivertwice status --why`; is the driver running, are the batches slow, is the log uneven",
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
        "a dead letter waits for a decision for longer than the limit: what it should have been is missing from the truth",
        "`rivertwice dead list --state open`, then amend or discard",
    ),
    AlertRule(
        "delivery_lag",
        "delivery_wait_s",
        "delivery",
        "warning",
        "rows wait for a sink that has taken none for {value} (limit {limit}): its readers see older results",
        "rows wait for a sink that has taken none for longer than the limit: its readers see older results",
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
    """Return the state of every rule, in order. A stream whose desired state is stopped fires no rule."""
    return [_judge(rule, measures, limits) for rule in RULES]


def _judge(rule: AlertRule, measures: Measures, limits: AlertLimits) -> AlertState:
    value = getattr(measures, rule.figure)
    if rule.figure == "lag_records" and measures.overdue_s == 0 and value is not None:
        value = 0  # between two runs of a schedule records wait as they should
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


def judge_objectives(definition: Definition, measures: Measures, states: Sequence[AlertState]) -> dict[str, float]:
    """Return 1 for each declared objective that is missed now and 0 for one that holds; one that is not known is left out. Pure.

    Args:
        states: of the alerts, which judge the limits that they share with objectives.
    """
    fires = {each.rule.name: each.state == FIRING for each in states if each.state in (OK, FIRING)}
    late, defects = measures.late_share, measures.served_defects
    missed = {
        "freshness": fires.get("latency"),
        "late_share": None if late is None else late > definition.late.alert_share,
        "agreement": None if defects is None else defects > 0,
        "recovery": fires.get("recovery"),
    }
    return {
        name: float(found)
        for name, found in missed.items()
        if found is not None and getattr(definition.slo, name) is not None
    }


PREFIX = "rivertwice_"
_UP = ("running", "idle", "draining", "hibernating", "scheduled", "queued")
JOB = "rivertwice"
"""The name of the job by which Prometheus scrapes the agent."""
# attribute of Measures, name of the metric with its base unit, help
GAUGES: tuple[tuple[str, str, str], ...] = (
    ("heartbeat_age_s", "heartbeat_age_seconds", "Seconds since the driver last spoke"),
    ("lag_records", "lag_records", "Records in the log beyond the committed offsets"),
    ("lag_s", "lag_seconds", "Age of the oldest record that waits, by its own timestamp"),
    ("latency_s", "latency_seconds", "What a record that arrives now must expect at least"),
    ("overdue_s", "run_overdue_seconds", "By schedule: for how long a run is overdue; 0 if none is"),
    ("arriving_per_s", "arriving_records_per_second", "Records added to the log, last minute"),
    ("read_per_s", "read_records_per_second", "Records committed, last minute"),
    ("catch_up_s", "catch_up_seconds", "Seconds until the lag is gone at this pace"),
    ("backpressure_s", "backpressure_seconds", "How long every batch has been full to max_offsets_per_trigger"),
    ("checkpoint_s", "checkpoint_seconds", "From a batch's commit to the end of its checkpoint, median"),
    ("checkpoint_wait_s", "checkpoint_wait_seconds", "How long the newest committed batch waits for its checkpoint"),
    ("disorder_s", "disorder_seconds", "How far behind the newest event before it a batch begins, median"),
    ("watermark_lag_s", "watermark_lag_seconds", "Now less the watermark"),
    ("event_lag_s", "event_lag_seconds", "Now less the newest accepted event time"),
    ("dead_share", "dead_share", "Dead letters among the newest records"),
    ("dead_open", "dead_open", "Dead letters that were neither amended nor discarded"),
    ("dead_oldest_s", "dead_oldest_seconds", "Age of the oldest of them"),
    ("delivery_wait_s", "delivery_wait_seconds", "How long rows have waited for a sink that took none, longest"),
    ("late_share", "late_share", "Late pairs among all, as the newest reconcile proved it"),
    ("defects", "defects", "DEFECT verdicts of the newest reconcile"),
    ("reconcile_age_s", "reconcile_age_seconds", "Age of the newest reconcile"),
    ("checkpoint_bytes", "checkpoint_bytes", "Bytes of the live checkpoint"),
    ("checkpoint_files", "checkpoint_files", "Files of the live checkpoint"),
    ("state_bytes", "state_bytes", "Bytes of the live checkpoint's state"),
    ("savepoint_age_s", "savepoint_age_seconds", "Age of the newest proved savepoint"),
    ("savepoint_bytes", "savepoint_bytes", "Bytes of the newest proved savepoint"),
    ("unproved", "savepoints_unproved", "Savepoints newer than the newest proved one"),
    ("recovery_s", "recovery_seconds", "What a fall-back to the newest proved savepoint would take now"),
    ("recovery_objective_s", "recovery_objective_seconds", "What a fall-back may take: stream.recovery"),
    ("failures", "driver_failures", "Driver failures in a row"),
    ("retention_left_share", "retention_left_share", "Time left until Kafka deletes what only Kafka has, worst claim"),
    ("first_load_step", "first_load_step", "Step, of 5, of a first load by batch that is not done"),
    ("first_load_windows", "first_load_windows", "Windows of a first load that backfills have not published yet"),
)
LABELLED = (CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily)
COUNTERS: tuple[tuple[str, str], ...] = (
    ("read_total", "read"),
    ("bad_total", "dead"),
    ("accepted_total", "accepted"),
)
QUANTILES = (("batch_p50_s", "0.5"), ("batch_p95_s", "0.95"), ("batch_p99_s", "0.99"))


@dataclass(frozen=True)
class MetricName:
    """A metric as it is asked for.

    Attributes:
        name: as a query writes it; a counter ends in `_total`.
        kind: gauge, counter or summary.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


def described() -> list[MetricName]:
    """Return every metric, in order; the agent adds `measured_age_seconds` (`agent.metrics_http`)."""
    families = [*MeasuresCollector([], {}).collect(), measured_age()]
    return [
        MetricName(
            each.name + ("_total" if each.type == "counter" else ""), each.type, _labels(each), each.documentation
        )
        for each in families
    ]


def _labels(family: Metric) -> tuple[str, ...]:
    return tuple(family._labelnames) if isinstance(family, LABELLED) else ()


def measured_age() -> GaugeMetricFamily:
    """Return the metric of the age of all others, without a sample."""
    return GaugeMetricFamily(f"{PREFIX}measured_age_seconds", "Age of these figures", labels=["pipeline"])


class MeasuresCollector(Collector):
    """Gives figures that were measured once."""

    def __init__(self, measured: Sequence[Measures], alerts: Mapping[str, Sequence[AlertState]]) -> None:
        """Take figures, and the states of the alerts by pipeline."""
        self._measured = measured
        self._alerts = alerts

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family; a figure that is not known has no sample."""
        for attribute, name, text in GAUGES:
            yield self._gauge(name, text, attribute)
        yield self._labelled("partition_lag_records", "Records that wait, per partition", "partition", _partitions)
        yield self._labelled("delivery_lag_batches", "Committed batches that a sink lacks", "sink", _delivery_lag)
        yield self._labelled("delivery_failures", "Failures in a row of a sink", "sink", _delivery_failures)
        yield self._labelled(
            "delivery_refused", "Open deliveries that a destination refused for good", "sink", _delivery_refused
        )
        yield self._labelled(
            "quality_failing", "Expectations of the pipeline's own suite that fail", "severity", _quality_failing
        )
        yield self._budgets()
        yield self._batch_seconds()
        up = GaugeMetricFamily(
            f"{PREFIX}up", "1 while a driver runs the stream, or it rests as it should", labels=["pipeline"]
        )
        for measures in self._measured:
            up.add_metric([measures.pipeline], float(measures.state in _UP))
        yield up
        wanted = GaugeMetricFamily(
            f"{PREFIX}wanted", "1 while the desired state of the stream is running", labels=["pipeline"]
        )
        for measures in self._measured:
            wanted.add_metric([measures.pipeline], float(measures.desired == "running"))
        yield wanted
        records = CounterMetricFamily(
            f"{PREFIX}records", "Records of the head's path, by outcome", labels=["pipeline", "outcome"]
        )
        rows = CounterMetricFamily(f"{PREFIX}rows_emitted", "Result rows of the head's path", labels=["pipeline"])
        for measures in self._measured:
            for attribute, outcome in COUNTERS:
                records.add_metric([measures.pipeline, outcome], getattr(measures, attribute))
            rows.add_metric([measures.pipeline], measures.emitted_total)
        yield records
        yield rows
        states = GaugeMetricFamily(f"{PREFIX}alert", "1 while the alert fires", labels=["pipeline", "alert"])
        for pipeline, alerts in self._alerts.items():
            for each in alerts:
                states.add_metric([pipeline, each.rule.name], float(each.state == FIRING))
        yield states

    def _gauge(self, name: str, text: str, attribute: str) -> GaugeMetricFamily:
        family = GaugeMetricFamily(PREFIX + name, text, labels=["pipeline"])
        for measures in self._measured:
            value = getattr(measures, attribute)
            if value is not None:
                family.add_metric([measures.pipeline], float(value))
        return family

    def _budgets(self) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            f"{PREFIX}budget_left_share",
            "Share that is left of an objective's budget of so many days; below 0 it is overdrawn",
            labels=["pipeline", "objective", "days"],
        )
        for measures in self._measured:
            for objective, left in measures.budget_left.items():
                for days, share in left.items():
                    family.add_metric([measures.pipeline, objective, days], share)
        return family

    def _batch_seconds(self) -> SummaryMetricFamily:
        family = SummaryMetricFamily(
            f"{PREFIX}batch_seconds", "Seconds of the newest hundred batches", labels=["pipeline", "quantile"]
        )
        for measures in self._measured:
            for quantile, value in _quantiles(measures):
                family.add_sample(family.name, {"pipeline": measures.pipeline, "quantile": quantile}, value)
        return family

    def _labelled(self, name: str, text: str, label: str, samples: Any) -> GaugeMetricFamily:
        family = GaugeMetricFamily(PREFIX + name, text, labels=["pipeline", label])
        for measures in self._measured:
            for key, value in samples(measures):
                family.add_metric([measures.pipeline, key], value)
        return family


def _partitions(measures: Measures) -> Iterable[tuple[str, float]]:
    return ((partition, float(lag)) for partition, lag in measures.partition_lag.items())


def _delivery_lag(measures: Measures) -> Iterable[tuple[str, float]]:
    return ((sink, float(lag)) for sink, lag in measures.delivery_lag.items())


def _delivery_failures(measures: Measures) -> Iterable[tuple[str, float]]:
    return ((sink, float(count)) for sink, count in measures.delivery_failures.items())


def _delivery_refused(measures: Measures) -> Iterable[tuple[str, float]]:
    return ((sink, float(count)) for sink, count in measures.delivery_refused.items())


def _quality_failing(measures: Measures) -> Iterable[tuple[str, float]]:
    return ((severity, float(count)) for severity, count in measures.quality_failing.items())


def _quantiles(measures: Measures) -> Iterable[tuple[str, float]]:
    known = ((label, getattr(measures, attribute)) for attribute, label in QUANTILES)
    return ((label, value) for label, value in known if value is not None)


def exposition(measured: Sequence[Measures], alerts: Mapping[str, Sequence[AlertState]]) -> str:
    """Return the figures in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(MeasuresCollector(measured, alerts))
    return generate_latest(registry).decode()


def bound_of(rule: AlertRule, pipeline: str, limits: AlertLimits, metric: Mapping[str, str]) -> str | None:
    """Return a rule's bound in Prometheus' words: a number, or the metric that has it; None without a limit."""
    if rule.limit_figure:
        return f'{metric[rule.limit_figure]}{{pipeline="{pipeline}"}}'
    limit = limits.number(rule.limit)
    return None if limit is None else f"{limit:g}"


def alerting_rules(limits: Mapping[str, AlertLimits]) -> str:
    """Return the alerts of pipelines as a Prometheus rules file (YAML), so that its own alert manager sends them.

    As in the agent, a stream whose desired state is stopped fires none of its limits. The alerts on the figures themselves are for
    Prometheus alone: that no driver runs, that a reconcile found a defect, that a budget burns, that the agent is silent or gone.
    """
    metric = {attribute: PREFIX + name for attribute, name, _ in GAUGES}
    rules = []
    for pipeline, own in sorted(limits.items()):
        for rule in RULES:
            limit = bound_of(rule, pipeline, own, metric)
            if limit is not None:
                rules.append(
                    {
                        "alert": f"Rivertwice{''.join(part.title() for part in rule.name.split('_'))}",
                        "expr": f'{metric[rule.figure]}{{pipeline="{pipeline}"}} > {limit} and {PREFIX}wanted{{pipeline="{pipeline}"}} == 1'
                        + (
                            f' unless {metric["overdue_s"]}{{pipeline="{pipeline}"}} == 0' if rule.name == "lag" else ""
                        ),
                        "labels": {"severity": rule.severity, "pipeline": pipeline},
                        "annotations": {"summary": rule.meaning, "description": rule.remedy},
                    }
                )
    groups = [{"name": "rivertwice", "rules": rules}, {"name": "rivertwice-health", "rules": [*_health_rules()]}]
    return yaml.safe_dump({"groups": groups}, sort_keys=False, width=160)


def _health_rules() -> Iterator[dict[str, Any]]:
    for name, expression, wait, severity, summary, description in (
        (
            "NoDriver", f"{PREFIX}wanted == 1 and {PREFIX}up == 0", "5m", "critical",
            "the desired state is running, but no driver has run for five minutes",
            "`rivertwice status` shows the failure and the next attempt",
        ),
        (
            "RunOverdue", f"{PREFIX}run_overdue_seconds > 0 and {PREFIX}wanted == 1", "1m", "critical",
            "a run by schedule has not read to the log's end by the time that the next one was due",
            "`rivertwice status` shows the newest run and its failure; `rivertwice start NAME --once` makes one now",
        ),
        (
            "Defect", f"{PREFIX}defects > 0", "0m", "critical",
            "the newest reconcile found rows that no rule explains",
            "`rivertwice verdicts NAME --verdict DEFECT` names them",
        ),
        (
            "BudgetBurn",  # 14.4 times as fast as the budget allows: in an hour 0.6 of a day's budget, 0.02 of that of 30 days
            f'delta({PREFIX}budget_left_share{{days="1"}}[1h]) < -0.6 and delta({PREFIX}budget_left_share{{days="1"}}[5m]) < -0.05',
            "0m", "critical",
            "an objective used two percent of its budget of 30 days within an hour, and still uses it as fast",
            "`rivertwice status` says what is left of each budget, and `rivertwice status --why` the likely cause",
        ),
        (
            "FiguresStale", f"{PREFIX}measured_age_seconds > 180", "1m", "warning",
            "the agent answers, but could not measure the pipeline for three minutes: its other alerts say nothing about now",
            "`rivertwice agent events`, and the log of the agent",
        ),
        (
            "AgentGone", f'up{{job="{JOB}"}} == 0', "2m", "critical",
            "the agent does not answer: no figure arrives, and no driver that ends is started again",
            "`rivertwice status`, then `rivertwice agent start`",
        ),
    ):  # fmt: skip
        yield {
            "alert": f"Rivertwice{name}",
            "expr": expression,
            "for": wait,
            "labels": {"severity": severity},
            "annotations": {"summary": summary, "description": description},
        }


def dashboard() -> str:
    """Return the Grafana dashboard of all metrics, as JSON that Grafana imports."""
    return Path(__file__).with_name("dashboard.json").read_text()
