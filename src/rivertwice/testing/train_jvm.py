"""`python -m rivertwice.testing.train_jvm FILE`: a driver's run over a small log, whose JVM archives its classes at exit."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from rivertwice.config import Settings
from rivertwice.testing.campaign import QUICK_JVM, broker_for
from rivertwice.testing.errors import LabError
from rivertwice.testing.lab import Lab
from rivertwice.testing.processes import group_members

RECORDS = 120
DUMP_S = 90.0
QUICK = {"JAVA_TOOL_OPTIONS": QUICK_JVM}


def train(settings: Settings, archive: Path) -> None:
    """Run lab_sums to the end of a short log and wait until its JVM has written the archive.

    Raises:
        LabError: the driver failed.
        TimeoutError: its JVM is still there after 90 s.
    """
    with tempfile.TemporaryDirectory(prefix="rivertwice-training-") as name:
        folder = Path(name)
        with broker_for(settings, folder) as ready:
            lab = Lab(ready, folder / "run", seed=1)
            try:
                lab.produce(lab.next_plan(records=RECORDS))
                options = f"-XX:ArchiveClassesAtExit={archive}"
                driver = lab.start_driver(until_end=True, env={**QUICK, "SPARK_SUBMIT_OPTS": options})
                if lab.wait(driver) != 0:
                    raise LabError(lab.log_end())
                deadline = time.monotonic() + DUMP_S
                while group_members(driver.pid):  # the JVM writes at its exit, which comes after the driver's
                    if time.monotonic() > deadline:
                        message = f"the JVM of {driver.pid} has not ended within {DUMP_S:.0f} s"
                        raise TimeoutError(message)
                    time.sleep(0.05)
            finally:
                lab.close()


if __name__ == "__main__":
    train(Settings.from_env(), Path(sys.argv[1]))
