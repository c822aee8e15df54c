"""Where a JSON record has a field that is not named as the field is: another spelling, or inside objects. Pure; `decode` reads them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator

if TYPE_CHECKING:
    from rivertwice.pipeline.source_model import Source

PART = re.compile(r"^[A-Za-z_$@][A-Za-z0-9_$@:-]{0,63}\Z")
"""One name of a path. Not allowed: a dot, which separates names, and what Spark's paths or a quoted name would read otherwise."""
MOST_PARTS = 8


def _path(value: str) -> str:
    parts = value.split(".")
    if len(parts) > MOST_PARTS or not all(PART.match(part) for part in parts):
        message = (
            f"{value[:80]!r} is no path to a field; write the names of the objects and of the field with dots between, for instance "
            f"customer.address.zipCode (at most {MOST_PARTS} names of A-Z, a-z, 0-9, _, -, $, @ and :, which begin with no digit)"
        )
        raise ValueError(message)
    return value


Path = Annotated[str, AfterValidator(_path)]


def parts_of(source: Source, name: str) -> list[str]:
    """Return the names that lead to a field in a JSON record, outermost first."""
    return source.paths.get(name, name).split(".")


def json_path(source: Source, name: str) -> str:
    """Return the path to a field as `get_json_object` reads it."""
    if name not in source.paths:
        return f"$.{name}"
    return "$" + "".join(f"['{part}']" for part in parts_of(source, name))


def value_at(record: Any, parts: Iterable[str]) -> Any:
    """Return what a record has where the names lead, outermost first; None if it has nothing there."""
    for part in parts:
        record = record.get(part) if isinstance(record, Mapping) else None
    return record


def nested_type(source: Source, kinds: Mapping[str, str]) -> str:
    """Return the fields of a record as Spark's DDL, with the objects that paths lead through.

    Args:
        source: the paths.
        kinds: field to type; each is where its path says.
    """
    tree: dict[str, object] = {}
    for name, kind in kinds.items():
        *outer, last = parts_of(source, name)
        inner: dict[str, object] = tree
        for part in outer:
            inner = inner.setdefault(part, {})  # type: ignore[assignment]  # `find_paths_conflict` excludes a text here
        inner[last] = kind
    return _ddl(tree)


def _ddl(tree: Mapping[str, object]) -> str:
    return ", ".join(
        f"`{name}`: {f'struct<{_ddl(inner)}>' if isinstance(inner, dict) else inner}" for name, inner in tree.items()
    )


def find_paths_conflict(source: Source) -> str | None:
    """Return why the paths do not fit the source, or None."""
    if not source.paths:
        return None
    for name in source.paths:
        if name not in source.schema_:
            return f"paths names {name!r}, which is absent in schema; declare its type there, or remove it"
    if source.format != "json" or source.envelope != "none":
        return "paths is for plain JSON: Avro, Protobuf and change events name their fields in a schema; remove paths"
    seen: dict[str, str] = {}
    for name in source.schema_:
        path = source.paths.get(name, name)
        for other, owner in seen.items():
            if path.lower() == other.lower():
                return f"{owner!r} and {name!r} are both read from {path}, and Spark does not tell capitals apart; give each its own path"
            shorter, longer = sorted((path.lower(), other.lower()), key=len)
            if longer.startswith(f"{shorter}."):
                return f"{owner!r} is read from {other} and {name!r} from {path}: one value cannot be a field and an object of fields; remove one"
        seen[path] = name
    return None
