"""A reconcile with nothing new since the newest seal: what held for the sealed run holds for it. No Spark is needed."""

from __future__ import annotations

import secrets
from datetime import datetime

from rivertwice.core import PipelineHome, Progress, Settings
from rivertwice.log import name_parts
from rivertwice.reconcile.gate import DEAD_SHARE, FOREIGN_WRITE, QUALITY, Gate, GateAlert, dead_alerts
from rivertwice.reconcile.model import Account
from rivertwice.reconcile.report import Phases, ReconcileReport, standing_alerts
from rivertwice.reconcile.results import Stamp, reconcile_runs, store_run
from rivertwice.reconcile.seals.look import (
    UNCHANGED,
    ChangesSinceSeal,
    Decision,
    decide_mode,
    look_at_changes,
    require_files,
)
from rivertwice.reconcile.seals.model import read_seals
from rivertwice.timeline import Increment, head_definition, path_ledger, read_newest_dead

_OF_THAT_RUN = frozenset({QUALITY, FOREIGN_WRITE, DEAD_SHARE})
"""Kinds of alerts that do not continue: suites and dead letters are looked at again, and a foreign commit is older than the seal."""


def reconcile_unchanged(
    settings: Settings,
    pipeline: str,
    *,
    now: datetime,
    progress: Progress = print,
    run: str | None = None,
) -> ReconcileReport | None:
    """Return the report of a run if nothing changed since the newest seal, else None; no Spark is needed.

    The run is stored; what holds for it is what held for the sealed one.
    """
    phases = Phases(progress)
    home = settings.pipeline(pipeline)
    look = look_at_changes(home)
    decision = decide_mode(look)
    if decision.mode != UNCHANGED:
        return None
    require_files(home)
    phases.done("look", decision.reason)
    return keep_as_sealed(settings, home, look, decision, now=now, run=run, phases=phases)


def count_unsealed(home: PipelineHome, *, full: bool) -> int:
    """Return how many records a run reads: those of batches after the newest seal, or with `full` those of the whole path."""
    seals = [] if full else read_seals(home)
    last = seals[-1].batch if seals else -1
    return sum(row.read for row in path_ledger(home) if row.batch > last)


def new_run_name(now: datetime) -> str:
    """Return a name for a run."""
    return f"rc-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


def keep_as_sealed(
    settings: Settings,
    home: PipelineHome,
    look: ChangesSinceSeal,
    decision: Decision,
    *,
    now: datetime,
    run: str | None,
    phases: Phases,
) -> ReconcileReport:
    """Store a run for which everything holds that held for the sealed one.

    What users' suites say may have changed meanwhile: a range was judged again, somebody accepted a result or edited the suite.

    Args:
        look: in which nothing is new since the seal.
        run: its name; None: a new one.
    """
    seal = look.seal
    assert seal is not None, "without one there is something new"
    stored = next(each for each in reconcile_runs(home) if each["run"] == seal.run)
    increment = Increment(seal.run)
    stamp = Stamp(
        run=run or new_run_name(now),
        pipeline=stored["pipeline"],
        created_at=now,
        timeline=seal.timeline,
        batch=seal.batch,
        bundle="",
        sequence=seal.sequence,
        as_of=stored["as_of"],
    )
    summary = {name: stored[name] for name in ("counts", "balance", "late_by_partition")}
    alerts = [GateAlert(**alert) for alert in stored["gate"]["alerts"] if alert["kind"] not in _OF_THAT_RUN]
    definition = head_definition(home)
    assert definition is not None, "a sealed run looked at a head"
    dead = read_newest_dead(home, definition).describe(definition.alerts.dead_share)
    gate = Gate((*alerts, *dead_alerts(dead), *standing_alerts(settings, home)))
    summary["gate"] = {
        **stored["gate"],
        "passed": gate.passed,
        "alerts": gate.to_json()["alerts"],
        "reason": decision.reason,
    }
    store_run(home, stamp, [], [], {**summary, "duration_s": sum(phases.seconds.values())}, increment)
    phases.done("store", f"run {stamp.run}: as {seal.run}")
    balance = stored["balance"]
    accounts = {part: Account.from_json(balance["partitions"][name]) for part, name in name_parts(seal.parts).items()}
    total = Account.from_json(balance["total"])
    return ReconcileReport(
        stamp,
        [],
        stored["counts"],
        total,
        accounts,
        [],
        [],
        gate,
        0,
        dict(phases.seconds),
        increment,
        sealed=True,
        why=decision.reason,
    )
