"""A DAG of somebody who uses the rows of a pipeline: it runs once for each day that a reconcile has passed, and again if a day changed."""

from __future__ import annotations

from airflow.sdk import DAG, Asset, IdentityMapper, PartitionedAssetTimetable, get_current_context, task

RECONCILED = Asset(name="reconciled.flight_delays", uri="x-rivertwice://reconciled/flight_delays")

with DAG(
    dag_id="after_reconcile",
    schedule=PartitionedAssetTimetable(assets=RECONCILED, default_partition_mapper=IdentityMapper()),
    catchup=False,
    tags=["example"],
) as dag:

    @task
    def use_day() -> dict[str, object]:
        """Return the day that is complete, and what the reconcile said; a real task reads the served rows of this day."""
        context = get_current_context()
        events = [event for each in context["triggering_asset_events"].values() for event in each]
        return {"day": context["dag_run"].partition_key, "reconcile": events[-1].extra["reconcile"]}

    use_day()
