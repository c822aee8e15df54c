"""F32 and F38: records far out of order over any cut into batches; and a gate whose suites cannot run."""

from __future__ import annotations

import shutil
import subprocess

import yaml

from lab.faults.cases import case, require
from lab.faults.cases_retention import require_true
from lab.faults.lab import PIPELINE, Lab
from lab.faults.retention_runs import ask, reconcile
from lab.faults.savepoint_runs import CLI
from rivertwice.reconcile.results import newest_reconcile

CUTS = (9, 17, 40, 90, 230, 2000)
"""Records per batch: from seventy batches to a single one."""


def repin(lab: Lab, max_offsets: int) -> None:
    """Let the pipeline take so many records per batch."""
    path = lab.settings.definitions / PIPELINE / "pipeline.yaml"
    document = yaml.safe_load(path.read_text())
    document["stream"]["max_offsets_per_trigger"] = max_offsets
    path.write_text(yaml.safe_dump(document, sort_keys=False))


@case(
    "F32", "far out of order, some a day late, cut into 1 to 70 batches; the backfill gives the truth whatever the cut"
)
def any_cut(lab: Lab) -> None:
    """Which records are late depends on the cut, and is explained by it; the result of a backfill does not depend on it."""
    cut = lab.random.choice(CUTS)
    repin(lab, cut)
    lab.fact("records_per_batch", cut)
    lab.produce(lab.next_plan(late_share=0.3, late_ms=40_000, closing=False))
    lab.produce(lab.next_plan(records=60, late_share=1.0, late_ms=86_400_000))
    lab.run_to_end()
    before = reconcile(lab)
    lab.fact("late_rows", before["counts"]["stream"].get("LATE", 0))
    ask(lab, "backfill", "run", PIPELINE, "--yes")
    reconcile(lab)
    require_true(lab)


@case(
    "F38",
    "the suites misspelt, torn or gone: the gate fails closed, and no verdict is stored",
    kills=0,
    proves=("howto-correct.md#where-it-is-kept",),
)
def gate_without_suites(lab: Lab) -> None:
    """A check that cannot run must never look like one that passed."""
    lab.produce(lab.next_plan(records=200))
    lab.run_to_end()
    folder = lab.settings.project / "expectations"
    source = folder.resolve()
    folder.unlink()
    shutil.copytree(source, folder)
    suite = folder / "verdicts.json"
    whole = suite.read_text()
    damages = {
        "misspelt": whole.replace('"expect_', '"expectt_', 1),
        "torn": whole[: len(whole) // 2],
        "empty": "",
        "gone": None,
    }
    how = lab.random.choice(sorted(damages))
    lab.fact("suite", how)
    damaged = damages[how]
    if damaged is None:
        suite.unlink()
    else:
        suite.write_text(damaged)
    done = subprocess.run(
        (*CLI, "reconcile", PIPELINE),
        env=lab.env(),
        cwd=lab.settings.project,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    require(done.returncode == 1, f"a reconcile without its suite ended with {done.returncode}: {done.stdout[-500:]}")
    require("verdicts" in done.stderr, f"the refusal does not name the suite: {done.stderr[-500:]}")
    require(newest_reconcile(lab.home) is None, "a run whose gate could not be judged is recorded")
    suite.write_text(whole)
    reconcile(lab)
    newest = newest_reconcile(lab.home)
    require(newest is not None and newest["gate"]["passed"], f"with its suite back the gate gives {newest}")
