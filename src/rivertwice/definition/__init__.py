"""What a pipeline says: its YAML, SQL and schemas, fingerprint, bundle, lint. It needs no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rivertwice.definition.airflow_section import NO_SCHEDULE, AirflowSettings, is_cron
    from rivertwice.definition.avro import PREFIX, AvroSchema, parse_avro, prefixed
    from rivertwice.definition.bundle import (
        Bundle,
        build_bundle,
        build_project_bundle,
        load_bundle,
        load_bundle_definition,
    )
    from rivertwice.definition.definition import (
        load_all,
        load_definition,
        load_draft,
        load_each,
        parse_files,
        read_files,
    )
    from rivertwice.definition.delivery_section import (
        POSITIONS,
        Delivery,
        IcebergDelivery,
        KafkaDelivery,
        PostgresDelivery,
        RowsMode,
        Variable,
    )
    from rivertwice.definition.fingerprint import ChangedComponent, fingerprint_of
    from rivertwice.definition.folds import PARTITION_SHIFT, Emitted, FoldRun, FoldSource, FoldSpec
    from rivertwice.definition.json_schema_file import schema_of_definitions
    from rivertwice.definition.kinds import Kind
    from rivertwice.definition.kinds.intervals import Intervals
    from rivertwice.definition.kinds.sessions import Sessions
    from rivertwice.definition.kinds.sql import GroupedKind
    from rivertwice.definition.kinds.stateful import FOREVER_MS, Stateful
    from rivertwice.definition.kinds.tumbling_hopping import TumblingHopping
    from rivertwice.definition.lint import contract_of, lint_definition, lint_judgement
    from rivertwice.definition.lint_finding import CheckReport, Judgement, LintFinding, LintLevel, TopicFacts, worst
    from rivertwice.definition.model import AlertLimits, Definition, DefinitionFile, RepairMode, RepairPolicy
    from rivertwice.definition.parts import (
        MICROS,
        RECORD,
        ROW,
        SOURCE,
        TIMESTAMP,
        VALID_FROM,
        VALID_TO,
        DefinitionFiles,
        Duration,
        LatePolicy,
        Strict,
        epoch_bounds,
        format_duration,
        parse_duration,
        round_up,
        same_value,
    )
    from rivertwice.definition.patterns import JAVA_ENGINE, PatternError, match_whole, matcher_of
    from rivertwice.definition.pinned_files import MAX_BYTES, file_name, proto_file_name, read_pinned, split_name
    from rivertwice.definition.protobuf import plan_pin
    from rivertwice.definition.protobuf_read import DETAIL, REASON, ProtoReader, encode_proto, indexes_of
    from rivertwice.definition.protobuf_swap import ProtoRecords
    from rivertwice.definition.refusals import FunctionRefusal, Refusals, check_sql, normalise
    from rivertwice.definition.schema_pins import field_types
    from rivertwice.definition.schema_refresh import RefreshPlan, plan_refresh
    from rivertwice.definition.schema_registry import (
        URL_ENV,
        SchemaFormat,
        SchemaVersion,
        check_new,
        decode_avro,
        open_registry,
    )
    from rivertwice.definition.schema_swap import AvroRecords, Records, Swap
    from rivertwice.definition.source import (
        DELETED,
        MOST_DIGITS,
        MOST_EXACT,
        MOST_PARTS,
        OP,
        PART,
        TS_MS,
        InSet,
        NotNull,
        Pattern,
        Range,
        RecordRule,
        Source,
        decimal_digits,
        value_at,
    )
    from rivertwice.definition.topics import create_topics
    from rivertwice.definition.upgrade import (
        UpgradeDecision,
        UpgradeKind,
        Way,
        WayKind,
        decide_upgrade,
        decide_way,
        find_no_counterpart,
    )
    from rivertwice.definition.windows import Window
    from rivertwice.definition.yaml_places import describe, describe_yaml_error
else:
    from rivertwice.core.face import lazy_names

    __getattr__ = lazy_names(__name__)
