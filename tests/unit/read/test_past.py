"""The tab of correctness over a past on disk: what it counts is what the reconcile counted, and it reads what is shown alone."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from homes.cockpit import EACH, FIRST, Past, make_past, start_of
from rivertwice.core.errors import RequestError
from rivertwice.core.instants import from_ms
from rivertwice.core.plain import to_plain
from rivertwice.core.settings import Settings
from rivertwice.read.backfills import list_of_backfills
from rivertwice.read.cell_rows import explain_for_page, read_cell
from rivertwice.read.heatmap import HeatmapQuery, read_heatmap
from rivertwice.read.lateness import read_lateness
from rivertwice.read.selection import describe_backfill
from rivertwice.read.trouble import describe_correctness
from rivertwice.storage.snapshot import Snapshot
from rivertwice.timeline.judgements import verdicts_of

PAST = Past(days=33, keys=4, unrepaired=2)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return make_past(tmp_path_factory.mktemp("past"), PAST)


@pytest.mark.parametrize("pair", ["served", "stream"])
@pytest.mark.parametrize("level", ["window", "day", "month"])
def test_columns_count_what_the_newest_reconcile_counted(settings: Settings, pair: str, level: str) -> None:
    shown = to_plain(read_heatmap(settings, "p", HeatmapQuery(pair=pair, level=level)))
    counted = {word: sum(numbers) for word, numbers in shown["columns"].items()}
    assert counted == {word: number for word, number in shown["counts"].items() if number}


def test_each_served_row_of_a_closed_window_has_a_letter(settings: Settings) -> None:
    shown = to_plain(read_heatmap(settings, "p", HeatmapQuery(level="window")))
    assert shown["count"] == 3 * PAST.days
    assert {len(line) for line in shown["letters"]} == {shown["count"]}
    closed = [line[: 3 * PAST.closed] for line in shown["letters"]]
    assert all(" " not in line for line in closed)
    assert sum(line.count("L") for line in closed) == shown["counts"]["LATE"]
    assert sum(line.count("A") for line in closed) == shown["counts"]["AGREES"]


def test_the_worst_key_is_first_and_the_rest_comes_by_pages(settings: Settings) -> None:
    pages = [to_plain(read_heatmap(settings, "p", HeatmapQuery(skip=skip, limit=2))) for skip in (0, 2)]
    labels = [key["label"] for page in pages for key in page["keys"]]
    assert labels[:2] == ["k000", "k003"]  # a DEFECT, and one that cannot be compared
    assert sorted(labels) == PAST.names
    assert [page["is_last"] for page in pages] == [False, True]
    assert pages[0]["keys"][0]["rows"]["DEFECT"] == 1


def test_keys_are_found_by_their_text(settings: Settings) -> None:
    assert [key["label"] for key in to_plain(read_heatmap(settings, "p", HeatmapQuery(text="K002")))["keys"]] == [
        "k002"
    ]
    assert to_plain(read_heatmap(settings, "p", HeatmapQuery(text="%")))["keys"] == []


def test_a_range_shows_its_columns_alone(settings: Settings) -> None:
    shown = to_plain(
        read_heatmap(settings, "p", HeatmapQuery(start=from_ms(start_of(3)), end=from_ms(start_of(4)), level="window"))
    )
    assert (shown["start_ms"], shown["count"]) == (start_of(3), 3)


def test_no_row_of_a_window_that_is_not_shown_is_read(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Snapshot.read
    starts = []

    def watched(*arguments: object, **named: object) -> object:
        rows = read(*arguments, **named)  # type: ignore[arg-type]
        if rows is not None and "window_start" in rows.column_names:
            starts.extend(rows["window_start"].to_pylist())
        return rows

    monkeypatch.setattr(Snapshot, "read", watched)
    low, high = from_ms(start_of(3)), from_ms(start_of(5))
    to_plain(read_heatmap(settings, "p", HeatmapQuery(start=low, end=high)))
    assert starts
    assert low <= min(starts)
    assert max(starts) < high


def test_what_is_unknown_is_refused_with_what_there_is(settings: Settings) -> None:
    with pytest.raises(RequestError, match="served or stream"):
        to_plain(read_heatmap(settings, "p", HeatmapQuery(pair="other")))
    with pytest.raises(RequestError, match="window, day, month"):
        to_plain(read_heatmap(settings, "p", HeatmapQuery(level="year")))


def test_the_list_has_causes_and_counts_what_was_repaired(settings: Settings) -> None:
    shown = to_plain(describe_correctness(settings, "p"))
    open_late = [row for row in shown["open"] if row["pairs"]["served"] == "LATE"]
    assert [row["pairs"]["served"] for row in shown["open"]][:2] == ["DEFECT", "NOT_COMPARABLE"]
    assert len(open_late) == shown["run"]["counts"]["served"]["LATE"]
    assert all([cause["cause"] for cause in row["causes"]] == ["late"] for row in open_late)
    stream, served = (shown["run"]["counts"][pair]["LATE"] for pair in ("stream", "served"))
    assert shown["totals"] == {"open": 2 + served, "repaired": stream - served, "waiting": 3}


def test_a_row_that_agrees_has_its_truth_and_a_late_one_has_none(settings: Settings) -> None:
    now = FIRST + timedelta(days=PAST.days)
    start, key = PAST.late_of(3)[0]
    repaired = to_plain(explain_for_page(settings, "p", from_ms(start), key, now))
    assert repaired["stored_truth"]["pair"] == "served"
    assert repaired["stored_truth"]["values"] == {"n": EACH}
    start, key = PAST.late_of(PAST.closed - 1)[0]
    late = to_plain(explain_for_page(settings, "p", from_ms(start), key, now))
    assert late["stored_truth"]["values"] is None
    assert "--with-truth" in late["command"]
    assert [each["verdict"] for each in late["explanation"]["verdicts"]] == ["LATE", "LATE"]
    assert late["explanation"]["acts"][0]["command"].startswith("rivertwice backfill run p --from")


def test_a_cell_lists_the_rows_that_differ_before_the_others(settings: Settings) -> None:
    day = PAST.closed - 1
    start, key = PAST.late_of(day)[0]
    rows = to_plain(read_cell(settings, "p", "served", from_ms(start_of(day)), from_ms(start_of(day + 1)), {"k": key}))[
        "rows"
    ]
    assert len(rows) == 3
    assert (rows[0]["verdict"], rows[0]["start"]) == ("LATE", from_ms(start).isoformat().replace("+00:00", "Z"))
    assert [row["verdict"] for row in rows[1:]] == [None, None]


def test_late_records_are_counted_once_by_how_late_they_were(settings: Settings) -> None:
    shown = to_plain(read_lateness(settings, "p", FIRST, FIRST + timedelta(days=PAST.days)))
    assert shown["total"] == sum(len(PAST.late_of(day)) for day in range(PAST.closed))
    assert shown["watermark_s"] == 3600.0
    assert shown["bars"][-1]["until"] == shown["total"]


def test_backfills_are_listed_with_whether_they_serve(settings: Settings) -> None:
    shown = to_plain(list_of_backfills(settings, "p"))
    assert shown["total"] == len(shown["backfills"]) == 1
    (row,) = shown["backfills"]
    assert (row["state"], row["done"], row["chunks"], row["windows"]) == ("published", 1, 1, 3 * 30)


def test_a_backfill_has_verdicts_before_and_after_and_its_changes(settings: Settings) -> None:
    (row,) = to_plain(list_of_backfills(settings, "p"))["backfills"]
    shown = to_plain(describe_backfill(settings, "p", row["id"]))
    late = sum(len(PAST.late_of(day)) for day in range(30))
    assert shown["before"]["counts"]["LATE"] == late - len(PAST.late_of(29))  # whose windows were open then
    assert "LATE" not in shown["after"]["counts"]
    assert shown["changed"] == {"rows": 3 * 30 * PAST.keys, "changed": late, "new": 0, "vanished": 0}
    assert shown["plan"]["text"].startswith(f"backfill   {row['id']} of p (late events)")
    with pytest.raises(RequestError, match="there is no backfill bf-none"):
        to_plain(describe_backfill(settings, "p", "bf-none"))


def test_the_end_of_a_chain_of_runs_says_what_a_full_run_says(settings: Settings) -> None:
    home = settings.pipeline("p")
    run = to_plain(describe_correctness(settings, "p"))["run"]
    rows = verdicts_of(home, run["run"])
    words = [row["verdict"] for row in rows for _ in range(row["rows"]) if row["pair"] == "served"]
    assert {word: words.count(word) for word in set(words)} == {
        word: number for word, number in run["counts"]["served"].items() if number
    }


def test_a_pipeline_that_never_ran_has_an_empty_tab(tmp_path: Path) -> None:
    made = make_past(tmp_path, PAST, ())
    (made.definitions / "q").mkdir(parents=True)
    for read in (
        lambda: to_plain(read_heatmap(made, "q", HeatmapQuery())),
        lambda: to_plain(describe_correctness(made, "q")),
    ):
        assert read()["run"] is None
    assert to_plain(read_lateness(made, "q", None, None))["bars"] == []


def test_the_library_of_the_page_starts_no_spark() -> None:
    modules = ", ".join(
        f"rivertwice.read.{name}" for name in ("heatmap", "trouble", "lateness", "cell_rows", "selection", "backfills")
    )
    script = (
        f"import sys, {modules}; print([name for name in sys.modules if name.split('.')[0] in ('pyspark', 'py4j')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
