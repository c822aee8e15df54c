"""Routes of SQL in the page: whether it runs here and over which views, and a query, each run of which is in the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from threading import BoundedSemaphore
from typing import Annotated, Any, Literal

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict

from rivertwice.acts import OPERATE
from rivertwice.airflow.web_access import NOT_KEPT, FromPage, PipelineDep, SettingsDep, may_start, readable_pipelines
from rivertwice.core import RequestError, RivertwiceError, ServiceError, base_of
from rivertwice.read import QueryBounds

PERMISSION = "Rivertwice SQL"
"""The custom view of Airflow's auth manager whose reading is the permission to ask."""
MOST_ROWS = 1_000
MOST_TEXT = 20_000
"""Characters of a statement."""
MOST_AT_ONCE = 2
SECONDS = 20.0
MEMORY = 512 << 20
MOST_BYTES = 4 << 20
"""Bounds of one query: time, DuckDB's memory, and the size of the rows."""

log = logging.getLogger(__name__)
router = APIRouter(prefix="/api/p/{name}")
_slots = BoundedSemaphore(MOST_AT_ONCE)
_TYPES = {
    "json": "application/json",
    "csv": "text/csv",
    "parquet": "application/octet-stream",
    "jsonl": "application/x-ndjson",
}


class QueryBody(BaseModel):
    """What the browser sends: a statement, and whether its rows are for the page or for a file."""

    model_config = ConfigDict(extra="forbid")

    id: str = ""
    sql: str
    form: Literal["json", "csv", "parquet", "jsonl"] = "json"


@dataclass(frozen=True)
class QueryView:
    """A view, what its rows are, and its columns with their types."""

    view: str
    what: str
    columns: dict[str, str]


@dataclass(frozen=True)
class QueryPage:
    """What the page needs to ask: why it cannot (empty: it can), a first statement, the views, and the other pipelines."""

    why: str
    sql: str = ""
    views: tuple[QueryView, ...] = ()
    others: tuple[str, ...] = ()
    seconds: float = SECONDS
    rows: int = MOST_ROWS
    memory_mib: int = MEMORY >> 20


def why_not(user: GetUserDep, settings: SettingsDep) -> str:
    """Return why a user cannot ask here, with the remedy; empty if they can."""
    if not settings.query:
        return "SQL is off here, because it makes the API server's host read data. `RIVERTWICE_QUERY=on` in the API server's environment turns it on."
    if not get_auth_manager().is_authorized_custom_view(method="GET", resource_name=PERMISSION, user=user):
        return f"{user.get_name()} may not ask with SQL; ask in Airflow for the permission to read `{PERMISSION}`."
    return ""


def readable_names(user: GetUserDep, session: SessionDep, settings: SettingsDep) -> list[str]:
    """Return the pipelines and versions of the home of which a user may read a DAG, sorted."""
    names = settings.pipeline_names()
    readable = readable_pipelines({*names, *map(base_of, names)}, user, session)
    return [name for name in names if readable & {name, base_of(name)}]


NamesDep = Annotated[list[str], Depends(readable_names)]


def decidable_names(user: GetUserDep, names: NamesDep, body: QueryBody) -> list[str]:
    """Return those of the pipelines that a statement may name whose records' own values a user may see."""
    text = body.sql.casefold()
    return [name for name in names if name.casefold() in text and may_start(user, OPERATE, name)]


WhyNot = Annotated[str, Depends(why_not)]


@router.get("/query")
def query_page(one: PipelineDep, settings: SettingsDep, why: WhyNot, names: NamesDep) -> QueryPage:
    """Return what the page needs to ask."""
    if why:
        return QueryPage(why)
    listed = QueryBounds(names, raw=()).describe_views(settings, one.name)
    first = next((f"SELECT *\nFROM {view.sql}\nORDER BY {rows.table.time} DESC\nLIMIT 50" for view, rows in listed), "")
    views = [
        QueryView(view.sql, view.kind.what, {field.name: str(field.type) for field in rows.table.files.schema})
        for view, rows in listed
    ]
    return QueryPage("", first, tuple(views), tuple(name for name in names if name != one.name))


@router.post("/query")
async def run_query(
    one: PipelineDep,
    _: FromPage,
    why: WhyNot,
    body: QueryBody,
    request: Request,
    user: GetUserDep,
    settings: SettingsDep,
    names: NamesDep,
    raw: Annotated[list[str], Depends(decidable_names)],
) -> Response:
    """Return the rows of a query, as JSON or as a file; a process that the reader no longer waits for is killed.

    Raises:
        HTTPException: 403, it does not come from the page, SQL is off, or the person may not; 400, the query is refused or took
            too much; 429, too many run already; 503, the store does not answer.
    """
    by = str(user.get_name())
    if why:
        raise HTTPException(403, why)
    bounds = QueryBounds(names, raw, SECONDS, MEMORY, MOST_BYTES)
    try:
        if len(body.sql) > MOST_TEXT:
            message = f"the statement has {len(body.sql):,} characters; write one of at most {MOST_TEXT:,}"
            raise RequestError(message)
        if not _slots.acquire(blocking=False):
            message = f"{MOST_AT_ONCE} queries run already on this server; wait some seconds, and run it again"
            raise HTTPException(429, message)
        try:
            made = await _while_open(request, bounds.run_apart(settings, body.sql, MOST_ROWS, one.name, body.form))
        finally:
            _slots.release()
    except RivertwiceError as error:
        log.info("query of %s by %s: %r: refused: %s", one.name, by, body.sql[:MOST_TEXT], error)
        raise HTTPException(503 if isinstance(error, ServiceError) else 400, str(error)) from None
    log.info("query of %s by %s: %r: %s rows, %s s", one.name, by, body.sql, made.rows, made.seconds)
    kept = (
        {} if body.form == "json" else {"Content-Disposition": f'attachment; filename="{one.name}-query.{body.form}"'}
    )
    return Response(made.body, media_type=_TYPES[body.form], headers=NOT_KEPT | kept)


async def _while_open(request: Request, work: Coroutine[Any, Any, Any]) -> Any:
    """Return what some work returns; it is cancelled when the one who asked closes the connection."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=0.25))[0]:
            if await request.is_disconnected():
                message = "the one who asked does not wait any more"
                raise RequestError(message)
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
