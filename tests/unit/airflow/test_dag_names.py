"""Versions have DAGs and a section of the page as long as they are open, by names that Airflow allows."""

from __future__ import annotations

from pathlib import Path

from homes.versions import AT, World
from rivertwice.definition.bundle import build_bundle
from rivertwice.tasks.definitions import find_definitions
from rivertwice.tasks.names import dag_id
from rivertwice.versions.begin import drop_version


def test_a_version_has_a_name_that_airflow_allows_and_no_pipeline_has() -> None:
    assert dag_id("reconcile", "flight_delays@v2") == "reconcile__flight_delays.v2"
    assert dag_id("reconcile", "flight_delays") == "reconcile__flight_delays"


def test_definitions_are_those_that_streams_run_until_a_version_is_dropped(tmp_path: Path) -> None:
    world = World(tmp_path)
    found = {each.name: each.definition for each in find_definitions(world.settings)}
    assert list(found) == ["p", "p@v2"]
    assert found["p"] == world.first
    assert found["p@v2"] == world.second
    drop_version(world.settings, "p@v2", by="test", now=AT)
    (alone,) = find_definitions(world.settings)
    assert alone.definition == build_bundle(world.settings.definitions / "p").definition
    assert alone.definition != world.first
