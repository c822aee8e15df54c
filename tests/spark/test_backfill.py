"""Backfills over an archive of synthetic records, judged by a count in Python; no broker is needed."""

import json
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from homes.backfill import HOUR, asked, emitted, make_home
from homes.ledger import ledger_row
from rivertwice.backfill import compute
from rivertwice.backfill.audit import audit_backfill
from rivertwice.backfill.compute import compute_backfill
from rivertwice.backfill.observe import observe_backfill
from rivertwice.backfill.plan import plan_backfill
from rivertwice.backfill.publish import publish_backfill
from rivertwice.backfill.store import backfill_folder, chunk_records, save_plan
from rivertwice.core.errors import LostRaceError
from rivertwice.core.instants import EPOCH, to_iso
from rivertwice.core.locks import lock
from rivertwice.definition.bundle import build_bundle
from rivertwice.log.archive_table import PARTITION_BY, SCHEMA, transaction_names
from rivertwice.storage.table import Table
from rivertwice.timeline.digest import digest_rows
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.served import read_served, rebuild_served

pytestmark = pytest.mark.spark
COLUMNS = ["window_start", "window_end", "k", "n"]
BATCHES = 12


def record(offset, hour_of_event, hour_of_record, key, value=None):
    at = to_iso(EPOCH + timedelta(hours=hour_of_event, minutes=7))
    stamp = EPOCH + timedelta(hours=hour_of_record, minutes=8)
    return {
        "_format": 1,
        "cluster_id": "c",
        "topic_id": "id",
        "topic": "flights",
        "partition": 0,
        "offset": offset,
        "timestamp": stamp,
        "timestamp_type": 0,
        "key": key.encode(),
        "value": value if value is not None else json.dumps({"k": key, "at": at}).encode(),
        "headers": None,
        "day": stamp.strftime("%Y-%m-%d"),
    }


def history():
    """Batch n brings hour n: ten records, of which the ninth is three hours late and the tenth is not valid JSON."""
    records, truth = [], Counter()
    for batch in range(BATCHES):
        for n in range(10):
            offset = 10 * batch + n
            hour = max(batch - 3, 0) if n == 8 else batch
            key = "ab"[n % 2]
            if n == 9:
                records.append(record(offset, hour, batch, key, b"no JSON"))
                continue
            records.append(record(offset, hour, batch, key))
            truth[hour, key] += 1
    return records, truth


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A home whose ledger ends at batch 9, though the archive holds two batches more."""
    monkeypatch.setattr("rivertwice.backfill.observe._in_kafka", lambda *_: {})
    return fill(*make_home(tmp_path, batches=0))


def fill(settings, home, bundle):
    records, _ = history()
    start, end = transaction_names("id", 0)
    Table(settings.archive("flights"), partition_by=PARTITION_BY).append(
        pa.Table.from_pylist(records, schema=SCHEMA), transactions={start: 0, end: 10 * BATCHES}
    )
    rows = [
        ledger_row(
            n,
            bundle=bundle.id,
            batch_watermark_ms=n * HOUR,
            bad=1,
            accepted=9,
            min_event_ms=max(n - 3, 0) * HOUR + 420_000,
            max_event_ms=n * HOUR + 420_000,
        )
        for n in range(10)
    ]
    append_ledger(home, rows)
    Table(home.tables.changelog, partition_by=["_day"]).append(emitted("t1", 9, (0, "a", 1)))
    return settings, home, bundle


def expected(start, end):
    """Count the accepted records below offset 100 per hour of [start, end) and key, without Spark."""
    records, _ = history()
    found = Counter()
    for one in records:
        if one["offset"] < 100 and one["value"].startswith(b"{"):
            value = json.loads(one["value"])
            found[int(value["at"][11:13]), value["k"]] += 1
    return {key: count for key, count in found.items() if start <= key[0] < end}


def counted(table):
    return {(int(row["window_start"].timestamp()) // 3600, row["k"]): row["n"] for row in table.to_pylist()}


def planned(settings, home, start, end, chunk_records=15):
    plan = plan_backfill(asked(start, end), observe_backfill(settings, "p"), chunk_records=chunk_records)
    return save_plan(home, plan)


def corrections(home, plan):
    rows = Table(home.tables.corrections).read()
    return rows.filter(pc.equal(rows["_backfill"], plan.id))


def test_a_backfill_counts_late_rows_and_stops_at_the_last_batch(spark, made):
    settings, home, bundle = made
    plan = planned(settings, home, 0, 9)
    assert len(plan.chunks) > 3
    lines = []
    report = compute_backfill(spark, settings, plan, lines.append)
    assert (report.computed, report.skipped, len(lines)) == (len(plan.chunks), 0, len(plan.chunks))
    # Hour 8's late record comes in batch 11, which the ledger does not know yet.
    assert counted(corrections(home, plan)) == expected(0, 9)
    assert expected(0, 9) != {key: n for key, n in history()[1].items() if key[0] < 9}
    audit = audit_backfill(settings, plan)
    assert audit.records == sum(expected(0, 9).values())
    publish_backfill(settings, plan)
    rebuild_served(home, bundle.definition)
    assert counted(read_served(home)) == expected(0, 9)


def test_each_chunk_says_at_which_offsets_its_records_are(spark, made, monkeypatch):
    settings, home, _ = made
    monkeypatch.setattr(compute, "BLOCK_BITS", 0)
    plan = planned(settings, home, 2, 5)
    assert len(plan.chunks) > 1
    compute_backfill(spark, settings, plan)
    chunks = chunk_records(home, plan.id)
    assert {(each.chunk, each.chunks) for each in chunks} == {(n, len(plan.chunks)) for n in range(len(plan.chunks))}
    inside = {
        one["offset"]
        for one in history()[0]
        if one["offset"] < 100 and one["value"].startswith(b"{") and 2 <= int(json.loads(one["value"])["at"][11:13]) < 5
    }
    runs = [run for each in chunks for run in each.offsets["flights"][0]]
    covered = {at for low, high in runs for at in range(low, high)}
    assert inside <= covered
    assert len(covered - inside) <= len(runs)  # holes of one offset are closed


@pytest.mark.core
def test_a_backfill_killed_after_any_chunk_ends_with_the_same_rows(spark, made):
    settings, home, _ = made
    plan = planned(settings, home, 0, 8)
    total = len(plan.chunks)

    def die_after(_line):
        raise KeyboardInterrupt

    for done in range(1, total):
        with pytest.raises(KeyboardInterrupt):
            compute_backfill(spark, settings, plan, die_after)
        assert [one.chunk for one in chunk_records(home, plan.id)] == list(range(done))
    report = compute_backfill(spark, settings, plan)
    assert (report.computed, report.skipped) == (1, total - 1)
    assert counted(corrections(home, plan)) == expected(0, 8)
    assert audit_backfill(settings, plan).passed


def test_a_finished_backfill_run_again_writes_nothing(spark, made):
    settings, home, _ = made
    plan = planned(settings, home, 2, 5)
    compute_backfill(spark, settings, plan)
    version = Table(home.tables.corrections).open().version
    report = compute_backfill(spark, settings, plan)
    assert (report.computed, report.skipped, report.rows) == (0, len(plan.chunks), 0)
    assert Table(home.tables.corrections).open().version == version


def test_chunks_read_one_by_one_give_the_rows_of_a_backfill_read_at_once(spark, made, monkeypatch):
    settings, home, _ = made
    monkeypatch.setattr("rivertwice.backfill.zones.SCAN_GAP", 0)
    at_once = planned(settings, home, 0, 8, chunk_records=1_000)
    one_by_one = planned(settings, home, 0, 8, chunk_records=10)
    assert len(at_once.chunks) == 1
    compute_backfill(spark, settings, at_once)
    monkeypatch.setattr(compute, "READ_ONCE", 0)
    compute_backfill(spark, settings, one_by_one)
    left, right = (corrections(home, plan) for plan in (at_once, one_by_one))
    assert digest_rows(left, COLUMNS) == digest_rows(right, COLUMNS)


@pytest.mark.proves("howto-correct.md#what-a-crash-leaves-behind")
def test_two_processes_do_not_compute_the_same_backfill_at_once(spark, made):
    settings, home, _ = made
    plan = planned(settings, home, 0, 2)
    taken, refused = (
        lock(backfill_folder(home, plan.id) / "lock"),
        pytest.raises(LostRaceError, match="computes backfill"),
    )
    with taken, refused:
        compute_backfill(spark, settings, plan)
    assert compute_backfill(spark, settings, plan).computed == len(plan.chunks)


def test_the_rows_file_decides_what_counts_and_the_audit_counts_the_same(spark, made, tmp_path):
    settings, home, _ = made
    folder = tmp_path / "project" / "pipelines" / "p"
    (folder / "rows.sql").write_text("SELECT * FROM events WHERE k = 'a'\n")
    bundle = build_bundle(folder)
    bundle.save(home.bundles)
    view = replace(observe_backfill(settings, "p"), bundle=bundle.id, semantics=bundle.fingerprint.semantics)
    plan = save_plan(home, plan_backfill(asked(0, 6), view))
    compute_backfill(spark, settings, plan)
    assert audit_backfill(settings, plan).passed
    assert counted(corrections(home, plan)) == {key: n for key, n in expected(0, 6).items() if key[1] == "a"}


def test_a_backfill_of_hopping_windows_serves_whole_windows(spark, tmp_path, monkeypatch):
    #  windows of an hour, one each 20 minutes: a record at h:07 lies in those that start at h-1:20, h-1:40 and h:00
    monkeypatch.setattr("rivertwice.backfill.observe._in_kafka", lambda *_: {})
    settings, home, bundle = fill(*make_home(tmp_path, batches=0, slide="20 minutes"))
    plan = planned(settings, home, 3, 5)
    third = HOUR // 3
    # Every window that holds a time of [3:00, 5:00): the first starts at 2:20, the last at 4:40 and ends at 5:40.
    assert plan.ranges == ((3 * HOUR - 2 * third, 5 * HOUR),)
    assert (plan.windows, plan.last_end_ms) == (8, 5 * HOUR + 2 * third)
    assert len(plan.chunks) > 1
    report = compute_backfill(spark, settings, plan)
    wanted = {}
    for (hour, key), count in expected(0, 10).items():
        for back in range(3):
            start = hour * HOUR - back * third
            if 3 * HOUR - 2 * third <= start < 5 * HOUR:
                wanted[start, key] = wanted.get((start, key), 0) + count
    found = corrections(home, plan).to_pylist()
    assert {(round(row["window_start"].timestamp() * 1000), row["k"]): row["n"] for row in found} == wanted
    assert report.rows == len(wanted) == len(found)
    audit = audit_backfill(settings, plan)
    assert audit.passed
    assert audit.records == sum(wanted.values())
    publish_backfill(settings, plan)
    rebuild_served(home, bundle.definition)
    served = [row for row in read_served(home).to_pylist() if row["_status"] == "published"]
    assert {(round(row["window_start"].timestamp() * 1000), row["k"]): row["n"] for row in served} == wanted
