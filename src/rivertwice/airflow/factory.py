"""Make all DAGs of a project from one file of somebody's own DAG folder.

    \"\"\"Airflow DAGs of every pipeline of rivertwice.\"\"\"
    from rivertwice.airflow.factory import all_dags
    globals().update(all_dags())

The words `airflow` and `dag` have to be in the file: Airflow looks for them before it reads one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from rivertwice.airflow import dags, operate
from rivertwice.airflow.definitions import find_definitions
from rivertwice.core import Settings, base_of

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from rivertwice.definition import Definition

log = logging.getLogger(__name__)


def _always(_definition: Definition) -> bool:
    return True


_DAGS: dict[str, tuple[Callable[[Settings, Definition], DAG], Callable[[Definition], bool]]] = {
    "supervise": (dags.supervise_dag, _always),
    "rotate": (dags.rotate_dag, _always),
    "archive": (dags.archive_dag, dags.is_first_version),
    "reconcile": (dags.reconcile_dag, _always),
    "backfill": (dags.backfill_dag, _always),
    "repair": (dags.repair_dag, dags.can_repair),
    "switch": (dags.switch_dag, dags.is_first_version),
    "operate": (operate.operate_dag, _always),
}


def dags_of(settings: Settings, definition: Definition, verbs: Collection[str] | None = None) -> Iterator[DAG]:
    """Yield the DAGs that a definition has, of these verbs alone if any are named."""
    for verb, (factory, fits) in _DAGS.items():
        if verb in definition.airflow.dags and fits(definition) and (verbs is None or verb in verbs):
            yield factory(settings, definition)


def every_dag(verb: str) -> Iterator[DAG]:
    """Yield the DAG of a verb of each pipeline whose definition is accepted and has it."""
    settings = Settings.from_env()
    for found in find_definitions(settings):
        if found.definition is not None:
            yield from dags_of(settings, found.definition, [verb])


def all_dags(settings: Settings | None = None, pipelines: Collection[str] | None = None) -> dict[str, DAG]:
    """Return every DAG of every pipeline and version by its id. A refused definition is logged and has none.

    Args:
        settings: of the project; None: those of the environment (RIVERTWICE_PROJECT, RIVERTWICE_HOME).
        pipelines: only these, each with its versions; None: all. Airflow gives a team all DAGs of a bundle, so a team's bundle
            names the team's pipelines.
    """
    settings = settings or Settings.from_env()
    made: dict[str, DAG] = {}
    for found in find_definitions(settings):
        if pipelines is not None and base_of(found.name) not in pipelines:
            continue
        if found.definition is None:
            log.error("pipeline %s has no DAGs: %s", found.name, found.refusal)
            continue
        made |= {dag.dag_id: dag for dag in dags_of(settings, found.definition)}
    return made
