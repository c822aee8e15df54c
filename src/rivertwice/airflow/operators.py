"""Our operators: a supervision epoch, and the Spark jobs of this project."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Asset, BaseHook, BaseOperator, BaseOperatorLink
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowNotFoundException

from rivertwice.agent import choose_grace
from rivertwice.airflow.alerts import StreamFaultError, find_refusal
from rivertwice.airflow.connections import use_connections
from rivertwice.airflow.dag_names import comparison_of, reconcile_of, safe_name
from rivertwice.airflow.environment import spark_environment, submit_confs
from rivertwice.airflow.refusals import refusals
from rivertwice.airflow.triggers import EPOCH_ENDED, EpochTrigger
from rivertwice.core import PipelineHome, RivertwiceError, Settings, to_iso, utc_now
from rivertwice.definition import Definition, SparkResources
from rivertwice.engine import is_quick, is_served, run_program_in_engine

# Links from a task in Airflow to our page: to its pipeline, and to the report of what the task stored.
#
# Airflow asks for them in the task's process once the task has ended, and stores the addresses.

PAGE = "/rivertwice/"


def page_address(base: str, pipeline: str, run: str | None = None) -> str:
    """Return where the page shows a pipeline, or the report of one of its runs. Pure.

    Args:
        base: Airflow's address, `[api] base_url`; empty: the link begins at the server's root.
        pipeline: its name, or that of a version.
        run: a reconcile, comparison or backfill.
    """
    asked = {"pipeline": pipeline} | ({} if run is None else {"run": run})
    return f"{base.rstrip('/')}{PAGE}?{urlencode(asked)}"


class PipelineLink(BaseOperatorLink):
    """To the pipeline's part of the page."""

    name = "rivertwice: pipeline"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address.

        Args:
            operator: has the name of its pipeline.
        """
        return page_address(_base(), operator.pipeline)


class ReportLink(BaseOperatorLink):
    """To the report of what this task instance stored: a reconcile, a comparison of versions, a backfill."""

    name = "rivertwice: report"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address; that of the pipeline if the task stored nothing that has a report.

        Args:
            operator: has the name of its pipeline, and says what it stored.
        """
        return page_address(_base(), operator.pipeline, operator.report_of(ti_key.run_id, ti_key.try_number))


def _base() -> str:
    return str(conf.get("api", "base_url", fallback="") or "")


class SuperviseEpoch(BaseOperator):
    """One epoch of watching a stream, deferred to the triggerer: it holds no worker and owns no process.

    The last observation is cached in the asset store, where the UI and the REST API show it; the truth stays in the home.

    Args:
        stream: the asset whose store caches the observation.
        epoch: length of the epoch in seconds.
        grace: seconds a fault may last before it fails the epoch.
        poll: seconds between two looks.
    """

    operator_extra_links = (PipelineLink(),)

    def __init__(
        self,
        *,
        pipeline: str,
        stream: Asset,
        epoch: float = 600.0,
        grace: float = 60.0,
        poll: float = 2.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(inlets=[stream], **kwargs)
        self.pipeline = pipeline
        self.stream = stream
        self.epoch = epoch
        self.grace = grace
        self.poll = poll

    def execute(self, context: Any) -> None:
        """Hand the epoch to the triggerer."""
        failures = int(context["asset_state_store"][self.stream].get("failures") or 0)
        trigger = EpochTrigger(
            pipeline=self.pipeline,
            ends_at=to_iso(utc_now() + timedelta(seconds=self.epoch)),
            grace=choose_grace(failures, self.grace, self.epoch),
            poll=self.poll,
        )
        self.defer(trigger=trigger, method_name="finish")

    def finish(self, context: Any, event: dict[str, Any]) -> str:
        """Cache the observation, and fail if a fault lasted too long.

        Raises:
            AirflowFailException: the agent is dead or has stopped retrying, or the driver is not back in time.
        """
        store = context["asset_state_store"][self.stream]
        store.set("seen", {**event["seen"], "message": event["message"], "at": to_iso(utc_now())})
        if event["status"] != EPOCH_ENDED:
            store.set("failures", int(store.get("failures") or 0) + 1)
            message = f"{self.pipeline}: {event['status']}: {event['message']}"
            raise AirflowFailException(message) from StreamFaultError(event["status"], event["message"])
        store.set("failures", 0)
        return str(event["message"])


class RivertwiceSparkOperator(SparkSubmitOperator):
    """Submits one of this project's Spark jobs through the pipeline's connection, by default `spark_default`.

    If that is the Spark of this machine, and the definition asks for no resources, the home's warm engine runs the job instead.
    Arguments go to the job as a list, never through a shell. A failure that no retry can cure fails the task at once; any
    other failure is retried.

    Args:
        definition: of the pipeline; it names pool, connection and resources.
        job: name of the job, a file in `spark_jobs/` of the project, or of the package.
        arguments: the job's arguments; a list, or the output of a task that returns one.
    """

    def __init__(self, *, settings: Settings, definition: Definition, job: str, arguments: Any, **kwargs: Any) -> None:
        super().__init__(
            application=str(settings.shipped(f"spark_jobs/{job}.py")),
            application_args=arguments,
            name=f"{job}-{safe_name(definition.name)}",
            conn_id=definition.airflow.spark.conn_id,
            spark_binary=str(Path(sys.executable).with_name("spark-submit")),
            pool=definition.airflow.pool,
            # A local application dies with its submitter, so there is nothing to reattach to.
            durable=False,
            **kwargs,
        )
        self.settings = settings
        self.pipeline = definition.name
        self.spark_resources = definition.airflow.spark

    def report_of(self, _run_id: str, _attempt: int) -> str | None:
        """Return the run, stored by an attempt in a DAG run, that has a report on the page; None: it has none."""
        return None

    _lineage: Any = None

    def get_openlineage_facets_on_complete(self, _task_instance: Any) -> Any:
        """Return the lineage of the task that has ended well, for Airflow's OpenLineage provider, if it is installed."""
        return self._lineage

    def _collect_lineage(self, task_instance: Any) -> None:
        """Read the lineage in the task's own process: the provider asks in a fork of it, where no Delta table can be opened any more."""
        try:
            from airflow.providers.openlineage.conf import is_disabled
        except ImportError:
            return
        if is_disabled():
            return
        from rivertwice.airflow.lineage import task_lineage

        try:
            self._lineage = task_lineage(Settings.from_env(), self.pipeline, self.judged_by(task_instance))
        except Exception:  # the job is done, whatever is wrong with its lineage
            self.log.exception("The lineage of this task could not be collected.")

    def judged_by(self, _task_instance: Any) -> str | None:
        """Return the reconcile that the task stored; None: it stored none."""
        return None

    def arguments_of(self, _context: Any) -> list[str]:
        """Return the job's arguments in this run."""
        return list(self.application_args or ())

    def records_of(self, _home: PipelineHome) -> int | None:
        """Return how many records the job decodes; None: it is not known before it runs."""
        return 0 if Path(self.application).stem == "archive" else None

    def _is_quick(self, settings: Settings) -> bool:
        try:
            records = self.records_of(settings.pipeline(self.pipeline))
        except RivertwiceError:
            return False  # the job says what is wrong
        return records is not None and is_quick(records=records)

    def _may_be_warm(self, settings: Settings) -> bool:
        """Say whether a submission would do what the warm engine does: on this machine, without settings of a separate session."""
        if not is_served(settings) or self.spark_resources.confs != SparkResources().confs:
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
        with refusals():
            connected = use_connections()
        settings = self.settings
        if connected.kafka_connection:
            settings = replace(settings, bootstrap=connected.bootstrap, kafka=connected.kafka)
        # Here, not while the DAG file is parsed: finding Java asks it for its version.
        self.env_vars = spark_environment(settings)
        self.application_args = self.arguments_of(context)
        quick = self._is_quick(settings)
        self.conf = submit_confs(settings, self.spark_resources, quick=quick)
        try:
            # A proof finds out itself how much it replays, and leaves the engine if that is much.
            is_short = quick or Path(self.application).stem == "prove"
            if not (is_short and self._may_be_warm(settings) and self._run_in_engine(settings)):
                super().execute(context)
        except AirflowException as error:
            refusal = find_refusal(str(error))
            if refusal is None:
                raise
            raise AirflowFailException(refusal) from error
        self._collect_lineage(context["ti"])


class BackfillOperator(RivertwiceSparkOperator):
    """Submits the job that computes a planned backfill."""

    operator_extra_links = (PipelineLink(), ReportLink())

    def report_of(self, _run_id: str, _attempt: int) -> str | None:
        """Return the backfill, which is the last of the job's arguments."""
        arguments = list(self.application_args or ())
        return str(arguments[-1]) if arguments else None

    def records_of(self, home: PipelineHome) -> int | None:
        """Return the records of the plan."""
        from rivertwice.backfill import load_backfill_plan

        backfill = self.report_of("", 0)
        return None if backfill is None else load_backfill_plan(home, backfill).records


class ReconcileOperator(RivertwiceSparkOperator):
    """Submits the reconcile job under a separate name for each DAG run, by which the run's gate finds it."""

    operator_extra_links = (PipelineLink(), ReportLink())

    def report_of(self, run_id: str, attempt: int) -> str:
        """Return the name of the reconcile."""
        return reconcile_of(run_id, attempt)

    def judged_by(self, task_instance: Any) -> str | None:
        """Return the name of the reconcile."""
        return self.report_of(task_instance.run_id, task_instance.try_number)

    def arguments_of(self, context: Any) -> list[str]:
        """Return the job's arguments and the name of the reconcile."""
        run = self.report_of(context["dag_run"].run_id, context["ti"].try_number)
        return [*super().arguments_of(context), "--run", run, "--silent"]

    def records_of(self, home: PipelineHome) -> int | None:
        """Return the records since the newest seal, or all for a whole run or a range."""
        from rivertwice.reconcile import count_unsealed

        arguments = set(self.application_args or ())
        return count_unsealed(home, full=not arguments.isdisjoint(("--full", "--from")))


class CompareOperator(RivertwiceSparkOperator):
    """Submits the comparison of two versions under a separate name for each DAG run, by which the run's gate finds it."""

    operator_extra_links = (PipelineLink(), ReportLink())

    def report_of(self, run_id: str, attempt: int) -> str:
        """Return the name of the comparison."""
        return comparison_of(run_id, attempt)

    def arguments_of(self, context: Any) -> list[str]:
        """Return the job's arguments and the name of the comparison."""
        run = self.report_of(context["dag_run"].run_id, context["ti"].try_number)
        return [*super().arguments_of(context), "--by", "airflow", "--run", run]
