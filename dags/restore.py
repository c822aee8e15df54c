"""Airflow DAGs: `restore__PIPELINE`, one for each definition in `pipelines/`, and for each version."""

from rivertwice.airflow.definitions import every_dag
from rivertwice.airflow.operate_dags import restore_dag

for dag in every_dag(restore_dag):
    globals()[dag.dag_id] = dag
