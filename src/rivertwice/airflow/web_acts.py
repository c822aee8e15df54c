"""Routes of what a person may do: who they are and may do, the acts themselves, and their record."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from rivertwice.agent import State
from rivertwice.airflow.airflow_api import SETTLED
from rivertwice.airflow.web_access import (
    HEADER,
    LIFE_S,
    AirflowAsUser,
    FromPage,
    PipelineDep,
    SettingsDep,
    checked,
    detail_of,
    known_pipelines,
    make_token,
    page_secret,
    readable_pipelines,
)
from rivertwice.airflow.web_registry import (
    CHOICE,
    FLAG,
    INSTANT,
    NAME,
    RUN,
    RUN_PREFIX,
    Act,
    ActForm,
    ActRequest,
    Answer,
    Record,
    Start,
    check_act,
    conf_of,
    registered,
    run_of,
)
from rivertwice.core import Deadline, RequestError, Settings, parse_iso, to_iso, to_plain, utc_now
from rivertwice.definition import Definition
from rivertwice.tasks import DagFacts, dag_id

# Do what was asked for: start a DAG run, or answer one that waits, as the person. A request that is repeated does it once.

WAITS = "awaiting_input"
BEGINS = frozenset({None, "scheduled", "queued", "running"})
"""States of a task that asks a person, before it has asked: the page shows a repair as soon as it is found, some seconds earlier."""
_CONFLICT = 409


@dataclass(frozen=True)
class StartedRun:
    """A DAG run that was asked for; `repeated`: the same request started it before."""

    dag: str
    run: str
    state: str
    repeated: bool
    paused: bool
    link: str


@dataclass(frozen=True)
class AnsweredRun:
    """A DAG run whose question was answered; `repeated`: the same person gave the same answer before."""

    dag: str
    run: str
    state: str
    paused: bool
    repeated: bool
    link: str


async def start_run(airflow: AirflowAsUser, dag: str, start: Start, asked: ActRequest) -> StartedRun:
    """Start a run of a DAG; one that the same request started before is returned again.

    Raises:
        HTTPException: Airflow refused, or another request used the id.
    """
    run, conf, note = run_of(asked), conf_of(start, asked), asked.reason or None
    body = {"dag_run_id": run, "logical_date": None, "conf": conf, "note": note}
    answer = await airflow.send("POST", f"/dags/{quote(dag)}/dagRuns", body)
    if answer.is_server_error:  # its database was busy; the id is ours, so asking again starts no second run
        answer = await airflow.send("POST", f"/dags/{quote(dag)}/dagRuns", body)
    repeated = answer.status_code == _CONFLICT
    if repeated:
        known = await airflow.get(f"/dags/{quote(dag)}/dagRuns/{quote(run)}")
        same = known.is_success and _is_same(known.json(), conf, note, asked.by)
        if not same:
            raise HTTPException(_CONFLICT, detail_of(answer))
        answer = known
    made = checked(answer)
    state = await airflow.get(f"/dags/{quote(dag)}")
    paused = bool(state.is_success and state.json().get("is_paused"))
    run = made["dag_run_id"]
    return StartedRun(dag, run, made["state"], repeated, paused, f"/dags/{dag}/runs/{run}")


async def answer_run(
    airflow: AirflowAsUser, dag: str, wanted: Answer, asked: ActRequest, *, patience: Deadline | None = None
) -> bool:
    """Answer a run that waits for a person; say whether the same person gave the same answer before, which is taken once.

    Args:
        patience: for how long a task that has not asked yet is waited for; the default is 45 s.

    Raises:
        HTTPException: it does not wait (409), was answered otherwise, or Airflow refused.
    """
    patience = patience or Deadline.after(45)
    run = str(asked.fields["run"])
    task = f"/dags/{quote(dag)}/dagRuns/{quote(run)}/taskInstances/{quote(wanted.task)}"
    question = f"{task}/-1/hitlDetails"
    while (state := checked(await airflow.get(task))["state"]) in BEGINS and not patience.is_over():
        await asyncio.sleep(min(1.0, patience.left()))
    if state != WAITS:
        known = await airflow.get(question)
        if known.is_success and _is_answered(known.json(), wanted.option, asked.by):
            return True
        message = (
            f"the task {wanted.task} of {run} does not wait for an answer (it is {state or 'not begun'}); "
            "if it begins only now, try again in some seconds"
        )
        raise HTTPException(_CONFLICT, message)
    await _settle(checked(await airflow.get(question)))
    checked(await airflow.send("PATCH", question, {"chosen_options": [wanted.option], "params_input": {}}))
    if asked.reason:
        checked(
            await airflow.send(
                "PATCH", f"/dags/{quote(dag)}/dagRuns/{quote(run)}?update_mask=note", {"note": asked.reason}
            )
        )
    return False


async def _settle(question: dict[str, Any]) -> None:
    """Wait until Airflow will not lose the answer to a question, which it does in its first seconds."""
    age = utc_now() - parse_iso(question["created_at"])
    await asyncio.sleep(max((SETTLED - age).total_seconds(), 0.0))


def _is_same(run: dict[str, Any], conf: dict[str, Any], note: str | None, by: str) -> bool:
    return (run.get("conf") or {}) == conf and run.get("note") == note and run.get("triggering_user_name") == by


def _is_answered(question: dict[str, Any], option: str, by: str) -> bool:
    user = question.get("responded_by_user") or {}
    return (
        bool(question.get("response_received"))
        and question.get("chosen_options") == [option]
        and user.get("name") == by
    )


log = logging.getLogger(__name__)
router = APIRouter(prefix="/api")


class ActBody(BaseModel):
    """What the browser sends. `id` is chosen there, and is the same when it sends the request again."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(max_length=64)
    reason: str = Field("", max_length=2_000)
    confirm: str = Field("", max_length=200)
    fields: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class Me:
    """Who asks, the token for acts, and the names of the acts that they may do to each pipeline."""

    name: str
    csrf: str
    csrf_header: str
    csrf_life_s: int
    may: dict[str, list[str]]


@router.get("/me")
def me(user: GetUserDep, session: SessionDep, settings: SettingsDep) -> Me:
    """Return who asks, the token for acts, and what they may do to each pipeline that they may read."""
    names = sorted(readable_pipelines(known_pipelines(settings), user, session))
    known = known_pipelines(settings)
    may = {name: [act.name for act in _allowed(name, known[name].definition, user, session)] for name in names}
    return Me(user.get_name(), make_token(page_secret(), str(user.get_id())), HEADER, LIFE_S, may)


@router.get("/p/{name}/acts")
def acts(one: PipelineDep, user: GetUserDep, session: SessionDep) -> dict[str, list[ActForm]]:
    """Return the acts that the person may do to a pipeline, with their forms."""
    return {"acts": [act.form for act in _allowed(one.name, one, user, session)]}


@router.post("/p/{name}/acts/{act}")
async def perform(
    one: PipelineDep, _: FromPage, act: str, body: ActBody, request: Request, user: GetUserDep, settings: SettingsDep
) -> dict[str, Any]:
    """Do an act as the person who asks.

    Raises:
        HTTPException: 403, it does not come from the page or the person may not; 404, there is no such act; 400, the form is
            refused; 409, it cannot be done now.
    """
    by = str(user.get_name())
    known = registered().get(act)
    if known is None or not _does(known, one):
        raise HTTPException(404, f"there is no act {act[:60]!r}; it has: {', '.join(sorted(registered()))}")
    if not await run_in_threadpool(_may, known, one.name, user):
        log.warning("refused the act %s of %s for %s: no permission", act, one.name, by)
        raise HTTPException(
            403,
            f"{by} may not start {dag_id(known.verb, one.name)}, and nothing was started; ask for that permission in Airflow",
        )
    try:
        asked = check_act(known, one.name, body.model_dump(), by, utc_now())
        done = to_plain(await _do(known, asked, request, settings))
    except RequestError as error:
        log.info("refused the act %s of %s for %s: %s", act, one.name, by, error)
        raise HTTPException(400, str(error)) from None
    log.info("act %s of %s by %s: %s", act, one.name, by, done)
    return {"act": act, "pipeline": one.name, "by": by, **done}


async def _do(act: Act, asked: ActRequest, request: Request, settings: Settings) -> object:
    """Do an act; return the view of what was done."""
    dag = dag_id(act.verb, asked.pipeline)
    if isinstance(act.effect, Record):
        return await run_in_threadpool(act.effect.do, settings, asked, utc_now())
    airflow = AirflowAsUser(request)
    if isinstance(act.effect, Start):
        return await start_run(airflow, dag, act.effect, asked)
    repeated, run = await answer_run(airflow, dag, act.effect, asked), asked.fields["run"]
    if act.effect.keep is not None:
        await run_in_threadpool(act.effect.keep, settings, asked)
    return AnsweredRun(dag, run, "running", paused=False, repeated=repeated, link=f"/dags/{dag}/runs/{run}")


def _does(act: Act, definition: Definition | None) -> bool:
    """Say whether the act's DAG does it for this pipeline; a refused definition says nothing of it."""
    return not act.of or definition is None or act.of in {one.name for one in DagFacts.of(definition).acts_of(act.verb)}


def _allowed(name: str, definition: Definition | None, user: Any, session: Session) -> list[Act]:
    """Return the acts whose DAG exists, does them and may be started, in the order in which they were registered."""
    dags = {dag_id(act.verb, name) for act in registered().values()}
    existing = set(session.scalars(select(DagModel.dag_id).where(DagModel.dag_id.in_(dags), ~DagModel.is_stale)))
    teams = DagModel.get_dag_id_to_team_name_mapping(sorted(existing), session=session)
    return [
        act
        for act in registered().values()
        if (dag := dag_id(act.verb, name)) in existing
        and _does(act, definition)
        and _authorized(act, dag, teams.get(dag), user)
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


# Actions of people: the runs of a pipeline's DAGs that a person started, and the answers that a person gave, newest first.
#
# Airflow has written both down with the person's name, whether they came from the page, from Airflow's own forms or over its REST
# API. Of what a run was given, only values of known kinds are shown: no record and no free text but the reason.

MOST = 100
_SHOWN_KINDS = (CHOICE, FLAG, INSTANT, NAME, RUN)
_ALWAYS_SHOWN = ("scope", "start", "end", "dry_run", "prove", "version", "act")
"""Fields of Airflow's own forms, whose values are checked."""


@dataclass(frozen=True)
class Audited:
    """What a person did: when, in which way, with which values and for what reason, in which run, and what came of it."""

    at: str | None
    by: str | None
    act: str
    how: str
    fields: dict[str, str | bool]
    reason: str
    dag: str | None
    run: str | None
    outcome: str
    ended_at: str | None


def read_audit(
    session: Session, dags: Collection[str], acts: Mapping[str, Act], state: State, pipeline: str
) -> list[Audited]:
    """Return the newest acts of people.

    Args:
        dags: those of the pipeline that the one who asks may read.
        state: of the alerts; who acknowledged one acted, too.
    """
    entries = [*_started(session, dags, acts), *_answered(session, dags), *_acknowledged(state, pipeline)]
    return sorted(entries, key=lambda entry: str(entry.at), reverse=True)[:MOST]


def shown_fields(conf: Mapping[str, Any] | None, acts: Mapping[str, Act]) -> dict[str, str | bool]:
    """Return what may be shown of a run's conf. Pure."""
    kinds = {each.name: each.kind for act in acts.values() for each in act.fields}
    return {
        name: value
        for name, value in (conf or {}).items()
        if (name in _ALWAYS_SHOWN or kinds.get(name) in _SHOWN_KINDS)
        and isinstance(value, (str, bool))
        and len(str(value)) <= 100
    }


def _started(session: Session, dags: Collection[str], acts: Mapping[str, Act]) -> list[Audited]:
    runs = session.scalars(
        select(DagRun)
        .where(DagRun.dag_id.in_(dags), DagRun.triggering_user_name.is_not(None), DagRun.run_type == "manual")
        .order_by(DagRun.run_after.desc())
        .limit(MOST)
    )
    return [
        Audited(
            at=_iso(run.queued_at or run.run_after),
            by=run.triggering_user_name,
            act=_act_of(run),
            how="page" if run.run_id.startswith(RUN_PREFIX) else "Airflow",
            fields=shown_fields(run.conf, acts),
            reason=_line(run.note or (run.conf or {}).get("reason")),
            dag=run.dag_id,
            run=run.run_id,
            outcome=str(run.state),
            ended_at=_iso(run.end_date),
        )
        for run in runs
    ]


def _act_of(run: DagRun) -> str:
    """Return what a run does: the act that its form names, else the verb of its DAG."""
    return str((run.conf or {}).get("act") or run.dag_id.partition("__")[0])


def _answered(session: Session, dags: Collection[str]) -> list[Audited]:
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
            continue  # no answer in time
        found.append(
            Audited(
                at=_iso(detail.responded_at),
                by=user.get("name") or user.get("id"),
                act=f"{_act_of(run)}: {' '.join(detail.chosen_options or [])}",
                how="answer",
                fields={"task": task},
                reason=_line(run.note),
                dag=run.dag_id,
                run=run.run_id,
                outcome="answered",
                ended_at=_iso(detail.responded_at),
            )
        )
    return found


def _acknowledged(state: State, pipeline: str) -> list[Audited]:
    return [
        Audited(
            at=_iso(alert.acknowledged_at),
            by=alert.acknowledged_by,
            act="acknowledge",
            how="page",
            fields={"alert": alert.cause.kind},
            reason=alert.acknowledgement,
            dag=None,
            run=None,
            outcome="done",
            ended_at=_iso(alert.acknowledged_at),
        )
        for alert in state.alerts
        if alert.acknowledged_by and alert.cause.pipeline in ("", pipeline)
    ]


def _line(text: Any) -> str:
    return " ".join(str(text or "").split())[:200]


def _iso(instant: datetime | None) -> str | None:
    return None if instant is None else to_iso(instant)
