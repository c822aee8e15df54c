"""Airflow DAGs: `archive__PIPELINE`, one for each definition in `pipelines/`."""

from rivertwice.airflow.dags import archive_dag, is_first_version
from rivertwice.airflow.definitions import every_dag

for dag in every_dag(archive_dag, wants=is_first_version):
    globals()[dag.dag_id] = dag
