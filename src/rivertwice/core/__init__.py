"""Settings, places, errors, time, locks, processes, retries: what every package needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rivertwice.core.errors import (
        AuditError,
        CheckpointError,
        ConfigError,
        DamagedFileError,
        DefinitionError,
        ExecutorLostError,
        FingerprintError,
        FoldError,
        LeaseLostError,
        LedgerError,
        LogForkError,
        LogGapError,
        LostRaceError,
        NothingStaleError,
        RangeMismatchError,
        ReplayMismatchError,
        RequestError,
        RivertwiceError,
        SavepointError,
        ServiceError,
        SuiteError,
        TableDamageError,
        UnknownOutcomeError,
    )
    from rivertwice.core.extras import absence_of, naming_extras
    from rivertwice.core.homes import (
        NAME,
        PIPELINE,
        PipelineHome,
        Place,
        Tables,
        TopicName,
        below,
        is_remote,
        require_name,
        require_pipeline,
        require_topic,
    )
    from rivertwice.core.installed import MARK, base_of, find_shipped, split_version, version_name
    from rivertwice.core.instants import (
        EPOCH,
        TimeRange,
        from_ms,
        iso_of_ms,
        parse_instant,
        parse_iso,
        to_iso,
        to_ms,
        utc_now,
    )
    from rivertwice.core.kafka_security import MSK_IAM, OAUTH, KafkaSecurity
    from rivertwice.core.locks import holder, is_locked, lock, lock_if_free, lock_or_refuse, open_locked
    from rivertwice.core.one_command import is_one_command, say_one_command, say_verbose, shows_stacks
    from rivertwice.core.plain import Row, to_plain
    from rivertwice.core.ports import held_ports
    from rivertwice.core.processes import (
        NEVER_SEEN,
        Started,
        boot_id,
        end_sessions,
        is_alive,
        is_running,
        may_live,
        own_start,
        run_process,
        same_start,
        session_members,
        start_detached,
        started_of,
        stop_on_signals,
    )
    from rivertwice.core.settings import CONNECTED, FROZEN, VERDICTS_KEPT, Settings
    from rivertwice.core.spark_versions import SparkVersion
    from rivertwice.core.text import (
        PrintableFormatter,
        counted,
        did_you_mean,
        log_to_stdout,
        meant,
        nearest,
        printable,
        printable_json,
        printable_line,
    )
    from rivertwice.core.tracing import flush, record_span, traced
    from rivertwice.core.waits import Attempts, Deadline, Measured, Progress, beside, report_nothing, retry, retry_for
    from rivertwice.core.web import (
        ANSWER_S,
        AnswerError,
        hide_addresses,
        is_web_address,
        read_answer,
        send,
        web_client,
        within,
    )
    from rivertwice.core.yaml_text import UnreadableYamlError, compose_yaml, read_yaml
else:
    from rivertwice.core.face import lazy_names

    __getattr__ = lazy_names(__name__)
