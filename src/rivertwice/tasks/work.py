"""The work of one task as a process beside the agent: `python -m rivertwice.tasks.work FOLDER`.

The folder has `request.json`; `result.json` appears there when the work has ended, whole or not at all. The output of the process is
the task's log.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from rivertwice.core import (
    RivertwiceError,
    ServiceError,
    Settings,
    hide_addresses,
    log_to_stdout,
    open_locked,
    own_start,
    parse_iso,
)
from rivertwice.storage import read_json, replace_json
from rivertwice.tasks.catalogue import do_work
from rivertwice.tasks.jobs import SparkJob
from rivertwice.tasks.run import TaskRun

REQUEST, PROCESS, RESULT = "request.json", "process.json", "result.json"


LOG = logging.getLogger(__name__)


class JobFailedError(ServiceError):
    """A Spark job ended without saying that another try is of no use."""


def do(settings: Settings, asked: dict[str, Any]) -> Any:
    """Do what was asked for, and return its result as JSON can hold it.

    Raises:
        RivertwiceError: it could not be done.
    """
    if asked["kind"] == "step":
        run = {**asked["run"], "due_at": parse_iso(asked["run"]["due_at"])}
        return do_work(settings, asked["name"], TaskRun(**run), asked["pipeline"], asked["arguments"])
    ended = SparkJob(asked["pipeline"], asked["name"], asked["arguments"]).run(settings)
    if not ended.code:
        return None
    text = f"{asked['name']} failed at the agent. Error code is: {ended.code}.\n{ended.end}"
    refusal = SparkJob.find_refusal(text)
    if refusal is None:
        raise JobFailedError(text)
    final = RivertwiceError(refusal)
    final.reason = refusal.partition(":")[0]
    raise final


def end_of(settings: Settings, asked: dict[str, Any]) -> dict[str, Any]:
    """Do what was asked for, and return how it ended: its result, or its error."""
    try:
        ended = {"result": do(settings, asked), "error": None}
        json.dumps(ended)
        return ended
    except RivertwiceError as error:
        said = {"reason": error.reason, "message": str(error), "retryable": error.retryable}
        return {"result": None, "error": {**said, "is_reported": getattr(error, "is_reported", False)}}
    except Exception as error:  # nobody foresaw it: the log has its trace, and another try may cure it
        LOG.exception("%s of %s failed", asked["name"], asked["pipeline"])
        said = {"reason": "error", "message": f"{type(error).__name__}: {error}", "retryable": True}
        return {"result": None, "error": {**said, "is_reported": False}}


def main(folder: Path) -> int:
    """Do the work of a folder and store how it ended; return the exit code of the process."""
    log_to_stdout()
    hide_addresses()
    lock = open_locked(folder / "lock")
    if lock is None or (folder / RESULT).exists():
        return 0  # it is done by another process: a server was killed before it knew of it
    replace_json(folder / PROCESS, {"pid": os.getpid(), "started": own_start()})
    asked: dict[str, Any] = read_json(folder / REQUEST) or {}
    replace_json(folder / RESULT, end_of(Settings.from_env(), asked))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
