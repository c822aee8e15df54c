"""The values of the parity gate: what was compared, and whether a version may serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from rivertwice.versions.try_model import Comparison, Example, Expected, SchemaChange

NONE, LOAD, RECONCILE, COMPARE, DECLARE, SERVE, BACK, ACCEPT, WAIT = (
    "none", "load", "reconcile", "compare", "declare", "serve", "back", "accept", "wait",
)  # fmt: skip
"""What a version waits for."""
GONE = "records of these windows are in neither Kafka nor the archive any more, so the new version cannot have them"


@dataclass(frozen=True)
class Step:
    """What to do next about a version: the act, in words with a command, and of which version it is a command."""

    act: str
    text: str
    version: str


@dataclass(frozen=True)
class Proof:
    """Up to where a reconcile has proved what one version serves.

    Attributes:
        run: the reconcile whose seal says so; None: there is none.
        until_ms: windows that end at or before it (epoch ms) are proved.
        lacks: why it does not count now; empty if it does.
        timeline, sequence: of the seal: the head, and the newest head move or publication that it counts. As long as both are the
            same, the rows of windows that are proved are the same.
        end_offsets: topic to partition to offset; records below were counted.
    """

    version: str
    run: str | None
    until_ms: int
    lacks: str = ""
    timeline: str = ""
    sequence: int = 0
    end_offsets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class ExcludedWindows:
    """Windows that one version serves and that cannot be compared; `start` and `end` bound their starts."""

    start: datetime
    end: datetime
    windows: int
    why: str


@dataclass(frozen=True)
class Parity:
    """How what two versions serve differs, row by row, and why.

    Attributes:
        version: the new version; beside: the one that serves.
        declared: SHA-256 of the change file, "" if there is none.
        start, end: of the windows that were compared: both versions have closed them, and a reconcile has proved both. None: none.
        proofs: of both versions, the new one last.
        rows: counts and examples; differences without a cause are `changed`, `only_new`, `only_old` and `repeated`.
        late: rows that differ only because the two streams counted other late records: over the same records, the results of both
            definitions are equal, or differ as declared.
        left_out: windows that cannot be compared, and why.
        reasons: why the version may not serve, one sentence each; empty: it may.
        warnings: what the gate does not insist on.
        by_record: rows belong to records, not to windows: those of the records that both versions have read were compared.
        reason, expected: of the change file: why there is a new version, and which rows are meant to differ.
        different: why no row of one version has a counterpart in the other, so that no comparison can pass, and a person must accept
            the switch; empty: they can be compared.
    """

    version: str
    beside: str
    declared: str
    start: datetime | None
    end: datetime | None
    proofs: tuple[Proof, Proof]
    schema: SchemaChange
    rows: Comparison
    late: int
    left_out: tuple[ExcludedWindows, ...]
    reasons: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    by_record: bool = False
    reason: str = ""
    expected: tuple[Expected, ...] = ()
    different: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every difference has a cause, and all that the gate needs is there."""
        return not self.reasons

    @property
    def unexplained(self) -> int:
        """Rows that differ without a cause."""
        return self.rows.differing

    @property
    def examples(self) -> tuple[Example, ...]:
        """Rows that differ without a cause."""
        return self.rows.examples
