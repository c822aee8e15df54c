"""Archive one topic without Spark: `python -m rivertwice.log.archive_job --topic NAME`. The agent starts it.

A plain consumer reads the records of a chunk; a JVM would cost more than the records. Exit code 0: up to date, or another
host archives the topic and was faster each time; 75: failed, and may succeed later; 1: refused, or records are gone.
Running it twice, beside the Spark job or on two hosts, adds no record twice.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rivertwice.core import LostRaceError, RivertwiceError, Settings, require_topic
from rivertwice.log.addresses import describe
from rivertwice.log.archive import extend_archive

RETRY = 75
CHUNK_RECORDS = 20_000  # the job must be small compared with a stream


def main(argv: Sequence[str] | None = None) -> int:
    """Extend one topic's archive and return the exit code."""
    parser = argparse.ArgumentParser(prog="archive_job", description="Archive the new records of one topic.")
    parser.add_argument("--topic", required=True)
    arguments = parser.parse_args(argv)
    try:
        topic = require_topic(arguments.topic)
        report = extend_archive(None, Settings.from_env(), topic, chunk_records=CHUNK_RECORDS, progress=_say)
    except LostRaceError as error:
        _say(f"{arguments.topic}: left to the other job that archives it: {error}")
        return 0
    except RivertwiceError as error:
        sys.stderr.write(f"archive of {arguments.topic}: {error.reason}: {error}\n")
        return RETRY if error.retryable else 1
    _say(f"{topic}: {report.records} records added: {describe(report.added) or 'nothing new'}")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"archive: {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
