"""The error tree. Every message gives the fact, the value, the consequence and the remedy.

RivertwiceError
├── DefinitionError          a pipeline definition cannot be accepted
├── FoldError                a fold failed on an event
├── ConfigError              settings, paths or ids are missing or not allowed
├── RequestError             a form, a command or a plan request is refused before anything starts
│   └── NothingStaleError    a backfill finds no window that it would have to repair
├── FingerprintError         a checkpoint, savepoint or timeline belongs to another definition
├── LedgerError              the ledger contradicts itself or the checkpoint
│   ├── RangeMismatchError   a batch is already committed, but with another offset range
│   └── TableDamageError     a table lost or changed what was committed
├── DamagedFileError         a small file of the home cannot be decoded
├── CheckpointError          a live checkpoint differs from what the ledger requires
├── LogGapError              records that are needed are in neither the log nor the archive
│   └── LogForkError         the log gives offsets that were read to other records
├── LeaseLostError           another driver owns the pipeline
├── LostRaceError            a compare-and-set lost against another writer (retry with a fresh view)
├── UnknownOutcomeError      it is not known whether an action happened; look before repeating it
├── SavepointError           a savepoint is missing, damaged or not proved
│   └── ReplayMismatchError  a replay of recorded ranges gave another output or state
├── AuditError               a backfill's result failed its audit and was not published
├── SuiteError               a Great Expectations suite did not load as it was declared
└── ServiceError             a service (broker, Airflow, store) did not start or answer
"""

from __future__ import annotations


class RivertwiceError(Exception):
    """Root of the tree.

    Attributes:
        reason: stable word for the failure, for programs.
        retryable: whether the same call may succeed later without a change by a person.
    """

    reason: str = "error"
    retryable: bool = False


class DefinitionError(RivertwiceError):
    """A pipeline definition cannot be accepted."""

    reason = "definition"


class FoldError(RivertwiceError):
    """A fold failed on an event."""

    reason = "fold"


class ConfigError(RivertwiceError):
    """Settings, paths or ids are missing or not allowed."""

    reason = "config"


class RequestError(RivertwiceError):
    """A request is refused before anything starts."""

    reason = "request"


class NothingStaleError(RequestError):
    """A backfill finds no window that it would have to repair."""


class FingerprintError(RivertwiceError):
    """Stored state belongs to another definition."""

    reason = "fingerprint"


class LedgerError(RivertwiceError):
    """The ledger contradicts itself or the checkpoint."""

    reason = "ledger"


class ExecutorLostError(RivertwiceError):
    """An executor of a cluster was lost inside a batch, whose counts Spark then adds up twice."""

    reason = "executor_lost"


class RangeMismatchError(LedgerError):
    """A batch is already committed, but with another offset range."""

    reason = "range_mismatch"


class TableDamageError(LedgerError):
    """A table lost or changed what was committed; `rivertwice admin repair` names it."""

    reason = "table_damage"


class DamagedFileError(RivertwiceError, ValueError):
    """A small file of the home cannot be decoded."""

    reason = "damaged_file"


class CheckpointError(RivertwiceError):
    """A live checkpoint is damaged: it differs from what the ledger requires."""

    reason = "checkpoint"


class LogGapError(RivertwiceError):
    """Records that are needed are in neither the log nor the archive."""

    reason = "log_gap"


class LogForkError(LogGapError):
    """The log gives offsets that were read to other records."""

    reason = "log_fork"


class LeaseLostError(RivertwiceError):
    """Another driver owns the pipeline."""

    reason = "lease_lost"


class LostRaceError(RivertwiceError):
    """A compare-and-set lost against another writer."""

    reason = "lost_race"
    retryable = True


class UnknownOutcomeError(RivertwiceError):
    """It is not known whether an action happened."""

    reason = "unknown_outcome"
    retryable = True


class SavepointError(RivertwiceError):
    """A savepoint is missing, damaged or not proved."""

    reason = "savepoint"


class ReplayMismatchError(SavepointError):
    """A replay of recorded ranges gave another output or state."""

    reason = "replay_mismatch"


class AuditError(RivertwiceError):
    """A backfill's result failed its audit and was not published."""

    reason = "audit"


class SuiteError(RivertwiceError):
    """A Great Expectations suite did not load as it was declared."""

    reason = "suite"


class ServiceError(RivertwiceError):
    """A service did not start or answer."""

    reason = "service"
    retryable = True
