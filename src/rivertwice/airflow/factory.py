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

from airflow.sdk import get_parsing_context

from rivertwice.airflow import dags
from rivertwice.core import DefinitionError, Settings, base_of
from rivertwice.tasks import AgentClient, DagFacts, find_dags, of_dag

if TYPE_CHECKING:
    from airflow.sdk import DAG

log = logging.getLogger(__name__)


_DAGS: dict[str, Callable[[Settings, DagFacts], DAG]] = {
    "care": dags.care_dag,
    "reconcile": dags.reconcile_dag,
    "backfill": dags.backfill_dag,
    "operate": dags.operate_dag,
    "stream": dags.stream_dag,
}


def dags_of(settings: Settings, facts: DagFacts, verbs: Collection[str] | None = None) -> Iterator[DAG]:
    """Yield the DAGs that a pipeline has, of these verbs alone if any are named."""
    for verb, factory in _DAGS.items():
        if verb == "stream" and facts.runs_at is None:
            continue  # the agent keeps its driver running
        if verb in facts.airflow.dags and (verbs is None or verb in verbs):
            yield factory(settings, facts)


def every_dag(verb: str) -> Iterator[DAG]:
    """Yield the DAG of a verb of each pipeline whose definition is accepted and has it.

    A worker that starts a task says which DAG it reads the file for, and is given that one alone.
    """
    settings, asked = Settings.from_env(), _asked_for()
    if asked is not None and asked[0] != verb:
        return
    for found in find_dags(settings, None if asked is None else asked[1]):
        if found.facts is not None:
            yield from dags_of(settings, found.facts, [verb])


def _asked_for() -> tuple[str, str] | None:
    """Return verb and pipeline of the DAG that Airflow reads the file for; None: it reads all of them, or one that is none of ours."""
    asked = get_parsing_context().dag_id
    return None if asked is None else of_dag(asked)


def week_dags() -> Iterator[DAG]:
    """Yield the DAG that reports the week; there is none where the home is elsewhere, with its agent."""
    if not AgentClient.is_named() and _asked_for() in (None, ("report", dags.WEEK)):
        yield dags.report_dag()


class Dags(dict[str, "DAG"]):
    """DAGs by id. While Airflow reads a file for one of them, each other one is made when it is asked for by its id."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings

    def __missing__(self, dag_id: str) -> DAG:
        verb, pipeline = of_dag(dag_id) or ("", "")
        for found in find_dags(self._settings, pipeline):
            if found.facts is not None:
                for dag in dags_of(self._settings, found.facts, [verb]):
                    self[dag_id] = dag
                    return dag
        raise KeyError(dag_id)


def require_definitions() -> None:
    """Raise if any definition is refused; in a separate DAG file, Airflow shows that as an import error.

    Raises:
        DefinitionError: names each refused pipeline and the reason.
    """
    refused = [found for found in find_dags(Settings.from_env()) if found.refusal is not None]
    if refused:
        lines = "\n".join(f"pipeline {found.name} has no DAGs: {found.refusal}" for found in refused)
        raise DefinitionError(lines)


def all_dags(settings: Settings | None = None, pipelines: Collection[str] | None = None) -> dict[str, DAG]:
    """Return every DAG of every pipeline and version by its id. A refused definition is logged and has none.

    Args:
        settings: of the project; None: those of the environment (RIVERTWICE_PROJECT, RIVERTWICE_HOME).
        pipelines: only these, each with its versions; None: all. Airflow gives a team all DAGs of a bundle, so a team's bundle
            names the team's pipelines.
    """
    settings = settings or Settings.from_env()
    made, asked = Dags(settings), _asked_for()
    for found in find_dags(settings, None if asked is None else asked[1]):
        if pipelines is not None and base_of(found.name) not in pipelines:
            continue
        if found.facts is None:
            log.error("pipeline %s has no DAGs: %s", found.name, found.refusal)
            continue
        made.update({dag.dag_id: dag for dag in dags_of(settings, found.facts, asked and [asked[0]])})
    if pipelines is None:
        made.update({dag.dag_id: dag for dag in week_dags()})
    return made
