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

from rivertwice.airflow.dag_names import dag_id, dag_of_step
from rivertwice.airflow.operate_forms import ABANDON, AMEND, DISCARD, PIN, PROVE, UNPIN
from rivertwice.airflow.switch_steps import APPROVE
from rivertwice.airflow.web_access import PipelineDep, SettingsDep, answer
from rivertwice.airflow.web_registry import FLAG, NAME, PLACE, RECORD, RUN, Act, Answer, Field, Start, register
from rivertwice.core.errors import RivertwiceError
from rivertwice.core.instants import to_iso, utc_now
from rivertwice.read.side_rows import describe_late, describe_letters, describe_one
from rivertwice.read.timelines import describe_versions, view_timelines

# What a person may do to savepoints, timelines, versions and dead letters.

REJECT = "Reject"
_SAVEPOINT = Field("savepoint", "Savepoint", NAME, required=True)
_ANY_SAVEPOINT = Field("savepoint", "Savepoint; empty: the newest proved one", NAME)
_UNPROVED = Field("unproved", "Accept one that was never proved", FLAG)
_RUN = Field("run", "Run", RUN, required=True)


def _operate(act: str) -> Start:
    return Start({"act": act})


TIMELINE_ACTS = (
    Act(
        "rotate",
        "Take and prove",
        "A savepoint is taken while the stream runs; then it is restored aside, and recorded batches are replayed and compared.",
        "rotate",
        Start({"prove": True}),
        wants_reason=False,
    ),
    Act(
        "savepoint.take",
        "Take",
        "A savepoint is taken while the stream runs. It is not proved.",
        "rotate",
        Start({"prove": False}),
        wants_reason=False,
    ),
    Act(
        PROVE,
        "Prove",
        "The savepoint is restored aside, and recorded batches are replayed and compared. The stream runs on.",
        "operate",
        _operate(PROVE),
        (_SAVEPOINT,),
        wants_reason=False,
    ),
    Act(PIN, "Pin", "No prune deletes the savepoint.", "operate", _operate(PIN), (_SAVEPOINT,), wants_reason=False),
    Act(
        UNPIN,
        "Unpin",
        "A prune may delete the savepoint.",
        "operate",
        _operate(UNPIN),
        (_SAVEPOINT,),
        wants_reason=False,
    ),
    Act(
        "restore",
        "Restore",
        "The stream drains and continues from the savepoint on a new timeline. What is served stays as it is.",
        "restore",
        Start(takes_confirm=True),
        (_ANY_SAVEPOINT, Field("planned", "Take the savepoint now; nothing is replayed", FLAG), _UNPROVED),
        changes_served=True,
        preview="preview/restore",
    ),
    Act(
        "rewind",
        "Rewind",
        "The stream stops, a new timeline computes again what followed the savepoint, and then serves. Windows may change.",
        "rewind",
        Start(takes_confirm=True),
        (_ANY_SAVEPOINT, _UNPROVED),
        changes_served=True,
        preview="preview/rewind",
    ),
    Act(
        ABANDON,
        "Give up",
        "The operation that was cut off is given up: the old head serves on, and the stream runs again if it ran before.",
        "operate",
        _operate(ABANDON),
    ),
    Act(
        "switch",
        "Compare and ask",
        "The version is compared with the one that serves; if every difference has a cause, a person is asked whether it shall serve. "
        "Where windows or keys changed, no row is compared: the person accepts that, and the reason is kept.",
        "switch",
        fields=(Field("version", "Version", NAME, required=True),),
    ),
    Act(
        "switch.approve",
        "Approve",
        "The version serves from one commit on. The one that serves now goes on beside it, and can serve again.",
        "switch",
        Answer("approve", APPROVE),
        (_RUN,),
        changes_served=True,
    ),
    Act(
        "switch.reject",
        "Reject",
        "Nothing is switched; the run ends.",
        "switch",
        Answer("approve", REJECT),
        (_RUN,),
    ),
    Act(
        AMEND,
        "Amend",
        "The record gets the value that it should have had, if the definition accepts it. A backfill of its window brings it into what is served.",
        "operate",
        _operate(AMEND),
        (Field("place", "Place", PLACE, required=True), Field("value", "Value", RECORD, required=True)),
        preview="letter",
    ),
    Act(
        DISCARD,
        "Discard",
        "It is right to leave these records out. They stay in the log.",
        "operate",
        _operate(DISCARD),
        (Field("place", "Place", PLACE), Field("kind", "All open ones of this kind")),
        preview="preview/discard",
    ),
    Act(
        "late.correct",
        "Correct what is due",
        "The windows of the late queue that are due are computed again and published.",
        "correct",
        Start(takes_reason=False),
        changes_served=True,
    ),
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


@router.get("/preview/restore")
def preview_restore(
    one: PipelineDep,
    settings: SettingsDep,
    user: GetUserDep,
    savepoint: str = "",
    planned: bool = False,
    unproved: bool = False,
) -> dict[str, Any]:
    """Return what a restore would do; nothing is done.

    Raises:
        HTTPException: 403, the person may not restore; 409, it cannot be done, with the reason.
    """
    from rivertwice.read.previews import damage_of, restore_rows, step_rows
    from rivertwice.savepoint.manifest import RESTING
    from rivertwice.savepoint.operations.restore import show_restore

    _require_start(user, "restore", one.name)
    try:
        plan = show_restore(settings, one.name, RESTING if planned else savepoint or None, unproved=unproved)
    except (RivertwiceError, OSError) as error:
        raise HTTPException(409, str(error)) from None
    return {
        "rows": restore_rows(plan),
        "steps": step_rows(plan),
        "resumes": plan.resumes,
        "warning": damage_of(plan),
        "refusals": [] if plan.refusal is None else [plan.refusal],
    }


@router.get("/preview/rewind")
def preview_rewind(
    one: PipelineDep, settings: SettingsDep, user: GetUserDep, savepoint: str = "", unproved: bool = False
) -> dict[str, Any]:
    """Return what a rewind would change; nothing is done.

    Raises:
        HTTPException: 403, the person may not rewind; 409, it cannot be done, with the reason.
    """
    from rivertwice.read.previews import reread_rows, rewind_rows, step_rows
    from rivertwice.savepoint.operations.rewind import show_rewind

    _require_start(user, "rewind", one.name)
    try:
        plan = show_rewind(settings, one.name, savepoint or None, unproved=unproved)
    except (RivertwiceError, OSError) as error:
        raise HTTPException(409, str(error)) from None
    return {
        "rows": rewind_rows(plan),
        "reread": reread_rows(plan),
        "steps": step_rows(plan),
        "resumes": plan.resumes,
        "warning": None,
        "refusals": list(plan.refusals) if plan.resumes is None else [],
    }


@router.get("/dead-letters")
def dead_letters(
    request: Request, one: PipelineDep, settings: SettingsDep, user: GetUserDep, state: str = "", kind: str = ""
) -> Response:
    """Return counts of all dead letters, and a sample of those in a state, of a kind; values only for who may decide about them."""
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
