"""What the first load of a long log costs by large batches of the stream and by its ordinary ones: CPU-seconds of the process trees.

`PYTHONPATH=tests .venv/bin/python -m lab.bench.stream_load [--kind fold|session] [RECORDS ...]` starts a broker of its own. The log is that
of `bench.first_load`, with all records of a key in one partition: JSON records of 200 keys, one in a hundred late by up to six hours.
A fold keeps a count and the newest time of each key. Sessions have a gap of an hour; a late record counts in a large batch that would
be dropped between two small ones. Both sides are one driver over the same log: one in batches of 20,000, the other after
`rivertwice start NAME --from-batch`, with the default of `stream.load_batch`. Batches are split by what waits.
"""

from __future__ import annotations

import argparse
import tempfile
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from homes.project import TO_RUN, make_project
from lab.bench.first_load import DRIVER, LIMIT, SIZES, events_of, python
from lab.bench.measure import Cost
from lab.faults.events import produce_events
from rivertwice.core.settings import Settings
from rivertwice.local.broker import start_broker, stop_broker
from rivertwice.log.kafka import ensure_topic
from rivertwice.storage.table import Table
from rivertwice.timeline.lineage import path_ledger
from streams.keyed import NAME, PARTITIONS

_YAML = """
name: {name}
description: A {kind} of 200 keys.
sources:
  events:
    topic: {topic}
    partitions: {partitions}
    schema: {{k: string, at: timestamp}}
    required: [k]
    event_time: at
    max_future: 10000 days
{more}
stream: {{max_offsets_per_trigger: {limit}, catch_up_share: 0}}
"""
_FOLD = """window: {fold: 1 day, at: at}
by: [k]
state: {n: bigint, last: timestamp}
keys: [k]
columns: {at: {}, n: {}}
types: {at: timestamp, n: bigint}"""
_FOLD_PY = """
def fold(state, event):
    state = state or {"n": 0, "last": event["at"]}
    after = {"n": state["n"] + 1, "last": max(state["last"], event["at"])}
    return after, [{"n": after["n"]}]
"""
_SESSION = """    watermark: 1 hour
window: {session: 1 hour}
keys: [k]
count_column: n
columns: {n: {}}"""
_SESSION_SQL = """
SELECT session_window(at, '1 hour').start AS window_start, session_window(at, '1 hour').end AS window_end, k, count(*) AS n
FROM events GROUP BY session_window(at, '1 hour'), k
"""
KINDS = {"fold": (_FOLD, "fold.py", _FOLD_PY), "session": (_SESSION, "transform.sql", _SESSION_SQL)}


def make(folder: Path, bootstrap: str, topic: str, kind: str) -> Settings:
    """Make a project of a kind."""
    more, file, code = KINDS[kind]
    text = _YAML.format(name=NAME, kind=kind, topic=topic, partitions=PARTITIONS, more=more, limit=LIMIT)
    settings = make_project(folder, {NAME: {"pipeline.yaml": text, file: code}}, links=TO_RUN, bootstrap=bootstrap)
    settings.home.mkdir(parents=True, exist_ok=True)
    return settings


def partition_of(key: bytes | None) -> int:
    """Return the one partition of a key, so that a fold follows it in one order in whatever batches."""
    return zlib.crc32(key or b"") % PARTITIONS


def rows_of(settings: Settings) -> Counter[tuple[Any, ...]]:
    """Return what the stream emitted, without its batches."""
    table = Table(settings.pipeline(NAME).tables.changelog).read()
    assert table is not None
    names = sorted(name for name in table.column_names if name not in {"_format", "_timeline", "_batch", "_day"})
    return Counter(zip(*(table[name].to_pylist() for name in names), strict=True))


def report(records: int, kind: str, bootstrap: str, root: Path) -> None:
    """Load one log both ways, and print what each cost."""
    topic = f"stream-load-{kind}-{records}"
    small, large = (make(root / f"{side}-{kind}-{records}", bootstrap, topic, kind) for side in ("small", "large"))
    ensure_topic(small, topic, PARTITIONS)
    for events in events_of(records):
        produce_events(small, topic, [replace(event, partition=partition_of(event.key)) for event in events])
    log = root / "lab.bench.log"
    began = python(large, log, "rivertwice.cli.main", "start", NAME, "--from-batch")
    costs: dict[str, Cost] = {}
    for side, settings in (("small", small), ("large", large)):
        costs[side] = python(settings, log, *DRIVER)
        batches = [row.read for row in path_ledger(settings.pipeline(NAME)) if row.read]
        what = f"{len(batches)} batches of at most {max(batches, default=0):,}"
        print(f"| {kind} | {records:,} | {what} | {costs[side].cpu_s:.1f} | {costs[side].wall_s:.1f} |", flush=True)
    print(f"| {kind} | {records:,} | `start --from-batch` itself | {began.cpu_s:.1f} | {began.wall_s:.1f} |")
    share = (costs["large"].cpu_s + began.cpu_s) / costs["small"].cpu_s
    rows = [rows_of(side) for side in (small, large)]
    same = (
        f"{sum((rows[0] & rows[1]).values()):,} rows equal of {sum(rows[0].values()):,} and {sum(rows[1].values()):,}"
    )
    print(f"| {kind} | {records:,} | large / small | {share:.2f} | {same} |", flush=True)


def main() -> None:
    """Read the command line and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=sorted(KINDS), default="fold")
    parser.add_argument("records", type=int, nargs="*", default=list(SIZES))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rivertwice-bench-") as folder:
        root = Path(folder)
        settings = Settings(project=Settings.from_env().project, home=root / "home", spark_master="local[2]")
        start_broker(settings)
        try:
            print("| kind | records | part | CPU-s | wall s |\n|---|---|---|---|---|")
            for records in arguments.records:
                report(records, arguments.kind, settings.bootstrap_servers(), root)
        finally:
            stop_broker(settings)


if __name__ == "__main__":
    main()
