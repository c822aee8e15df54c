"""Which pipelines and versions get DAGs. Reads the definitions only, so that parsing a DAG file costs no engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rivertwice.core import MARK, ConfigError, DefinitionError, Settings, base_of
from rivertwice.definition import DefinitionFiles, load_definition, load_draft

if TYPE_CHECKING:
    from rivertwice.definition import Definition


@dataclass(frozen=True)
class FoundDefinitions:
    """One pipeline, or a version of one: its definition, or why it cannot be accepted."""

    name: str
    definition: Definition | None
    refusal: str | None


def find_definitions(settings: Settings) -> list[FoundDefinitions]:
    """Return every pipeline of the project and every open version of one, sorted by name; a broken one hides no other.

    While a version is open, the definition of its pipeline is the frozen one, which its stream runs. When and with what its DAGs
    run is not frozen: that is the `airflow` of the project's file, if it can be read.
    """
    names = {file.parent.name for file in settings.definitions.glob(f"*/{DefinitionFiles.YAML_FILE}")}
    names |= {file.parent.name for file in settings.frozen_definitions.glob(f"*{MARK}*/{DefinitionFiles.YAML_FILE}")}
    definitions = []
    for name in sorted(names):
        try:
            definitions.append(FoundDefinitions(name, _load(settings, name), None))
        except (ConfigError, DefinitionError, OSError) as error:
            definitions.append(FoundDefinitions(name, None, str(error)))
    return definitions


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


def require_definitions() -> None:
    """Raise if any definition is refused; in a separate DAG file, Airflow shows that as an import error.

    Raises:
        DefinitionError: names each refused pipeline and the reason.
    """
    refused = [candidate for candidate in find_definitions(Settings.from_env()) if candidate.refusal is not None]
    if refused:
        lines = "\n".join(f"pipeline {candidate.name} has no DAGs: {candidate.refusal}" for candidate in refused)
        raise DefinitionError(lines)
