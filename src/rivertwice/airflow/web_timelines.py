"""Routes of timelines, savepoints, versions, dead letters and the late queue; and what a restore or a rewind would do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from airflow.utils.state import TaskInstanceState
from fastapi import APIRouter, HTTPException, Request
from sqlalchemy import select
from sqlalchemy.orm import Session

from rivertwice import acts
from rivertwice.airflow.web_access import PipelineDep, SettingsDep, ViewRoute, is_authorized, may_start
from rivertwice.airflow.web_registry import RUN, Act, Answer, Field, page_act, register
from rivertwice.core import RivertwiceError, utc_now
from rivertwice.read import (
    describe_late,
    describe_letters,
    describe_one,
    describe_savepoints,
    describe_versions,
    sample_to_discard,
    view_timelines,
)
from rivertwice.tasks import APPROVE, dag_id

# What a person may do to savepoints, timelines, versions and dead letters.

REJECT = "Reject"
_RUN = Field("run", "Run", RUN, required=True)
_PREVIEWS = {
    "savepoint.restore": "preview/savepoint.restore",
    "savepoint.rewind": "preview/savepoint.rewind",
    "dead.amend": "letter",
    "dead.discard": "preview/discard",
}


_ROTATE = acts.find_act("savepoint.take")
TIMELINE_ACTS = (
    page_act(
        _ROTATE,
        {"prove": True},
        name="rotate",
        title="Take and prove",
        says="A savepoint is taken while the stream runs; then it is restored aside, and recorded batches are replayed and compared.",
    ),
    page_act(_ROTATE, {"prove": False}, says="A savepoint is taken while the stream runs. It is not proved."),
    page_act(acts.find_act("version.serve"), name="switch", wants_reason=True),
    Act(
        "switch.approve",
        "Approve",
        "The version serves from one commit on. The one that serves now keeps running beside it, and can serve again.",
        acts.OPERATE,
        Answer("approve", APPROVE),
        (_RUN,),
        changes_served=True,
        of=acts.ActName.SERVE,
    ),
    Act(
        "switch.reject",
        "Reject",
        "The version does not serve; the run ends.",
        acts.OPERATE,
        Answer("approve", REJECT),
        (_RUN,),
        of=acts.ActName.SERVE,
    ),
    page_act(
        acts.find_act("backfill"),
        {"scope": "late"},
        name="late.correct",
        title="Correct what is due",
        says="The windows of the late queue that are due are computed again and published.",
    ),
    *(page_act(act, preview=_PREVIEWS.get(name)) for name, act in acts.acts_of(acts.OPERATE, is_version=True).items()),
)

register(*TIMELINE_ACTS)

router = APIRouter(prefix="/api/p/{name}", route_class=ViewRoute)
_STATES = ("open", "amended", "discarded")


@dataclass(frozen=True)
class AskedQuestion:
    """What a run of a DAG asks a person."""

    dag: str
    run: str
    subject: str
    body: str
    at: datetime


@dataclass(frozen=True)
class VersionsPage:
    """The open versions side by side, and what a run of `operate__P` asks a person, if one waits."""

    versions: Sequence[object]
    question: AskedQuestion | None


@router.get("/timelines")
def timelines(one: PipelineDep, settings: SettingsDep) -> object:
    """Return the drawing of the timelines."""
    return view_timelines(settings.pipeline(one.name))


@router.get("/savepoints")
def savepoints(one: PipelineDep, settings: SettingsDep) -> object:
    """Return the savepoints, newest first, each with its proof and its race clock."""
    return describe_savepoints(settings, one.name, utc_now())


@router.get("/versions")
def versions(one: PipelineDep, settings: SettingsDep, user: GetUserDep, session: SessionDep) -> object:
    """Return the open versions side by side, and what a run of `operate__P` asks a person, if one waits."""
    dag = dag_id(acts.OPERATE, one.name)
    asks = _question(session, dag) if is_authorized(user, dag, "GET", DagAccessEntity.HITL_DETAIL) else None
    return VersionsPage(describe_versions(settings, one.name, utc_now()), asks)


@router.get("/dead-letters")
def dead_letters(one: PipelineDep, settings: SettingsDep, user: GetUserDep, state: str = "", kind: str = "") -> object:
    """Return counts of all dead letters, and a sample of those in a state, of a kind; values only for users who may decide about them."""
    if state not in ("", *_STATES):
        raise HTTPException(400, f"state {state[:40]!r} is not one of {', '.join(_STATES)}")
    values = may_start(user, "operate", one.name)
    return describe_letters(settings.pipeline(one.name), state=state or None, reason=kind or None, values=values)


@router.get("/letter")
def letter(one: PipelineDep, settings: SettingsDep, user: GetUserDep, place: str) -> object:
    """Return one dead letter whole, and what an amendment of it would do.

    Raises:
        HTTPException: 404, no dead letter is at the place.
    """
    values = may_start(user, "operate", one.name)
    try:
        return describe_one(settings.pipeline(one.name), place, one, values=values)
    except RivertwiceError as error:
        raise HTTPException(404, str(error)) from None


@router.get("/preview/discard")
def preview_discard(
    one: PipelineDep, settings: SettingsDep, user: GetUserDep, place: str = "", kind: str = ""
) -> object:
    """Return which dead letters a discard would be about: all open ones of a kind, or the one at a place.

    Raises:
        HTTPException: 403, the person may not decide about them; 404, no dead letter is at the place.
    """
    _require_start(user, "operate", one.name)
    try:
        return sample_to_discard(settings.pipeline(one.name), one, place, kind)
    except RivertwiceError as error:
        raise HTTPException(404, str(error)) from None


@router.get("/preview/{act}")
def preview(request: Request, act: str, one: PipelineDep, settings: SettingsDep, user: GetUserDep) -> object:
    """Return what an act would do, asked for by its fields in the query; nothing is done.

    Raises:
        HTTPException: 403, the person may not do it; 409, it cannot be done, with the reason.
    """
    _require_start(user, "operate", one.name)
    try:
        chosen = acts.find_act(act)
        known = acts.fields_of(chosen.request)
        given = {each.name: request.query_params[each.name] for each in known if each.name in request.query_params}
        values = {
            each.name: given[each.name] == "true" if each.is_flag else given[each.name]
            for each in known
            if each.name in given
        }
        world = acts.World(settings, str(user.get_name()), utc_now())
        plan = chosen.plan(world, acts.parse_request(chosen, values, one.name))
    except (RivertwiceError, OSError) as error:
        raise HTTPException(409, str(error)) from None
    return replace(plan, value=None)


@router.get("/late")
def late(one: PipelineDep, settings: SettingsDep) -> object:
    """Return the late policy, and the windows that wait for their correction."""
    return describe_late(settings.pipeline(one.name), utc_now())


def _question(session: Session, dag: str) -> AskedQuestion | None:
    """Return what the newest run of a DAG that waits for a person asks; None if none waits."""
    asked = (
        select(HITLDetail, TaskInstance.run_id)
        .join(TaskInstance, HITLDetail.ti_id == TaskInstance.id)
        .where(
            TaskInstance.dag_id == dag,
            TaskInstance.state == TaskInstanceState.AWAITING_INPUT,
            HITLDetail.responded_at.is_(None),
        )
        .order_by(HITLDetail.created_at.desc())
        .limit(1)
    )
    found = session.execute(asked).first()
    if found is None:
        return None
    question, run = found
    return AskedQuestion(dag, run, question.subject, question.body or "", question.created_at)


def _require_start(user: Any, verb: str, name: str) -> None:
    """Check that a person may start the DAG of a verb.

    Raises:
        HTTPException: 403, they may not.
    """
    if not may_start(user, verb, name):
        raise HTTPException(403, f"{user.get_name()} may not start {dag_id(verb, name)}; ask for that right in Airflow")
