"""Repairs of a real Airflow: which run waits for a person, which alerts last, and how one ended."""

from __future__ import annotations

from rivertwice.agent.alert_model import Alert
from rivertwice.agent.alert_store import alerts_of
from servers.airflow import PIPELINE, World
from servers.cockpit import data_of

REPAIR = f"backfill__{PIPELINE}"


def repairs(world: World) -> list[str]:
    """Return the runs of `backfill__P` that a reconcile started to repair what it found, oldest first."""
    return [run for run in world.airflow.runs(REPAIR) if run.startswith("repair__")]


def waiting(world: World) -> str:
    """Return the newest of them if it waits for a person, else an empty text."""
    runs = repairs(world)
    return runs[-1] if runs and world.airflow.question(REPAIR, runs[-1], "approve") is not None else ""


def known_alerts(world: World) -> list[Alert]:
    """Return the alerts that the home keeps: those that last, and those that ended a short time ago."""
    return list(alerts_of(world.settings).state().alerts)


def lasting(world: World) -> list[Alert]:
    """Return the alerts whose causes last."""
    return [alert for alert in known_alerts(world) if not alert.closed and alert.resolved_at is None]


def resolution_of(world: World, kind: str) -> str:
    """Return how the newest alert of a kind ended, also if the page lists it as over already."""
    ended = [alert.resolution for alert in known_alerts(world) if alert.cause.kind == kind and alert.resolved_at]
    if not ended:
        over = data_of(world.settings, f"p/{PIPELINE}/alerts")["over"]
        ended = [group["resolution"] for group in over if group["kind"] == kind]
    return str(ended[-1])
