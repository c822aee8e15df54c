"""Airflow DAGs: `operate__PIPELINE`, one for each definition in `pipelines/`, and for each version."""

from rivertwice.orchestration.definitions import every_dag
from rivertwice.orchestration.operate_dags import operate_dag

for dag in every_dag(operate_dag):
    globals()[dag.dag_id] = dag
