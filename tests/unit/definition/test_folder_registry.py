"""The project's own registry: ids that never change, an index that only grows, rules that hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from homes.orders import REGISTERED
from rivertwice.core.errors import ConfigError, RequestError
from rivertwice.definition.schema_folder import INDEX, FolderRegistry


def text(*fields: Any) -> str:
    return json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": name, "type": "int", **more} for name, more in fields]}
    )


FIRST, SECOND, BROKEN = text(("a", {})), text(("a", {}), ("b", {"default": 0})), text(("a", {}), ("c", {}))


@pytest.fixture
def registry(tmp_path: Path) -> FolderRegistry:
    return FolderRegistry(tmp_path / "schemas")


@pytest.mark.proves("howto-schemas.md#stored-format-1")
def test_versions_have_ids_that_stay_and_the_same_schema_is_no_new_version(
    registry: FolderRegistry, tmp_path: Path
) -> None:
    made = [registry.register("s", "avro", each, None) for each in (FIRST, SECOND, FIRST)]
    assert [(each.version, each.id) for each in made] == [(1, 1), (2, 2), (1, 1)]
    again = FolderRegistry(tmp_path / "schemas")
    assert again.versions("s") == made[:2]
    assert again.by_id(2).text == SECOND
    assert (again.register("t", "avro", SECOND, None).id, again.subjects()) == (2, ["s", "t"])


@pytest.mark.proves("howto-schemas.md#stored-format-1")
def test_the_index_only_grows(registry: FolderRegistry, tmp_path: Path) -> None:
    index = tmp_path / "schemas" / INDEX
    seen = b""
    for each, rule in ((FIRST, None), (SECOND, "full"), (SECOND, "none"), (BROKEN, None)):
        registry.register("s", "avro", each, rule)  # type: ignore[arg-type]
        assert index.read_bytes().startswith(seen)
        seen = index.read_bytes()
    assert [json.loads(line).get("rule") for line in seen.decode().splitlines()] == [None, "full", None, "none", None]


def test_a_version_that_breaks_the_rule_is_refused_and_leaves_nothing(registry: FolderRegistry, tmp_path: Path) -> None:
    registry.register("s", "avro", FIRST, None)
    before = sorted(path.name for path in (tmp_path / "schemas").rglob("*"))
    with pytest.raises(RequestError, match=r"breaks its rule 'backward'.*reader_field_missing_default_value"):
        registry.register("s", "avro", BROKEN, None)
    assert sorted(path.name for path in (tmp_path / "schemas").rglob("*")) == before


@pytest.mark.proves("failure-modes.md#schemas", "howto-schemas.md#stored-format-1")
def test_a_changed_or_missing_version_is_not_believed(registry: FolderRegistry, tmp_path: Path) -> None:
    registry.register("s", "avro", FIRST, None)
    path = tmp_path / "schemas" / "s" / "1.avsc"
    path.write_text(SECOND)
    with pytest.raises(ConfigError, match="a version never changes"):
        registry.versions("s")
    path.unlink()
    with pytest.raises(ConfigError, match="is missing"):
        registry.by_id(1)


def test_json_schemas_are_under_no_rule_until_one_is_set(registry: FolderRegistry) -> None:
    old, wider = '{"type": "integer"}', '{"type": "number"}'
    assert registry.register("j", "json", old, None).id == 1
    assert registry.rule("j") == "none"
    with pytest.raises(RequestError, match="cannot be read by version 1: number could stand at /"):
        registry.register("j", "json", wider, "full")
    assert registry.register("j", "json", wider, "backward").version == 2
    with pytest.raises(RequestError, match="number could stand at /, now only string"):
        registry.register("j", "json", '{"type": "string"}', None)
    with pytest.raises(RequestError, match="a separate subject"):
        registry.register("j", "avro", FIRST, None)


def test_the_projects_own_subjects_are_whole() -> None:
    kept = FolderRegistry(REGISTERED)
    assert [(each.version, each.id) for each in kept.versions("orders-value")] == [(1, 1), (2, 2), (3, 3)]
    assert kept.rule("orders-value") == "full"
