"""Which pipelines and versions get DAGs, and what their DAGs depend on. Reads the definitions only, so that parsing a DAG file costs no engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from rivertwice.acts import Act, ActName, acts_of
from rivertwice.core import MARK, ConfigError, DefinitionError, Settings, base_of
from rivertwice.definition import (
    NO_SCHEDULE,
    AirflowSettings,
    Definition,
    DefinitionFiles,
    RepairMode,
    load_definition,
    load_draft,
)
from rivertwice.tasks.turns import find_most_frequent

LONGEST_WATCH = "*/15 * * * *"
"""A stream is watched from one run of `care__P` to the next; one whose watch failed is watched again after at most this time."""


@dataclass(frozen=True)
class FoundDefinitions:
    """One pipeline, or a version of one: its definition, or why it cannot be accepted."""

    name: str
    definition: Definition | None
    refusal: str | None


def find_definitions(settings: Settings, only: str | None = None) -> list[FoundDefinitions]:
    """Return every pipeline of the project and every open version of one, sorted by name; a broken one hides no other.

    While a version is open, the definition of its pipeline is the frozen one, which its stream runs. When and with what its DAGs
    run is not frozen: that is the `airflow` of the pipeline's file, if it can be read, over that of `rivertwice.yaml`.

    Args:
        only: the name of a pipeline or version; None: all.
    """
    names = {file.parent.name for file in settings.definitions.glob(f"*/{DefinitionFiles.YAML_FILE}")}
    names |= {file.parent.name for file in settings.frozen_definitions.glob(f"*{MARK}*/{DefinitionFiles.YAML_FILE}")}
    definitions, defaults = [], cache(lambda: settings.airflow_defaults)  # one file, read once for all of them
    for name in sorted(names if only is None else names & {only}):
        try:
            definitions.append(
                FoundDefinitions(name, _with_defaults(settings, _load(settings, name), defaults()), None)
            )
        except (ConfigError, DefinitionError, OSError) as error:
            definitions.append(FoundDefinitions(name, None, str(error)))
    return definitions


def find_definition(settings: Settings, name: str) -> Definition:
    """Return the definition of a pipeline or a version, as its DAGs have it.

    Raises:
        DefinitionError: it cannot be accepted.
        ConfigError: `airflow` of the project's file cannot.
    """
    return _with_defaults(settings, _load(settings, name), settings.airflow_defaults)


def _with_defaults(settings: Settings, definition: Definition, defaults: Mapping[str, Any]) -> Definition:
    if not defaults:
        return definition
    return definition.model_copy(update={"airflow": definition.airflow.over(defaults, str(settings.project_file))})


def _load(settings: Settings, name: str) -> Definition:
    folder = settings.definition_folder(name)
    definition = load_definition(folder)
    own = settings.definitions / base_of(name)
    if folder == own or not (own / DefinitionFiles.YAML_FILE).is_file():
        return definition
    try:
        return definition.model_copy(update={"airflow": load_draft(own).airflow})
    except DefinitionError:
        return definition  # of a pipeline that runs: its DAGs stay as they were frozen, `rivertwice lint` names the mistake


class DagFacts(BaseModel):
    """All that the DAGs of a pipeline, or of a version, depend on; an agent gives it to an Airflow that has no definitions.

    Attributes:
        plans_in_job: whether a backfill is only planned from the records, as of sessions.
        corrects_late: whether the late queue has a schedule of its own.
        can_repair: whether a backfill can cure its rows, and the definition wants that.
        runs_at: of a stream by schedule: when a run starts, `none` if only assets and people start one; None: it runs all the time.
        assets: names or URIs of assets whose events start a run.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    airflow: AirflowSettings
    plans_in_job: bool = False
    corrects_late: bool = False
    can_repair: bool = False
    runs_at: str | None = None
    assets: tuple[str, ...] = ()

    @classmethod
    def of(cls, definition: Definition) -> Self:
        """Return those of a definition."""
        wants_repair = definition.compare and definition.repair.policy != RepairMode.OFF
        return cls(
            name=definition.name,
            airflow=definition.airflow,
            plans_in_job=not definition.window.kind.is_aligned,
            corrects_late=definition.late.policy == "correct",
            can_repair=wants_repair and definition.has_windows_of_their_own and "backfill" in definition.airflow.dags,
            runs_at=definition.stream.runs_at,
            assets=tuple(definition.stream.assets),
        )

    @property
    def is_first_version(self) -> bool:
        """Whether it is the pipeline's own, not a version beside it: such a one lets no version serve and extends no archive.

        The archive of a topic is one for all pipelines; the first version's DAG extends it, and the agent that of any other topic.
        """
        return base_of(self.name) == self.name

    @property
    def care_schedules(self) -> tuple[str, str, str]:
        """Schedules of the rotation, of the archive, and of the DAG that does both and watches the stream in between."""
        own = self.airflow.schedules
        archive = own.archive if self.is_first_version else NO_SCHEDULE
        return own.rotate, archive, find_most_frequent([own.rotate, archive, LONGEST_WATCH])

    def acts_of(self, verb: str) -> list[Act[Any, Any]]:
        """Return the acts that the pipeline's DAG of a verb does; a run that names none does the first."""
        known = acts_of(verb, is_version=not self.is_first_version)
        return [act for act in known.values() if self.can_repair or act.name != ActName.REPAIR]


class FoundDag(BaseModel):
    """One pipeline, or a version of one: what its DAGs depend on, or why it has none."""

    name: str
    facts: DagFacts | None = None
    refusal: str | None = None


def dags_here(settings: Settings, only: str | None = None) -> list[FoundDag]:
    """Return every pipeline and every open version, as `find_definitions` does."""
    return [
        FoundDag(
            name=found.name,
            facts=None if found.definition is None else DagFacts.of(found.definition),
            refusal=found.refusal,
        )
        for found in find_definitions(settings, only)
    ]
