"""Data files of `served`: of bounded size, in the order of windows, so a publication writes few rows again whatever the table's size."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from homes.backfill import HOUR, make_home
from homes.ledger import NOW
from lab.bench.history import KEYS, fill, rows_of
from rivertwice.core.homes import PipelineHome
from rivertwice.definition.bundle import Bundle
from rivertwice.storage.table import Table
from rivertwice.timeline import served, upkeep
from rivertwice.timeline.sequence import last_seq, publish
from rivertwice.timeline.served import Way, read_served, rebuild_served
from rivertwice.timeline.serving import Publication
from rivertwice.timeline.upkeep import keep_up

BATCHES = 1_200


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[PipelineHome, Bundle]:
    """A home whose stream closed 1,200 hours of 50 rows, not served yet, with files of about 50 kB."""
    for module in (served, upkeep):
        monkeypatch.setattr(module, "SERVED_FILE_BYTES", 50_000)
    _, home, bundle = make_home(tmp_path, batches=1)
    fill(home, bundle.id, 1, BATCHES)
    return home, bundle


def publish_hours(home: PipelineHome, bundle: Bundle, first: int, count: int = 10) -> None:
    """Publish hours, each row with 1 more than the stream counted."""
    seq = last_seq(home) + 1
    rows = rows_of(first + 1, first + count + 1).drop_columns(["_timeline", "_batch"])
    more = pa.array([n + 1 for n in rows["n"].to_pylist()], pa.int64())
    rows = rows.set_column(rows.column_names.index("n"), "n", more)
    backfill = pa.array([f"bf-{seq}"] * rows.num_rows, pa.string())
    Table(home.tables.corrections, partition_by=["_day"]).append(rows.append_column("_backfill", backfill))
    ranges = ((first * HOUR, (first + count) * HOUR),)
    semantics = bundle.fingerprint.semantics
    entry = Publication(seq, f"bf-{seq}", ranges, semantics, bundle.id, {}, rows=rows.num_rows)
    publish(home, entry.to_payload(), expected_seq=seq - 1, now=NOW)


def files(home: PipelineHome) -> dict[str, tuple[int, int, int]]:
    """Return each data file of `served` with its rows and its first and last window start (hours)."""
    rows = pa.table(DeltaTable(str(home.tables.served)).get_add_actions(flatten=True)).to_pylist()
    return {
        row["path"]: (
            row["num_records"],
            int(row["min.window_start"].timestamp()) * 1000 // HOUR,
            int(row["max.window_start"].timestamp()) * 1000 // HOUR,
        )
        for row in rows
    }


def counts(home: PipelineHome) -> dict[tuple[int, str], int]:
    rows = read_served(home)
    assert rows is not None
    starts = [int(start.timestamp()) * 1000 // HOUR for start in rows["window_start"].to_pylist()]
    return dict(zip(zip(starts, rows["k"].to_pylist(), strict=True), rows["n"].to_pylist(), strict=True))


def test_a_publication_writes_again_only_the_files_that_have_its_windows(made: tuple[PipelineHome, Bundle]) -> None:
    home, bundle = made
    assert rebuild_served(home, bundle.definition).way is Way.WHOLE
    before, old = files(home), counts(home)
    assert len(before) > 4
    spans = sorted((low, high) for _, low, high in before.values())
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))
    publish_hours(home, bundle, 600)
    assert rebuild_served(home, bundle.definition).way is Way.REPLACED
    gone = before.keys() - files(home).keys()
    assert gone == {name for name, (_, low, high) in before.items() if low < 610 and high >= 600}
    assert len(gone) <= 2
    assert counts(home) == {at: n + 1 if 600 <= at[0] < 610 else n for at, n in old.items()}
    assert len(old) == (BATCHES - 1) * KEYS


def test_one_large_file_of_an_older_version_is_divided_by_the_first_publication_after_upkeep(
    made: tuple[PipelineHome, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, bundle = made
    with monkeypatch.context() as patched:
        patched.setattr(served, "SERVED_FILE_BYTES", 0)
        rebuild_served(home, bundle.definition)
    assert len(files(home)) == 1
    before = counts(home)
    keep_up(home, now=NOW)
    assert len(files(home)) == 1
    assert counts(home) == before
    publish_hours(home, bundle, 600)
    assert rebuild_served(home, bundle.definition).way is Way.REPLACED
    assert len(files(home)) > 4
    untouched = files(home)
    publish_hours(home, bundle, 300)
    rebuild_served(home, bundle.definition)
    assert len(untouched.keys() - files(home).keys()) <= 2
    published = {at: n + 1 if 600 <= at[0] < 610 or 300 <= at[0] < 310 else n for at, n in before.items()}
    assert counts(home) == published


def test_upkeep_merges_small_files_up_to_the_bound_and_calls_full_ones_not_small(
    made: tuple[PipelineHome, Bundle],
) -> None:
    home, bundle = made
    rebuild_served(home, bundle.definition)
    whole = len(files(home))
    for batch in range(BATCHES, BATCHES + 12):
        fill(home, bundle.id, batch, batch + 1)
        rebuild_served(home, bundle.definition)
    before = counts(home)
    assert len(files(home)) == whole + 12
    (state,) = [each for each in keep_up(home, 10, now=NOW) if each.table == "served"]
    assert state.files_after <= whole + 1
    assert max(rows for rows, _, _ in files(home).values()) < BATCHES * KEYS / 4
    assert counts(home) == before
    (state,) = [each for each in keep_up(home, 10, now=NOW) if each.table == "served"]
    assert "fewer than 10" in state.note
