"""What the tasks of a DAG do, wherever they run: in Airflow's own worker, or at an agent that a worker elsewhere asks over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rivertwice.tasks.catalogue import STEPS, do_work
    from rivertwice.tasks.client import AgentClient, find_dags
    from rivertwice.tasks.definitions import DagFacts, FoundDefinitions, find_definitions
    from rivertwice.tasks.desk import Desk
    from rivertwice.tasks.environment import SPARK_CONNECTION, SPARK_POOL, spark_environment, submit_confs
    from rivertwice.tasks.forms import RunReason, check_form
    from rivertwice.tasks.jobs import SparkJob
    from rivertwice.tasks.names import dag_id, of_dag, safe_name
    from rivertwice.tasks.operate import ActTask
    from rivertwice.tasks.run import APPROVE, TaskFailedError, TaskRun, TaskSkippedError
    from rivertwice.tasks.tokens import Tokens
    from rivertwice.tasks.watched import Watched
else:
    from rivertwice.core.face import lazy_names

    __getattr__ = lazy_names(__name__)
