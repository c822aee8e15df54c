"""Airflow DAGs: `reconcile_full__PIPELINE`, one for each definition in `pipelines/`, and for each version."""

from rivertwice.airflow.dags import reconcile_full_dag
from rivertwice.airflow.definitions import every_dag

for dag in every_dag(reconcile_full_dag):
    globals()[dag.dag_id] = dag
