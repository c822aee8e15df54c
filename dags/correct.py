"""Airflow DAGs: `correct__PIPELINE`, one for each definition, of a pipeline or a version, whose late policy is `correct`."""

from rivertwice.airflow.dags import correct_dag, queues_late_windows
from rivertwice.airflow.definitions import every_dag

for dag in every_dag(correct_dag, wants=queues_late_windows):
    globals()[dag.dag_id] = dag
