"""The one way by which a test makes a project: pipelines from the repository or from texts, and settings with a home beside it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rivertwice.core.settings import Settings

REPOSITORY = Path(__file__).resolve().parents[2]
FLIGHTS = REPOSITORY / "pipelines" / "flight_delays"
EXAMPLES = REPOSITORY / "pipelines" / "examples"
TO_RUN = (".build", "expectations")
"""What drivers and jobs need of the repository: Java, the jars and the suites."""

Definition = Path | Mapping[str, str | bytes]
"""A folder to copy, or the text of each file."""


def make_project(
    folder: Path, pipelines: Mapping[str, Definition], *, links: Sequence[str] = (), **settings: Any
) -> Settings:
    """Make a project in `folder/project` and return its settings; its home is `folder/home` and need not exist.

    Args:
        folder: in which the project is made.
        pipelines: name to definition. A copied folder keeps the name that its `pipeline.yaml` has: see `rename`.
        links: names in the repository to link to; a stream or a job wants those of `TO_RUN`.
        settings: fields of `Settings` besides the project; `home` is another home than `folder/home`.
    """
    project = folder / "project"
    for name, definition in pipelines.items():
        write_definition(project / "pipelines" / name, definition)
    link(project, links)
    return Settings(**{"project": project, "home": folder / "home", "spark_master": "local[2]", **settings})


def write_definition(target: Path, definition: Definition) -> Path:
    """Write a definition's files into a folder, which is made if there is none, and return the folder."""
    if isinstance(definition, Path):
        shutil.copytree(definition, target, dirs_exist_ok=True)
        return target
    target.mkdir(parents=True, exist_ok=True)
    for name, text in definition.items():
        (target / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return target


def link(project: Path, names: Sequence[str]) -> None:
    """Give a project what it lacks of the repository, by links."""
    project.mkdir(parents=True, exist_ok=True)
    for name in names:
        if not (project / name).exists() and (REPOSITORY / name).exists():
            (project / name).symlink_to(REPOSITORY / name)


def rename(settings: Settings, old: str, new: str) -> None:
    """Give a copied definition the name of the folder that it lies in."""
    replace_text(settings.definitions / new / "pipeline.yaml", f"name: {old}", f"name: {new}")


def edit_yaml(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the `pipeline.yaml` of a definition; comments and the order of keys in it do not matter to the test."""
    path = folder / "pipeline.yaml"
    document = yaml.safe_load(path.read_text())
    change(document)
    path.write_text(yaml.safe_dump(document, sort_keys=False))


def replace_text(path: Path, old: str, new: str) -> None:
    """Replace the first `old` in a file, which must be there."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def settings_with_a_jar(folder: Path) -> Settings:
    """Return the settings of an empty project whose Spark has one jar."""
    made = Settings(project=folder / "project", home=folder / "home")
    made.spark_jars.mkdir(parents=True)
    (made.spark_jars / "connector.jar").write_bytes(b"one")
    return made
