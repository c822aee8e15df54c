"""Read definitions from folders or bundles; every refusal names file, field, value and remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from rivertwice.core import FROZEN, DefinitionError, UnreadableYamlError, compose_yaml, read_yaml
from rivertwice.definition.delivery_section import POSITIONS, KafkaDelivery, PostgresDelivery, without_webhooks
from rivertwice.definition.model import Definition, DefinitionFile
from rivertwice.definition.parts import DefinitionFiles, LatePolicy, OutputColumn
from rivertwice.definition.patterns import PatternError, matcher_of
from rivertwice.definition.pinned_files import FOLDER, is_proto_file, proto_file_name, read_pinned, split_name
from rivertwice.definition.refusals import check_sql
from rivertwice.definition.source import Pattern, Source, heartbeat_sql
from rivertwice.definition.stream_pins import StreamPins
from rivertwice.definition.windows import Window
from rivertwice.definition.yaml_places import describe, describe_yaml_error, find_node, place

__all__ = [
    "Definition",
    "DefinitionFile",
    "LatePolicy",
    "OutputColumn",
    "Source",
    "StreamPins",
    "Window",
    "load_all",
    "load_definition",
    "load_draft",
    "parse_files",
    "parse_folder",
    "read_files",
]

MAX_FILE_BYTES = 262_144
REMOVED: Mapping[tuple[str, ...], str] = {
    (
        "stream",
        "catch_up",
    ): "only a person leaves a backlog to batch, with `rivertwice backfill catch-up NAME --by-batch`",
    ("airflow", "schedules", "switch"): "a version serves when a person starts `operate__NAME`",
}
"""Fields that earlier releases knew, and what holds instead. A project may not have them. What is stored (a bundle, the frozen definition
of a version) may, and is read without them."""


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the bytes of the files of the definition in `folder` (without the cases)."""
    files: dict[str, bytes] = {}
    for name in (
        DefinitionFiles.YAML_FILE,
        DefinitionFiles.TRANSFORM_FILE,
        DefinitionFiles.ROWS_FILE,
        DefinitionFiles.FOLD_FILE,
        DefinitionFiles.FAST_FILE,
    ):
        path = folder / name
        if not path.is_file():
            needed = name == DefinitionFiles.YAML_FILE or (
                name == DefinitionFiles.TRANSFORM_FILE and not (folder / DefinitionFiles.FOLD_FILE).is_file()
            )
            if needed:
                message = f"{path} does not exist; a pipeline needs {DefinitionFiles.YAML_FILE} and {DefinitionFiles.TRANSFORM_FILE} (a fold: {DefinitionFiles.FOLD_FILE}): create it"
                raise DefinitionError(message)
            continue
        if path.stat().st_size > MAX_FILE_BYTES:
            message = f"{path} has {path.stat().st_size} bytes, more than the {MAX_FILE_BYTES} allowed; shorten it"
            raise DefinitionError(message)
        files[name] = path.read_bytes()
    return {**files, **read_pinned(folder)}


def parse_files(files: Mapping[str, bytes], where: str, *, is_stored: bool = False) -> Definition:
    """Return the checked definition in `files`.

    Args:
        files: relative path to bytes.
        is_stored: an earlier release may have accepted them, so they may have fields that were removed since.

    Raises:
        DefinitionError: a part of them cannot be accepted.
    """
    names = (
        DefinitionFiles.YAML_FILE,
        DefinitionFiles.TRANSFORM_FILE,
        DefinitionFiles.ROWS_FILE,
        DefinitionFiles.FOLD_FILE,
        DefinitionFiles.FAST_FILE,
    )
    texts = {name: _text(files[name], f"{where}/{name}") for name in names if name in files}
    missing = [name for name in (DefinitionFiles.YAML_FILE, DefinitionFiles.TRANSFORM_FILE) if name not in texts]
    if missing and (missing[0] == DefinitionFiles.YAML_FILE or DefinitionFiles.FOLD_FILE not in texts):
        alternative = (
            f" (or, of a fold, {DefinitionFiles.FOLD_FILE})" if missing[0] == DefinitionFiles.TRANSFORM_FILE else ""
        )
        message = f"{where} has no {missing[0]}{alternative}; a definition is not complete without it"
        raise DefinitionError(message)
    value = _yaml(texts[DefinitionFiles.YAML_FILE], f"{where}/{DefinitionFiles.YAML_FILE}")
    value = _without_removed(
        value, texts[DefinitionFiles.YAML_FILE], f"{where}/{DefinitionFiles.YAML_FILE}", is_stored=is_stored
    )
    for name in ("transform_sql", "rows_sql", "fold_py", "fast_sql"):
        if name in value:
            message = f"{where}/{DefinitionFiles.YAML_FILE}: {_place_in(texts[DefinitionFiles.YAML_FILE], name)}{name} is not a field; put the text into {name.replace('_', '.')}"
            raise DefinitionError(message)
    code = {
        "transform_sql": texts.get(DefinitionFiles.TRANSFORM_FILE, ""),
        "rows_sql": texts.get(DefinitionFiles.ROWS_FILE),
        "fold_py": texts.get(DefinitionFiles.FOLD_FILE),
        "fast_sql": texts.get(DefinitionFiles.FAST_FILE),
    }
    try:
        definition = Definition.model_validate({**value, **code})
    except ValidationError as error:
        raise DefinitionError(
            describe(error, f"{where}/{DefinitionFiles.YAML_FILE}", texts[DefinitionFiles.YAML_FILE], DefinitionFile)
        ) from None
    _check_files(definition, texts, where)
    view, source = definition.source
    if source.heartbeat:
        definition = definition.model_copy(update={"rows_sql": heartbeat_sql(view, source, definition.rows_sql)})
    definition = _pinned(definition, files, where)
    fields = {name.lower() for source in definition.sources.values() for name in source.schema_}
    if definition.fast_sql is not None:
        check_sql(definition.fast_sql, f"{where}/{DefinitionFiles.FAST_FILE}", compared=True, fields=fields)
    definition.window.kind.check_code(definition, where, fields)
    return definition


def _check_files(definition: Definition, texts: Mapping[str, str], where: str) -> None:
    """Refuse files that do not fit the kind of window, and an incomplete fast path."""
    if (definition.fast is None) != (DefinitionFiles.FAST_FILE not in texts):
        given, absent = (
            (DefinitionFiles.FAST_FILE, "fast") if definition.fast is None else ("fast", DefinitionFiles.FAST_FILE)
        )
        message = f"{where}: there is {given} but no {absent}; a fast path needs both: `fast: {{topic: ..., key: ...}}` and {DefinitionFiles.FAST_FILE}"
        raise DefinitionError(message)
    misplaced = definition.window.kind.find_file_conflict(definition, texts)
    if misplaced:
        message = f"{where}/{misplaced}"
        raise DefinitionError(message)


def load_draft(folder: Path) -> DefinitionFile:
    """Return the `pipeline.yaml` in `folder`, before its schemas are pinned and its SQL is checked.

    Raises:
        DefinitionError: the file is missing or cannot be accepted.
    """
    path = folder / DefinitionFiles.YAML_FILE
    if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
        message = f"{path} does not exist or is larger than {MAX_FILE_BYTES} bytes; a pipeline needs it: correct it"
        raise DefinitionError(message)
    text = _text(path.read_bytes(), str(path))
    try:
        return DefinitionFile.model_validate(_without_removed(_yaml(text, str(path)), text, str(path)))
    except ValidationError as error:
        raise DefinitionError(describe(error, str(path), text, DefinitionFile)) from None


def load_definition(folder: Path) -> Definition:
    """Return the definition in `folder`, whose name must be the definition's.

    Raises:
        DefinitionError: a file is missing or cannot be accepted.
    """
    return _parse_once(folder, tuple(read_files(folder).items()))


@lru_cache(maxsize=256)
def _parse_once(folder: Path, files: tuple[tuple[str, bytes], ...]) -> Definition:
    """Parse files with these very bytes once: an agent looks at each definition every second, and nobody changes one in memory."""
    return parse_folder(dict(files), folder)


def parse_folder(files: Mapping[str, bytes], folder: Path) -> Definition:
    """Return the checked definition in the files that were read from `folder`, whose name must be the definition's.

    Raises:
        DefinitionError: a part of them cannot be accepted.
    """
    definition = parse_files(files, str(folder), is_stored=folder.parent.name == FROZEN)
    text = files[DefinitionFiles.YAML_FILE].decode()
    _refuse_bidi(files, folder)
    for field, why in _reserved_names(definition):
        message = f"{folder / DefinitionFiles.YAML_FILE}: {_place_in(text, *field)}{'.'.join(field)} {why}"
        raise DefinitionError(message)
    if definition.name != folder.name:
        message = (
            f"{folder / DefinitionFiles.YAML_FILE}: {_place_in(text, 'name')}name is {definition.name!r} but the folder is {folder.name!r}; commands find "
            "a pipeline by its folder, so give both the same name"
        )
        raise DefinitionError(message)
    _refuse_patterns(definition, str(folder / DefinitionFiles.YAML_FILE), text)
    return definition


def _without_removed(value: dict[str, Any], text: str, file: str, *, is_stored: bool = False) -> dict[str, Any]:
    """Return a definition's fields without those that were removed, or refuse them in a definition that is not stored."""
    for path, instead in REMOVED.items():
        left = _drop(value, path)
        if left != value and not is_stored:
            message = f"{file}: {_place_in(text, *path)}{'.'.join(path)} was removed: {instead}; remove the field"
            raise DefinitionError(message)
        value = left
    return dict(without_webhooks(value)) if is_stored else value


def _drop(value: Any, path: Sequence[str]) -> Any:
    """Return a value without the field at a path; the value itself if it has no such field."""
    if not isinstance(value, dict) or path[0] not in value:
        return value
    if len(path) == 1:
        return {name: each for name, each in value.items() if name != path[0]}
    return {**value, path[0]: _drop(value[path[0]], path[1:])}


def _refuse_bidi(files: Mapping[str, bytes], folder: Path) -> None:
    """Refuse signs that change the direction of text: a reader would see another program than the one that runs.

    As patterns that can fail, they are not looked for in bundles.
    """
    for name, data in files.items():
        for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
            found = _BIDI.search(line)
            if found is not None:
                message = (
                    f"{folder / name}: line {number}, column {found.start() + 1}: U+{ord(found[0]):04X} changes the direction of the text "
                    "around it, so that it reads as another than it is; remove it"
                )
                raise DefinitionError(message)


def _reserved_names(definition: Definition) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the fields that name a topic or table which Kafka, PostgreSQL or rivertwice keeps for itself, and why. Pure."""
    topics: dict[tuple[str, ...], str] = {
        ("sources", view, "topic"): source.topic for view, source in definition.sources.items()
    }
    topics |= {("fast", "topic"): definition.fast.topic} if definition.fast is not None else {}
    for name, sink in definition.deliver.items():
        if isinstance(sink, KafkaDelivery):
            topics["deliver", name, "topic"] = sink.topic
        if isinstance(sink, PostgresDelivery):
            schema, _, table = sink.table.rpartition(".")
            if table == POSITIONS or schema.startswith("pg_") or schema == "information_schema":
                yield (
                    ("deliver", name, "table"),
                    f"is {sink.table!r}, which {_owner(table)} keeps for itself; name another table",
                )
    for field, topic in topics.items():
        if topic.startswith(("__", "rivertwice-")):
            owner = "Kafka" if topic.startswith("__") else "rivertwice"
            yield field, f"is {topic!r}, and topics whose names begin so are {owner}'s own; name another topic"


def _owner(table: str) -> str:
    return "rivertwice" if table == POSITIONS else "PostgreSQL"


_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")


def _place_in(text: str, *path: str | int) -> str:
    """Return where a field of a file is, as the beginning of a sentence."""
    _, mark = find_node(compose_yaml(text), path)
    return "" if mark is None else f"{place(mark)}: "


def _refuse_patterns(definition: Definition, where: str, text: str) -> None:
    """Refuse patterns that could fail on a record. Bundles are not checked: a definition that ran must stay readable."""
    for view, source in definition.sources.items():
        for number, rule in enumerate(source.rules):
            if not isinstance(rule, Pattern):
                continue
            try:
                matcher_of(rule.pattern)
            except PatternError as error:
                at = _place_in(text, "sources", view, "rules", number)
                message = f"{where}: {at}sources.{view}.rules: the pattern {rule.pattern!r} of rule {rule.name!r} is refused: {error}"
                raise DefinitionError(message) from None


def load_all(root: Path) -> dict[str, Definition]:
    """Return every definition under `root` (folders with a pipeline.yaml) by name, sorted."""
    folders = sorted(path.parent for path in root.glob(f"*/{DefinitionFiles.YAML_FILE}"))
    return {folder.name: load_definition(folder) for folder in folders}


def load_each(root: Path) -> tuple[dict[str, Definition], dict[str, str]]:
    """Return every definition under `root` that can be loaded, and the error of each other folder, by name, sorted."""
    definitions: dict[str, Definition] = {}
    broken: dict[str, str] = {}
    for folder in sorted(path.parent for path in root.glob(f"*/{DefinitionFiles.YAML_FILE}")):
        try:
            definitions[folder.name] = load_definition(folder)
        except DefinitionError as error:
            broken[folder.name] = str(error)
    return definitions, broken


def _pinned(definition: Definition, files: Mapping[str, bytes], where: str) -> Definition:
    """Return the definition with its pinned schemas, for each source that is decoded with a schema."""
    by_schema = {view: source for view, source in definition.sources.items() if source.format == "avro"}
    messages = {view: source for view, source in definition.sources.items() if source.format == "protobuf"}
    texts = {name: files[name] for name in files if is_proto_file(name)}
    files = {name: data for name, data in files.items() if name not in texts}
    strange = sorted(texts.keys() - {proto_file_name(view) for view in messages})
    if strange:
        message = f"{where}/{strange[0]} is a Protobuf schema, but no source of that name says format: protobuf; remove it, or say so"
        raise DefinitionError(message)
    others = definition.sources.keys() - by_schema.keys()
    schemas = {name: by_schema and split_name(name)[0] for name in files if name.startswith(f"{FOLDER}/")}
    stray = sorted(name for name, view in schemas.items() if not by_schema or view in others)
    if stray:
        message = f"{where}/{stray[0]} is an Avro schema, but the format is not Avro; remove it, or say format: avro"
        raise DefinitionError(message)
    if not by_schema and not messages:
        return definition
    from rivertwice.definition.schema_pins import (
        parse_message,
        parse_pins,  # imports the libraries of Avro and Protobuf
    )

    pinned = dict(definition.sources)
    for view, source in messages.items():
        pinned[view] = source.with_message(parse_message(texts, view, source.schema_, where=where))
    for view, source in by_schema.items():
        foreign = {name for name, named in schemas.items() if named != view and named in by_schema}
        own_files = {name: data for name, data in files.items() if name not in foreign}
        pins = parse_pins(own_files, view, source.schema_, framed=source.framing == "confluent", where=where)
        pinned[view] = source.with_pins(pins)
    return definition.model_copy(update={"sources": pinned})


def _text(data: bytes, path: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        message = f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8"
        raise DefinitionError(message) from None


def _yaml(text: str, path: str) -> dict[str, Any]:
    try:
        value = read_yaml(text, lambda root: _refuse_repeated_keys(root, path))
    except UnreadableYamlError as error:
        message = f"{path} cannot be read: {error}"
        raise DefinitionError(message) from None
    except yaml.YAMLError as error:
        message = f"{path} is not YAML: {describe_yaml_error(error)}; correct it there, or just before"
        raise DefinitionError(message) from None
    if not isinstance(value, dict):
        message = f"{path} holds {type(value).__name__}, not fields; `rivertwice docs definitions` has an example"
        raise DefinitionError(message)
    return value


def _refuse_repeated_keys(node: yaml.Node | None, path: str) -> None:
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_repeated_keys(item, path)
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, item in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # no value of Python: it is refused by its name
            if key.value in keys:
                message = f"{path}: {place(key.start_mark)}: {key.value!r} is given again; YAML would drop the first: remove one"
                raise DefinitionError(message)
            keys.add(str(key.value))
            _refuse_repeated_keys(item, path)
