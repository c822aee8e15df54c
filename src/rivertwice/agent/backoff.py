"""What a failed driver's error means, when it may start again, and when the agent stops trying. Pure: no jitter, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from rivertwice.core import Attempts

# Why a driver ended, and how the agent reacts to it. Pure: no clock, no files.


class FailureClass(StrEnum):
    """Why a driver process ended."""

    DRAINED = "drained"
    KILLED = "killed"
    POISON = "poison"
    OUT_OF_MEMORY = "out_of_memory"
    EXECUTOR_LOST = "executor_lost"
    RETENTION = "retention"
    FORK = "fork"
    SCHEMA = "schema"
    LEASE_LOST = "lease_lost"
    DISK = "disk"
    STORE = "store"
    CHECKPOINT = "checkpoint"
    FINGERPRINT = "fingerprint"
    RANGE_MISMATCH = "range_mismatch"
    LEDGER = "ledger"
    UNKNOWN = "unknown"


class Response(StrEnum):
    """What the agent does about an ended driver."""

    RESTART = "restart"
    WAIT = "wait"
    RESTORE = "restore"
    STOP = "stop_and_page"


@dataclass(frozen=True)
class Reaction:
    """How one failure class is answered.

    Attributes:
        response: restart with backoff, wait for another owner, fall back to the newest proved savepoint, or stop until a
            person has looked.
        breaks_after: failures without a newly committed batch, within the breaker's window, after which the
            agent stops and pages; None never breaks.
        because: the reason as a person reads it in a page.
    """

    response: Response
    breaks_after: int | None
    because: str


REACTIONS: dict[FailureClass, Reaction] = {
    FailureClass.DRAINED: Reaction(Response.RESTART, None, "it was asked to drain and did"),
    FailureClass.KILLED: Reaction(Response.RESTART, 6, "a signal ended the process; the next start replays its batch"),
    FailureClass.POISON: Reaction(Response.RESTART, 5, "a record stopped the batch although bad records must not"),
    FailureClass.OUT_OF_MEMORY: Reaction(
        Response.RESTART,
        3,
        "the process ran out of memory; set a larger spark.driver.memory in the spark-defaults.conf of SPARK_CONF_DIR, or a smaller stream.max_offsets_per_trigger",
    ),
    FailureClass.EXECUTOR_LOST: Reaction(
        Response.RESTART,
        6,
        "an executor of the cluster was lost inside a batch; the next start computes the batch again",
    ),
    FailureClass.STORE: Reaction(Response.RESTART, 5, "a table or service could not be read or written"),
    FailureClass.CHECKPOINT: Reaction(
        Response.RESTORE, None, "the live checkpoint is damaged; the newest proved savepoint takes its place"
    ),
    FailureClass.UNKNOWN: Reaction(Response.RESTART, 5, "the cause is not known; read the driver's log"),
    # Retried for ever: a stand-by must keep trying, and two that contend might both stop. It backs off and pages.
    FailureClass.LEASE_LOST: Reaction(Response.WAIT, None, "another driver owns the pipeline"),
    # Nor this: once somebody freed space nothing else has to be done, and nothing was lost. It backs off and pages, too.
    FailureClass.DISK: Reaction(Response.RESTART, None, "the disk is full; free space under the home"),
    FailureClass.RETENTION: Reaction(
        Response.STOP,
        None,
        "the log no longer holds the next records; a restart would lose them, so restore or backfill first",
    ),
    FailureClass.FORK: Reaction(
        Response.STOP,
        None,
        "the log has other records where the stream read some; a start would leave these unread, so go back to before them",
    ),
    FailureClass.SCHEMA: Reaction(
        Response.STOP, None, "the definition or a schema is not acceptable; correct it, then start again"
    ),
    FailureClass.FINGERPRINT: Reaction(
        Response.STOP, None, "the checkpoint belongs to another definition; a start would mix the two"
    ),
    FailureClass.RANGE_MISMATCH: Reaction(
        Response.STOP, None, "a batch is committed with another offset range; a start could lose or double records"
    ),
    FailureClass.LEDGER: Reaction(
        Response.STOP,
        None,
        "a table, a record or the ledger contradicts the others; `rivertwice admin repair NAME` shows which, and what can be done",
    ),
}

# A record's class, or an error's stable `reason`, by the word the driver wrote.
_WORDS = {str(item): item for item in FailureClass} | {
    "definition": FailureClass.SCHEMA,
    "config": FailureClass.SCHEMA,
    "log_gap": FailureClass.RETENTION,
    "log_fork": FailureClass.FORK,
    "service": FailureClass.STORE,
    "table_damage": FailureClass.LEDGER,
    "damaged_file": FailureClass.LEDGER,
}

# Text in the log's tail, for drivers that ended before they could write a record. The last match in the text wins.
_SIGNS = (
    ("OutOfMemoryError", FailureClass.OUT_OF_MEMORY),
    ("MemoryError", FailureClass.OUT_OF_MEMORY),
    ("No space left on device", FailureClass.DISK),
    ("Disk quota exceeded", FailureClass.DISK),
    ("KAFKA_DATA_LOSS", FailureClass.RETENTION),
    ("OffsetOutOfRangeException", FailureClass.RETENTION),
    ("LogGapError", FailureClass.RETENTION),
    ("LogForkError", FailureClass.FORK),
    ("RangeMismatchError", FailureClass.RANGE_MISMATCH),
    ("FingerprintError", FailureClass.FINGERPRINT),
    ("LeaseLostError", FailureClass.LEASE_LOST),
    ("CONCURRENT_STREAM_LOG_UPDATE", FailureClass.LEASE_LOST),
    ("DefinitionError", FailureClass.SCHEMA),
    ("LedgerError", FailureClass.LEDGER),
    ("CheckpointError", FailureClass.CHECKPOINT),
    ("CANNOT_LOAD_STATE_STORE", FailureClass.CHECKPOINT),
    ("STREAMING_CHECKPOINT_MISSING", FailureClass.CHECKPOINT),
    ("Incomplete log file", FailureClass.CHECKPOINT),
)
_SIGNALS = frozenset({-9, -15, -2, -6, -11, 128 + 9, 128 + 15})


def classify_exit(
    record_class: str | None, log_tail: str, returncode: int | None, *, full: bool = False
) -> FailureClass:
    """Return why a driver ended.

    The driver's own record wins, then the last line of its log that names a class, then the signal that ended it. A kill by
    the kernel for memory cannot be distinguished from any other SIGKILL, so it is KILLED.

    Args:
        record_class: `class` of the exit record of this very epoch, or None if it wrote none.
        log_tail: the end of the driver's log since its start.
        returncode: return code of the process if the agent was its parent, else None.
        full: the disk of the home has no room; that is why a driver ended without writing a record or log.
    """
    named = _WORDS.get(record_class or "")
    if named is not None and named is not FailureClass.UNKNOWN:
        return named
    if record_class is None and returncode in _SIGNALS:
        return FailureClass.KILLED
    positions = ((log_tail.rfind(sign), failure) for sign, failure in _SIGNS)
    position, failure = max(positions, key=lambda pair: pair[0])
    if position >= 0:
        return failure
    if record_class is None and full:
        return FailureClass.DISK
    if record_class is None and returncode is None:
        return FailureClass.KILLED
    return FailureClass.UNKNOWN


@dataclass(frozen=True)
class BackoffPolicy:
    """How patient the agent is.

    Attributes:
        base: wait after the first failure; it doubles with each further one.
        window: how far back failures count for the circuit breaker.
    """

    base: timedelta = timedelta(seconds=1)
    cap: timedelta = timedelta(seconds=60)
    window: timedelta = timedelta(minutes=15)


DEFAULT_POLICY = BackoffPolicy()
CONTENDED_AFTER = 3  # lease losses within the window; one or two are a hand-over, or a store that was slow
FULL_AFTER = 3  # ends on a full disk, in a row and without a new batch, after which it is paged


@dataclass(frozen=True)
class Failure:
    """One end of a driver that was not a clean drain.

    Attributes:
        at: when the agent noticed.
        progressed: whether that driver had committed a batch which its predecessor had not.
        epoch: epoch of its lease; None if it never held one.
        message: one line for people.
    """

    at: datetime
    failure: FailureClass
    progressed: bool
    epoch: int | None
    message: str


def delay_after(consecutive_failures: int, policy: BackoffPolicy = DEFAULT_POLICY) -> timedelta:
    """Return how long to wait after a number of failures in a row: base, 2 base, 4 base ... at most the cap."""
    return Attempts(consecutive_failures).pause(policy.base, policy.cap)


def consecutive_failures(failures: Sequence[Failure]) -> int:
    """Count the newest failures back to (and with) the last one whose driver had made progress.

    A driver that committed something new and then died begins a new row: its own death is the first of it.
    """
    count = 0
    for failure in reversed(failures):
        count += 1
        if failure.progressed:
            break
    return count


def lease_losses(failures: Sequence[Failure], policy: BackoffPolicy = DEFAULT_POLICY) -> int:
    """Count the lost leases in the window that ends with the newest failure; 0 if that is not a lost lease.

    Progress does not matter here: two drivers that take the lease from each other may each commit a batch in between.
    """
    if not failures or failures[-1].failure is not FailureClass.LEASE_LOST:
        return 0
    newest = failures[-1].at
    return sum(
        failure.failure is FailureClass.LEASE_LOST and newest - failure.at <= policy.window for failure in failures
    )


def full_disk_ends(failures: Sequence[Failure], policy: BackoffPolicy = DEFAULT_POLICY) -> int:
    """Count the newest ends in a row by a full disk, without progress, in the window of the newest; 0 if that is none."""
    row = failures[len(failures) - consecutive_failures(failures) :]
    count = 0
    for failure in reversed(row):
        if failure.failure is not FailureClass.DISK or row[-1].at - failure.at > policy.window:
            break
        count += 1
    return count


def needs_own_jvm(failures: Sequence[Failure]) -> bool:
    """Say whether the newest two ends were at work, without progress and without a known cause: the next may take no JVM of others along."""
    suspect = (FailureClass.UNKNOWN, FailureClass.OUT_OF_MEMORY)
    newest = failures[-2:]
    return len(newest) == 2 and all(not each.progressed and each.failure in suspect for each in newest)


def next_attempt(failures: Sequence[Failure], policy: BackoffPolicy = DEFAULT_POLICY) -> datetime | None:
    """Return the instant from which the next start is allowed, or None if it is allowed at once."""
    if not failures:
        return None
    count = max(consecutive_failures(failures), lease_losses(failures, policy))
    return failures[-1].at + delay_after(count, policy)


def breaks_circuit(
    failures: Sequence[Failure], now: datetime, policy: BackoffPolicy = DEFAULT_POLICY
) -> Failure | None:
    """Return the failure that ends the agent's patience, or None.

    It counts the newest failures in a row without progress within the window, but not those of a full disk, for which only the
    disk is to blame. The newest one's class decides how many of them are too many.
    """
    if not failures:
        return None
    newest = failures[-1]
    limit = REACTIONS[newest.failure].breaks_after
    if limit is None:
        return None
    row = failures[-consecutive_failures(failures) :]
    recent = [
        failure for failure in row if now - failure.at <= policy.window and failure.failure is not FailureClass.DISK
    ]
    return newest if len(recent) >= limit else None
