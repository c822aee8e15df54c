"""The names and bytes of the schemas that a definition has pinned. The libraries of Avro and Protobuf are not needed to find them.

What is in the files is read by `pins`, and only for a source whose format needs it: most verbs load a definition of JSON.
"""

from __future__ import annotations

import re
from pathlib import Path

from rivertwice.core import DefinitionError

FOLDER = "schemas"
MAX_BYTES = 262_144
MAX_WRITERS = 200
MAX_ID = 2**31 - 1
SUBJECT = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_FILE = re.compile(r"^(?P<view>[a-z][a-z0-9_]{0,63})(?:(?:-(?P<id>[1-9][0-9]{0,9}))?\.avsc|\.protobuf\.json)\Z")


def file_name(view: str, schema_id: int | None) -> str:
    """Return the pinned file of a reader (no id) or of a writer, relative to the definition."""
    return f"{FOLDER}/{view}.avsc" if schema_id is None else f"{FOLDER}/{view}-{schema_id}.avsc"


def proto_file_name(view: str) -> str:
    """Return the pinned file of a Protobuf message, relative to the definition."""
    return f"{FOLDER}/{view}.protobuf.json"


def is_proto_file(path: str) -> bool:
    """Say whether a file of a definition is a pinned Protobuf message."""
    return path.startswith(f"{FOLDER}/") and path.endswith(".protobuf.json")


def split_name(path: str) -> tuple[str, int | None]:
    """Return view and id (None: the reader) from a pinned file's path.

    Raises:
        DefinitionError: it has neither.
    """
    match = _FILE.match(path.removeprefix(f"{FOLDER}/"))
    if match is None or int(match["id"] or 1) > MAX_ID:
        message = (
            f"{path[:120]!r} is not a valid name of a pinned schema; use {FOLDER}/VIEW.avsc for what is read, "
            f"{FOLDER}/VIEW-ID.avsc for what wrote the records with schema id ID and {FOLDER}/VIEW.protobuf.json for a Protobuf "
            "message, or remove the file"
        )
        raise DefinitionError(message)
    return match["view"], int(match["id"]) if match["id"] else None


def read_pinned(folder: Path) -> dict[str, bytes]:
    """Return the pinned files of the definition in `folder`, by path relative to it.

    Raises:
        DefinitionError: a file has a wrong name, is too large, or is a link.
    """
    files: dict[str, bytes] = {}
    pinned = folder / FOLDER
    for path in sorted([*pinned.glob("*.avsc"), *pinned.glob("*.protobuf.json")]):
        relative = f"{FOLDER}/{path.name}"
        split_name(relative)
        if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_BYTES:
            message = f"{path} is a link, no file, or larger than {MAX_BYTES} bytes; pin the schema as a plain file"
            raise DefinitionError(message)
        files[relative] = path.read_bytes()
    if len(files) > MAX_WRITERS:
        message = f"{folder / FOLDER} holds {len(files)} schemas, more than {MAX_WRITERS}; remove those no record names"
        raise DefinitionError(message)
    return files
