"""Where things lie: the project (definitions) and the home (state). Nothing is read at import time."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rivertwice.errors import ConfigError

NAME = re.compile(r"^[a-z0-9][a-z0-9_-]{0,63}\Z")

Place = Path | str
"""A local folder, or an `s3://bucket/prefix` as text."""


def below(place: Place, *parts: str) -> Place:
    """Return the place of `parts` under `place`."""
    return place.joinpath(*parts) if isinstance(place, Path) else "/".join([place.rstrip("/"), *parts])


def parse_place(text: str) -> Place:
    """Return the place that a setting names: `s3://bucket/prefix`, or a folder.

    Raises:
        ConfigError: it is an address of another kind.
    """
    if text.startswith("s3://") and text.strip("/") != "s3:":
        return text.rstrip("/")
    if "://" in text:
        message = f"{text!r} names no place; write a folder or s3://bucket/prefix"
        raise ConfigError(message)
    return Path(text).resolve()


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
    """Places of one pipeline's Delta tables: folders, or addresses on S3."""

    root: Place

    @property
    def changelog(self) -> Place:
        """Append-only rows the stream emitted, each stamped (_timeline, _batch)."""
        return below(self.root, "changelog")

    @property
    def ledger(self) -> Place:
        """One row per micro-batch."""
        return below(self.root, "ledger")

    @property
    def dead_letters(self) -> Place:
        """Records that could not be accepted, with reason and address."""
        return below(self.root, "dead_letters")

    @property
    def sequence(self) -> Place:
        """Head moves and publications, one row each, in one sequence."""
        return below(self.root, "sequence")

    @property
    def corrections(self) -> Place:
        """Rows that backfills computed, stamped (_backfill, _chunk)."""
        return below(self.root, "corrections")

    @property
    def served(self) -> Place:
        """What each closed window serves now."""
        return below(self.root, "served")

    @property
    def verdicts(self) -> Place:
        """One row per (reconcile run, pair, window, key)."""
        return below(self.root, "verdicts")

    @property
    def causes(self) -> Place:
        """One row per named cause of a difference."""
        return below(self.root, "causes")

    @property
    def reconciles(self) -> Place:
        """One row per reconcile run: counts, balance, gate."""
        return below(self.root, "reconciles")


@dataclass(frozen=True)
class PipelineHome:
    """Everything one pipeline stores: what belongs to this host, and what outlives it.

    Under `root` (`HOME/pipelines/NAME`) lies what only this host needs: live checkpoints, the lock, intent, heartbeat,
    logs, scratch. What a second host needs to go on (tables, records of timelines, bundles, savepoints, the lease)
    lies in `place`, which is `root` too unless a shared place is set.

    Attributes:
        root: the pipeline's folder on this host.
        savepoint_url: place of the savepoints when they do not lie under `root`.
        shared: `SHARED/pipelines/NAME`, or None.
        leases: place of this pipeline's lease when it is set apart, or None.
    """

    root: Path
    savepoint_url: str | None = None
    shared: Place | None = None
    leases: Place | None = None

    @property
    def place(self) -> Place:
        """Where lies what outlives this host."""
        return self.root if self.shared is None else self.shared

    @property
    def lease_place(self) -> Place | None:
        """Where epochs are claimed; None: in this home, for no other host runs the pipeline."""
        if self.leases is not None:
            return self.leases
        return None if self.shared is None else below(self.shared, "lease")

    @property
    def tables(self) -> Tables:
        """Places of the Delta tables."""
        return Tables(below(self.place, "tables"))

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
        """Folder of the lease on this host: lock, epochs, owner."""
        return self.root / "lease"

    @property
    def drain(self) -> Path:
        """Marker file: the driver drains at the next batch boundary while it exists."""
        return self.root / "drain"

    @property
    def bundles(self) -> Place:
        """Definitions as they ran, content-addressed."""
        return below(self.place, "bundles")

    @property
    def timeline_records(self) -> Place:
        """One `NAME/timeline.json` per timeline."""
        return below(self.place, "timelines")

    @property
    def timelines(self) -> Path:
        """One folder per timeline that ran on this host: checkpoint/."""
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
        """One folder per backfill: plan.json and its progress; on this host when the shared place is on S3."""
        return (self.place if isinstance(self.place, Path) else self.root) / "backfills"

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
        savepoint_store: `s3://bucket/prefix` for savepoints; None keeps them in the shared place, else in each home.
        shared: place of all that outlives a host; None: `home`, for there is one host only.
        leases: place of the leases; None: in the shared place, else in each home.
    """

    project: Path
    home: Path
    bootstrap: str | None = None
    spark_master: str = "local[*]"
    savepoint_store: str | None = None
    shared: Place | None = None
    leases: Place | None = None

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Read RIVERTWICE_PROJECT, _HOME, _BOOTSTRAP, _SPARK_MASTER, _SAVEPOINTS, _SHARED and _LEASES."""
        env = os.environ if env is None else env
        project = Path(env.get("RIVERTWICE_PROJECT") or Path.cwd()).resolve()
        home = Path(env.get("RIVERTWICE_HOME") or project / ".rivertwice").resolve()
        return cls(
            project=project,
            home=home,
            bootstrap=env.get("RIVERTWICE_BOOTSTRAP") or None,
            spark_master=env.get("RIVERTWICE_SPARK_MASTER") or "local[*]",
            savepoint_store=env.get("RIVERTWICE_SAVEPOINTS") or None,
            shared=parse_place(env["RIVERTWICE_SHARED"]) if env.get("RIVERTWICE_SHARED") else None,
            leases=parse_place(env["RIVERTWICE_LEASES"]) if env.get("RIVERTWICE_LEASES") else None,
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
        if self.shared is not None:
            env["RIVERTWICE_SHARED"] = str(self.shared)
        if self.leases is not None:
            env["RIVERTWICE_LEASES"] = str(self.leases)
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
        shared = None if self.shared is None else below(self.shared, "pipelines", name)
        url = f"{self.savepoint_store.rstrip('/')}/{name}" if self.savepoint_store else None
        if url is None and shared is not None:
            url = str(below(shared, "savepoints"))
        leases = None if self.leases is None else below(self.leases, name)
        return PipelineHome(root, url, shared, leases)

    def archive(self, topic: str) -> Place:
        """Return the Delta table of a topic's raw records."""
        place: Place = self.home if self.shared is None else self.shared
        return below(place, "archive", require_name(topic, "topic"))
