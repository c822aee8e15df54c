"""Records as fields: an object within a record becomes the fields it holds, and a name in capitals one that SQL can have. Pure.

A definition reads such a field by its path (`paths` in `pipeline.yaml`), so that the producer changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rivertwice.pipeline.paths import MOST_PARTS, PART, value_at
from rivertwice.scaffold.fields import COLUMN, RESERVED
from rivertwice.scaffold.read_file import field_name
from rivertwice.scaffold.sample import Sample

MOST_FIELDS = 300
"""Fields that are looked at; of a record with more (a map with a key for each customer, say) the rest stays an object."""


def flatten(sample: Sample) -> Sample:
    """Return the sample with a value for each field, and the path of each field that has another name in the records."""
    if sample.encoding.format != "json":
        return sample
    values = [record.value for record in sample.records]
    found = {path: None for value in values for path in _leaves(value, ())}
    mixed = {path[:depth] for path in found for depth in range(1, len(path)) if path[:depth] in found}
    inner = [
        path for path in found if len(path) == 1 or not any(path[:depth] in mixed for depth in range(1, len(path)))
    ]
    names = _named(inner[:MOST_FIELDS])
    if all(path == (name,) for path, name in names.items()) and len(names) == len(found):
        return sample
    records = [
        replace(
            record,
            value={name: leaf for path, name in names.items() if (leaf := value_at(record.value, path)) is not None},
            sent=record.value,
        )
        for record in sample.records
    ]
    return replace(
        sample, records=records, paths={name: ".".join(path) for path, name in names.items() if path != (name,)}
    )


def _leaves(value: Mapping[str, Any], outer: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, each in value.items():
        path = (*outer, name)
        if isinstance(each, Mapping) and each and len(path) < MOST_PARTS and PART.match(name):
            yield from _leaves(each, path)
        else:
            yield path


def _named(paths: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """Return path to the name of its field; a path that cannot be read keeps its own text, which is refused as a name."""
    names: dict[tuple[str, ...], str] = {}
    for path in paths:
        own = path[0] if len(path) == 1 and COLUMN.match(path[0]) and path[0] not in RESERVED else None
        if own is None and not all(PART.match(part) for part in path):
            names[path] = ".".join(path)
            continue
        name = own or field_name("_".join(path))
        if name in RESERVED or name in names.values():
            number = next(each for each in range(2, MOST_FIELDS + 2) if f"{name[:60]}_{each}" not in names.values())
            name = f"{name[:60]}_{number}"
        names[path] = name
    return names
