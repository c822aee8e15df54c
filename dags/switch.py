"""Airflow DAGs: `switch__PIPELINE`, one for each definition in `pipelines/`."""

from rivertwice.airflow.factory import every_dag

for dag in every_dag("switch"):
    globals()[dag.dag_id] = dag
