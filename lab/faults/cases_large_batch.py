"""F52: a batch above the driver's limit, killed around every step of the way by which executors write it; the disk full there."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from lab.faults.cases import case, require
from lab.faults.cases_store import fill, small_disk
from lab.faults.lab import PIPELINE, Lab
from lab.faults.lab_project import edit_definition
from lab.faults.savepoint_runs import run_command
from lab.faults.strikes import AFTER, BEFORE, IN_WORKER, Strike, strike_driver
from rivertwice.storage.table import Table
from rivertwice.stream.sink import is_noted
from rivertwice.timeline.intent import Exit
from rivertwice.timeline.lineage import path_ledger

KEYS = 6_000
LIMIT = "spark.driver.maxResultSize 200k\n"
_SINK = "rivertwice.stream.sink"
REFUSED = (
    Strike("before the note", f"{_SINK}:note_large", BEFORE),
    Strike("after the note", f"{_SINK}:note_large", AFTER),
)
WRITTEN = (
    Strike("before executors write", f"{_SINK}:write_rows", BEFORE),
    Strike("after executors' files, before the commit", f"{_SINK}:write_rows", AFTER),
    Strike("right before the commit, dead letters written", "rivertwice.storage.table:Table.append_files", BEFORE),
    Strike("after the commit, before the ledger's copy", "rivertwice.storage.table:Table.append_files", AFTER),
    Strike("after the ledger's copy, before commits/N", f"{_SINK}:append_ledger", AFTER),
)
WORKER = Strike("a worker that writes", "rivertwice.storage.table:Table.write_files", IN_WORKER)
LONG_AGO_S = 30 * 86_400
"""So old is made what killed writers left, for upkeep waits a week before it removes a file that no commit names."""


def begin_large(lab: Lab) -> dict[str, str]:
    """Produce many keys that close in one batch, and let a driver refuse to collect it; return the environment of its limit."""

    def change(document: dict[str, Any]) -> None:
        document["stream"]["max_offsets_per_trigger"] = 3 * KEYS

    edit_definition(lab.settings, change)
    lab.produce(lab.next_plan(records=2 * KEYS, keys=KEYS, step_ms=1, late_share=0.02))
    folder = lab.folder / "spark-conf"
    folder.mkdir()
    (folder / "spark-defaults.conf").write_text(LIMIT)
    return {"SPARK_CONF_DIR": str(folder)}


def loose_files(lab: Lab) -> list[Path]:
    """Return the changelog's data files that its newest version does not name."""
    place = Path(lab.home.tables.changelog)
    table = Table(place).open()
    live = set() if table is None else set(table.sizes())
    return [path for path in sorted(place.rglob("*.parquet")) if path.relative_to(place).as_posix() not in live]


def refuse(lab: Lab, env: dict[str, str]) -> None:
    """Run a driver that may not collect the batch: it ends by itself, with a note for the next."""
    code = lab.wait(lab.start_driver(until_end=True, env=env))
    require(code == 1, f"a driver that may not collect its batch ended with {code}; {lab.log_end()}")
    rows = path_ledger(lab.home)
    require(is_noted(lab.home, lab.timeline, len(rows)), f"batch {len(rows)} is not noted; {lab.log_end()}")


@case(
    "F52",
    "a batch above Spark's limit killed around each step: refusal, note, executors' files, commit, ledger; then upkeep",
    kills=6,
)
def killed_in_a_large_batch(lab: Lab) -> None:
    """Files of killed writers are named by no commit: they change nothing, and upkeep removes them."""
    env = begin_large(lab)
    strike_driver(lab, lab.random.choice(REFUSED), env)
    if not is_noted(lab.home, lab.timeline, len(path_ledger(lab.home))):
        refuse(lab, env)
    committed = len(path_ledger(lab.home))
    for strike in WRITTEN[:3]:
        strike_driver(lab, strike, env)
        require(len(path_ledger(lab.home)) == committed, f"a batch counts that was killed '{strike.name}'")
    worker = lab.start_driver(
        until_end=True, env=env, program=(*WORKER.program(str(lab.folder)), "rivertwice.stream.driver")
    )
    code = lab.wait(worker)
    lab.kills += 1
    require(code not in (0, -signal.SIGKILL), f"a driver whose worker was killed ended with {code}; {lab.log_end()}")
    require(len(path_ledger(lab.home)) == committed, "a batch counts whose worker was killed")
    left = loose_files(lab)
    require(bool(left), "killed writers left no file, so nothing was struck between files and commit")
    strike_driver(lab, lab.random.choice(WRITTEN[3:]), env)
    lab.run_to_end(env)
    largest = max(row.emitted for row in path_ledger(lab.home))
    require(largest > KEYS // 2, f"the largest batch emitted {largest} rows: nothing was above the limit")
    lab.fact("rows_of_the_large_batch", largest)
    lab.fact("files_left", len(loose_files(lab)))
    for path in left:
        os.utime(path, (time.time() - LONG_AGO_S,) * 2)
    run_command(lab, "admin", "upkeep", PIPELINE)
    kept = [path for path in left if path.exists()]
    require(not kept, f"upkeep left {len(kept)} of {len(left)} files that no commit names")


@case("F52/disk", "the tables' disk full when executors write a batch above Spark's limit; then freed")
def disk_full_in_a_large_batch(lab: Lab) -> None:
    """Part of the files, no commit: freed, the batch is written once."""
    tables = lab.home.tables.root
    require(isinstance(tables, Path), "the tables lie in no folder")
    disk = small_disk(Path(tables))
    disk.__enter__()
    lab.at_end(lambda: disk.__exit__(None, None, None))
    env = begin_large(lab)
    refuse(lab, env)
    committed = len(path_ledger(lab.home))
    filler = fill(Path(tables), lab.random.randrange(0, 40_000))
    code = lab.wait(lab.start_driver(until_end=True, env=env))
    record = Exit.load(lab.home)
    lab.fact("ended_as", None if record is None else f"{record.failure}: {record.message[:80]}")
    require(code == 1 and record is not None, f"a driver with a full disk ended with {code}; {lab.log_end()}")
    require(record is not None and record.failure == "disk", f"a full disk is classified as {record}")
    require(len(path_ledger(lab.home)) == committed, "a batch counts that found no room")
    filler.unlink()
    lab.run_to_end(env)
    largest = max(row.emitted for row in path_ledger(lab.home))
    require(largest > KEYS // 2, f"the largest batch emitted {largest} rows: nothing was above the limit")
