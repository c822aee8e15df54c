"""Take a savepoint, prove it and prune; or prove the savepoint of a planned restore or upgrade.

Usage: python -m rivertwice.savepoint.keep_up --pipeline NAME [--prove ID]
The agent starts it, with the lowest priority, when a planned operation's savepoint is not proved yet, and when the recovery objective of
a pipeline needs a savepoint before the schedule takes one. Killed anywhere it leaves what a take, a proof or a prune leaves.
Exit codes: 0 proved, 3 the replay disagreed, 1 refused, or not proved within the budget.
"""

from __future__ import annotations

import argparse
import logging
import os

from rivertwice.core import (
    LostRaceError,
    PipelineHome,
    ReplayMismatchError,
    RivertwiceError,
    Settings,
    lock_or_refuse,
    run_process,
    utc_now,
)
from rivertwice.savepoint.prove import prove_rotation, prove_savepoint
from rivertwice.savepoint.prune import KEPT, prune_savepoints
from rivertwice.savepoint.take import take_savepoint

_log = logging.getLogger("rivertwice.keep_up")
REFUSED, DISAGREED = 1, 3
_LEAST_PRIORITY = 19


def keep_up(settings: Settings, pipeline: str, prove: str | None) -> bool:
    """Take and prove a savepoint, or prove the named one; return whether one was proved.

    Raises:
        LostRaceError: another such process works on the pipeline.
        ReplayMismatchError: a replay disagreed.
        RivertwiceError: it could not be taken or proved.
    """
    home = settings.pipeline(pipeline)

    def refuse(holder: str) -> LostRaceError:
        message = f"{holder} takes and proves savepoints of {pipeline} already; nothing was done"
        return LostRaceError(message)

    with lock_or_refuse(home.operations / "keep-up.lock", refuse):
        return _prove_or_rotate(settings, home, prove)


def _prove_or_rotate(settings: Settings, home: PipelineHome, prove: str | None) -> bool:
    pipeline = home.root.name
    if prove is not None:
        return prove_savepoint(settings, pipeline, prove, progress=_log.info).proved
    taken = take_savepoint(settings, pipeline, now=utc_now(), reason="for the recovery objective")
    try:
        proofs = prove_rotation(settings, pipeline, taken.id, progress=_log.info)
    finally:  # proofs that fail must not let savepoints pile up
        prune_savepoints(home, keep=KEPT, now=utc_now())
    return any(proof.proved for proof in proofs)


def main(argv: list[str] | None = None) -> int:
    """Keep up once; return the exit code."""
    parser = argparse.ArgumentParser(prog="rivertwice.savepoint.keep_up", description=__doc__)
    parser.add_argument("--pipeline", required=True, help="name of the pipeline")
    parser.add_argument("--prove", default=None, help="id of the savepoint to prove; without it one is taken")
    arguments = parser.parse_args(argv)
    os.nice(_LEAST_PRIORITY)
    try:
        return 0 if keep_up(Settings.from_env(), arguments.pipeline, arguments.prove) else REFUSED
    except RivertwiceError as error:
        _log.error("%s: %s", error.reason, error)
        return DISAGREED if isinstance(error, ReplayMismatchError) else REFUSED


if __name__ == "__main__":
    run_process(main)
