"""What a rewind's tests need beside a home: a definition, rows of it, and a driver that only writes batches.

t1  0 1 2 3 | 4 5 6      proved savepoint at 3; each batch is ten records and emits one window
t2            4 5        forked at t1@3: the same records in two batches, of which one window comes out otherwise
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from homes.savepoint import NOW, TOPIC, make_home, row, write_checkpoint
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import EPOCH, utc_now
from rivertwice.core.settings import Settings
from rivertwice.savepoint.catalogue import list_savepoints
from rivertwice.savepoint.records import encode_record
from rivertwice.savepoint.take import take_savepoint
from rivertwice.storage.table import Table
from rivertwice.stream.checkpoint import Goal
from rivertwice.stream.result_rows import changelog_rows
from rivertwice.stream.seal import stream_app
from rivertwice.timeline.intent import write_intent
from rivertwice.timeline.ledger import LEDGER_KEY, LedgerRow, append_ledger
from rivertwice.timeline.lineage import path_ledger

_TIME = pa.timestamp("us", "UTC")
_SCHEMA = pa.schema([("window_start", _TIME), ("window_end", _TIME), ("k", pa.string()), ("n", pa.int64())])


@dataclass(frozen=True)
class _Definition:
    name: str = "p"
    row_keys: tuple[str, ...] = ("k",)
    columns: tuple[str, ...] = ("n",)
    order: str = "read"

    @property
    def window(self) -> Any:
        return SimpleNamespace(start_column="window_start", end_column="window_end", size=timedelta(seconds=10))

    @property
    def topics(self) -> list[str]:
        return [TOPIC]

    @property
    def result_columns(self) -> list[str]:
        return list(_SCHEMA.names)


DEFINITION: Any = _Definition()


def emitted_rows(counts: dict[tuple[int, str], int]) -> pa.Table:
    """Rows (start second, key) -> n, of windows of ten seconds."""
    rows = [
        {"window_start": EPOCH + timedelta(seconds=s), "window_end": EPOCH + timedelta(seconds=s + 10), "k": k, "n": n}
        for (s, k), n in counts.items()
    ]
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def commit(home: PipelineHome, row: LedgerRow, counts: dict[tuple[int, str], int]) -> None:
    """Commit a batch as the sink does: rows, ledger row and transaction in one, then the ledger's copy."""
    Table(home.tables.changelog, partition_by=["_day"]).append(
        changelog_rows(emitted_rows(counts), row.timeline, row.batch),
        transactions={stream_app(row.pipeline, row.timeline): row.batch},
        metadata={LEDGER_KEY: row.to_json()},
    )
    append_ledger(home, [row])


def make_template(folder: Path) -> None:
    """Make the home of the picture above, once; each test works in a copy."""
    settings, home = make_home(folder, planned=3, finished=3, committed=-1)
    for batch in range(4):
        commit(home, row(batch, emitted=1), {(10 * batch, "k"): 1})
    taken = take_savepoint(settings, "p", now=NOW)
    taken.store.put(f"{taken.id}/proof.json", encode_record({"proved": True}))
    write_checkpoint(home, "t1", planned=6, finished=6)
    for batch in range(4, 7):
        commit(home, row(batch, emitted=1), {(10 * batch, "k"): 1})
    write_intent(home, "running", "test", utc_now())


class RewindWorld:
    """A copy of that home, and what is true around it."""

    def __init__(self, template: Path, folder: Path) -> None:
        shutil.copytree(template, folder, dirs_exist_ok=True)
        self.settings = Settings(folder / "project", folder / "home")
        self.home = self.settings.pipeline("p")
        (self.taken,) = list_savepoints(self.home)
        self.begin = {0: 0}
        self.before = [asdict(one) for one in path_ledger(self.home)]

    def catch_up(self, _settings: Any, _home: Any, goal: Goal, last: Callable[[], LedgerRow], _progress: Any) -> None:
        """Write what a driver would: batches of its own boundaries up to the goal."""
        end = goal.offsets[TOPIC]["0"]
        while (one := last()).end_offsets != goal.offsets:
            first = one.end_offsets[TOPIC]["0"]
            stop = min(first + 20, end)
            after = row(
                one.batch + 1,
                goal.timeline,
                start_offsets=one.end_offsets,
                end_offsets={TOPIC: {"0": stop}},
                read=stop - first,
                accepted=stop - first,
                batch_watermark_ms=goal.watermark_ms if stop == end else 4000,
                epoch=2,
            )
            commit(self.home, after, {(at, "k"): 2 if (first, at) == (40, 50) else 1 for at in range(first, stop, 10)})
