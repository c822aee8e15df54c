"""F7 to F12, F39: rotation and restore killed at each step, prune racing with a restore.

After each, every listed savepoint must be whole and prove equal to what the ledger recorded.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from lab.faults.cases import case, require
from lab.faults.lab import PIPELINE, Lab
from lab.faults.savepoint_runs import (
    Moment,
    begin,
    command_log,
    kill_at,
    prove_listed,
    run_command,
    start_command,
    take,
)
from rivertwice.core.instants import utc_now
from rivertwice.savepoint.catalogue import list_savepoints, load_savepoint
from rivertwice.savepoint.operations import record
from rivertwice.savepoint.operations.record import read_restores
from rivertwice.savepoint.operations.steps import RESTORE
from rivertwice.savepoint.records import DELETING, MANIFEST, TAKING
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.sequence import head

KILLS = 3
TAKE = ("savepoint", "take", PIPELINE)


def files_below(folder: Path, pattern: str) -> int:
    """Count files; a folder that comes and goes counts as far as it was seen."""
    try:
        return sum(1 for path in folder.glob(pattern) if path.is_file())
    except FileNotFoundError:
        return 0


def kill_takes(lab: Lab, moment: Callable[[set[str], int], Moment]) -> None:
    """Kill takes at one step while the stream runs, take one whole, and prove every savepoint that is listed at the end."""
    lab.produce()
    driver, watch = lab.start_driver(), lab.steps()
    lab.until(lambda: watch.finished(2), 120, "batch 2")
    struck = 0
    for _ in range(KILLS):
        known = {path.name for path in lab.home.savepoints.glob("*")}
        size = files_below(lab.checkpoint, "**/*")
        struck += kill_at(lab, TAKE, moment(known, size))
    lab.fact("struck", f"{struck}/{KILLS}")
    require(driver.poll() is None, f"the stream did not outlive the killed takes; {lab.log_end()}")
    run_command(lab, *TAKE)
    lab.until(lambda: watch.idle(lab.produced), 180, "the end of the log")
    lab.kill_when(driver, lambda: True, sig=signal.SIGTERM)
    lab.wait(driver, 60)
    require(len(list_savepoints(lab.home)) >= 1, "no savepoint is listed after the rotation that was not killed")
    prove_listed(lab)


def _staged(lab: Lab, share: float, _known: set[str], size: int) -> Moment:
    return Moment("staged", lambda: files_below(lab.home.scratch, "take-*/**/*") >= share * size)


def _stored(lab: Lab, share: float, known: set[str], size: int) -> Moment:
    def is_reached() -> bool:
        fresh = [path for path in lab.home.savepoints.glob("*") if path.name not in known]
        return any(files_below(path, "checkpoint/**/*") >= max(1, share * size) for path in fresh)

    return Moment("stored", is_reached)


def _manifest(lab: Lab, known: set[str], _size: int) -> Moment:
    def is_reached() -> bool:
        return any((path / MANIFEST).exists() for path in lab.home.savepoints.glob("*") if path.name not in known)

    return Moment("manifest", is_reached)


@case("F7", "a savepoint's take killed with half of the copy made", kills=KILLS)
def killed_in_the_copy(lab: Lab) -> None:
    """The store has no file yet."""
    kill_takes(lab, partial(_staged, lab, 0.5))


@case("F8", "a take killed when the copy is whole, being trimmed and hashed", kills=KILLS)
def killed_while_hashing(lab: Lab) -> None:
    """The copy's last file is there; the manifest is being made."""
    kill_takes(lab, lambda known, size: Moment("hashing", lambda: files_below(lab.home.scratch, "take-*/metadata") > 0))


@case("F9", "a take killed with half of its files in the store", kills=KILLS)
def killed_in_the_store(lab: Lab) -> None:
    """A folder without a manifest is no savepoint."""
    kill_takes(lab, partial(_stored, lab, 0.5))


@case("F10", "a take killed right before its manifest", kills=KILLS)
def killed_before_the_manifest(lab: Lab) -> None:
    """Nearly all files are in the store."""
    kill_takes(lab, partial(_stored, lab, 0.9))


@case("F11", "a take killed right after its manifest", kills=KILLS)
def killed_behind_the_manifest(lab: Lab) -> None:
    """The savepoint exists, though its mark of being taken may still lie there."""
    kill_takes(lab, partial(_manifest, lab))
    marks = [path.name for path in lab.home.savepoints.glob(f"*/{TAKING}")]
    lab.fact("marks_left", len(marks))


@case("F11/proof", "a proof killed while it fetches, replays and compares; then proved", kills=KILLS)
def killed_in_a_proof(lab: Lab) -> None:
    """A killed proof proves nothing and harms nothing."""
    begin(lab, 4)
    taken = take(lab)
    lab.run_to_end()
    words = ("savepoint", "prove", PIPELINE, taken.id, "--timeout", "1")
    log = lab.folder / "commands.log"

    def is_logged(text: str, times: int) -> bool:
        return log.exists() and log.read_text(errors="replace").count(text) >= times

    replays = lab.random.randrange(1, 3)
    moments = (
        Moment("fetched", lambda: any(lab.home.scratch.glob("prove-*/replayed"))),
        Moment("replaying", lambda: is_logged(" replayed: ", replays)),
        Moment("comparing", lambda: is_logged("comparing the state", 1)),
    )
    for moment in moments:
        require(kill_at(lab, words, moment), f"the proof ended before '{moment.name}': {command_log(lab)}")
        require(load_savepoint(lab.home, taken.id).status == "taken", "a killed proof counts")
    run_command(lab, *words)
    require(load_savepoint(lab.home, taken.id).status == "proved", "the proof that was not killed does not count")
    prove_listed(lab)


@case("F12", "prunes killed in the middle of a deletion, while the stream runs", kills=KILLS)
def killed_in_a_prune(lab: Lab) -> None:
    """What a killed prune began is finished by the next; what is protected stays whole."""
    lab.produce()
    driver, watch = lab.start_driver(), lab.steps()
    for batch in range(1, 7):
        lab.until(lambda at=batch: watch.finished(at), 120, f"batch {batch}")  # type: ignore[misc]
        take(lab)
    newest = list_savepoints(lab.home)[-1].id
    pinned = list_savepoints(lab.home)[0].id
    run_command(lab, "savepoint", "pin", PIPELINE, pinned)
    struck = 0
    for _ in range(KILLS):
        files_before = files_below(lab.home.savepoints, "*/checkpoint/**/*")
        at = lab.random.randrange(1, 80)

        def is_reached(files_before: int = files_before, at: int = at) -> bool:
            marked = any(lab.home.savepoints.glob(f"*/{DELETING}"))
            return marked and files_before - files_below(lab.home.savepoints, "*/checkpoint/**/*") >= at

        struck += kill_at(lab, ("savepoint", "prune", PIPELINE, "--keep", "1", "--yes"), Moment("deleting", is_reached))
    lab.fact("struck", f"{struck}/{KILLS}")
    run_command(lab, "savepoint", "prune", PIPELINE, "--keep", "1", "--yes")
    require(
        {savepoint.id for savepoint in list_savepoints(lab.home)} == {newest, pinned},
        "prune left or took the wrong ones",
    )
    require(not any(lab.home.savepoints.glob(f"*/{DELETING}")), "a deletion was left unfinished")
    lab.until(lambda: watch.idle(lab.produced), 180, "the end of the log")
    lab.kill_when(driver, lambda: True, sig=signal.SIGTERM)
    lab.wait(driver, 60)
    prove_listed(lab)


@case("F12/restore", "a restore killed after three of its steps and resumed each time", kills=KILLS)
def killed_in_a_restore(lab: Lab) -> None:
    """However often it is killed, the head moves once and nothing served changes."""
    begin(lab, 4)
    take(lab)
    lab.run_to_end()
    prove_listed(lab)
    before = [(row.timeline, row.batch, row.digest) for row in path_ledger(lab.home)]
    chosen = sorted(lab.random.sample(range(record.OperationStep.RECORDED, record.OperationStep.MOVED + 1), KILLS))
    struck = 0
    for step in chosen:

        def is_reached(step: int = step) -> bool:
            return any(step <= operation.step < record.OperationStep.DONE for operation in read_restores(lab.home))

        struck += kill_at(lab, ("savepoint", "restore", PIPELINE, "--yes"), Moment(RESTORE.name_of(step), is_reached))
    lab.fact("steps", ", ".join(RESTORE.name_of(step) for step in chosen))
    lab.fact("struck", f"{struck}/{KILLS}")
    if any(operation.step < record.OperationStep.DONE for operation in read_restores(lab.home)):
        run_command(lab, "savepoint", "restore", PIPELINE, "--yes")
    require(head(lab.home) != "t1", "the head has not moved")
    after = [(row.timeline, row.batch, row.digest) for row in path_ledger(lab.home)]
    require(after == before, "a restore changed what counts")
    lab.produce(lab.next_plan(records=200))
    lab.run_to_end()
    prove_listed(lab)


# ---- races


def _verified(names: Sequence[str], lab: Lab) -> None:
    for name in names:
        load_savepoint(lab.home, name).verify_files()


@case("F39", "prunes in a loop, one killed, while a restore runs over what they could delete", kills=3)
def prune_against_restore(lab: Lab) -> None:
    """The restored one is leased, the newest proved is protected, the pinned stays: none of them ever loses a file."""
    begin(lab, 4)
    proved = take(lab).id
    lab.run_to_end()
    prove_listed(lab)
    pinned = take(lab).id
    run_command(lab, "savepoint", "pin", PIPELINE, pinned)
    for _ in range(4):
        take(lab)
    restore = start_command(lab, "savepoint", "restore", PIPELINE, proved, "--yes")
    prunes = 0
    while restore.poll() is None:
        prune = start_command(lab, "savepoint", "prune", PIPELINE, "--keep", "1", "--yes")
        if prunes % 3 == 1 and lab.kills < 4:
            at = lab.random.uniform(0.3, 1.2)
            began = utc_now()
            lab.kill_when(prune, lambda since=began, at=at: (utc_now() - since).total_seconds() > at)  # type: ignore[misc]
        else:
            lab.wait(prune, 60)
        take(lab)
        prunes += 1
        _verified([proved, pinned], lab)
    lab.fact("prunes", prunes)
    require(restore.returncode == 0, f"the restore ended with {restore.returncode}: {command_log(lab)}")
    require(head(lab.home) == "t2", f"the head is {head(lab.home)}")
    run_command(lab, "savepoint", "prune", PIPELINE, "--keep", "1", "--yes")
    _verified([proved, pinned], lab)
    require(not any(lab.home.savepoints.glob(f"*/{DELETING}")), "a deletion was left unfinished")
    lab.produce(lab.next_plan(records=100))
    lab.run_to_end()
    prove_listed(lab)
