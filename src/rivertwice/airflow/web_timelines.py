"""Routes of timelines, savepoints, versions, dead letters and the late queue; and what a restore or a rewind would do."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dag import DagModel
from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from airflow.utils.state import TaskInstanceState
from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from rivertwice import acts
from rivertwice.airflow.dag_names import dag_id, dag_of_step
from rivertwice.airflow.switch_steps import APPROVE
from rivertwice.airflow.web_access import PipelineDep, SettingsDep, answer
from rivertwice.airflow.web_registry import RUN, Act, Answer, Field, page_act, register
from rivertwice.core.errors import RivertwiceError
from rivertwice.core.instants import to_iso, utc_now
from rivertwice.read.side_rows import describe_late, describe_letters, describe_one
from rivertwice.read.timelines import describe_versions, view_timelines

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
        "switch",
        Answer("approve", APPROVE),
        (_RUN,),
        changes_served=True,
    ),
    Act(
        "switch.reject",
        "Reject",
        "The version does not serve; the run ends.",
        "switch",
        Answer("approve", REJECT),
        (_RUN,),
    ),
    page_act(
        acts.find_act("backfill"),
        {"scope": "late"},
        name="late.correct",
        title="Correct what is due",
        says="The windows of the late queue that are due are computed again and published.",
    ),
    *(page_act(act, preview=_PREVIEWS.get(name)) for name, act in acts.OPERATED.items()),
)

register(*TIMELINE_ACTS)

router = APIRouter(prefix="/api/p/{name}")
_STATES = ("open", "amended", "discarded")


@router.get("/timelines")
def timelines(request: Request, one: PipelineDep, settings: SettingsDep) -> Response:
    """Return the drawing of the timelines."""
    return answer(request, view_timelines(settings.pipeline(one.name)).plain())


@router.get("/savepoints")
def savepoints(request: Request, one: PipelineDep, settings: SettingsDep) -> Response:
    """Return the savepoints, newest first, each with its proof and its race clock."""
    from rivertwice.read.savepoints import describe_savepoints

    return answer(request, describe_savepoints(settings, one.name, utc_now()))


@router.get("/versions")
def versions(
    request: Request, one: PipelineDep, settings: SettingsDep, user: GetUserDep, session: SessionDep
) -> Response:
    """Return the open versions side by side, and what a run of `switch__P` asks a person, if one waits."""
    rows = describe_versions(settings, one.name, utc_now())
    for row in rows:
        step = row["next"]
        step["dag"] = dag_of_step(one.name, step["act"], step["version"])
    dag = dag_id("switch", one.name)
    asks = _question(session, dag) if _may(user, dag, "GET", DagAccessEntity.HITL_DETAIL) else None
    return answer(request, {"versions": rows, "question": asks})


@router.get("/dead-letters")
def dead_letters(
    request: Request, one: PipelineDep, settings: SettingsDep, user: GetUserDep, state: str = "", kind: str = ""
) -> Response:
    """Return counts of all dead letters, and a sample of those in a state, of a kind; values only for users who may decide about them."""
    if state not in ("", *_STATES):
        raise HTTPException(400, f"state {state[:40]!r} is not one of {', '.join(_STATES)}")
    values = _may_start(user, "operate", one.name)
    home = settings.pipeline(one.name)
    return answer(request, describe_letters(home, state=state or None, reason=kind or None, values=values))


@router.get("/letter")
def letter(request: Request, one: PipelineDep, settings: SettingsDep, user: GetUserDep, place: str) -> Response:
    """Return one dead letter whole, and what an amendment of it would do.

    Raises:
        HTTPException: 404, no dead letter is at the place.
    """
    values = _may_start(user, "operate", one.name)
    try:
        return answer(request, describe_one(settings.pipeline(one.name), place, one, values=values))
    except RivertwiceError as error:
        raise HTTPException(404, str(error)) from None


@router.get("/preview/discard")
def preview_discard(
    request: Request, one: PipelineDep, settings: SettingsDep, user: GetUserDep, place: str = "", kind: str = ""
) -> Response:
    """Return which dead letters a discard would be about: all open ones of a kind, or the one at a place.

    Raises:
        HTTPException: 403, the person may not decide about them; 404, no dead letter is at the place.
    """
    _require_start(user, "operate", one.name)
    home = settings.pipeline(one.name)
    try:
        if place:
            return answer(request, {"chosen": 1, "sample": [describe_one(home, place, one, values=True)]})
        found = describe_letters(home, state="open", reason=kind, values=True)
    except RivertwiceError as error:
        raise HTTPException(404, str(error)) from None
    return answer(request, {"chosen": found["chosen"], "sample": found["sample"]})


@router.get("/preview/{act}")
def preview(request: Request, act: str, one: PipelineDep, settings: SettingsDep, user: GetUserDep) -> dict[str, Any]:
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
    return {
        "rows": plan.rows,
        "steps": [{"number": step.number, "does": step.does, "state": step.state} for step in plan.steps],
        "resumes": plan.resumes,
        "warning": plan.warning,
        "refusals": list(plan.refusals),
        "reread": plan.reread,
    }


@router.get("/late")
def late(request: Request, one: PipelineDep, settings: SettingsDep) -> Response:
    """Return the late policy, and the windows that wait for their correction."""
    return answer(request, describe_late(settings.pipeline(one.name), utc_now()))


def _question(session: Session, dag: str) -> dict[str, Any] | None:
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
    return {
        "dag": dag,
        "run": run,
        "subject": question.subject,
        "body": question.body or "",
        "at": to_iso(question.created_at),
    }


def _require_start(user: Any, verb: str, name: str) -> None:
    """Check that a person may start the DAG of a verb.

    Raises:
        HTTPException: 403, they may not.
    """
    if not _may_start(user, verb, name):
        raise HTTPException(403, f"{user.get_name()} may not start {dag_id(verb, name)}; ask for that right in Airflow")


def _may_start(user: Any, verb: str, name: str) -> bool:
    return _may(user, dag_id(verb, name), "POST", DagAccessEntity.RUN)


def _may(user: Any, dag: str, method: Any, entity: DagAccessEntity) -> bool:
    details = DagDetails(id=dag, team_name=DagModel.get_team_name(dag))
    return bool(get_auth_manager().is_authorized_dag(method=method, access_entity=entity, details=details, user=user))
