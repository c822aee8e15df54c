"""Restore a savepoint into a new timeline that serves exactly what the old one served.

Usage: spark-submit spark_jobs/restore.py --pipeline NAME [--savepoint ID | --planned] [--unproved] [--since INSTANT [--resumes ID]]
Since: a restore that was begun at or after that instant, or the one that was to be resumed, is not done twice. Without an id an interrupted restore is resumed, else the newest proved savepoint is taken. Planned: one is taken now, and nothing replayed.
Exit codes: 0 restored and the head moved, 1 refused or failed (run it again: it goes on where it stopped).
"""

from __future__ import annotations

import argparse
import logging
import sys

from rivertwice.core.errors import RivertwiceError
from rivertwice.core.instants import parse_iso
from rivertwice.core.settings import Settings
from rivertwice.savepoint.manifest import RESTING
from rivertwice.savepoint.operations.record import Restore, find_repeated, read_restores
from rivertwice.savepoint.operations.restore import restore_savepoint

_log = logging.getLogger("rivertwice.restore")


def main(argv: list[str] | None = None) -> int:
    """Restore one savepoint; return the exit code."""
    parser = argparse.ArgumentParser(prog="restore", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pipeline", required=True, help="name of the pipeline")
    parser.add_argument("--savepoint", default=None, help="id of the savepoint")
    parser.add_argument("--planned", action="store_true", help="take the savepoint now, of the drained stream")
    parser.add_argument("--unproved", action="store_true", help="accept one that is not proved")
    parser.add_argument("--since", help="when it was asked for, ISO 8601")
    parser.add_argument("--resumes", help="id of the restore that had been cut off when it was asked for")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    settings = Settings.from_env()
    base = RESTING if arguments.planned else arguments.savepoint
    try:
        done = _find_done(settings, arguments, base)
        if done is not None:
            _log.info("%s is done already: timeline %s", done.id, done.child)
            return 0
        report = restore_savepoint(
            settings,
            arguments.pipeline,
            base,
            unproved=arguments.unproved,
            progress=_log.info,
        )
    except RivertwiceError as error:
        _log.error("%s: %s", error.reason, error)
        return 1
    _log.info(
        "timeline %s forked from %s at batch %s after %s replayed batches",
        report.timeline,
        report.parent,
        report.forked_at,
        report.replayed,
    )
    return 0


def _find_done(settings: Settings, arguments: argparse.Namespace, base: str | None) -> Restore | None:
    if arguments.since is None:
        return None
    restores = read_restores(settings.pipeline(arguments.pipeline))
    since = parse_iso(arguments.since)
    return find_repeated(restores, Restore, since, base=base, resumes=arguments.resumes)


if __name__ == "__main__":
    sys.exit(main())
