"""Which recorded batches one batch of Spark may replay, to which of them its rows belong, and what it leaves in the checkpoint."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from histories.kinds import make_definition
from homes.savepoint import row
from rivertwice.core.errors import CheckpointError, ReplayMismatchError
from rivertwice.core.instants import EPOCH
from rivertwice.savepoint.merged import (
    FEWEST,
    MOST_EACH,
    MOST_EMITTED,
    MOST_READ,
    Step,
    find_obstacle,
    link_checkpoint,
    may_merge,
    plan_steps,
    renumber,
    split_rows,
)
from rivertwice.timeline.ledger import LedgerRow

EXACT = {("Count", "integer"), ("Sum", "long"), ("Max", "string"), ("Percentile", "integer"), ("Sum", "decimal(12,2)")}


def rows_at(*watermarks_s: int, read: int = 1, emitted: int = 0) -> list[LedgerRow]:
    """Return recorded batches with these watermarks, from batch 5 on."""
    return [
        row(5 + number, batch_watermark_ms=watermark_s * 1000, read=read, emitted=emitted)
        for number, watermark_s in enumerate(watermarks_s)
    ]


@pytest.mark.parametrize("kind", ["tumbling", "hopping", "tumbling computed keys", "hopping renamed key"])
def test_windows_of_their_own_times_are_merged(kind: str) -> None:
    assert find_obstacle(make_definition(kind), EXACT) is None


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("session", "depend on more than the records of their own times"),
        ("joined intervals", "depend on more than the records of their own times"),
        ("joined sources", "depend on more than the records of their own times"),
        ("as-of intervals", "depend on more than the records of their own times"),
        ("rolling intervals", "depend on more than the records of their own times"),
        ("fold", "depend on more than the records of their own times"),
        ("fold of sources", "depend on more than the records of their own times"),
        ("tumbling updates", "emit: updates"),
        ("hopping updates", "emit: updates"),
    ],
)
def test_all_other_kinds_are_replayed_one_by_one(kind: str, reason: str) -> None:
    assert reason in (find_obstacle(make_definition(kind)) or "")
    assert not may_merge(make_definition(kind), rows_at(*range(FEWEST)))


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        ("Sum", "double"),
        ("Sum", "float"),
        ("Average", "double"),
        ("Average", "long"),
        ("Max", "double"),
        ("Percentile", "double"),
        ("Sum", "decimal(29,2)"),
        ("StddevSamp", "integer"),
        ("First", "string"),
        ("CollectList", "integer"),
        ("Max", "struct"),
        ("TrySum", "long"),
    ],
)
def test_what_may_depend_on_the_order_of_records_is_replayed_one_by_one(function: str, kind: str) -> None:
    assert find_obstacle(make_definition("tumbling"), EXACT | {(function, kind)}) == (
        f"{function} of {kind} may depend on the order of the records"
    )


def test_few_batches_and_large_ones_are_replayed_one_by_one() -> None:
    definition = make_definition("tumbling")
    assert may_merge(definition, rows_at(*range(FEWEST)))
    assert not may_merge(definition, rows_at(*range(FEWEST - 1)))
    assert not may_merge(definition, rows_at(*range(FEWEST), read=MOST_EACH + 1))


def numbers(steps: list[Step]) -> list[list[int]]:
    return [[each.batch for each in step.rows] for step in steps]


def test_one_batch_of_spark_takes_all_that_it_may() -> None:
    rows = rows_at(10, 20, 30, 40)
    steps = plan_steps(rows, [None] * 4, 0)
    assert (numbers(steps), [step.number for step in steps]) == ([[5, 6, 7, 8]], [5])


def test_a_row_that_is_late_for_some_of_its_windows_begins_another() -> None:
    rows = rows_at(10, 20, 30, 40)
    # Batch 7 has a row whose window to 15 s is late: by the watermark 20 of batch 6, not by the first one, 0.
    steps = plan_steps(rows, [None, None, 15_000, None], 0)
    assert (numbers(steps), [step.number for step in steps]) == ([[5, 6], [7, 8]], [5, 6])
    # The first watermark drops it, too.
    assert numbers(plan_steps(rows, [None, None, 15_000, None], 15_000)) == [[5, 6, 7, 8]]
    # From batch 7 on the first watermark is 20.
    assert numbers(plan_steps(rows, [None, None, 15_000, 20_000], 0)) == [[5, 6], [7, 8]]
    assert numbers(plan_steps(rows, [None, None, 15_000, 20_001], 0)) == [[5, 6], [7], [8]]


def test_one_batch_of_spark_has_a_largest_size_and_does_not_begin_with_an_empty_one() -> None:
    half = MOST_READ // 2
    assert numbers(plan_steps(rows_at(1, 2, 3, 4, read=half), [None] * 4, 0)) == [[5, 6], [7, 8]]
    assert numbers(plan_steps(rows_at(1, 2, 3, emitted=MOST_EMITTED), [None] * 3, 0)) == [[5], [6], [7]]
    full, empty = rows_at(1, read=MOST_READ), [row(6, read=0, batch_watermark_ms=2000)]
    assert numbers(plan_steps([*full, *empty], [None] * 2, 0)) == [[5, 6]]


def table_of(*ends_s: float) -> pa.Table:
    ends = [EPOCH + timedelta(seconds=end_s) for end_s in ends_s]
    return pa.table({"n": range(len(ends)), "window_end": pa.array(ends, pa.timestamp("us", "UTC"))})


def test_a_row_belongs_to_the_first_batch_whose_watermark_reaches_the_end_of_its_window() -> None:
    rows = rows_at(10, 10, 20, 30)
    parts = split_rows(table_of(30, 10, 5, 10.001, 20), "window_end", rows)
    assert [part["n"].to_pylist() for part in parts] == [[1, 2], [], [3, 4], [0]]
    assert [part.num_rows for part in split_rows(table_of(), "window_end", rows)] == [0, 0, 0, 0]


def test_a_row_that_no_batch_closed_is_a_mismatch() -> None:
    with pytest.raises(ReplayMismatchError, match="none of their watermarks closed"):
        split_rows(table_of(10.001), "window_end", rows_at(5, 10))


def make_checkpoint(folder: Path, version: int, ids: dict[str, list[list[str]]], watermark_ms: int = 7) -> Path:
    """Make what two steps leave, numbered 5 and 6, over a state of version 5."""
    for log in ("offsets", "commits"):
        (folder / log).mkdir(parents=True)
        for number in (3, 4, 5, 6):
            values = {"nextBatchWatermarkMs": watermark_ms, "stateUniqueIds": ids}
            (folder / log / str(number)).write_text("v2\n" + json.dumps(values))
            (folder / log / f".{number}.crc").write_bytes(b"crc")
    state = folder / "state/0/0"
    (state / "SSTs").mkdir(parents=True)
    (state / "_metadata").mkdir()
    for name in ("5_old.zip", "6_first.zip", ".6_first.zip.crc", f"{version}_a.zip", f".{version}_a.zip.crc"):
        (state / name).write_text(name)
    (state / "SSTs" / "000008-x.sst").write_text("sst")
    (state / "_metadata" / "schema").write_text("schema")
    return folder


def test_the_state_gets_the_version_of_the_last_recorded_batch(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "c", 7, {"0": [["a"]]})
    rows = [row(number, offsets_text=f"of {number}") for number in range(5, 12)]
    renumber(checkpoint, [Step(5, rows[:3]), Step(6, rows[3:])], next_ms=7, retained=4)
    assert sorted(path.name for path in (checkpoint / "state/0/0").iterdir()) == [
        ".12_a.zip.crc", "12_a.zip", "5_old.zip", "SSTs", "_metadata",
    ]  # fmt: skip
    assert [path.name for path in (checkpoint / "commits").iterdir()] == ["11"]
    assert {path.name: path.read_text() for path in (checkpoint / "offsets").iterdir()} == {
        str(number): f"of {number}" for number in range(8, 12)
    }


def test_a_state_that_is_not_whole_or_a_watermark_of_another_is_refused(tmp_path: Path) -> None:
    rows = [row(number, offsets_text=f"of {number}") for number in range(5, 12)]
    steps = [Step(5, rows[:3]), Step(6, rows[3:])]
    for name, checkpoint, next_ms in (
        ("no snapshot", make_checkpoint(tmp_path / "other", 7, {"0": [["b"]]}), 7),
        ("no snapshot", make_checkpoint(tmp_path / "none", 7, {}), 7),
        ("the watermark 7, the ledger gives 8", make_checkpoint(tmp_path / "late", 7, {"0": [["a"]]}), 8),
    ):
        with pytest.raises(CheckpointError, match=name):
            renumber(checkpoint, steps, next_ms=next_ms, retained=4)


def test_a_linked_copy_shares_the_files_of_the_state_alone(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "c", 7, {})
    link_checkpoint(source, tmp_path / "copy")
    for path in (each for each in source.rglob("*") if each.is_file()):
        other = tmp_path / "copy" / path.relative_to(source)
        assert other.read_bytes() == path.read_bytes()
        assert other.samefile(path) is ("state" in path.parts)
