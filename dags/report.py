"""Airflow DAG: `report__week`, which reports the week of all pipelines."""

from rivertwice.airflow.factory import week_dags

for dag in week_dags():
    globals()[dag.dag_id] = dag
