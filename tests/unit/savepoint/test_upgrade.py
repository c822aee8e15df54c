"""The parts of an upgrade that need no Spark: the child's record, what was cut off, what goes on serving."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from homes.project import FLIGHTS, replace_text
from homes.savepoint import FINGERPRINT, NOW, add_timeline, row
from rivertwice.core.errors import FingerprintError, RequestError
from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import Bundle, build_bundle
from rivertwice.definition.upgrade import decide_upgrade
from rivertwice.savepoint.operations.fork import plan_child
from rivertwice.savepoint.operations.record import Restore, read_operations, write_operation
from rivertwice.savepoint.operations.restore import require_same_aim
from rivertwice.savepoint.operations.restore_checks import require_way
from rivertwice.timeline.lineage import Fork, Timeline, create_timeline, path_of, path_semantics

OPERATION = Restore("restore-1", "sp", "t1", "t2", was_running=True, started_at=NOW, forked_at=6)


@pytest.fixture
def home(tmp_path: Path) -> PipelineHome:
    return Settings(tmp_path / "project", tmp_path / "home").pipeline("p")


@pytest.fixture
def bundles(tmp_path: Path) -> tuple[Bundle, Bundle]:
    folder = Path(shutil.copytree(FLIGHTS, tmp_path / "flight_delays"))
    before = build_bundle(folder)
    replace_text(folder / "pipeline.yaml", "watermark: 1 hour", "watermark: 2 hours")
    return before, build_bundle(folder)


def test_an_upgrades_child_runs_the_new_definition_from_the_same_fork(
    home: PipelineHome, bundles: tuple[Bundle, Bundle]
) -> None:
    _, new = bundles
    new.save(home.bundles)
    add_timeline(home, "t1")
    parent = Timeline.load(home, "t1")
    plain = plan_child(home, parent, row(6), OPERATION, NOW)
    assert (plain.bundle, plain.fingerprint, plain.parent, plain.first_batch) == ("b", FINGERPRINT, Fork("t1", 6), 7)
    child = plan_child(home, parent, row(6), replace(OPERATION, bundle=new.id), NOW)
    assert (child.bundle, child.fingerprint) == (new.id, new.fingerprint.hashes())
    assert replace(child, bundle="b", fingerprint=FINGERPRINT, created_at=NOW) == replace(plain, created_at=NOW)


def test_an_upgrades_fork_without_batches_keeps_the_new_definition(home: PipelineHome) -> None:
    add_timeline(home, "t1")
    upgraded = replace(Timeline.load(home, "t1").fork(row(6), "t2", NOW), bundle="new", fingerprint={"state": "s"})
    again = upgraded.fork(row(6), "t3", NOW)
    assert (again.bundle, again.fingerprint, again.parent) == ("new", {"state": "s"}, Fork("t2", 6))
    assert upgraded.fork(row(7, "t2", bundle="newer words"), "t3", NOW).bundle == "newer words"


def test_publications_of_both_definitions_serve_on_the_path_of_an_upgrade(home: PipelineHome) -> None:
    add_timeline(home, "t1")
    line = Timeline.load(home, "t1").fork(row(6), "t2", NOW)
    create_timeline(home, replace(line, fingerprint={**FINGERPRINT, "semantics": "new"}))
    assert path_semantics(home, path_of(home, "t1")) == {"m"}
    assert path_semantics(home, path_of(home, "t2")) == {"m", "new"}


def test_an_upgrades_record_is_read_back_and_an_older_one_is_a_restore(
    home: PipelineHome,
) -> None:
    write_operation(home, replace(OPERATION, bundle="new"))
    path = home.operations / "restore-1.json"
    assert read_operations(home) == [replace(OPERATION, bundle="new")]
    path.write_text(path.read_text().replace('"bundle"', '"__"').replace('"__": "new",', "").replace('"__":"new",', ""))
    assert read_operations(home) == [OPERATION]


def test_an_upgrade_does_not_go_on_with_something_else_that_was_cut_off(bundles: tuple[Bundle, Bundle]) -> None:
    old, new = bundles
    require_same_aim(replace(OPERATION, bundle=new.id), new.id)
    require_same_aim(replace(OPERATION, bundle=new.id), None)  # `savepoint restore` finishes it too
    with pytest.raises(RequestError, match="a restore, was interrupted"):
        require_same_aim(OPERATION, new.id)
    with pytest.raises(RequestError, match="an upgrade to bundle"):
        require_same_aim(replace(OPERATION, bundle=old.id), new.id)


def test_what_cannot_go_on_is_refused_with_every_reason(bundles: tuple[Bundle, Bundle], tmp_path: Path) -> None:
    old, new = bundles
    require_way(decide_upgrade(old, new, old.fingerprint.hashes()), "p", beside="p@v2")
    with pytest.raises(RequestError, match="nothing in the definition of p changed"):
        require_way(decide_upgrade(old, old, old.fingerprint.hashes()), "p", beside="p@v2")
    folder = tmp_path / "flight_delays"
    replace_text(folder / "transform.sql", "max(dep_delay)", "min(dep_delay)")
    replace_text(folder / "pipeline.yaml", "topic: flights", "topic: flights2")
    decision = decide_upgrade(old, build_bundle(folder), old.fingerprint.hashes())
    with pytest.raises(FingerprintError, match=r"topic: .*old topic; transform: it shapes the state"):
        require_way(decision, "p", beside="p@v2")
