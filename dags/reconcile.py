"""Airflow DAGs: `reconcile__PIPELINE`, one for each definition in `pipelines/`, and for each version."""

from rivertwice.airflow.dags import reconcile_dag
from rivertwice.airflow.definitions import every_dag

for dag in every_dag(reconcile_dag):
    globals()[dag.dag_id] = dag
