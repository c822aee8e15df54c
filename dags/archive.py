"""Airflow DAGs: `archive__PIPELINE`, one for each definition in `pipelines/`."""

from rivertwice.airflow.factory import every_dag

for dag in every_dag("archive"):
    globals()[dag.dag_id] = dag
