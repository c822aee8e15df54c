"""Settings of a process from its environment: locations, and the services to use."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from rivertwice import __version__
from rivertwice.config.addresses import require_address, require_bootstrap, require_master
from rivertwice.config.homes import PipelineHome
from rivertwice.config.kafka_security import KafkaSecurity
from rivertwice.config.places import Place, below, parse_place, require_folder, require_pipeline, require_topic
from rivertwice.config.project_file import with_project_file
from rivertwice.config.shipped import find_shipped, is_clone
from rivertwice.config.versions import base_of
from rivertwice.errors import ConfigError, RequestError

VERDICTS_KEPT = timedelta(days=90)
"""How long the verdicts and causes of a reconcile are kept, if nobody says otherwise."""


@dataclass(frozen=True)
class Settings:
    """Locations of the project and its state, and the services to use.

    Attributes:
        project: folder that holds `pipelines/`, `dags/`, `expectations/`.
        home: folder of all state (`RIVERTWICE_HOME`, default `PROJECT/.rivertwice`).
        bootstrap: Kafka `bootstrap.servers`; None means the embedded broker's address.
        spark_master: Spark master URL.
        savepoint_store: `s3://bucket/prefix` for savepoints; None keeps them in the shared place, else in each home.
        shared: place of all data that outlives a host; None: `home`, because there is only one host.
        leases: place of the leases; None: in the shared place, else in each home.
        kafka: how clients connect to Kafka; holds no secret.
        alerts: file with the routes of alerts; None: `alerts.yaml` of the project, if there is one.
        verdicts_kept: how long the verdicts and causes of a reconcile are kept.
        downloads: folder of what `rivertwice setup` downloaded; None: `PROJECT/.build`.
        kafka_connection: Airflow's connection that tasks read Kafka's address and login from; None: they have them as any process.
        aws_connection: the same for S3.
        engine: whether verbs run in the home's warm engine (`rivertwice.engine`) where they can.
        spark_ui: whether drivers show Spark's own UI, on the addresses that they listen on.
        metrics: host and port where the agent serves its figures for Prometheus; None: nowhere.
    """

    project: Path
    home: Path
    bootstrap: str | None = None
    spark_master: str = "local[*]"
    savepoint_store: str | None = None
    shared: Place | None = None
    leases: Place | None = None
    kafka: KafkaSecurity = field(default_factory=KafkaSecurity)
    alerts: Path | None = None
    verdicts_kept: timedelta = VERDICTS_KEPT
    downloads: Path | None = None
    metrics: tuple[str, int] | None = None
    kafka_connection: str | None = None
    aws_connection: str | None = None
    spark_ui: bool = False
    engine: bool = True

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Read RIVERTWICE_PROJECT, _HOME, _BOOTSTRAP, _SPARK_MASTER, _SAVEPOINTS, _SHARED, _LEASES, _ALERTS, _VERDICTS_KEPT, _DOWNLOADS, _METRICS, _KAFKA_CONN_ID, _AWS_CONN_ID, _SPARK_UI, _ENGINE and _KAFKA_*.

        What no variable says, `rivertwice.yaml` of the project may (`config.project_file`).

        Raises:
            ConfigError: a value cannot be read; the message names the variable and what to write.
        """
        env = os.environ if env is None else env
        project = Path(env.get("RIVERTWICE_PROJECT") or Path.cwd()).resolve()
        env = with_project_file(project, env)
        home = require_folder(Path(env.get("RIVERTWICE_HOME") or project / ".rivertwice").resolve())
        return cls(
            project=project,
            home=home,
            bootstrap=require_bootstrap(env["RIVERTWICE_BOOTSTRAP"]) if env.get("RIVERTWICE_BOOTSTRAP") else None,
            spark_master=require_master(env.get("RIVERTWICE_SPARK_MASTER") or "local[*]"),
            savepoint_store=_store(env, "RIVERTWICE_SAVEPOINTS"),
            shared=_place(env, "RIVERTWICE_SHARED"),
            leases=_place(env, "RIVERTWICE_LEASES"),
            kafka=KafkaSecurity.from_env(env),
            alerts=Path(env["RIVERTWICE_ALERTS"]).resolve() if env.get("RIVERTWICE_ALERTS") else None,
            verdicts_kept=_days(env["RIVERTWICE_VERDICTS_KEPT"])
            if env.get("RIVERTWICE_VERDICTS_KEPT")
            else VERDICTS_KEPT,
            downloads=_downloads(project, env),
            metrics=require_address(env["RIVERTWICE_METRICS"]) if env.get("RIVERTWICE_METRICS") else None,
            kafka_connection=env.get("RIVERTWICE_KAFKA_CONN_ID") or None,
            aws_connection=env.get("RIVERTWICE_AWS_CONN_ID") or None,
            spark_ui=_on(env, "RIVERTWICE_SPARK_UI", "off"),
            engine=_on(env, "RIVERTWICE_ENGINE", "on"),
        )

    def to_env(self) -> dict[str, str]:
        """Return the variables that give a child process the same settings.

        Secrets are not among them: a child inherits them with the rest of the environment. Some launchers write the variables
        that they are passed into an argv.
        """
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
        if self.alerts is not None:
            env["RIVERTWICE_ALERTS"] = str(self.alerts)
        if self.verdicts_kept != VERDICTS_KEPT:
            env["RIVERTWICE_VERDICTS_KEPT"] = f"{self.verdicts_kept.days} days"
        if self.downloads is not None:
            env["RIVERTWICE_DOWNLOADS"] = str(self.downloads)
        if self.metrics is not None:
            env["RIVERTWICE_METRICS"] = ":".join(map(str, self.metrics))
        if self.kafka_connection:
            env["RIVERTWICE_KAFKA_CONN_ID"] = self.kafka_connection
        if self.aws_connection:
            env["RIVERTWICE_AWS_CONN_ID"] = self.aws_connection
        env |= {name: value for name, value, is_said in self._switches if is_said}
        return env | self.kafka.to_env()

    @property
    def _switches(self) -> Sequence[tuple[str, str, bool]]:
        return ("RIVERTWICE_SPARK_UI", "on", self.spark_ui), ("RIVERTWICE_ENGINE", "off", not self.engine)

    @property
    def definitions(self) -> Path:
        """Folder of the pipeline definitions."""
        return self.project / "pipelines"

    @property
    def frozen_definitions(self) -> Path:
        """Folder of the definitions that do not follow the project: those of versions (`config.versions`)."""
        return self.home / "definitions"

    def definition_folder(self, name: str) -> Path:
        """Return the folder of the definition that a pipeline runs: its frozen one if there is one, else the project's."""
        frozen = self.frozen_definitions / require_pipeline(name)
        return frozen if frozen.is_dir() else self.definitions / name

    def pipeline_names(self) -> list[str]:
        """Return the names of all definitions and of everything that has state here, sorted."""
        defined = {path.parent.name for path in self.definitions.glob("*/pipeline.yaml")}
        return sorted(defined | {path.parent.name for path in (self.home / "pipelines").glob("*/intent.json")})

    def known_pipeline(self, name: str) -> str:
        """Return the name if the project defines it or the home has its state.

        Raises:
            ConfigError: the name is not safe.
            RequestError: there is no such pipeline; close names are given.
        """
        require_pipeline(name)
        names = self.pipeline_names()
        if name not in names:
            base = base_of(name)
            if base != name and base in names:
                message = f"{base} has no version {name!r}; `rivertwice version list {base}` shows those it has"
                raise RequestError(message)
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(names) or 'none'}"
            message = f"no pipeline {name!r} in {self.definitions}; {hint}"
            raise RequestError(message)
        return name

    @property
    def broker(self) -> Path:
        """Folder of the embedded broker."""
        return self.home / "broker"

    @property
    def build(self) -> Path:
        """Folder of the files that set-up downloaded: Java, jars, data."""
        return self.downloads or self.project / ".build"

    def shipped(self, name: str) -> Path:
        """Return a file or folder that the project may have of its own, and that rivertwice brings along (`config.shipped`)."""
        return find_shipped(self.project, name)

    @property
    def spark_is_local(self) -> bool:
        """Whether executors run in the driver's own process."""
        return self.spark_master.startswith("local")

    def with_local_spark(self) -> Settings:
        """Return these settings with executors in the driver's own process.

        It is for plans, cases and single records. They need no cluster, and its executors would not see their temporary files.
        """
        return self if self.spark_is_local else replace(self, spark_master="local[2]")

    @property
    def driver_listens(self) -> dict[str, str]:
        """Where a driver listens: on loopback, unless the executors of a cluster have to reach it.

        For a cluster Spark chooses: the host's own name, or SPARK_LOCAL_IP and SPARK_LOCAL_HOSTNAME of the driver's environment.
        """
        return (
            {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"} if self.spark_is_local else {}
        )

    @property
    def spark_jars(self) -> Path:
        """Folder of the Kafka connector's jars."""
        return self.build / "jars" / "spark"

    @property
    def broker_jars(self) -> Path:
        """Folder of the broker's jars."""
        return self.build / "jars" / "broker"

    @property
    def connect_jars(self) -> Path:
        """Folder of the jars of Kafka Connect and Debezium, which only tests run."""
        return self.build / "jars" / "connect"

    def bootstrap_servers(self) -> str:
        """Return the Kafka address: the configured one, else the embedded broker's.

        Raises:
            ConfigError: neither is known, or security is set for the embedded broker.
        """
        if self.bootstrap:
            return self.bootstrap
        if self.kafka != KafkaSecurity():
            message = (
                f"RIVERTWICE_KAFKA_PROTOCOL is {self.kafka.protocol}, but RIVERTWICE_BOOTSTRAP is not set, and the embedded "
                "broker speaks PLAINTEXT on loopback only; set RIVERTWICE_BOOTSTRAP=host:port, or take RIVERTWICE_KAFKA_* away"
            )
            raise ConfigError(message)
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
        root = self.home / "pipelines" / require_pipeline(name)
        shared = None if self.shared is None else below(self.shared, "pipelines", name)
        url = f"{self.savepoint_store.rstrip('/')}/{name}" if self.savepoint_store else None
        if url is None and shared is not None:
            url = str(below(shared, "savepoints"))
        leases = None if self.leases is None else below(self.leases, name)
        return PipelineHome(root, url, shared, leases)

    def archive(self, topic: str) -> Place:
        """Return the Delta table of a topic's raw records."""
        place: Place = self.home if self.shared is None else self.shared
        return below(place, "archive", require_topic(topic))


def _place(env: Mapping[str, str], name: str) -> Place | None:
    return parse_place(env[name], name) if env.get(name) else None


def _store(env: Mapping[str, str], name: str) -> str | None:
    place = _place(env, name)
    return None if place is None else str(place)


def _on(env: Mapping[str, str], name: str, default: str) -> bool:
    value = env.get(name) or default
    if value not in ("on", "off"):
        message = f"{name} is {value[:40]!r}, but only on and off are known; nothing was started; set it to one of them"
        raise ConfigError(message)
    return value == "on"


def _days(text: str) -> timedelta:
    number, _, unit = text.strip().partition(" ")
    if not number.isdigit() or unit not in ("day", "days") or int(number) < 1:
        message = (
            f"RIVERTWICE_VERDICTS_KEPT is {text!r}, so it is not known how long verdicts are kept; write a number of days, for "
            "instance RIVERTWICE_VERDICTS_KEPT='90 days'"
        )
        raise ConfigError(message)
    return timedelta(days=int(number))


def _downloads(project: Path, env: Mapping[str, str]) -> Path | None:
    """Return the folder of downloads: the one that is named; None for a project with its own; else one of the user, for each version."""
    if env.get("RIVERTWICE_DOWNLOADS"):
        return Path(env["RIVERTWICE_DOWNLOADS"]).resolve()
    if is_clone(project) or (project / ".build").is_dir():
        return None
    cache = Path(env.get("XDG_CACHE_HOME") or Path(env.get("HOME") or Path.home(), ".cache"))
    return cache / "rivertwice" / __version__
