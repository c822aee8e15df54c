"""The lab around the control job: same faults, same seeds, its own table and checkpoint, the same oracle."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.faults.errors import LabError
from lab.faults.events import EventPlan
from lab.faults.lab import Lab
from lab.faults.steps import Steps
from rivertwice.core.settings import Settings

RETRIES = 2
"""Like Airflow's `retries`: how often a failed start is repeated before a person looks at it."""


class ControlLab(Lab):
    """A run of the control job.

    Its events are the seed's own, less what the script makes no promise about: none is late, poisonous, from the
    future or excluded. So a batch over all records is its truth, and none of its losses can be called lateness.
    """

    commits_first = False
    """Let the job commit its offsets before its output."""

    @property
    def folder_of_job(self) -> Path:
        """Table and checkpoint of the job."""
        return self.folder / "control"

    @property
    def checkpoint(self) -> Path:
        """Checkpoint of the job."""
        return self.folder_of_job / "checkpoint"

    def steps(self) -> Steps:
        """Return a fresh watch over the job's steps; its commits name no batch, so they are counted."""
        return Steps(self.checkpoint, self.folder_of_job / "table")

    def produce(self, plan: EventPlan | None = None) -> int:
        """Produce the plan without what is late, poisonous, from the future or excluded."""
        plan = plan or self.next_plan()
        return super().produce(
            replace(
                plan,
                late_share=0.0,
                poison_share=0.0,
                future_share=0.0,
                excluded_share=0.0,
                skew=0.0,
                idle_partitions=0,
            )
        )

    def command(self, *, until_end: bool, settings: Settings) -> list[str]:
        """Return the job's command line."""
        jars = ",".join(str(jar) for jar in self.settings.connector_jars)
        command = [sys.executable, "-m", "lab.control", "--jars", jars, "--topic", self.topic]
        command += ["--bootstrap", settings.bootstrap_servers(), "--folder", str(self.folder_of_job)]
        command += ["--commit-first"] if self.commits_first else []
        return [*command, "--until-idle"] if until_end else command

    def run_to_end(self, env: Mapping[str, str] | None = None, patience_s: float = 300.0) -> None:
        """Run the job until nothing comes any more, as its owners would: repeat, then remove the checkpoint and repeat.

        Raises:
            LabError: not even a new checkpoint helped.
        """
        for attempt in range(RETRIES + 2):
            if attempt == RETRIES + 1:
                shutil.rmtree(self.checkpoint, ignore_errors=True)
                self.fact("checkpoint_removed", True)
            if self.wait(self.start_driver(until_end=True, env=env), patience_s) == 0:
                return
        message = f"the control job ends with an error even from a new checkpoint; {self.log_end()}"
        raise LabError(message)

    def request(self) -> dict[str, Any]:
        """Return the request to the oracle."""
        request = super().request()
        request.pop("home")
        return {**request, "table": str(self.folder_of_job / "table")}

    def start_second(self) -> subprocess.Popen[bytes]:
        """Start a second job on the same checkpoint, as a scheduler does that believes the first one dead."""
        return self.start_driver(until_end=True)
