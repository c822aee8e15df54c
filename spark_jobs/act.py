"""Do an act that was asked for and stored: `act.py --pipeline NAME --request ID`."""

import sys

from rivertwice.acts.job import run_stored

if __name__ == "__main__":
    sys.exit(run_stored())
