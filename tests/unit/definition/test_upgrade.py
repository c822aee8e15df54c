"""What may change while a stream goes on from the state it has."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from histories.kinds import definition_files
from homes.project import FLIGHTS, replace_text
from rivertwice.definition.bundle import Bundle, build_bundle
from rivertwice.definition.fingerprint import DECODE, SEMANTICS, STATE
from rivertwice.definition.upgrade import CARRIED, UpgradeKind, decide_upgrade


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FLIGHTS, tmp_path / "flight_delays"))


def changed(folder: Path, file: str, old: str, new: str) -> tuple[Bundle, Bundle]:
    before = build_bundle(folder)
    replace_text(folder / file, old, new)
    return before, build_bundle(folder)


@pytest.mark.parametrize(
    ("file", "old", "new", "components"),
    [
        ("pipeline.yaml", "watermark: 1 hour", "watermark: 2 hours", {"watermark"}),
        ("pipeline.yaml", "max: 2880", "max: 2881", {"rules"}),
        ("pipeline.yaml", "max_future: 2 hours", "max_future: 3 hours", {"max_future"}),
        ("pipeline.yaml", "schema_ids: [flights-1]", "schema_ids: [flights-1, flights-2]", {"schema_ids"}),
        ("pipeline.yaml", "policy: drop", "policy: side_output", {"late_policy"}),
        ("pipeline.yaml", "      dest: string\n", "      dest: string\n      gate: string\n", {"schema"}),
    ],
)
def test_what_does_not_shape_the_state_is_carried_over(
    folder: Path, file: str, old: str, new: str, components: set[str]
) -> None:
    before, after = changed(folder, file, old, new)
    found = decide_upgrade(before, after, before.fingerprint.hashes())
    assert (found.way, {change.component for change in found.changes}, found.obstacles) == (
        UpgradeKind.RESUME,
        components,
        {},
    )


@pytest.mark.proves("howto-upgrade.md#what-can-change", "guarantees.md#upgrade")
@pytest.mark.parametrize(
    ("file", "old", "new", "component", "why"),
    [
        ("transform.sql", "max(dep_delay)", "min(dep_delay)", "transform", "shapes the state"),
        ("pipeline.yaml", "  size: 1 hour\n", "  size: 1 hour\n  end_column: until\n", "window", "shapes the state"),
        ("pipeline.yaml", "topic: flights", "topic: flights2", "topic", "offsets are those of the old topic"),
        ("pipeline.yaml", "emit: final", "emit: updates", "emit", "some would come twice, or never"),
        ("pipeline.yaml", "dep_delay: int", "dep_delay: bigint", "field_types_used", "shapes the state"),
    ],
)
def test_what_the_checkpoint_rests_on_is_refused_by_name(
    folder: Path, file: str, old: str, new: str, component: str, why: str
) -> None:
    before, after = changed(folder, file, old, new)
    found = decide_upgrade(before, after, before.fingerprint.hashes())
    assert found.way == UpgradeKind.REFUSED
    assert why in found.obstacles[component]


def test_words_that_mean_the_same_are_no_upgrade(folder: Path) -> None:
    before, after = changed(folder, "transform.sql", "FROM flights", "FROM\n  flights")
    assert before.id != after.id
    assert decide_upgrade(before, after, before.fingerprint.hashes()).way == UpgradeKind.SAME


def test_a_release_that_reads_the_old_definition_otherwise_is_an_obstacle(folder: Path) -> None:
    bundle = build_bundle(folder)
    found = decide_upgrade(bundle, bundle, {**bundle.fingerprint.hashes(), "state": "of another compiler"})
    assert (found.way, set(found.obstacles)) == (UpgradeKind.REFUSED, {"release"})
    assert "changed: state" in found.obstacles["release"]


def test_the_watermark_of_several_sources_is_not_carried_over(two_sources: tuple[Bundle, Bundle]) -> None:
    before, after = two_sources
    found = decide_upgrade(before, after, before.fingerprint.hashes())
    assert (found.way, set(found.obstacles)) == (UpgradeKind.REFUSED, {"watermark"})


@pytest.fixture
def two_sources(tmp_path: Path) -> tuple[Bundle, Bundle]:
    folder = tmp_path / "histories"
    folder.mkdir()
    for name, text in definition_files("joined sources").items():
        (folder / name).write_text(text)
    before = build_bundle(folder)
    text = (folder / "pipeline.yaml").read_text()
    delay = next(line for line in text.splitlines() if "watermark: " in line)
    (folder / "pipeline.yaml").write_text(text.replace(delay, delay.split("watermark:")[0] + "watermark: 77 s", 1))
    return before, build_bundle(folder)


def test_nothing_of_the_state_and_all_other_decoding_is_carried_over() -> None:
    assert not set(STATE) & CARRIED
    assert set(DECODE) - set(STATE) <= CARRIED
    assert set(SEMANTICS) - CARRIED - set(STATE) == {"topic", "emit", "watermark_policy", "role", "table_keys"}


@pytest.mark.proves("howto-upgrade.md#what-can-change")
@pytest.mark.parametrize(
    ("kind", "file", "old", "new", "way"),
    [
        ("session", "pipeline.yaml", "watermark: 20 s", "watermark: 30 s", UpgradeKind.RESUME),
        ("session", "pipeline.yaml", "policy: side_output", "policy: drop", UpgradeKind.RESUME),
        ("session", "rows.sql", "v <> 7", "v <> 8", UpgradeKind.REFUSED),
        ("session", "pipeline.yaml", "max_future: 10000 days", "max_future: 1 day", UpgradeKind.REFUSED),
        ("joined intervals", "pipeline.yaml", "watermark: 20 s", "watermark: 30 s", UpgradeKind.RESUME),
        ("joined intervals", "pipeline.yaml", "required: [k, v]", "required: [k]", UpgradeKind.REFUSED),
        ("fold", "pipeline.yaml", "max_future: 10000 days", "max_future: 1 day", UpgradeKind.REFUSED),
        ("fold", "fold.py", "== 7", "== 8", UpgradeKind.REFUSED),
    ],
)
def test_sessions_and_intervals_carry_over_watermark_and_late_policy_alone(
    tmp_path: Path, kind: str, file: str, old: str, new: str, way: str
) -> None:
    folder = tmp_path / "histories"
    folder.mkdir()
    for name, text in definition_files(kind).items():
        (folder / name).write_text(text)
    before, after = changed(folder, file, old, new)
    found = decide_upgrade(before, after, before.fingerprint.hashes())
    assert found.way == way
    assert way == UpgradeKind.RESUME or "compared" in str(found.obstacles) or "shapes the state" in str(found.obstacles)
