"""Gives a task's process, and so the job that it starts, the settings that connections of Airflow hold.

They become variables of this process's environment, which a job inherits: no argument, no template and no XCom has them. A task's
process ends with the task. The agent, the page and the triggerer read no connection: they have environments of their own.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from rivertwice.config import Settings
from rivertwice.config.project_file import CONNECTED
from rivertwice.errors import ConfigError
from rivertwice.orchestration.connection_variables import (
    AWS_TYPE,
    AWS_VARIABLES,
    KAFKA_TYPE,
    KAFKA_VARIABLES,
    SECRETS,
    aws_variables,
    kafka_variables,
)
from rivertwice.orchestration.refusals import refusals


def connected(work: Callable[..., Any]) -> Callable[..., Any]:
    """Return a task's work that begins with what its connections say."""

    @functools.wraps(work)
    def connect_and_work(*args: Any, **kwargs: Any) -> Any:
        with refusals():
            use_connections()
        return work(*args, **kwargs)

    return connect_and_work


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
            f"`airflow connections add {name} --conn-type {conn_type} ...` (docs/howto-airflow-own.md)"
        )
        raise ConfigError(message) from None


def _replace(env: MutableMapping[str, str], names: Sequence[str], variables: dict[str, str]) -> None:
    for name in names:
        env.pop(name, None)
    for name, value in variables.items():
        if name in SECRETS:
            mask_secret(value)
        env[name] = value
