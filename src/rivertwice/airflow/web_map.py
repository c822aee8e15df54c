"""The map of all pipelines, with Airflow's DAGs that wait for what they give."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.asset import AssetModel, DagScheduleAssetReference
from airflow.models.dagrun import DagRun
from fastapi import APIRouter
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from rivertwice.airflow.assets import reconciled_asset, served_asset, stream_asset
from rivertwice.airflow.web_access import SettingsDep, ViewRoute, known_pipelines, readable_dags, readable_pipelines
from rivertwice.core import base_of, utc_now
from rivertwice.read import draw_map

router = APIRouter(prefix="/api", route_class=ViewRoute)


@router.get("/map")
def flow_map(user: GetUserDep, session: SessionDep, settings: SettingsDep) -> object:
    """Return the map of the pipelines that the user may read, and of the DAGs that wait for them and that the user may read."""
    known = known_pipelines(settings)
    readable = readable_pipelines(known, user, session)
    found = [known[name] for name in sorted(known) if name in readable]
    definitions = [each.definition for each in found if each.definition is not None]
    drawn = draw_map(settings, definitions, [each.name for each in found if each.definition is None], utc_now())
    return drawn.with_dags(_waiting([each.name for each in definitions], user, session))


def _waiting(names: list[str], user: Any, session: Session) -> list[tuple[str, str, str, str]]:
    """Return the DAGs that are scheduled by an asset of these pipelines: the part that gives it, the asset, the DAG, its newest run."""
    sources = {}
    for name in names:
        for asset in (served_asset(name), reconciled_asset(name)):
            sources[asset.name] = f"table:{base_of(name)}"
        sources[stream_asset(name).name] = f"pipeline:{name}"
    found = session.execute(
        select(AssetModel.name, DagScheduleAssetReference.dag_id)
        .join(DagScheduleAssetReference, DagScheduleAssetReference.asset_id == AssetModel.id)
        .where(AssetModel.name.in_(sources))
        .order_by(DagScheduleAssetReference.dag_id, AssetModel.name)
    ).all()
    dags = readable_dags({row.dag_id for row in found}, user, session)
    states = _newest_states(dags, session)
    return [
        (sources[row.name], row.name, row.dag_id, states.get(row.dag_id, "")) for row in found if row.dag_id in dags
    ]


def _newest_states(dags: Collection[str], session: Session) -> dict[str, str]:
    newest = select(func.max(DagRun.id)).where(DagRun.dag_id.in_(dags)).group_by(DagRun.dag_id)
    rows = session.execute(select(DagRun.dag_id, DagRun.state).where(DagRun.id.in_(newest)))
    return {row.dag_id: str(row.state) for row in rows}
