"""Settings that connections of Airflow hold, given to a task's process and so to the job that it starts.

They become variables of this process's environment, which a job inherits: no argument, no template and no XCom has them. A task's
process ends with the task. The agent, the page and the triggerer do not read connections: they have their own environments.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from rivertwice.core import CONNECTED, ConfigError, Settings, meant

# What a connection of Airflow to Kafka or S3 means as variables of our settings. Pure.
#
# The extra of a Kafka connection is a configuration of librdkafka, as Airflow's own Kafka provider takes it. An option about security
# that our clients do not have is refused: without it they would connect in another way than the connection says.

KAFKA_TYPE, AWS_TYPE = "kafka", "aws"
KAFKA_OPTIONS = {
    "bootstrap.servers": "RIVERTWICE_BOOTSTRAP",
    "security.protocol": "RIVERTWICE_KAFKA_PROTOCOL",
    "sasl.mechanism": "RIVERTWICE_KAFKA_MECHANISM",
    "sasl.mechanisms": "RIVERTWICE_KAFKA_MECHANISM",
    "sasl.username": "RIVERTWICE_KAFKA_USERNAME",
    "sasl.password": "RIVERTWICE_KAFKA_PASSWORD",
    "ssl.ca.location": "RIVERTWICE_KAFKA_CA",
    "ssl.certificate.location": "RIVERTWICE_KAFKA_CERTIFICATE",
    "ssl.key.location": "RIVERTWICE_KAFKA_CERTIFICATE",
}
KAFKA_VARIABLES = (*dict.fromkeys(KAFKA_OPTIONS.values()), "RIVERTWICE_KAFKA_PASSWORD_FILE")
"""All that a connection decides: of these, no other value holds beside it."""
AWS_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
)
SECRETS = ("RIVERTWICE_KAFKA_PASSWORD", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_OF_SECURITY = ("ssl.", "sasl.", "security.", "enable.ssl.", "https.")
_AWS_REFUSED = ("role_arn", "assume_role_method", "federation", "web_identity_token_file")


def kafka_variables(connection: str, conn_type: str | None, extra: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that a Kafka connection sets; options that are not about security or address are left out.

    Args:
        connection: its id, for messages.

    Raises:
        ConfigError: it is of another type, has no address, or has an option about security that our clients lack.
    """
    _require_type(connection, conn_type, KAFKA_TYPE)
    variables: dict[str, str] = {}
    for option, value in extra.items():
        variable = KAFKA_OPTIONS.get(option)
        if variable is None and option.startswith(_OF_SECURITY):
            hint = meant(option, KAFKA_OPTIONS) or f"; they have {', '.join(KAFKA_OPTIONS)}"
            message = (
                f"the connection {connection} has {option} in its extra, which rivertwice's clients do not have, so they would connect "
                f"in another way than it says; take it out, or write what means the same{hint}"
            )
            raise ConfigError(message)
        if variable is None:
            continue
        if variables.setdefault(variable, str(value)) != str(value):
            message = (
                f"the connection {connection} gives {option} another value than the option beside it that means the same for rivertwice "
                f"(certificate and key are in one PEM file here); give both the same value"
            )
            raise ConfigError(message)
    if "RIVERTWICE_BOOTSTRAP" not in variables:
        message = (
            f"the connection {connection} has no bootstrap.servers in its extra, so it is not known where Kafka is; write "
            '{"bootstrap.servers": "host:9092"} there'
        )
        raise ConfigError(message)
    return variables


def aws_variables(
    connection: str, conn_type: str | None, login: str | None, password: str | None, extra: Mapping[str, Any]
) -> dict[str, str]:
    """Return the variables that an AWS connection sets. Without a login, boto3's own chain finds one (profile, instance).

    Args:
        connection: its id, for messages.
        login: the access key's id.
        password: the secret access key.
        extra: its extra: `endpoint_url`, `region_name`, `aws_session_token`, `profile_name`.

    Raises:
        ConfigError: it is of another type, half a login, or asks for a role, which only a profile can.
    """
    _require_type(connection, conn_type, AWS_TYPE)
    asked = [name for name in _AWS_REFUSED if extra.get(name)]
    if asked:
        message = (
            f"the connection {connection} has {asked[0]} in its extra, which rivertwice does not follow, so it would ask S3 as somebody "
            'else; name a profile of the worker that takes on the role: {"profile_name": ...}'
        )
        raise ConfigError(message)
    login, password = (
        login or extra.get("aws_access_key_id"),
        password or extra.get("aws_secret_access_key"),
    )
    if bool(login) != bool(password):
        message = f"the connection {connection} has half a login for S3; give it login and password, or neither of them"
        raise ConfigError(message)
    config = extra.get("service_config")
    s3 = config.get("s3", {}) if isinstance(config, dict) else {}
    region = extra.get("region_name")
    values = {
        "AWS_ACCESS_KEY_ID": login,
        "AWS_SECRET_ACCESS_KEY": password,
        "AWS_SESSION_TOKEN": extra.get("aws_session_token"),
        "AWS_PROFILE": extra.get("profile_name"),
        "AWS_ENDPOINT_URL": s3.get("endpoint_url") or extra.get("endpoint_url"),
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
    }
    return {name: str(value) for name, value in values.items() if value}


def _require_type(connection: str, conn_type: str | None, wanted: str) -> None:
    if conn_type != wanted:
        message = f"the connection {connection} is of type {conn_type!r}; make one of type {wanted!r}"
        raise ConfigError(message)


def use_connections(env: MutableMapping[str, str] | None = None) -> Settings:
    """Put what the named connections say into the environment, in place of what was there; return the settings then.

    Args:
        env: the environment; that of this process unless a test gives another.

    Raises:
        ConfigError: a connection does not exist, or cannot be used.
    """
    env = os.environ if env is None else env
    settings = Settings.from_env(env)
    if settings.kafka_connection:
        name = settings.kafka_connection
        found = _find(name, KAFKA_TYPE)
        _replace(env, KAFKA_VARIABLES, kafka_variables(name, found.conn_type, found.extra_dejson))
        env[CONNECTED] = name
    if settings.aws_connection:
        name = settings.aws_connection
        found = _find(name, AWS_TYPE)
        variables = aws_variables(name, found.conn_type, found.login, found.password, found.extra_dejson)
        _replace(env, AWS_VARIABLES, variables)
    return Settings.from_env(env)


def _find(name: str, conn_type: str) -> Any:
    try:
        return BaseHook.get_connection(name)
    except AirflowNotFoundException:
        message = (
            f"Airflow has no connection {name}, so it is not known how to reach {conn_type}; create it: "
            f"`airflow connections add {name} --conn-type {conn_type} ...` (`rivertwice docs howto-airflow`)"
        )
        raise ConfigError(message) from None


def _replace(env: MutableMapping[str, str], names: Sequence[str], variables: dict[str, str]) -> None:
    for name in names:
        env.pop(name, None)
    for name, value in variables.items():
        if name in SECRETS:
            mask_secret(value)
        env[name] = value
