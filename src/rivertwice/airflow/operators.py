"""Our operators: a supervision epoch, and a Spark job that an agent on another host runs; links to our page."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from airflow.sdk import Asset, BaseOperator, BaseOperatorLink
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from rivertwice.agent import Condition, choose_grace
from rivertwice.airflow.alerts import StreamFaultError
from rivertwice.airflow.connections import use_connections
from rivertwice.airflow.triggers import EPOCH_ENDED, RAN, EpochTrigger, RunTrigger
from rivertwice.airflow.work import as_airflow_knows, attempt_of, run_of
from rivertwice.core import to_iso, utc_now
from rivertwice.tasks import AgentClient, DagFacts, SparkJob, Watched

log = logging.getLogger(__name__)

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
            operator: has the name of its pipeline, and gives its job.
        """
        run = operator.spark_job().stores(ti_key.run_id, ti_key.try_number)
        return page_address(_base(), operator.pipeline, run)


def links_of(job: str) -> tuple[BaseOperatorLink, ...]:
    """Return the links of a task that runs a job."""
    return (PipelineLink(), ReportLink()) if job in ("backfill", "reconcile", "compare") else ()


def _base() -> str:
    return str(conf.get("api", "base_url", fallback="") or "")


class TellsLineage:
    """An operator whose task tells OpenLineage, if its provider is installed, what it read and wrote."""

    _lineage: Any = None

    def get_openlineage_facets_on_complete(self, _task_instance: Any) -> Any:
        """Return the lineage of the task that has ended well, for Airflow's OpenLineage provider."""
        return self._lineage

    def collect_lineage(self, pipeline: str, judged: str | None = None) -> None:
        """Read the lineage in the task's own process: the provider asks in a fork of it, where no Delta table can be opened any more.

        Args:
            judged: the reconcile that the task stored.
        """
        try:
            from airflow.providers.openlineage.conf import is_disabled
        except ImportError:
            return
        if is_disabled() or AgentClient.is_named():
            return
        from rivertwice.airflow.lineage import task_lineage

        try:
            self._lineage = task_lineage(use_connections(), pipeline, judged)
        except Exception:  # the task is done, whatever is wrong with its lineage
            log.exception("The lineage of this task could not be collected.")


class SuperviseEpoch(TellsLineage, BaseOperator):
    """One epoch of watching a stream, deferred to the triggerer: it holds no worker and owns no process.

    The last observation is cached in the asset store, where the UI and the REST API show it; the truth stays in the home.

    Args:
        stream: the asset whose store caches the observation.
        schedule: of the DAG; the epoch lasts until its next tick.
        grace: seconds a fault may last before it fails the epoch.
        poll: seconds between two looks.
    """

    operator_extra_links = (PipelineLink(),) if not AgentClient.is_named() else ()

    def __init__(
        self,
        *,
        pipeline: str,
        stream: Asset,
        schedule: str,
        grace: float = 60.0,
        poll: float = 2.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(inlets=[stream], **kwargs)
        self.pipeline = pipeline
        self.stream = stream
        self.schedule = schedule
        self.grace = grace
        self.poll = poll

    def execute(self, context: Any) -> None:
        """Hand the epoch to the triggerer.

        Raises:
            AirflowSkipException: a person asked for the run, which watches nothing.
        """
        run, now = run_of(context), utc_now()
        if not run.is_scheduled:
            message = "a run that is asked for watches nothing; the scheduled ones do"
            raise AirflowSkipException(message)
        ends_at = max(Watched.until(self.schedule, run.due_at), now)
        failures = int(context["asset_state_store"][self.stream].get("failures") or 0)
        trigger = EpochTrigger(
            pipeline=self.pipeline,
            ends_at=to_iso(ends_at),
            grace=choose_grace(failures, self.grace, max((ends_at - now).total_seconds(), self.grace)),
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
        self.collect_lineage(self.pipeline)
        return str(event["message"])


class AwaitRun(TellsLineage, BaseOperator):
    """Waits, deferred to the triggerer, until the run of a stream by schedule that a task has asked for has ended.

    Args:
        asked_at: the output of the task that asked.
        poll: seconds between two looks.
    """

    template_fields = ("asked_at",)
    operator_extra_links = (PipelineLink(),) if not AgentClient.is_named() else ()

    def __init__(self, *, pipeline: str, asked_at: Any, poll: float = 2.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.asked_at = asked_at
        self.poll = poll

    def execute(self, context: Any) -> None:
        """Hand the wait to the triggerer."""
        trigger = RunTrigger(pipeline=self.pipeline, asked_at=self.asked_at, poll=self.poll)
        self.defer(trigger=trigger, method_name="finish")

    def finish(self, context: Any, event: dict[str, Any]) -> str:
        """Return what was seen at the end.

        Raises:
            AirflowSkipException: somebody stopped the stream; the run is finished when it is started again.
            AirflowFailException: the agent has stopped retrying, or is dead.
        """
        if event["status"] == Condition.OK:
            raise AirflowSkipException(event["message"])
        if event["status"] != RAN:
            message = f"{self.pipeline}: {event['status']}: {event['message']}"
            raise AirflowFailException(message) from StreamFaultError(event["status"], event["message"])
        self.collect_lineage(self.pipeline)
        return str(event["message"])


class AgentJobOperator(BaseOperator):
    """Has a Spark job run by the agent that `RIVERTWICE_AGENT` names, and shows what it says: this worker needs no Spark and no Java.

    A task that is marked failed, or whose worker is stopped, ends its job; a worker that is killed leaves it, and the next attempt
    ends it first.

    Args:
        facts: of the pipeline; its pool bounds how many jobs run at once.
        job: name of the job.
        arguments: the job's arguments; a list, or the output of a task that returns one.
    """

    template_fields = ("application_args",)

    def __init__(self, *, facts: DagFacts, job: str, arguments: Any, **kwargs: Any) -> None:
        super().__init__(pool=facts.airflow.pool, **kwargs)
        self.pipeline = facts.name
        self.job = job
        self.application_args: Sequence[str] = arguments
        self._asked: tuple[Any, int] | None = None

    def execute(self, context: Any) -> None:
        """Ask, and wait until it has ended."""
        run, attempt = run_of(context), attempt_of(context)
        arguments = self.spark_job().named(run.run, attempt)
        self._asked = (run, attempt)
        with as_airflow_knows():
            self._agent().do(
                "job", self.job, run, attempt, self.pipeline, arguments, lambda line: self.log.info("%s", line)
            )

    def spark_job(self) -> SparkJob:
        """Return the job, once its arguments are known."""
        return SparkJob(self.pipeline, self.job, list(self.application_args or ()))

    def on_kill(self) -> None:
        """End the job."""
        if self._asked is not None:
            self._agent().end(*self._asked, self.job)

    @staticmethod
    def _agent() -> AgentClient:
        agent = AgentClient.from_env()
        if agent is None:
            message = "RIVERTWICE_AGENT is not set for this worker, although it was where its DAGs were made; set it there, too"
            raise AirflowFailException(message)
        return agent
