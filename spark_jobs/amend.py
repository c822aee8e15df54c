"""Amend a dead letter with a value that was put aside: decode it by the definition, and record it if it is accepted.

Usage: spark-submit spark_jobs/amend.py --pipeline NAME --draft REQUEST
A request that was decided already is not decided twice. Exit codes: 0 it is amended, 1 refused or failed.
"""

from __future__ import annotations

import argparse
import logging
import sys

from rivertwice.core.errors import RequestError, RivertwiceError
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.engine.session import spark_session
from rivertwice.timeline.committed import committed_batches
from rivertwice.timeline.dead_cure import problem_with
from rivertwice.timeline.dead_letters import Decision, forget_draft, is_amended, load_draft, parse_place
from rivertwice.timeline.dead_summary import amend, find_letter, read_brief, with_bytes

_log = logging.getLogger("rivertwice.amend")


def main(argv: list[str] | None = None) -> int:
    """Amend one dead letter; return the exit code."""
    parser = argparse.ArgumentParser(prog="amend", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pipeline", required=True, help="name of the pipeline")
    parser.add_argument("--draft", required=True, help="the request whose value was put aside")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    settings = Settings.from_env()
    try:
        _amend(settings, arguments.pipeline, arguments.draft)
    except RivertwiceError as error:
        if isinstance(error, RequestError):
            forget_draft(settings.pipeline(arguments.pipeline), arguments.draft)
        _log.error("%s: %s", error.reason, error)
        return 1
    return 0


def _amend(settings: Settings, name: str, request: str) -> None:
    home = settings.pipeline(name)
    draft = load_draft(home, request)
    found = find_letter(read_brief(home, committed_batches(home)), parse_place(draft.place), name)
    (letter,) = with_bytes(home, [found])
    if is_amended(letter, draft.value, Decision(draft.by, draft.why, draft.at)):
        _log.info("%s is amended already", letter.place)
        return
    definition = load_definition(settings.definition_folder(name))
    spark = spark_session(settings, f"rivertwice-amend-{name}")
    try:
        done = amend(
            home,
            letter,
            draft.value,
            lambda rejected, cure: problem_with(spark, definition, rejected, cure),
            why=draft.why,
            by=draft.by,
            now=utc_now(),
        )
    finally:
        spark.stop()
    _log.info("%s is amended by %s (number %s)", letter.place, draft.by, done.seq)


if __name__ == "__main__":
    sys.exit(main())
