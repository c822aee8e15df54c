"""What is served after batches, publications and head moves is what one whole build gives, and batches alone only append."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from homes.backfill import HOUR, add_timeline, emitted, make_home, result
from homes.ledger import NOW, ledger_row
from rivertwice.config import PipelineHome
from rivertwice.errors import TableDamageError
from rivertwice.pipeline.bundle import Bundle
from rivertwice.store import delta
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.lineage import Fork, path_ledger
from rivertwice.timeline.sequence import last_seq, move_head, publish, read_sequence
from rivertwice.timeline.served import export_lines, read_served, rebuild_served, rows_served_by, served_stamp
from rivertwice.timeline.serving import Publication


class GrowingHome:
    """A pipeline whose batch n closes hour n-1; its head can fork, and closed hours can be published."""

    def __init__(self, folder: Path, seed: int) -> None:
        _, self.home, self.bundle = make_home(folder, batches=3, closed=2)
        self.chance = random.Random(seed)
        self.timeline, self.batch, self.backfills = "t1", 2, 0

    def commit(self) -> None:
        """Commit a batch that emits some rows of the hour it closes."""
        self.batch += 1
        rows = [(self.batch - 1, key, self.chance.randrange(9)) for key in "abc" if self.chance.random() < 0.7]
        commit(self.home, self.bundle, self.timeline, self.batch, rows)

    def publish(self) -> None:
        """Publish a closed hour with other rows, or with none."""
        hour = self.chance.randrange(self.batch)
        self.backfills += 1
        name = f"bf-{self.backfills}"
        rows = result(*[(hour, key, 100) for key in "abd" if self.chance.random() < 0.5])
        delta.append(
            self.home.tables.corrections, rows.append_column("_backfill", pa.array([name] * rows.num_rows, pa.string()))
        )
        seq = last_seq(self.home) + 1
        window = ((hour * HOUR, (hour + 1) * HOUR),)
        semantics = self.bundle.fingerprint.semantics
        entry = Publication(seq, name, window, semantics, self.bundle.id, {"flights": {0: 1000}})
        publish(self.home, entry.to_payload(), expected_seq=seq - 1, now=NOW)

    def fork(self) -> None:
        """Continue on a child after the last batch, or after an earlier one; the child's first batch is committed."""
        name, at = f"t{len(list(self.home.timelines.iterdir())) + 1}", self.batch - self.chance.randrange(2)
        add_timeline(self.home, self.bundle, name, Fork(self.timeline, at), at + 1)
        self.timeline, self.batch = name, at
        if self.chance.random() < 0.5:
            self.commit()
        move_head(self.home, name, reason="test", expected_seq=last_seq(self.home), now=NOW)


def commit(
    home: PipelineHome, bundle: Bundle, timeline: str, batch: int, rows: list[tuple[int, str, int]], lost: int = 0
) -> None:
    delta.append(
        home.tables.changelog,
        emitted(timeline, batch, *rows),
        transactions={f"p#{timeline}": batch},
        partition_by=["_day"],
    )
    changes = {"bundle": bundle.id, "batch_watermark_ms": batch * HOUR, "emitted": len(rows) + lost}
    append_ledger(home, [ledger_row(batch, timeline, **changes)])


@pytest.mark.parametrize("seed", range(10))
def test_what_grew_by_appends_is_what_a_whole_build_gives(tmp_path: Path, seed: int) -> None:
    world = GrowingHome(tmp_path, seed)
    home, definition = world.home, world.bundle.definition
    appended = []
    rebuild_served(home, definition)
    for _ in range(14):
        act = world.chance.choices([world.commit, world.publish, world.fork], [6, 2, 1])[0]
        act()
        if act == world.commit and world.chance.random() < 0.4:
            act()
        report = rebuild_served(home, definition)
        assert act == world.commit or not report.is_appended
        appended.append(report.is_appended)
        whole = rows_served_by(home, definition, read_sequence(home), path_ledger(home))
        served = read_served(home)
        assert whole is not None
        assert served is not None
        assert export_lines(served) == export_lines(whole)
        assert served_stamp(home) == report.stamp
    assert True in appended


def test_the_cost_of_a_batch_is_that_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = GrowingHome(tmp_path, 1)
    for _ in range(20):
        world.commit()
    rebuild_served(world.home, world.bundle.definition)
    world.commit()
    read: list[int] = []
    real = delta.read

    def counted(path: object, **options: object) -> pa.Table | None:
        rows: pa.Table | None = real(path, **options)  # type: ignore[arg-type]
        if path in (world.home.tables.changelog, world.home.tables.served):
            read.append(0 if rows is None else rows.num_rows)
        return rows

    monkeypatch.setattr(delta, "read", counted)
    report = rebuild_served(world.home, world.bundle.definition)
    assert report.is_appended
    assert read == [report.rows]
    assert report.rows <= 3


def test_rows_that_a_new_batch_lost_are_not_passed_over(tmp_path: Path) -> None:
    world = GrowingHome(tmp_path, 2)
    rebuild_served(world.home, world.bundle.definition)
    stamp = served_stamp(world.home)
    commit(world.home, world.bundle, "t1", 3, [(2, "a", 1)], lost=1)
    with pytest.raises(TableDamageError):
        rebuild_served(world.home, world.bundle.definition)
    assert served_stamp(world.home) == stamp


def test_a_table_that_another_build_has_grown_is_not_appended_to_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = GrowingHome(tmp_path, 3)
    definition = world.bundle.definition
    rebuild_served(world.home, definition)
    world.commit()
    real, left = delta.append_rows, [1]

    def meanwhile(path: object, rows: pa.Table, **options: object) -> int:
        if left[0]:
            left[0] = 0
            at = delta.open_table(path)  # type: ignore[arg-type]
            real(path, rows, **{**options, "at": at})  # type: ignore[arg-type]
        return real(path, rows, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(delta, "append_rows", meanwhile)
    assert not rebuild_served(world.home, definition).rebuilt
    served, whole = (
        read_served(world.home),
        rows_served_by(world.home, definition, read_sequence(world.home), path_ledger(world.home)),
    )
    assert served is not None
    assert whole is not None
    assert export_lines(served) == export_lines(whole)
