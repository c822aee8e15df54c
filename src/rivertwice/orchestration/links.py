"""Links from a task in Airflow to our page: to its pipeline, and to the report of what the task stored.

Airflow asks for them in the task's process once the task has ended, and stores the addresses.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf

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
            ti_key: the task instance.
        """
        return page_address(_base(), operator.pipeline)


class ReportLink(BaseOperatorLink):
    """To the report of what this task instance stored: a reconcile, a comparison of versions, a backfill."""

    name = "rivertwice: report"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address; that of the pipeline if the task stored nothing that has a report.

        Args:
            operator: has the name of its pipeline, and says what it stored.
            ti_key: the task instance.
        """
        return page_address(_base(), operator.pipeline, operator.report_of(ti_key.run_id, ti_key.try_number))


def _base() -> str:
    return str(conf.get("api", "base_url", fallback="") or "")
