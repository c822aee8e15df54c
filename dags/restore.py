"""Airflow DAGs: `restore__PIPELINE`, one for each definition in `pipelines/`, and for each version."""

from rivertwice.orchestration.definitions import every_dag
from rivertwice.orchestration.operate_dags import restore_dag

for dag in every_dag(restore_dag):
    globals()[dag.dag_id] = dag
