"""The tables whose rows can be shown, queried and exported. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from rivertwice.core import PipelineHome, Place, RequestError


class Scope(StrEnum):
    """Which of a table's rows count."""

    ALL = "all"
    PATH = "path"
    """Rows of the batches on the head's path."""
    NEWEST_RUN = "newest run"
    """Rows that hold for the newest reconcile."""


@dataclass(frozen=True)
class Kind:
    """A table of every pipeline.

    Attributes:
        name: as it is written on the command line, `dead-letters`.
        what: a row is this; for people.
        time: the column of instants by which rows are ordered and chosen; None: the start of the definition's windows.
        scope: which rows count.
        batch: the columns with a row's timeline and batch, where the scope is the path.
        hidden: columns that people are not shown unless they name them.
        raw: columns with a record's own values; the page shows them only to users who may decide about the record.
    """

    name: str
    what: str
    place: Callable[[PipelineHome], Place]
    time: str | None = None
    scope: Scope = Scope.ALL
    batch: tuple[str, str] = ("_timeline", "_batch")
    hidden: tuple[str, ...] = ()
    raw: tuple[str, ...] = ()

    @property
    def view(self) -> str:
        """What follows the pipeline's name in the name of a view: `__dead_letters`, nothing for `served`."""
        return "" if self.name == SERVED else f"__{self.name.replace('-', '_')}"


SERVED = "served"
PROVISIONAL = "provisional"
_STAMPS = ("_timeline", "_batch", "_backfill")
_OF_RUN = ("run", "as_of", "sequence", "timeline", "batch", "bundle", "created_at")
_OF_RECORD = ("_timeline", "_batch", "cluster_id", "topic_id", "headers")
_OF_BATCH = (
    "pipeline", "epoch", "bundle", "cluster_id", "topic_ids", "start_offsets", "offsets_text", "batch_timestamp_ms", "digest",
    "references", "by_topic", "marks",
)  # fmt: skip
KINDS = (
    Kind(SERVED, "what a closed window serves", lambda home: home.tables.served, hidden=_STAMPS),
    Kind(
        PROVISIONAL,
        "the newest row of a window that is open (emit: updates)",
        lambda home: home.tables.provisional,
        hidden=_STAMPS,
    ),
    Kind(
        "verdicts",
        "what the newest reconcile says of a row, or of all rows of a window that agree",
        lambda home: home.tables.verdicts,
        "window_start",
        Scope.NEWEST_RUN,
        hidden=_OF_RUN,
    ),
    Kind(
        "causes",
        "why a row differs, by the record's address",
        lambda home: home.tables.causes,
        "window_start",
        Scope.NEWEST_RUN,
        hidden=("run", "late_watermark_ms"),
    ),
    Kind(
        "reconciles",
        "a reconcile run, with its counts",
        lambda home: home.tables.reconciles,
        "created_at",
        hidden=("pipeline", "as_of", "balance", "late_by_partition", "gate", "increment"),
    ),
    Kind(
        "quality",
        "what an expectation of a suite found in one run",
        lambda home: home.tables.quality,
        "created_at",
        hidden=("suite", "engine", "failing", "since", "column"),
    ),
    Kind(
        "ledger",
        "a committed micro-batch on the head's path",
        lambda home: home.tables.ledger,
        "committed_at",
        Scope.PATH,
        ("timeline", "batch"),
        _OF_BATCH,
    ),
    Kind("changelog", "a row that the stream emitted", lambda home: home.tables.changelog, None, Scope.PATH),
    Kind(
        "dead-letters",
        "a record that was refused",
        lambda home: home.tables.dead_letters,
        "record_time",
        Scope.PATH,
        hidden=_OF_RECORD,
        raw=("key", "value", "headers"),
    ),
    Kind(
        "late-rows",
        "a record that missed a window, where the late policy keeps it",
        lambda home: home.tables.late_rows,
        "window_start",
        Scope.PATH,
        hidden=_OF_RECORD,
        raw=("fields",),
    ),
    Kind("sequence", "a head move or a publication", lambda home: home.tables.sequence, "created_at"),
    Kind(
        "amendments",
        "a decision about a dead letter",
        lambda home: home.tables.amendments,
        "created_at",
        raw=("value",),
    ),
)
BY_NAME = {kind.name: kind for kind in KINDS}


def kind_named(name: str) -> Kind:
    """Return a table by its name.

    Raises:
        RequestError: there is none; close names are given.
    """
    wanted = name.replace("_", "-")
    if wanted not in BY_NAME:
        close = difflib.get_close_matches(wanted, BY_NAME, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(BY_NAME)}"
        message = f"there is no table {name!r}; {hint}"
        raise RequestError(message)
    return BY_NAME[wanted]
