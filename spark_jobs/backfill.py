"""Compute, audit and publish a backfill: `backfill.py --pipeline NAME [--id ID] [--no-publish]`; repeated, it continues."""

import sys

from rivertwice.acts.job import run_job

if __name__ == "__main__":
    sys.exit(run_job("backfill"))
