"""What an older release left on disk: its savepoint restores, its tables read, and its batches replay equal, for ever."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from homes.project import TO_RUN, make_project
from rivertwice.core.errors import LogGapError
from rivertwice.core.settings import Settings
from rivertwice.local.broker import BrokerInfo
from rivertwice.log import kafka
from rivertwice.savepoint.catalogue import list_savepoints
from rivertwice.savepoint.manifest import READABLE
from rivertwice.savepoint.operations.restore import restore_savepoint
from rivertwice.savepoint.prove import prove_savepoint
from rivertwice.storage.table import Table
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.sequence import head
from rivertwice.timeline.served_rows import stream_rows

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
VERSIONS = sorted(path.name for path in GOLDEN.glob("savepoint-v*"))
FOLDS = ["fold-v2"]
"""Of a fold as 0.1 began it, with a state for each key."""


@pytest.fixture(params=[*VERSIONS, *FOLDS])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Settings, dict[str, Any]]:
    """A copy of a golden home, over no broker."""
    golden = GOLDEN / request.param
    shutil.copytree(golden / "home", tmp_path / "home")
    pipelines = {path.name: path for path in (golden / "project" / "pipelines").iterdir()}
    settings = make_project(tmp_path, pipelines, links=TO_RUN)
    return golden, settings, json.loads((golden / "expected.json").read_text())


def place(row: dict[str, Any]) -> tuple[object, ...]:
    return str(row["window_start"]), row["k"], row.get("record"), row.get("row")


def test_every_stored_format_version_has_a_golden() -> None:
    assert [f"savepoint-v{version}" for version in READABLE] == VERSIONS


def test_the_tables_of_a_golden_read_as_they_did_when_it_was_made(world) -> None:
    golden, settings, expected = world
    home = settings.pipeline(expected["pipeline"])
    rows = path_ledger(home)
    assert (head(home), {str(row.batch): row.digest for row in rows}) == ("t1", expected["digests"])
    assert sum(row.read for row in rows) == expected["records"]
    read = sorted(stream_rows(home).to_pylist(), key=place)
    assert json.loads(json.dumps(read, default=str)) == expected["rows"]
    dead = Table(home.tables.dead_letters).read()
    assert dead is not None
    assert dead.num_rows == expected["dead_letters"] > 0
    records = [json.loads(line) for line in (golden / "records.jsonl").read_text().splitlines()]
    archive = Table(settings.archive(expected["pipeline"])).read()
    assert archive is not None
    found = archive.to_pylist()
    assert sorted((row["partition"], row["offset"]) for row in found) == [
        (r["partition"], r["offset"]) for r in records
    ]
    assert len(records) == expected["records"]
    (savepoint,) = list_savepoints(home)
    assert (savepoint.id, savepoint.manifest.batch) == (expected["savepoint"], expected["batch"])
    assert savepoint.verify_files() == savepoint.manifest.size


@pytest.mark.spark
@pytest.mark.kafka
def test_a_golden_savepoint_replays_equal_although_its_topic_is_gone(world, broker: BrokerInfo) -> None:
    _, offline, expected = world
    settings = Settings(offline.project, offline.home, broker.bootstrap, offline.spark_master)
    name = expected["pipeline"]
    kafka.ensure_topic(settings, name, 3)  # another topic under the old name: the archive is all there is
    try:
        proof = prove_savepoint(settings, name, expected["savepoint"], batches=1000, wait_seconds=0.0)
        assert (proof.proved, proof.source) == (True, "replay topic")
        assert proof.batches == len(expected["digests"]) - expected["batch"] - 1
        state = expected["state"]
        assert (proof.last_batch, proof.state_rows, proof.state) == (state["batch"], state["rows"], state["stores"])
        with pytest.raises(LogGapError, match="deleted and created again"):
            restore_savepoint(settings, name, expected["savepoint"])
    finally:
        kafka.delete_topic(settings, name)
