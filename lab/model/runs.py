"""What reconciles have stored: their verdicts, the runs, and the seals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from rivertwice.core.instants import from_ms
from rivertwice.log.addresses import Part
from rivertwice.reconcile.model import Account, DefectFinding, RowVerdict
from rivertwice.reconcile.results import VERDICTS
from rivertwice.reconcile.seals.look import ChangesSinceSeal, Decision
from rivertwice.reconcile.seals.model import Seal
from rivertwice.timeline.judgements import Increment, chain_of, verdicts_in
from rivertwice.timeline.served_stamp import ServedStamp

_COLUMNS = ("run", "pair", "window_start", "window_end", "key", "verdict", "reason", "late", "dead")
_SCHEMA = pa.schema([VERDICTS.field(name) for name in _COLUMNS])


@dataclass
class Run:
    """A run of a reconcile.

    Attributes:
        look, decision: with which it began. contents: number of the newest contents of the tables at that moment.
        seals: that were there.
        base: the seal that it builds on; increment: what it judged then.
        last, stamp: the last batch and the build of `served` that it judged.
        accounts: the balance by partition; None: it is the base's.
        is_mixed: rows of an earlier attempt are stored under its name.
    """

    name: str
    look: ChangesSinceSeal
    decision: Decision
    contents: int
    seals: Sequence[Seal] = ()
    base: Seal | None = None
    increment: Increment | None = None
    last: tuple[str, int] | None = None
    stamp: ServedStamp | None = None
    passed: bool = True
    accounts: Mapping[Part, Account] | None = None
    findings: Sequence[DefectFinding] = ()
    is_mixed: bool = False


@dataclass
class Reconciles:
    """The tables `verdicts`, `reconciles` and `seals`.

    Attributes:
        seals: oldest first. forgotten: how often all were removed.
        verdicts: run to its own rows. runs: those that exist.
        names: of all runs, also those that were cut off.
    """

    seals: list[Seal] = field(default_factory=list)
    forgotten: int = 0
    verdicts: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)

    def name(self, *, again: bool) -> str:
        """Return the name of a new run, or of the newest one."""
        if again and self.names:
            return self.names[-1]
        self.names.append(f"r{len(self.names) + 1}")
        return self.names[-1]

    def store_verdicts(self, run: str, verdicts: Sequence[RowVerdict]) -> bool:
        """Store a run's rows once; say whether they were stored."""
        is_new = run not in self.verdicts
        self.verdicts.setdefault(run, [_row(run, verdict) for verdict in verdicts])
        return is_new

    def store_run(self, run: Run) -> bool:
        """Store what makes a run exist, once; say whether it was stored."""
        return self.runs.setdefault(run.name, run) is run

    def held(self, run: str) -> list[dict[str, Any]]:
        """Return the stored verdicts that hold for a run, by the product's rule."""
        increments = {name: stored.increment for name, stored in self.runs.items() if stored.increment is not None}
        chain = chain_of(increments, run)
        rows = [row for name, _ in chain for row in self.verdicts.get(name, ())]
        return verdicts_in(pa.Table.from_pylist(rows, schema=_SCHEMA), chain)


def _row(run: str, verdict: RowVerdict) -> dict[str, Any]:
    return {
        "run": run,
        "pair": verdict.pair,
        "window_start": from_ms(verdict.row.start_ms),
        "window_end": from_ms(verdict.row.end_ms),
        "key": verdict.row.key,
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "late": verdict.late,
        "dead": verdict.dead,
    }
