"""What a definition may contain under `airflow`: when its DAGs run, and with which resources. Pure.

Nothing of it changes a row of the results, so no fingerprint contains it: a pipeline with another schedule is the same pipeline.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, Field, ValidationError, WithJsonSchema, field_validator, model_validator

from rivertwice.core import ConfigError
from rivertwice.definition.parts import Duration, Strict, parse_duration, without_null

NO_SCHEDULE = "none"
PRESETS = ("@hourly", "@daily", "@weekly", "@monthly")
SHORTEST = timedelta(minutes=1)
_FIELDS = 5
_MEMORY = r"^[1-9][0-9]{0,6}[kmgt]$"
_WORD = r"^[A-Za-z0-9_.-]{1,200}$"
_SECRET = re.compile(r"password|passwd|secret|token|credential|access\.?key|jaas", re.IGNORECASE)
_OURS = (
    "spark.master",
    "spark.submit.",
    "spark.jars",
    "spark.app.name",
    "spark.driver.extraJavaOptions",
    "spark.driver.extraClassPath",
    "spark.executor.extraJavaOptions",
    "spark.sql.",
    "spark.hadoop.fs.",
)
"""Settings, or how their names begin, that the jobs need as they are: another value gives other rows, or no job at all."""
_FIELD_OF = {
    "spark.driver.memory": "driver_memory",
    "spark.executor.memory": "executor_memory",
    "spark.executor.cores": "executor_cores",
    "spark.executor.instances": "num_executors",
    "spark.cores.max": "total_executor_cores",
}


def _schedule(value: str) -> str:
    """Check a schedule: `none`, a cron expression in UTC, or a duration."""
    if value == NO_SCHEDULE or value in PRESETS:
        return value
    if len(value.split()) == _FIELDS:
        _check_cron(value)
        return value
    try:
        every = parse_duration(value)
    except ValueError:
        message = (
            f"{value[:80]!r} is not a valid schedule; write five fields of cron ('5 * * * *', in UTC), a duration ('15 minutes'), one of "
            f"{', '.join(PRESETS)}, or {NO_SCHEDULE}"
        )
        raise ValueError(message) from None
    if every < SHORTEST:
        message = f"{value[:80]!r} is shorter than a run takes; the shortest is 1 minute"
        raise ValueError(message)
    return value


def is_cron(text: str) -> bool:
    """Say whether a schedule is a cron expression; a duration is a number and a unit. Pure."""
    return text in PRESETS or len(text.split()) > 2


def _check_cron(value: str) -> None:
    """Refuse an expression that Airflow's scheduler would refuse, by the library that it asks."""
    from croniter import CroniterError, croniter

    try:
        croniter(value).get_next()
    except (CroniterError, ValueError, KeyError) as error:
        message = f"{value[:80]!r} is not a valid cron expression, or never occurs ({error}); write minute, hour, day, month, weekday: '5 * * * *'"
        raise ValueError(message) from None


Schedule = Annotated[
    str,
    AfterValidator(_schedule),
    WithJsonSchema({"type": "string", "examples": ["5 * * * *", "15 minutes", "@daily", NO_SCHEDULE]}),
]


class Schedules(Strict):
    """When each work of the pipeline's DAGs starts by itself: cron in UTC, a duration, or none."""

    archive: Schedule = Field(default="35 * * * *", description="care__P: the archive takes what is new in the log.")
    backfill: Schedule = Field(
        default="45 2 * * *", description="backfill__P: stale windows are recomputed and published."
    )
    correct: Schedule = Field(
        default="*/10 * * * *",
        description="With late.policy correct: backfill__P takes the windows of the late queue that are due.",
    )
    reconcile: Schedule = Field(default="5 * * * *", description="reconcile__P: stream, served and truth are compared.")
    reconcile_full: Schedule = Field(
        default="25 3 * * 0", description="The next run of reconcile__P compares everything from the first batch on."
    )
    rotate: Schedule = Field(default="*/15 * * * *", description="care__P: a savepoint is taken and proved.")


class SparkResources(Strict):
    """How the pipeline's Spark jobs are submitted: those of its DAGs, not its stream, which the agent runs."""

    conn_id: str = Field(default="spark_default", pattern=_WORD, description="Airflow's connection to Spark.")
    driver_memory: str = Field(default="2g", pattern=_MEMORY, description="Heap of a job's driver: 512m, 4g.")
    executor_memory: str | None = Field(
        default=None, pattern=_MEMORY, description="Heap of an executor.", json_schema_extra=without_null
    )
    executor_cores: int | None = Field(
        default=None, ge=1, le=1000, description="Cores of an executor.", json_schema_extra=without_null
    )
    num_executors: int | None = Field(
        default=None, ge=1, le=10_000, description="Executors, on YARN and Kubernetes.", json_schema_extra=without_null
    )
    total_executor_cores: int | None = Field(
        default=None, ge=1, le=100_000, description="Cores of a standalone cluster.", json_schema_extra=without_null
    )
    conf: dict[str, str] = Field(default_factory=dict, description="Other settings of Spark, as texts.")

    @field_validator("conf")
    @classmethod
    def _allowed(cls, conf: dict[str, str]) -> dict[str, str]:
        for name in conf:
            if not name.startswith("spark."):
                message = f"{name!r} is not a Spark setting; their names begin with 'spark.'"
            elif name in _FIELD_OF:
                message = f"{name!r} has its own field; write {_FIELD_OF[name]}"
            elif _SECRET.search(name):
                message = f"{name!r} is a secret, which the job's command line and log would show; give it by a connection (`rivertwice docs howto-airflow`)"
            elif name.startswith(_OURS):
                message = f"{name!r} is set by the jobs themselves, because their results depend on it; remove it"
            else:
                continue
            raise ValueError(message)
        return conf

    @property
    def is_usual(self) -> bool:
        """Whether nothing is asked for that a session with the usual settings lacks."""
        return self.confs == SparkResources().confs

    @property
    def confs(self) -> dict[str, str]:
        """Return the settings of Spark that this says."""
        named = {setting: getattr(self, field) for setting, field in _FIELD_OF.items()}
        return {**self.conf, **{setting: str(value) for setting, value in named.items() if value is not None}}


DagVerb = Literal["care", "reconcile", "backfill", "operate", "stream"]
DAG_VERBS: tuple[DagVerb, ...] = get_args(DagVerb)


class AirflowSettings(Strict):
    """Which DAGs the pipeline has, and how they run."""

    dags: list[DagVerb] = Field(
        default=list(DAG_VERBS),
        min_length=1,
        description="The DAGs of the pipeline and its versions; what the others do is left to the command line.",
    )
    paused: bool | None = Field(
        default=None,
        description="Whether a new DAG begins paused; without it Airflow's own setting counts.",
        json_schema_extra=without_null,
    )
    schedules: Schedules = Schedules()
    retries: int = Field(default=2, ge=0, le=100, description="Tries after the first one that failed.")
    retry_delay: Duration = Field(default=timedelta(seconds=5), description="Time before another try.")
    pool: str = Field(default="spark_batch", pattern=_WORD, description="Pool of the tasks that submit Spark jobs.")
    queue: str | None = Field(
        default=None,
        pattern=_WORD,
        description="Queue of all tasks, for executors that have several.",
        json_schema_extra=without_null,
    )
    owner: str = Field(default="rivertwice", min_length=1, max_length=100, description="Owner that Airflow shows.")
    tags: list[str] = Field(default_factory=list, max_length=20, description="Tags beside rivertwice's own.")
    spark: SparkResources = SparkResources()

    def over(self, defaults: Mapping[str, Any], where: str) -> AirflowSettings:
        """Return these settings, and those of a project for what they do not say, at any depth. Pure.

        Args:
            where: the defaults stand, for messages.

        Raises:
            ConfigError: the defaults are not valid.
        """
        try:
            AirflowSettings.model_validate(defaults)
            return AirflowSettings.model_validate(_merged(defaults, self.model_dump(exclude_unset=True)))
        except ValidationError as error:
            first = error.errors()[0]
            path = ".".join(str(part) for part in ("airflow", *first["loc"]))
            message = f"{where}: {path}: {first['msg'].removeprefix('Value error, ')}"
            raise ConfigError(message) from None

    @model_validator(mode="after")
    def _short_tags(self) -> Self:
        for tag in self.tags:
            if not 0 < len(tag) <= 100:  # Airflow's own limit: a longer one would take the DAG file down
                message = f"the tag {tag[:20]!r} has {len(tag)} characters; Airflow takes 1 to 100"
                raise ValueError(message)
        return self


def _merged(defaults: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**defaults, **own}
    for name, value in own.items():
        if isinstance(value, dict) and isinstance(defaults.get(name), dict):
            merged[name] = _merged(defaults[name], value)
    return merged
