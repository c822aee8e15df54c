"""The operator of this project's Spark jobs where Airflow's worker has Spark itself."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowNotFoundException

from rivertwice.airflow.connections import use_connections
from rivertwice.airflow.operators import TellsLineage, links_of
from rivertwice.airflow.work import as_airflow_knows, attempt_of
from rivertwice.core import Settings
from rivertwice.engine import run_program_in_engine
from rivertwice.tasks import DagFacts, SparkJob, safe_name, spark_environment, submit_confs


class RivertwiceSparkOperator(TellsLineage, SparkSubmitOperator):
    """Submits one of this project's Spark jobs through the pipeline's connection, by default `spark_default`.

    If that is the Spark of this machine, and the definition asks for no resources, the home's warm engine runs the job instead.
    Arguments go to the job as a list, never through a shell. A failure that no retry can cure fails the task at once; any
    other failure is retried.

    Args:
        facts: of the pipeline; they name pool, connection and resources.
        job: name of the job, a file in `spark_jobs/` of the project, or of the package.
        arguments: the job's arguments; a list, or the output of a task that returns one.
    """

    def __init__(self, *, facts: DagFacts, settings: Settings, job: str, arguments: Any, **kwargs: Any) -> None:
        super().__init__(
            application=str(settings.shipped(f"spark_jobs/{job}.py")),
            application_args=arguments,
            name=f"{job}-{safe_name(facts.name)}",
            conn_id=facts.airflow.spark.conn_id,
            spark_binary=str(Path(sys.executable).with_name("spark-submit")),
            pool=facts.airflow.pool,
            # A local application dies with its submitter, so there is nothing to reattach to.
            durable=False,
            **kwargs,
        )
        self.settings = settings
        self.pipeline = facts.name
        self.job = job
        self.operator_extra_links = links_of(job)
        self.spark_resources = facts.airflow.spark

    def spark_job(self) -> SparkJob:
        """Return the job, once its arguments are known."""
        return SparkJob(self.pipeline, self.job, list(self.application_args or ()))

    def _may_be_warm(self, settings: Settings, *, quick: bool) -> bool:
        """Say whether a submission would do what the warm engine does: on this machine, without settings of a separate session."""
        if not self.spark_job().may_be_warm(settings, quick=quick, usual=self.spark_resources.is_usual):
            return False
        try:
            said = BaseHook.get_connection(self.spark_resources.conn_id)
        except AirflowNotFoundException:
            return False
        return said.conn_type == "spark" and said.host == settings.spark_master and not said.port and not said.extra

    def _run_in_engine(self, settings: Settings) -> bool:
        """Run the job in the home's warm engine, if it takes it; say whether it ran.

        Raises:
            AirflowException: it failed; the message is that of a submitted job.
        """
        ran = run_program_in_engine(settings, Path(self.application), self.application_args or (), self.log.info)
        if ran is None:
            return False
        code, end = ran
        if code:
            message = f"{self.application} failed in the engine. Error code is: {code}.\n{end}"
            raise AirflowException(message)
        return True

    def execute(self, context: Any) -> None:
        """Submit and wait; a short job of this machine runs in the home's warm engine.

        Raises:
            AirflowFailException: the job refused.
        """
        with as_airflow_knows():
            connected = use_connections()
        settings = self.settings
        if connected.kafka_connection:
            settings = replace(settings, bootstrap=connected.bootstrap, kafka=connected.kafka)
        # Here, not while the DAG file is parsed: finding Java asks it for its version.
        self.env_vars = spark_environment(settings)
        job = self.spark_job()
        quick = job.is_quick(settings)
        self.application_args = job.named(context["dag_run"].run_id, attempt_of(context))
        self.conf = submit_confs(settings, self.spark_resources.confs, quick=quick)
        try:
            if not (self._may_be_warm(settings, quick=quick) and self._run_in_engine(settings)):
                super().execute(context)
        except AirflowException as error:
            refusal = SparkJob.find_refusal(str(error))
            if refusal is None:
                raise
            raise AirflowFailException(refusal) from error
        ti = context["ti"]
        stored = self.spark_job().stores(ti.run_id, ti.try_number)
        self.collect_lineage(self.pipeline, stored if self.job == "reconcile" else None)
