"""The layout of a fold's state that a replay uses is the timeline's, whatever the stored definition says."""

from __future__ import annotations

from pathlib import Path

import pytest

from homes.ledger import NOW
from homes.project import make_project
from rivertwice.definition.bundle import build_bundle
from rivertwice.savepoint.plan import load_state_definition
from rivertwice.savepoint.take import beginning_of
from rivertwice.timeline.lineage import Fork, Timeline, create_timeline

YAML = """
name: p
description: test
sources:
  e: {topic: e, partitions: 1, schema: {k: string, at: timestamp}, required: [k], event_time: at, max_future: 1 hour}
window: {fold: 1 day, at: at}
by: [k]
state: {n: bigint}
keys: [k]
columns: {at: {}}
types: {at: timestamp}
stream: {fold_buckets: 8}
"""


@pytest.mark.parametrize("began_with", [0, 8, 64])
def test_a_replay_lays_the_state_out_as_the_timeline_began(began_with: int, tmp_path: Path) -> None:
    settings = make_project(
        tmp_path, {"p": {"pipeline.yaml": YAML, "fold.py": "def fold(state, event):\n    return None, []\n"}}
    )
    home = settings.pipeline("p")
    bundle = build_bundle(settings.definitions / "p")
    bundle.save(home.bundles)
    offsets, hashes = {"e": {"0": 0}}, bundle.fingerprint.hashes()
    line = Timeline("p", "t1", None, 0, offsets, bundle.id, hashes, "c", {"e": "id"}, NOW, began_with)
    create_timeline(home, line)
    create_timeline(
        home, Timeline("p", "t2", Fork("t1", 3), 4, offsets, bundle.id, hashes, "c", {"e": "id"}, NOW, began_with)
    )
    for parent in ("t1", "t2"):
        manifest = beginning_of(home, parent).manifest
        assert load_state_definition(home, manifest).stream.fold_buckets == began_with
