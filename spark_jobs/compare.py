"""Compare a version with the one that serves: `spark-submit spark_jobs/compare.py --version NAME@v2 --run NAME`.

The result is stored under the run's name, once. Exit 0: it ran, and whether it passed is data. 2: the request was refused.
1: it could not run.
"""

from __future__ import annotations

import argparse
import logging
import sys

from rivertwice.core.errors import ConfigError, RivertwiceError
from rivertwice.core.homes import require_name, require_pipeline
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings


def main(argv: list[str] | None = None) -> int:
    """Run one comparison; return the process's exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", required=True, help="name of the version, for instance flight_delays@v2")
    parser.add_argument("--run", required=True, help="name of the comparison; the same name is compared once")
    parser.add_argument("--by", default="spark_jobs", help="who asks")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    try:
        version = require_pipeline(arguments.version)
        run = require_name(arguments.run, "comparison")
    except ConfigError as error:
        sys.stderr.write(f"refused: {error}\n")
        return 2
    from rivertwice.engine.session import spark_on_demand
    from rivertwice.versions.comparisons import EXAMPLES, find_comparison, store_comparison
    from rivertwice.versions.parity import compare_versions

    settings = Settings.from_env()
    home = settings.pipeline(version)
    try:
        stored = find_comparison(home, run)
        if stored is None:
            with spark_on_demand(settings, f"compare-{version}") as spark:
                parity = compare_versions(settings, version, spark, _say, limit=EXAMPLES)
            stored = store_comparison(home, parity, run, by=arguments.by, now=utc_now())
    except RivertwiceError as error:
        sys.stderr.write(f"{error.reason}: {error}\n")
        return 1
    _say(f"comparison {stored.run} of {stored.version} with {stored.beside}: {stored.verdict}")
    for reason in stored.reasons:
        _say(f"refused: {reason}")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
