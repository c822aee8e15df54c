"""agent metrics, status --why and status --time: figures of the streams, the alerts on them, likely causes, where the time goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from rivertwice.cli.frame import DEFECT, REFUSED, Frame, as_table, example, pass_frame
from rivertwice.cli.options import name_argument
from rivertwice.core import to_plain

if TYPE_CHECKING:
    from rivertwice.agent import AlertState, Measures
    from rivertwice.definition import Definition


def _measure(frame: Frame, name: str) -> Measures:
    from rivertwice.agent import measure, view_pipeline
    from rivertwice.core import utc_now

    now = utc_now()
    return measure(frame.settings, name, view_pipeline(frame.settings, name, now), now)


def _definitions(frame: Frame, name: str | None) -> tuple[dict[str, Definition], dict[str, str]]:
    """Return the definitions asked for, and why others could not be loaded; a named one must be loadable."""
    from rivertwice.definition import load_definition, load_each

    root = frame.settings.definitions
    names = frame.chosen_pipelines(name)
    return load_each(root) if name is None else ({name: load_definition(root / names[0])}, {})


HIDDEN = ("pipeline", "at", "partition_lag", "delivery_lag", "delivery_failures")
"""Not shown as one line of a table: the instant is its title, the others have one figure for each partition or sink."""


@click.command(
    epilog=example(
        "rivertwice agent metrics flight_delays",
        "rivertwice agent metrics --prometheus > /var/lib/node_exporter/rivertwice.prom",
        "rivertwice agent metrics --rules > rivertwice.rules.yml",
        "rivertwice agent metrics --dashboard > rivertwice.json",
    )
)
@name_argument(required=False)
@click.option("--prometheus", is_flag=True, help="Print Prometheus' text format (for a textfile collector).")
@click.option("--rules", is_flag=True, help="Print the alerts as a Prometheus rules file instead.")
@click.option("--dashboard", "board", is_flag=True, help="Print a Grafana dashboard of all metrics instead.")
@pass_frame
def metrics(frame: Frame, name: str | None, prometheus: bool, rules: bool, board: bool) -> None:
    """Measure the streams; show the alerts on them.

    It has throughput, lag, latency, backpressure, state, savepoints and lateness. Every figure carries its unit; one that is not known is left out, never guessed. The limits are in pipeline.yaml under
    `alerts`. Exit 3 while an alert fires, 1 if a definition cannot be loaded.
    """
    from rivertwice.agent import alerting_rules, dashboard, exposition, firing, judge_alerts

    if board:
        click.echo(dashboard(), nl=False)
        return
    definitions, broken = _definitions(frame, name)
    frame.report_broken(broken)
    limits = {each: definition.alerts for each, definition in definitions.items()}
    if rules:
        click.echo(alerting_rules(limits), nl=False)
        _end(broken)
        return
    measured = [_measure(frame, each) for each in definitions]
    alerts = {measures.pipeline: judge_alerts(measures, limits[measures.pipeline]) for measures in measured}
    if prometheus:
        click.echo(exposition(measured, alerts), nl=False)
        _end(broken)
        return
    value: list[dict[str, Any]] = [
        {
            **to_plain(measures),
            "alerts": [
                {"name": each.rule.name, "state": each.state, "value": each.value, "limit": each.limit}
                for each in alerts[measures.pipeline]
            ],
        }
        for measures in measured
    ]
    value += [{"pipeline": each, "error": error} for each, error in broken.items()]
    frame.emit(value, lambda: "\n".join(_text(measures, alerts[measures.pipeline]) for measures in measured))
    if any(firing(states) for states in alerts.values()):
        raise SystemExit(DEFECT)
    _end(broken)


def _end(broken: Mapping[str, str]) -> None:
    """End as refused if a definition could not be loaded: its figures are missing."""
    if broken:
        raise SystemExit(REFUSED)


def _text(measures: Measures, alerts: Sequence[AlertState]) -> str:
    plain = to_plain(measures)
    rows = [(key, value) for key, value in plain.items() if key not in HIDDEN]
    rows += [(f"delivery_lag {sink}", f"{lag} batches") for sink, lag in measures.delivery_lag.items()]
    shown = as_table(("figure", "value"), rows, title=f"{measures.pipeline} at {plain['at']}")
    states = as_table(
        ("alert", "state", "value", "limit"), [(each.rule.name, each.state, each.value, each.limit) for each in alerts]
    )
    messages = [f"{each.rule.severity}: {each.rule.name}: {each.message}" for each in alerts if each.state == "firing"]
    return "\n".join([shown, states, *messages])


def show_causes(frame: Frame, name: str | None) -> None:
    """Show likely causes of lag, silence, late rows, dead letters and stale savepoints; only those that a figure supports.

    Raises:
        SystemExit: something was found, or a definition could not be loaded.
    """
    from rivertwice.agent import find_causes

    definitions, broken = _definitions(frame, name)
    frame.report_broken(broken)
    causes = {each: find_causes(_measure(frame, each), definition) for each, definition in definitions.items()}
    rows = [
        (pipeline, cause.symptom, cause.evidence, cause.cause, cause.remedy)
        for pipeline, pipeline_causes in causes.items()
        for cause in pipeline_causes
    ]
    headers = ("pipeline", "symptom", "seen", "likely cause", "remedy")
    frame.emit(causes, lambda: as_table(headers, rows) if rows else f"nothing hurts: {', '.join(causes)}")
    if rows:
        raise SystemExit(DEFECT)
    _end(broken)


def show_times(frame: Frame, name: str | None) -> None:
    """Show where the time of the newest batches, of the last reconcile and of the last backfill went.

    Raises:
        SystemExit: a definition could not be loaded.
    """
    from rivertwice.core import utc_now
    from rivertwice.read import read_curves

    definitions, broken = _definitions(frame, name)
    frame.report_broken(broken)
    views = {each: read_curves(frame.settings, one, "7d", utc_now()).time for each, one in definitions.items()}
    frame.emit(views, lambda: "\n".join(line for each, view in views.items() for line in _time_lines(each, view)))
    _end(broken)


def _time_lines(name: str, view: Any) -> Iterator[str]:
    """Yield where the time of a pipeline went, for people. Pure."""
    whole = sum(view.sums.values())
    if not view.batches:
        yield f"{name}: no batch of the last 7 days is known"
    else:
        rows = [
            (view.names[part], f"{value:.1f} s", f"{value / whole:.1%}") for part, value in view.sums.items() if value
        ]
        title = f"{name}: {view.batches} batches since {to_plain(view.from_)}"
        yield as_table(("where the time goes", "seconds", "share"), rows, title=title)
        slow = [
            (f"{each.timeline}/{each.batch}", f"{each.seconds:.2f} s", each.read, each.reason) for each in view.slowest
        ]
        yield as_table(("slowest batches", "took", "records", "why"), slow)
    if view.state.per_day is not None:
        yield f"state: {view.state.bytes / 1e6:.1f} MB, {view.state.per_day / 1e6:+.1f} MB a day"
    for run in view.runs:
        steps = ", ".join(f"{step} {seconds:.1f} s" for step, seconds in run.seconds.items())
        yield f"{run.kind} {run.id}: {run.slowest} ({steps})"
    for each in view.advice:
        yield f"{each.setting}: {each.now} -> {each.to}: {each.why}; it should bring: {each.brings}"
