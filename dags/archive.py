"""Airflow DAGs: `archive__PIPELINE`, one for each definition in `pipelines/`."""

from rivertwice.orchestration.dags import archive_dag
from rivertwice.orchestration.definitions import every_dag

for dag in every_dag(archive_dag):
    globals()[dag.dag_id] = dag
