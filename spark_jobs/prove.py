"""Prove a savepoint by a restore and a replay: `prove.py --pipeline NAME --savepoint ID [--or-older]`."""

import sys

from rivertwice.acts.job import run_job

if __name__ == "__main__":
    sys.exit(run_job("savepoint.prove"))
