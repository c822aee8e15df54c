"""What `keep_decoded` saves: a backfill's computation and a whole reconcile over one archive, from its bytes and from what is kept decoded.

`python -m lab.bench.decoded [--records 1000000] [--rounds 5]`. The two stories of `bench.reconcile` have the same records; their archives have
100,000 a file, as the archive job writes them. In each round, in turn, in one warm session: the decoded records grouped by the transform,
and `reconcile --full`, of either. CPU-seconds of this process and its JVM. The first round also decodes and keeps.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from lab.bench.reconcile import TOPIC, YAML, Story, cpu_of, run
from rivertwice.engine.compile import compile_batch
from rivertwice.engine.decoded_log import LogDecoder
from rivertwice.engine.relations import accepted
from rivertwice.engine.session import spark_session
from rivertwice.log.decoded_files import decoded_place
from rivertwice.log.records import LogRead

CHUNK = 100_000
KEPT = YAML.replace("    required:", "    keep_decoded: true\n    required:")


def compute(spark: SparkSession, story: Story, records: int) -> None:
    """Read all records, and compute their rows, as a backfill does."""
    definition = story.bundle.definition
    view, source = definition.source
    read = LogRead(spark, story.settings, TOPIC, [{0: (0, records)}], "id")
    rows = compile_batch(spark, definition, accepted(LogDecoder(spark, definition, view).records(read), source))
    rows.write.format("noop").mode("overwrite").save()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.decoded", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    records = arguments.records
    with tempfile.TemporaryDirectory(prefix="rivertwice-decoded-") as name:
        stories = {}
        for side, yaml in (("bytes", YAML), ("kept", KEPT)):
            stories[side] = Story(Path(name) / side, records, records // 1_000, yaml=yaml, chunk=CHUNK)
            stories[side].commit(records)
            stories[side].serve()
        spark = spark_session(stories["kept"].settings, "bench-decoded")
        spent: dict[str, list[float]] = {}
        for number in range(arguments.rounds + 1):
            for act in ("compute", "reconcile"):
                for side, story in stories.items():
                    cost = cpu_of(
                        lambda story=story, act=act: (  # type: ignore[misc]
                            compute(spark, story, records) if act == "compute" else run(spark, story, full=True)
                        )
                    )
                    print(f"round {number}: {act} from {side}: {cost:.2f} CPU-s", flush=True)
                    if number:
                        spent.setdefault(f"{act} from {side}", []).append(cost)
        for what, costs in spent.items():
            print(f"{what}: median {statistics.median(costs):.2f} ({', '.join(f'{cost:.2f}' for cost in costs)})")
        place = decoded_place(stories["kept"].settings, TOPIC)
        assert place is not None
        for what, folder in (("archive", Path(str(stories["kept"].settings.archive(TOPIC)))), ("kept", place)):
            print(f"{what}: {sum(path.stat().st_size for path in folder.rglob('*.parquet')) / 1e6:.1f} MB")
        spark.stop()


if __name__ == "__main__":
    main()
