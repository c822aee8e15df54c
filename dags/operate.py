"""Airflow DAGs: `operate__PIPELINE`, one for each definition in `pipelines/`, and for each version."""

from rivertwice.airflow.factory import every_dag

for dag in every_dag("operate"):
    globals()[dag.dag_id] = dag
