import subprocess
import sys

import pyarrow as pa
import pytest

from homes.ledger import ledger_row
from rivertwice.agent.backoff import REACTIONS, FailureClass, Response
from rivertwice.core.errors import (
    CheckpointError,
    DamagedFileError,
    DefinitionError,
    ExecutorLostError,
    FingerprintError,
    LeaseLostError,
    LedgerError,
    LogGapError,
    RangeMismatchError,
    TableDamageError,
)
from rivertwice.core.instants import parse_iso
from rivertwice.core.settings import Settings
from rivertwice.stream.begin import check_fingerprint, check_topics
from rivertwice.stream.checkpoint import parse_offsets, read_planned, start_offsets
from rivertwice.stream.failures import classify_failure
from rivertwice.stream.heartbeat import lag_of
from rivertwice.stream.lease import acquire_lease, lease_owner
from rivertwice.stream.result_rows import changelog_rows
from rivertwice.stream.sink import BatchCounts, check_counts, check_replay

NOW = parse_iso("2013-07-02T00:00:00Z")
TEXT = 'v1\n{"batchWatermarkMs":7,"batchTimestampMs":9,"conf":{}}\n{"flights":{"0":30}}'


@pytest.fixture
def home(tmp_path):
    return Settings(project=tmp_path, home=tmp_path / "home").pipeline("p")


def test_offsets_have_their_watermark_and_begin_where_the_last_ended(tmp_path):
    folder = tmp_path / "offsets"
    folder.mkdir()
    (folder / "4").write_text(TEXT)
    (folder / "5").write_text(TEXT.replace("30", "42"))
    planned = read_planned(tmp_path, 5)
    assert planned is not None
    assert (planned.batch_watermark_ms, planned.end_offsets) == (7, {"flights": {"0": 42}})
    assert start_offsets(tmp_path, 5) == {"flights": {"0": 30}}
    assert read_planned(tmp_path, 6) is None


def test_a_damaged_offsets_file_is_named():
    with pytest.raises(CheckpointError, match="offsets/3"):
        parse_offsets("", 3)
    with pytest.raises(CheckpointError, match="offsets/3 cannot be read"):
        parse_offsets(TEXT.replace("batchWatermarkMs", "batchWatermarkMr"), 3)


def test_a_second_start_is_refused_while_the_lease_is_held(home):
    script = (
        "import sys,time;from pathlib import Path;from rivertwice.core.settings import PipelineHome;"
        "from rivertwice.stream.lease import acquire_lease;from rivertwice.core.instants import utc_now;"
        f"lease=acquire_lease(PipelineHome(Path({str(home.root)!r})),'t1',utc_now());print(lease.epoch,flush=True);time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline().strip() == "1"
    assert lease_owner(home).pid == other.pid
    with pytest.raises(LeaseLostError, match=f"process {other.pid}"):
        acquire_lease(home, "t1", NOW)
    other.kill()
    other.wait()
    other.stdout.close()
    assert lease_owner(home) is None
    lease = acquire_lease(home, "t1", NOW)
    assert lease.epoch == 2
    lease.check()
    lease.release()
    acquire_lease(home, "t1", NOW).release()
    with pytest.raises(LeaseLostError, match="epoch 3"):
        lease.check()


def recorded(**changes):
    return ledger_row(3, end_offsets={"flights": {"0": 30}}, batch_watermark_ms=7, **changes)


@pytest.mark.proves("guarantees.md#changelog")
def test_a_committed_batch_is_skipped_only_with_its_own_range():
    planned = parse_offsets(TEXT, 3)
    check_replay(recorded(start_offsets={"flights": {"0": 20}}), planned, {"flights": {"0": 20}})
    with pytest.raises(RangeMismatchError, match="would lose records"):
        check_replay(recorded(start_offsets={"flights": {"0": 20}}), planned, {"flights": {"0": 10}})
    with pytest.raises(RangeMismatchError, match="no row"):
        check_replay(None, planned, {})


@pytest.mark.proves("guarantees.md#changelog")
def test_every_offset_of_a_range_must_have_been_read_once():
    check_counts(BatchCounts(10, 1, 9, 0, 1), {0: (0, 6), 1: (4, 8)}, 0)
    with pytest.raises(
        LedgerError, match="covers 10 offsets, of which 0 hold no record because of transactions, but 9 records"
    ):
        check_counts(BatchCounts(9, 0, 9, 0, 1), {0: (0, 10)}, 0)


@pytest.mark.proves("failure-modes.md#failure-modes")
@pytest.mark.parametrize(
    ("counts", "absent"),
    [
        (BatchCounts(15, 0, 15, 0, 1), 0),  # both tasks of a stage ran again, and one of them had read five
        (BatchCounts(10, 1, 13, 0, 1), 0),  # of two stages the second ran again
        (BatchCounts(9, 0, 9, 0, 1), 3),  # seven records between three offsets of transactions
    ],
)
def test_records_that_are_counted_twice_mean_a_lost_executor_and_the_batch_is_computed_anew(counts, absent):
    with pytest.raises(ExecutorLostError, match="both runs were counted; nothing was committed") as raised:
        check_counts(counts, {0: (0, 6), 1: (4, 8)}, 0, lambda _: {0: absent})
    assert classify_failure(raised.value) == "executor_lost"
    assert REACTIONS[FailureClass("executor_lost")].response is Response.RESTART


def test_absent_offsets_are_counted_by_another_reader_only_if_needed():
    asked = []

    def absent(ranges):
        asked.append(ranges)
        return {0: 3, 1: 0}

    ranges = {0: (0, 10), 1: (0, 2)}
    assert check_counts(BatchCounts(12, 0, 12, 0, 1), ranges, 0, absent) == {}
    assert asked == []
    assert check_counts(BatchCounts(9, 0, 9, 0, 1), ranges, 0, absent) == {0: 3}
    assert asked == [ranges]
    with pytest.raises(LedgerError, match="of which 3 hold no record because of transactions, but 8 records"):
        check_counts(BatchCounts(8, 0, 8, 0, 1), ranges, 0, absent)


def test_changelog_rows_are_stamped_and_partitioned_by_the_window_s_day():
    start = pa.array([parse_iso("2013-06-30T23:00:00Z")], pa.timestamp("us", "UTC"))
    rows = changelog_rows(pa.table({"window_start": start, "flights": [3]}), "t1", 5)
    assert rows.to_pylist()[0] | {"window_start": None} == {
        "_format": 1,
        "_timeline": "t1",
        "_batch": 5,
        "_day": "2013-06-30",
        "window_start": None,
        "flights": 3,
    }


@pytest.mark.proves("howto-schemas.md#a-new-version-while-a-stream-runs", "guarantees.md#what-everything-needs")
def test_a_changed_definition_or_topic_is_refused_before_the_start():
    old = {"state": "a", "semantics": "b", "decode": "c"}
    check_fingerprint(old, dict(old), "p", "t1")
    with pytest.raises(FingerprintError, match="changed in semantics since timeline t1"):
        check_fingerprint(old, {**old, "semantics": "x"}, "p", "t1")
    with pytest.raises(LogGapError, match="deleted and created again"):
        check_topics({"flights": "one"}, {"flights": "two"}, "p")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (LeaseLostError("x"), "lease_lost"),
        (RuntimeError("java.lang.OutOfMemoryError: Java heap space"), "out_of_memory"),
        (RuntimeError("Some data may have been lost because"), "retention"),
        (RuntimeError("[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE]"), "checkpoint"),
        (LedgerError("x"), "ledger"),
        (TableDamageError("x"), "ledger"),
        (DamagedFileError("x"), "ledger"),
        (DefinitionError("x"), "schema"),
        (ValueError("what"), "unknown"),
    ],
)
def test_failures_are_classified(error, expected):
    assert classify_failure(error) == expected


def test_lag_counts_records_beyond_the_committed_offsets():
    assert lag_of({"f": {"0": 3}}, {"f": {0: 5, 1: 4}}) == 6


def test_an_error_that_is_its_own_cause_is_classified() -> None:
    error = RuntimeError("[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] no")
    error.__cause__ = error
    assert classify_failure(error) == "checkpoint"
