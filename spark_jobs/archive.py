"""Copy a pipeline's new records into the archive: `archive.py --pipeline NAME`; repeated, it adds nothing twice."""

import sys

from rivertwice.acts.job import run_job

if __name__ == "__main__":
    sys.exit(run_job("archive"))
