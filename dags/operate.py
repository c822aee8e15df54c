"""Airflow DAGs: `operate__PIPELINE`, one for each definition in `pipelines/`, and for each version."""

from rivertwice.airflow.definitions import every_dag
from rivertwice.airflow.operate import operate_dag

for dag in every_dag(operate_dag):
    globals()[dag.dag_id] = dag
