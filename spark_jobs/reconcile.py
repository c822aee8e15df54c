"""Reconcile a pipeline: `spark-submit spark_jobs/reconcile.py --pipeline NAME [--from ISO --to ISO | --full] [--run NAME]`.

Exit 0: it ran, and the verdicts are data. 2: the request was refused. 1: it could not run.
"""

from __future__ import annotations

import argparse
import logging
import sys
from typing import TYPE_CHECKING

from rivertwice.core.errors import ConfigError, RequestError, RivertwiceError
from rivertwice.core.homes import require_name, require_pipeline
from rivertwice.core.instants import TimeRange, utc_now
from rivertwice.core.settings import Settings

if TYPE_CHECKING:
    from rivertwice.reconcile.report import ReconcileReport


def main(argv: list[str] | None = None) -> int:
    """Run one reconcile; return the process's exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True, help="name of the pipeline")
    parser.add_argument(
        "--from", dest="start", help="judge windows from this instant, for instance 2013-06-30T04:00:00Z"
    )
    parser.add_argument("--to", dest="end", help="judge windows before this instant")
    parser.add_argument(
        "--full", action="store_true", help="judge everything, not only what changed since the last seal"
    )
    parser.add_argument("--run", help="name of the run; the same name stores its rows only once")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    try:
        if (arguments.start is None) != (arguments.end is None):
            message = "only one of --from and --to was given, so the range is open; give both or neither"
            raise RequestError(message)
        wanted = None if arguments.start is None else TimeRange.parse(arguments.start, arguments.end)
        pipeline = require_pipeline(arguments.pipeline)
        run = None if arguments.run is None else require_name(arguments.run, "run")
    except (RequestError, ConfigError) as error:
        sys.stderr.write(f"refused: {error}\n")
        return 2
    from rivertwice.engine.session import spark_on_demand
    from rivertwice.reconcile.run import reconcile
    from rivertwice.reconcile.unchanged import count_unsealed, reconcile_unchanged

    settings = Settings.from_env()
    try:
        unchanged = None
        if wanted is None and not arguments.full:
            unchanged = reconcile_unchanged(settings, pipeline, now=utc_now(), run=run, progress=_say)
    except RivertwiceError as error:
        sys.stderr.write(f"{error.reason}: {error}\n")
        return 1
    if unchanged is not None:
        return _report(unchanged)
    try:
        with spark_on_demand(settings, f"reconcile-{pipeline}") as spark:
            whole = arguments.full or wanted is not None
            spark.expect(records=count_unsealed(settings.pipeline(pipeline), full=whole))
            report = reconcile(
                spark(),
                settings,
                pipeline,
                range=wanted,
                full=arguments.full,
                now=utc_now(),
                run=run,
                progress=_say,
            )
    except RivertwiceError as error:
        sys.stderr.write(f"{error.reason}: {error}\n")
        return 1
    return _report(report)


def _report(report: ReconcileReport) -> int:
    for pair, counts in report.counts.items():
        _say(f"{pair}: {', '.join(f'{verdict} {count}' for verdict, count in counts.items())}")
    for alert in report.gate.alerts:
        _say(f"{alert.severity}: {alert.message}")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
