"""Run the protocol model; `python -m lab.model --schedules 100000 --seed 0 --jobs 2`."""

from __future__ import annotations

import argparse
import sys

from lab.model.campaign import describe_failure, render, run_campaign
from lab.model.exhaustive.protocols import PROTOCOLS, render_caught, render_explored
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
    parser.add_argument(
        "--exhaustive",
        metavar="PROTOCOL",
        nargs="?",
        const="",
        help="explore every interleaving of the short protocols instead, or of those whose names begin so; with --mutations: every "
        "rule of them broken once",
    )
    parser.add_argument("--quick", action="store_true", help="with --exhaustive: within bounds that take seconds")
    arguments = parser.parse_args(argv)
    if arguments.exhaustive is not None:
        return explore_protocols(arguments.exhaustive, is_quick=arguments.quick, is_broken=arguments.mutations)
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


def explore_protocols(start: str, *, is_quick: bool, is_broken: bool) -> int:
    """Explore protocols, or break each of their rules; return 1 if an invariant broke, or a broken rule broke none."""
    chosen = [protocol for protocol in PROTOCOLS if protocol.name.startswith(start)]
    if is_broken:
        caught = []
        for each in chosen:
            for mutation in each.mutations:
                caught.append((each, mutation, each.catch(mutation)))
                sys.stderr.write(render_caught(caught[-1:]).splitlines()[2] + "\n")
        sys.stdout.write(render_caught(caught))
        return 0 if all(found.violation is not None for _, _, found in caught) else 1
    explored = []
    for each in chosen:
        for bounds in (each.quick,) if is_quick else (each.quick, *each.wide):
            explored.append((each, bounds, each.explore(bounds)))
            sys.stderr.write(render_explored(explored[-1:]).splitlines()[-1] + "\n")
    sys.stdout.write(render_explored(explored))
    failed = [found for _, _, found in explored if found.violation is not None]
    sys.stdout.write("".join(f"{found.violation}\n  " + "\n  ".join(found.trace) + "\n" for found in failed))
    return 1 if failed or not explored else 0


if __name__ == "__main__":
    sys.exit(main())
