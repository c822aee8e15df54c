"""Airflow DAGs: `switch__PIPELINE`, one for each definition in `pipelines/`."""

from rivertwice.airflow.dags import is_first_version, switch_dag
from rivertwice.airflow.definitions import every_dag

for dag in every_dag(switch_dag, wants=is_first_version):
    globals()[dag.dag_id] = dag
