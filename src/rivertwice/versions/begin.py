"""Begin a version of a pipeline: its definition is frozen, and gets its own home beside the one that serves.

1. Store the project's definition under the version's name, and record the version. 2. Freeze the definition that serves: from now on
its stream starts with what it ran, whatever the project says. 3. Freeze the version's own. Then the version is a pipeline like
others, `NAME@v2`: a first load by batch (`backfill.load`) computes its past where its windows allow that, and its stream the rest.
The same call continues where a crash left it: each step is done once.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from rivertwice.backfill import hold_load
from rivertwice.core import (
    DefinitionError,
    LostRaceError,
    PipelineHome,
    RequestError,
    Settings,
    base_of,
    lock_or_refuse,
    version_name,
)
from rivertwice.definition import (
    Bundle,
    ChangedComponent,
    Way,
    WayKind,
    build_bundle,
    decide_way,
    load_bundle,
    load_bundle_definition,
)
from rivertwice.deliver import noted_sinks
from rivertwice.quality import suite_mistakes
from rivertwice.storage import RecordStore
from rivertwice.stream import lease_owner, lock_file
from rivertwice.timeline import (
    Timeline,
    Version,
    follow_stamp,
    head,
    hold_versions,
    next_number,
    read_versions,
    record_dropped,
    record_version,
)


@dataclass(frozen=True)
class VersionRequest:
    """A version that is asked for; nothing is stored yet.

    Attributes:
        pipeline: its name; beside: name of the version that serves.
        old, new: the definition that serves, and the one in the project under the version's name.
        drawn_from: id of the project's files.
        changes: components that differ.
        begun: the version of these very files that began already, or None.
        way: how it comes to serve: `compared` or `accepted`.
    """

    pipeline: str
    beside: str
    old: Bundle
    new: Bundle
    drawn_from: str
    changes: tuple[ChangedComponent, ...]
    begun: Version | None
    way: Way


def find_wanted(settings: Settings, pipeline: str, *, recompute: bool = False) -> VersionRequest:
    """Return what a new version of a pipeline would be; nothing is written.

    Args:
        pipeline: its name, without a version.
        recompute: the definition need not differ: its past is computed again.

    Raises:
        RequestError: the pipeline never ran, nothing that a result depends on changed, another version is under way, or this one
            could never serve.
        DefinitionError: the definition in the project cannot be accepted, or the suites that would judge its rows.
    """
    home = settings.pipeline(pipeline)
    if head(home) is None:
        message = f"{pipeline} never ran, so there is nothing that a new version could run beside; `rivertwice start {pipeline}`"
        raise RequestError(message)
    drawn = build_bundle(settings.definitions / pipeline)
    versions, serving = read_versions(home), follow_stamp(home)
    under_way = select_under_way(versions, serving, drawn.id)
    old = _running_bundle(settings.pipeline(serving))
    number = next_number(versions) if under_way is None else under_way.number
    new = drawn.renamed(version_name(pipeline, number))
    changes = tuple(old.fingerprint.changes_to(new.fingerprint))
    if old.fingerprint.semantics == new.fingerprint.semantics and not recompute:
        message = (
            f"the definition of {pipeline} in the project gives the same results as the one that its stream runs, so a new version would "
            f"recompute all for nothing; what touches no result (settings, checks, delivery) counts from the next "
            f"start; if a state or rows were damaged, `rivertwice upgrade {pipeline} --new-version --recompute` computes all again"
        )
        raise RequestError(message)
    way = decide_way(old.definition, new.definition)
    if way.kind == WayKind.NEVER:
        message = f"{way.explain_never(pipeline)}; nothing was done"
        raise RequestError(message)
    mistakes = [] if under_way else suite_mistakes(settings, new.definition, settings.pipeline(serving))
    if mistakes:  # its first reconcile would say so, after its past was computed
        message = "\n".join(mistakes) + (
            f"\nA version has its own suites in expectations/{new.definition.name}/, or else those of {pipeline}: copy them there and correct them, "
            "then run the command again; those of the version that serves stay"
        )
        raise DefinitionError(message)
    return VersionRequest(pipeline, serving, old, new, drawn.id, changes, under_way, way)


def way_of(settings: Settings, version: Version, serving: str) -> Way:
    """Return how a version comes to serve in place of another one, by what both run; it need not have begun to run.

    Args:
        serving: name of the one that it would replace.
    """
    new = load_bundle_definition(settings.pipeline(version.name).bundles, version.bundle)
    return decide_way(_running_bundle(settings.pipeline(serving)).definition, new)


def select_under_way(versions: Sequence[Version], serving: str, drawn_from: str) -> Version | None:
    """Return the version that was begun and does not serve yet, to be continued; None: there is none. Pure.

    Args:
        drawn_from: id of the project's files.

    Raises:
        RequestError: it is of another definition.
    """
    under_way = next((version for version in versions if version.is_open and version.name != serving), None)
    if under_way is not None and under_way.drawn_from != drawn_from:
        message = (
            f"{under_way.name} is under way, with another definition than the project has now; drop it first with "
            f"`rivertwice version drop {under_way.name} --yes`, then begin again"
        )
        raise RequestError(message)
    return under_way


def _running_bundle(home: PipelineHome) -> Bundle:
    name = head(home)
    assert name is not None, "what serves has run"
    return load_bundle(home.bundles, Timeline.load(home, name).bundle)


def begin_version(settings: Settings, pipeline: str, *, by: str, now: datetime, recompute: bool = False) -> Version:
    """Begin a new version of a pipeline, or continue to begin it; see the module's steps.

    Args:
        pipeline: its name, without a version.
        recompute: the definition need not differ.

    Raises:
        RequestError, DefinitionError: see `find_wanted`; nothing was stored.
        LostRaceError: another process begins, drops or switches a version at the same moment.
    """
    home = settings.pipeline(pipeline)
    with hold_versions(home):
        wanted = find_wanted(settings, pipeline, recompute=recompute)
        version = wanted.begun or Version(
            name=wanted.new.definition.name,
            beside=wanted.beside,
            bundle=wanted.new.id,
            drawn_from=wanted.drawn_from,
            fingerprint=wanted.new.fingerprint.hashes(),
            changed=tuple(change.component for change in wanted.changes),
            by=by,
            noted_at=now,
        )
        wanted.new.save(settings.pipeline(version.name).bundles)  # step 1
        if wanted.begun is None and not record_version(home, version):
            message = (
                f"another process began {version.name} at the same moment; run it again: it continues that one, "
                "or says that it is of another definition"
            )
            raise LostRaceError(message)
        wanted.old.write_folder(settings.frozen_definitions / wanted.beside)  # step 2
        wanted.new.write_folder(settings.frozen_definitions / version.name)  # step 3
    return version


def drop_version(settings: Settings, name: str, *, by: str, now: datetime) -> Version:
    """Give a version up that does not serve: record it, then remove what it stored. The same call continues after a crash.

    Raises:
        RequestError: there is no such version, its stream runs, it serves, or a sink still has its rows.
        LostRaceError: a first load of it is under way, its stream starts, or another process begins, drops or switches a version.
    """
    home, own = settings.pipeline(base_of(name)), settings.pipeline(name)
    with hold_versions(home):
        version = require_version(settings, name)
        owner = lease_owner(own)
        require_droppable(version, follow_stamp(own), None if owner is None else owner.pid)
        _require_no_sink(home, name)
        with hold_load(own), lock_or_refuse(lock_file(own), partial(_starting, name)):
            record_dropped(home, version, by, now)
            own.intent.unlink(missing_ok=True)
            for place in (own.root, own.place):
                RecordStore(place).remove_all()
        shutil.rmtree(settings.frozen_definitions / name, ignore_errors=True)
        if not needs_frozen(read_versions(home)):
            shutil.rmtree(settings.frozen_definitions / base_of(name), ignore_errors=True)
    return version


def _starting(name: str, process: str) -> LostRaceError:
    message = f"{process} starts the stream of {name}; `rivertwice stop {name} --wait`, then drop it"
    return LostRaceError(message)


def require_droppable(version: Version, serving: str, pid: int | None) -> None:
    """Check that a version can be dropped. Pure.

    Args:
        pid: of the driver that owns its stream; None: none does.

    Raises:
        RequestError: it serves, or its stream runs.
    """
    name = version.name
    if serving == name:
        message = f"{name} serves; let another version serve first: `rivertwice version serve {version.beside}`"
        raise RequestError(message)
    if pid is not None:
        message = f"the stream of {name} runs (process {pid}); `rivertwice stop {name} --wait`, then drop it"
        raise RequestError(message)


def _require_no_sink(home: PipelineHome, name: str) -> None:
    stale = [sink for sink, note in noted_sinks(home).items() if note.position and note.position.version == name]
    if stale:
        message = (
            f"sink {stale[0]} of {base_of(name)} still has the rows of {name}; let it have those that serve now: "
            f"`rivertwice deliver run {base_of(name)} --until-end`, then drop it"
        )
        raise RequestError(message)


def needs_frozen(versions: Sequence[Version]) -> bool:
    """Say whether the pipeline's own definition stays frozen: as long as a version runs beside it. Pure."""
    return any(version.is_open for version in versions)


def require_version(settings: Settings, name: str) -> Version:
    """Return the record of a version.

    Raises:
        RequestError: there is none.
    """
    pipeline = base_of(name)
    versions = read_versions(settings.pipeline(pipeline))
    for version in versions:
        if version.name == name:
            return version
    known = ", ".join(version.name for version in versions) or "none"
    message = f"{name} is not a version of {pipeline}; there are: {known}; `rivertwice upgrade {pipeline} --new-version` begins one"
    raise RequestError(message)
