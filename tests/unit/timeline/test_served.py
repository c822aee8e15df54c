import threading
import time
from datetime import UTC, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from homes.backfill import HOUR, add_timeline, emitted, hours, make_home, result
from homes.delivery import DeliveryHome
from homes.ledger import NOW, ledger_row
from rivertwice.core.errors import ServiceError
from rivertwice.storage.table import Table
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.lineage import Fork
from rivertwice.timeline.sequence import move_head, publish
from rivertwice.timeline.served import export_sha256, read_served, rebuild_served, wait_served
from rivertwice.timeline.served_rows import export_lines, stream_rows
from rivertwice.timeline.served_stamp import ServedStamp, provisional_stamp, read_served_stamp
from rivertwice.timeline.serving import Publication, select_served


@pytest.fixture
def made(tmp_path):
    return make_home(tmp_path)


def numbers(table):
    return sorted((int(row["window_start"].timestamp()) // 3600, row["k"], row["n"]) for row in table.to_pylist())


def publish_rows(home, bundle, backfill, ranges, rows, seq):
    table = result(*rows)
    stamp = pa.array([backfill] * table.num_rows, pa.string())
    Table(home.tables.corrections).append(table.append_column("_backfill", stamp))
    payload = Publication(seq, backfill, ranges, bundle.fingerprint.semantics, bundle.id, {"flights": {0: 100}})
    publish(home, payload.to_payload(), expected_seq=seq - 1, now=NOW)


def test_before_the_first_start_there_is_nothing_to_serve(tmp_path, made):
    _, home, bundle = make_home(tmp_path / "other", batches=0)
    assert rebuild_served(home, bundle.definition).stamp is None
    assert read_served(home) is None
    assert stream_rows(home) is None
    with pytest.raises(ServiceError, match="was never built"):
        export_sha256(home)


def test_a_rebuild_serves_the_closed_windows_and_says_of_what(made):
    _, home, bundle = made
    report = rebuild_served(home, bundle.definition)
    assert report.stamp == ServedStamp(sequence=1, timeline="t1", batch=9)
    assert (report.rebuilt, report.rows, report.published) == (True, 8, 0)
    assert read_served_stamp(home) == report.stamp
    assert numbers(read_served(home)) == [(hour, "a", 10) for hour in range(8)]


def test_a_rebuild_with_nothing_new_writes_nothing(made):
    _, home, bundle = made
    rebuild_served(home, bundle.definition)
    version = Table(home.tables.served).open().version
    assert rebuild_served(home, bundle.definition).rebuilt is False
    assert Table(home.tables.served).open().version == version


def test_the_stamp_is_found_under_commits_that_carry_none(made):
    _, home, bundle = made
    stamp = rebuild_served(home, bundle.definition).stamp
    for _ in range(6):
        Table(home.tables.served).append(read_served(home).slice(0, 0))
    assert read_served_stamp(home) == stamp


def test_a_publication_is_served_by_the_next_rebuild(made):
    _, home, bundle = made
    rebuild_served(home, bundle.definition)
    publish_rows(home, bundle, "bf-1", hours((1, 3)), [(1, "a", 12), (2, "b", 1)], 2)
    report = rebuild_served(home, bundle.definition)
    assert (report.stamp.sequence, report.rows, report.published) == (2, 2, 2)
    assert numbers(read_served(home))[:4] == [(0, "a", 10), (1, "a", 12), (2, "b", 1), (3, "a", 10)]


@pytest.mark.proves("guarantees.md#served")
def test_rows_off_the_heads_path_are_not_served_until_the_head_moves(made):
    #  t1  0 .. 5 .. 9
    #       t2 `- 6 .. 9      forks after batch 5; its rows differ
    _, home, bundle = made
    add_timeline(home, bundle, "t2", Fork("t1", 5), 6)
    append_ledger(
        home,
        [ledger_row(n, "t2", bundle=bundle.id, batch_watermark_ms=min(n, 8) * HOUR) for n in range(6, 10)],
    )
    for n in range(6, 10):
        Table(home.tables.changelog).append(emitted("t2", n, *([(n - 1, "c", 7)] if n <= 8 else [])))
    rebuild_served(home, bundle.definition)
    assert numbers(read_served(home)) == [(hour, "a", 10) for hour in range(8)]
    move_head(home, "t2", reason="test", expected_seq=1, now=NOW)
    report = rebuild_served(home, bundle.definition)
    assert report.stamp == ServedStamp(sequence=2, timeline="t2", batch=9)
    assert numbers(read_served(home)) == [(h, "a", 10) for h in range(5)] + [(h, "c", 7) for h in range(5, 8)]


def test_a_head_move_that_changes_no_row_leaves_the_export_as_it_was(made):
    _, home, bundle = made
    rebuild_served(home, bundle.definition)
    before = export_sha256(home)
    add_timeline(home, bundle, "t2", Fork("t1", 9), 10)
    move_head(home, "t2", reason="restore", expected_seq=1, now=NOW)
    assert rebuild_served(home, bundle.definition).stamp.sequence == 2
    assert export_sha256(home) == before


def test_a_batch_in_the_changelog_after_the_ledger_read_is_not_served(made):
    _, home, _ = made
    Table(home.tables.changelog).append(emitted("t1", 10, (7, "z", 1)))
    assert "z" not in stream_rows(home)["k"].to_pylist()


def test_the_export_changes_with_any_value_and_not_with_the_order_of_rows():
    rows = [
        {"at": datetime(2013, 1, 1, tzinfo=UTC), "n": n, "mean": Decimal("1.50"), "p": 0.1 + 0.2, "k": None, "b": True}
        for n in range(3)
    ]
    table = pa.Table.from_pylist(rows)
    assert export_lines(table) == export_lines(pa.Table.from_pylist(rows[::-1]))
    for column, value in (("at", datetime(2013, 1, 2, tzinfo=UTC)), ("mean", Decimal("1.51")), ("p", 0.3), ("k", "")):
        changed = pa.Table.from_pylist([{**rows[0], column: value}, *rows[1:]])
        assert export_lines(changed) != export_lines(table)
    line = b'{"at":"2013-01-01T00:00:00Z","b":true,"k":null,"mean":"1.50","n":0,"p":0.30000000000000004}'
    assert export_lines(table)[0] == line


def test_waiting_for_a_sequence_ends_when_served_or_says_what_is_shown(made):
    _, home, bundle = made
    rebuild_served(home, bundle.definition)
    assert wait_served(home, 1, timeout=0).sequence == 1
    with pytest.raises(ServiceError, match="shows sequence 1, not 2, after 0"):
        wait_served(home, 2, timeout=0)
    last = wait_served(home, 1, timeout=0).batch
    assert wait_served(home, 1, timeout=0, batch=("t1", last)).batch == last
    assert wait_served(home, 1, timeout=0, batch=("t0", last + 1)).timeline == "t1"  # the head moved since
    with pytest.raises(ServiceError, match=f"shows sequence 1 and batch {last}, not 1 and {last + 1}, after 0"):
        wait_served(home, 1, timeout=0, batch=("t1", last + 1))
    publish_rows(home, bundle, "bf-1", hours((1, 2)), [(1, "a", 12)], 2)
    agent = threading.Timer(0.3, rebuild_served, (home, bundle.definition))
    agent.start()
    assert wait_served(home, 2, timeout=20).sequence == 2
    agent.join()


def test_open_windows_of_early_results_have_a_table_until_they_close(tmp_path):
    world = DeliveryHome(tmp_path, "{}", emit="updates")
    home = world.home
    world.commit("t1", 0, 0, [(0, "a", 1), (1, "a", 2)])
    world.commit("t1", 1, 0, [(0, "a", 3)])
    assert world.served() == {}
    assert numbers(Table(home.tables.provisional).read()) == [(0, "a", 3), (1, "a", 2)]
    world.commit("t1", 2, 1, [(1, "b", 1)])
    assert world.served() == {(0, "a"): 3}
    assert numbers(Table(home.tables.provisional).read()) == [(1, "a", 2), (1, "b", 1)]
    assert provisional_stamp(home) == read_served_stamp(home)


def test_a_build_killed_before_the_open_windows_is_done_again(tmp_path, monkeypatch):
    world = DeliveryHome(tmp_path, "{}", emit="updates")
    home = world.home
    world.commit("t1", 0, 0, [(0, "a", 1)])
    world.served()
    world.commit("t1", 1, 1, [(1, "a", 5)])

    def killed(*_, **__):
        raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(Table, "overwrite", killed)
        with pytest.raises(InterruptedError):
            rebuild_served(home, world.definition)
    assert provisional_stamp(home) != read_served_stamp(home)
    assert rebuild_served(home, world.definition).rebuilt
    assert provisional_stamp(home) == read_served_stamp(home)
    assert numbers(Table(home.tables.provisional).read()) == [(1, "a", 5)]


def test_results_that_are_final_have_no_table_of_open_windows(made):
    _, home, bundle = made
    rebuild_served(home, bundle.definition)
    assert provisional_stamp(home) is None


def test_racing_rebuilds_leave_the_newest_stamp(made):
    _, home, bundle = made
    threads = [threading.Thread(target=rebuild_served, args=(home, bundle.definition)) for _ in range(4)]
    for thread in threads:
        thread.start()
    publish_rows(home, bundle, "bf-1", hours((1, 2)), [(1, "a", 12)], 2)
    threads.append(threading.Thread(target=rebuild_served, args=(home, bundle.definition)))
    threads[-1].start()
    for thread in threads:
        thread.join()
    assert read_served_stamp(home).sequence == 2
    assert (1, "a", 12) in numbers(read_served(home))


def test_choosing_among_many_rows_and_publications_takes_a_moment():
    count = 20_000
    starts = pa.array(np.arange(count) * HOUR * 1000, pa.int64()).cast(pa.timestamp("us", "UTC"))
    ends = pa.array((np.arange(count) + 1) * HOUR * 1000, pa.int64()).cast(pa.timestamp("us", "UTC"))
    stream = pa.table(
        {
            "_timeline": pa.array(["t1"] * count),
            "_batch": pa.array(range(count), pa.int64()),
            "window_start": starts,
            "window_end": ends,
            "n": pa.array(range(count), pa.int64()),
        }
    )
    names = pa.array([f"bf-{n % 100}" for n in range(count)])
    corrections = stream.drop_columns(["_timeline", "_batch"]).append_column("_backfill", names)
    publications = [
        Publication(n, f"bf-{n}", hours((n * 100, n * 100 + 150)), "s", "b", {"flights": {0: 1}}) for n in range(100)
    ]
    began = time.monotonic()
    served = select_served(stream, corrections, publications, semantics={"s"}, closed_ms=count * HOUR)
    assert time.monotonic() - began < 5
    assert served.num_rows > 9_000
