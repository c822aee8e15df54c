"""A start reads the newest rows of the ledger, and decides as it would over all of them."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from homes.backfill import add_timeline, make_home
from homes.ledger import ledger_row
from rivertwice.core.homes import PipelineHome
from rivertwice.definition.bundle import Bundle
from rivertwice.storage.local import replace_bytes
from rivertwice.stream.begin import is_first_run
from rivertwice.stream.damage import newest_rows_of_run
from rivertwice.stream.gaps import _last_finished
from rivertwice.timeline.committed import bundles_of, committed_batches
from rivertwice.timeline.counts import BatchCounts
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.lineage import Fork, Timeline, path_of, timeline_ledger
from rivertwice.timeline.watermarks import WatermarkRule, watermarks_after

A, B = "a", "b"
RULE = WatermarkRule({A: 1_000, B: 2_000})


def forked(folder: Path, chance: random.Random, length: int) -> PipelineHome:
    """Return a home whose timeline t2 left t1 in its middle; runs of drivers have random lengths."""
    _, home, bundle = make_home(folder, batches=0)
    fork = length // 2
    add_timeline(home, bundle, "t2", Fork("t1", fork), fork + 1)
    rows, epoch = [], 1
    for batch in range(length):
        epoch += chance.random() < 0.1
        shares = {
            topic: BatchCounts(5, 0, 5, 0, 1_000 * (batch + chance.randrange(9)))
            if chance.random() < 0.8
            else BatchCounts()
            for topic in (A, B)
        }
        name = "t1" if batch <= fork else "t2"
        rows.append(ledger_row(batch, name, bundle=bundle.id, epoch=epoch, by_topic=shares))
    append_ledger(home, rows)
    return home


@pytest.mark.parametrize("seed", range(8))
def test_watermarks_of_several_sources_follow_from_the_rows_of_their_runs(tmp_path: Path, seed: int) -> None:
    home = forked(tmp_path, random.Random(seed), 60)
    whole = timeline_ledger(home, "t2")
    path = path_of(home, "t2")
    newest = newest_rows_of_run(home, replace(committed_batches(home, path), has_several_topics=True), path)
    assert newest == whole[-len(newest) :]
    for back in range(1, 5):
        assert watermarks_after(newest, RULE, len(newest) - back) == watermarks_after(whole, RULE, len(whole) - back)


def test_one_source_needs_the_newest_rows_alone(tmp_path: Path) -> None:
    home = forked(tmp_path, random.Random(1), 60)
    path = path_of(home, "t2")
    newest = newest_rows_of_run(home, committed_batches(home, path), path)
    assert [row.batch for row in newest] == [55, 56, 57, 58, 59]
    assert newest_rows_of_run(home, committed_batches(home, []), []) == []


def test_a_definition_that_made_any_batch_of_the_path_is_not_new(tmp_path: Path) -> None:
    home = forked(tmp_path, random.Random(2), 10)
    append_ledger(home, [ledger_row(6, "t1", bundle="off the path")])
    bundle = Timeline.load(home, "t1").bundle
    assert bundles_of(home, path_of(home, "t2")) == {bundle}
    assert not is_first_run(home, _bundle(bundle), "t2")
    assert is_first_run(home, _bundle("off the path"), "t2")
    assert not is_first_run(home, _bundle("off the path"), "t1")
    assert is_first_run(home, _bundle(bundle), None)


@pytest.mark.parametrize(("finished", "expected"), [(None, None), (0, 0), (4, 4), (7, 7), (9, 9), (30, 9)])
def test_the_last_finished_batch_is_of_the_path(tmp_path: Path, finished: int | None, expected: int | None) -> None:
    home = forked(tmp_path, random.Random(3), 10)
    if finished is not None:
        folder = home.checkpoint("t2") / "commits"
        folder.mkdir(parents=True)
        replace_bytes(folder / str(finished), b"v1")
    row = _last_finished(home, Timeline.load(home, "t2"))
    assert (None if row is None else row.batch) == expected


def _bundle(identity: str) -> Bundle:
    class Named:
        id = identity

    return Named()  # type: ignore[return-value]
