"""The registry in the project: `schemas/SUBJECT/VERSION.avsc`, and an index that only grows.

`schemas/index.jsonl` has one JSON object a line, each with `format`. A line with `id` adds a version, a line with `rule`
sets the rule of a subject from this line on. The schema's file is written first: a version without a line does not exist.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rivertwice.core import ConfigError, RequestError, lock
from rivertwice.definition.avro import RULES, Compatibility
from rivertwice.definition.pinned_files import MAX_BYTES, SUBJECT
from rivertwice.definition.schema_registry import (
    URL_ENV,
    SchemaFormat,
    SchemaVersion,
    check_new,
    refusal,
    require_subject,
)
from rivertwice.storage import encode_json, replace_bytes

FORMAT = 1
INDEX = "index.jsonl"
SUFFIXES: dict[str, str] = {"avro": "avsc", "json": "json"}
_FIRST_RULE: dict[str, Compatibility] = {"avro": "backward", "json": "none"}


class FolderRegistry:
    """Subjects, versions and ids in a folder; kept in version control together with the definitions."""

    def __init__(self, folder: Path) -> None:
        """Use the folder; it need not exist yet."""
        self._folder = folder

    @property
    def place(self) -> str:
        """The folder."""
        return str(self._folder)

    def subjects(self) -> list[str]:
        """Return the subjects, sorted."""
        return sorted({line["subject"] for line in self._lines() if "id" in line})

    def versions(self, subject: str) -> list[SchemaVersion]:
        """Return the versions, oldest first."""
        require_subject(subject)
        return [self._load(line) for line in self._lines() if line["subject"] == subject and "id" in line]

    def rule(self, subject: str) -> Compatibility:
        """Return the subject's newest rule; `backward` for Avro if none was set, `none` for JSON Schema."""
        own_lines = [line for line in self._lines() if line["subject"] == subject]
        rules: list[Compatibility] = [line["rule"] for line in own_lines if "rule" in line]
        kinds = [line["kind"] for line in own_lines if "kind" in line]
        return rules[-1] if rules else _FIRST_RULE[kinds[0] if kinds else "avro"]

    def compiled(self, subject: str, version: int | None = None) -> bytes:
        """Refuse: the folder holds Avro and JSON schemas.

        Raises:
            RequestError: always.
        """
        message = (
            f"{self.place} has no Protobuf, so no message of {subject} version {version or 'newest'} can be pinned from it; set {URL_ENV} to a "
            "registry, or compile the .proto file with protoc and name the file"
        )
        raise RequestError(message)

    def by_id(self, schema_id: int) -> SchemaVersion:
        """Return the first version with this id."""
        for line in self._lines():
            if line.get("id") == schema_id:
                return self._load(line)
        message = f"no schema in {self.place} has the id {schema_id}; `rivertwice admin schema list` shows those that are there"
        raise RequestError(message)

    def register(self, subject: str, kind: SchemaFormat, text: str, rule: Compatibility | None) -> SchemaVersion:
        """Add a version unless the same schema is one already; the same schema has the same id in every subject.

        Raises:
            RequestError: the subject's rule refuses it.
        """
        require_subject(subject)
        data = text.encode()
        with self._locked():
            new_rule = rule or (self.rule(subject) if self.versions(subject) else _FIRST_RULE[kind])
            digest = hashlib.sha256(encode_json(_parsed(text, subject)) + kind.encode()).hexdigest()
            same_lines = [line for line in self._lines() if line.get("sha256") == digest]
            own_lines = [line for line in same_lines if line["subject"] == subject]
            findings = [] if own_lines else check_new(self, subject, kind, text, new_rule)
            if findings:
                raise RequestError(refusal(subject, new_rule, findings))
            if rule is not None and (not self.versions(subject) or rule != self.rule(subject)):
                self._append({"format": FORMAT, "subject": subject, "rule": rule})
            if own_lines:
                return self._load(own_lines[0])
            ids = [line["id"] for line in self._lines() if "id" in line]
            line = {
                "format": FORMAT,
                "subject": subject,
                "version": 1 + max((each.version for each in self.versions(subject)), default=0),
                "id": same_lines[0]["id"] if same_lines else 1 + max(ids, default=0),
                "kind": kind,
                "sha256": digest,
            }
            replace_bytes(self._file(line), data)
            self._append(line)
            return self._load(line)

    def _file(self, line: dict[str, Any]) -> Path:
        return self._folder / str(line["subject"]) / f"{line['version']}.{SUFFIXES[line['kind']]}"

    def _load(self, line: dict[str, Any]) -> SchemaVersion:
        path = self._file(line)
        if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_BYTES:
            message = (
                f"{path} is missing, a link, or larger than {MAX_BYTES} bytes, but {INDEX} names it; restore the file"
            )
            raise ConfigError(message)
        text = path.read_text()
        digest = hashlib.sha256(encode_json(_parsed(text, str(path))) + line["kind"].encode()).hexdigest()
        if digest != line["sha256"]:
            message = f"{path} is not the schema that {INDEX} names: a version never changes; restore it, and register a new one"
            raise ConfigError(message)
        return SchemaVersion(line["subject"], line["version"], line["id"], line["kind"], text)

    def _lines(self) -> Iterator[dict[str, Any]]:
        path = self._folder / INDEX
        if not path.exists():
            return
        for number, text in enumerate(path.read_text().splitlines(), 1):
            line = _checked(text)
            if line is None:
                message = f"{path} line {number} is not an entry of format {FORMAT}: {text[:80]!r}; restore the file"
                raise ConfigError(message)
            yield line

    def _append(self, line: dict[str, Any]) -> None:
        path = self._folder / INDEX
        before = path.read_bytes() if path.exists() else b""
        replace_bytes(path, before + encode_json(line) + b"\n")

    def _locked(self) -> AbstractContextManager[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        return lock(self._folder)  # the folder itself: no lock file to keep out of version control


def _parsed(text: str, where: str) -> Any:
    try:
        if len(text) > MAX_BYTES:
            message = f"{len(text)} characters"
            raise ValueError(message)
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        message = (
            f"the schema of {where} is not valid JSON of at most {MAX_BYTES} bytes: {str(error)[:200]}; correct it"
        )
        raise RequestError(message) from None


def _checked(text: str) -> dict[str, Any] | None:
    """Return an index line, or None if it is invalid or names a file outside the folder."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or line.get("format") != FORMAT or not SUBJECT.match(str(line.get("subject"))):
        return None
    if "rule" in line:
        return line if line["rule"] in RULES else None
    whole = all(type(line.get(name)) is int and line[name] > 0 for name in ("id", "version"))
    return line if whole and line.get("kind") in SUFFIXES else None
