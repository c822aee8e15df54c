"""Archive the new records of a pipeline's topics: argv in, exit code out. Running it twice adds nothing twice."""

from __future__ import annotations

import argparse
import sys

from rivertwice.core.errors import RivertwiceError
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.engine.session import spark_session
from rivertwice.log.addresses import describe
from rivertwice.log.archive import extend_archive


def main() -> int:
    """Extend the archive of every source of one pipeline; return 0 if all are up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True, help="name of the pipeline")
    given = parser.parse_args()
    settings = Settings.from_env()
    try:
        name = settings.pipeline(given.pipeline).root.name
        definition = load_definition(settings.definition_folder(name))
        spark = spark_session(settings, f"archive {name}")
        for source in definition.sources.values():
            report = extend_archive(spark, settings, source.topic, progress=_say)
            _say(f"{source.topic}: {report.records} records added: {describe(report.added) or 'nothing new'}")
    except RivertwiceError as error:
        sys.stderr.write(f"archive: {error}\n")
        return 75 if error.retryable else 1
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"archive: {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
