"""Airflow's assets of a pipeline, and the tasks that give their events: what is said comes from `rivertwice.tasks.announce`.

Airflow stores a task's events when the task has succeeded, so a task that is tried again gives them once. What was announced is in
Airflow's own store of the asset: it is about what Airflow's DAGs have seen, and another Airflow begins with the first day.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Asset, get_current_context
from airflow.sdk.exceptions import AirflowSkipException

from rivertwice.airflow.work import do_step
from rivertwice.core import base_of
from rivertwice.tasks import safe_name

# Other DAGs wait for them by name. They belong to the pipeline, not to a version: who waits need not know which one serves.


def stream_asset(pipeline: str) -> Asset:
    """Return the asset of a stream: its store caches what was last seen of it; of one by schedule each run that has ended is an event."""
    return Asset(name=f"stream.{safe_name(pipeline)}", uri=f"x-rivertwice://streams/{safe_name(pipeline)}")


def served_asset(pipeline: str) -> Asset:
    """Return the asset of what a pipeline serves: an event for each publication, and for each reconcile that passed."""
    return Asset(name=f"served.{base_of(pipeline)}", uri=f"x-rivertwice://served/{base_of(pipeline)}")


def reconciled_asset(pipeline: str) -> Asset:
    """Return the asset of a pipeline's reconciled days: an event for each day, whose partition is the day, `2013-06-30`."""
    return Asset(name=f"reconciled.{base_of(pipeline)}", uri=f"x-rivertwice://reconciled/{base_of(pipeline)}")


STORED = "announced"


def announce(step: str, pipeline: str, said_of: Any) -> dict[str, Any]:
    """Give the event of `served.PIPELINE` that a step returns.

    Args:
        step: `announce_reconcile` or `announce_publication`.
        said_of: what passed, or the entry of the sequence.
    """
    said: dict[str, Any] = do_step(step, pipeline, said_of)
    _outlet(served_asset(pipeline)).extra = said
    return said


def announce_run(pipeline: str, asked_at: str) -> dict[str, Any]:
    """Give the event of `stream.PIPELINE`: a run by schedule has read to the log's end, and readers see its rows."""
    said: dict[str, Any] = do_step("report_run", pipeline, asked_at)
    _outlet(stream_asset(pipeline)).extra = said
    return said


def announce_days(pipeline: str, passed: dict[str, Any]) -> list[str]:
    """Give an event of `reconciled.PIPELINE` for each day that was reconciled since the last time; return them."""
    asset = reconciled_asset(pipeline)
    store: Any = get_current_context()["asset_state_store"][asset]
    found = do_step("announce_days", pipeline, passed, store.get(STORED) or {})
    store.set(STORED, found)
    keys = list(found["keys"])
    if not keys:
        message = f"no day of {pipeline} was reconciled since the last time, and none of those that were has changed"
        raise AirflowSkipException(message)
    event = _outlet(asset)
    event.extra = {"reconcile": passed["run"], "range": found["range"], "counts": passed["counts"], "days": len(keys)}
    event.add_partitions(keys)
    return keys


def _outlet(asset: Asset) -> Any:
    return get_current_context()["outlet_events"][asset]
