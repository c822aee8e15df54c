"""Which savepoints exist, what is known about each, and the copying and checking of their bytes."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rivertwice.core import PipelineHome, Place, SavepointError
from rivertwice.savepoint.manifest import FileEntry, Manifest, require_savepoint_id
from rivertwice.savepoint.records import (
    CHECKPOINT,
    DELETING,
    MANIFEST,
    PIN,
    PROOF,
    SavepointLease,
    read_leases,
    read_record,
)
from rivertwice.storage import BlobStore, is_temporary, open_store

# Copy a checkpoint while its query runs.
#
# The order makes it consistent: commits, offsets, sources, state, metadata. A batch whose commit was copied has its
# offsets and its state in place already, so what comes later can only be newer, and is trimmed or ignored.

ORDER = ("commits", "offsets", "sources", "state")
_ROUNDS = 5  # times a folder is listed again after a file in it vanished


@dataclass(frozen=True)
class HotCopy:
    """The result of a copy.

    Attributes:
        files: copied paths, relative, with slashes.
        vanished: number of files that were listed and were gone when they were opened (purged by the running query).
    """

    files: tuple[str, ...]
    vanished: int


def hot_copy(source: Path, target: Path) -> HotCopy:
    """Copy the checkpoint `source` into the empty folder `target` without stopping its query.

    Spark writes every file whole, under a temporary name that is skipped, so a file that is seen is complete. A file
    that vanishes was purged. Its folder is listed again, because its successor may be in it.

    Raises:
        SavepointError: there is no checkpoint, or its files vanish faster than they can be copied.
    """
    if not (source / "metadata").exists():
        message = f"{source} is not a checkpoint (it has no metadata); start the stream first"
        raise SavepointError(message)
    target.mkdir(parents=True, exist_ok=False)
    copied: list[str] = []
    vanished = 0
    for part in ORDER:
        if (source / part).is_dir():
            paths, gone = _copy_tree(source, target, part)
            copied += paths
            vanished += gone
    for name in sorted(entry.name for entry in source.iterdir() if entry.is_file()):  # metadata and its .crc
        if not is_temporary(name):
            shutil.copyfile(source / name, target / name)
            copied.append(name)
    return HotCopy(tuple(copied), vanished)


def _copy_tree(source: Path, target: Path, part: str) -> tuple[list[str], int]:
    copied: dict[str, None] = {}
    vanished = 0
    for _ in range(_ROUNDS):
        clean = True
        for folder, _, names in os.walk(source / part):
            base = Path(folder).relative_to(source)
            (target / base).mkdir(parents=True, exist_ok=True)
            for name in names:
                path = (base / name).as_posix()
                if path in copied or is_temporary(name):
                    continue
                try:
                    shutil.copyfile(source / path, target / path)
                except FileNotFoundError:
                    (target / path).unlink(missing_ok=True)
                    vanished += 1
                    clean = False
                else:
                    copied[path] = None
        if clean:
            return list(copied), vanished
    message = (
        f"files of {source / part} vanished in {_ROUNDS} listings in a row: the query purges faster than the copy reads; "
        "raise stream.min_batches_to_retain in pipeline.yaml and take the savepoint again"
    )
    raise SavepointError(message)


def hash_file(path: Path) -> FileEntry:
    """Return a file's SHA-256 and size."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        return FileEntry(sha256=digest.hexdigest(), size=file.tell())


def hash_tree(root: Path) -> dict[str, FileEntry]:
    """Return hash and size of every file below `root`, by relative path."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): hash_file(path) for path in files}


# Small JSON objects beside a manifest: proof, pin, leases, marks. All have format 1.


_log = logging.getLogger(__name__)
WORKERS = 8  # parallel requests to a store; 340 objects took 0.9 s on S3


class ProofState:
    """Whether a restore has proved a savepoint."""

    TAKEN = "taken"
    PROVED = "proved"


@dataclass(frozen=True)
class Savepoint:
    """A savepoint that exists: its manifest, and what happened to it since.

    Attributes:
        status: `taken`, or `proved` once a replay of recorded batches agreed in output and state.
    """

    manifest: Manifest
    store: BlobStore = field(repr=False, compare=False)
    proof: dict[str, Any] | None = None
    pinned: bool = False
    leases: tuple[SavepointLease, ...] = ()

    @property
    def id(self) -> str:
        """The savepoint's id."""
        return self.manifest.savepoint

    @property
    def status(self) -> str:
        """`taken` or `proved`."""
        return ProofState.TAKEN if self.proof is None else ProofState.PROVED

    def key(self, path: str) -> str:
        """Return the store's key of a file of the copied checkpoint."""
        return f"{self.id}/{CHECKPOINT}/{path}"

    def download(self, target: Path) -> None:
        """Copy a savepoint's checkpoint into the new folder `target`, checking every file against the manifest.

        The folder appears whole or not at all.

        Raises:
            SavepointError: a file is missing or differs. `target` is removed on failure.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as temp:
            root = Path(temp) / "checkpoint"

            def fetch(path: str) -> tuple[str, FileEntry | None]:
                try:
                    self.store.get_file(self.key(path), root / path)
                except FileNotFoundError:
                    return path, None
                return path, hash_file(root / path)

            with ThreadPoolExecutor(WORKERS) as pool:
                entries = dict(pool.map(fetch, self.manifest.files))
            problem = find_damage(self.manifest, entries, set(self.manifest.files))
            if problem is not None:
                raise SavepointError(_refused(self, problem))
            root.rename(target)

    def verify_files(self) -> int:
        """Read every byte of a savepoint and compare it with the manifest; return the bytes read.

        Raises:
            SavepointError: a file is missing, was added or differs. The savepoint must not be used.
        """
        prefix = f"{self.id}/{CHECKPOINT}/"
        stored = {key[len(prefix) :] for key in self.store.list(prefix)}
        with ThreadPoolExecutor(WORKERS) as pool:
            entries = dict(pool.map(lambda path: (path, _entry(self, path)), self.manifest.files))
        problem = find_damage(self.manifest, entries, stored)
        if problem is not None:
            raise SavepointError(_refused(self, problem))
        return self.manifest.size


def savepoint_store(home: PipelineHome) -> BlobStore:
    """Return the store of a pipeline's savepoints."""
    return open_store(savepoint_place(home))


def savepoint_place(home: PipelineHome) -> Place:
    """Return the address of a pipeline's savepoints, or their folder from the root; `open_store` refuses other addresses."""
    place = home.savepoint_url or home.savepoints
    url = urlsplit(str(place))
    return Path(url.path).absolute() if url.scheme in ("", "file") else place


@dataclass(frozen=True)
class Survey:
    """What a pipeline's savepoint store contains.

    Attributes:
        sound: the savepoints that exist (have a manifest and are not being deleted), oldest first.
        damaged: id to the reason why its manifest cannot be read.
    """

    sound: list[Savepoint]
    damaged: dict[str, str]


def survey_savepoints(home: PipelineHome) -> Survey:
    """Return the savepoints that exist, and those whose manifest cannot be read, which must not hide the others."""
    store = savepoint_store(home)
    names = _by_savepoint(store.list())
    existing = [name for name, files in names.items() if MANIFEST in files and DELETING not in files]
    with ThreadPoolExecutor(WORKERS) as pool:
        answers = dict(zip(existing, pool.map(lambda name: _read_listed(store, name), existing), strict=True))
    sound = [answer for answer in answers.values() if isinstance(answer, Savepoint)]
    return Survey(
        sorted(sound, key=lambda savepoint: (savepoint.manifest.created_at, savepoint.id)),
        {name: answer for name, answer in answers.items() if isinstance(answer, str)},
    )


def list_savepoints(home: PipelineHome) -> list[Savepoint]:
    """Return the savepoints that exist (have a manifest and are not being deleted), oldest first.

    One whose manifest cannot be read is left out, with a warning: it must not hide the others.
    """
    survey = survey_savepoints(home)
    for name, why in survey.damaged.items():
        _log.warning("savepoint %s is left out: %s", name, why)
    return survey.sound


def load_savepoint(home: PipelineHome, savepoint_id: str) -> Savepoint:
    """Return one savepoint.

    Raises:
        SavepointError: it does not exist.
    """
    savepoint = _read(savepoint_store(home), require_savepoint_id(savepoint_id))
    if savepoint is None:
        known = ", ".join(existing.id for existing in list_savepoints(home)) or "none"
        message = (
            f"savepoint {savepoint_id} does not exist (it has no manifest, or is being deleted); there are: {known}"
        )
        raise SavepointError(message)
    return savepoint


def _read_listed(store: BlobStore, name: str) -> Savepoint | str | None:
    """Return the savepoint, the reason why its manifest cannot be read, or None if it was deleted meanwhile."""
    try:
        return _read(store, name)
    except SavepointError as error:
        return str(error)


def _read(store: BlobStore, name: str) -> Savepoint | None:
    data = store.get(f"{name}/{MANIFEST}")
    if data is None or store.get(f"{name}/{DELETING}") is not None:
        return None
    manifest = Manifest.from_bytes(data)
    if manifest.savepoint != name:
        message = (
            f"the manifest in {name} is of savepoint {manifest.savepoint[:80]}: it is damaged; use another savepoint"
        )
        raise SavepointError(message)
    return Savepoint(
        manifest=manifest,
        store=store,
        proof=_read_proof(store, name),
        pinned=store.get(f"{name}/{PIN}") is not None,
        leases=tuple(read_leases(store, name)),
    )


def _read_proof(store: BlobStore, name: str) -> dict[str, Any] | None:
    try:
        return read_record(store, f"{name}/{PROOF}")
    except SavepointError as error:
        _log.warning("savepoint %s counts as not proved: %s", name, error)
        return None


def _by_savepoint(keys: Iterable[str]) -> dict[str, set[str]]:
    files: dict[str, set[str]] = {}
    for key in keys:
        name, _, rest = key.partition("/")
        if rest:
            files.setdefault(name, set()).add(rest)
    return files


def select_newest(savepoints: Sequence[Savepoint], *, proved: bool) -> Savepoint | None:
    """Return the newest savepoint, or the newest proved one; None if there is none."""
    fitting = [savepoint for savepoint in savepoints if savepoint.status == ProofState.PROVED or not proved]
    return max(fitting, key=lambda savepoint: (savepoint.manifest.created_at, savepoint.id), default=None)


def find_damage(manifest: Manifest, entries: dict[str, FileEntry | None], stored: set[str]) -> str | None:
    """Return what differs between a manifest and the stored files, or None.

    Args:
        entries: by path, hash and size of a file as it was read; None if it is missing.
        stored: paths of all files that the store has.
    """
    for path, wanted in manifest.files.items():
        entry = entries.get(path)
        if entry is None:
            return f"{path} is missing"
        if entry != wanted:
            return f"{path} has {entry.size} bytes of SHA-256 {entry.sha256}, not {wanted.size} of {wanted.sha256}"
    extra = sorted(stored - set(manifest.files))
    return f"{extra[0]} is not in the manifest" if extra else None


def _entry(savepoint: Savepoint, path: str) -> FileEntry | None:
    data = savepoint.store.get(savepoint.key(path))
    return None if data is None else FileEntry(hashlib.sha256(data).hexdigest(), len(data))


def _refused(savepoint: Savepoint, problem: str) -> str:
    return (
        f"savepoint {savepoint.id} is damaged: {problem}; a stream restored from it would continue with wrong "
        "state; use another savepoint (`rivertwice savepoint list`) and take a new one"
    )
