"""Make all DAGs of a project from one file of somebody's own DAG folder.

    \"\"\"Airflow DAGs of every pipeline of rivertwice.\"\"\"
    from rivertwice.airflow.factory import all_dags
    globals().update(all_dags())

The words `airflow` and `dag` have to be in the file: Airflow looks for them before it reads one.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from rivertwice.airflow import dags, operate
from rivertwice.airflow.definitions import find_definitions
from rivertwice.core import Settings, base_of

if TYPE_CHECKING:
    from airflow.sdk import DAG

log = logging.getLogger(__name__)

_VERBS = (
    (dags.supervise_dag, None),
    (dags.rotate_dag, None),
    (dags.archive_dag, dags.is_first_version),
    (dags.reconcile_dag, None),
    (dags.backfill_dag, None),
    (dags.repair_dag, dags.can_repair),
    (dags.switch_dag, dags.is_first_version),
    (operate.operate_dag, None),
)


def all_dags(settings: Settings | None = None, pipelines: Collection[str] | None = None) -> dict[str, DAG]:
    """Return every DAG of every pipeline and version by its id. A refused definition is logged and has none.

    Args:
        settings: of the project; None: those of the environment (RIVERTWICE_PROJECT, RIVERTWICE_HOME).
        pipelines: only these, each with its versions; None: all. Airflow gives a team all DAGs of a bundle, so a team's bundle
            names the team's pipelines.
    """
    settings = settings or Settings.from_env()
    made = {}
    for found in find_definitions(settings):
        if pipelines is not None and base_of(found.name) not in pipelines:
            continue
        if found.definition is None:
            log.error("pipeline %s has no DAGs: %s", found.name, found.refusal)
            continue
        for factory, wants in _VERBS:
            if wants is None or wants(found.definition):
                dag = factory(settings, found.definition)
                made[dag.dag_id] = dag
    return made
