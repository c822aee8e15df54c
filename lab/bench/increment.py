"""What an incremental reconcile saves: results asked for one by one and compiled, together, and together and interpreted. Report only.

`PYTHONPATH=.:tests python -m lab.bench.increment [--records 300000] [--batches 300] [--rounds 5]`: the story of `bench.reconcile`, in one
warm session; each run has one record in a hundred new, and the three ways take turns. CPU-seconds of this process and its JVM.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from lab.bench.reconcile import Story, cpu_of, run
from rivertwice.engine.session import spark_session
from rivertwice.reconcile import run as reconcile_run
from rivertwice.reconcile.derive import DerivedLog
from rivertwice.reconcile.kinds.tumbling_hopping import WindowJudge

WAYS = ("one by one, compiled", "together, compiled", "together, interpreted")


@contextmanager
def way(number: int) -> Iterator[None]:
    """Let reconciles run in one of the ways."""
    counts = DerivedLog.counts

    def counts_alone(log: DerivedLog, **_: Any) -> Any:
        return counts(log)

    with ExitStack() as stack:
        if number < 2:
            stack.enter_context(mock.patch.object(reconcile_run, "has_few_records", return_value=False))
        if number < 1:
            stack.enter_context(mock.patch.object(WindowJudge, "answer_together", return_value=None))
            stack.enter_context(mock.patch.object(DerivedLog, "counts", counts_alone))
        yield


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args(arguments)
    fresh = asked.records // 100
    with tempfile.TemporaryDirectory(prefix="rivertwice-bench-") as root:
        warm = Story(Path(root) / "warm", 20_000, 200)
        warm.commit(20_000)
        warm.serve()
        spark = spark_session(warm.settings, "bench-increment")
        try:
            run(spark, warm)
            runs = asked.rounds * len(WAYS)
            story = Story(Path(root) / "story", asked.records + runs * fresh, max(1, asked.records // asked.batches))
            story.commit(asked.records)
            story.serve()
            print(f"whole: {cpu_of(lambda: run(spark, story)):.2f} CPU-s", flush=True)
            costs: list[list[float]] = [[] for _ in WAYS]
            for number in range(runs):
                story.commit(asked.records + (number + 1) * fresh)
                story.serve()
                with way(number % len(WAYS)):
                    costs[number % len(WAYS)].append(cpu_of(lambda: run(spark, story)))
            for name, own in zip(WAYS, costs, strict=True):
                ratios = [cost / first for cost, first in zip(own, costs[0], strict=True)]
                print(
                    f"{name}: {', '.join(f'{cost:.2f}' for cost in own)} CPU-s; to the first way, median {statistics.median(ratios):.2f}"
                )
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
