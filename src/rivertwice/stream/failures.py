"""Classify why a driver failed. Pure: from the error alone."""

from __future__ import annotations

from rivertwice.errors import (
    FingerprintError,
    LeaseLostError,
    LogGapError,
    RangeMismatchError,
    RivertwiceError,
)

DRAINED = "drained"
UNKNOWN = "unknown"

_BY_TYPE: tuple[tuple[type[RivertwiceError], str], ...] = (
    (LeaseLostError, "lease_lost"),
    (FingerprintError, "fingerprint"),
    (RangeMismatchError, "range_mismatch"),
    (LogGapError, "retention"),
)
_BY_TEXT: tuple[tuple[str, str], ...] = (
    ("OutOfMemoryError", "out_of_memory"),
    ("Some data may have been lost", "retention"),
    ("offset was changed from", "retention"),
    ("Some data are not available in Kafka any more", "retention"),
    ("No space left on device", "disk"),
    ("STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE", "schema"),
    ("STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE", "schema"),
    ("STREAMING_STATEFUL_OPERATOR_NOT_MATCH", "schema"),
    ("CONCURRENT_STREAM_LOG_UPDATE", "lease_lost"),
    ("CANNOT_LOAD_STATE_STORE", "store"),
    ("Incomplete log file", "store"),
    ("STREAMING_CHECKPOINT_MISSING_METADATA_FILE", "store"),
)


def classify_failure(error: BaseException) -> str:
    """Return the class of a failure.

    Returns:
        one of lease_lost, fingerprint, range_mismatch, retention, out_of_memory, disk, schema, store, or unknown.
    """
    seen: BaseException | None = error
    while seen is not None:
        for kind, name in _BY_TYPE:
            if isinstance(seen, kind):
                return name
        seen = seen.__cause__ or seen.__context__
    text = f"{type(error).__name__}: {error}"
    for mark, name in _BY_TEXT:
        if mark in text:
            return name
    return UNKNOWN
