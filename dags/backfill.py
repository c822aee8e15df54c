"""Airflow DAGs: `backfill__PIPELINE`, one for each definition in `pipelines/`, and for each version."""

from rivertwice.orchestration.dags import backfill_dag
from rivertwice.orchestration.definitions import every_dag

for dag in every_dag(backfill_dag):
    globals()[dag.dag_id] = dag
