"""What a definition may contain under `deliver`: where results go beyond the tables, and what is promised there. Pure.

A sink declares what it can promise. A stronger claim is refused when the definition is read, with the reason and with the
strongest possible promise. These settings change no result, so they are in no fingerprint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from rivertwice.core import NAME, TopicName
from rivertwice.definition.parts import Column, Duration, Strict, Topic

if TYPE_CHECKING:
    from rivertwice.definition.model import DefinitionFile

EXACTLY, EFFECTIVELY, AT_LEAST = "exactly_once", "effectively_once", "at_least_once"
STRENGTH = {AT_LEAST: 0, EFFECTIVELY: 1, EXACTLY: 2}


class RowsMode:
    """Which rows of a key a sink gets."""

    ALL = "all"
    NEWEST = "newest"


Guarantee = Literal["exactly_once", "effectively_once", "at_least_once"]

_VARIABLE = re.compile(r"^[A-Z][A-Z0-9_]{0,63}\Z")
_ICEBERG = re.compile(r"^[a-z][a-z0-9_]{0,62}(\.[a-z][a-z0-9_]{0,62}){1,4}\Z")
_TABLE = re.compile(r"^([a-z][a-z0-9_]{0,62}\.)?[a-z][a-z0-9_]{0,62}\Z")


def _variable(value: str) -> str:
    if not _VARIABLE.match(value):
        message = (
            "this names no environment variable (A-Z, 0-9 and _): addresses and secrets do not belong in a definition; put "
            "the value into the environment, and the variable's name here"
        )
        raise ValueError(message)
    return value


POSITIONS = "rivertwice_positions"
"""The table, in the schema of each table that is delivered to, with the positions of deliveries."""


def _table(value: str) -> str:
    if not _TABLE.match(value):
        message = (
            f"{value[:80]!r} cannot name a table; write table or schema.table, each of a-z, 0-9 and _, a letter first"
        )
        raise ValueError(message)
    return value


def iceberg_table(value: str) -> str:
    """Return the name of an Iceberg table, unchanged.

    Raises:
        ValueError: it is not one.
    """
    if not _ICEBERG.match(value):
        message = f"{value[:80]!r} cannot name an Iceberg table; write namespace.table, each of a-z, 0-9 and _, a letter first"
        raise ValueError(message)
    return value


Variable = Annotated[str, AfterValidator(_variable)]
TableName = Annotated[str, AfterValidator(_table)]
IcebergTable = Annotated[str, AfterValidator(iceberg_table)]


class _Sink(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    guarantee: Guarantee = Field(description="What consumers may rely on; refused if the sink cannot keep it.")
    rows: Literal["all", "newest"] = Field(
        default="all",
        description="For folds. newest: only the newest row of each key; it is replaced when the key changes, and removed when the key is deleted.",
    )

    @property
    def promise(self) -> tuple[str, str]:
        """The strongest guarantee this sink can keep, and why no stronger one."""
        raise NotImplementedError

    @property
    def registered(self) -> str | None:
        """The table of ours whose files the sink names instead of rows of its own; None for a sink that takes rows."""
        return None

    @property
    def place(self) -> str:
        """The target, as shown to people; never an address or a secret."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _can_be_kept(self) -> Self:
        most, why = self.promise
        if STRENGTH[self.guarantee] > STRENGTH[most]:
            message = f"guarantee {self.guarantee} cannot be kept here: {why}; what can be promised is {most}"
            raise ValueError(message)
        return self


class KafkaDelivery(_Sink):
    """A topic of the pipeline's own cluster."""

    to: Literal["kafka"]
    topic: Topic
    partitions: int = Field(default=4, ge=1, le=1000, description="Partitions the topic is created with.")
    transactions: bool = Field(default=True, description="false: if the cluster allows no transactions.")

    @property
    def promise(self) -> tuple[str, str]:
        """Exactly once with transactions that hold records and position; else at least once."""
        if self.transactions:
            return EXACTLY, "records and position are one transaction, and each transaction has its own producer epoch"
        return AT_LEAST, "without transactions a crash between records and position delivers the records again"

    @property
    def place(self) -> str:
        """The topic."""
        return f"kafka topic {self.topic}"


class PostgresDelivery(_Sink):
    """A table of a PostgreSQL database, keyed by window and keys."""

    to: Literal["postgres"]
    table: TableName
    dsn_env: Variable = Field(default="RIVERTWICE_POSTGRES", description="Variable with the connection string.")
    write: Literal["upsert", "insert"] = Field(
        default="upsert", description="Only upsert is built.", json_schema_extra={"enum": ["upsert"]}
    )

    @property
    def promise(self) -> tuple[str, str]:
        """Effectively once: rows are replaced by key, the position changes in the same transaction."""
        return (
            EFFECTIVELY,
            "rows are replaced by key when a correction comes, so readers and triggers may see a row change",
        )

    @property
    def place(self) -> str:
        """The table."""
        return f"postgres table {self.table}"

    @model_validator(mode="after")
    def _keyed(self) -> Self:
        if self.write == "insert":
            message = (
                "a plain insert has no key: what is delivered again is there twice, and a correction cannot replace what it "
                "corrects; write: upsert promises effectively_once"
            )
            raise ValueError(message)
        return self


class IcebergDelivery(_Sink):
    """A table of an Iceberg catalog: with the rows that are served, keyed by window and keys, or with the files of one of our tables."""

    to: Literal["iceberg"]
    table: IcebergTable
    files: Literal["own", "served", "changelog"] = Field(
        default="own",
        description="own: rows are written once more, into files of this table. served, changelog: the catalog names the files of that Delta table, without a copy.",
    )
    catalog: str = Field(
        default="default",
        pattern=NAME.pattern.replace(r"\Z", "$"),
        description="Catalog of pyiceberg's configuration: ~/.pyiceberg.yaml, or PYICEBERG_CATALOG__NAME__URI and so on.",
    )
    every_s: int = Field(
        default=60, ge=1, le=3600, description="Seconds between two commits at least, while batches come."
    )

    @property
    def promise(self) -> tuple[str, str]:
        """Effectively once: rows are replaced by key, the position is in the same commit."""
        return EFFECTIVELY, "rows are replaced by key when a correction comes, so readers may see a row change"

    @property
    def place(self) -> str:
        """The table."""
        return f"iceberg table {self.catalog}.{self.table}"

    @property
    def registered(self) -> str | None:
        """The table of ours whose files the catalog names, `served` or `changelog`; None: the sink's table has its own files."""
        return None if self.files == "own" else self.files

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.registered and self.rows == RowsMode.NEWEST:
            message = (
                f"files: {self.files} names the files of {self.files} as they are, with all rows of a key; rows: newest needs "
                "files of its own: remove files, or rows"
            )
            raise ValueError(message)
        return self


def _refuse_requests(value: Any) -> Any:
    """Refuse what is sent once and for all, with the way there."""
    to = value.get("to") if isinstance(value, Mapping) else None
    if to in ("webhook", "email"):
        message = (
            f"rivertwice has no sink `to: {to}`, because what was sent cannot be taken back; deliver to a topic (`to: kafka`) and let a "
            "connector send its records (for a webhook: an HTTP sink of Kafka Connect)"
        )
        raise ValueError(message)
    return value


Delivery = Annotated[
    KafkaDelivery | PostgresDelivery | IcebergDelivery, Field(discriminator="to"), BeforeValidator(_refuse_requests)
]


def without_webhooks(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a definition that 0.1 stored without its webhooks, which were a sink then: nothing is delivered to them."""
    sinks = definition.get("deliver")
    if not isinstance(sinks, Mapping):
        return definition
    kept = {name: sink for name, sink in sinks.items() if not isinstance(sink, Mapping) or sink.get("to") != "webhook"}
    return {**definition, "deliver": kept}


def find_delivery_conflict(sinks: Mapping[str, Any], topics: Sequence[str], *, folds: bool) -> str | None:
    """Return the conflict among all sinks together, with the remedy; None if there is none.

    Args:
        folds: whether the pipeline is a fold.
    """
    places: dict[str, str] = {}
    for name, sink in sinks.items():
        if not NAME.match(name):
            return f"deliver: {name[:80]!r} is not an allowed name; use at most 64 of a-z, 0-9, _ and -"
        if sink.rows == RowsMode.NEWEST and not folds:
            return (
                f"deliver.{name} has rows: newest, which is for folds: a fold emits every change of a key, and the newest row is what it "
                "is now; a window has one row for each key anyway; remove rows"
            )
        if isinstance(sink, KafkaDelivery) and any(TopicName(topic).reads(sink.topic) for topic in topics):
            return f"deliver.{name} writes to {sink.topic}, which the pipeline reads: it would feed itself; name another topic"
        first_name = places.setdefault(sink.place, name)
        if first_name != name:
            return f"deliver.{first_name} and deliver.{name} write to the same place, {sink.place}; keep one"
    return None


# What a definition may contain under `fast`: rows of single records that go to a topic within milliseconds. Pure.
#
# `fast.sql` reads one record at a time, so it needs no window and no state. It runs in a separate process, beside the stream. It does
# not change the stream's results, so it is in no fingerprint of the stream.

SHORTEST = timedelta(seconds=5)
"""Spark's shortest interval of real-time mode (`spark.sql.streaming.realTimeMode.minBatchDuration`)."""


class FastPath(Strict):
    """Where the rows of `fast.sql` go."""

    topic: Topic = Field(description="Topic of the rows, as JSON; created if absent.")
    partitions: int = Field(default=4, ge=1, le=1000, description="Partitions the topic is created with.")
    key: Column = Field(description="The column of fast.sql whose text is the record's key.")
    interval: Duration = Field(
        default=SHORTEST,
        description="How often the position is stored: after a crash, what was sent since is sent again, under the same `record`.",
    )

    @model_validator(mode="after")
    def _long_enough(self) -> Self:
        if self.interval < SHORTEST:
            message = f"interval is {self.interval.total_seconds():g} s, and Spark's real-time mode has none below 5 s; rows do not wait for it"
            raise ValueError(message)
        return self


def find_fast_conflict(definition: DefinitionFile) -> str | None:
    """Return which part of the definition conflicts with `fast`, or None."""
    if definition.fast is None:
        return None
    if len(definition.sources) != 1:
        return f"fast reads the one source of a pipeline, but there are {list(definition.sources)}; use a separate pipeline for it"
    _, source = definition.source
    if source.tombstones == "delete" or source.envelope != "none":
        return (
            "fast takes plain records, but the source's are change events or may delete; use a separate pipeline for it"
        )
    if source.format == "protobuf":
        return (
            "fast runs without Python, which decodes Protobuf here; write the topic in Avro or JSON, or leave fast out"
        )
    if TopicName(source.topic).is_pattern:
        return f"fast reads one topic, but {source.topic!r} is a pattern of topics; use a separate pipeline for each, or leave fast out"
    if definition.fast.topic in definition.topics:
        return f"fast.topic is {definition.fast.topic!r}, which the pipeline reads; its rows would come back as records: name another"
    return None
