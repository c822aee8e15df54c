"""Run the protocol model; `python -m lab.model --schedules 100000 --seed 0 --jobs 2`."""

from __future__ import annotations

import argparse
import sys

from lab.model.campaign import describe_failure, render, run_campaign
from lab.model.mutations import render_mutations, run_mutations
from lab.model.schedule import run_schedule
from lab.model.versions.mutations import VERSIONS


def main(argv: list[str] | None = None) -> int:
    """Run schedules, or the mutations; return 1 if an invariant broke or a mutation survived."""
    parser = argparse.ArgumentParser(prog="lab.model", description=__doc__)
    parser.add_argument("--schedules", type=int, default=3000, help="how many seeds to run")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the seeds")
    parser.add_argument("--trace", action="store_true", help="print every step of the first schedule")
    parser.add_argument("--versions", action="store_true", help="let every schedule have versions of the pipeline")
    parser.add_argument(
        "--mutations", action="store_true", help="break every rule once instead, each at most SCHEDULES times"
    )
    arguments = parser.parse_args(argv)
    if arguments.mutations:
        verdicts = run_mutations(seed=arguments.seed, most=arguments.schedules)
        sys.stdout.write(render_mutations(verdicts))
        return 0 if all(verdict.caught for verdict in verdicts) else 1
    focus = VERSIONS if arguments.versions else None
    result = run_campaign(arguments.seed, arguments.schedules, jobs=arguments.jobs, focus=focus)
    sys.stdout.write(render(result))
    for outcome in result.failures[:3]:
        sys.stdout.write(describe_failure(outcome, focus=focus))
    if arguments.trace:
        sys.stdout.write("\n".join(run_schedule(arguments.seed, focus=focus, trace=True).trace) + "\n")
    return 1 if result.failures else 0


if __name__ == "__main__":
    sys.exit(main())
