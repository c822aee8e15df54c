"""Airflow DAGs: `repair__PIPELINE`, one for each definition, of a pipeline or a version, that a backfill can repair."""

from rivertwice.airflow.factory import every_dag

for dag in every_dag("repair"):
    globals()[dag.dag_id] = dag
