"""The Grafana dashboard of all metrics, as JSON that Grafana imports. Pure.

A panel is a row of `ROWS`: a title, a unit, what it is for, and its queries. The variable `pipeline` chooses pipelines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rivertwice.metrics.prometheus import PREFIX

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
