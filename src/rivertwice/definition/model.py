"""The definition of a pipeline: the checked content of `pipelines/NAME/pipeline.yaml` and the files beside it."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from rivertwice.core import PIPELINE, TopicName
from rivertwice.definition.airflow_section import AirflowSettings
from rivertwice.definition.delivery_section import Delivery, FastPath, find_delivery_conflict, find_fast_conflict
from rivertwice.definition.folds import StateType
from rivertwice.definition.parts import Column, Duration, LatePolicy, OutputColumn, Strict, without_null
from rivertwice.definition.source import Source, SqlType
from rivertwice.definition.stream_pins import StreamPins
from rivertwice.definition.windows import Window

Share = Annotated[float, Field(gt=0, lt=1)]

# The limits that a pipeline promises to keep: above them its alerts fire.


class AlertLimits(BaseModel):
    """Limits of a pipeline's alerts. They change no result and no fingerprint."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    backpressure: Duration = Field(
        default=timedelta(minutes=5), description="Every batch has been full to max_offsets_per_trigger for longer."
    )
    checkpoint: Duration = Field(
        default=timedelta(minutes=5), description="A committed batch waits longer for its checkpoint."
    )
    savepoint_age: Duration = Field(default=timedelta(hours=2), description="The newest proved savepoint is older.")
    lag: int | None = Field(default=None, ge=1, description="More records wait; without it no alert.")
    latency: Duration | None = Field(default=None, description="A record waits longer; without it no alert.")
    dead_share: float = Field(default=0.01, ge=0, le=1, description="Share of dead letters among the newest records.")

    dead_age: Duration = Field(
        default=timedelta(days=1), description="A dead letter waits longer to be amended or discarded."
    )
    delivery: Duration = Field(
        default=timedelta(minutes=15), description="Rows wait for a sink that has taken none for longer."
    )

    def number(self, name: str) -> float | None:
        """Return a limit in records, as a share or in seconds; None if it is not set."""
        value = getattr(self, name)
        return value.total_seconds() if isinstance(value, timedelta) else None if value is None else float(value)


class Objectives(Strict):
    """Shares of the time in which the pipeline's own limits hold; only those that are declared are judged. They change no fingerprint."""

    freshness: Share | None = Field(
        default=None, description="No record waits longer than alerts.latency.", json_schema_extra=without_null
    )
    late_share: Share | None = Field(
        default=None,
        description="The newest reconcile found a late share of at most late.alert_share.",
        json_schema_extra=without_null,
    )
    agreement: Share | None = Field(
        default=None,
        description="The newest reconcile found no DEFECT in what is served.",
        json_schema_extra=without_null,
    )
    recovery: Share | None = Field(
        default=None,
        description="A fall-back would take no longer than stream.recovery.",
        json_schema_extra=without_null,
    )


# What a definition says about rows that are served and wrong: who decides on the backfill that cures them. Pure.
#
# It changes no row of the results, so it is in no fingerprint.


class RepairMode:
    """Who decides on proposed repairs."""

    ASK = "ask"
    AUTOMATIC = "automatic"
    OFF = "off"


class RepairBudget(Strict):
    """The largest repair that needs no person."""

    windows: int = Field(default=48, ge=1, le=100_000, description="Windows that are recomputed.")
    records: int = Field(default=1_000_000, ge=1, description="Records that are read for it.")


class RepairPolicy(Strict):
    """What happens when a reconcile finds a DEFECT in what is served, or a late share above late.alert_share."""

    policy: Literal["ask", "automatic", "off"] = Field(
        default="ask",
        description="ask: a person approves the smallest backfill that cures it. automatic: LATE rows within the budget are repaired "
        "without one; a DEFECT is asked for. off: the alert alone.",
    )
    budget: RepairBudget = RepairBudget()


# Conflicts between the sources of one definition. Pure.


def find_sources_conflict(definition: DefinitionFile) -> str | None:
    """Return why a definition may not have that number of sources, or None."""
    if not definition.streams:
        return "every source is a table, so there are no events to compute results from; add a stream"
    if len(definition.sources) > 1 and not definition.window.kind.takes_several_sources:
        return (
            f"sources are {list(definition.sources)}, but windows and sessions take exactly one; keep one, or let the window have intervals "
            "(every, lookback, lookahead, at), which join several, or a fold (fold, at), which follows keys through several"
        )
    return None


def find_topics_conflict(definition: DefinitionFile) -> str | None:
    """Return why the sources' topics conflict, or None: a record's topic identifies its source."""
    topics = definition.topics
    twice = [topic for topic in topics if topics.count(topic) > 1]
    if twice:
        views = [view for view, source in definition.sources.items() if source.topic == twice[0]]
        return (
            f"sources {' and '.join(views)} both read topic {twice[0]!r}; give each source "
            "its own topic, or read the topic by one source"
        )
    for view, source in definition.sources.items():
        others = [topic for topic in topics if topic != source.topic]
        both = [topic for topic in others if TopicName(source.topic).may_share(TopicName(topic))]
        if both:
            return (
                f"source {view} reads {source.topic!r}, which may match topics of {both[0]!r}: a record's topic names its source; "
                "write patterns that begin differently"
            )
    if "watermark_policy" not in definition.model_fields_set:
        return None
    if not definition.window.kind.has_watermark:
        return f"watermark_policy is {definition.watermark_policy!r}, but a fold has no watermark; remove it"
    if len(definition.streams) == 1:
        return (
            f"watermark_policy is {definition.watermark_policy!r}, but there is one stream, whose watermark needs no policy; "
            "remove it"
        )
    return None


def find_history_conflict(definition: DefinitionFile) -> str | None:
    """Return why no source may have a history in a lake, or None: only a first load by batch reads one."""
    views = [view for view, source in definition.sources.items() if source.history is not None]
    why = definition.load_obstacle if views else None
    if why is None:
        return None
    return f"source {views[0]} has a history, which is loaded by batch, and that cannot be done: {why}; remove history"


def find_objective_conflict(definition: DefinitionFile) -> str | None:
    """Return why an objective cannot be judged, or None: its limit is declared elsewhere, and once."""
    asked = definition.slo.model_fields_set
    if "freshness" in asked and definition.alerts.latency is None:
        return "slo.freshness needs its limit: write alerts: {latency: 5 minutes}, or remove slo.freshness"
    if "recovery" in asked and definition.stream.recovery is None:
        return "slo.recovery needs its limit: write stream: {recovery: 15 minutes}, or remove slo.recovery"
    judged = sorted(asked & {"late_share", "agreement"})
    if judged and not definition.compare:
        return f"slo.{judged[0]} is judged by reconciles, but compare is false; remove one of the two"
    return None


def _optional_part(schema: dict[str, Any]) -> None:
    """Publish an optional part without null."""
    schema.update(next(each for each in schema.pop("anyOf") if "$ref" in each))
    schema.pop("default", None)


def _name(value: str) -> str:
    if not PIPELINE.match(value):
        message = (
            f"{value[:80]!r} is not an allowed name; names start with a lower-case letter or digit and hold at "
            "most 64 of a-z, 0-9, _ and -"
        )
        raise ValueError(message)
    return value


Name = Annotated[str, AfterValidator(_name)]


def _runbook(value: str) -> str:
    is_path = bool(re.fullmatch(r"[\w./ -]+", value)) and not value.startswith("/") and ".." not in value.split("/")
    if value and not is_path and not re.fullmatch(r"https?://[^\s<>\"'@]+", value):
        message = f"{value[:80]!r} is neither an address nor a path of the project; write https://... or, for instance, docs/runbook.md"
        raise ValueError(message)
    return value


Runbook = Annotated[str, Field(max_length=500), AfterValidator(_runbook)]


class DefinitionFile(Strict):
    """The fields of `pipeline.yaml`."""

    name: Name
    description: str = Field(min_length=1, max_length=2000)
    runbook: Runbook = Field(
        default="",
        description="Where people read what to do when an alert fires: an address, or a path of the project; alerts and the page show it.",
    )
    sources: dict[Column, Source] = Field(min_length=1, description="View name (as the SQL uses it) to source.")
    window: Window
    keys: list[Column] = Field(default_factory=list, description="Result columns that identify a row in its window.")
    columns: dict[Column, OutputColumn] = Field(min_length=1, description="The other result columns, in order.")
    by: list[Column] | dict[Column, dict[Column, Column]] = Field(
        default_factory=list,
        description="For folds: fields whose values share a state, with the same name in every source; or key to view to field, "
        "if a source uses another name.",
    )
    state: dict[Column, StateType] = Field(
        default_factory=dict, description="For folds: field of the state to its type."
    )
    types: dict[Column, SqlType] = Field(default_factory=dict, description="For folds: key or column to its type.")
    order: Literal["read", "any"] = Field(
        default="read",
        description="For folds: any: the newest row of a key does not depend on the order in which sources and partitions were "
        "read (tables as one view); a reconcile checks it.",
    )
    deleted: Column | None = Field(
        default=None,
        description="For folds: the boolean column that marks a key as deleted, so that a view leaves it out.",
        json_schema_extra=without_null,
    )
    count_column: Column | None = Field(
        default=None,
        description="The column that counts the input rows of a result row; required for all kinds except intervals and folds.",
        json_schema_extra=without_null,
    )
    watermark_policy: Literal["min", "max"] = Field(
        default="min",
        description="For several sources: min: the slowest holds the watermark back, an idle one for ever; max: the fastest moves it.",
    )
    emit: Literal["final", "updates"] = Field(
        default="final",
        description="final: a window's rows are emitted once, when it closes. updates: with every batch that changes them.",
    )
    on_error: Literal["quarantine", "stop"] = Field(
        default="quarantine",
        description="What a record on which the SQL throws does: quarantine: it is a dead letter (reason transform); stop: the stream stops.",
    )
    late: LatePolicy = LatePolicy()
    stream: StreamPins = StreamPins()
    alerts: AlertLimits = AlertLimits()
    slo: Objectives = Objectives()
    deliver: dict[Name, Delivery] = Field(
        default_factory=dict,
        description="Where results go beyond the tables, by name (`rivertwice docs howto-delivery`).",
    )
    fast: FastPath | None = Field(
        default=None,
        description="Where the rows of fast.sql go, record by record (`rivertwice docs howto-delivery`).",
        json_schema_extra=_optional_part,
    )
    repair: RepairPolicy = RepairPolicy()
    airflow: AirflowSettings = Field(
        default=AirflowSettings(),
        description="Schedules and resources of the pipeline's DAGs (`rivertwice docs howto-airflow`).",
    )
    compare: bool = Field(default=True, description="false: results are not reconciled; lifts the symmetry refusals.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        conflict = find_sources_conflict(self) or find_topics_conflict(self)
        if conflict:
            raise ValueError(conflict)
        kind = self.window.kind
        conflict = (
            kind.find_key_conflict(self)
            or find_delivery_conflict(self.deliver, self.topics, folds=kind.has_newest_rows)
            or kind.find_late_conflict(self.late)
            or (kind.find_updates_conflict(self.window) if self.has_updates else None)
        )
        if conflict:
            raise ValueError(conflict)
        names = self.result_columns
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            message = f"result column {twice[0]!r} is given twice among window, keys and columns; rename one"
            raise ValueError(message)
        wrong = (
            find_fast_conflict(self)
            or kind.find_conflict(self)
            or find_history_conflict(self)
            or find_objective_conflict(self)
        )
        if wrong:
            raise ValueError(wrong)
        return self

    @property
    def source(self) -> tuple[str, Source]:
        """View name and source, for kinds with exactly one source: windows, sessions and their transform."""
        return next(iter(self.sources.items()))

    @property
    def has_several_sources(self) -> bool:
        """Whether records must be distinguished by their topic."""
        return len(self.sources) > 1

    def by_fields(self, view: str) -> dict[str, str]:
        """Return column of a fold's key to the field of a source that holds it."""
        named = self.by if isinstance(self.by, dict) else {}
        return {column: named.get(column, {}).get(view, column) for column in self.by}

    @property
    def streams(self) -> dict[str, Source]:
        """View name to source, for the sources whose records belong to windows."""
        return {view: source for view, source in self.sources.items() if not source.is_table}

    @property
    def tables(self) -> dict[str, Source]:
        """View name to source, for the sources whose records are versions of rows."""
        return {view: source for view, source in self.sources.items() if source.is_table}

    @property
    def topics(self) -> list[str]:
        """The topics of all sources, in the definition's order."""
        return [source.topic for source in self.sources.values()]

    @property
    def by_topic(self) -> dict[str, tuple[str, Source]]:
        """Topic to view name and source."""
        return {source.topic: (view, source) for view, source in self.sources.items()}

    @property
    def has_lone_windows(self) -> bool:
        """Whether a window can be computed again alone, so that a backfill can publish it; not those of a fold."""
        return self.window.kind.has_lone_windows

    @property
    def has_updates(self) -> bool:
        """Whether a window's rows are emitted with every batch that changes them; the newest version of each row counts."""
        return self.emit == "updates"

    @property
    def load_obstacle(self) -> str | None:
        """Why the past cannot be loaded by batch, or None."""
        kind = self.window.kind
        if not kind.is_aligned or not kind.has_watermark:
            return f"its windows are {self.window.text}, and where the records of one end is known only once all before it were read"
        if self.has_several_sources:
            return f"it has several sources ({', '.join(self.topics)}), and a window may need records of any time of a table or of a slow topic"
        if self.has_updates:
            return (
                "it has emit: updates, so a stream that begins in between would emit windows of which it reads a part"
            )
        return None

    @property
    def has_windows_of_their_own(self) -> bool:
        """Whether a window can be computed again alone; each row of a fold depends on all records of its key before it."""
        kind = self.window.kind
        return not kind.has_newest_rows

    @property
    def output_mode(self) -> Literal["append", "update"]:
        """Spark's output mode."""
        return "update" if self.has_updates else "append"

    @property
    def row_keys(self) -> list[str]:
        """The result columns that identify a row in its window: the keys, and for a fold the place of its event."""
        return self.window.kind.row_keys(self)

    @property
    def session_keys(self) -> list[str] | None:
        """The key columns if windows are sessions, which are identified by key and time range; else None."""
        return self.window.kind.session_keys(self)

    @property
    def row_types(self) -> dict[str, str]:
        """Key or column of a fold to its type."""
        view, source = self.source
        given = {name: source.schema_.get(field, "") for name, field in self.by_fields(view).items()}
        return {name: self.types.get(name, given.get(name, "")) for name in (*self.keys, *self.columns)}

    @property
    def result_columns(self) -> list[str]:
        """Window columns, keys and the other columns, in the result's order."""
        return [self.window.start_column, self.window.end_column, *self.row_keys, *self.columns]


class Definition(DefinitionFile):
    """A definition with its SQL or its fold: complete, immutable, independent of the folder that it was read from."""

    transform_sql: str = ""
    rows_sql: str | None = None
    fold_py: str | None = None
    fast_sql: str | None = None
