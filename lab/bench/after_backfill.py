"""What a reconcile costs after a publication of few windows, by how they lie and how large batches are.

`PYTHONPATH=.:tests python -m lab.bench.after_backfill [--records 1000000] [--batch 1000] [--rounds 5]`: the story of `bench.reconcile`
with 1,000 records in a window, in one warm session, and no broker. A line for each round: CPU-seconds of this process and its JVM for
the reconcile after a publication of 3 windows side by side, of 3 scattered ones, and of 122 scattered ones, with the records read.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from lab.bench.reconcile import Story, cpu_of, run
from rivertwice.core.instants import utc_now
from rivertwice.engine.session import spark_session
from rivertwice.reconcile.run import reconcile

STEP_MS = 60
EDGE = 20
"""So many windows at either end are not published."""
PLANS = (("3 side by side", 3, True), ("3 scattered", 3, False), ("122 scattered", 122, False))


def chosen(chance: random.Random, starts: Sequence[int], count: int, together: bool) -> list[int]:
    """Return the starts of so many windows."""
    settled = starts[EDGE:-EDGE] if len(starts) > 20 * EDGE else starts[:-3]
    if together:
        first = chance.randrange(len(settled) - count)
        return list(settled[first : first + count])
    return sorted(chance.sample(list(settled), min(count, len(settled))))


def measure(story: Story, chance: random.Random, spark: SparkSession, count: int, together: bool) -> str:
    """Publish and serve windows, and return the cost of the reconcile that follows, with the records that it read."""
    story.publish(chosen(chance, story.starts, count, together))
    story.serve()
    lines: list[str] = []
    cost = cpu_of(lambda: reconcile(spark, story.settings, "p", now=utc_now(), progress=lines.append))
    read = next(line.split(": ")[2].split(" ")[0] for line in lines if "re-derive" in line)
    return f"{cost:.2f} ({read})"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args(arguments)
    chance = random.Random(3)
    with tempfile.TemporaryDirectory(prefix="rivertwice-bench-") as root:
        warm = Story(Path(root) / "warm", 20_000, 1_000, STEP_MS)
        warm.commit(20_000)
        warm.serve()
        spark = spark_session(warm.settings, "bench-after-backfill")
        try:
            run(spark, warm)
            for _ in range(4):
                measure(warm, chance, spark, 1, True)
            story = Story(Path(root) / "story", asked.records, asked.batch, STEP_MS)
            story.commit(asked.records)
            story.serve()
            print(f"| whole | {cpu_of(lambda: run(spark, story)):.2f} |", flush=True)
            print("| " + " | ".join(name for name, _, _ in PLANS) + " |\n" + "|---" * len(PLANS) + "|", flush=True)
            for _ in range(asked.rounds):
                cells = [measure(story, chance, spark, count, together) for _, count, together in PLANS]
                print("| " + " | ".join(cells) + " |", flush=True)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
