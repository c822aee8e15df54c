"""Airflow DAGs: `repair__PIPELINE`, one for each definition, of a pipeline or a version, that a backfill can repair."""

from rivertwice.orchestration.definitions import every_dag
from rivertwice.orchestration.repair_dag import can_repair, repair_dag

for dag in every_dag(repair_dag, wants=can_repair):
    globals()[dag.dag_id] = dag
