"""Do an act that was asked for and stored: `spark-submit spark_jobs/act.py --pipeline NAME --request ID`.

The same request is done once, however often it is repeated. Exit codes: 0 done, 3 a replay disagreed, 1 refused or failed.
"""

from __future__ import annotations

import argparse
import logging
import sys

from rivertwice.acts import do_stored
from rivertwice.core.errors import ReplayMismatchError, RivertwiceError
from rivertwice.core.settings import Settings

_log = logging.getLogger("rivertwice.act")
REFUSED, DISAGREED = 1, 3


def main(argv: list[str] | None = None) -> int:
    """Do one act; return the exit code."""
    parser = argparse.ArgumentParser(prog="act", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pipeline", required=True, help="name of the pipeline")
    parser.add_argument("--request", required=True, help="id of the stored request")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    try:
        done = do_stored(Settings.from_env(), arguments.pipeline, arguments.request, _log.info)
    except RivertwiceError as error:
        _log.error("%s: %s", error.reason, error)
        return DISAGREED if isinstance(error, ReplayMismatchError) else REFUSED
    _log.info("%s", dict(done))
    return 0 if done.get("proved", True) else REFUSED


if __name__ == "__main__":
    sys.exit(main())
