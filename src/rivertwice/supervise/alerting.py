"""Judge the alerts of every supervised pipeline, apart from supervision, and page when one begins to fire."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime

from rivertwice.config import Settings
from rivertwice.metrics.measure import measure
from rivertwice.metrics.rules import FIRING, OK, AlertState, judge_alerts
from rivertwice.pipeline.definition import load_definition
from rivertwice.supervise.act import page, record_event
from rivertwice.supervise.keeper import Keeper
from rivertwice.supervise.view import view_pipeline

EVERY_S = 30.0


def select_edges(known: frozenset[str], states: Sequence[AlertState]) -> tuple[list[AlertState], list[AlertState]]:
    """Return (those that begin to fire, those that are over). Pure.

    An alert whose figure is not known now neither begins nor ends.

    Args:
        known: names of the rules that fired before.
        states: what the rules say now.
    """
    begun = [each for each in states if each.state == FIRING and each.rule.name not in known]
    over = [each for each in states if each.state in (OK, "off") and each.rule.name in known]
    return begun, over


class AlertKeeper(Keeper):
    """Every half minute judges the alerts; one that begins to fire is paged once, one that is over is an event."""

    def __init__(
        self, settings: Settings, names: Callable[[], list[str]], stop: threading.Event, every_s: float = EVERY_S
    ) -> None:
        super().__init__(settings, names, stop, what="alerts", every_s=every_s)
        self._firing: dict[str, frozenset[str]] = {}

    def look(self, name: str, now: datetime) -> list[AlertState]:
        """Measure one pipeline, page what begins to fire, and return the states."""
        limits = load_definition(self._settings.definitions / name).alerts
        found = measure(self._settings, name, view_pipeline(self._settings, name, now), now)
        states = judge_alerts(found, limits)
        begun, over = select_edges(self._firing.get(name, frozenset()), states)
        for each in begun:
            page(self._settings, each.rule.name, name, each.message, now, severity=each.rule.severity)
        for each in over:
            message = f"{each.rule.name} is over: {each.rule.figure} is {each.value}"
            record_event(self._settings, "alert_over", name, message, now)
        ended = {each.rule.name for each in over}
        begun_names = {each.rule.name for each in begun}
        self._firing[name] = (self._firing.get(name, frozenset()) - ended) | begun_names
        return states
