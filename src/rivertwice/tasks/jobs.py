"""The Spark jobs of the DAGs: what each stores and under which name, how much it reads, and running one beside the agent."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rivertwice.core import PipelineHome, RivertwiceError, Settings
from rivertwice.engine import is_quick, is_served, run_program_in_engine
from rivertwice.tasks.definitions import find_definition
from rivertwice.tasks.environment import spark_environment, submit_confs
from rivertwice.tasks.names import comparison_of, reconcile_of

log = logging.getLogger(__name__)

JOBS = ("act", "archive", "backfill", "compare", "plan", "prove", "reconcile")
_USAGE = 2
_LINES = 100
_EXIT_CODE = re.compile(r"Error code is: (\d+)")
_REASON = re.compile(r"(?:^|\s)([a-z_]+): (\S.*)$")


@dataclass(frozen=True)
class JobEnd:
    """How a job ended: its exit code, and the last lines of what it said."""

    code: int
    end: str


@dataclass(frozen=True)
class SparkJob:
    """A Spark job of a DAG.

    Attributes:
        name: of its file in `spark_jobs/`.
        arguments: without the name of what it stores.
    """

    pipeline: str
    name: str
    arguments: Sequence[str]

    def stores(self, run: str, attempt: int) -> str | None:
        """Return the name of what it stores that has a report on the page; None: it stores nothing of the kind. Pure.

        Args:
            run: id of the DAG run.
            attempt: of the task, from 1.
        """
        if self.name == "reconcile":
            return reconcile_of(run, attempt)
        if self.name == "compare":
            return comparison_of(run, attempt)
        return str(self.arguments[-1]) if self.name == "backfill" and self.arguments else None

    def named(self, run: str, attempt: int) -> list[str]:
        """Return its arguments with the name by which a later task of its DAG run finds what it stores. Pure."""
        name = str(self.stores(run, attempt))
        own = {"reconcile": ["--run", name, "--silent"], "compare": ["--by", "airflow", "--run", name]}
        return [*self.arguments, *own.get(self.name, [])]

    def is_quick(self, settings: Settings) -> bool:
        """Say whether it is so short that its JVM is better off with the quick compiler alone."""
        try:
            records = self._records(settings.pipeline(self.pipeline))
        except RivertwiceError:
            return False  # the job says what is wrong
        return records is not None and is_quick(records=records)

    def may_be_warm(self, settings: Settings, *, quick: bool, usual: bool) -> bool:
        """Say whether the warm engine would do what a submission does: a short job with the usual settings of Spark.

        A proof finds out itself how much it replays, and leaves the engine if that is much.
        """
        return (quick or self.name == "prove") and usual and is_served(settings)

    def run(self, settings: Settings) -> JobEnd:
        """Run it on the Spark of these settings, as a submission from Airflow would; each line that it says is logged."""
        program = settings.shipped(f"spark_jobs/{self.name}.py")
        resources = find_definition(settings, self.pipeline).airflow.spark
        quick = self.is_quick(settings)
        if self.may_be_warm(settings, quick=quick, usual=resources.is_usual):
            ran = run_program_in_engine(settings, program, self.arguments, log.info)
            if ran is not None:
                return JobEnd(*ran)
        confs = submit_confs(settings, resources.confs, quick=quick)
        command = [str(Path(sys.executable).with_name("spark-submit")), "--master", settings.spark_master]
        command += [word for name, value in confs.items() for word in ("--conf", f"{name}={value}")]
        return _run([*command, str(program), *self.arguments], {**os.environ, **spark_environment(settings)})

    def _records(self, home: PipelineHome) -> int | None:
        """Return how many records it decodes; None: it is not known before it runs."""
        from rivertwice.backfill import load_backfill_plan
        from rivertwice.reconcile import count_unsealed

        if self.name == "archive":
            return 0
        if self.name == "backfill":
            return load_backfill_plan(home, str(self.arguments[-1])).records if self.arguments else None
        if self.name == "reconcile":
            return count_unsealed(home, full=not {"--full", "--from"}.isdisjoint(self.arguments))
        return None

    @staticmethod
    def find_refusal(text: str) -> str | None:
        """Return why no retry can cure a job's failure, or None if one may. Pure.

        `text` is the operator's error: the exit code, and the end of the job's output. Our jobs print `REASON: message` with the
        reason of the error tree; exit code 2 is a refused argument. A job with neither (a killed JVM, a lost race) may succeed
        the next time.
        """
        final = {error.reason for error in _tree(RivertwiceError) if not error.retryable}
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        for line in reversed(lines):
            matched = _REASON.search(line)
            if matched and matched.group(1) in final:
                return f"{matched.group(1)}: {matched.group(2)}"
        code = _EXIT_CODE.search(text)
        if code and int(code.group(1)) == _USAGE:
            return next((line for line in reversed(lines) if "refused" in line or "error:" in line), lines[-1])
        return None


def _run(command: Sequence[str], env: dict[str, str]) -> JobEnd:
    end: deque[str] = deque(maxlen=_LINES)
    with subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        errors="replace",
        text=True,
    ) as process:
        assert process.stdout is not None, "it is a pipe"
        for line in process.stdout:
            end.append(line.rstrip("\n"))
            log.info("%s", end[-1])
    return JobEnd(process.returncode, "\n".join(end))


def _tree(root: type[RivertwiceError]) -> Iterator[type[RivertwiceError]]:
    for child in root.__subclasses__():
        yield child
        yield from _tree(child)
