"""Where the versions of a pipeline stand, and what to do next: for `rivertwice status` and the page in Airflow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rivertwice.backfill import find_unfinished_load
from rivertwice.core import DefinitionError, Settings, iso_of_ms, to_iso
from rivertwice.definition import Way, WayKind
from rivertwice.timeline import Acceptance, Version, head, read_versions, serving_by_stamp
from rivertwice.versions.accept import find_unready
from rivertwice.versions.begin import way_of
from rivertwice.versions.changes import changes_path, read_changes
from rivertwice.versions.comparisons import StoredComparison, find_outdated, newest_comparison
from rivertwice.versions.model import (
    ACCEPT,
    BACK,
    COMPARE,
    DECLARE,
    LOAD,
    NONE,
    RECONCILE,
    SERVE,
    Proof,
    Step,
)
from rivertwice.versions.proof import read_proof
from rivertwice.versions.serve import read_switches, served_before


@dataclass(frozen=True)
class VersionView:
    """Where one version stands.

    Attributes:
        name: its name; serves: whether consumers read its rows; since: since when, ISO 8601; None: from the beginning, or it does not.
        began: when it began, ISO 8601; None: it is the first one.
        proof: up to where a reconcile has proved it; comparison: its newest one.
        accepted: by whom, when and why its rows, which could not be compared, were accepted; None: no acceptance was needed.
        next: what to do next.
    """

    name: str
    serves: bool
    since: str | None
    began: str | None
    proof: Proof
    comparison: StoredComparison | None
    next: Step
    accepted: Acceptance | None = None

    @property
    def proved_until(self) -> str | None:
        """Windows that end at or before it are proved, ISO 8601; None: none is."""
        return None if self.proof.lacks or self.proof.run is None else iso_of_ms(self.proof.until_ms)


def view_versions(settings: Settings, pipeline: str) -> list[VersionView]:
    """Return where the open versions of a pipeline stand, the first one too; nothing if there is no other.

    Raises:
        RequestError: a record has a format that is not known.
        TableDamageError: a table cannot be read.
    """
    home = settings.pipeline(pipeline)
    versions = [version for version in read_versions(home) if version.is_open]
    if not versions:
        return []
    serving, switches = serving_by_stamp(home), read_switches(home)
    since = switches[-1]["at"] if switches and switches[-1]["to"] == serving else None
    proofs = {name: read_proof(settings.pipeline(name)) for name in [pipeline, *(each.name for each in versions)]}
    first = VersionView(
        pipeline,
        serving == pipeline,
        since if serving == pipeline else None,
        None,
        proofs[pipeline],
        None,
        Step(NONE, "", pipeline) if serving == pipeline else _back(pipeline),
    )
    return [first, *(_view(settings, each, serving, since, proofs) for each in versions)]


def _view(
    settings: Settings, version: Version, serving: str, since: str | None, proofs: dict[str, Proof]
) -> VersionView:
    name, home = version.name, settings.pipeline(version.name)
    comparison = newest_comparison(home)
    if name == serving:
        step = Step(NONE, "", name)
    elif served_before(home):
        step = _back(name)
    else:
        unfinished = find_unfinished_load(home)
        path = str(changes_path(settings, name).relative_to(settings.project))
        outdated: Sequence[str] = ()
        if comparison is not None:
            pair = proofs[comparison.beside], proofs[name]
            outdated = find_outdated(comparison, pair, _declared(settings, name), serving)
        load = None if unfinished is None else unfinished.text
        way = way_of(settings, version, serving)
        different = way.reasons or (() if comparison is None or outdated else comparison.different)
        if different:
            way = Way(WayKind.ACCEPTED, tuple(different))
            unready = (
                find_unready(settings, name, serving)
                if head(home) is not None
                else [Step(RECONCILE, proofs[name].lacks, name)]
            )
            step = unready[0] if unready else Step(ACCEPT, way.explain_accepted(name), name)
        else:
            step = next_step(name, load, (proofs[serving], proofs[name]), comparison, outdated, path)
    return VersionView(
        name, name == serving, since if name == serving else None, to_iso(version.noted_at), proofs[name], comparison, step,
        version.accepted,
    )  # fmt: skip


def next_step(
    name: str,
    load: str | None,
    proofs: tuple[Proof, Proof],
    comparison: StoredComparison | None,
    outdated: Sequence[str],
    path: str,
) -> Step:
    """Return what a version that never served waits for. Pure.

    Args:
        load: why its first load is not done; None: it is, or there is none.
        proofs: of the version that serves and of this one.
        comparison: the newest; None: there is none.
        outdated: what changed since then.
        path: of its change file.
    """
    if load is not None:
        return Step(LOAD, load, name)
    for proof in proofs:
        if proof.lacks:
            return Step(RECONCILE, proof.lacks, proof.version)
    compare = f"`rivertwice version compare {name}`"
    if comparison is None:
        return Step(COMPARE, f"both sides are proved; {compare}", name)
    if outdated:
        return Step(COMPARE, f"{'; '.join(outdated)}; {compare}", name)
    if not comparison.passed:
        text = f"{'; '.join(comparison.reasons)}; declare in {path} what is meant, or `rivertwice version drop {name}`"
        return Step(DECLARE, text, name)
    return Step(SERVE, f"every difference has a cause; `rivertwice version serve {name}`", name)


def _back(name: str) -> Step:
    return Step(BACK, f"served before; `rivertwice version serve {name}` goes back to it", name)


def _declared(settings: Settings, name: str) -> str:
    """Return the SHA-256 of the change file; one that cannot be accepted differs from any other."""
    try:
        return read_changes(settings, name).sha256
    except DefinitionError as error:
        return str(error)
