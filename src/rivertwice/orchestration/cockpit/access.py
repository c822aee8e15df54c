"""Who may see a pipeline: whoever may read one of its DAGs. Airflow's auth manager decides, with its teams where it has them.

A pipeline that one may not see answers like one that does not exist.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.configuration import conf
from airflow.models.dag import DagModel
from fastapi import Depends, HTTPException
from sqlalchemy import select
from sqlalchemy.orm import Session

from rivertwice.config import Settings
from rivertwice.config.versions import base_of
from rivertwice.orchestration.cockpit.known import known_pipelines
from rivertwice.orchestration.dag_names import dag_id
from rivertwice.pipeline.definition import Definition

VERBS = (
    "supervise",
    "reconcile",
    "reconcile_full",
    "backfill",
    "correct",
    "rotate",
    "archive",
    "repair",
    "switch",
    "restore",
    "rewind",
    "operate",
)
"""The verbs of a pipeline's DAGs; `supervise`, which each pipeline has, comes first."""


def get_settings() -> Settings:
    """Return the settings of the API server."""
    return Settings.from_env()


SettingsDep = Annotated[Settings, Depends(get_settings)]


def readable_pipelines(
    names: Iterable[str], user: Any, session: Session, method: Literal["GET", "POST"] = "GET"
) -> set[str]:
    """Return those pipelines of which the user may read a DAG.

    A pipeline that Airflow has not parsed yet has no team. Where Airflow has teams, nobody sees it before that; elsewhere the
    auth manager is asked about the DAG it will have.

    Args:
        names: of pipelines or versions.
        user: as Airflow knows the person who asks.
        session: of Airflow's database.
        method: `GET` for the right to read, `POST` for the right to start a run, as Airflow names them.
    """
    owners = {dag_id(verb, name): name for name in set(names) for verb in VERBS}
    stored = set(session.scalars(select(DagModel.dag_id).where(DagModel.dag_id.in_(owners))))
    teams = DagModel.get_dag_id_to_team_name_mapping(sorted(stored), session=session) if _has_teams() else {}
    unparsed = set(owners.values()) - {owners[each] for each in stored}
    if not _has_teams():
        stored |= {dag_id(VERBS[0], name) for name in unparsed}
    by_team: dict[str | None, set[str]] = defaultdict(set)
    for each in stored:
        by_team[teams.get(each)].add(each)
    manager = get_auth_manager()
    readable: set[str] = set()
    for team, ids in by_team.items():
        allowed = manager.filter_authorized_dag_ids(dag_ids=ids, user=user, method=method, team_name=team)
        readable |= {owners[each] for each in allowed}
    return readable


def _has_teams() -> bool:
    return bool(conf.getboolean("core", "multi_team", fallback=False))


def readable_definition(name: str, user: GetUserDep, session: SessionDep, settings: SettingsDep) -> Definition:
    """Return the definition of the pipeline, or version, in the path of a request.

    Raises:
        HTTPException: 404, if there is none or the user may read none of its DAGs; 409, if its definition is refused.
    """
    found = known_pipelines(settings).get(name)
    if found is None or not readable_pipelines([name, base_of(name)], user, session) & {name, base_of(name)}:
        raise HTTPException(404, f"there is no pipeline {name!r} that you may read; the overview lists those you may")
    if found.definition is None:
        raise HTTPException(409, found.refusal)
    return found.definition


PipelineDep = Annotated[Definition, Depends(readable_definition)]
"""The definition of the pipeline `{name}` of the path, for a user who may read it. Each route of a pipeline asks for it."""
