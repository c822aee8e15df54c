"""The definition of a pipeline as it runs: its files, what it promises, what its checks found, and how it differs from another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from rivertwice.core import RequestError, Settings, base_of
from rivertwice.definition import Bundle, Definition, build_project_bundle, contract_of, load_bundle
from rivertwice.engine import read_verdict
from rivertwice.timeline import Timeline, head_path, newest_batch
from rivertwice.versions import view_versions

PROJECT = "project"
"""Stands for the files of the project now, where a definition is compared."""


@dataclass(frozen=True)
class DefinitionText:
    """One file of a definition."""

    path: str
    text: str


@dataclass(frozen=True)
class OtherDefinition:
    """A definition that the running one can be compared with.

    Attributes:
        id: `project`, a bundle's id, or the name of a version. at: since when a timeline ran with it.
    """

    id: str
    title: str
    at: datetime | None = None


@dataclass(frozen=True)
class DefinitionPage:
    """What is shown of a definition.

    Attributes:
        dags: verbs of the DAGs that it has. bundle: its id. runs: whether batches were committed with it; else it is the project's, which has never run.
        since: when the head's timeline began.
        checked_at: when its checks ran; None: not with these checks and this Spark. findings: what they refuse; risks: what they tell.
        cases: the newest run of `rivertwice test` with these files; None: there was none.
        others: what it can be compared with. other: the one that was asked for. diff: the lines from that one to this one.
    """

    name: str
    description: str
    owner: str
    runbook: str
    dags: tuple[str, ...]
    bundle: str
    runs: bool
    since: datetime | None
    files: tuple[DefinitionText, ...]
    contract: Mapping[str, str]
    checked_at: datetime | None
    findings: tuple[str, ...]
    risks: tuple[str, ...]
    cases: object | None
    others: tuple[OtherDefinition, ...]
    other: str | None
    diff: tuple[str, ...]


def view_definition(settings: Settings, definition: Definition, other: str | None) -> DefinitionPage:
    """Return the definition that the head's newest batch ran with, or the project's if none has run.

    Args:
        definition: of the project, or of a version.
        other: the id of one of `others`, from which the diff begins.

    Raises:
        RequestError: there is no such definition to compare with.
        DefinitionError: a stored bundle is missing or was altered.
    """
    home, name = settings.pipeline(definition.name), definition.name
    path = head_path(home)
    newest = newest_batch(home, path) if path else None
    head = Timeline.load(home, path[-1].timeline) if path else None
    wanted = newest.bundle if newest is not None else None if head is None else head.bundle
    shown = build_project_bundle(settings, name) if wanted is None else load_bundle(home.bundles, wanted)
    verdict = read_verdict(home, shown.id)
    return DefinitionPage(
        name=name,
        description=shown.definition.description,
        owner=definition.airflow.owner,
        runbook=shown.definition.runbook,
        dags=tuple(definition.airflow.dags),
        bundle=shown.id,
        runs=newest is not None,
        since=None if head is None else head.created_at,
        files=tuple(DefinitionText(each, data.decode(errors="replace")) for each, data in shown.files.items()),
        contract=contract_of(shown.definition),
        checked_at=None if verdict is None else verdict.at,
        findings=() if verdict is None else verdict.findings,
        risks=() if verdict is None else verdict.risks,
        cases=None if verdict is None else verdict.cases,
        others=tuple(_others(settings, name, shown)),
        other=other,
        diff=() if other is None else _bundle_of(settings, name, other).diff_to(shown),
    )


def _others(settings: Settings, name: str, shown: Bundle) -> Iterator[OtherDefinition]:
    home = settings.pipeline(name)
    yield OtherDefinition(PROJECT, "the files of the project now")
    seen = {shown.id}
    lines = sorted((Timeline.load(home, each) for each in Timeline.names(home)), key=lambda line: line.created_at)
    for line in reversed(lines):
        if line.bundle not in seen:
            seen.add(line.bundle)
            yield OtherDefinition(line.bundle, f"timeline {line.timeline}, bundle {line.bundle[:12]}", line.created_at)
    for version in _versions(settings, name):
        if version != name:
            yield OtherDefinition(version, f"version {version}")


def _versions(settings: Settings, name: str) -> list[str]:
    return [view.name for view in view_versions(settings, base_of(name))]


def _bundle_of(settings: Settings, name: str, other: str) -> Bundle:
    home = settings.pipeline(name)
    if other == PROJECT:
        return build_project_bundle(settings, name)
    if other in _versions(settings, name):
        own = settings.pipeline(other)
        path = head_path(own)
        if path:
            return load_bundle(own.bundles, Timeline.load(own, path[-1].timeline).bundle).renamed(name)
    if any(Timeline.load(home, each).bundle == other for each in Timeline.names(home)):
        return load_bundle(home.bundles, other)
    message = f"{other[:80]!r} is not a definition of {name} to compare with; choose one of the list"
    raise RequestError(message)
