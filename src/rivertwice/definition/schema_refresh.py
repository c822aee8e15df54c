"""The versions in a registry that a pipeline has not pinned: new ids, and ids whose records could not be decoded. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rivertwice.core import RequestError
from rivertwice.definition.avro import AvroSchema, narrow, parse_avro, read_findings
from rivertwice.definition.pinned_files import FOLDER, file_name, split_name
from rivertwice.definition.schema_pins import field_findings
from rivertwice.definition.schema_registry import SchemaVersion


@dataclass(frozen=True)
class Refused:
    """A version that is not pinned, with the reason: its records become dead letters."""

    version: int
    id: int
    because: str


@dataclass(frozen=True)
class RefreshPlan:
    """The changes that a refresh would write.

    Attributes:
        write: pinned file to text; empty: no file changes.
        known: ids that are pinned already, and stay.
        refused: versions whose records could not be decoded.
        gone: pinned ids that the registry no longer has; they stay, because the log may hold their records.
    """

    subject: str
    write: Mapping[str, str]
    known: tuple[int, ...]
    new: tuple[int, ...]
    refused: tuple[Refused, ...]
    gone: tuple[int, ...]


def plan_refresh(
    subject: str,
    view: str,
    fields: Mapping[str, str],
    pinned: Mapping[str, bytes],
    versions: Sequence[SchemaVersion],
    *,
    framed: bool,
    reader_version: int | None = None,
) -> RefreshPlan:
    """Return which of the subject's versions to pin.

    The reader does not change: a newly registered version must not change what a pipeline sees. Without a reader, or with
    `reader_version`, it is taken from the versions: the newest that has all the definition's fields.

    Args:
        fields: the definition's fields and their SQL types.
        framed: records name their schema's id; else only the reader is pinned.
        reader_version: version that becomes the reader.

    Raises:
        RequestError: the subject has no version that can be the reader, or no Avro version.
    """
    if not versions or any(each.kind != "avro" for each in versions):
        problem = f"{versions[0].kind} schemas" if versions else "no version"
        message = (
            f"{subject} has {problem}, so no Avro can be decoded by it; check `subject`, or register a schema first"
        )
        raise RequestError(message)
    parsed = {each.version: parse_avro(each.text, f"{subject} version {each.version}") for each in versions}
    write: dict[str, str] = {}
    reader_file = file_name(view, None)
    if reader_version is None and reader_file in pinned:
        reader = parse_avro(pinned[reader_file], reader_file)
    else:
        number = _reader_version(subject, parsed, fields, reader_version)
        reader = parsed[number]
        write[reader_file] = _pretty(next(each.text for each in versions if each.version == number))
    narrowed = narrow(reader, fields)
    old = {known_id: path for path in pinned if (known_id := split_name(path)[1]) is not None}
    refused, new = [], []
    for each in versions if framed else ():
        because = _against(narrowed, parsed[each.version], pinned.get(old.get(each.id, "")))
        if because:
            refused.append(Refused(each.version, each.id, because))
        elif each.id not in old:
            new.append(each.id)
            write[file_name(view, each.id)] = _pretty(each.text)
    ids = {each.id for each in versions}
    known = tuple(sorted(old))
    changed = {path: text for path, text in write.items() if pinned.get(path) != text.encode()}
    return RefreshPlan(
        subject, changed, known, tuple(new), tuple(refused), tuple(number for number in known if number not in ids)
    )


def _reader_version(
    subject: str, parsed: Mapping[int, AvroSchema], fields: Mapping[str, str], version: int | None
) -> int:
    if version is not None and version not in parsed:
        message = f"{subject} has no version {version}; it has {sorted(parsed)}: choose one of them as the reader"
        raise RequestError(message)
    order = sorted(parsed, reverse=True) if version is None else [version]
    findings = {number: field_findings(parsed[number], fields) for number in order}
    fitting = [number for number in order if not findings[number]]
    if not fitting:
        message = (
            f"version {order[0]} of {subject} cannot be the reader: it {findings[order[0]][0]}; `rivertwice admin schema show "
            f"{subject}` shows its fields, and {FOLDER}/ may hold a reader written by hand (with aliases and defaults)"
        )
        raise RequestError(message)
    return fitting[0]


def _against(reader: AvroSchema, writer: AvroSchema, pinned: bytes | None) -> str | None:
    if pinned is not None and parse_avro(pinned, "the pinned schema").text != writer.text:
        return "its id is pinned with another schema: two registries, or one that was set up again; records cannot be told apart"
    findings = read_findings(reader, writer)
    return findings[0] if findings else None


def _pretty(text: str) -> str:
    return json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n"
