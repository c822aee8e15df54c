"""The control job's own cases: faults that need another program than for rivertwice (F13, F14, F18, F24), and F5 with offsets first."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence

from lab.faults.cases import Case, require
from lab.faults.cases_driver import KILLS, killed_behind_the_checkpoint
from lab.faults.control_lab import ControlLab
from lab.faults.steps import numbers
from rivertwice.log import kafka


def zombie(lab: ControlLab) -> None:
    """F13: the job hangs in a batch, the scheduler starts another one, and the first wakes up."""
    lab.produce()
    first, steps = lab.start_driver(), lab.steps()
    batch = lab.random.randrange(1, 6)
    require(lab.kill_when(first, lambda: steps.in_state(batch), sig=signal.SIGSTOP), lab.log_end())
    lab.run_to_end()
    lab.signal_group(first, signal.SIGCONT)
    lab.until(lambda: first.poll() is not None or lab.steps().idle(lab.produced), 60, "the first job's end")
    time.sleep(5)


def double_start(lab: ControlLab) -> None:
    """F14: two jobs on one checkpoint; a job that fails is started again."""
    lab.produce()
    first = lab.start_driver(until_end=True)
    time.sleep(lab.random.choice([0.0, lab.random.uniform(0, 0.3), lab.random.uniform(0, 6)]))
    second = lab.start_second()
    lab.wait(first, 120)
    lab.wait(second, 120)
    lab.run_to_end()


def retention(lab: ControlLab) -> None:
    """F18: the log forgets records that the stopped job has not read yet. `failOnDataLoss=false` lets it continue."""
    lab.produce()
    first, steps = lab.start_driver(), lab.steps()
    batch = lab.random.randrange(2, 6)
    require(lab.kill_when(first, lambda: steps.finished(batch)), lab.log_end())
    ends = kafka.end_offsets(lab.settings, lab.topic)
    kafka.delete_records(lab.settings, lab.topic, {partition: end * 2 // 3 for partition, end in ends.items()})
    lab.run_to_end()


def damaged(lab: ControlLab) -> None:
    """F24: a file of the checkpoint is cut to nothing. Repeated starts fail, so its owners remove the checkpoint."""
    lab.produce()
    first, steps = lab.start_driver(), lab.steps()
    batch = lab.random.randrange(4, 9)
    require(lab.kill_when(first, lambda: steps.finished(batch)), lab.log_end())
    folder = lab.checkpoint / lab.random.choice(["offsets", "commits"])
    (folder / str(max(numbers(folder)))).write_bytes(b"")
    lab.run_to_end()


def commits_first(lab: ControlLab) -> None:
    """F5 of a job that commits a batch's offsets before its output, which is in memory when the job is killed."""
    lab.commits_first = True
    killed_behind_the_checkpoint(lab)


def _control(name: str, title: str, run: Callable[[ControlLab], None], kills: int) -> Case:
    return Case(name, title, run, 3, kills, control=True, quick=False, spark=True, judge=True)  # type: ignore[arg-type]


# Each but the first is shown on the line of the case that does the same to rivertwice.
CONTROL = (
    _control(
        "F5/commit-first",
        "killed right after commits/N, with offsets that are committed before the output",
        commits_first,
        KILLS,
    ),
    _control("F13/zombie", "stopped in a batch, outlived, continued", zombie, 0),
    _control("F14", "two jobs started with a random gap", double_start, 0),
    _control("F18/above", "the log forgets unread records", retention, 1),
    _control("F24/logs", "the newest file of offsets or commits cut to nothing", damaged, 1),
)


def control_cases(cases: Sequence[Case]) -> list[Case]:
    """Return the control job's cases: those it shares with rivertwice, and its own."""
    shared = [each for each in cases if each.control]
    own = [each for each in CONTROL if each.name not in {case.name for case in shared}]
    return sorted([*shared, *own], key=lambda each: each.order)
