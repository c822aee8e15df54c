"""What is served after batches, publications and head moves is what one whole build gives, and only what changed is read."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from homes.backfill import HOUR, add_timeline, emitted, make_home, result
from homes.ledger import NOW, ledger_row
from rivertwice.core.errors import TableDamageError
from rivertwice.core.homes import PipelineHome
from rivertwice.definition.bundle import Bundle
from rivertwice.storage.snapshot import Snapshot
from rivertwice.storage.table import Table
from rivertwice.storage.table_care import live_files
from rivertwice.storage.table_log import entry_path
from rivertwice.timeline import served
from rivertwice.timeline.ledger import LEDGER_KEY, append_ledger
from rivertwice.timeline.lineage import Fork, Timeline, path_ledger
from rivertwice.timeline.sequence import last_seq, move_head, publish, read_sequence
from rivertwice.timeline.served import Way, export_sha256, open_rows, read_served, rebuild_served
from rivertwice.timeline.served_rows import export_lines, newest_rows, rows_served_by, stream_rows
from rivertwice.timeline.served_stamp import provisional_stamp, read_served_stamp
from rivertwice.timeline.serving import Publication


class GrowingHome:
    """A pipeline whose batch n closes hour n-1; its head can fork, and any hours can be published.

    With updates, a batch emits rows of the hour that it closes and of the three after it.
    """

    def __init__(self, folder: Path, seed: int, emit: str = "final") -> None:
        _, self.home, self.bundle = make_home(folder, batches=3, closed=2, emit=emit)
        self.definition = self.bundle.definition
        self.chance = random.Random(seed)
        self.timeline, self.batch, self.backfills = "t1", 2, 0

    def commit(self) -> None:
        """Commit a batch that emits some rows."""
        self.batch += 1
        hours = range(self.batch - 1, self.batch + 3) if self.definition.has_updates else [self.batch - 1]
        rows = [(hour, key, self.chance.randrange(9)) for hour in hours for key in "abc" if self.chance.random() < 0.7]
        commit(self.home, self.bundle, self.timeline, self.batch, rows)

    def commit_some(self) -> None:
        for _ in range(self.chance.choice([1, 1, 2, 4])):
            self.commit()

    def publish(self, pieces: int | None = None) -> None:
        """Publish some hours with other rows, or with none; some may still be open, and some be published once more."""
        hours = set()
        for _ in range(pieces or self.chance.choice([1, 1, 3])):
            first = self.chance.randrange(self.batch + 2)
            hours |= set(range(first, first + self.chance.choice([1, 1, 4])))
        self.backfills += 1
        is_repeat = self.backfills > 2 and self.chance.random() < 0.2
        name = f"bf-{self.backfills - 2 if is_repeat else self.backfills}"
        rows = result(*[(hour, key, 100 + hour) for hour in hours for key in "abd" if self.chance.random() < 0.5])
        Table(self.home.tables.corrections).append(
            rows.append_column("_backfill", pa.array([name] * rows.num_rows, pa.string()))
        )
        seq = last_seq(self.home) + 1
        windows = tuple((hour * HOUR, (hour + 1) * HOUR) for hour in sorted(hours))
        semantics = Timeline.load(self.home, self.timeline).fingerprint["semantics"]
        entry = Publication(seq, name, windows, semantics, self.bundle.id, {"flights": {0: 1000}}, rows=rows.num_rows)
        publish(self.home, entry.to_payload(), expected_seq=seq - 1, now=NOW)

    def fork(self) -> None:
        """Move the head to a child that left the path at its last batch or before, and has batches already, or has none."""
        at = max(1, self.batch - self.chance.choice([0, 0, 1, 3, 6]))
        parent = next(row.timeline for row in path_ledger(self.home) if row.batch == at)
        name = f"t{len(list(self.home.timelines.iterdir())) + 1}"
        semantics = "other" if self.chance.random() < 0.2 else None
        add_timeline(self.home, self.bundle, name, Fork(parent, at), at + 1, semantics)
        self.timeline, self.batch = name, at
        for _ in range(self.chance.choice([0, 1, 2, 5])):
            self.commit()
        move_head(self.home, name, reason="test", expected_seq=last_seq(self.home), now=NOW)

    def corrections(self) -> list[int]:
        """Return the number column of all corrections."""
        rows = Table(self.home.tables.corrections).read()
        return [] if rows is None else list(rows["n"].to_pylist())

    def require_same_as_whole(self) -> None:
        """Check both tables against one choice from all rows."""
        ledger = path_ledger(self.home)
        whole, shown = (
            rows_served_by(self.home, self.definition, read_sequence(self.home), ledger),
            read_served(self.home),
        )
        assert whole is not None
        assert shown is not None
        assert export_lines(shown) == export_lines(whole)
        if self.definition.has_updates:
            emitted_rows, still_open = stream_rows(self.home), Table(self.home.tables.provisional).read()
            assert emitted_rows is not None
            assert still_open is not None
            newest = newest_rows(emitted_rows, self.definition)
            assert export_lines(still_open) == export_lines(
                open_rows(newest, self.definition, ledger[-1].batch_watermark_ms)
            )
            assert provisional_stamp(self.home) == read_served_stamp(self.home)


def commit(
    home: PipelineHome, bundle: Bundle, timeline: str, batch: int, rows: list[tuple[int, str, int]], lost: int = 0
) -> None:
    changes = {"bundle": bundle.id, "batch_watermark_ms": batch * HOUR, "emitted": len(rows) + lost}
    row = ledger_row(batch, timeline, **changes)
    Table(home.tables.changelog, partition_by=["_day"]).append(
        emitted(timeline, batch, *rows), transactions={f"p#{timeline}": batch}, metadata={LEDGER_KEY: row.to_json()}
    )
    append_ledger(home, [row])


@pytest.fixture
def counted_reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the rows that are read of each table."""
    rows_read: Counter[str] = Counter()
    real = Snapshot.read

    def counted(snapshot: Snapshot, **options: object) -> pa.Table:
        rows: pa.Table = real(snapshot, **options)  # type: ignore[arg-type]
        rows_read[Path(snapshot.place).name] += rows.num_rows
        return rows

    monkeypatch.setattr(Snapshot, "read", counted)
    return rows_read


@pytest.mark.proves("guarantees.md#served")
@pytest.mark.parametrize("emit", ["final", "updates"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 6))])
def test_what_is_kept_by_change_is_what_a_whole_build_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, emit: str
) -> None:
    if seed % 2:  # gaps between ranges are covered too
        monkeypatch.setattr(served, "MOST_RANGES", 1)
    world = GrowingHome(tmp_path, seed, emit)
    ways: Counter[Way] = Counter()
    rebuild_served(world.home, world.definition)
    for _ in range(12):
        for act in world.chance.choices(
            [world.commit_some, world.publish, world.fork], [5, 3, 2], k=world.chance.choice([1, 1, 2])
        ):
            act()
        report = rebuild_served(world.home, world.definition)
        ways[report.way] += 1
        world.require_same_as_whole()
        assert read_served_stamp(world.home) == report.stamp
    assert ways[Way.APPENDED] > 0
    assert ways[Way.REPLACED] > 0
    sha256 = export_sha256(world.home)
    assert rebuild_served(world.home, world.definition, force=True).way is Way.WHOLE
    assert export_sha256(world.home) == sha256
    world.require_same_as_whole()


@pytest.mark.parametrize("emit", ["final", "updates"])
def test_the_cost_of_a_batch_is_that_batch(tmp_path: Path, counted_reads: Counter[str], emit: str) -> None:
    world = GrowingHome(tmp_path, 1, emit)
    for _ in range(20):
        world.commit()
    rebuild_served(world.home, world.definition)
    world.commit()
    counted_reads.clear()
    report = rebuild_served(world.home, world.definition)
    assert report.way is Way.APPENDED
    assert 0 < report.rows <= 3
    assert counted_reads["served"] == 0
    assert counted_reads["changelog"] <= 12
    assert counted_reads["provisional"] <= 9
    assert counted_reads["ledger"] <= 3


def test_the_cost_of_a_publication_is_its_rows(tmp_path: Path, counted_reads: Counter[str]) -> None:
    world = GrowingHome(tmp_path, 4)
    for _ in range(20):
        world.commit()
        world.publish(1)
    rebuild_served(world.home, world.definition)
    world.publish(1)
    counted_reads.clear()
    report = rebuild_served(world.home, world.definition)
    assert report.way is Way.REPLACED
    assert (counted_reads["changelog"], counted_reads["served"]) == (0, 0)
    assert counted_reads["corrections"] < 40 < len(world.corrections())


@pytest.mark.parametrize("emit", ["final", "updates"])
def test_the_cost_of_a_head_move_is_what_follows_the_fork(
    tmp_path: Path, counted_reads: Counter[str], emit: str
) -> None:
    world = GrowingHome(tmp_path, 5, emit)
    for _ in range(30):
        world.commit()
    rebuild_served(world.home, world.definition)
    add_timeline(world.home, world.bundle, "t2", Fork("t1", 30), 31)
    world.timeline, world.batch = "t2", 30
    world.commit()
    move_head(world.home, "t2", reason="test", expected_seq=1, now=NOW)
    counted_reads.clear()
    assert rebuild_served(world.home, world.definition).way is Way.REPLACED
    assert counted_reads["served"] == 0
    assert counted_reads["changelog"] <= (6 if emit == "final" else 80)
    counted_reads.clear()
    add_timeline(world.home, world.bundle, "t3", Fork("t2", 31), 32)
    move_head(world.home, "t3", reason="test", expected_seq=2, now=NOW)
    report = rebuild_served(world.home, world.definition)
    assert (report.way, report.rows, counted_reads["changelog"]) == (Way.APPENDED, 0, 0)


def test_rows_that_a_new_batch_lost_are_not_passed_over(tmp_path: Path) -> None:
    world = GrowingHome(tmp_path, 2)
    rebuild_served(world.home, world.definition)
    stamp = read_served_stamp(world.home)
    commit(world.home, world.bundle, "t1", 3, [(2, "a", 1)], lost=1)
    with pytest.raises(TableDamageError):
        rebuild_served(world.home, world.definition)
    assert read_served_stamp(world.home) == stamp


def test_rows_of_a_window_open_at_the_fork_that_are_gone_are_noticed(tmp_path: Path) -> None:
    world = GrowingHome(tmp_path, 2, "updates")
    commit(world.home, world.bundle, "t1", 3, [(4, "a", 1)])
    commit(world.home, world.bundle, "t1", 4, [(4, "a", 2)])
    commit(world.home, world.bundle, "t1", 5, [(5, "b", 2)])
    rebuild_served(world.home, world.definition)
    add_timeline(world.home, world.bundle, "t2", Fork("t1", 4), 5)
    move_head(world.home, "t2", reason="test", expected_seq=1, now=NOW)
    rows = Table(world.home.tables.changelog).read()
    assert rows is not None
    Table(world.home.tables.changelog).overwrite(rows.filter(pa.compute.field("_batch") != 4))
    with pytest.raises(TableDamageError):
        rebuild_served(world.home, world.definition)


@pytest.mark.parametrize("table", ["served", "provisional"])
@pytest.mark.parametrize("how", ["torn", "gone"])
def test_a_kept_table_that_a_power_loss_damaged_is_built_whole(tmp_path: Path, table: str, how: str) -> None:
    world = GrowingHome(tmp_path, 6, "updates")
    place = getattr(world.home.tables, table)
    for _ in range(3):
        rebuild_served(world.home, world.definition)
        world.commit()
    if how == "torn":
        entry_path(place, 1).write_bytes(b"")
    else:
        handle = Table(place).open()
        assert handle is not None
        next(place / name for name in sorted(live_files(handle)) if (place / name).exists()).unlink()
    assert rebuild_served(world.home, world.definition).way is Way.WHOLE
    world.require_same_as_whole()


@pytest.mark.parametrize("act", ["commit", "publish"])
def test_a_table_that_another_build_has_written_is_not_changed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    world = GrowingHome(tmp_path, 3)
    rebuild_served(world.home, world.definition)
    getattr(world, act)()
    left = [1]

    def twice(real: Callable[..., int]) -> Callable[..., int]:
        def write(table: Table, rows: pa.Table, **options: object) -> int:
            if left[0]:
                left[0] = 0
                real(table, rows, **{**options, "at": table.open()})
            return real(table, rows, **options)

        return write

    for name in ("append_rows", "replace_rows"):
        monkeypatch.setattr(Table, name, twice(getattr(Table, name)))
    assert not rebuild_served(world.home, world.definition).rebuilt
    world.require_same_as_whole()
