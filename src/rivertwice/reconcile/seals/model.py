"""What a seal says, and the table of seals."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from rivertwice.core import LostRaceError, PipelineHome, retry
from rivertwice.log import Part
from rivertwice.reconcile.view import DefinitionVersion, shape_of
from rivertwice.storage import Table
from rivertwice.timeline import LedgerRow, ServedStamp

FORMAT = 1
START = hashlib.sha256(b"ledger").hexdigest()
"""The chain's hash before the first batch of a path."""


@dataclass(frozen=True)
class SealedPart:
    """The balance of one partition up to the seal.

    Attributes:
        read, accepted, dead: records of all batches up to the seal's.
        emitted, late: pairs of record and window, of settled windows alone.
    """

    read: int = 0
    accepted: int = 0
    dead: int = 0
    emitted: int = 0
    late: int = 0


@dataclass(frozen=True)
class Seal:
    """A prefix of the head's path that a reconcile has proved, up to one batch.

    Attributes:
        run: the reconcile that ended with it; its stored verdicts hold for the settled windows.
        timeline, batch: the last batch of the prefix.
        meaning: `meaning_of` the definition that judged.
        sequence: newest head move or publication that the verdicts count (`settle.counted_sequence`). amendments: newest decision about dead letters.
        end_offsets: topic to partition to the offset after the last record.
        settled_ms: windows that end at or before it (epoch ms) are settled: closed in the stream, and served.
        served: what the served table showed; None: there was none.
        counts: pair to verdict to rows, of settled windows.
        parts: the balance. emitted: pairs of settled windows as the changelog counts them.
        ledger: the chain of the ledger's rows up to the batch (`chain_hash`).
        served_rows: rows of settled windows in the served table.
        versions: table to its Delta version before it was read.
        whole: its windows are judged as a whole: while nothing changed it holds, and no run can build on it.
    """

    run: str
    created_at: datetime
    timeline: str
    batch: int
    meaning: str
    sequence: int
    amendments: int
    end_offsets: Mapping[str, Mapping[str, int]]
    settled_ms: int
    served: ServedStamp | None
    counts: Mapping[str, Mapping[str, int]]
    parts: Mapping[Part, SealedPart]
    emitted: int
    ledger: str
    served_rows: int
    versions: Mapping[str, int]
    whole: bool = False

    @property
    def name(self) -> str:
        """The seal in words."""
        return f"seal of {self.run} at batch {self.timeline}/{self.batch}"

    def state(self) -> str:
        """Return all that the table has no column for, as JSON."""
        values = {
            "end_offsets": self.end_offsets,
            "served": None if self.served is None else self.served.plain(),
            "counts": self.counts,
            "parts": [[*part, *asdict(account).values()] for part, account in sorted(self.parts.items())],
            "emitted": self.emitted,
            "ledger": self.ledger,
            "served_rows": self.served_rows,
            "versions": self.versions,
            **({"whole": True} if self.whole else {}),
        }
        return json.dumps(values, sort_keys=True)


def seal_of(row: Mapping[str, Any]) -> Seal | None:
    """Return the seal that a row of the table has; None if another version wrote it, whose seals this one does not use."""
    if row["_format"] != FORMAT:
        return None
    state = json.loads(row["state"])
    parts = {Part(topic, partition): SealedPart(*account) for topic, partition, *account in state["parts"]}
    served = None if state["served"] is None else ServedStamp(**state["served"])
    columns = {name: row[name] for name in COLUMNS}
    return Seal(**{**state, **columns, "parts": parts, "served": served})


COLUMNS = ("run", "created_at", "timeline", "batch", "meaning", "sequence", "amendments", "settled_ms")


def meaning_of(version: DefinitionVersion) -> str:
    """Return a hash of all that decides about a verdict: results, decode, tolerances, keys, what is kept of late rows."""
    shape = shape_of(version.definition)
    text = repr(
        (
            version.semantics,
            version.decode,
            shape.keys,
            shape.columns,
            sorted(shape.tolerances.items()),
            shape.count_column,
            version.definition.compare,
            version.definition.late.keeps_rows,
        )
    )
    return hashlib.sha256(text.encode()).hexdigest()


def chain_hash(before: str, rows: Iterable[LedgerRow]) -> str:
    """Return the hash of a ledger's rows on a path, continued from the hash of the rows before them."""
    current = before
    for row in rows:
        text = json.dumps(row.to_json(), sort_keys=True)
        current = hashlib.sha256(f"{current}{text}".encode()).hexdigest()
    return current


# The table `seals`: one row for each reconcile that passed.

_TRIES = 5
_FORGOTTEN = "seals/forgotten"
"""Application id of the table's transactions that count how often all seals were removed."""
SCHEMA = pa.schema(
    [
        ("_format", pa.int32()),
        ("run", pa.string()),
        ("created_at", pa.timestamp("us", "UTC")),
        ("timeline", pa.string()),
        ("batch", pa.int64()),
        ("meaning", pa.string()),
        ("sequence", pa.int64()),
        ("amendments", pa.int64()),
        ("settled_ms", pa.int64()),
        ("state", pa.string()),
    ]
)


def store_seal(home: PipelineHome, seal: Seal, forgotten: int = 0) -> bool:
    """Store a seal once, and say whether it is there; called again with the same run, nothing changes.

    Args:
        seal: of a run that passed.
        forgotten: how often all seals had been removed before the run read anything. If they were removed since, the rows that
            it compared have changed, so the run is not stored; the commit itself compares the two.

    Raises:
        LostRaceError: other reconciles stored theirs at the same moment, each time.
    """
    app = f"seal/{seal.run}"
    row = {"_format": FORMAT, **{name: getattr(seal, name) for name in COLUMNS}, "state": seal.state()}
    rows = pa.Table.from_pylist([row], schema=SCHEMA)

    def store() -> bool:
        if Table(home.tables.seals).applied_version(app) is not None:
            return True
        if times_forgotten(home) != forgotten:
            return False
        Table(home.tables.seals).append(rows, transactions={app: 1, _FORGOTTEN: forgotten})
        return True

    return retry(LostRaceError, tries=_TRIES)(store)


def times_forgotten(home: PipelineHome) -> int:
    """Return how often all seals were removed."""
    return Table(home.tables.seals).applied_version(_FORGOTTEN) or 0


def forget_seals(home: PipelineHome) -> None:
    """Remove all seals, so that the next reconcile judges everything: rows that were compared are about to be others.

    First a commit forbids the seals of runs that began before; then the seals go. Killed between the two, it is repeated.

    Raises:
        LostRaceError: others wrote to the table, each time.
    """

    def forget() -> None:
        Table(home.tables.seals).append(SCHEMA.empty_table(), transactions={_FORGOTTEN: times_forgotten(home) + 1})
        Table(home.tables.seals).replace_rows(SCHEMA.empty_table())

    retry(LostRaceError, tries=_TRIES)(forget)


def read_seals(home: PipelineHome) -> Sequence[Seal]:
    """Return all seals that this version can use, oldest first."""
    table = Table(home.tables.seals).read()
    rows = [] if table is None else table.sort_by([("created_at", "ascending"), ("batch", "ascending")]).to_pylist()
    return [seal for row in rows if (seal := seal_of(row)) is not None]
