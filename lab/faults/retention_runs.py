"""What the retention cases share: commands with an answer, required stops, and a reconcile's verdicts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any

from lab.faults.cases import LabError, require
from lab.faults.lab import PIPELINE, Lab
from lab.faults.savepoint_runs import CLI
from rivertwice.reconcile.model import SERVED, STREAM
from rivertwice.reconcile.results import newest_reconcile, verdict_rows
from rivertwice.storage.table import Table
from rivertwice.stream.failures import FORK
from rivertwice.timeline.intent import Exit
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.served import rebuild_served
from rivertwice.timeline.verdicts import Verdict

RETENTION = "retention"


def ask(lab: Lab, *words: str) -> dict[str, Any]:
    """Run a command and return the JSON it prints; a command that found a defect (exit 3) answers too."""
    done = subprocess.run(
        (*CLI, *words),
        env=lab.env(),
        cwd=lab.settings.project,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode not in (0, 3):
        message = f"rivertwice {' '.join(words)} ended with {done.returncode}: {done.stderr[-3000:]}"
        raise LabError(message)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def committed(lab: Lab) -> dict[int, int]:
    """Return the offset that the head's path has reached, by partition."""
    rows = path_ledger(lab.home)
    return {int(p): int(offset) for p, offset in rows[-1].end_offsets[lab.topic].items()} if rows else {}


def require_stop(lab: Lab, failure: str, *words: str) -> str:
    """Start a driver, require that it stops with a class and these words and commits nothing; return its message."""
    before = len(path_ledger(lab.home))
    code = lab.wait(lab.start_driver(until_end=True), 180)
    ended = Exit.load(lab.home)
    require(
        code == 1 and ended is not None and not ended.clean, f"the driver ended with {code}, {ended}; {lab.log_end()}"
    )
    message = "" if ended is None else ended.message
    require(
        ended is not None and ended.failure == failure,
        f"the class is {ended and ended.failure}, not {failure}: {message}",
    )
    missing = [word for word in words if word not in message]
    require(not missing, f"the message does not name {missing}: {message}")
    require(len(path_ledger(lab.home)) == before, "a batch was committed although the stream stopped")
    return message


def require_way_back(lab: Lab, savepoint: str) -> None:
    """Require of a stream over a log that forked: it does not start, a reconcile does not pass, and a rewind is the way on."""
    require_stop(lab, FORK, "savepoint rewind")
    report = ask(lab, "reconcile", PIPELINE)
    require(not report["gate"]["passed"], "a reconcile passes over a log that forked")
    require(not any(counts["DEFECT"] for counts in report["counts"].values()), f"rows are DEFECT: {report['counts']}")
    ask(lab, "savepoint", "rewind", PIPELINE, savepoint, "--unproved", "--yes")
    lab.run_to_end()
    report = ask(lab, "reconcile", PIPELINE, "--full")
    require(report["gate"]["passed"], f"after the rewind: {report['gate']}")


def judged(lab: Lab, pair: str) -> list[tuple[int, int, str, str]]:
    """Return (start, end, verdict, reason) of the newest run's verdicts of one pair."""
    runs = Table(lab.home.tables.reconciles).read(columns=["run", "created_at"])
    rows = Table(lab.home.tables.verdicts).read()
    if runs is None or rows is None:
        return []
    newest = max(runs.to_pylist(), key=lambda row: row["created_at"])["run"]
    return [
        (
            int(row["window_start"].timestamp() * 1000),
            int(row["window_end"].timestamp() * 1000),
            row["verdict"],
            row["reason"],
        )
        for row in rows.to_pylist()
        if row["run"] == newest and row["pair"] == pair
    ]


def called_equal(lab: Lab, pair: str, rows: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return which rows, by (window start, key), the newest run calls equal in a pair.

    One verdict without a key stands for all rows of its window that have none of their own.
    """
    newest = newest_reconcile(lab.home)
    verdicts = [] if newest is None else [row for row in verdict_rows(lab.home, newest["run"]) if row["pair"] == pair]
    named = {
        (to_ms(row["window_start"]), json.loads(row["key"])["k"]): row["verdict"] for row in verdicts if row["key"]
    }
    equal = {to_ms(row["window_start"]) for row in verdicts if row["key"] is None and row["verdict"] == Verdict.AGREES}
    return [
        row for row in rows if named.get(row, Verdict.AGREES if row[0] in equal else Verdict.OPEN) == Verdict.AGREES
    ]


def to_ms(instant: datetime) -> int:
    """Return epoch milliseconds."""
    return int(instant.timestamp() * 1000)


def reconcile(lab: Lab, *, but: Collection[str] = ()) -> dict[str, Any]:
    """Rebuild what is served and reconcile; no row may be a defect, and nothing may be without a cause.

    Args:
        lab: the run.
        but: kinds of critical alerts that the gate may raise.
    """
    rebuild_served(lab.home, lab.definition)
    outcome = ask(lab, "reconcile", PIPELINE)
    bad = [row for pair in (STREAM, SERVED) for row in judged(lab, pair) if row[2] == Verdict.DEFECT]
    require(not bad, f"the reconcile calls rows DEFECT: {bad[:3]}")
    alerts = [
        alert["message"]
        for alert in outcome["gate"]["alerts"]
        if alert["severity"] == "critical" and alert["kind"] not in but
    ]
    require(not alerts, f"the reconcile's gate raises {alerts[:3]}")
    return outcome
