"""Reconcile a pipeline: `reconcile.py --pipeline NAME [--from ISO --to ISO | --full] [--run NAME]`."""

import sys

from rivertwice.acts.job import run_job

if __name__ == "__main__":
    sys.exit(run_job("reconcile"))
