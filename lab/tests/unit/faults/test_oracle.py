"""The oracle counts nothing in an exact home, and exactly what was planted in one that is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab.faults.poison import POISON, make_poison
from lab.oracle.__main__ import judge_home, judge_table
from lab.oracle.rules import Record, Row, read_record
from lab.tests.unit.faults.planted import TOPIC, Plant, Planted, make_log, make_planted, write_home

pytestmark = pytest.mark.long

KINDS = ("lost", "duplicated", "wrong", "unexplained")


def judged(folder: Path, plant: Plant = lambda home: None) -> dict[str, Any]:
    home = make_planted(make_log())
    plant(home)
    return judge_home(home.log, write_home(folder, home), TOPIC)


def counts(answer: dict[str, Any]) -> dict[str, int]:
    return {kind: answer[kind] for kind in KINDS if answer[kind]}


def test_an_exact_home_has_nothing_to_count_and_every_record_has_one_place(tmp_path: Path) -> None:
    answer = judged(tmp_path)
    assert counts(answer) == {}
    parts = [answer[part] for part in ("emitted", "open", "late", "dead", "excluded")]
    assert all(parts), parts
    assert sum(parts) == answer["records"] == len(make_log().records)
    assert sum(sum(part.values()) for part in answer["partitions"].values()) == answer["records"]


def drop_row(home: Planted) -> None:
    home.rows.remove(max(home.rows, key=lambda row: row[4]))


def repeat_row(home: Planted) -> None:
    line, batch, *rest = home.rows[0]
    home.rows.append((line, batch + 1, *rest))


def change_sum(home: Planted) -> None:
    *values, total, top = home.rows[5]
    home.rows[5] = (*values, total + 1, top)  # type: ignore[assignment]


def change_count(home: Planted) -> None:
    line, batch, start, key, n, *rest = home.rows[5]
    home.rows[5] = (line, batch, start, key, n + 1, *rest)


def leave_out_a_record(home: Planted) -> None:
    line, batch, start, key, n, *rest = home.rows[5]
    home.rows[5] = (line, batch, start, key, n - 1, *rest)


def invent_row(home: Planted) -> None:
    line, batch, start, _, *rest = home.rows[0]
    home.rows.append((line, batch, start, "nobody", *rest))


def emit_later(home: Planted) -> None:
    line, batch, *rest = home.rows[0]
    home.rows[0] = (line, batch + 1, *rest)


def swap_window_edge(home: Planted) -> None:
    line, batch, start, *rest = home.rows[0]
    home.rows[0] = (line, batch, start + 1, *rest)


def drop_letter(home: Planted) -> None:
    home.letters.pop()


def repeat_letter(home: Planted) -> None:
    home.letters.append(home.letters[0])


def blame_letter(home: Planted) -> None:
    line, batch, _, *rest = home.letters[0]
    home.letters[0] = (line, batch, "whatever", *rest)


def change_letter_bytes(home: Planted) -> None:
    home.letters[0] = (*home.letters[0][:5], b"other bytes")


def bury_the_living(home: Planted) -> None:
    alive = next(one for one in home.log.records.values() if isinstance(read_record(one), Row))
    home.letters.append(("t1", 0, "json", alive.partition, alive.offset, alive.value))


def shift_watermark(home: Planted) -> None:
    row = home.ledger[5]
    row["batch_watermark_ms"] += 1
    meta, offsets = json.dumps({"batchWatermarkMs": row["batch_watermark_ms"]}), row["offsets_text"].splitlines()[2]
    row["offsets_text"] = f"v1\n{meta}\n{offsets}"


def contradict_offsets_file(home: Planted) -> None:
    home.ledger[5]["batch_watermark_ms"] -= 1


def miscount(home: Planted) -> None:
    home.ledger[3]["read"] += 1


def write_by_a_stale_epoch(home: Planted) -> None:
    home.ledger[6]["epoch"] = 1


def leave_a_hole(home: Planted) -> None:
    home.ledger[4]["start_offsets"] = home.ledger[3]["start_offsets"]


def forget_a_record(home: Planted) -> None:
    home.log.changed.append(next(iter(home.log.records)))


@pytest.mark.parametrize(
    ("plant", "kind", "more"),
    [
        (drop_row, "lost", {"unexplained"}),  # and its batch recorded one row more than it has
        (repeat_row, "duplicated", {"unexplained"}),
        (change_sum, "wrong", set()),
        (change_count, "wrong", set()),
        (leave_out_a_record, "lost", {"wrong"}),
        (invent_row, "unexplained", set()),
        (emit_later, "wrong", {"unexplained"}),
        (swap_window_edge, "lost", {"unexplained"}),
        (drop_letter, "lost", set()),
        (repeat_letter, "duplicated", set()),
        (blame_letter, "wrong", set()),
        (change_letter_bytes, "wrong", set()),
        (bury_the_living, "unexplained", set()),
        (shift_watermark, "unexplained", set()),
        (contradict_offsets_file, "unexplained", set()),
        (miscount, "unexplained", set()),
        (write_by_a_stale_epoch, "unexplained", set()),
        (leave_a_hole, "unexplained", {"wrong", "lost", "duplicated"}),
        (forget_a_record, "lost", set()),
    ],
)
def test_what_is_planted_is_counted(tmp_path: Path, plant: Plant, kind: str, more: set[str]) -> None:
    found = counts(judged(tmp_path, plant))
    assert kind in found, found
    assert set(found) <= {kind} | more, found


def test_a_lost_window_counts_each_of_its_records(tmp_path: Path) -> None:
    whole = judged(tmp_path / "whole")
    answer = judged(tmp_path / "lost", drop_row)
    assert answer["lost"] > 1
    assert answer["emitted"] == whole["emitted"] - answer["lost"]


def fork(home: Planted) -> None:
    """Batch 6 and later are written again by a child of t1; the parent goes on, off the path, and says nonsense."""
    at = 6
    home.timelines["t2"] = (("t1", at - 1), at)
    home.head = "t2"
    home.rows += [("t2", *row[1:]) for row in home.rows if row[1] >= at]
    home.letters += [("t2", *letter[1:]) for letter in home.letters if letter[1] >= at]
    home.ledger += [{**row, "timeline": "t2", "epoch": 9} for row in home.ledger if row["batch"] >= at]
    home.rows = [
        (line, batch, start, key, n + (line == "t1" and batch >= at), *rest)
        for line, batch, start, key, n, *rest in home.rows
    ]


def test_only_the_head_s_path_counts(tmp_path: Path) -> None:
    assert counts(judged(tmp_path / "fork", fork)) == {}

    def fork_and_move_back(home: Planted) -> None:
        fork(home)
        home.head = "t1"

    assert set(counts(judged(tmp_path / "back", fork_and_move_back))) == {"wrong"}


def test_a_complete_stream_has_no_record_beyond_its_last_batch(tmp_path: Path) -> None:
    home = make_planted(make_log())
    folder = write_home(tmp_path, home)
    newest = max(home.log.records)
    home.log.records[newest[0], newest[1] + 1] = home.log.records[newest]
    assert counts(judge_home(home.log, folder, TOPIC)) == {}
    assert counts(judge_home(home.log, folder, TOPIC, complete=True)) == {"lost": 1}


def test_rows_of_a_batch_that_nobody_committed_are_not_on_the_path(tmp_path: Path) -> None:
    def stray(home: Planted) -> None:
        home.rows.append(("t9", 0, *home.rows[0][2:]))

    assert counts(judged(tmp_path, stray)) == {}


def test_a_control_job_s_table_is_judged_by_every_window_its_log_closes(tmp_path: Path) -> None:
    log = make_log()
    home = make_planted(log)
    folder = write_home(tmp_path, home)
    answer = judge_table(log, folder / "tables" / "changelog")
    missing = make_planted(log)
    late = judge_home(log, folder, TOPIC)["late"]
    assert late > 0
    assert answer["lost"] + answer["wrong"] > 0  # what came late to a stream is missing from a batch's truth
    assert answer["duplicated"] == answer["unexplained"] == 0
    assert len(missing.rows) == answer["rows"]


def test_every_kind_of_poison_is_refused_by_the_oracle_s_own_decoder() -> None:
    good = {"id": "1", "k": "k1", "at": "2026-01-01T00:00:00Z", "amount": 5}
    reasons = {}
    for kind in POISON:
        made = make_poison(kind, good)
        found = read_record(Record(0, 0, made.value, 1_767_225_600_000, made.headers))
        assert isinstance(found, str), kind.name
        reasons[kind.name] = found
    assert set(reasons.values()) == {
        "tombstone", "empty", "json", "utf8", "schema", "missing", "rule", "schema_id", "size", "future", "transform",
    }  # fmt: skip


def test_the_oracle_runs_without_any_room_of_rivertwice_and_without_spark() -> None:
    code = (
        "import sys, lab.oracle.__main__; "
        "print([name for name in sys.modules if name.split('.')[0] in {'lab', 'rivertwice', 'pyspark', 'py4j', 'airflow'}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(eval(done.stdout))
    assert all(name == "lab" or name.startswith("lab.oracle") for name in loaded), loaded
