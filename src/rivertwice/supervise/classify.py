"""Why a driver ended, and how the agent reacts to it. Pure: no clock, no files."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FailureClass(StrEnum):
    """Why a driver process ended."""

    DRAINED = "drained"
    KILLED = "killed"
    POISON = "poison"
    OUT_OF_MEMORY = "out_of_memory"
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
        Response.RESTART, 3, "the process ran out of memory; give it more, or smaller batches"
    ),
    FailureClass.STORE: Reaction(Response.RESTART, 5, "a table or service could not be read or written"),
    FailureClass.CHECKPOINT: Reaction(
        Response.RESTORE, None, "the live checkpoint is damaged; the newest proved savepoint takes its place"
    ),
    FailureClass.UNKNOWN: Reaction(Response.RESTART, 5, "the cause is not known; read the driver's log"),
    # Never given up: a stand-by that gave up would be no stand-by, and two that contend might both give up. It backs off and pages.
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
        "a table, a record or the ledger contradicts the others; `rivertwice repair NAME` shows which, and what can be done",
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
        full: the disk of the home has no room; a driver that could write neither record nor log ended for that.
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
