"""Airflow's assets of a pipeline: its stream, what it serves, and the days of that which a reconcile has passed.

Other DAGs wait for them by name. They belong to the pipeline, not to a version: who waits need not know which one serves.
"""

from __future__ import annotations

from airflow.sdk import Asset

from rivertwice.config.versions import base_of
from rivertwice.orchestration.dag_names import safe_name


def stream_asset(pipeline: str) -> Asset:
    """Return the asset whose store caches what was last seen of a stream."""
    return Asset(name=f"stream.{safe_name(pipeline)}", uri=f"x-rivertwice://streams/{safe_name(pipeline)}")


def served_asset(pipeline: str) -> Asset:
    """Return the asset of what a pipeline serves: an event for each publication, and for each reconcile that passed."""
    return Asset(name=f"served.{base_of(pipeline)}", uri=f"x-rivertwice://served/{base_of(pipeline)}")


def reconciled_asset(pipeline: str) -> Asset:
    """Return the asset of a pipeline's reconciled days: an event for each day, whose partition is the day, `2013-06-30`."""
    return Asset(name=f"reconciled.{base_of(pipeline)}", uri=f"x-rivertwice://reconciled/{base_of(pipeline)}")
