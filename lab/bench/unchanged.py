"""What a reconcile costs when nothing is new, as records and batches grow. Needs no Spark and no broker.

`PYTHONPATH=.:tests python -m lab.bench.unchanged --sizes 3000000:1000 3000000:100000` makes the histories of `bench.reconcile` and stores for
each the run and the seal that a whole reconcile ends with. Its counts are made up: a run with nothing new copies them and looks at the
batch, the sequence, the stamp of `served` and the logs of the tables, which are those of the history.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lab.bench.reconcile import TOPIC, Story, cpu_of
from rivertwice.core.instants import utc_now
from rivertwice.log.addresses import Part
from rivertwice.reconcile.model import Account
from rivertwice.reconcile.observe import group_versions
from rivertwice.reconcile.results import Stamp, store_run
from rivertwice.reconcile.seals.look import look_at_changes
from rivertwice.reconcile.seals.model import START, Seal, SealedPart, meaning_of, store_seal
from rivertwice.reconcile.unchanged import reconcile_unchanged
from rivertwice.timeline.ledger import read_ledger

RUN = "bench"
COUNTS = {"stream": {"AGREES": 1}, "served": {"AGREES": 1}}


def seal_as_judged(story: Story, records: int) -> None:
    """Store a run that passed and its seal, up to the last batch."""
    home, look, now = story.home, look_at_changes(story.home), utc_now()
    assert look.last is not None, "batches were committed"
    last = read_ledger(home, first_batch=look.last[1])[-1]
    _, versions = group_versions({story.bundle.id: story.bundle.definition}, [last])
    account = Account(read=records, emitted=records).to_json()
    stamp = Stamp(RUN, "p", now, last.timeline, last.batch, last.bundle, look.sequence, last.end_offsets)
    summary = {
        "counts": COUNTS,
        "balance": {"total": account, "partitions": {"0": account}},
        "late_by_partition": {},
        "gate": {"passed": True, "alerts": [], "suites": []},
        "duration_s": 0.0,
    }
    store_run(home, stamp, [], [], summary)
    seal = Seal(
        run=RUN,
        created_at=now,
        timeline=last.timeline,
        batch=last.batch,
        meaning=meaning_of(versions[0]),
        sequence=look.sequence,
        amendments=look.amendments,
        end_offsets=last.end_offsets,
        settled_ms=last.batch_watermark_ms,
        served=look.stamp,
        counts=COUNTS,
        parts={Part(TOPIC, 0): SealedPart(records, records, 0, records, 0)},
        emitted=records,
        ledger=START,
        served_rows=0,
        versions=look.versions,
    )
    assert store_seal(home, seal)


def look_again(story: Story) -> None:
    """Reconcile with nothing new."""
    report = reconcile_unchanged(story.settings, "p", now=utc_now(), progress=lambda _: None)
    assert report is not None, "nothing is new"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", default=["3000000:1000", "3000000:100000"], help="records:batches")
    parser.add_argument("--times", type=int, default=6)
    asked = parser.parse_args(arguments)
    print("| records | batches | CPU-s, one by one |\n|---|---|---|", flush=True)
    for records, batches in (map(int, size.split(":")) for size in asked.sizes):
        with tempfile.TemporaryDirectory(prefix="rivertwice-bench-") as root:
            story = Story(Path(root) / "history", records, max(1, records // batches))
            story.commit(records)
            story.serve()
            seal_as_judged(story, records)
            figures = [cpu_of(lambda made=story: look_again(made)) for _ in range(asked.times)]  # type: ignore[misc]
        print(f"| {records:,} | {batches:,} | {', '.join(f'{figure:.2f}' for figure in figures)} |", flush=True)


if __name__ == "__main__":
    main()
