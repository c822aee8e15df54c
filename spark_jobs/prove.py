"""Prove a savepoint: restore it into scratch, replay recorded batches, compare output and state.

Usage: spark-submit spark_jobs/prove.py --pipeline NAME --savepoint ID [--batches N] [--wait SECONDS]
If nothing follows it yet that could prove it, the newest older one that is still unproved is tried.
Exit codes: 0 one of them is proved, 3 the replay disagreed, 1 refused, or neither could be proved within the budget.
"""

from __future__ import annotations

import argparse
import logging
import sys

from rivertwice.core.errors import ReplayMismatchError, RivertwiceError
from rivertwice.core.settings import Settings
from rivertwice.savepoint.proof import ProofBudget
from rivertwice.savepoint.prove import prove_rotation

_log = logging.getLogger("rivertwice.prove")
REFUSED, DISAGREED = 1, 3


def main(argv: list[str] | None = None) -> int:
    """Prove one savepoint; return the exit code."""
    parser = argparse.ArgumentParser(prog="prove", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pipeline", required=True, help="name of the pipeline")
    parser.add_argument("--savepoint", required=True, help="id of the savepoint")
    parser.add_argument("--batches", type=int, default=3, help="recorded batches to replay")
    parser.add_argument("--wait", type=float, default=60.0, help="seconds to wait for them in all")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    try:
        settings, budget = Settings.from_env(), ProofBudget(batches=arguments.batches, wait_s=arguments.wait)
        proofs = prove_rotation(settings, arguments.pipeline, arguments.savepoint, budget=budget, progress=_log.info)
    except RivertwiceError as error:
        _log.error("%s: %s", error.reason, error)
        return DISAGREED if isinstance(error, ReplayMismatchError) else REFUSED
    return 0 if any(proof.proved for proof in proofs) else REFUSED


if __name__ == "__main__":
    sys.exit(main())
