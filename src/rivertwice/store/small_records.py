"""Small JSON records in a place (a folder or S3): written once, read whole, listed by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rivertwice.config import Place
from rivertwice.config.places import below
from rivertwice.store.files import parse_json, put_json_if_absent, read_json
from rivertwice.store.places import open_store


def put_record_if_absent(place: Place, key: str, value: Any) -> bool:
    """Create a record; return False if it exists already."""
    if isinstance(place, Path):
        return put_json_if_absent(place / key, value)
    return open_store(place).put_if_absent(key, json.dumps(value, sort_keys=True, indent=1).encode() + b"\n")


def read_record(place: Place, key: str) -> Any | None:
    """Return a record's content, or None if there is none.

    Raises:
        DamagedFileError: the record cannot be decoded.
    """
    if isinstance(place, Path):
        return read_json(place / key)
    data = open_store(place).get(key)
    return None if data is None else parse_json(data, str(below(place, key)))


def delete_record(place: Place, key: str) -> None:
    """Remove a record; an absent one is no error."""
    if isinstance(place, Path):
        (place / key).unlink(missing_ok=True)
    else:
        open_store(place).delete(key)


def list_records(place: Place, name: str) -> list[str]:
    """Return the folders directly below `place` that have a record called `name`, sorted."""
    if isinstance(place, Path):
        return sorted(path.parent.name for path in place.glob(f"*/{name}"))
    keys = open_store(place).list()
    return sorted(key.partition("/")[0] for key in keys if key.partition("/")[2] == name)


def list_keys(place: Place) -> list[str]:
    """Return the keys of the records directly in `place`, sorted."""
    if isinstance(place, Path):
        return sorted(path.name for path in place.glob("*.json"))
    return sorted(key for key in open_store(place).list() if "/" not in key and key.endswith(".json"))
