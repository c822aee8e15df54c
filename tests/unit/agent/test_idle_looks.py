"""An agent that looks again at a pipeline in which nothing happened opens no table, and sees what happens then."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from homes.backfill import HOUR, emitted, make_home
from homes.cockpit import Past, make_past
from homes.ledger import ledger_row
from rivertwice.agent.alerting import AlertKeeper
from rivertwice.agent.metrics import measure
from rivertwice.agent.savepoints import SavepointKeeper
from rivertwice.agent.view import view_pipeline
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.retention.view import observe_claims
from rivertwice.storage.snapshot import Snapshot
from rivertwice.storage.table import Table
from rivertwice.timeline.committed import committed_batches, every_batch, newest_batch
from rivertwice.timeline.ledger import LEDGER_KEY, append_ledger
from rivertwice.timeline.lineage import head_path
from rivertwice.timeline.sequence import head, last_seq, move_head


@pytest.fixture
def opens(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables that were opened, in order."""
    real, names = Snapshot.__init__, []

    def opened(snapshot: Snapshot, place: Any) -> None:
        names.append(Path(place).name)
        real(snapshot, place)

    monkeypatch.setattr(Snapshot, "__init__", opened)
    return names


def commit(home: PipelineHome, bundle: str, batch: int, *, copied: bool) -> None:
    """Commit a batch as the sink does; `copied`: also into the ledger's table."""
    row = ledger_row(batch, bundle=bundle, batch_watermark_ms=batch * HOUR, emitted=1)
    Table(home.tables.changelog).append(
        emitted("t1", batch, (batch - 1, "a", 10)), transactions={"p#t1": batch}, metadata={LEDGER_KEY: row.to_json()}
    )
    if copied:
        append_ledger(home, [row])


def look(settings: Settings, *names: str) -> None:
    """Look as the agent's threads do, at one pipeline after the other; Kafka is not asked."""
    stop = threading.Event()
    for name in names or ("p",):
        AlertKeeper(settings, list, stop).look(name, utc_now())
        SavepointKeeper(settings, list, stop).look(name, utc_now())
        observe_claims(settings, name)


def test_a_second_look_at_a_pipeline_without_news_opens_no_table(tmp_path: Path, opens: list[str]) -> None:
    settings, _, _ = make_home(tmp_path, batches=5)
    look(settings)
    assert opens
    opens.clear()
    look(settings)
    assert opens == []


def test_a_second_look_at_many_pipelines_opens_no_table(tmp_path: Path, opens: list[str]) -> None:
    names = [f"p{number}" for number in range(40)]
    settings = make_past(tmp_path, Past(days=2, keys=1), names)
    look(settings, *names)
    assert len(opens) > len(names)
    opens.clear()
    look(settings, *names)
    assert opens == []


@pytest.mark.parametrize("copied", [True, False], ids=["copied", "in the changelog alone"])
def test_a_batch_that_comes_between_two_looks_is_counted_once(tmp_path: Path, *, copied: bool) -> None:
    settings, home, bundle = make_home(tmp_path, batches=5)

    def figures() -> tuple[int | None, int, int]:
        now, last = utc_now(), newest_batch(home, head_path(home))
        assert last is not None
        return (
            measure(settings, "p", view_pipeline(settings, "p", now), now).read_total,
            last.batch,
            len(every_batch(home)),
        )

    assert figures() == (50, 4, 5)
    for batch in (5, 6):
        commit(home, bundle.id, batch, copied=copied)
        assert figures() == figures() == (10 * (batch + 1), batch, batch + 1)
    claim = next(claim for claim in observe_claims(settings, "p")[0].claims if claim.kind == "truth")
    assert claim.ranges == {0: (0, 70)}


def test_a_row_that_is_copied_later_is_not_counted_twice(tmp_path: Path) -> None:
    _, home, bundle = make_home(tmp_path, batches=3)
    commit(home, bundle.id, 3, copied=False)
    assert committed_batches(home).numbers.tolist() == [0, 1, 2, 3]
    append_ledger(home, [ledger_row(3, bundle=bundle.id, batch_watermark_ms=3 * HOUR, emitted=1)])
    assert committed_batches(home).numbers.tolist() == [0, 1, 2, 3]


def test_a_head_move_by_another_process_is_seen_at_once(tmp_path: Path) -> None:
    _, home, _ = make_home(tmp_path, batches=3)
    assert head(home) == "t1"
    move_head(home, "t2", reason="test", expected_seq=last_seq(home), now=utc_now())
    assert head(home) == "t2"
