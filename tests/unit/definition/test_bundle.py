from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from homes.project import FLIGHTS, replace_text
from rivertwice.core.errors import DefinitionError
from rivertwice.definition.bundle import build_bundle, load_bundle, load_bundle_definition

pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FLIGHTS, tmp_path / "flight_delays"))


def changed(folder: Path, file: str, old: str, new: str) -> dict[str, tuple[str, ...]]:
    before = build_bundle(folder)
    replace_text(folder / file, old, new)
    after = build_bundle(folder)
    changes = before.fingerprint.changes_to(after.fingerprint)
    touched = {group for change in changes for group in change.touches}
    old_hashes, new_hashes = before.fingerprint.hashes(), after.fingerprint.hashes()
    assert touched == {name for name in old_hashes if old_hashes[name] != new_hashes[name]}
    assert before.id != after.id
    return {change.component: change.touches for change in changes}


def test_a_saved_bundle_gives_the_same_definition_back(folder: Path, tmp_path: Path) -> None:
    bundle = build_bundle(folder)
    bundle.save(tmp_path / "bundles")
    bundle.save(tmp_path / "bundles")
    assert load_bundle_definition(tmp_path / "bundles", bundle.id) == bundle.definition
    assert load_bundle(tmp_path / "bundles", bundle.id).fingerprint == bundle.fingerprint
    assert [path.name for path in (tmp_path / "bundles").iterdir()] == [bundle.id]


def test_a_bundle_is_of_one_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.read_bytes
    before = build_bundle(folder)

    def read_once(path: Path) -> bytes:
        data = read(path)
        path.write_bytes(data + b"\n")
        return data

    monkeypatch.setattr(Path, "read_bytes", read_once)
    found = build_bundle(folder)
    assert (found.id, found.files) == (before.id, before.files)
    assert found.definition.transform_sql.encode() == found.files["transform.sql"]


def test_an_altered_bundle_is_refused(folder: Path, tmp_path: Path) -> None:
    bundle = build_bundle(folder)
    stored = bundle.save(tmp_path / "bundles")
    replace_text(stored / "transform.sql", "dep_delay > 15", "dep_delay > 16")
    with pytest.raises(DefinitionError, match="was altered"):
        load_bundle_definition(tmp_path / "bundles", bundle.id)
    with pytest.raises(DefinitionError, match="was altered"):
        bundle.save(tmp_path / "bundles")


def test_a_missing_bundle_is_named(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="abc is not in"):
        load_bundle_definition(tmp_path, "abc")


def test_cases_do_not_belong_to_the_bundle(folder: Path) -> None:
    before = build_bundle(folder).id
    shutil.rmtree(folder / "cases")
    assert build_bundle(folder).id == before


def test_a_comment_changes_the_bundle_but_no_fingerprint(folder: Path) -> None:
    assert changed(folder, "transform.sql", "-- One row", "-- A row") == {}


def test_stream_pins_change_no_fingerprint(folder: Path) -> None:
    assert changed(folder, "pipeline.yaml", "shuffle_partitions: 2", "shuffle_partitions: 3") == {}
    assert changed(folder, "pipeline.yaml", "catch_up_share: 0", "catch_up_share: 0.5") == {}


def test_another_transform_touches_state_and_semantics(folder: Path) -> None:
    changes = changed(folder, "transform.sql", "dep_delay > 15", "dep_delay > 30")
    assert changes == {"transform": ("state", "semantics")}


def test_another_watermark_touches_semantics_only(folder: Path) -> None:
    assert changed(folder, "pipeline.yaml", "watermark: 1 hour", "watermark: 2 hours") == {"watermark": ("semantics",)}


def test_the_same_watermark_in_other_words_is_no_change(folder: Path) -> None:
    assert changed(folder, "pipeline.yaml", "watermark: 1 hour", "watermark: 60 minutes") == {}


def test_another_rule_touches_semantics_and_decode(folder: Path) -> None:
    assert changed(folder, "pipeline.yaml", "max: 2880", "max: 2881") == {"rules": ("semantics", "decode")}


def test_a_time_that_is_a_number_touches_semantics_and_decode(folder: Path) -> None:
    with_unit = "required: [carrier", "epochs: {sched_dep: ms}\n    required: [carrier"
    assert changed(folder, "pipeline.yaml", *with_unit) == {"epochs": ("semantics", "decode")}


def test_another_type_of_an_aggregated_field_touches_everything(folder: Path) -> None:
    changes = changed(folder, "pipeline.yaml", "dep_delay: int", "dep_delay: bigint")
    assert changes == {"schema": ("semantics", "decode"), "field_types_used": ("state",)}


def test_rows_sql_touches_semantics_only(folder: Path) -> None:
    before = build_bundle(folder)
    (folder / "rows.sql").write_text("SELECT * FROM flights WHERE carrier <> 'XX'\n")
    changes = before.fingerprint.changes_to(build_bundle(folder).fingerprint)
    assert [(change.component, change.touches) for change in changes] == [("rows", ("semantics",))]
