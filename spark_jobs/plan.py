"""Plan a backfill of sessions, which only their records show: `plan.py --pipeline NAME --request ID [--from ISO --to ISO] [--repair]`."""

import sys

from rivertwice.acts.job import run_job

if __name__ == "__main__":
    sys.exit(run_job("backfill.plan"))
