"""Compare a version with the one that serves: `compare.py --pipeline NAME@v2 [--run NAME]`."""

import sys

from rivertwice.acts.job import run_job

if __name__ == "__main__":
    sys.exit(run_job("version.compare"))
