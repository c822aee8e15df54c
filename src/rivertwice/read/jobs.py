"""Work that is under way outside Airflow, as far as the home tells: restores, loads, backfills, with their progress. Reads only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rivertwice.backfill import chunk_records, load_backfill_plan
from rivertwice.core import PipelineHome, Settings, is_locked
from rivertwice.read.facts import Facts
from rivertwice.storage import Remembered

NEWEST = 8
"""Folders of backfills that are looked at, the newest; more are not computed at the same time."""


@dataclass(frozen=True)
class Job:
    """One piece of work.

    Attributes:
        done, total: steps, windows, records or chunks; None if that is not known.
        of: what is counted.
    """

    title: str
    state: str
    since: datetime | None
    done: int | None = None
    total: int | None = None
    of: str = "steps"


def find_jobs(settings: Settings, facts: Facts) -> list[Job]:
    """Return the work that is under way for a pipeline, except the runs of its DAGs."""
    return [*_of_facts(facts), *_backfills(settings.pipeline(facts.name))]


def _of_facts(facts: Facts) -> Iterator[Job]:
    operation, load, stream_load = facts.operation, facts.first_load, facts.stream_load
    if operation is not None:
        title = f"{operation.noun} {operation.id}"
        yield Job(title, operation.name, operation.since, operation.step, operation.steps)
    if facts.observation.state == "restoring" and facts.observation.memory.fall_back is not None:
        yield Job("fall-back to the newest proved savepoint", "running", facts.observation.memory.fall_back.since)
    if load is not None:
        done, total, of = load.step, load.steps, "steps"
        if load.windows is not None and load.windows_left is not None:
            done, total, of = load.windows - load.windows_left, load.windows, "windows"
        state = "running" if load.process else "no process works on it"
        yield Job(f"first load {load.load or ''}".strip(), state, None, done, total, of)
    if stream_load is not None:
        done = stream_load.records - stream_load.records_left
        title = f"first load {stream_load.load} by the stream"
        yield Job(title, "running", None, done, stream_load.records, "records")


def _backfills(home: PipelineHome) -> Iterator[Job]:
    """Yield the backfills that somebody computes now: a process of this host holds their lock."""
    locks = sorted(home.backfills.glob("*/lock"), key=_changed, reverse=True)
    for lock in locks[:NEWEST]:
        if not is_locked(lock):
            continue
        name = lock.parent.name
        since = datetime.fromtimestamp(_changed(lock), UTC)
        yield Job(
            f"backfill {name}",
            "running",
            since,
            _done(home, name),
            len(load_backfill_plan(home, name).chunks),
            "chunks",
        )


def _done(home: PipelineHome, name: str) -> int:
    return _DONE.get((str(home.root), name), (home.tables.corrections,), lambda: len(chunk_records(home, name)))


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


_DONE: Remembered[int] = Remembered()
