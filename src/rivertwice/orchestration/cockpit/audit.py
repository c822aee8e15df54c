"""Who did what: the runs of a pipeline's DAGs that a person started, and the answers that a person gave, newest first.

Airflow has written both down with the person's name, whether they came from the page, from Airflow's own forms or over its REST
API. Of what a run was given, only values of known kinds are shown: no record and no free text but the reason.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from airflow.models.dagrun import DagRun
from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from sqlalchemy import select
from sqlalchemy.orm import Session

from rivertwice.alerts.model import State
from rivertwice.instants import to_iso
from rivertwice.orchestration.cockpit.registry import CHOICE, FLAG, INSTANT, NAME, RUN, RUN_PREFIX, Act

MOST = 100
_SHOWN_KINDS = (CHOICE, FLAG, INSTANT, NAME, RUN)
_ALWAYS_SHOWN = ("scope", "start", "end", "dry_run", "prove", "version", "act")
"""Fields of Airflow's own forms, whose values are checked."""


def read_audit(
    session: Session, dags: Collection[str], acts: Mapping[str, Act], state: State, pipeline: str
) -> list[dict[str, Any]]:
    """Return the newest acts of people.

    Args:
        session: of Airflow's database.
        dags: those of the pipeline that the one who asks may read.
        acts: that are registered.
        state: of the alerts; who acknowledged one acted, too.
        pipeline: its name.
    """
    entries = [*_started(session, dags, acts), *_answered(session, dags), *_acknowledged(state, pipeline)]
    return sorted(entries, key=lambda entry: str(entry["at"]), reverse=True)[:MOST]


def shown_fields(conf: Mapping[str, Any] | None, acts: Mapping[str, Act]) -> dict[str, Any]:
    """Return what may be shown of a run's conf. Pure."""
    kinds = {each.name: each.kind for act in acts.values() for each in act.fields}
    return {
        name: value
        for name, value in (conf or {}).items()
        if (name in _ALWAYS_SHOWN or kinds.get(name) in _SHOWN_KINDS)
        and isinstance(value, (str, bool))
        and len(str(value)) <= 100
    }


def _started(session: Session, dags: Collection[str], acts: Mapping[str, Act]) -> list[dict[str, Any]]:
    runs = session.scalars(
        select(DagRun)
        .where(DagRun.dag_id.in_(dags), DagRun.triggering_user_name.is_not(None), DagRun.run_type == "manual")
        .order_by(DagRun.run_after.desc())
        .limit(MOST)
    )
    return [
        {
            "at": _iso(run.queued_at or run.run_after),
            "by": run.triggering_user_name,
            "act": run.dag_id.partition("__")[0],
            "how": "page" if run.run_id.startswith(RUN_PREFIX) else "Airflow",
            "fields": shown_fields(run.conf, acts),
            "reason": _line(run.note or (run.conf or {}).get("reason")),
            "dag": run.dag_id,
            "run": run.run_id,
            "outcome": str(run.state),
            "ended_at": _iso(run.end_date),
        }
        for run in runs
    ]


def _answered(session: Session, dags: Collection[str]) -> list[dict[str, Any]]:
    rows = session.execute(
        select(HITLDetail, DagRun, TaskInstance.task_id)
        .join(TaskInstance, TaskInstance.id == HITLDetail.ti_id)
        .join(DagRun, (DagRun.dag_id == TaskInstance.dag_id) & (DagRun.run_id == TaskInstance.run_id))
        .where(TaskInstance.dag_id.in_(dags), HITLDetail.responded_at.is_not(None))
        .order_by(HITLDetail.responded_at.desc())
        .limit(MOST)
    )
    found = []
    for detail, run, task in rows:
        user = detail.responded_by or {}
        if not user:
            continue  # nobody answered in time
        found.append(
            {
                "at": _iso(detail.responded_at),
                "by": user.get("name") or user.get("id"),
                "act": f"{run.dag_id.partition('__')[0]}: {' '.join(detail.chosen_options or [])}",
                "how": "answer",
                "fields": {"task": task},
                "reason": _line(run.note),
                "dag": run.dag_id,
                "run": run.run_id,
                "outcome": "answered",
                "ended_at": _iso(detail.responded_at),
            }
        )
    return found


def _acknowledged(state: State, pipeline: str) -> list[dict[str, Any]]:
    return [
        {
            "at": _iso(alert.acknowledged_at),
            "by": alert.acknowledged_by,
            "act": "acknowledge",
            "how": "page",
            "fields": {"alert": alert.cause.kind},
            "reason": alert.acknowledgement,
            "dag": None,
            "run": None,
            "outcome": "done",
            "ended_at": _iso(alert.acknowledged_at),
        }
        for alert in state.alerts
        if alert.acknowledged_by and alert.cause.pipeline in ("", pipeline)
    ]


def _line(text: Any) -> str:
    return " ".join(str(text or "").split())[:200]


def _iso(instant: datetime | None) -> str | None:
    return None if instant is None else to_iso(instant)
