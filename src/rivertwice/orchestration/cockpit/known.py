"""The definitions of the project, loaded again only if one of their files changed: an open page asks every few seconds."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

from rivertwice.config import Settings
from rivertwice.config.versions import base_of
from rivertwice.orchestration.definitions import FoundDefinitions, find_definitions

_Stamp = tuple[tuple[str, int, int, int], ...]
_memo: dict[tuple[Path, Path], tuple[_Stamp, dict[str, FoundDefinitions]]] = {}
_lock = Lock()


def known_pipelines(settings: Settings) -> dict[str, FoundDefinitions]:
    """Return every pipeline and every open version by name, as `find_definitions` does."""
    place = (settings.definitions, settings.frozen_definitions)
    stamp = _stamp(place)
    with _lock:
        kept = _memo.get(place)
        if kept is None or kept[0] != stamp:
            kept = (stamp, {each.name: each for each in find_definitions(settings)})
            _memo[place] = kept
    return kept[1]


def pipelines_without_versions(settings: Settings) -> list[str]:
    """Return the names of the pipelines, sorted; a version belongs to the row of its pipeline."""
    return sorted({base_of(name) for name in known_pipelines(settings)})


def _stamp(folders: tuple[Path, ...]) -> _Stamp:
    """Return name, inode, size and time of change of each file below the folders."""
    stamps = []
    for folder in folders:
        for file in sorted(folder.rglob("*")):
            try:
                stat = file.stat()
            except FileNotFoundError:
                continue  # a version that was dropped meanwhile
            stamps.append((str(file), stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(stamps)
