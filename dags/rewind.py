"""Airflow DAGs: `rewind__PIPELINE`, one for each definition in `pipelines/`, and for each version."""

from rivertwice.orchestration.definitions import every_dag
from rivertwice.orchestration.operate_dags import rewind_dag

for dag in every_dag(rewind_dag):
    globals()[dag.dag_id] = dag
