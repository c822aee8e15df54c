"""What a planned restore itself costs as history grows: from the drain to the moved head, without Spark and Kafka.

`PYTHONPATH=tests python -m lab.bench.planned_history`. The home has real tables, ledger, checkpoint files and savepoints, as the unit tests
have; what asks Kafka or the project is answered at once. Figures are seconds and CPU-seconds of this process.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest

from homes.operations import patch_effect
from homes.savepoint import FINGERPRINT, NOW, catch_checkpoint_up, commit_batches, make_home, row
from rivertwice.core.instants import utc_now
from rivertwice.log import kafka
from rivertwice.savepoint.manifest import StateBase
from rivertwice.savepoint.operations.restore import restore_savepoint
from rivertwice.savepoint.records import encode_record
from rivertwice.savepoint.take import take_savepoint
from rivertwice.timeline.intent import write_intent
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.watermarks import WatermarkRule

LENGTHS = (100, 1_000, 10_000)
KEPT = 200  # batches that a checkpoint can go back


def purge(checkpoint: Path, last: int) -> None:
    """Delete what a checkpoint that goes back `KEPT` batches does not have any more."""
    for folder in ("offsets", "commits", "state/0/0"):
        for path in (checkpoint / folder).iterdir():
            number = path.name.removeprefix(".").partition("_")[0].removesuffix(".crc")
            if number.isdigit() and int(number) <= last - KEPT:
                path.unlink()


def measure_length(folder: Path, batches: int, patch: pytest.MonkeyPatch) -> tuple[float, float, int]:
    """Return seconds, CPU-seconds and replayed batches of a planned restore so many batches after the proved savepoint."""
    settings, home = make_home(folder, planned=3, finished=3, committed=3)
    taken = take_savepoint(settings, "p", now=NOW)
    taken.store.put(f"{taken.id}/proof.json", encode_record({"proved": True}))
    last = 3 + batches
    append_ledger(home, [row(batch) for batch in range(4, last)])
    commit_batches(home, [row(last)])
    catch_checkpoint_up(home, "t1", finished=last)
    purge(home.checkpoint("t1"), last)
    write_intent(home, "running", "bench", utc_now())
    patch_effect(patch, "current_fingerprint", lambda *_: FINGERPRINT)
    patch_effect(patch, "load_state_definition", lambda *_: None)
    patch_effect(patch, "load_bundle_definition", lambda *_: None)
    patch_effect(patch, "rule_of", lambda *_: WatermarkRule({"flights": 0}))
    patch_effect(patch, "equivalent_bundles", lambda *_: {"b"})
    patch_effect(patch, "oldest_offsets", lambda *_, **__: {"flights": {0: 0}})
    patch.setattr(kafka, "begin_offsets", lambda *_: {0: 0})
    patch.setattr(kafka, "topic_id", lambda *_: "id")
    drained: list[tuple[float, float]] = []

    def note(line: str) -> None:
        if line.startswith("restore-") and not drained:  # checked: the drain is next
            drained.append((time.monotonic(), time.process_time()))

    report = restore_savepoint(settings, "p", StateBase.RESTING, progress=note)
    return time.monotonic() - drained[0][0], time.process_time() - drained[0][1], report.replayed


def main() -> None:
    """Print the figures at each length."""
    for batches in LENGTHS:
        with tempfile.TemporaryDirectory(prefix="rivertwice-bench-") as folder, pytest.MonkeyPatch.context() as patch:
            seconds, cpu_s, replayed = measure_length(Path(folder), batches, patch)
        print(
            f"{batches} batches after the proved savepoint: {seconds:.2f} s, {cpu_s:.2f} CPU-s, {replayed} replayed",
            flush=True,
        )


if __name__ == "__main__":
    main()
