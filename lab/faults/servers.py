"""The servers that only tests need: `python -m lab.faults.servers BUILD_FOLDER` gets them with the standard library alone.

So the first half of the set-up can begin it while packages are fetched. What cannot be had is no error: the tests that need it skip.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from lab.faults.azure_server import install_azurite
from lab.faults.gcs_server import PROGRAM
from lab.faults.versitygw import build_versitygw

SERVERS = {"S3 server": build_versitygw, "Azure server": install_azurite, "Google server": PROGRAM.build}

if __name__ == "__main__":
    os.nice(10)  # packages, jars and class archive come one after the other beside it, and are done later
    for name, get in SERVERS.items():
        sys.stdout.write(f"setup: {name:<15} {get(Path(sys.argv[1]))}\n")
