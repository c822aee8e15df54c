"""Compute and audit a stored backfill plan: `backfill.py --pipeline NAME --backfill ID`.

Resumable: finished chunks are skipped. Publishing is a step of its own and needs no Spark.
Exit code 0: computed and audited; 1: failed, the reason is on standard error; 2: wrong arguments.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from rivertwice.backfill.audit import audit_backfill
from rivertwice.backfill.compute import compute_backfill
from rivertwice.backfill.store import load_plan
from rivertwice.core.errors import RivertwiceError
from rivertwice.core.settings import Settings
from rivertwice.engine.session import spark_on_demand

logger = logging.getLogger("rivertwice.backfill")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    parser = argparse.ArgumentParser(description="Compute and audit a stored backfill plan.")
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--backfill", required=True, help="id of a plan, as `rivertwice backfill plan` prints it")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    settings = Settings.from_env()
    try:
        plan = load_plan(settings.pipeline(arguments.pipeline), arguments.backfill)
        with spark_on_demand(settings, f"backfill {plan.id}") as spark:
            spark.expect(records=plan.records)
            done = compute_backfill(spark(), settings, plan, logger.info)
            report = audit_backfill(settings, plan, spark)
    except RivertwiceError as error:
        logger.error("%s: %s", error.reason, error)
        return 1
    logger.info(
        "backfill %s: %s chunks computed, %s skipped, %s rows from %s records, audit passed",
        plan.id,
        done.computed,
        done.skipped,
        report.rows,
        report.records,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
