"""What a record costs as a log grows: stream, archive, backfill and incremental reconcile at 10^5, 10^6 and 10^7 records. Report only.

`python -m lab.bench.curve [--records 100000 1000000 10000000] [--batch 20000]`. The log and the pipeline are those of `bench.minutes`.
Figures are CPU-seconds, and records for each of them:

- stream: the driver's whole process tree, from the commit of its third batch to that of the last one with records.
- archive, backfill of all closed windows (plan, compute, audit, publish), and reconciles: this process and its JVM, which is warm.
- 1 % new: a reconcile after so many records more; the second of two. 10,000 new: a third one. The stream's run before each is left out.

The broker is left out everywhere. Each figure is printed as soon as it is there.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from lab.bench.measure import own_cpu_s
from lab.bench.minutes import NAME, STARTED, Streamed, fill, make_minutes_project, stream, windows
from rivertwice.backfill.audit import audit_backfill
from rivertwice.backfill.compute import compute_backfill
from rivertwice.backfill.model import BackfillPlan, BackfillRequest
from rivertwice.backfill.prepare import make_plan
from rivertwice.backfill.publish import publish_backfill
from rivertwice.backfill.store import save_plan
from rivertwice.core.instants import TimeRange, utc_now
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.engine.session import spark_session
from rivertwice.local.broker import BrokerInfo, start_broker, stop_broker
from rivertwice.log.archive import extend_archive
from rivertwice.reconcile.run import reconcile
from rivertwice.timeline.served import rebuild_served

ALWAYS_NEW = 10_000
ALL = windows(0, 30_000)


def compute(spark: SparkSession, settings: Settings, range_: TimeRange, *, publish: bool = True) -> BackfillPlan:
    """Plan, compute and audit the closed windows of a range, and publish them unless told otherwise."""
    request = BackfillRequest(NAME, range_, "bench")
    plan = save_plan(settings.pipeline(NAME), make_plan(settings, request, lambda: spark))
    compute_backfill(spark, settings, plan)
    audit_backfill(settings, plan)
    if publish:
        publish_backfill(settings, plan)
    return plan


def compare(spark: SparkSession, settings: Settings) -> None:
    """Reconcile, which must pass."""
    report = reconcile(spark, settings, NAME, now=utc_now(), progress=lambda _: None)
    if not (report.gate.passed and report.sealed):
        message = f"the reconcile did not pass: {report.gate.alerts}, {report.why}"
        raise RuntimeError(message)


class Ladder:
    """The steps at one size, each printed when it has ended."""

    def __init__(self, spark: SparkSession, broker: BrokerInfo, folder: Path, records: int, batch: int) -> None:
        folder.mkdir()
        self._folder, self._topic, self._records = folder, f"{folder.name}-minutes", records
        self._spark, self._broker = spark, broker
        self.settings = make_minutes_project(folder, broker.bootstrap, self._topic, batch)
        self._definition = load_definition(self.settings.definitions / NAME)
        self._done = 0

    def run(self) -> None:
        """Climb."""
        self._fill(self._records)
        self._report_stream(stream(self.settings, self._folder))
        self._report("archive", self._records, lambda: extend_archive(self._spark, self.settings, self._topic))
        plans: list[BackfillPlan] = []
        cpu_s = self._cpu_of(lambda: plans.append(compute(self._spark, self.settings, ALL)))
        self._say("backfill", f"{plans[0].windows} windows, {len(plans[0].chunks)} chunks", plans[0].records, cpu_s)
        self._serve()
        self._report("reconcile, whole", self._records, lambda: compare(self._spark, self.settings))
        for name, new in (
            ("reconcile, 1 % new, first", self._records // 100),
            ("reconcile, 1 % new, second", self._records // 100),
            (f"reconcile, {ALWAYS_NEW:,} new", ALWAYS_NEW),
        ):
            self._fill(new)
            stream(self.settings, self._folder)
            self._serve()
            self._report(name, new, lambda: compare(self._spark, self.settings))

    def _fill(self, count: int) -> None:
        fill(self.settings, self._topic, self._done, self._done + count)
        self._done += count

    def _serve(self) -> None:
        rebuild_served(self.settings.pipeline(NAME), self._definition)

    def _cpu_of(self, act: Callable[[], object]) -> float:
        return own_cpu_s(act, besides=self._broker.pid)

    def _report(self, name: str, records: int, act: Callable[[], object]) -> None:
        self._say(name, "", records, self._cpu_of(act))

    def _report_stream(self, run: Streamed) -> None:
        note = f"{len(run.rows)} batches, {run.cost.cpu_s:.1f} CPU-s with start and end"
        self._say("stream", note, run.steady_records, run.steady_cpu_s)
        if len(run.rows) > 100:  # whether batches get dearer as they go
            middle = run.rows[len(run.rows) // 10]
            early = sum(row.read for row in run.rows if STARTED < row.batch <= middle.batch)
            self._say("  its first tenth", "", early, run.cost.between(STARTED, middle.batch))

    def _say(self, name: str, note: str, records: int, cpu_s: float) -> None:
        now = time.strftime("%H:%M:%S")
        print(f"| {self._records:,} | {name} | {records:,} | {cpu_s:.2f} | {records / cpu_s:,.0f} | {note} | {now} |")
        sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.curve", description=__doc__)
    parser.add_argument("--records", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--batch", type=int, default=20_000, help="records of a micro-batch, at most")
    parser.add_argument("--warm", type=int, default=200_000, help="records of the log that comes first, to warm up")
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left running
    with tempfile.TemporaryDirectory(prefix="rivertwice-curve-") as name:
        root = Path(name)
        own = Settings(Settings.from_env().project, root / "broker", spark_master="local[2]")
        broker = start_broker(own)
        spark = spark_session(own, "bench-curve")
        try:
            print("| log | step | records | CPU-s | records per CPU-s | note | at |\n|---|---|---|---|---|---|---|")
            Ladder(spark, broker, root / "warm-up", chosen.warm, chosen.batch).run()
            for size in chosen.records:
                Ladder(spark, broker, root / str(size), size, chosen.batch).run()
        finally:
            spark.stop()
            stop_broker(own)


if __name__ == "__main__":
    main()
