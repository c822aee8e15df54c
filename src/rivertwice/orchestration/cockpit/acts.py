"""Routes of what a person may do: who they are and may do, and the acts themselves."""

from __future__ import annotations

import logging
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.configuration import conf
from airflow.models.dag import DagModel
from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from rivertwice.errors import RequestError
from rivertwice.instants import utc_now
from rivertwice.orchestration.cockpit.access import PipelineDep, SettingsDep, readable_pipelines
from rivertwice.orchestration.cockpit.as_user import AirflowAsUser
from rivertwice.orchestration.cockpit.csrf import HEADER, LIFE_S, check_origin, check_token, make_token
from rivertwice.orchestration.cockpit.known import known_pipelines
from rivertwice.orchestration.cockpit.perform import answer_run, start_run
from rivertwice.orchestration.cockpit.registry import Act, Answer, Record, check_act, registered
from rivertwice.orchestration.dag_names import dag_id

log = logging.getLogger(__name__)
router = APIRouter(prefix="/api")


class ActBody(BaseModel):
    """What the browser sends. `id` is chosen there, and is the same when it sends the request again."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(max_length=64)
    reason: str = Field("", max_length=2_000)
    confirm: str = Field("", max_length=200)
    fields: dict[str, Any] = Field(default_factory=dict)


@router.get("/me")
def me(user: GetUserDep, session: SessionDep, settings: SettingsDep) -> dict[str, Any]:
    """Return who asks, the token for acts, and what they may do to each pipeline that they may read."""
    names = sorted(readable_pipelines(known_pipelines(settings), user, session))
    return {
        "name": user.get_name(),
        "csrf": make_token(_secret(), str(user.get_id())),
        "csrf_header": HEADER,
        "csrf_life_s": LIFE_S,
        "may": {name: [act.name for act in _allowed(name, user, session)] for name in names},
    }


@router.get("/p/{name}/acts")
def acts(one: PipelineDep, user: GetUserDep, session: SessionDep) -> dict[str, Any]:
    """Return the acts that the person may do to a pipeline, with their forms."""
    return {"acts": [act.to_json() for act in _allowed(one.name, user, session)]}


@router.post("/p/{name}/acts/{act}")
async def perform(
    one: PipelineDep, act: str, body: ActBody, request: Request, user: GetUserDep, settings: SettingsDep
) -> dict[str, Any]:
    """Do an act as the person who asks.

    Raises:
        HTTPException: 403, it does not come from the page or the person may not; 404, there is no such act; 400, the form is
            refused; 409, it cannot be done now.
    """
    by = str(user.get_name())
    try:
        check_origin(request.headers)
        check_token(_secret(), str(user.get_id()), request.headers.get(HEADER))
    except RequestError as error:
        log.warning("refused the act %s of %s for %s: %s", act[:60], one.name, by, error)
        raise HTTPException(403, str(error)) from None
    known = registered().get(act)
    if known is None:
        raise HTTPException(404, f"there is no act {act[:60]!r}; it has: {', '.join(sorted(registered()))}")
    if not await run_in_threadpool(_may, known, one.name, user):
        log.warning("refused the act %s of %s for %s: no permission", act, one.name, by)
        raise HTTPException(
            403,
            f"{by} may not start {dag_id(known.verb, one.name)}, so nothing was started; ask for that right in Airflow",
        )
    try:
        asked = check_act(known, one.name, body.model_dump(), by)
        done = await _do(known, asked, request, settings)
    except RequestError as error:
        log.info("refused the act %s of %s for %s: %s", act, one.name, by, error)
        raise HTTPException(400, str(error)) from None
    log.info("act %s of %s by %s: %s", act, one.name, by, done)
    return {"act": act, "pipeline": one.name, "by": by, **done}


async def _do(act: Act, asked: Any, request: Request, settings: Any) -> dict[str, Any]:
    dag = dag_id(act.verb, asked.pipeline)
    if isinstance(act.effect, Record):
        return await run_in_threadpool(act.effect.do, settings, asked, utc_now())
    airflow = AirflowAsUser(request)
    if isinstance(act.effect, Answer):
        done = await answer_run(airflow, dag, act.effect, asked)
        if act.effect.keep is not None:
            await run_in_threadpool(act.effect.keep, settings, asked)
    else:
        done = await start_run(airflow, dag, act.effect, asked)
    return {**done, "link": f"/dags/{dag}/runs/{done['run']}"}


def _allowed(name: str, user: Any, session: Session) -> list[Act]:
    """Return the acts whose DAG exists and may be started, in the order in which they were registered."""
    dags = {dag_id(act.verb, name) for act in registered().values()}
    existing = set(session.scalars(select(DagModel.dag_id).where(DagModel.dag_id.in_(dags), ~DagModel.is_stale)))
    teams = DagModel.get_dag_id_to_team_name_mapping(sorted(existing), session=session)
    return [
        act
        for act in registered().values()
        if (dag := dag_id(act.verb, name)) in existing and _authorized(act, dag, teams.get(dag), user)
    ]


def _may(act: Act, name: str, user: Any) -> bool:
    dag = dag_id(act.verb, name)
    return _authorized(act, dag, DagModel.get_team_name(dag), user)


def _authorized(act: Act, dag: str, team: str | None, user: Any) -> bool:
    details, manager = DagDetails(id=dag, team_name=team), get_auth_manager()
    if isinstance(act.effect, Answer):
        return manager.is_authorized_dag(
            method="PUT", access_entity=DagAccessEntity.HITL_DETAIL, details=details, user=user
        )
    return manager.is_authorized_dag(method="POST", access_entity=DagAccessEntity.RUN, details=details, user=user)


def _secret() -> str:
    """Return the secret that all API servers of one Airflow share."""
    return str(conf.get("api", "secret_key"))
