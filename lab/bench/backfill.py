"""The same windows streamed and recomputed: records per CPU-second of a backfill against those of the stream. Report only.

`python -m lab.bench.backfill [--records 2000000] [--batches 20000 200000] [--rounds 3]`. The log and the pipeline are those of `bench.minutes`.
Each round, in turn, in homes of their own:

1. The stream, in batches of each size: its whole process tree; and from the commit of its third batch to that of the last with records.
2. `rivertwice backfill run` of all closed windows from Kafka, as a command: its whole process tree.
3. In a session that has computed a tenth of the windows: the other nine tenths from Kafka (plan, compute, audit), then, in another
   home, from the archive. The CPU-seconds of this process and its JVM.

The ratio of the whole trees has both starts in it, that of 3 against the steady stream has none.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from lab.bench.curve import ALL, compute
from lab.bench.measure import describe, own_cpu_s, run_measured
from lab.bench.minutes import NAME, Streamed, fill, make_minutes_project, stream, windows
from lab.bench.reconcile import STEP_MS, WINDOW_MS
from rivertwice.backfill.model import BackfillPlan
from rivertwice.core.instants import TimeRange, to_iso
from rivertwice.core.settings import Settings
from rivertwice.engine.session import spark_session
from rivertwice.local.broker import BrokerInfo, start_broker, stop_broker
from rivertwice.log.archive import extend_archive

TOPIC = "bench-backfill"


class Rounds:
    """Rounds over one topic, with the figures of all."""

    def __init__(self, spark: SparkSession, broker: BrokerInfo, root: Path, records: int) -> None:
        self._spark, self._broker, self._root = spark, broker, root
        tenth = records * STEP_MS // WINDOW_MS // 10
        self._first, self._others = windows(0, tenth), windows(tenth, 9 * tenth)
        self.whole: dict[str, list[float]] = {}
        self.warm: dict[str, list[float]] = {}

    def run(self, number: int, batches: list[int]) -> None:
        """Run a round and print its figures."""
        homes = []
        for batch in batches:
            folder = self._root / f"{number}-{batch}"
            folder.mkdir()
            settings = make_minutes_project(folder, self._broker.bootstrap, TOPIC, batch)
            run = stream(settings, folder)
            self._note_stream(number, batch, run)
            homes.append((settings, folder))
        self._command(number, *homes[-1])
        for name, (settings, _) in (("Kafka", homes[-1]), ("archive", homes[0])):
            if name == "archive":
                extend_archive(self._spark, settings, TOPIC)
            self._warm(number, name, settings)
        for _, folder in homes:
            shutil.rmtree(folder)

    def _command(self, number: int, settings: Settings, folder: Path) -> None:
        """Run the command for all closed windows; it publishes nothing, so that what comes next is planned as if alone."""
        asked = ["--from", to_iso(ALL.start), "--to", to_iso(ALL.end), "--no-publish"]
        command = [sys.executable, "-m", "rivertwice.cli.main", "backfill", "run", NAME, "--yes", *asked]
        cost = run_measured(command, {**os.environ, **settings.to_env()}, folder / "backfill-log")
        plans = list(settings.pipeline(NAME).backfills.glob("*/plan.json"))
        assert len(plans) == 1, plans
        records = self._records_of(settings)
        self._say(number, "backfill as a command, with start", records, cost.cpu_s, self.whole)

    def _records_of(self, settings: Settings) -> int:
        from rivertwice.backfill.store import list_backfills, load_backfill_plan

        home = settings.pipeline(NAME)
        return load_backfill_plan(home, list_backfills(home)[-1]).records

    def _warm(self, number: int, name: str, settings: Settings) -> None:
        plans: list[BackfillPlan] = []

        def work(range_: TimeRange) -> None:
            plans.append(compute(self._spark, settings, range_, publish=False))

        work(self._first)
        cpu_s = own_cpu_s(lambda: work(self._others), besides=self._broker.pid)
        self._say(number, f"backfill from {name}, warm", plans[-1].records, cpu_s, self.warm)

    def _note_stream(self, number: int, batch: int, run: Streamed) -> None:
        name = f"stream in batches of {batch:,}"
        self._say(number, f"{name}, with start", run.records, run.cost.cpu_s, self.whole)
        self._say(number, name, run.steady_records, run.steady_cpu_s, self.warm)

    def _say(self, number: int, name: str, records: int, cpu_s: float, figures: dict[str, list[float]]) -> None:
        figures.setdefault(name, []).append(records / cpu_s)
        print(f"round {number}: {name}: {records:,} records, {cpu_s:.2f} CPU-s, {records / cpu_s:,.0f} per CPU-s")
        sys.stdout.flush()

    def report(self) -> None:
        """Print the ratios, of pairs of the same round."""
        for figures in (self.whole, self.warm):
            streams = {name: rates for name, rates in figures.items() if name.startswith("stream")}
            for name, rates in figures.items():
                for other, others in () if name in streams else streams.items():
                    ratios = [mine / theirs for mine, theirs in zip(rates, others, strict=True)]
                    print(f"{name} / {other}: {describe(ratios)}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.backfill", description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--batches", type=int, nargs="+", default=[20_000, 200_000], help="records of a micro-batch")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left running
    with tempfile.TemporaryDirectory(prefix="rivertwice-bench-") as name:
        root = Path(name)
        own = Settings(Settings.from_env().project, root / "broker", spark_master="local[2]")
        broker = start_broker(own)
        spark = spark_session(own, "bench-backfill")
        try:
            fill(make_minutes_project(root / "fill", broker.bootstrap, TOPIC, 1), TOPIC, 0, arguments.records)
            rounds = Rounds(spark, broker, root, arguments.records)
            for number in range(1, arguments.rounds + 1):
                rounds.run(number, arguments.batches)
            rounds.report()
        finally:
            spark.stop()
            stop_broker(own)


if __name__ == "__main__":
    main()
