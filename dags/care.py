"""Airflow DAGs: `care__PIPELINE`, one for each definition in `pipelines/`, and for each version."""

from rivertwice.airflow.factory import every_dag

for dag in every_dag("care"):
    globals()[dag.dag_id] = dag
