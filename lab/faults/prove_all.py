"""Prove every listed savepoint of a pipeline in one Spark session, up to the last committed batch.

Usage: python -m lab.faults.prove_all --pipeline NAME
Prints one JSON object: savepoint id to {proved, batches, reason}. Exit 0 if each one is proved.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from rivertwice.core.errors import RivertwiceError
from rivertwice.core.settings import Settings
from rivertwice.savepoint.catalogue import list_savepoints
from rivertwice.savepoint.feed import session_of
from rivertwice.savepoint.plan import load_state_definition
from rivertwice.savepoint.prove import prove_savepoint

_ALL = 100_000


def main(argv: list[str] | None = None) -> int:
    """Prove them; return the exit code."""
    parser = argparse.ArgumentParser(prog="lab.faults.prove_all", description=__doc__)
    parser.add_argument("--pipeline", required=True)
    name = parser.parse_args(argv).pipeline
    settings = Settings.from_env()
    savepoints = list_savepoints(settings.pipeline(name))
    spark = (
        session_of(settings, load_state_definition(settings.pipeline(name), savepoints[0].manifest))
        if savepoints
        else None
    )
    results: dict[str, dict[str, object]] = {}
    for savepoint in savepoints:
        try:
            proof = prove_savepoint(settings, name, savepoint.id, batches=_ALL, wait_seconds=0.0, spark=spark)
            results[savepoint.id] = {"proved": proof.proved, "batches": proof.batches, "reason": proof.reason}
        except RivertwiceError as error:
            results[savepoint.id] = {"proved": False, "batches": 0, "reason": str(error)}
    sys.stdout.write(json.dumps(results) + "\n")
    return 0 if all(result["proved"] for result in results.values()) else 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # what was found is printed; a callback thread that waits for a JVM must not keep the process
