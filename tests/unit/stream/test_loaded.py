"""A stream that begins after a first load: killed after any step and started again, it is the same, and serves nothing of a part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from homes.backfill import SQL, YAML, emitted
from homes.first_load import ZONES, make_load
from homes.ledger import NOW, ledger_row
from homes.project import make_project
from rivertwice.core.errors import FingerprintError, LostRaceError
from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import Bundle, build_bundle
from rivertwice.log.leases import RetentionClaim
from rivertwice.retention.view import observe_claims
from rivertwice.storage.table import Table
from rivertwice.stream import begin, loaded
from rivertwice.timeline.first_load import FirstLoad, record_load
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.lineage import Timeline, create_timeline
from rivertwice.timeline.sequence import head, last_seq, move_head, read_sequence
from rivertwice.timeline.served import read_served, rebuild_served
from rivertwice.timeline.served_rows import publications_of


class KilledError(BaseException):
    """The process ends here."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Settings, PipelineHome, Bundle]:
    settings = make_project(tmp_path, {"p": {"pipeline.yaml": YAML, "transform.sql": SQL}})
    home = settings.pipeline("p")
    bundle = build_bundle(settings.definitions / "p")
    bundle.save(home.bundles)
    monkeypatch.setattr(begin.kafka, "topic_id", lambda *_: "id")
    monkeypatch.setattr(begin.kafka, "cluster_id", lambda *_: "c")
    monkeypatch.setattr(begin.kafka, "begin_offsets", lambda *_: {0: 0})
    return settings, home, bundle


def start(settings: Settings, bundle: Bundle) -> Timeline:
    return begin.resolve_timeline(settings, settings.pipeline("p"), bundle.definition, bundle, NOW)


def dies_after(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    effect: Callable[..., Any] = getattr(loaded, name)

    def die(*args: Any, **named: Any) -> None:
        effect(*args, **named)
        raise KilledError(name)

    monkeypatch.setattr(loaded, name, die)


def facts(home: PipelineHome) -> tuple[object, ...]:
    entries = read_sequence(home)
    return (
        [(entry.seq, entry.kind, entry.payload) for entry in entries],
        [(name, Timeline.load(home, name)) for name in Timeline.names(home)],
    )


@pytest.mark.parametrize("step", ["create_timeline", "publish", "move_head"])
def test_a_start_killed_after_any_step_is_continued_by_the_next(
    step: str, project: tuple[Settings, PipelineHome, Bundle], tmp_path: Path
) -> None:
    settings, home, bundle = project
    load = make_load(bundle)
    record_load(home, load, ZONES)
    with pytest.MonkeyPatch.context() as patch:
        dies_after(patch, step)
        with pytest.raises(KilledError):
            start(settings, bundle)
    line = start(settings, bundle)
    assert (line.timeline, line.genesis, line.parent) == ("t1", {"flights": {"0": 40}}, None)
    assert start(settings, bundle) == line
    (cover,) = publications_of(read_sequence(home))
    assert (cover.seq, cover.backfill, cover.ranges, cover.rows) == (1, load.cover, ((0, load.before_ms),), 0)
    assert cover.as_of == {"flights": {0: 0}}
    killed = facts(home)
    other = replace(settings, home=tmp_path / "never killed")
    bundle.save(other.pipeline("p").bundles)
    record_load(other.pipeline("p"), load, ZONES)
    start(other, bundle)
    assert facts(other.pipeline("p")) == killed


def test_a_load_takes_a_timeline_that_an_earlier_start_did_not(
    project: tuple[Settings, PipelineHome, Bundle],
) -> None:
    """A plain start was killed before it moved the head; the load is of the next name."""
    settings, home, bundle = project
    create_timeline(home, replace(make_load(bundle).first_timeline(), genesis={"flights": {"0": 0}}))
    record_load(home, make_load(bundle, timeline="t2"), ZONES)
    assert start(settings, bundle).genesis == {"flights": {"0": 40}}
    assert head(home) == "t2"


def test_a_first_start_that_slept_does_not_move_the_head_back(
    project: tuple[Settings, PipelineHome, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it sleeps after its look at the sequence, another host's start and a restore let t2 serve."""
    settings, home, bundle = project

    def slept(_: PipelineHome) -> None:
        first = replace(make_load(bundle).first_timeline(), genesis={"flights": {"0": 0}})
        for name in ("t1", "t2"):
            create_timeline(home, replace(first, timeline=name))
            move_head(home, name, reason="another host", expected_seq=last_seq(home), now=NOW)

    monkeypatch.setattr(FirstLoad, "load", slept)
    with pytest.raises(LostRaceError, match="the sequence of p is at 2, not at 0"):
        start(settings, bundle)
    assert head(home) == "t2"


@pytest.mark.parametrize("serves", [False, True])
def test_a_timeline_that_a_start_made_is_not_taken_for_the_load_s(
    serves: bool, project: tuple[Settings, PipelineHome, Bundle]
) -> None:
    """A first start of another host slept while the load was recorded, and began t1 at the log's beginning."""
    settings, home, bundle = project
    load = make_load(bundle)
    record_load(home, load, ZONES)
    create_timeline(home, replace(load.first_timeline(), genesis={"flights": {"0": 0}}))
    if serves:
        move_head(home, "t1", reason="first start", expected_seq=0, now=NOW)
    with pytest.raises(LostRaceError, match="a first start made it while the load was recorded") as refused:
        loaded.begin_after_load(home, load, NOW)
    assert publications_of(read_sequence(home)) == []
    record = home.root / "first_load" / "load.json"
    assert f"remove load.json in {record.parent}" in str(refused.value)
    record.unlink()
    assert FirstLoad.load(home) is None
    assert start(settings, bundle).genesis == {"flights": {"0": 0}}


def test_a_definition_that_changed_since_the_load_does_not_start(
    project: tuple[Settings, PipelineHome, Bundle],
) -> None:
    settings, home, bundle = project
    hashes = {**bundle.fingerprint.hashes(), "decode": "other"}
    record_load(home, make_load(bundle, fingerprint=hashes), ZONES)
    with pytest.raises(FingerprintError, match="changed in decode"):
        start(settings, bundle)


def begun(settings: Settings, home: PipelineHome, bundle: Bundle) -> FirstLoad:
    """Begin after a load; the stream's first batch closes hour 3, of which it has read a part, and hour 4."""
    load = make_load(bundle)
    record_load(home, load, ZONES)
    start(settings, bundle)
    ends = {"start_offsets": {"flights": {"0": 40}}, "end_offsets": {"flights": {"0": 60}}}
    append_ledger(home, [ledger_row(0, bundle=bundle.id, batch_watermark_ms=5 * 3_600_000, emitted=2, **ends)])
    rows = emitted("t1", 0, (3, "a", 1), (4, "a", 10))
    Table(home.tables.changelog, partition_by=["_day"]).append(rows, transactions={"p#t1": 0})
    return load


@pytest.mark.proves("architecture.md#the-past-by-batch-the-present-by-stream")
def test_what_the_stream_makes_of_a_part_is_not_served(project: tuple[Settings, PipelineHome, Bundle]) -> None:
    settings, home, bundle = project
    begun(settings, home, bundle)
    rebuild_served(home, bundle.definition)
    served = read_served(home)
    assert served is not None
    assert served["n"].to_pylist() == [10]


def test_what_the_stream_leaves_out_is_claimed(project: tuple[Settings, PipelineHome, Bundle]) -> None:
    settings, home, bundle = project
    begun(settings, home, bundle)
    ((_, _, claims),) = observe_claims(settings, "p")
    assert RetentionClaim("first load", "load", {0: (0, 40)}) in claims
    assert RetentionClaim("reconcile", "truth", {0: (40, 60)}) in claims


def test_a_first_start_that_slept_leaves_the_checkpoint_of_a_stream_that_began_meanwhile(
    project: tuple[Settings, PipelineHome, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, home, bundle = project
    offsets, names = home.checkpoint("t1") / "offsets" / "0", Timeline.names

    def sleeps(_: PipelineHome) -> list[str]:
        """Look at the timelines; before the look is used, a driver of another host begins, and commits."""
        seen = names(home)
        with monkeypatch.context() as other:
            other.setattr(Timeline, "names", names)
            start(settings, bundle)
        offsets.parent.mkdir(parents=True)
        offsets.write_text("v1")
        return seen

    monkeypatch.setattr(Timeline, "names", sleeps)
    with pytest.raises(LostRaceError):
        start(settings, bundle)
    assert offsets.read_text() == "v1"


def test_a_first_start_removes_the_checkpoint_of_a_timeline_that_has_no_record(
    project: tuple[Settings, PipelineHome, Bundle],
) -> None:
    settings, home, bundle = project
    remains = home.checkpoint("t1") / "offsets" / "0"
    remains.parent.mkdir(parents=True)
    remains.write_text("v1")
    assert start(settings, bundle).timeline == "t1"
    assert not remains.exists()
