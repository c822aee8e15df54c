"""Settings of a process: from its environment, `rivertwice.yaml`, and what is shipped. The list of all variables."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from rivertwice import __version__
from rivertwice.core.errors import ConfigError, RequestError
from rivertwice.core.homes import (
    PipelineHome,
    Place,
    TopicName,
    below,
    local_path,
    parse_place,
    require_folder,
    require_pipeline,
)
from rivertwice.core.installed import base_of, find_shipped, is_clone
from rivertwice.core.kafka_security import MECHANISMS, PROTOCOLS, KafkaSecurity
from rivertwice.core.spark_versions import SparkVersion
from rivertwice.core.text import nearest

FROZEN = "definitions"
"""Folder, in a home, of the definitions that do not follow the project."""

# Every setting of a process by its variable: what it says, what holds without it, and its key in `rivertwice.yaml`.
#
# `Settings`, `KafkaSecurity` and a few rooms read them; this table is for the reference and its test.


@dataclass(frozen=True)
class Variable:
    """One environment variable.

    Attributes:
        key: the key of the same setting in `rivertwice.yaml`; None if it is not a setting of a project.
    """

    name: str
    meaning: str
    default: str = ""
    key: str | None = None


VARIABLES: tuple[Variable, ...] = (
    Variable("RIVERTWICE_PROJECT", "folder that has `pipelines/`", "the current folder"),
    Variable("RIVERTWICE_HOME", "folder of all state", "`.rivertwice` of the project", "home"),
    Variable("RIVERTWICE_BOOTSTRAP", "Kafka's `bootstrap.servers`", "the embedded broker", "bootstrap"),
    Variable("RIVERTWICE_SPARK_MASTER", "URL of the Spark master", "`local[*]`", "spark_master"),
    Variable("RIVERTWICE_SPARK_REMOTE", "`sc://HOST:PORT` of a Spark Connect server on which `archive`, `reconcile`, `backfill` and `try` run",
             "they run on the Spark master", "spark_remote"),
    Variable("RIVERTWICE_SHARED", "place of all data that outlives a host: `s3://bucket/prefix`, `gs://...`, `abfss://...`, or a folder that all hosts mount",
             "the home, for one host", "shared"),
    Variable("RIVERTWICE_SAVEPOINTS", "place of the savepoints: as `shared`",
             "below `shared`, else in each pipeline's home", "savepoints"),
    Variable("RIVERTWICE_LEASES", "place of the leases: as `shared`",
             "below `shared`, else in each pipeline's home", "leases"),
    Variable("RIVERTWICE_VERDICTS_KEPT", "how long verdicts and causes of a reconcile are kept, in days", "`90 days`", "verdicts_kept"),
    Variable("RIVERTWICE_METRICS", "`HOST:PORT` where the agent serves its figures for Prometheus", "it serves none", "metrics"),
    Variable("RIVERTWICE_LISTEN", "`HOST:PORT` where the agent answers Airflow's workers on other hosts", "it answers none", "listen"),
    Variable("RIVERTWICE_LISTEN_CERTIFICATE", "PEM file with its key and certificates; needed unless the host is of this machine alone",
             "none", "listen_certificate"),
    Variable("RIVERTWICE_AGENT", "address of the agent that an Airflow elsewhere asks: `https://HOST:PORT`", "the DAGs do their work themselves"),
    Variable("RIVERTWICE_AGENT_TOKEN", "its token: a secret, so no key of a file sets it", "none"),
    Variable("RIVERTWICE_AGENT_TOKEN_FILE", "file that holds the token", "none"),
    Variable("RIVERTWICE_AGENT_CA", "PEM file of the authorities that sign its certificate", "those of the system"),
    Variable("RIVERTWICE_SPARK_UI", "`on`: drivers show Spark's own UI, which has no login, on a free port of the addresses they listen on",
             "`off`"),
    Variable("RIVERTWICE_QUERY", "`on`, for Airflow's API server: users with the permission ask with SQL in the page, in processes beside it", "`off`"),
    Variable("RIVERTWICE_ENGINE", "`off`: each verb starts its own Spark, as with `--cold`, instead of using the home's warm engine", "`on`"),
    Variable("RIVERTWICE_ALERTS", "file with the routes of alerts", "`alerts.yaml` of the project, if there is one", "alerts"),
    Variable("RIVERTWICE_ALERT_WEBHOOK", "address that gets every alert; a route for a home without a file of routes", "none"),
    Variable("RIVERTWICE_PAGE", "address of Airflow as people open it, `https://HOST`; links in alerts begin with it",
             "`[api] base_url` of Airflow, as `AIRFLOW__API__BASE_URL` or `airflow.cfg` in `AIRFLOW_HOME` has it; else of the home's own Airflow",
             "page"),
    Variable("RIVERTWICE_DOWNLOADS", "folder of Java and the jars that `rivertwice setup` fetched",
             "`.build` of the project if it is there, else a folder of the user's cache", "downloads"),
    Variable("RIVERTWICE_KAFKA_PROTOCOL", f"how clients connect to Kafka: {', '.join(PROTOCOLS)}", "`PLAINTEXT`", "kafka.protocol"),
    Variable("RIVERTWICE_KAFKA_MECHANISM", f"how they log in, with a SASL protocol: {', '.join(MECHANISMS)}", "none", "kafka.mechanism"),
    Variable("RIVERTWICE_KAFKA_USERNAME", "name of the login", "none", "kafka.username"),
    Variable("RIVERTWICE_KAFKA_PASSWORD", "its password: a secret, so no key of a file sets it", "none"),
    Variable("RIVERTWICE_KAFKA_PASSWORD_FILE", "file that holds the password", "none", "kafka.password_file"),
    Variable("RIVERTWICE_KAFKA_CA", "PEM file of the authorities that sign the brokers' certificates", "those of the system", "kafka.ca"),
    Variable("RIVERTWICE_KAFKA_CERTIFICATE", "PEM file with the client's own key and certificates", "none", "kafka.certificate"),
    Variable("RIVERTWICE_KAFKA_TOKEN_ENDPOINT", "with OAUTHBEARER, the address that gives tokens", "none", "kafka.token_endpoint"),
    Variable("RIVERTWICE_KAFKA_SCOPE", "scope of the tokens that are asked for", "the endpoint's own", "kafka.scope"),
    Variable("RIVERTWICE_KAFKA_EXTENSIONS", "SASL extensions of OAUTHBEARER: `name=value,name=value`", "none", "kafka.extensions"),
    Variable("RIVERTWICE_KAFKA_REGION", "with AWS_MSK_IAM, the region of the brokers", "none", "kafka.region"),
    Variable("RIVERTWICE_KAFKA_CONN_ID", "Airflow's connection that says how to reach Kafka", "the variables above", "kafka_conn_id"),
    Variable("RIVERTWICE_AWS_CONN_ID", "Airflow's connection that says how to reach S3", "the AWS client's own chain", "aws_conn_id"),
    Variable("RIVERTWICE_SCHEMA_REGISTRY", "address of a Confluent schema registry", "the folder `schemas/` of the project"),
    Variable("RIVERTWICE_SCHEMA_REGISTRY_USER", "name of the login there", "none"),
    Variable("RIVERTWICE_SCHEMA_REGISTRY_PASSWORD", "its password", "none"),
    Variable("RIVERTWICE_POSTGRES", "connection string for delivery to PostgreSQL; `dsn_env` of a sink can name another variable", "none"),
    Variable("RIVERTWICE_DURABLE", "`off`: writes reach the disk when the system brings them there, within half a minute; for tests", "`on`"),
)  # fmt: skip


# Settings of a project: `rivertwice.yaml` beside `pipelines/`. An environment variable of the same setting wins.
#
# Each key is the name of a variable without `RIVERTWICE_`, in small letters:
#
#     bootstrap: broker-1:9092,broker-2:9092
#     spark_master: local[4]
#     shared: s3://bucket/prefix
#     verdicts_kept: 90 days
#     kafka: {protocol: SASL_SSL, mechanism: SCRAM-SHA-512, username: streams}
#     airflow: {dags: [reconcile, backfill, operate], paused: true}    # of every pipeline that does not say it itself
#
# It holds no secret: the password comes from the environment, or from a file that is named here. Relative paths begin at the project's
# folder.

FILE = "rivertwice.yaml"
FROZEN = "definitions"
"""Name of the folder of `Settings.frozen_definitions`."""
PATHS = ("home", "alerts", "downloads", "listen_certificate")
TEXTS = (
    "bootstrap",
    "spark_master",
    "spark_remote",
    "savepoints",
    "shared",
    "leases",
    "verdicts_kept",
    "metrics",
    "listen",
    "page",
    "kafka_conn_id",
    "aws_conn_id",
)
KAFKA, AIRFLOW = "kafka", "airflow"
CONNECTED = "RIVERTWICE_KAFKA_CONNECTED"
"""Names the connection of Airflow that this process has its Kafka settings from; the file's own do not hold beside them."""
KAFKA_PATHS = ("password_file", "ca", "certificate")
KAFKA_TEXTS = ("protocol", "mechanism", "username", "token_endpoint", "scope", "extensions", "region")


def read_project_file(project: Path) -> Mapping[str, Any]:
    """Return what a project's file says; nothing if there is none.

    Raises:
        ConfigError: it cannot be read.
    """
    file = project / FILE
    if not file.is_file():
        return {}
    import yaml

    from rivertwice.core.yaml_text import read_yaml

    try:
        document = read_yaml(file.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        why = " ".join(str(error).split())
        message = f"{file} cannot be read, so no setting of the project is known: {why}; correct it, or remove it"
        raise ConfigError(message) from error
    _require(file, "the file", document, dict)
    return dict(document)


def with_project_file(project: Path, env: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables, and those that only the project's file sets.

    Raises:
        ConfigError: the file cannot be read, or has a key that is not a setting.
    """
    file = project / FILE
    if not file.is_file():
        return env
    variables = as_variables(file, read_project_file(project))
    if env.get(CONNECTED):
        replaced = (
            "RIVERTWICE_BOOTSTRAP",
            *(f"RIVERTWICE_KAFKA_{name.upper()}" for name in (*KAFKA_PATHS, *KAFKA_TEXTS)),
        )
        variables = {name: value for name, value in variables.items() if name not in replaced}
    return {**variables, **{name: value for name, value in env.items() if value}}


_EXAMPLES = {
    "verdicts_kept": "90 days",
    "metrics": "127.0.0.1:9464",
    "listen": "10.0.0.5:8443",
    "page": "https://airflow.example.com",
    "bootstrap": "127.0.0.1:9092",
    "spark_remote": "sc://spark:15002",
}


def as_variables(file: Path, document: Any) -> dict[str, str]:
    """Return the variables that a project's file sets. Pure.

    Args:
        file: whose folder relative paths begin at; named in messages.

    Raises:
        ConfigError: it has a key that is not a setting, or a value that is not a text.
    """
    _require(file, "the file", document, dict)
    variables: dict[str, str] = {}
    for key, value in document.items():
        _require_known(file, "", key, (*PATHS, *TEXTS, KAFKA, AIRFLOW))
        if key == AIRFLOW:
            _require(file, key, value, dict)
            continue  # no setting of a process: `Settings.airflow_defaults`
        if key != KAFKA:
            variables[f"RIVERTWICE_{key.upper()}"] = _text(file, key, value, is_path=key in PATHS)
            continue
        _require(file, key, value, dict)
        for name, each in value.items():
            _require_known(file, f"{KAFKA}.", name, (*KAFKA_PATHS, *KAFKA_TEXTS))
            text = _text(file, f"{KAFKA}.{name}", each, is_path=name in KAFKA_PATHS)
            variables[f"RIVERTWICE_KAFKA_{name.upper()}"] = text
    return variables


def _text(file: Path, name: str, value: Any, *, is_path: bool) -> str:
    _require(file, name, value, str)
    return str(file.parent / value) if is_path else str(value)


def _require(file: Path, name: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        wanted = (
            "keys with values" if kind is dict else f"one text, for instance {_EXAMPLES.get(name, repr(str(value)))}"
        )
        message = f"{file}: {name} is {value!r}; write {wanted}"
        raise ConfigError(message)


def _require_known(file: Path, prefix: str, name: Any, known: Collection[str]) -> None:
    if name in known:
        return
    if name == "password":
        message = (
            f"{file}: {prefix}password would be a secret in a shared file; set RIVERTWICE_KAFKA_PASSWORD, "
            f"or name a file with {prefix}password_file"
        )
        raise ConfigError(message)
    close = difflib.get_close_matches(str(name), known, n=1)
    hint = f"did you mean {prefix}{close[0]}?" if close else f"there are: {', '.join(known)}"
    message = f"{file}: {prefix}{name} is an unknown setting; {hint}"
    raise ConfigError(message)


# Addresses in the settings: what cannot be one is refused as it is read, not when a job has waited for it. Pure.

_MASTER = re.compile(r"local(\[(\*|\d+)(,\d+)?\])?\Z|yarn\Z|(spark|k8s)://.+\Z")
_BROKER = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:,/\[\]]+):(\d{1,5})\Z")


def require_bootstrap(text: str) -> str:
    """Return Kafka's `bootstrap.servers` if it is `HOST:PORT`, or several with commas between.

    Raises:
        ConfigError: one of them is not such a address.
    """
    for server in text.split(","):
        match = _BROKER.match(server.strip())
        if match is None or not 0 < int(match.group(2)) < 65_536:
            lack = "" if ":" in server else f", for instance {server.strip() or '127.0.0.1'}:9092"
            message = (
                f"RIVERTWICE_BOOTSTRAP is {text!r}, and {server.strip()!r} is not a valid broker address; write "
                f"HOST:PORT{lack}, with commas between several"
            )
            raise ConfigError(message)
    return text


def require_master(text: str) -> str:
    """Return the address of Spark's master if it is one that Spark knows.

    Raises:
        ConfigError: it is none.
    """
    if not _MASTER.match(text):
        close = nearest(text.partition("[")[0], ("local", "yarn"))
        hint = f"; did you mean {close}{text[len(text.partition('[')[0]) :]}?" if close else ""
        message = (
            f"RIVERTWICE_SPARK_MASTER is {text!r}, which is not a Spark master, so no job would start; write local[*], "
            f"spark://HOST:7077, k8s://https://HOST:443 or yarn{hint}"
        )
        raise ConfigError(message)
    return text


_REMOTE = re.compile(r"sc://(\[[0-9A-Fa-f:.%]+\]|[^\s:,;/\[\]@]+)(:(?P<port>\d{1,5}))?/?(;[a-z_]+=[^;=\s]+)*\Z")


def require_remote(text: str) -> str:
    """Return the address of a Spark Connect server if it is one, and holds no secret.

    Raises:
        ConfigError: it is not such an address, or a token is part of it.
    """
    if re.search(r";token=", text):
        message = (
            "RIVERTWICE_SPARK_REMOTE has a token, which is a secret, and settings are shown and passed on; take `;token=...` "
            "away, and set SPARK_CONNECT_AUTHENTICATE_TOKEN, which Spark's client reads"
        )
        raise ConfigError(message)
    match = _REMOTE.match(text)
    if match is None or not 0 < int(match["port"] or 15_002) < 65_536:
        message = (
            f"RIVERTWICE_SPARK_REMOTE is {text!r}, which is not the address of a Spark Connect server; write sc://HOST:PORT, "
            "with ;use_ssl=true after it if the server asks for TLS, for instance sc://spark:15002/;use_ssl=true"
        )
        raise ConfigError(message)
    return text


def require_address(variable: str, text: str | None) -> tuple[str, int] | None:
    """Return host and port of `HOST:PORT`, where the agent listens; None: nothing is set.

    Raises:
        ConfigError: it is not such a address.
    """
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        message = f"{variable} is {text!r}, which is not an address, so nothing would be served; write HOST:PORT, for instance 127.0.0.1:9464"
        raise ConfigError(message)
    return host, int(port)


PAGE = re.compile(r"https?://[^\s/@?#<>\"]+(/[^\s@?#<>\"]*)?")
"""An address that a browser opens, without a login."""


def require_page(text: str | None) -> str | None:
    """Return the address of Airflow without a slash at its end; None: nothing is set.

    Raises:
        ConfigError: it is not the address of a page, or holds a login.
    """
    if text and not PAGE.fullmatch(text):
        message = f"RIVERTWICE_PAGE is {text!r}, which no browser opens; write Airflow's address, for instance https://airflow.example.com"
        raise ConfigError(message)
    return text.rstrip("/") if text else None


def find_airflow(env: Mapping[str, str], own: Path) -> str | None:
    """Return `[api] base_url` of Airflow as a person set it, without a slash at its end; None: nobody did.

    Airflow takes its variable before its file. What no browser opens does not count.

    Args:
        own: folder of the home's own Airflow, whose file is looked at last.
    """
    folders = [Path(env["AIRFLOW_HOME"]), own] if env.get("AIRFLOW_HOME") else [own]
    said = [env.get("AIRFLOW__API__BASE_URL"), *(_base_url(folder / "airflow.cfg") for folder in folders)]
    return next((text.rstrip("/") for text in said if text and PAGE.fullmatch(text)), None)


def _base_url(file: Path) -> str | None:
    from configparser import Error, RawConfigParser

    parser = RawConfigParser(strict=False)
    try:
        parser.read(file, encoding="utf-8")
    except (OSError, ValueError, Error):  # it may be another user's
        return None
    return parser.get("api", "base_url", fallback=None)


def _address(said: tuple[str, int] | None) -> str | None:
    return None if said is None else ":".join(map(str, said))


VERDICTS_KEPT = timedelta(days=90)
"""How long the verdicts and causes of a reconcile are kept, unless it is set."""


@dataclass(frozen=True)
class Settings:
    """Locations of the project and its state, and the services to use.

    Attributes:
        project: folder that holds `pipelines/`, `dags/`, `expectations/`.
        home: folder of all state (`RIVERTWICE_HOME`, default `PROJECT/.rivertwice`).
        bootstrap: Kafka `bootstrap.servers`; None means the embedded broker's address.
        spark_remote: `sc://HOST:PORT` of the Spark Connect server that runs batch verbs; None: `spark_master` runs them.
        savepoint_store: `s3://bucket/prefix` for savepoints; None keeps them in the shared place, else in each home.
        shared: place of all data that outlives a host; None: `home`, because there is only one host.
        leases: place of the leases; None: in the shared place, else in each home.
        kafka: how clients connect to Kafka; holds no secret.
        alerts: file with the routes of alerts; None: `alerts.yaml` of the project, if there is one.
        verdicts_kept: how long the verdicts and causes of a reconcile are kept.
        downloads: folder of what `rivertwice setup` downloaded; None: `PROJECT/.build`.
        kafka_connection: Airflow's connection that tasks read Kafka's address and login from; None: they have them as any process.
        aws_connection: the same for S3.
        engine: whether verbs run in the home's warm engine (`rivertwice.engine.warm`) where they can.
        spark_ui: whether drivers show Spark's own UI, on the addresses that they listen on.
        query: whether the page runs SQL.
        metrics: host and port where the agent serves its figures for Prometheus; None: nowhere.
        listen: host and port where the agent answers Airflow's workers on other hosts; None: nowhere.
        listen_certificate: PEM file with its key and certificates.
        page: address of Airflow as people open it; None: not said.
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
    listen: tuple[str, int] | None = None
    listen_certificate: Path | None = None
    kafka_connection: str | None = None
    aws_connection: str | None = None
    spark_ui: bool = False
    query: bool = False
    engine: bool = True
    spark_remote: str | None = None
    page: str | None = None

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Read RIVERTWICE_PROJECT, _HOME, _BOOTSTRAP, _SPARK_MASTER, _SPARK_REMOTE, _SAVEPOINTS, _SHARED, _LEASES, _ALERTS, _VERDICTS_KEPT, _DOWNLOADS, _METRICS, _KAFKA_CONN_ID, _AWS_CONN_ID, _SPARK_UI, _QUERY, _ENGINE, _PAGE and _KAFKA_*.

        What no variable says, `rivertwice.yaml` of the project may (`core.settings`).

        Raises:
            ConfigError: a value cannot be read; the message names the variable and what to write.
        """
        env = os.environ if env is None else env
        project = local_path(env.get("RIVERTWICE_PROJECT") or str(Path.cwd()), "RIVERTWICE_PROJECT")
        env = with_project_file(project, env)
        home = require_folder(local_path(env.get("RIVERTWICE_HOME") or str(project / ".rivertwice"), "RIVERTWICE_HOME"))
        return cls(
            project=project,
            home=home,
            bootstrap=require_bootstrap(env["RIVERTWICE_BOOTSTRAP"]) if env.get("RIVERTWICE_BOOTSTRAP") else None,
            spark_master=require_master(env.get("RIVERTWICE_SPARK_MASTER") or "local[*]"),
            savepoint_store=_store(env, "RIVERTWICE_SAVEPOINTS"),
            shared=_place(env, "RIVERTWICE_SHARED"),
            leases=_place(env, "RIVERTWICE_LEASES"),
            kafka=KafkaSecurity.from_env(env),
            alerts=local_path(env["RIVERTWICE_ALERTS"], "RIVERTWICE_ALERTS") if env.get("RIVERTWICE_ALERTS") else None,
            verdicts_kept=_days(env["RIVERTWICE_VERDICTS_KEPT"])
            if env.get("RIVERTWICE_VERDICTS_KEPT")
            else VERDICTS_KEPT,
            downloads=_downloads(project, env),
            metrics=require_address("RIVERTWICE_METRICS", env.get("RIVERTWICE_METRICS")),
            listen=require_address("RIVERTWICE_LISTEN", env.get("RIVERTWICE_LISTEN")),
            listen_certificate=Path(env["RIVERTWICE_LISTEN_CERTIFICATE"])
            if env.get("RIVERTWICE_LISTEN_CERTIFICATE")
            else None,
            kafka_connection=env.get("RIVERTWICE_KAFKA_CONN_ID") or None,
            aws_connection=env.get("RIVERTWICE_AWS_CONN_ID") or None,
            spark_ui=_on(env, "RIVERTWICE_SPARK_UI", "off"),
            query=_on(env, "RIVERTWICE_QUERY", "off"),
            engine=_on(env, "RIVERTWICE_ENGINE", "on"),
            spark_remote=require_remote(env["RIVERTWICE_SPARK_REMOTE"]) if env.get("RIVERTWICE_SPARK_REMOTE") else None,
            page=require_page(env.get("RIVERTWICE_PAGE")),
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
        said = {
            "RIVERTWICE_BOOTSTRAP": self.bootstrap,
            "RIVERTWICE_SPARK_REMOTE": self.spark_remote,
            "RIVERTWICE_SAVEPOINTS": self.savepoint_store,
            "RIVERTWICE_SHARED": self.shared,
            "RIVERTWICE_LEASES": self.leases,
            "RIVERTWICE_ALERTS": self.alerts,
            "RIVERTWICE_DOWNLOADS": self.downloads,
            "RIVERTWICE_METRICS": _address(self.metrics),
            "RIVERTWICE_LISTEN": _address(self.listen),
            "RIVERTWICE_LISTEN_CERTIFICATE": self.listen_certificate,
            "RIVERTWICE_PAGE": self.page,
            "RIVERTWICE_KAFKA_CONN_ID": self.kafka_connection,
            "RIVERTWICE_AWS_CONN_ID": self.aws_connection,
        }
        env |= {name: str(value) for name, value in said.items() if value}
        if self.verdicts_kept != VERDICTS_KEPT:
            env["RIVERTWICE_VERDICTS_KEPT"] = f"{self.verdicts_kept.days} days"
        env |= {name: value for name, value, is_said in self._switches if is_said}
        return env | self.kafka.to_env()

    @property
    def is_clone(self) -> bool:
        """Whether the project is a clone of rivertwice, whose own locks say what belongs into its environment."""
        return is_clone(self.project)

    @property
    def _switches(self) -> Sequence[tuple[str, str, bool]]:
        return (
            ("RIVERTWICE_SPARK_UI", "on", self.spark_ui),
            ("RIVERTWICE_QUERY", "on", self.query),
            ("RIVERTWICE_ENGINE", "off", not self.engine),
        )

    @property
    def project_file(self) -> Path:
        """The project's file of settings, which need not exist."""
        return self.project / FILE

    @property
    def airflow_defaults(self) -> Mapping[str, Any]:
        """What `rivertwice.yaml` says under `airflow`, for every pipeline that does not say it itself; not checked yet."""
        said: Mapping[str, Any] = read_project_file(self.project).get(AIRFLOW, {})
        return said

    @property
    def definitions(self) -> Path:
        """Folder of the pipeline definitions."""
        return self.project / "pipelines"

    @property
    def frozen_definitions(self) -> Path:
        """Folder of the definitions that do not follow the project: those of versions (`core.installed`)."""
        return self.home / FROZEN

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

    def page_of(self, place: str) -> str | None:
        """Return the address of a place of the page (`#/p/NAME/TAB`); None: nothing says where people open Airflow."""
        address = self.page or find_airflow(os.environ, self.home / "airflow")
        return None if address is None else f"{address}/rivertwice/{place}"

    @property
    def broker(self) -> Path:
        """Folder of the embedded broker."""
        return self.home / "broker"

    @property
    def build(self) -> Path:
        """Folder of the files that set-up downloaded: Java, jars, data."""
        return self.downloads or self.project / ".build"

    def shipped(self, name: str) -> Path:
        """Return a file or folder that the project may override, and that rivertwice brings along (`core.installed`)."""
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
        """Folder of the jars of the Kafka connector of the installed Spark; environments with several Sparks may share `build`.

        Raises:
            ConfigError: no Spark is installed.
        """
        return self.build / "jars" / f"spark-{SparkVersion.installed().line}"

    @property
    def connector_jars(self) -> list[Path]:
        """The Kafka connector's jars, sorted; empty if set-up has not downloaded them."""
        return sorted(self.spark_jars.glob("*.jar"))

    @property
    def broker_jars(self) -> Path:
        """Folder of the broker's jars."""
        return self.build / "jars" / "broker"

    @property
    def connect_jars(self) -> Path:
        """Folder of the jars of Kafka Connect and Debezium, which only tests run."""
        return self.build / "jars" / "connect"

    @property
    def iceberg_jars(self) -> Path:
        """Folder of the jars of Iceberg's own REST catalog, which only tests run."""
        return self.build / "jars" / "iceberg"

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
        return below(place, "archive", TopicName(topic).folder)


def _place(env: Mapping[str, str], name: str) -> Place | None:
    return parse_place(env[name], name) if env.get(name) else None


def _store(env: Mapping[str, str], name: str) -> str | None:
    place = _place(env, name)
    return None if place is None else str(place)


def _on(env: Mapping[str, str], name: str, default: str) -> bool:
    value = env.get(name) or default
    if value not in ("on", "off"):
        message = f"{name} is {value[:40]!r}, but only on and off are known; set it to one of them"
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
    """Return the folder of downloads: the one that is named; None for a project with its own; else the user's, one for each version."""
    if env.get("RIVERTWICE_DOWNLOADS"):
        return local_path(env["RIVERTWICE_DOWNLOADS"], "RIVERTWICE_DOWNLOADS")
    if is_clone(project) or (project / ".build").is_dir():
        return None
    cache = Path(env.get("XDG_CACHE_HOME") or Path(env.get("HOME") or Path.home(), ".cache"))
    return cache / "rivertwice" / __version__
