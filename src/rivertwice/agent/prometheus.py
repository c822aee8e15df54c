"""The figures as Prometheus text, the alerts as Prometheus rules, and a Grafana dashboard."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from rivertwice.agent.figures import Measures
from rivertwice.definition.model import AlertLimits

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


PREFIX = "rivertwice_"
JOB = "rivertwice"
"""The name of the job by which Prometheus scrapes the agent."""
# attribute of Measures, name of the metric with its base unit, help
GAUGES: tuple[tuple[str, str, str], ...] = (
    ("heartbeat_age_s", "heartbeat_age_seconds", "Seconds since the driver last spoke"),
    ("lag_records", "lag_records", "Records in the log beyond the committed offsets"),
    ("lag_s", "lag_seconds", "Age of the oldest record that waits, by its own timestamp"),
    ("latency_s", "latency_seconds", "What a record that arrives now must expect at least"),
    ("arriving_per_s", "arriving_records_per_second", "Records added to the log, last minute"),
    ("read_per_s", "read_records_per_second", "Records committed, last minute"),
    ("catch_up_s", "catch_up_seconds", "Seconds until the lag is gone at this pace"),
    ("backpressure_s", "backpressure_seconds", "How long every batch has been full to max_offsets_per_trigger"),
    ("watermark_lag_s", "watermark_lag_seconds", "Now less the watermark"),
    ("event_lag_s", "event_lag_seconds", "Now less the newest accepted event time"),
    ("dead_share", "dead_share", "Dead letters among the newest records"),
    ("dead_open", "dead_open", "Dead letters that nobody amended or discarded"),
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
        labels: what tells its samples from one another.
        text: what it is.
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
        yield self._batch_seconds()
        up = GaugeMetricFamily(f"{PREFIX}up", "1 while a driver runs the stream", labels=["pipeline"])
        for measures in self._measured:
            up.add_metric([measures.pipeline], float(measures.state in ("running", "idle", "draining")))
        yield up
        wanted = GaugeMetricFamily(f"{PREFIX}wanted", "1 while the stream is wanted running", labels=["pipeline"])
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

    As in the agent, a stream that nobody wants running fires none of its limits. The alerts on the figures themselves are for
    Prometheus alone: that no driver runs, that a reconcile found a defect, that the agent is silent or gone.
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
                        "expr": f'{metric[rule.figure]}{{pipeline="{pipeline}"}} > {limit} and {PREFIX}wanted{{pipeline="{pipeline}"}} == 1',
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
            "running is wanted, and no driver has run for five minutes",
            "`rivertwice status` shows the failure and the next attempt",
        ),
        (
            "Defect", f"{PREFIX}defects > 0", "0m", "critical",
            "the newest reconcile found rows that no rule explains",
            "`rivertwice verdicts NAME --verdict DEFECT` names them",
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


# The Grafana dashboard of all metrics, as JSON that Grafana imports. Pure.
#
# A panel is a row of `ROWS`: a title, a unit, what it is for, and its queries. The variable `pipeline` chooses pipelines.

SCHEMA_VERSION = 41
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
CHOSEN = '{pipeline=~"$pipeline"}'
COLUMNS = 24
HEIGHT = 8


@dataclass(frozen=True)
class Curve:
    """One query of a panel.

    Attributes:
        metric: its name without `rivertwice_`.
        legend: Grafana's text for a curve; `{{label}}` is replaced.
        function: what is asked of the metric: `{}` stands for it.
    """

    metric: str
    legend: str = "{{pipeline}}"
    function: str = "{}"

    @property
    def query(self) -> str:
        """The query in Prometheus' language."""
        return self.function.replace("{}", f"{PREFIX}{self.metric}{CHOSEN}")


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        title: what it shows. meaning: what to think of it. unit: Grafana's word for the unit. curves: its queries.
        kind: `timeseries`, `stat` or `state-timeline`. width: of 24 columns.
        limits: above which a figure is yellow and red; none: no colour means anything.
    """

    title: str
    meaning: str
    unit: str
    curves: tuple[Curve, ...]
    kind: str = "timeseries"
    width: int = 8
    limits: tuple[float, ...] = ()


def _each(*pairs: tuple[str, str]) -> tuple[Curve, ...]:
    return tuple(Curve(metric, f"{{{{pipeline}}}} {word}") for metric, word in pairs)


def _stat(title: str, meaning: str, unit: str, curve: Curve, *limits: float) -> Panel:
    return Panel(title, meaning, unit, (curve,), "stat", 4, limits)


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    ("Now", (
        _stat("Streams without a driver", "Running is wanted, and no driver runs.", "short",
              Curve("wanted", "streams", "sum({} == 1 and on (pipeline) " + f"{PREFIX}up{CHOSEN}" + " == 0) or vector(0)"), 1),
        _stat("Alerts that fire", "`rivertwice alerts` says since when, and the next command.", "short",
              Curve("alert", "alerts", "sum({})"), 1),
        _stat("Records that wait", "Beyond the committed offsets.", "short", Curve("lag_records", "records", "sum({})")),
        _stat("Rows with a defect", "DEFECT verdicts of the newest reconciles.", "short", Curve("defects", "rows", "sum({})"), 1),
        _stat("Oldest proved savepoint", "Of each pipeline the newest one counts.", "s",
              Curve("savepoint_age_seconds", "age", "max({})"), 7200),
        _stat("Age of these figures", "The agent measures every half minute.", "s",
              Curve("measured_age_seconds", "age", "max({})"), 60, 180),
    )),
    ("Records", (
        Panel("Arriving and read", "Where arriving stays above read, the lag grows.", "cps",
              _each(("arriving_records_per_second", "arriving"), ("read_records_per_second", "read"))),
        Panel("Outcome of records", "By outcome: read, accepted, dead.", "cps",
              (Curve("records_total", "{{pipeline}} {{outcome}}", "rate({}[5m])"),)),
        Panel("Result rows emitted", "By all batches of the head's path.", "cps", (Curve("rows_emitted_total", function="rate({}[5m])"),)),
        Panel("Records that wait", "In the log, beyond the committed offsets.", "short", _each(("lag_records", ""))),
        Panel("Records that wait, by partition", "One partition far above the others: a hot key, or a producer that stood still for a while.", "short",
              (Curve("partition_lag_records", "{{pipeline}} {{partition}}"),)),
        Panel("Time until the lag is gone", "At the pace of the last minute.", "s", _each(("catch_up_seconds", ""))),
    )),
    ("Time", (
        Panel("Latency and lag", "What a record that arrives now must expect; the age of the oldest that waits.", "s",
              _each(("latency_seconds", "latency"), ("lag_seconds", "lag"))),
        Panel("Seconds of a batch", "Of the newest hundred batches that read something.", "s",
              (Curve("batch_seconds", "{{pipeline}} p{{quantile}}"),)),
        Panel("Backpressure", "How long every batch has been full to max_offsets_per_trigger.", "s", _each(("backpressure_seconds", ""))),
        Panel("Watermark and event time", "Now less the watermark, and less the newest event time.", "s",
              _each(("watermark_lag_seconds", "watermark"), ("event_lag_seconds", "event time"))),
        Panel("Heartbeat", "Seconds since the driver last spoke.", "s", _each(("heartbeat_age_seconds", ""))),
        Panel("Drivers", "1 while a driver runs; failures in a row.", "short", _each(("up", "runs"), ("driver_failures", "failures"))),
    )),
    ("Correctness", (
        Panel("Late rows", "Share of late pairs, as the newest reconcile proved it.", "percentunit", _each(("late_share", ""))),
        Panel("Defects", "DEFECT verdicts of the newest reconcile.", "short", _each(("defects", ""))),
        Panel("Expectations that fail", "Of the pipeline's own suites; `rivertwice quality` shows them.", "short", (Curve("quality_failing", "{{pipeline}} {{severity}}"),)),
        Panel("Age of the newest reconcile", "An old one says nothing about today.", "s", _each(("reconcile_age_seconds", ""))),
        Panel("Dead letters, share", "Of the newest records.", "percentunit", _each(("dead_share", ""))),
        Panel("Dead letters that nobody decided on", "Amend or discard them: `rivertwice dead list`.", "short", _each(("dead_open", ""))),
        Panel("Oldest of them", "Age of its batch.", "s", _each(("dead_oldest_seconds", ""))),
    )),
    ("Safety", (
        Panel("Age of the newest proved savepoint", "A damaged checkpoint would cost all batches since.", "s", _each(("savepoint_age_seconds", ""))),
        Panel("Time of a fall-back", "Now, and what stream.recovery allows.", "s",
              _each(("recovery_seconds", "now"), ("recovery_objective_seconds", "allowed"))),
        Panel("Savepoints without a proof", "Newer than the newest proved one.", "short", _each(("savepoints_unproved", ""))),
        Panel("Bytes", "Of the live checkpoint, of its state, of the newest proved savepoint.", "bytes",
              _each(("checkpoint_bytes", "checkpoint"), ("state_bytes", "state"), ("savepoint_bytes", "savepoint"))),
        Panel("Files of the checkpoint", "Many small files slow each batch.", "short", _each(("checkpoint_files", ""))),
        Panel("Time left until Kafka deletes", "Of what only Kafka has: the worst claim. At 0 records are lost.", "percentunit",
              _each(("retention_left_share", ""))),
    )),
    ("Delivery and loads", (
        Panel("Batches that a sink lacks", "Committed, and not delivered yet.", "short", (Curve("delivery_lag_batches", "{{pipeline}} {{sink}}"),)),
        Panel("Rows wait for a sink", "Since it took the last ones.", "s", _each(("delivery_wait_seconds", ""))),
        Panel("Failures of a sink", "In a row.", "short", (Curve("delivery_failures", "{{pipeline}} {{sink}}"),)),
        Panel("Refused for good", "`rivertwice deliver refused` names them.", "short", (Curve("delivery_refused", "{{pipeline}} {{sink}}"),)),
        Panel("First load", "Step, of 5, and windows that are not published yet.", "short",
              _each(("first_load_step", "step"), ("first_load_windows", "windows"))),
        Panel("Alerts", "1 while an alert fires.", "short", (Curve("alert", "{{pipeline}} {{alert}}"),), "state-timeline", 16),
    )),
)  # fmt: skip


def dashboard() -> str:
    """Return the dashboard as JSON; the same text each time."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, own in ROWS:
        panels.append(_row(title, top, len(panels) + 1))
        placed = list(_places(own, top + 1))
        panels += [_panel(panel, place, len(panels) + 1 + number) for number, (panel, place) in enumerate(placed)]
        top = max(place["y"] + place["h"] for _, place in placed)
    board = {
        "uid": "rivertwice",
        "title": "rivertwice",
        "description": "Streams, their correctness and their safety. Made by `rivertwice metrics --dashboard`.",
        "tags": ["rivertwice"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "utc",
        "annotations": {"list": []},
        "templating": {"list": _variables()},
        "panels": panels,
    }
    return json.dumps(board, indent=2) + "\n"


def _places(panels: tuple[Panel, ...], top: int) -> Iterator[tuple[Panel, dict[str, int]]]:
    left = 0
    for panel in panels:
        height = HEIGHT // 2 if panel.kind == "stat" else HEIGHT
        if left + panel.width > COLUMNS:
            left, top = 0, top + height
        yield panel, {"x": left, "y": top, "w": panel.width, "h": height}
        left += panel.width


def _row(title: str, top: int, number: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
    return {"type": "row", "id": number, "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(panel: Panel, place: dict[str, int], number: int) -> dict[str, Any]:
    colours = ("yellow", "red")[-len(panel.limits) :] if panel.limits else ()
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    steps += [{"color": colour, "value": limit} for colour, limit in zip(colours, panel.limits, strict=True)]
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "min": 0,
        "color": {"mode": "thresholds" if panel.kind != "timeseries" else "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": steps},
    }
    made: dict[str, Any] = {
        "type": panel.kind,
        "id": number,
        "title": panel.title,
        "description": panel.meaning,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place_of), "datasource": DATASOURCE, "expr": curve.query, "legendFormat": curve.legend.strip()}
            for place_of, curve in enumerate(panel.curves)
        ],
    }  # fmt: skip
    if panel.kind == "timeseries":
        made["options"] = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
        defaults["custom"] = {"lineWidth": 1, "fillOpacity": 10, "showPoints": "auto", "spanNulls": False}
    return made


def _variables() -> list[dict[str, Any]]:
    return [
        {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus"},
        {
            "type": "query",
            "name": "pipeline",
            "label": "Pipeline",
            "datasource": DATASOURCE,
            "query": f"label_values({PREFIX}up, pipeline)",
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
        },
    ]
