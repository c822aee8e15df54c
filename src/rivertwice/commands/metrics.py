"""metrics, diagnose: figures of the streams, the alerts on them, and likely causes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from rivertwice.commands.frame import DEFECT, Frame, as_table, example, pass_frame, to_plain

if TYPE_CHECKING:
    from rivertwice.metrics.model import Measures
    from rivertwice.metrics.rules import AlertState


def _measure(frame: Frame, name: str) -> Measures:
    from rivertwice.instants import utc_now
    from rivertwice.metrics.measure import measure
    from rivertwice.supervise.view import view_pipeline

    now = utc_now()
    return measure(frame.settings, name, view_pipeline(frame.settings, name, now), now)


HIDDEN = ("pipeline", "at", "partition_lag", "delivery_lag", "delivery_failures")
"""Not shown as one line of a table: the instant is its title, the others are one figure each for partitions and sinks."""


@click.command(
    epilog=example(
        "rivertwice metrics flight_delays",
        "rivertwice metrics --prometheus > /var/lib/node_exporter/rivertwice.prom",
        "rivertwice metrics --rules > rivertwice.rules.yml",
    )
)
@click.argument("name", required=False)
@click.option("--prometheus", is_flag=True, help="Print Prometheus' text format (for a textfile collector).")
@click.option("--rules", is_flag=True, help="Print the alerts as a Prometheus rules file instead.")
@pass_frame
def metrics(frame: Frame, name: str | None, prometheus: bool, rules: bool) -> None:
    """Measure the streams: throughput, lag, latency, backpressure, state, savepoints, lateness; and the alerts on them.

    Every figure carries its unit; one that is not known is left out, never guessed. Exit 3 while an alert fires. The
    limits stand in pipeline.yaml under `alerts`.
    """
    from rivertwice.metrics.prometheus import alerting_rules, exposition
    from rivertwice.metrics.rules import firing, judge_alerts
    from rivertwice.pipeline.definition import load_definition

    settings = frame.settings
    names = frame.chosen_pipelines(name)
    limits = {each: load_definition(settings.definitions / each).alerts for each in names}
    if rules:
        click.echo(alerting_rules(limits), nl=False)
        return
    measured = [_measure(frame, each) for each in names]
    alerts = {found.pipeline: judge_alerts(found, limits[found.pipeline]) for found in measured}
    if prometheus:
        click.echo(exposition(measured, alerts), nl=False)
        return
    value = [
        {
            **to_plain(found),
            "alerts": [
                {"name": each.rule.name, "state": each.state, "value": each.value, "limit": each.limit}
                for each in alerts[found.pipeline]
            ],
        }
        for found in measured
    ]
    frame.emit(value, lambda: "\n".join(_text(found, alerts[found.pipeline]) for found in measured))
    if any(firing(states) for states in alerts.values()):
        raise SystemExit(DEFECT)


def _text(found: Measures, alerts: Sequence[AlertState]) -> str:
    plain = to_plain(found)
    rows = [(key, value) for key, value in plain.items() if key not in HIDDEN]
    rows += [(f"delivery_lag {sink}", f"{lag} batches") for sink, lag in found.delivery_lag.items()]
    shown = as_table(("figure", "value"), rows, title=f"{found.pipeline} at {plain['at']}")
    states = as_table(
        ("alert", "state", "value", "limit"), [(each.rule.name, each.state, each.value, each.limit) for each in alerts]
    )
    told = [f"{each.rule.severity}: {each.rule.name}: {each.message}" for each in alerts if each.state == "firing"]
    return "\n".join([shown, states, *told])


@click.command(epilog=example("rivertwice diagnose", "rivertwice diagnose flight_delays"))
@click.argument("name", required=False)
@pass_frame
def diagnose(frame: Frame, name: str | None) -> None:
    """Name likely causes of lag, silence, late rows, dead letters and stale savepoints, with the figures behind each.

    Nothing is named that no figure supports. Exit 3 if something was found.
    """
    from rivertwice.metrics.diagnose import diagnose as causes_of
    from rivertwice.pipeline.definition import load_definition

    settings = frame.settings
    found = {}
    for each in frame.chosen_pipelines(name):
        definition = load_definition(settings.definitions / each)
        found[each] = causes_of(_measure(frame, each), definition)
    rows = [
        (pipeline, one.symptom, one.evidence, one.cause, one.remedy) for pipeline, ones in found.items() for one in ones
    ]
    headers = ("pipeline", "symptom", "seen", "likely cause", "remedy")
    frame.emit(found, lambda: as_table(headers, rows) if rows else f"nothing hurts: {', '.join(found)}")
    if rows:
        raise SystemExit(DEFECT)
