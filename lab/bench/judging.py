"""What a whole reconcile holds and how it spreads: memory of the driver's Python, CPU, and the stages that one task did alone.

`python -m lab.bench.judging --records 3000000 10000000 --slots 2 4` makes the histories of `bench.reconcile` (one record in a hundred is
late), each in a process of its own, and judges each of them in another. Memory is the resident set of the Python process that runs
the reconcile, sampled ten times a second, less what it has when Spark has started; the JVM and the executors' workers are not in
it. A stage's share is its time among that of all stages, as Spark's event log has it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from lab.bench.measure import tree_cpu_s

BATCH = 2_000
SAMPLE_S = 0.1


def make(folder: Path, records: int) -> None:
    """Write a history to a folder."""
    from lab.bench.reconcile import Story

    story = Story(folder, records, BATCH)
    story.commit(records)
    story.serve()


def judge(folder: Path, slots: int, events: Path) -> dict[str, float]:
    """Judge a whole history once; return what it took."""
    from rivertwice.core.instants import utc_now
    from rivertwice.core.settings import Settings
    from rivertwice.engine.session import spark_session
    from rivertwice.reconcile.run import reconcile

    settings = Settings(project=folder / "project", home=folder / "home", spark_master=f"local[{slots}]")
    extra = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
    }
    spark = spark_session(settings, "bench-judging", shuffle_partitions=2 * slots, extra=extra)
    spark.range(1000).count()
    own = psutil.Process()
    before_mb, peak = own.memory_info().rss / 1e6, [0.0]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(SAMPLE_S):
            peak[0] = max(peak[0], own.memory_info().rss / 1e6)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    cpu, began = sum(tree_cpu_s(own).values()), time.monotonic()
    report = reconcile(spark, settings, "p", full=True, now=utc_now(), progress=lambda _: None)
    taken = {"seconds": time.monotonic() - began, "cpu_s": sum(tree_cpu_s(own).values()) - cpu}
    ended.set()
    watcher.join()
    assert report.sealed, report.why
    counts = report.counts["stream"]
    spark.stop()
    return {
        **taken,
        "start_mb": before_mb,
        "more_mb": peak[0] - before_mb,
        "rows": sum(counts.values()),
        "late": counts["LATE"],
        "alone": share_alone(events),
    }


def share_alone(events: Path) -> float:
    """Return the share of the longest stage of one task in the time of all stages."""
    stages: list[tuple[int, float]] = []
    for file in (path for path in sorted(events.rglob("*")) if path.is_file()):
        for line in file.read_text().splitlines():
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("Event") == "SparkListenerStageCompleted":
                info = event["Stage Info"]
                if "Completion Time" in info and "Submission Time" in info:
                    stages.append((info["Number of Tasks"], info["Completion Time"] - info["Submission Time"]))
    total = sum(ms for _, ms in stages) or 1.0
    return max((ms for tasks, ms in stages if tasks == 1), default=0.0) / total


HEADER = (
    "records",
    "slots",
    "rows",
    "late rows",
    "seconds",
    "CPU-s",
    "Python MB at start",
    "more at its peak",
    "longest stage of one task",
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", nargs="+", type=int, default=[3_000_000])
    parser.add_argument("--slots", nargs="+", type=int, default=[2])
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.child:
        what, folder, number, *further = asked.child
        if what == "make":
            make(Path(folder), int(number))
        else:
            print(json.dumps(judge(Path(folder), int(number), Path(further[0]))), flush=True)
        return
    print("| " + " | ".join(HEADER) + " |\n" + "|---" * len(HEADER) + "|", flush=True)
    with tempfile.TemporaryDirectory(prefix="rivertwice-bench-") as root:
        for records in asked.records:
            folder = Path(root) / str(records)
            child("make", str(folder), str(records))
            for slots in asked.slots:
                events = Path(root) / f"events-{records}-{slots}"
                events.mkdir()
                found = json.loads(child("judge", str(folder), str(slots), str(events)).splitlines()[-1])
                print(
                    f"| {records:,} | {slots} | {found['rows']:,} | {found['late']:,} | {found['seconds']:.0f} | {found['cpu_s']:.0f} "
                    f"| {found['start_mb']:.0f} | {found['more_mb']:.0f} | {found['alone']:.0%} |",
                    flush=True,
                )


def child(*words: str) -> str:
    command = [sys.executable, "-m", "lab.bench.judging", "--child", *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=dict(os.environ)).stdout


if __name__ == "__main__":
    main()
