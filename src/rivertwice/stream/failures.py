"""Classify why a driver failed. Pure: from the error alone."""

from __future__ import annotations

import re

from rivertwice.core import (
    CheckpointError,
    DamagedFileError,
    DefinitionError,
    ExecutorLostError,
    FingerprintError,
    LeaseLostError,
    LedgerError,
    LogForkError,
    LogGapError,
    RangeMismatchError,
    RivertwiceError,
    ServiceError,
    UnknownOutcomeError,
)

DRAINED = "drained"
RETENTION = "retention"
FORK = "fork"
LEDGER = "ledger"
UNKNOWN = "unknown"
POISON = "poison"
STORE = "store"

CHECKPOINT = "checkpoint"
# Spark's errors for a checkpoint from which it cannot continue. A state of another layout is one of them: the definition's
# fingerprint was compared before Spark saw the checkpoint, so a layout that does not fit is damage, not a change.
_DAMAGED = (
    "CANNOT_LOAD_STATE_STORE",
    "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED",
    "ChecksumException",
    "Incomplete log file",
    "MALFORMED_LOG_FILE",
    "STATE_STORE_BASE_CHECKPOINT_ID_MISMATCH",
    "STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY",
    "STATE_STORE_KEY_ROW_FORMAT_VALIDATION_FAILURE",
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_ROW_CHECKSUM_VERIFICATION_FAILED",
    "STATE_STORE_VALUE_ROW_FORMAT_VALIDATION_FAILURE",
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
    "STREAMING_CHECKPOINT_MISSING_METADATA_FILE",
    "STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY",
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH",
)

THROWN = ("SQLSTATE: 22", "SQLSTATE: P0001")
"""Marks in Spark's text if a value made an expression throw: data exceptions (ISO 9075, class 22) and `raise_error`."""

_BY_TYPE: tuple[tuple[type[RivertwiceError], str], ...] = (
    (LeaseLostError, "lease_lost"),
    (FingerprintError, "fingerprint"),
    (RangeMismatchError, "range_mismatch"),
    (LogForkError, FORK),
    (LogGapError, RETENTION),
    (CheckpointError, CHECKPOINT),
    (ExecutorLostError, "executor_lost"),
    (LedgerError, LEDGER),
    (DamagedFileError, LEDGER),
    (DefinitionError, "schema"),
    (ServiceError, STORE),
    (UnknownOutcomeError, STORE),
)
_BY_TEXT: tuple[tuple[str, str], ...] = (
    ("FoldError", POISON),
    ("errors.CheckpointError", CHECKPOINT),  # of a worker: its text names the type
    ("OutOfMemoryError", "out_of_memory"),
    ("ExecutorLostFailure", "executor_lost"),
    ("Some data may have been lost", RETENTION),
    ("offset was changed from", RETENTION),
    ("Some data are not available in Kafka any more", RETENTION),
    ("No space left on device", "disk"),
    ("Disk quota exceeded", "disk"),
    ("File too large", "disk"),
    ("CONCURRENT_STREAM_LOG_UPDATE", "lease_lost"),
    *((mark, CHECKPOINT) for mark in _DAMAGED),
    *((mark, POISON) for mark in THROWN),
)


_CONDITION = re.compile(r"\[[A-Z_.]+\][^\n]*")


def condition_of(text: str) -> str:
    """Return Spark's condition in the text of an error, as a sentence; the whole text if it has none."""
    found = _CONDITION.search(text)
    return text if found is None else found[0]


def is_thrown(text: str) -> bool:
    """Say whether Spark's text is the error of an expression that threw on a value."""
    return any(mark in text for mark in THROWN)


ANEW, CARRY_ON, VERSION = "anew", "carry on", "version"
"""What brings a stream on whose SQL throws on several records: begin again, continue from its state, or compute beside it."""


def describe_way(name: str, way: str) -> str:
    """Return what to do about records on which the SQL of a pipeline throws together (`ANEW`, `CARRY_ON` or `VERSION`)."""
    change = (
        "bound the field by a range rule of its source, or compute with a wider type: CAST(field AS DECIMAL(28, 0))"
    )
    if way == ANEW:
        return f"No batch is committed yet, so any change counts: {change}; then `rivertwice start {name}`"
    if way == CARRY_ON:
        return (
            "Reject such records by a rule of their source in pipeline.yaml or leave them out by rows.sql, then run "
            f"`rivertwice upgrade {name} --yes` and start the stream again"
        )
    return (
        f"Its state cannot be carried over such a change: {change}; then `rivertwice upgrade {name} --new-version --yes`, which "
        "computes the log beside it"
    )


def classify_failure(error: BaseException) -> str:
    """Return the class of a failure.

    Returns:
        one of lease_lost, fingerprint, range_mismatch, fork, retention, checkpoint, ledger, poison, out_of_memory, executor_lost, disk, schema, store, or unknown.
    """
    visited: set[int] = set()  # an error may be its own cause
    cause: BaseException | None = error
    while cause is not None and id(cause) not in visited:
        visited.add(id(cause))
        for kind, name in _BY_TYPE:
            if isinstance(cause, kind):
                return name
        cause = cause.__cause__ or cause.__context__
    text = f"{type(error).__name__}: {error}"
    for mark, name in _BY_TEXT:
        if mark in text:
            return name
    return UNKNOWN
