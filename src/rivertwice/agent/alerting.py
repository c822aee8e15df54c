"""Judge the alerts of every supervised pipeline, apart from supervision, and page when one begins to fire."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from rivertwice.agent.act import page, page_over, record_event
from rivertwice.agent.alert_kinds import is_about_stream
from rivertwice.agent.alert_model import Alert
from rivertwice.agent.alert_store import alerts_of
from rivertwice.agent.decide import Action
from rivertwice.agent.figures import Measures
from rivertwice.agent.keeper import Keeper
from rivertwice.agent.metrics import measure
from rivertwice.agent.prometheus import FIRING, OK, AlertState, firing, judge_alerts, judge_objectives
from rivertwice.agent.view import PipelineView, Unreadable, view_pipeline
from rivertwice.core import Settings
from rivertwice.definition import load_definition

EVERY_S = 30.0


@dataclass(frozen=True)
class AlertScan:
    """What was measured of a pipeline, and when.

    Attributes:
        missed: the objectives, as `judge_objectives` gives them.
        hibernate: after this time without a record its driver ends; None: never, or not while a first load is under way.
    """

    measures: Measures
    states: list[AlertState]
    at: datetime
    hibernate: timedelta | None = None
    missed: Mapping[str, float] = field(default_factory=dict)


def select_edges(known: frozenset[str], states: Sequence[AlertState]) -> tuple[list[AlertState], list[AlertState]]:
    """Return (those that begin to fire, those that are over). Pure.

    An alert whose figure is not known now neither begins nor ends.

    Args:
        known: names of the rules that fired before.
    """
    begun = [each for each in states if each.state == FIRING and each.rule.name not in known]
    over = [each for each in states if each.state in (OK, "off") and each.rule.name in known]
    return begun, over


class AlertKeeper(Keeper):
    """Judges the alerts every half minute. An alert that fires is reported; its end is reported too, and is an event."""

    what, every_s = "alerts", EVERY_S

    def __init__(self, settings: Settings, names: Callable[[], list[str]], stop: threading.Event) -> None:
        super().__init__(settings, names, stop)
        self._looks: dict[str, AlertScan] = {}

    def newest(self) -> dict[str, AlertScan]:
        """Return the newest look at each pipeline that is supervised still, by name."""
        names = set(self._names())
        return {name: look for name, look in sorted(self._looks.copy().items()) if name in names}

    def newest_of(self, name: str) -> AlertScan | None:
        """Return the newest look at a pipeline; None: there was none yet."""
        return self._looks.get(name)

    def look(self, name: str, now: datetime) -> list[AlertState]:
        """Measure one pipeline, report what fires and what is over, and return the states."""
        definition = load_definition(self._settings.definition_folder(name))
        limits = definition.alerts
        view = view_pipeline(self._settings, name, now)
        measures = measure(self._settings, name, view, now)
        states = judge_alerts(measures, limits)
        rests = definition.stream.hibernate if measures.first_load_step is None else None
        missed = judge_objectives(definition, measures, states)
        self._looks[name] = AlertScan(measures, states, now, rests, missed)
        _, over = select_edges(self._firing(name), states)
        for each in firing(states):
            shown = {"batch": "" if view.batch is None else str(view.batch), "savepoint": _savepoint(view)}
            page(self._settings, each.rule.name, name, each.message, now, severity=each.rule.severity, details=shown)
        for each in over:
            value = "not judged any more" if each.value is None else f"{each.value:g}"
            message = f"{each.rule.name} is over: {each.rule.figure} is {value}"
            page_over(self._settings, {each.rule.name}, name, message, now)
            record_event(self._settings, "alert_over", name, message, now)
        return states

    def _firing(self, name: str) -> frozenset[str]:
        """Return the kinds that fire, also those that an earlier agent reported."""
        alerts = alerts_of(self._settings).state().alerts
        return frozenset(
            alert.cause.kind
            for alert in alerts
            if alert.cause.pipeline == name and not alert.closed and alert.resolved_at is None
        )


def _savepoint(view: PipelineView) -> str:
    """Return the newest savepoint of a pipeline, empty if there is none or it cannot be read."""
    return "" if view.savepoint is None or isinstance(view.savepoint, Unreadable) else str(view.savepoint.id)


def end_stream_alerts(settings: Settings, name: str, action: Action, well: bool, now: datetime) -> None:
    """Report the end of all alerts about a stream that is in its desired state, or that it is not after all."""

    def is_about_it(alert: Alert) -> bool:
        return alert.cause.pipeline == name and is_about_stream(alert.cause)

    alerts = alerts_of(settings)
    if well:
        alerts.resolve(is_about_it, action.reason, now)
    else:
        alerts.reopen(is_about_it)
