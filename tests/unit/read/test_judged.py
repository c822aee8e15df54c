"""The filter for verdicts and causes chooses what `timeline.judgements` chooses."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from homes.backfill import HOUR, make_home
from homes.ledger import NOW
from rivertwice.core.instants import from_ms
from rivertwice.core.plain import to_plain
from rivertwice.read.find import rows_that_hold
from rivertwice.reconcile.results import CAUSES, RECONCILES, VERDICTS
from rivertwice.storage.table import Table
from rivertwice.timeline.judgements import Increment, chain_of, verdicts_in, verdicts_of
from unit.read.test_show import runner


def verdict(run: str, hour: int, key: str | None, verdict: str, rows: int | None = 1) -> dict[str, Any]:
    start, end = from_ms(hour * HOUR), from_ms((hour + 1) * HOUR)
    return {
        "run": run, "pair": "served", "window_start": start, "window_end": end, "key": key, "verdict": verdict, "rows": rows,
    }  # fmt: skip


def make_chain(seed: int) -> tuple[list[tuple[str, Increment | None]], pa.Table]:
    chance = random.Random(seed)
    names = [f"r{number}" for number in range(chance.randrange(1, 7))]
    increments = {}
    for base, name in pairwise(names):
        settled = chance.choice([None, chance.randrange(12) * HOUR])
        low = chance.randrange(10)
        ranges = ((low * HOUR, (low + chance.randrange(1, 3)) * HOUR),) if chance.random() < 0.5 else ()
        increments[name] = Increment(base, settled, ranges, HOUR)
    rows = [
        verdict(
            name,
            chance.randrange(12),
            chance.choice([None, "{}", '{"k": "a"}']),
            chance.choice(["LATE", "AGREES"]),
            rows,
        )
        for name in [*names, "other"]
        for rows in chance.choices([0, 1, 2, None], k=25)
    ]
    return chain_of(increments, names[-1]), pa.Table.from_pylist(rows, VERDICTS)


def as_text(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in rows)


@pytest.mark.proves("guarantees.md#show-query-export-open")
@pytest.mark.parametrize("seed", range(40))
def test_verdicts_that_hold_are_those_that_the_chain_of_runs_gives(seed: int) -> None:
    chain, table = make_chain(seed)
    dataset = ds.dataset(table)
    found = dataset.to_table(filter=rows_that_hold(chain, dataset))
    assert as_text(found.to_pylist()) == as_text(verdicts_in(table, chain))


def test_verdicts_of_the_newest_reconcile_are_shown_and_queried(tmp_path: Path) -> None:
    settings, home, _ = make_home(tmp_path)
    runs = [
        {"run": "r1", "pipeline": "p", "created_at": NOW, "counts": "{}"},
        {
            "run": "r2",
            "pipeline": "p",
            "created_at": NOW.replace(hour=1),
            "increment": json.dumps(to_plain(Increment("r1", 4 * HOUR, (), HOUR))),
        },
    ]
    key = '{"k": "a"}'
    rows = [
        verdict("r1", 1, key, "LATE"), verdict("r1", 2, key, "LATE"), verdict("r1", 6, key, "OPEN"),
        verdict("r2", 2, key, "AGREES"), verdict("r2", 6, key, "DEFECT"),
    ]  # fmt: skip
    causes = [
        {"run": run, "pair": "served", "window_start": from_ms(HOUR), "key": key, "cause": "late"}
        for run in ("r0", "r1")
    ]
    Table(home.tables.verdicts).append(pa.Table.from_pylist(rows, VERDICTS))
    Table(home.tables.causes).append(pa.Table.from_pylist(causes, CAUSES))
    Table(home.tables.reconciles).append(pa.Table.from_pylist(runs, RECONCILES))
    run = runner(settings)
    shown = json.loads(run("show", "p", "--table", "verdicts", "--order", "oldest", output="json").stdout)
    hours = [(row["window_start"][11:13], row["verdict"]) for row in shown["rows"]]
    assert hours == [("01", "LATE"), ("02", "AGREES"), ("06", "DEFECT")]
    assert len(verdicts_of(home, "r2")) == 3
    assert shown["status"]["run"] == "r2"
    assert "verdicts of p, reconcile r2" in run("show", "p", "--table", "verdicts", "--key", key).output
    counted = json.loads(
        run("query", "SELECT verdict, count(*) AS n FROM p__verdicts GROUP BY 1 ORDER BY 1", output="json").stdout
    )
    assert counted["rows"] == [{"verdict": name, "n": 1} for name in ("AGREES", "DEFECT", "LATE")]
    joined = "SELECT v.verdict, c.cause FROM p__verdicts v JOIN p__causes c USING (pair, window_start, key)"
    assert json.loads(run("query", joined, output="json").stdout)["rows"] == [{"verdict": "LATE", "cause": "late"}]
    refused = run("show", "p", "--table", "verdicts", "--key", '{"n": 1}')
    assert "its whole key, which is k" in refused.output
