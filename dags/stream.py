"""Airflow DAGs: `stream__PIPELINE`, one for each definition with `stream.mode: scheduled`, and for each version."""

from rivertwice.airflow.factory import every_dag

for dag in every_dag("stream"):
    globals()[dag.dag_id] = dag
