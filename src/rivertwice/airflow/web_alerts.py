"""Routes of a pipeline's alerts and of what people did, and the acts that belong to alerts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dag import DagModel
from fastapi import APIRouter
from sqlalchemy import select

from rivertwice import acts
from rivertwice.agent import Routes, alerts_of, load_routes
from rivertwice.airflow.web_access import VERBS, PipelineDep, SettingsDep, ViewRoute, readable_dags
from rivertwice.airflow.web_acts import Audited, read_audit
from rivertwice.airflow.web_registry import (
    RUN,
    Act,
    ActRequest,
    Answer,
    Field,
    Record,
    page_act,
    register,
    registered,
)
from rivertwice.core import ConfigError, RequestError, Settings
from rivertwice.read import describe_alerts, read_past
from rivertwice.tasks import dag_id
from rivertwice.upkeep import Repairs

router = APIRouter(prefix="/api/p/{name}", route_class=ViewRoute)


@dataclass(frozen=True)
class Acknowledged:
    """That a person knows of an alert; `repeated`: this was noted before."""

    alert: str
    acknowledged_by: str
    repeated: bool


@router.get("/alerts")
def alerts(one: PipelineDep, settings: SettingsDep) -> object:
    """Return the alerts of a pipeline by cause, the routes, and the repairs."""
    routes, problem = _routes(settings)
    shown = describe_alerts(
        settings,
        one.name,
        alerts_of(settings).state(),
        routes,
        read_past(settings.home / "alerts.jsonl"),
        Repairs(settings.pipeline(one.name)).read(),
    )
    return replace(shown, routes_problem=problem)


@router.get("/audit")
def audit(one: PipelineDep, user: GetUserDep, session: SessionDep, settings: SettingsDep) -> dict[str, list[Audited]]:
    """Return who did what to a pipeline, newest first; of DAGs that the one who asks may read."""
    named = {dag_id(verb, one.name) for verb in VERBS}
    stored = set(session.scalars(select(DagModel.dag_id).where(DagModel.dag_id.in_(named))))
    readable = readable_dags(stored, user, session)
    return {"acts": read_audit(session, readable, registered(), alerts_of(settings).state(), one.name)}


def _routes(settings: Settings) -> tuple[Routes, str | None]:
    """Return the routes as the API server knows them, and why they cannot be read; it sends nothing itself."""
    try:
        return load_routes(settings), None
    except ConfigError as error:
        return Routes(), str(error)


def acknowledge(settings: Settings, asked: ActRequest, now: datetime) -> Acknowledged:
    """Note that a person knows of an alert, at once: a small record of the home that changes nothing served.

    Raises:
        RequestError: no such alert of the pipeline lasts.
    """
    store, wanted = alerts_of(settings), str(asked.fields["alert"])
    known = next((alert for alert in store.state().alerts if alert.id == wanted and not alert.closed), None)
    if known is None or known.cause.pipeline not in ("", asked.pipeline):
        message = f"no alert {wanted[:40]!r} of {asked.pipeline} lasts; reload the page"
        raise RequestError(message)
    noted = store.acknowledge(wanted, f"{asked.by} in Airflow", asked.reason, now)
    return Acknowledged(noted.id, noted.acknowledged_by, noted.acknowledged_at != now)


def keep_why(settings: Settings, asked: ActRequest) -> None:
    """Keep why a repair was approved or declined, for the task that closes it."""
    Repairs(settings.pipeline(asked.pipeline)).keep_answer(str(asked.fields["run"]), asked.reason)


_RUN = Field("run", "Run of the repair", RUN, required=True)
register(
    Act(
        "alert.acknowledge",
        "Acknowledge",
        "The alert still fires, and says that you know of it, and why. The rest of the team sees your name.",
        "reconcile",
        Record(acknowledge),
        (Field("alert", "Alert", RUN, required=True),),
    ),
    page_act(acts.find_act("repair")),
    Act(
        "repair.approve",
        "Approve the repair",
        "The windows are computed again, audited and published; then a reconcile looks at them again, and the alert ends with the "
        "numbers of before and after.",
        "backfill",
        Answer("approve", "Approve", keep_why),
        (_RUN,),
        changes_served=True,
        of="repair",
    ),
    Act(
        "repair.decline",
        "Decline",
        "No window is computed. The alert stays, acknowledged by you, and this repair is not proposed again for a week.",
        "backfill",
        Answer("approve", "Reject", keep_why),
        (_RUN,),
        of="repair",
    ),
    page_act(acts.find_act("reconcile")),
    page_act(acts.find_act("archive")),
)
