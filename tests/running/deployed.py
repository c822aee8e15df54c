"""The product in containers, as a user meets it: the command line where the agent is, and the REST API of its Airflow."""

from __future__ import annotations

import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from rivertwice.airflow.airflow_api import AirflowClient
from running.waiting import wait_for
from servers.airflow import PIPELINE, VERBS, run_dag

T = TypeVar("T")
WINDOW = {"start": "2013-06-30T12:00:00Z", "end": "2013-06-30T13:00:00Z"}
"""One window that the first 500 flights of the day close."""
RUNS: dict[str, tuple[str, dict[str, object]]] = {
    "rotate": ("care", {"prove": True}),
    "archive": ("care", {"act": "archive"}),
    "reconcile": ("reconcile", {"full": True}),
    "backfill": ("backfill", {"scope": "range", **WINDOW, "reason": "a test"}),
}


class Deployed(ABC):
    """One pipeline of a deployment. What takes long says its seconds on standard error."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    @abstractmethod
    def ask(self, *words: str) -> str:
        """Run `rivertwice WORDS` where the agent is, to its good end; return what it printed."""

    def say(self, line: str) -> None:
        """Print a line with the seconds since the beginning."""
        sys.stderr.write(f"[{time.monotonic() - self.began:7.0f} s] {line}\n")

    def timed(self, what: str, act: Callable[[], T]) -> T:
        """Do something, and print how long it took."""
        before = time.monotonic()
        made = act()
        self.say(f"{what}: {time.monotonic() - before:.0f} s")
        return made

    def json(self, *words: str) -> Any:
        """Return what a command prints as JSON, after its notes."""
        said = self.ask("--output", "json", *words)
        return json.loads(said[min(at for at in (said.find("{"), said.find("[")) if at >= 0) :])

    def status(self) -> dict[str, Any]:
        """Return the pipeline's part of `rivertwice status`."""
        return next(dict(each) for each in self.json("status")["pipelines"] if each["name"] == PIPELINE)

    def batch(self) -> int:
        """Return the newest batch."""
        return int(self.status()["batch"])

    def seen(self) -> str:
        """Return what a wait that fails shows."""
        return f"{self.status()}\n{self.ask('logs', PIPELINE, '--lines', '40')}"

    def until_streams(self, batch: int, epoch: int = 0) -> dict[str, Any]:
        """Wait until a driver of that epoch or a later one has committed a batch after this one."""

        def streams() -> dict[str, Any] | None:
            seen = self.status()
            of_driver = (seen["driver"] or {}).get("epoch", -1)
            return seen if of_driver >= epoch and seen["batch"] is not None and seen["batch"] > batch else None

        seen = wait_for(f"a batch after {batch} of epoch {epoch}", streams, 900, every=5, seen=self.seen)
        self.say(f"epoch {seen['driver']['epoch']}, batch {seen['batch']}, lag {seen['lag']}")
        return seen

    def until_read(self) -> dict[str, Any]:
        """Wait until everything that was sent is committed."""

        def read() -> dict[str, Any] | None:
            seen = self.status()
            return seen if seen["state"] in ("running", "idle") and seen["lag"] == 0 else None

        return wait_for("no lag", read, 900, every=5, seen=self.seen)

    def by_airflow(self, airflow: AirflowClient, *what: str) -> None:
        """Let the DAGs of the pipeline do what `RUNS` names, one after the other, and print the seconds of each task."""
        airflow.wait_for_dags({f"{verb}__{PIPELINE}" for verb in VERBS}, timeout=300)
        for name in what:
            verb, conf = RUNS[name]
            self.timed(f"{name} by Airflow", partial(run_dag, airflow, f"{verb}__{PIPELINE}", conf, 900, self.say))

    def nothing_lost(self, records: int) -> None:
        """Compare everything with the log: nothing is wrong, lost or doubled, and every record is accounted for."""
        found = self.timed("reconcile", lambda: dict(self.json("reconcile", PIPELINE, "--full")))
        self.say(f"compared: {found['counts']}, {found['balance']['total']}")
        assert found["gate"]["passed"]
        assert found["counts"]["stream"]["AGREES"] > 0
        assert found["counts"]["stream"]["DEFECT"] == found["counts"]["served"]["DEFECT"] == 0
        assert (found["balance"]["total"]["read"], found["balance"]["total"]["unexplained"]) == (records, 0)
        keys = "count(*) AS n, count(DISTINCT (window_start, origin)) AS keys"
        (row,) = self.json("query", f"SELECT {keys} FROM {PIPELINE}__changelog")["rows"]
        assert row["n"] == row["keys"] > 0

    def proved(self) -> list[str]:
        """Return the ids of the proved savepoints, of which there is one at least."""
        found = self.json("savepoint", "list", PIPELINE)
        proved = [str(each["id"]) for each in found if each["status"] == "proved"]
        assert proved, found
        return proved
