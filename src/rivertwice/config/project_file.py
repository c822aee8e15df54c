"""Settings of a project: `rivertwice.yaml` beside `pipelines/`. An environment variable of the same setting wins.

Each key is the name of a variable without `RIVERTWICE_`, in small letters:

    bootstrap: broker-1:9092,broker-2:9092
    spark_master: local[4]
    shared: s3://bucket/prefix
    verdicts_kept: 90 days
    kafka: {protocol: SASL_SSL, mechanism: SCRAM-SHA-512, username: streams}

It holds no secret: the password comes from the environment, or from a file that is named here. Relative paths begin at the project's
folder.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from rivertwice.errors import ConfigError

FILE = "rivertwice.yaml"
PATHS = ("home", "alerts", "downloads")
TEXTS = (
    "bootstrap",
    "spark_master",
    "savepoints",
    "shared",
    "leases",
    "verdicts_kept",
    "metrics",
    "kafka_conn_id",
    "aws_conn_id",
)
KAFKA = "kafka"
CONNECTED = "RIVERTWICE_KAFKA_CONNECTED"
"""Names the connection of Airflow that this process has its Kafka settings from; the file's own do not hold beside them."""
KAFKA_PATHS = ("password_file", "ca", "certificate")
KAFKA_TEXTS = ("protocol", "mechanism", "username", "token_endpoint", "scope", "extensions", "region")


def with_project_file(project: Path, env: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables, and those that only the project's file sets.

    Raises:
        ConfigError: the file cannot be read, or has a key that is no setting.
    """
    file = project / FILE
    if not file.is_file():
        return env
    import yaml

    from rivertwice.yaml_text import read_yaml

    try:
        document = read_yaml(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        why = " ".join(str(error).split())
        message = f"{file} cannot be read, so no setting of the project is known: {why}; correct it, or remove it"
        raise ConfigError(message) from error
    variables = as_variables(file, document or {})
    if env.get(CONNECTED):
        replaced = (
            "RIVERTWICE_BOOTSTRAP",
            *(f"RIVERTWICE_KAFKA_{name.upper()}" for name in (*KAFKA_PATHS, *KAFKA_TEXTS)),
        )
        variables = {name: value for name, value in variables.items() if name not in replaced}
    return {**variables, **{name: value for name, value in env.items() if value}}


_EXAMPLES = {"verdicts_kept": "90 days", "metrics": "127.0.0.1:9464", "bootstrap": "127.0.0.1:9092"}


def as_variables(file: Path, document: Any) -> dict[str, str]:
    """Return the variables that a project's file sets. Pure.

    Args:
        file: whose folder relative paths begin at; named in messages.
        document: what the file holds.

    Raises:
        ConfigError: it has a key that is no setting, or a value that is no text.
    """
    _require(file, "the file", document, dict)
    variables: dict[str, str] = {}
    for key, value in document.items():
        _require_known(file, "", key, (*PATHS, *TEXTS, KAFKA))
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
        message = f"{file}: {name} is {value!r}, so the project's settings are not known; write {wanted}"
        raise ConfigError(message)


def _require_known(file: Path, prefix: str, name: Any, known: Collection[str]) -> None:
    if name in known:
        return
    if name == "password":
        message = (
            f"{file}: {prefix}password would be a secret in a file that is shared, so nothing was read; set RIVERTWICE_KAFKA_PASSWORD, "
            f"or name a file with {prefix}password_file"
        )
        raise ConfigError(message)
    close = difflib.get_close_matches(str(name), known, n=1)
    hint = f"did you mean {prefix}{close[0]}?" if close else f"there are: {', '.join(known)}"
    message = f"{file}: {prefix}{name} is no setting, so nothing was read; {hint}"
    raise ConfigError(message)
