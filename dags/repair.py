"""Airflow DAGs: `repair__PIPELINE`, one for each definition, of a pipeline or a version, that a backfill can repair."""

from rivertwice.airflow.dags import can_repair, repair_dag
from rivertwice.airflow.definitions import every_dag

for dag in every_dag(repair_dag, wants=can_repair):
    globals()[dag.dag_id] = dag
