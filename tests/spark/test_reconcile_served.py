"""The pair served: late before a publication, agreeing after it, a defect when somebody wrote something else."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from rivertwice.core.instants import from_ms, utc_now
from rivertwice.definition.bundle import load_bundle
from rivertwice.engine.compile import compile_batch
from rivertwice.engine.decode import decode
from rivertwice.engine.relations import accepted
from rivertwice.log.records import read_ranges
from rivertwice.reconcile.model import RowId
from rivertwice.reconcile.report import ReconcileReport
from rivertwice.reconcile.results import cause_rows
from rivertwice.reconcile.run import reconcile
from rivertwice.storage.table import Table
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.sequence import last_seq, publish
from rivertwice.timeline.served import read_served, rebuild_served
from rivertwice.timeline.served_stamp import read_served_stamp
from rivertwice.timeline.serving import Publication
from streams.flights import StreamedRun, copy_run

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def judge(spark: SparkSession, run: StreamedRun) -> ReconcileReport:
    return reconcile(spark, run.settings, run.pipeline, full=True, now=utc_now(), progress=lambda _: None)


def verdicts(report: ReconcileReport, pair: str) -> dict[RowId, str]:
    return {one.row: one.verdict for one in report.verdicts if one.pair == pair}


def publish_truth(spark: SparkSession, run: StreamedRun, window: tuple[int, int], as_of: LedgerRow) -> None:
    """Publish what the log says of one window as of a batch, without the backfill room."""
    ends = {int(p): o for p, o in as_of.end_offsets[run.topic].items()}
    bundle = load_bundle(run.home.bundles, as_of.bundle)
    _, source = bundle.definition.source
    raw = read_ranges(spark, run.settings, run.topic, {p: (0, end) for p, end in ends.items()})
    truth = compile_batch(spark, bundle.definition, accepted(decode(raw, source), source)).toArrow()
    start = pa.scalar(from_ms(window[0]), pa.timestamp("us", "UTC"))
    rows = truth.filter(pc.equal(truth["window_start"].cast(pa.timestamp("us", "UTC")), start))
    name = f"bf{last_seq(run.home)}"
    stamps = {"_format": pa.int32(), "_backfill": pa.string(), "_chunk": pa.int32(), "_day": pa.string()}
    values = (1, name, 0, f"{from_ms(window[0]):%Y-%m-%d}")
    for (column, kind), value in zip(stamps.items(), values, strict=True):
        rows = rows.append_column(column, pa.array([value] * rows.num_rows, kind))
    Table(run.home.tables.corrections).append(rows)
    entry = Publication(0, name, (window,), bundle.fingerprint.semantics, bundle.id, {run.topic: ends}).to_payload()
    publish(run.home, entry, expected_seq=last_seq(run.home), now=utc_now())
    rebuild_served(run.home, bundle.definition)


def test_a_forged_row_is_the_only_defect_after_a_publication(
    spark: SparkSession, streamed_two_days: StreamedRun, tmp_path: Path
) -> None:
    run = copy_run(streamed_two_days, tmp_path)
    ledger = path_ledger(run.home)
    definition = load_bundle(run.home.bundles, ledger[-1].bundle).definition
    rebuild_served(run.home, definition)
    before = judge(spark, run)
    assert verdicts(before, "served") == verdicts(before, "stream")
    assert before.counts["served"]["LATE"] > 0

    late = [row for row, verdict in verdicts(before, "stream").items() if verdict == "LATE"]
    window = late[len(late) // 2][:2]
    mine = {row for row in late if row[:2] == window}
    publish_truth(spark, run, window, ledger[-1])
    after = judge(spark, run)
    assert verdicts(after, "stream") == verdicts(before, "stream")
    assert verdicts(after, "served") == verdicts(before, "served") | dict.fromkeys(mine, "AGREES")
    assert after.stamp.sequence == before.stamp.sequence + 1
    assert after.gate.passed

    # A publication of an earlier moment: what came later is late again, by exactly the records after it.
    records = [one for one in after.late if one.row[:2] == window]
    newest = max(records, key=lambda one: one.batch)
    publish_truth(spark, run, window, ledger[newest.batch - 1])
    stale = judge(spark, run)
    assert verdicts(stale, "served")[newest.row] == "LATE"
    causes = [c for c in cause_rows(run.home, stale.run) if c["pair"] == "served" and c["key"] == newest.row.key]
    since = {(c["partition"], c["offset"]) for c in causes if c["window_start"] == from_ms(window[0])}
    ends = ledger[newest.batch - 1].end_offsets[run.topic]
    assert since == {
        (r.partition, r.offset) for r in records if r.row == newest.row and r.offset >= ends[str(r.partition)]
    }

    stamp, served = read_served_stamp(run.home), read_served(run.home)
    assert stamp is not None
    assert served is not None
    rows = served.to_pylist()
    rows[10]["flights"] += 1
    Table(run.home.tables.served).overwrite(
        pa.Table.from_pylist(rows, schema=served.schema), metadata={"served": asdict(stamp)}
    )
    forged = verdicts(judge(spark, run), "served")
    different = {row for row, verdict in forged.items() if verdict != verdicts(stale, "served")[row]}
    assert [(from_ms(row.start_ms), forged[row]) for row in different] == [(rows[10]["window_start"], "DEFECT")]
