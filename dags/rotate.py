"""Airflow DAGs: `rotate__PIPELINE`, one for each definition in `pipelines/`, and for each version."""

from rivertwice.airflow.dags import rotate_dag
from rivertwice.airflow.definitions import every_dag

for dag in every_dag(rotate_dag):
    globals()[dag.dag_id] = dag
