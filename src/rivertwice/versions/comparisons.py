"""Comparisons of versions as they were stored: what the page, the DAG and the command line show, and by what a version may serve.

Records of the version's place, format 1: `comparisons/MS-RUN.json`, written once. MS is the time in epoch milliseconds, so that names
are in the order of time. They go with the version; of each version the newest twenty are kept.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rivertwice.core import (
    PipelineHome,
    Place,
    RequestError,
    Settings,
    below,
    iso_of_ms,
    parse_iso,
    require_name,
    to_iso,
    to_ms,
)
from rivertwice.storage import RecordStore
from rivertwice.timeline import follow_stamp
from rivertwice.versions.changes import read_changes
from rivertwice.versions.model import Parity, Proof
from rivertwice.versions.proof import read_proof

FORMAT = 1
KEPT = 20
EXAMPLES = 20


@dataclass(frozen=True)
class StoredComparison:
    """What the parity gate found, as plain values.

    Attributes:
        run: its name; version, beside: the two versions; by, created_at: who asked, and when.
        declared: SHA-256 of the change file; reason: what that says.
        start, end: of the windows that were compared, ISO 8601; None: none, or from the log's beginning.
        proofs: of both versions, the new one last.
        counts: rows that are `equal`, `declared`, `late`, `unexplained`; of both sides `old_rows` and `new_rows`; `windows`.
        expected: for each declaration {reason, change, columns, where, rows}.
        left_out: windows that were not compared: {start, end, windows, why}.
        schema: columns that are `added`, `gone`, `retyped`. examples: rows without a cause.
        reasons: why the version may not serve; empty: it may. warnings: what the gate does not insist on.
        different: why no row of one version has a counterpart in the other; empty: they can be compared. Absent in older records.
    """

    run: str
    version: str
    beside: str
    by: str
    created_at: datetime
    declared: str
    reason: str
    start: str | None
    end: str | None
    proofs: tuple[Proof, Proof]
    counts: Mapping[str, int]
    expected: Sequence[Mapping[str, Any]]
    left_out: Sequence[Mapping[str, Any]]
    schema: Mapping[str, Any]
    examples: Sequence[Mapping[str, Any]]
    reasons: Sequence[str]
    warnings: Sequence[str]
    different: Sequence[str] = ()

    @property
    def passed(self) -> bool:
        """Whether every difference has a cause."""
        return not self.reasons

    @property
    def left_out_windows(self) -> int:
        """Windows that were not compared."""
        return sum(part["windows"] for part in self.left_out)

    @property
    def verdict(self) -> str:
        """The result in a few words."""
        if self.different:
            return "no row was compared"
        rows = self.counts
        text = f"{rows['equal']} equal, {rows['declared']} declared, {rows['late']} late, {rows['unexplained']} without a cause"
        return f"{text}, {self.left_out_windows} windows left out" if self.left_out else text

    def brief(self) -> dict[str, Any]:
        """Return what the record of a switch keeps of it."""
        names = ("run", "declared", "end", "counts")
        return {name: getattr(self, name) for name in names} | {"left_out": self.left_out_windows}


def new_run(now: datetime) -> str:
    """Return a name for a comparison."""
    return f"pc-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


def store_comparison(home: PipelineHome, parity: Parity, run: str, *, by: str, now: datetime) -> StoredComparison:
    """Store a comparison in the home of the new version, and return what is stored under its name: the first of that name stays."""
    found = find_comparison(home, run)
    if found is not None:
        return found
    stored = stored_form(parity, run, by, now)
    record = {"format": FORMAT, **_plain(stored), "created_at": to_iso(now)}
    if not stored.different:
        del record["different"]  # as earlier releases, which read no such field
    key = f"{to_ms(now):013d}-{require_name(run, 'comparison')}.json"
    RecordStore(_place(home)).put_if_absent(key, record)
    for old in RecordStore(_place(home)).list()[:-KEPT]:
        RecordStore(_place(home)).delete(old)
    return find_comparison(home, run) or stored


def stored_form(parity: Parity, run: str, by: str, now: datetime) -> StoredComparison:
    """Return a comparison as it is stored. Pure."""
    rows = parity.rows
    counts = {
        "equal": rows.equal,
        "declared": sum(rows.declared),
        "late": parity.late,
        "unexplained": parity.unexplained,
        "old_rows": rows.old_rows,
        "new_rows": rows.new_rows,
        "windows": rows.windows,
    }
    declared = rows.declared or (0,) * len(parity.expected)
    return StoredComparison(
        run=run,
        version=parity.version,
        beside=parity.beside,
        by=by,
        created_at=now,
        declared=parity.declared,
        reason=parity.reason,
        start=None if parity.start is None else to_iso(parity.start),
        end=None if parity.end is None else to_iso(parity.end),
        proofs=parity.proofs,
        counts=counts,
        expected=[{**_plain(rule), "rows": count} for rule, count in zip(parity.expected, declared, strict=True)],
        left_out=[_plain(part) for part in parity.left_out],
        schema=_plain(parity.schema),
        examples=[_plain(row) for row in parity.examples[:EXAMPLES]],
        reasons=parity.reasons,
        warnings=parity.warnings,
        different=parity.different,
    )


def find_comparison(home: PipelineHome, run: str) -> StoredComparison | None:
    """Return the comparison of a name, or None."""
    keys = [key for key in RecordStore(_place(home)).list() if _run_of(key) == run]
    return _read(home, keys[0]) if keys else None


def newest_comparison(home: PipelineHome, *, prefix: str = "") -> StoredComparison | None:
    """Return the newest comparison of a version whose name begins so, or None."""
    keys = [key for key in RecordStore(_place(home)).list() if _run_of(key).startswith(prefix)]
    return _read(home, keys[-1]) if keys else None


def forget_comparisons(home: PipelineHome) -> None:
    """Remove all comparisons of a version: their examples have values of rows."""
    for key in RecordStore(_place(home)).list():
        RecordStore(_place(home)).delete(key)


def require_valid(settings: Settings, stored: StoredComparison) -> None:
    """Check that a comparison passed and that what it compared is what would be served now.

    Raises:
        RequestError: it has not passed, or something changed since; the message names all that did.
    """
    homes = settings.pipeline(stored.beside), settings.pipeline(stored.version)
    proofs = read_proof(homes[0]), read_proof(homes[1])
    changes = read_changes(settings, stored.version)
    obstacles = list(stored.reasons) or find_outdated(stored, proofs, changes.sha256, follow_stamp(homes[1]))
    if obstacles:
        message = f"comparison {stored.run} does not let {stored.version} serve: {'; '.join(obstacles)}; compare again"
        raise RequestError(message)


def find_outdated(stored: StoredComparison, proofs: tuple[Proof, Proof], declared: str, serving: str) -> list[str]:
    """Return what changed since a comparison, one sentence each. Pure.

    A later reconcile is not a change: it proves more windows, and of those that were compared the same rows, as long as nothing was
    published and the head did not move.

    Args:
        proofs: of both versions, as they are now.
        serving: name of the version that serves now.
    """
    changed = []
    if serving != stored.beside:
        changed.append(f"{serving} serves now, and it was compared with {stored.beside}")
    if declared != stored.declared:
        changed.append(f"the change file of {stored.version} was changed since")
    for then, now in zip(stored.proofs, proofs, strict=True):
        if now.lacks:
            changed.append(now.lacks)
        elif (now.timeline, now.sequence) != (then.timeline, then.sequence):
            changed.append(f"{then.version} published a backfill or moved its head since {then.run} proved it")
        elif now.until_ms < then.until_ms:
            until = f"{iso_of_ms(now.until_ms)} and not {iso_of_ms(then.until_ms)}"
            changed.append(f"{then.version} is proved up to {until} now")
    return changed


def _place(home: PipelineHome) -> Place:
    return below(home.place, "comparisons")


def _run_of(key: str) -> str:
    return key.removesuffix(".json").partition("-")[2]


def _read(home: PipelineHome, key: str) -> StoredComparison | None:
    """Return a record; None if another process removed it since it was listed.

    Raises:
        RequestError: its format is not known.
    """
    data = RecordStore(_place(home)).read(key)
    if data is None:
        return None
    if data.pop("format", None) != FORMAT:
        message = f"comparison {key} of {home.root.name} is not of format {FORMAT}, which this version reads; use a newer rivertwice"
        raise RequestError(message)
    # Earlier releases recorded whether the change file let a version serve without a person.
    data.pop("policy", None)
    first, second = (Proof(**proof) for proof in data["proofs"])
    return StoredComparison(**{**data, "created_at": parse_iso(data["created_at"]), "proofs": (first, second)})


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return to_iso(value) if isinstance(value, datetime) and value.tzinfo else str(value)
