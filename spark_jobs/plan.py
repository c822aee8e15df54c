"""Plan a backfill of sessions: `plan.py --pipeline NAME --request ID [--from ISO --to ISO] [--repair] [--within ISO ISO] [--reason=TEXT] [--dry-run]`.

Sessions are only known from their records, so this plan takes Spark; of other windows the task plans itself. What came of the
request is noted under its id: the plan's, or nothing if nothing is to be done.
Exit code 0: planned, or nothing to do; 1: failed, the reason is on standard error; 2: wrong arguments.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from rivertwice.backfill.model import BackfillPlan, BackfillRequest
from rivertwice.backfill.prepare import plan_if_needed
from rivertwice.backfill.store import note_planned, save_plan
from rivertwice.core.errors import RivertwiceError
from rivertwice.core.instants import TimeRange, parse_iso, to_ms
from rivertwice.core.settings import Settings
from rivertwice.engine.session import spark_on_demand
from rivertwice.timeline.verdicts import DEFECT, LATE

logger = logging.getLogger("rivertwice.backfill")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    parser = argparse.ArgumentParser(description="Plan a backfill of sessions.")
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--request", required=True, help="id of the request; the same one is planned again")
    parser.add_argument("--from", dest="start", help="sessions that hold a time from this instant on")
    parser.add_argument("--to", dest="end", help="and before this one; without both: what the newest reconcile found")
    parser.add_argument(
        "--repair", action="store_true", help="without a range: DEFECT sessions too, not LATE ones alone"
    )
    parser.add_argument(
        "--within",
        nargs=2,
        action="append",
        metavar="ISO",
        help="without a range: only sessions that start in one of these",
    )
    parser.add_argument("--reason", default="manual")
    parser.add_argument("--dry-run", action="store_true", help="plan and explain only")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    settings = Settings.from_env()
    try:
        asked = TimeRange.parse(arguments.start, arguments.end) if arguments.start and arguments.end else None
        within = (
            None
            if arguments.within is None
            else tuple((to_ms(parse_iso(start)), to_ms(parse_iso(end))) for start, end in arguments.within)
        )
        verdicts = (LATE, DEFECT) if arguments.repair else (LATE,)
        request = BackfillRequest(arguments.pipeline, asked, arguments.reason, verdicts=verdicts, within=within)
        plan = _plan(settings, request)
        home = settings.pipeline(arguments.pipeline)
        if plan is not None and not arguments.dry_run:
            plan = save_plan(home, plan)
        note_planned(home, arguments.request, "" if plan is None or arguments.dry_run else plan.id)
    except RivertwiceError as error:
        logger.error("%s: %s", error.reason, error)
        return 1
    return 0


def _plan(settings: Settings, request: BackfillRequest) -> BackfillPlan | None:
    with spark_on_demand(settings, f"plan {request.pipeline}") as spark:
        return plan_if_needed(settings, request, spark, logger.info)


if __name__ == "__main__":
    sys.exit(main())
