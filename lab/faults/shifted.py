"""The driver with a clock that is wrong: every instant that rivertwice reads is shifted. The JVM's clock is the host's.

Usage: python -m lab.faults.shifted SECONDS --pipeline NAME [--until-end]
"""

from __future__ import annotations

import logging
import os
import sys
from datetime import UTC, datetime, timedelta

from rivertwice.core import instants


def main() -> int:
    """Shift the clock, then run the driver."""
    shift = timedelta(seconds=float(sys.argv[1]))

    def shifted_now() -> datetime:
        return datetime.now(UTC) + shift

    instants.utc_now = shifted_now  # before any other module imports the name
    from rivertwice.stream.driver import main as drive

    return drive(sys.argv[2:])


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)
