"""F1 to F6: a driver killed with SIGKILL right after each step of its protocol, and at any moment."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from lab.faults.cases import case, require
from lab.faults.errors import LabError
from lab.faults.lab import Lab
from lab.faults.steps import DeltaLog, Steps

KILLS = 3
MISSES = 60
Reached = Callable[[Steps, int], bool]


def stop_at_step(lab: Lab, driver: subprocess.Popen[bytes], reached: Reached, hit: Reached, batch: int) -> int:
    """Stop a driver (SIGSTOP) when a batch has reached a step and no later one, and return how often that was missed.

    A step may last a millisecond. So the driver is stopped first and looked at then; if it is past the step already it
    continues, and the next batch is tried. What lies on disk then is what a kill at that very moment leaves.

    Args:
        lab: the run.
        driver: the driver that streams.
        reached: the step, asked every millisecond.
        hit: what is on disk between this step and the next.
        batch: the first one to be tried.
    """
    steps, missed = lab.steps(), 0
    while missed < MISSES:
        struck = lab.kill_when(driver, partial(_reached_or_idle, lab, steps, reached, batch), sig=signal.SIGSTOP)
        require(struck, f"the driver ended before batch {batch} was struck; {lab.log_end()}")
        if hit(steps, batch):
            return missed
        if steps.idle(lab.produced):
            lab.produce(lab.next_plan(records=300))
        lab.signal_group(driver, signal.SIGCONT)
        missed += 1
        batch = steps.last_planned() + 1
    message = f"the step was missed {missed} times: this machine is too busy to strike it"
    raise LabError(message)


def _reached_or_idle(lab: Lab, steps: Steps, reached: Reached, batch: int) -> bool:
    return reached(steps, batch) or steps.idle(lab.produced)


def kill_at_step(lab: Lab, reached: Reached, hit: Reached) -> None:
    """Kill a driver KILLS times between a step of a batch and the next step, then let it reach the end of the log.

    The batches are drawn ahead of what is planned already, so each kill strikes a batch that runs for the first time.
    """
    lab.produce()
    missed = 0
    for _ in range(KILLS):
        batch = lab.steps().last_planned() + lab.random.randrange(1, 4)
        driver = lab.start_driver()
        missed += stop_at_step(lab, driver, reached, hit, batch)
        require(lab.kill_when(driver, lambda: True), "the stopped driver ended by itself")
    lab.run_to_end()
    lab.fact("kills_on_the_step", KILLS)
    lab.fact("stops_beside_it", missed)


@case("F1", "killed right after offsets/N", kills=KILLS, control=True)
def killed_behind_offsets(lab: Lab) -> None:
    """The batch is planned and nothing of it is done."""
    kill_at_step(lab, Steps.planned, lambda steps, n: not steps.published(n))


@case("F2", "killed right after the batch's first state file", kills=KILLS, control=True)
def killed_behind_state(lab: Lab) -> None:
    """State files of the batch exist; no commit refers to them."""
    kill_at_step(lab, Steps.in_state, lambda steps, n: steps.in_state(n) and not steps.published(n))


@case(
    "F3",
    "killed when result files are written, before their commit",
    kills=KILLS,
    control=True,
    proves=("guarantees.md#changelog",),
)
def killed_behind_files(lab: Lab) -> None:
    """Parquet files are there that no commit of the table names. Batches that emit nothing write none."""
    kill_at_step(lab, Steps.files_written, Steps.files_written)


@case(
    "F4",
    "killed right after the changelog's commit, before the ledger's copy and commits/N",
    kills=KILLS,
    control=True,
    quick=True,
    proves=("guarantees.md#changelog",),
)
def killed_behind_the_commit(lab: Lab) -> None:
    """The batch counts, whatever the checkpoint and the ledger table contain."""

    def hit(steps: Steps, batch: int) -> bool:
        return steps.published(batch) and not steps.finished(batch) and not copied(lab, batch)

    kill_at_step(lab, Steps.published, hit)


def copied(lab: Lab, batch: int) -> bool:
    """Say whether the ledger table has the batch: each has a commit there of its own, made by the batch or by healing."""
    return DeltaLog(Path(lab.home.tables.ledger)).versions() > batch


@case("F4/copied", "killed when the ledger row is copied, before commits/N", kills=KILLS)
def killed_behind_the_copy(lab: Lab) -> None:
    """The ledger table has the row; Spark does not know that the batch is done."""

    def reached(steps: Steps, batch: int) -> bool:
        return steps.published(batch) and copied(lab, batch)

    kill_at_step(lab, reached, lambda steps, n: reached(steps, n) and not steps.finished(n))


@case("F5", "killed right after commits/N", kills=KILLS, control=True)
def killed_behind_the_checkpoint(lab: Lab) -> None:
    """All of the batch is done, and the next one may have begun."""
    kill_at_step(lab, Steps.finished, lambda steps, n: steps.finished(n) and not steps.planned(n + 1))


@case("F6", "killed while it has nothing to do", kills=KILLS, control=True)
def killed_idle(lab: Lab) -> None:
    """Between two chapters of the story the driver waits, and is killed waiting."""
    for _ in range(KILLS):
        lab.produce(lab.next_plan(records=200))
        driver, steps = lab.start_driver(), lab.steps()
        lab.until(partial(steps.idle, lab.produced), 120, "the end of the log")
        strike = time.monotonic() + lab.random.uniform(0.0, 1.0)
        struck = lab.kill_when(driver, lambda at=strike: time.monotonic() >= at)  # type: ignore[misc]
        require(struck, f"the driver ended by itself; {lab.log_end()}")
    lab.produce(lab.next_plan(records=200))
    lab.run_to_end()


@case("F6/any", "killed six times at any moment, starts included", kills=6)
def killed_at_any_moment(lab: Lab) -> None:
    """The moments are drawn, not chosen: half of them fall into a start."""
    lab.produce()
    for _ in range(6):
        strike = time.monotonic() + lab.random.uniform(0.3, 14.0)
        lab.kill_when(lab.start_driver(), lambda at=strike: time.monotonic() >= at)  # type: ignore[misc]
    lab.run_to_end()
