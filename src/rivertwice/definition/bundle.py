"""A definition as it ran, content-addressed and kept for ever under `bundles/ID/`."""

from __future__ import annotations

import difflib
import hashlib
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from rivertwice.core import DefinitionError, Place, RequestError, Settings, base_of, below
from rivertwice.definition.definition import parse_files, parse_folder, read_files
from rivertwice.definition.fingerprint import Fingerprint, fingerprint_of
from rivertwice.definition.model import Definition
from rivertwice.definition.parts import DefinitionFiles, format_duration
from rivertwice.definition.yaml_places import replace_value
from rivertwice.storage import open_store, replace_bytes


@dataclass(frozen=True)
class Bundle:
    """The files of one definition.

    Attributes:
        id: SHA-256 over the files' paths and bytes, in hex.
        files: path relative to the definition's folder, to bytes.
    """

    id: str
    files: Mapping[str, bytes]
    fingerprint: Fingerprint
    definition: Definition

    def diff_to(self, new: Bundle, around: int = 2) -> tuple[str, ...]:
        """Return the lines of a unified diff of the two definitions' files, file by file, with so many equal lines around each change."""
        lines: list[str] = []
        for path in sorted({*self.files, *new.files}):
            before, after = (
                files.get(path, b"").decode(errors="replace").splitlines() for files in (self.files, new.files)
            )
            names = (path if path in self.files else "/dev/null", path if path in new.files else "/dev/null")
            lines += difflib.unified_diff(before, after, *names, lineterm="", n=around)
        return tuple(lines)

    def renamed(self, name: str) -> Bundle:
        """Return the bundle of the same definition under another name: only `name` of its `pipeline.yaml` is another one.

        Raises:
            DefinitionError: the name shares its line with other text.
        """
        old = self.definition.name
        if old == name:
            return self
        line = re.compile(rf"^name[ \t]*:[ \t]*([\"']?){re.escape(old)}\1(?=[ \t]*(#.*)?\r?$)", re.MULTILINE)
        text, count = line.subn(f"name: {name}", self.files[DefinitionFiles.YAML_FILE].decode())
        if count != 1:
            message = (
                f"{DefinitionFiles.YAML_FILE} of {old} has its name on {count} lines of the form `name: {old}`, and one is needed to give the definition the "
                f"name {name}; write `name: {old}` on a separate line"
            )
            raise DefinitionError(message)
        files = {**self.files, DefinitionFiles.YAML_FILE: text.encode()}
        definition = parse_files(files, name, is_stored=True)
        return Bundle(bundle_id(files), files, fingerprint_of(definition), definition)

    def with_watermark(self, delay: timedelta, view: str | None = None) -> Bundle:
        """Return the bundle of the same definition with another watermark delay: only that value of `pipeline.yaml` is another one.

        Args:
            delay: of the watermark.
            view: the source; None: the only one that has a watermark.

        Raises:
            RequestError: the source has no watermark, or it must be named because several have one.
            DefinitionError: the value is not written in one place alone, or the delay is refused.
        """
        name = self.definition.name
        sources = {each: source for each, source in self.definition.streams.items() if source.has_watermark}
        if not sources:
            message = f"{name} has {self.definition.window.text} and no watermark, so no record of it is ever late; there is no delay to change"
            raise RequestError(message)
        if (view is None and len(sources) > 1) or (view is not None and view not in sources):
            has_none = "" if view is None else f", not {view}"
            message = f"the sources {', '.join(sources)} of {name} have a watermark{has_none}; say which one with --source VIEW"
            raise RequestError(message)
        view = view or next(iter(sources))
        if sources[view].watermark == delay:
            return self
        wanted = self.definition.model_dump()
        wanted["sources"][view]["watermark"] = format_duration(delay)
        text = self.files[DefinitionFiles.YAML_FILE].decode()
        changed = replace_value(text, ("sources", view, "watermark"), format_duration(delay))
        files = {**self.files, DefinitionFiles.YAML_FILE: changed.encode()}
        definition = parse_files(files, name, is_stored=True)
        if definition.model_dump() != wanted:
            message = (
                f"the watermark of {view} is not a value that {DefinitionFiles.YAML_FILE} of {name} writes for it alone (an anchor, an alias or a "
                f"merge gives it); write `watermark: {format_duration(delay)}` there by hand"
            )
            raise DefinitionError(message)
        return Bundle(bundle_id(files), files, fingerprint_of(definition), definition)

    def write_yaml(self, folder: Path) -> None:
        """Replace `pipeline.yaml` of a folder that people work in by the bundle's; who may read it stays as it is."""
        path = (folder / DefinitionFiles.YAML_FILE).resolve()
        mode = path.stat().st_mode
        replace_bytes(path, self.files[DefinitionFiles.YAML_FILE])
        path.chmod(mode)

    def save(self, bundles: Place) -> Place:
        """Store the bundle unless it exists already; return its place.

        In a folder it appears completely or not at all. In an object store its files are written one by one: until the last one exists,
        the id does not match, so the bundle cannot be loaded. Storing it again completes it.
        """
        if not isinstance(bundles, Path):
            store = open_store(bundles)
            for path, data in self.files.items():
                store.put(f"{self.id}/{path}", data)
            load_bundle(bundles, self.id)
            return below(bundles, self.id)
        folder = bundles / self.id
        if not self.write_folder(folder):
            load_bundle(bundles, self.id)
        return folder

    def write_folder(self, folder: Path) -> bool:
        """Write a bundle's files as a folder, which appears completely or not at all; return False if it exists already."""
        if folder.exists():
            return False
        folder.parent.mkdir(parents=True, exist_ok=True)
        temp = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{self.id[:8]}."))
        try:
            for path, data in self.files.items():
                replace_bytes(temp / path, data)
            temp.chmod(0o755)
            temp.rename(folder)
        except OSError:
            if not folder.exists():
                raise
            return False
        finally:
            shutil.rmtree(temp, ignore_errors=True)
        return True


def bundle_id(files: Mapping[str, bytes]) -> str:
    """Return the id of `files`: SHA-256 over each path and content, each after its length, sorted by path."""
    digest = hashlib.sha256(b"rivertwice bundle 1\n")
    for path in sorted(files):
        for part in (path.encode(), files[path]):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
    return digest.hexdigest()


def build_bundle(folder: Path) -> Bundle:
    """Return the bundle of the definition in `folder`, of one read of its files; its cases are not part of it.

    Whatever runs, is compared or is stored of a definition must come from one bundle: the files may change at any moment.

    Raises:
        DefinitionError: the definition cannot be accepted.
    """
    files = read_files(folder)
    definition = parse_folder(files, folder)
    return Bundle(bundle_id(files), files, fingerprint_of(definition), definition)


def build_project_bundle(settings: Settings, name: str) -> Bundle:
    """Return the bundle of the definition in the project now; for a version, under the version's name.

    Raises:
        DefinitionError: the definition cannot be accepted.
    """
    return build_bundle(settings.definitions / base_of(name)).renamed(name)


def load_bundle(bundles: Place, wanted: str) -> Bundle:
    """Return a stored bundle after checking that its files match its id.

    Raises:
        DefinitionError: the bundle is missing, was altered or is no longer accepted.
    """
    files = _stored_files(bundles, wanted)
    if not files:
        message = (
            f"bundle {wanted[:12]} is not in {bundles}; rows that name it cannot be recomputed without it: restore the "
            "folder from a backup, or run from the definition it was made of"
        )
        raise DefinitionError(message)
    actual_id = bundle_id(files)
    if actual_id != wanted:
        message = (
            f"bundle {wanted[:12]} in {bundles} has the content of {actual_id[:12]}; it was altered, so what ran is not "
            "known: restore the folder from a backup"
        )
        raise DefinitionError(message)
    definition = parse_files(files, str(below(bundles, wanted)), is_stored=True)
    return Bundle(wanted, files, fingerprint_of(definition), definition)


def _stored_files(bundles: Place, wanted: str) -> dict[str, bytes]:
    if isinstance(bundles, Path):
        folder = bundles / wanted
        return read_files(folder) if folder.is_dir() else {}
    store = open_store(bundles)
    contents = {key.partition("/")[2]: store.get(key) for key in store.list(f"{wanted}/")}
    return {path: data for path, data in contents.items() if data is not None}


def load_bundle_definition(bundles: Place, wanted: str) -> Definition:
    """Return the definition of a stored bundle, its hash checked."""
    return load_bundle(bundles, wanted).definition
