"""A home whose restores run without Spark and Kafka: the replay only moves files, everything else is real."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from homes.operations import World, patch_effect
from homes.rewind import DEFINITION, RewindWorld, make_template
from homes.savepoint import FINGERPRINT, NOW, catch_checkpoint_up, commit_batches, make_home, row
from rivertwice.core.instants import utc_now
from rivertwice.savepoint.operations import restore_checks, rewind
from rivertwice.savepoint.operations import rewind as rewind_observe
from rivertwice.savepoint.records import encode_record
from rivertwice.savepoint.replay import ReplayedBatch
from rivertwice.savepoint.take import take_savepoint
from rivertwice.timeline.intent import write_intent
from rivertwice.timeline.watermarks import WatermarkRule


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Batches 0..6 are committed, a proved savepoint stands at 3; Kafka still has everything."""
    settings, home = make_home(tmp_path, planned=3, finished=3, committed=3)
    taken = take_savepoint(settings, "p", now=NOW)
    taken.store.put(f"{taken.id}/proof.json", encode_record({"proved": True}))
    commit_batches(home, [row(batch) for batch in range(4, 7)])
    write_intent(home, "running", "test", utc_now())
    begin = {0: 0}

    def replay_files(_spark, _settings, _definition, checkpoint, rows, **_):
        (checkpoint / "commits").mkdir(exist_ok=True)
        for one in rows:
            (checkpoint / "offsets" / str(one.batch)).write_text(one.offsets_text)
            (checkpoint / "commits" / str(one.batch)).write_text("v1\n{}")
        return [ReplayedBatch(one.batch, one.digest, one.emitted, one.read, 0.25) for one in rows]

    @contextmanager
    def from_kafka(*_args, **_named):
        yield None

    class Source:
        topic = "flights"

    class Definition:
        source = ("flights", Source)

    patch_effect(monkeypatch, "current_fingerprint", lambda *_: FINGERPRINT)
    patch_effect(monkeypatch, "load_state_definition", lambda *_: Definition)
    patch_effect(monkeypatch, "equivalent_bundles", lambda *_: {"b"})
    patch_effect(monkeypatch, "oldest_offsets", lambda *_, **__: {"flights": begin})
    monkeypatch.setattr(restore_checks.kafka, "begin_offsets", lambda *_: begin)
    monkeypatch.setattr(restore_checks.kafka, "topic_id", lambda *_: "id")
    patch_effect(monkeypatch, "session_of", lambda *_: None)
    patch_effect(monkeypatch, "replay_source", from_kafka)
    patch_effect(monkeypatch, "replay_recorded", replay_files)
    return World(settings, home, taken, begin)


@pytest.fixture
def planned_world(world, monkeypatch):
    """The same home, whose live checkpoint has finished batch 6, the last one committed; whoever replays is counted."""
    catch_checkpoint_up(world.home, "t1", finished=6)
    patch_effect(monkeypatch, "load_bundle_definition", lambda *_: None)
    patch_effect(monkeypatch, "rule_of", lambda *_: WatermarkRule({"flights": 0}))
    return world


@pytest.fixture(scope="session")
def rewind_template(tmp_path_factory):
    """Batches 0..6 are committed with their rows, a proved savepoint stands at 3."""
    folder = tmp_path_factory.mktemp("rewind")
    make_template(folder)
    return folder


@pytest.fixture
def rewind_world(rewind_template, tmp_path, monkeypatch):
    """A copy of it; the driver that catches up only writes batches."""
    made = RewindWorld(rewind_template, tmp_path)
    patch_effect(monkeypatch, "read_definition", lambda *_: DEFINITION)
    patch_effect(monkeypatch, "current_fingerprint", lambda *_: FINGERPRINT)
    monkeypatch.setattr(rewind_observe.kafka, "begin_offsets", lambda *_: made.begin)
    monkeypatch.setattr(rewind_observe.kafka, "topic_id", lambda *_: "id")
    monkeypatch.setattr(rewind, "run_to_goal", made.catch_up)
    return made
