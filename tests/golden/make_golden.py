"""Make the golden savepoint of a stored-format version: a small real home, its records, and what it must give for ever.

Usage: PYTHONPATH=tests python tests/golden/make_golden.py --version 1 [--fold]
Run it once when a stored format gets a new version, and commit the folder it writes. An older golden is never made
anew: it is what an older release left on somebody's disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from base64 import b64encode
from pathlib import Path
from typing import Any

from homes.project import REPOSITORY, TO_RUN, edit_yaml, make_project
from lab.faults.events import EventPlan, plan_events, produce_events
from lab.faults.lab import DEFINITION
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.local.broker import start_broker, stop_broker
from rivertwice.log import kafka
from rivertwice.log.archive import extend_archive
from rivertwice.savepoint.feed import session_of
from rivertwice.savepoint.plan import load_state_definition
from rivertwice.savepoint.proof import read_state
from rivertwice.savepoint.take import take_savepoint
from rivertwice.storage.table import Table
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.served_rows import stream_rows
from streams.synthetic import DriverProcess, run_to_end, wait_for_batch

HERE = Path(__file__).parent
BATCH = 30
RECORDS = 120
FOLD = """
from decimal import Decimal


def fold(state, event):
    if event["amount"] < 0 and state is not None and state["n"] > 4:
        return None, []  # forgets the key
    state = state or {"n": 0, "total": 0, "mean": None, "last": None, "seen": {}}
    state["n"] += 1
    state["total"] += event["amount"]
    state["mean"] = (Decimal(state["total"]) / state["n"]).quantize(Decimal("0.000001"))
    state["last"] = event["at"]
    state["seen"][event["id"]] = [event["amount"], "\u00e9\u2028"]
    return state, [{"n": state["n"], "total": state["total"], "mean": state["mean"]}]
"""
FOLDED = {
    "window": {"fold": "1 minute", "at": "at"},
    "by": ["k"],
    "state": {"n": "bigint", "total": "bigint", "mean": "decimal(20,6)", "last": "timestamp", "seen": "json"},
    "columns": {"at": {}, "n": {}, "total": {}, "mean": {}},
    "types": {"at": "timestamp", "n": "bigint", "total": "bigint", "mean": "decimal(20,6)"},
}
AT = 2  # the savepoint stands at this batch or the next


def make_golden_project(folder: Path, name: str, bootstrap: str, *, fold: bool = False) -> Settings:
    """Make the golden's project: lab_sums under another name, or a fold of its records, over a topic of its own."""
    settings = make_project(folder, {name: DEFINITION}, links=TO_RUN, bootstrap=bootstrap)

    def change(document: dict[str, Any]) -> None:
        document["name"] = name
        document["sources"]["events"]["topic"] = name
        document["stream"]["max_offsets_per_trigger"] = BATCH

    def change_to_fold(document: dict[str, Any]) -> None:
        for part in ("count_column", "late"):
            del document[part]
        del document["sources"]["events"]["watermark"]
        document.update(FOLDED)

    edit_yaml(settings.definitions / name, change)
    if fold:
        edit_yaml(settings.definitions / name, change_to_fold)
        for sql in ("transform.sql", "rows.sql"):
            (settings.definitions / name / sql).unlink()
        (settings.definitions / name / "fold.py").write_text(FOLD)
    return settings


def stream(settings: Settings, name: str) -> str:
    """Stream everything, with a savepoint taken on the way; return its id."""
    plan = EventPlan(seed=20260101, records=RECORDS, partitions=3, keys=4, poison_share=0.04)
    kafka.ensure_topic(settings, name, 3)
    events = plan_events(plan)
    half = BATCH * (AT + 1)
    produce_events(settings, name, events[:half])
    driver = DriverProcess(settings, name)
    try:
        wait_for_batch(settings, name, AT, driver=driver, seconds=120)
        driver.drain()
    finally:
        driver.stop()
    taken = take_savepoint(settings, name, now=utc_now(), reason="golden")
    produce_events(settings, name, events[half:])
    run_to_end(settings, name)
    extend_archive(None, settings, name)
    return taken.id


def place(row: dict[str, Any]) -> tuple[object, ...]:
    """Return what the expected rows are sorted by."""
    return str(row["window_start"]), row["k"], row.get("record"), row.get("row")


def expectations(settings: Settings, name: str, savepoint: str) -> dict[str, object]:
    """Return what a restore of this golden must give, as it was when it was made."""
    home = settings.pipeline(name)
    rows = path_ledger(home)
    rows_served = stream_rows(home)
    assert rows_served is not None
    served = sorted(rows_served.to_pylist(), key=place)
    manifest = json.loads((home.savepoints / savepoint / "manifest.json").read_text())
    from rivertwice.savepoint.catalogue import load_savepoint

    spark = session_of(settings, load_state_definition(home, load_savepoint(home, savepoint).manifest))
    state = read_state(spark, home.checkpoint("t1"), rows[-1].batch)
    dead = Table(home.tables.dead_letters).read()
    return {
        "pipeline": name,
        "savepoint": savepoint,
        "batch": manifest["batch"],
        "digests": {str(row.batch): row.digest for row in rows},
        "state": {"batch": state.batch, "rows": state.rows, "stores": dict(state.stores)},
        "rows": json.loads(json.dumps(served, default=str)),
        "dead_letters": 0 if dead is None else dead.num_rows,
        "records": sum(row.read for row in rows),
    }


def write_records(settings: Settings, name: str, target: Path) -> None:
    """Write every archived record as a JSON line, by address."""
    table = Table(settings.archive(name)).read()
    assert table is not None

    def plain(row: dict[str, object]) -> dict[str, object]:
        made = {key: row[key] for key in ("topic_id", "partition", "offset")}
        made["timestamp_ms"] = round(row["timestamp"].timestamp() * 1000)  # type: ignore[attr-defined]
        for key in ("key", "value"):
            made[key] = None if row[key] is None else b64encode(row[key]).decode()  # type: ignore[arg-type]
        made["headers"] = [[h["key"], b64encode(h["value"]).decode()] for h in row["headers"] or []]  # type: ignore[attr-defined]
        return made

    rows = sorted(map(plain, table.to_pylist()), key=lambda row: (row["partition"], row["offset"]))
    target.write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in rows))


def copy_home(settings: Settings, name: str, target: Path) -> None:
    """Copy what a restore needs of the home: bundles, timeline, checkpoint, savepoint, tables, archive."""
    home = settings.pipeline(name).root
    for part in ("bundles", "timelines", "savepoints", "tables"):
        shutil.copytree(home / part, target / "home" / "pipelines" / name / part)
    shutil.copytree(settings.archive(name), target / "home" / "archive" / name)


def forget_folder(target: Path, folder: Path) -> None:
    """Take the temporary folder out of the commits' descriptions, which nobody reads."""
    for path in target.rglob("_delta_log/*.json"):
        path.write_text(path.read_text().replace((folder / "home").as_uri(), "file:///golden"))


def main() -> int:
    """Make one golden; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", type=int, required=True)
    parser.add_argument("--fold", action="store_true", help="of a fold, as fold-vN")
    arguments = parser.parse_args()
    version, fold = arguments.version, arguments.fold
    target = HERE / f"{'fold' if fold else 'savepoint'}-v{version}"
    if target.exists():
        sys.stderr.write(f"{target.name} is there; a golden is never made anew\n")
        return 1
    name = f"golden_{'fold' if fold else 'sums'}_v{version}"
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp)
        broker = Settings(REPOSITORY, folder / "broker")
        bootstrap = start_broker(broker).bootstrap
        try:
            settings = make_golden_project(folder, name, bootstrap, fold=fold)
            savepoint = stream(settings, name)
            expected = expectations(settings, name, savepoint)
        finally:
            stop_broker(broker)
        copy_home(settings, name, target)
        forget_folder(target, folder)
        shutil.copytree(settings.definitions, target / "project" / "pipelines")
        write_records(settings, name, target / "records.jsonl")
        (target / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    sys.stdout.write(f"{target.name}: {size} bytes\n")
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
