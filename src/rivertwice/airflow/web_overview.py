"""The two routes that an open page asks again and again: all pipelines in a row each, and one pipeline in short."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from fastapi import APIRouter
from fastapi.responses import Response
from sqlalchemy import exists, or_, select
from sqlalchemy.orm import Session

from rivertwice.airflow.web_access import (
    VERBS,
    PipelineDep,
    SettingsDep,
    ViewRoute,
    known_pipelines,
    pipelines_without_versions,
    readable_pipelines,
)
from rivertwice.core import Deadline, RivertwiceError, beside, utc_now
from rivertwice.read import Job, OverviewRows, WeekReport, describe_summary
from rivertwice.tasks import FoundDefinitions, dag_id

# Runs of a pipeline's DAGs that are at work or wait, from Airflow's database: one query for all pipelines of a page.

AT_WORK = ("running", "queued")
OVER = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
STANDS_FOR = {
    "deferred": "waits without a worker",
    "awaiting_input": "waits for a person",
    "up_for_retry": "will be tried again",
}
WATCH = "watch"
"""The task of `care__P` that looks at the stream from one run to the next."""
MOST = 40
"""Runs that are shown of all pipelines together."""
PATIENCE_S = 0.5
"""An answer waits for so long for pipelines that were never read."""
_READING = threading.Lock()


@dataclass(frozen=True)
class RunAtWork(Job):
    """A run of a DAG; its tasks are counted."""

    dag: str = ""
    run: str = ""


@dataclass(frozen=True)
class BrokenRow:
    """The row of a pipeline that cannot be shown, with the reason."""

    name: str
    error: str | None
    running: tuple[Job, ...]
    description: str = ""


@dataclass(frozen=True)
class UnreadRow:
    """The row of a pipeline that this process is still reading for the first time."""

    name: str
    description: str
    running: tuple[Job, ...]
    unread: bool = True


@dataclass(frozen=True)
class Overview:
    """A row for each pipeline."""

    pipelines: tuple[object, ...]


def runs_at_work(names: Iterable[str], session: Session) -> Mapping[str, Sequence[RunAtWork]]:
    """Return name of a pipeline to its runs at work.

    A run that only watches is left out: there is one at any time, and the light of the stream says what it finds.
    """
    owners = {dag_id(verb, name): (name, verb) for name in set(names) for verb in VERBS}
    columns = (DagRun.dag_id, DagRun.run_id, DagRun.state, DagRun.start_date, DagRun.queued_at)
    does_more = exists().where(
        TaskInstance.dag_id == DagRun.dag_id,
        TaskInstance.run_id == DagRun.run_id,
        TaskInstance.task_id != WATCH,
        or_(TaskInstance.state.is_(None), TaskInstance.state.not_in(OVER)),
    )
    wanted = (
        select(*columns)
        .where(DagRun.dag_id.in_(owners), DagRun.state.in_(AT_WORK), does_more)
        .order_by(DagRun.queued_at)
    )
    rows = session.execute(wanted.limit(MOST)).all()
    tasks = _tasks([row.run_id for row in rows], [row.dag_id for row in rows], session) if rows else {}
    found: dict[str, list[RunAtWork]] = defaultdict(list)
    for row in rows:
        name, verb = owners[row.dag_id]
        states = tasks.get((row.dag_id, row.run_id), [])
        done, words = sum(state in OVER for _, state in states), _words(str(row.state), states)
        since = row.start_date or row.queued_at
        found[name].append(RunAtWork(verb, words, since, done, len(states), "tasks", row.dag_id, row.run_id))
    return found


def _tasks(
    runs: list[str], dags: list[str], session: Session
) -> Mapping[tuple[str, str], list[tuple[str, str | None]]]:
    columns = (TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id, TaskInstance.state)
    wanted = select(*columns).where(TaskInstance.dag_id.in_(dags), TaskInstance.run_id.in_(runs))
    found: dict[tuple[str, str], list[tuple[str, str | None]]] = defaultdict(list)
    for row in session.execute(wanted):
        if row.task_id != WATCH:
            found[row.dag_id, row.run_id].append((row.task_id, None if row.state is None else str(row.state)))
    return found


def _words(state: str, tasks: list[tuple[str, str | None]]) -> str:
    """Return the state of a run, with the task that is at work."""
    for task, of in tasks:
        if of in STANDS_FOR:
            return f"{task} {STANDS_FOR[of]}"
    at_work = next((task for task, of in tasks if of == "running"), None)
    return state if at_work is None else f"{state}, at {at_work}"


log = logging.getLogger(__name__)

router = APIRouter(prefix="/api", route_class=ViewRoute)


@router.get("/overview")
def overview(user: GetUserDep, session: SessionDep, settings: SettingsDep) -> object:
    """Return a row for each pipeline that the user may read. One that cannot be read shows why, and hides no other.

    The first look of a process at many pipelines takes long. Until it is over, rows are as an earlier server read them, or are told to be
    unread.
    """
    names = pipelines_without_versions(settings)
    readable = readable_pipelines(names, user, session)
    known = known_pipelines(settings)
    shown = [known[name] for name in names if name in known and name in readable]
    runs = runs_at_work(readable, session)
    now, patience = utc_now(), Deadline.after(PATIENCE_S)
    own = OverviewRows.of(settings)
    rows = [_row(own, each, tuple(runs.get(each.name, ())), now, patience) for each in shown]
    missing = [each for each in shown if each.definition is not None and not own.was_read(each.name)]
    if missing:
        _read_beside(own, missing)
    own.keep(names, now)
    return Overview(tuple(rows))


@router.get("/week")
def week(user: GetUserDep, session: SessionDep, settings: SettingsDep) -> Response:
    """Return the report of the last seven days as a file, of the pipelines that the user may read."""
    readable = readable_pipelines(pipelines_without_versions(settings), user, session)
    now = utc_now()
    page = WeekReport.read(settings, sorted(readable), now).page
    named = {"Content-Disposition": f'attachment; filename="week-{now:%Y-%m-%d}.html"', "Cache-Control": "no-store"}
    return Response(page, media_type="text/html", headers=named)


def _row(
    own: OverviewRows, found: FoundDefinitions, runs: tuple[Job, ...], now: datetime, patience: Deadline | None = None
) -> object:
    """Return the row of a pipeline.

    Args:
        patience: until when a pipeline that this process never looked at is read, if no row of it is kept; None: it is read.
    """
    definition = found.definition
    if definition is None:
        return BrokenRow(found.name, found.refusal, runs)
    if patience is not None and not own.was_read(found.name):
        kept = own.kept(found.name)
        if kept is not None:
            return {**kept, "unread": True, "running": runs}
        if patience.is_over():
            return UnreadRow(definition.name, definition.description, runs)
    try:
        row = own.read(definition, now)
    except (RivertwiceError, OSError, ValueError, KeyError) as error:
        log.warning("the overview cannot show %s: %s", definition.name, error)
        return BrokenRow(definition.name, f"{type(error).__name__}: {error}", runs, definition.description)
    return replace(row, running=(*runs, *row.running))


def _read_beside(own: OverviewRows, unread: Sequence[FoundDefinitions]) -> None:
    """Read pipelines once in a thread, at half its speed, if none does so already."""
    if not _READING.acquire(blocking=False):
        return

    def read() -> None:
        try:
            for each in unread:
                began = time.monotonic()
                _row(own, each, (), utc_now())
                time.sleep(time.monotonic() - began)  # as long as it worked, so that answers are not slow meanwhile
        finally:
            _READING.release()

    beside(read, "overview")


@router.get("/p/{name}/summary")
def summary(one: PipelineDep, session: SessionDep, settings: SettingsDep) -> object:
    """Return what is true of a pipeline now: the sentence, the lights, what runs, and a stamp for each tab."""
    seen = describe_summary(settings, one, utc_now())
    return replace(seen, running=(*runs_at_work([one.name], session).get(one.name, ()), *seen.running))
