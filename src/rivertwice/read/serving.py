"""What the tab of correctness reads first: which version serves, what it runs, and the runs of its reconcile.

Each part is kept while the tables that it comes from have no new commit, so looking again costs a listing of their logs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rivertwice.core import PipelineHome, Place, Row, Settings, base_of
from rivertwice.definition import Definition
from rivertwice.storage import Remembered, Table, Where
from rivertwice.timeline import Chain, Increment, chain_of, head_definition, serving_by_stamp

_MOST = 64
_BRIEF = ("run", "created_at", "timeline", "batch", "sequence", "counts", "increment", "duration_s")
_JSON = ("as_of", "counts", "balance", "late_by_partition", "gate", "increment")


@dataclass(frozen=True)
class Serving:
    """The version of a pipeline whose rows are shown.

    Attributes:
        definition: what its head runs; None before the first start.
    """

    home: PipelineHome
    served: Place
    definition: Definition | None


@dataclass(frozen=True)
class Runs:
    """The finished reconciles of a pipeline.

    Attributes:
        brief: one row a run, oldest first: when, of what, and its counts.
        chain: the runs whose verdicts hold for the newest one.
        increments: by run, of those that build on another.
    """

    brief: tuple[Mapping[str, Any], ...]
    chain: Chain
    increments: Mapping[str, Increment]

    @property
    def newest(self) -> Mapping[str, Any]:
        """The newest run."""
        return self.brief[-1]

    def upto(self, at: datetime) -> Runs | None:
        """Return the runs that were made before an instant; None: there are none."""
        brief = tuple(run for run in self.brief if run["created_at"] < at)
        return Runs(brief, chain_of(self.increments, brief[-1]["run"]), self.increments) if brief else None


def open_serving(settings: Settings, name: str) -> Serving:
    """Return the version that a name means: the one that serves, or `NAME@v2`."""
    home = settings.pipeline(name)
    serving = _SERVES.get(str(home.public_served), (home.public_served,), lambda: serving_by_stamp(home))
    if name == base_of(name):
        home = settings.pipeline(serving)
    definition = _DEFINITIONS.get(str(home.root), (home.tables.sequence,), lambda: head_definition(home))
    return Serving(home, home.served_while(serving), definition)


def read_runs(home: PipelineHome) -> Runs | None:
    """Return the reconciles of a pipeline; None before the first."""
    table = home.tables.reconciles
    return _RUNS.get(str(table), (table,), lambda: _read_runs(home))


def _read_runs(home: PipelineHome) -> Runs | None:
    table = Table(home.tables.reconciles).open()
    if table is None:
        return None
    stored = set(table.schema.names)
    found = table.read(columns=[name for name in _BRIEF if name in stored])
    rows = [] if found is None else sorted(found.to_pylist(), key=lambda row: (row["created_at"], row["run"]))
    if not rows:
        return None
    increments = {row["run"]: Increment.from_json(json.loads(row["increment"])) for row in rows if row.get("increment")}
    brief = tuple({**row, "counts": json.loads(row.get("counts") or "{}"), "increment": None} for row in rows)
    return Runs(brief, chain_of(increments, rows[-1]["run"]), increments)


def read_run(home: PipelineHome, run: str) -> Row:
    """Return one run with everything that is stored of it."""
    table = home.tables.reconciles
    return _WHOLE.get((str(table), run), (table,), lambda: _read_run(home, run))


def _read_run(home: PipelineHome, run: str) -> Row:
    rows = Table(home.tables.reconciles).read(matching=Where("run").is_among([run]))
    row: dict[str, Any] = {} if rows is None or not rows.num_rows else rows.to_pylist()[0]
    return {name: json.loads(value) if name in _JSON and value is not None else value for name, value in row.items()}


_SERVES: Remembered[str] = Remembered(_MOST)
_DEFINITIONS: Remembered[Definition | None] = Remembered(_MOST)
_RUNS: Remembered[Runs | None] = Remembered(_MOST)
_WHOLE: Remembered[dict[str, Any]] = Remembered(_MOST)
