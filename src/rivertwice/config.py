"""Where things lie: the project (definitions) and the home (state). Nothing is read at import time."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rivertwice.errors import ConfigError

NAME = re.compile(r"^[a-z0-9][a-z0-9_-]{0,63}$")


def require_name(value: str, what: str) -> str:
    """Return `value` if it is a safe opaque name (`^[a-z0-9][a-z0-9_-]{0,63}$`).

    Raises:
        ConfigError: the value could leave its folder or reach a shell or an expression.
    """
    if not NAME.match(value):
        message = (
            f"{value[:80]!r} cannot name a {what}; names start with a lower-case letter or digit and hold at most "
            "64 of a-z, 0-9, _ and -"
        )
        raise ConfigError(message)
    return value


@dataclass(frozen=True)
class Tables:
    """Paths of one pipeline's Delta tables."""

    root: Path

    @property
    def changelog(self) -> Path:
        """Append-only rows the stream emitted, each stamped (_timeline, _batch)."""
        return self.root / "changelog"

    @property
    def ledger(self) -> Path:
        """One row per micro-batch."""
        return self.root / "ledger"

    @property
    def dead_letters(self) -> Path:
        """Records that could not be accepted, with reason and address."""
        return self.root / "dead_letters"

    @property
    def sequence(self) -> Path:
        """Head moves and publications, one row each, in one sequence."""
        return self.root / "sequence"

    @property
    def corrections(self) -> Path:
        """Rows that backfills computed, stamped (_backfill, _chunk)."""
        return self.root / "corrections"

    @property
    def served(self) -> Path:
        """What each closed window serves now."""
        return self.root / "served"

    @property
    def verdicts(self) -> Path:
        """One row per (reconcile run, pair, window, key)."""
        return self.root / "verdicts"

    @property
    def causes(self) -> Path:
        """One row per named cause of a difference."""
        return self.root / "causes"

    @property
    def reconciles(self) -> Path:
        """One row per reconcile run: counts, balance, gate."""
        return self.root / "reconciles"


@dataclass(frozen=True)
class PipelineHome:
    """Everything one pipeline stores, under `HOME/pipelines/NAME`.

    Attributes:
        root: the pipeline's folder.
        savepoint_url: `s3://bucket/prefix/NAME` when savepoints do not lie under `root`.
    """

    root: Path
    savepoint_url: str | None = None

    @property
    def tables(self) -> Tables:
        """Paths of the Delta tables."""
        return Tables(self.root / "tables")

    @property
    def intent(self) -> Path:
        """What is wanted: running or stopped."""
        return self.root / "intent.json"

    @property
    def heartbeat(self) -> Path:
        """What the driver last said of itself."""
        return self.root / "heartbeat.json"

    @property
    def exit(self) -> Path:
        """Why the last driver ended."""
        return self.root / "exit.json"

    @property
    def lease(self) -> Path:
        """Folder of the lease: lock, epochs, owner."""
        return self.root / "lease"

    @property
    def drain(self) -> Path:
        """Marker file: the driver drains at the next batch boundary while it exists."""
        return self.root / "drain"

    @property
    def bundles(self) -> Path:
        """Definitions as they ran, content-addressed."""
        return self.root / "bundles"

    @property
    def timelines(self) -> Path:
        """One folder per timeline: timeline.json and checkpoint/."""
        return self.root / "timelines"

    def timeline(self, timeline: str) -> Path:
        """Folder of one timeline."""
        return self.timelines / require_name(timeline, "timeline")

    def checkpoint(self, timeline: str) -> Path:
        """Live Spark checkpoint of one timeline."""
        return self.timeline(timeline) / "checkpoint"

    @property
    def savepoints(self) -> Path:
        """One folder per savepoint: checkpoint/ and manifest.json."""
        return self.root / "savepoints"

    @property
    def backfills(self) -> Path:
        """One folder per backfill: plan.json and its progress."""
        return self.root / "backfills"

    @property
    def operations(self) -> Path:
        """Write-ahead records of multi-step operations (restores)."""
        return self.root / "operations"

    @property
    def scratch(self) -> Path:
        """Throw-away space of proofs; may be deleted when nothing runs."""
        return self.root / "scratch"

    @property
    def logs(self) -> Path:
        """Logs of drivers and jobs of this pipeline."""
        return self.root / "logs"


@dataclass(frozen=True)
class Settings:
    """Where the project and its state lie, and which services to use.

    Attributes:
        project: folder that holds `pipelines/`, `dags/`, `expectations/`.
        home: folder of all state (`RIVERTWICE_HOME`, default `PROJECT/.rivertwice`).
        bootstrap: Kafka `bootstrap.servers`; None means the embedded broker's address.
        spark_master: Spark master URL.
        savepoint_store: `s3://bucket/prefix` for savepoints; None keeps them in each pipeline's home.
    """

    project: Path
    home: Path
    bootstrap: str | None = None
    spark_master: str = "local[*]"
    savepoint_store: str | None = None

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Read RIVERTWICE_PROJECT, _HOME, _BOOTSTRAP, _SPARK_MASTER and _SAVEPOINTS."""
        env = os.environ if env is None else env
        project = Path(env.get("RIVERTWICE_PROJECT") or Path.cwd()).resolve()
        home = Path(env.get("RIVERTWICE_HOME") or project / ".rivertwice").resolve()
        return cls(
            project=project,
            home=home,
            bootstrap=env.get("RIVERTWICE_BOOTSTRAP") or None,
            spark_master=env.get("RIVERTWICE_SPARK_MASTER") or "local[*]",
            savepoint_store=env.get("RIVERTWICE_SAVEPOINTS") or None,
        )

    def to_env(self) -> dict[str, str]:
        """Return the variables that give a child process the same settings."""
        env = {
            "RIVERTWICE_PROJECT": str(self.project),
            "RIVERTWICE_HOME": str(self.home),
            "RIVERTWICE_SPARK_MASTER": self.spark_master,
        }
        if self.bootstrap:
            env["RIVERTWICE_BOOTSTRAP"] = self.bootstrap
        if self.savepoint_store:
            env["RIVERTWICE_SAVEPOINTS"] = self.savepoint_store
        return env

    @property
    def definitions(self) -> Path:
        """Folder of the pipeline definitions."""
        return self.project / "pipelines"

    @property
    def broker(self) -> Path:
        """Folder of the embedded broker."""
        return self.home / "broker"

    @property
    def build(self) -> Path:
        """Folder of what set-up fetched: jars, data (`PROJECT/.build`)."""
        return self.project / ".build"

    @property
    def spark_jars(self) -> Path:
        """Folder of the Kafka connector's jars."""
        return self.build / "jars" / "spark"

    @property
    def broker_jars(self) -> Path:
        """Folder of the broker's jars."""
        return self.build / "jars" / "broker"

    def bootstrap_servers(self) -> str:
        """Return the Kafka address: the configured one, else the embedded broker's.

        Raises:
            ConfigError: neither is known.
        """
        if self.bootstrap:
            return self.bootstrap
        ports = self.broker / "ports.json"
        if not ports.exists():
            message = (
                f"no Kafka address: RIVERTWICE_BOOTSTRAP is not set and no embedded broker has run in {self.broker}; "
                "run `rivertwice up` or set RIVERTWICE_BOOTSTRAP=host:port"
            )
            raise ConfigError(message)
        return f"127.0.0.1:{json.loads(ports.read_text())[0]}"

    def pipeline(self, name: str) -> PipelineHome:
        """Return the home of one pipeline; the name is checked against the allowed pattern."""
        root = self.home / "pipelines" / require_name(name, "pipeline")
        url = f"{self.savepoint_store.rstrip('/')}/{name}" if self.savepoint_store else None
        return PipelineHome(root, url)

    def archive(self, topic: str) -> Path:
        """Return the Delta table of a topic's raw records."""
        return self.home / "archive" / require_name(topic, "topic")
