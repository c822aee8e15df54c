"""A key is erased from archive, tables, dead letters and savepoints on a real broker; what was counted stays, and stays proved."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from histories.formats import WRITTEN_AS
from histories.random_histories import PARTITIONS, Record, keyed, random_batches
from homes.project import edit_yaml
from rivertwice.core.errors import RequestError
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import Definition, load_definition
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.archive import extend_archive
from rivertwice.savepoint.catalogue import list_savepoints
from rivertwice.savepoint.feed import session_of
from rivertwice.savepoint.take import take_savepoint
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.sequence import head
from rivertwice.timeline.served import rebuild_served
from rivertwice.upkeep.erase import begin_erasure, new_erasure, plan_erasure, resume_erasure
from rivertwice.upkeep.erasure_record import Erasure, read_erasures, read_value
from running.tiers import in_turn
from running.warm_spark import run_command_warm
from streams.kinds import NAME, check_explained, make_kind_project, run_to_end, send

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def judge(settings: Settings) -> dict[str, Any]:
    rebuild_served(settings.pipeline(NAME), load_definition(settings.definitions / NAME))
    report: dict[str, Any] = run_command_warm(settings, "reconcile", NAME)
    check_explained(report)
    return report


def texts(folder: Path) -> Iterator[str]:
    """Everything that lies in tables and records below a folder, as text; bytes as Python spells them."""
    for file in folder.rglob("*.parquet"):
        yield str(pq.ParquetFile(file).read().to_pylist())
    for file in folder.rglob("*.json"):
        yield file.read_text()


def later(records: list[Record]) -> list[Record]:
    """Return a record of another key for each partition, so late that the watermark passes every window of `records`."""
    end = max(one.event_s for one in records if one.event_s is not None)
    return [Record(partition, len(records), "later", end + 3600, 1) for partition in range(PARTITIONS)]


def holds(settings: Settings, key: str) -> list[str]:
    word = f"{key}'", f'{key}"', f'{key}\\"'
    return [text[:200] for text in texts(settings.home) if any(one in text for one in word)]


@pytest.mark.proves("guarantees.md#erasure")
@pytest.mark.parametrize("others", [False, pytest.param(True, marks=pytest.mark.faults)])
def test_an_erased_key_is_nowhere_and_every_verdict_stays(
    others: bool, tmp_path: Path, broker: BrokerInfo, topic: str
) -> None:
    (kind,) = in_turn(["session", "joined intervals", "avro", "protobuf"] if others else ["tumbling"])
    settings = make_kind_project(tmp_path, broker, topic, "tumbling" if kind in WRITTEN_AS else kind, batch=100)
    if kind in WRITTEN_AS:
        WRITTEN_AS[kind](settings.definitions / NAME)

    def keep_decoded(document: dict[str, Any]) -> None:
        for source in document["sources"].values():
            source["keep_decoded"] = True

    edit_yaml(settings.definitions / NAME, keep_decoded)
    definition = load_definition(settings.definitions / NAME)
    records = [record for batch in random_batches(random.Random(f"privacy {kind}"), 20) for record in batch]
    part = len(records) // 20
    send(settings, definition, records[:part])
    run_to_end(settings, tmp_path / "driver.log")
    early = take_savepoint(settings, NAME, now=utc_now(), reason="test")
    send(settings, definition, records[part:])
    key = Counter(one.key for one in records[: 2 * part]).most_common(1)[0][0]

    def ask() -> Erasure:
        return new_erasure(settings, NAME, key, fields=("k",), why="request 118", by="test", now=utc_now())

    waits = ask()
    with pytest.raises(RequestError, match="has not read"):  # recorded, and waits
        begin_erasure(settings, waits, key, now=utc_now(), progress=lambda _: None)
    run_to_end(settings, tmp_path / "driver.log")
    records += later(records)  # which windows the last batch left open depends on how the backlog was cut
    send(settings, definition, records[-PARTITIONS:])
    run_to_end(settings, tmp_path / "driver.log")
    with pytest.raises(RequestError, match="no proved one after it"):
        resume_erasure(settings, waits.id, now=utc_now(), progress=lambda _: None)
    late = take_savepoint(settings, NAME, now=utc_now(), reason="test")
    run_command_warm(settings, "savepoint", "prove", NAME, late.id)
    for source in definition.sources.values():
        extend_archive(None, settings, source.topic, chunk_records=100)
    before = judge(settings)
    assert holds(settings, key)
    assert any("/.decoded/" in str(file) for file in settings.home.rglob("*.parquet"))

    plan = plan_erasure(settings, ask(), key)
    assert plan.refusals == ()
    assert plan.records == {topic: sum(one.key == key for one in records)}
    assert plan.savepoints == {NAME: [early.id]}
    assert {f"{NAME}.changelog", f"{NAME}.served"} <= set(plan.rows)
    # A row that agrees is stored with its window, without its key.
    stored = run_command_warm(settings, "verdicts", NAME, "--limit", "100000")["rows"]
    is_named = any(f'"{key}"' in (row["key"] or "") for row in stored)
    assert (f"{NAME}.verdicts" in plan.rows) == is_named

    def cut_off(line: str) -> None:
        if ".changelog" in line:
            raise InterruptedError(line)

    with pytest.raises(InterruptedError):  # the changelog is rewritten, the ledger not yet
        resume_erasure(settings, waits.id, now=utc_now(), progress=cut_off)
    done = run_command_warm(settings, "admin", "privacy", "resume", waits.id)

    assert done["outcome"]["records"] == dict(plan.records)
    assert done["outcome"]["rows"] == dict(plan.rows)
    assert [one.id for one in list_savepoints(settings.pipeline(NAME))] == [late.id]
    assert read_value(settings, waits.id) is None
    assert [(asked.id, outcome is not None) for asked, outcome in read_erasures(settings)] == [(waits.id, True)]
    assert holds(settings, key) == []
    after = judge(settings)
    assert after["counts"] == before["counts"]
    assert after["balance"] == before["balance"]
    verdicts = run_command_warm(settings, "verdicts", NAME, "--limit", "100000")
    assert (str(done["pseudonym"]) in str(verdicts)) == is_named or kind == "joined intervals"
    again = run_command_warm(settings, "admin", "privacy", "resume", waits.id)  # nothing is left to do
    assert again["outcome"] == done["outcome"]


@pytest.mark.faults
def test_an_erased_key_is_in_no_folds_state_and_every_verdict_stays(
    tmp_path: Path, broker: BrokerInfo, topic: str
) -> None:
    settings = make_kind_project(tmp_path, broker, topic, "fold")
    home, definition = settings.pipeline(NAME), load_definition(settings.definitions / NAME)
    records = [
        record for batch in keyed(random_batches(random.Random("privacy fold"), 20), spread=False) for record in batch
    ]
    part = len(records) // 3
    send(settings, definition, records[:part])
    run_to_end(settings, tmp_path / "driver.log")
    early = take_savepoint(settings, NAME, now=utc_now(), reason="test")
    send(settings, definition, records[part : 2 * part])
    run_to_end(settings, tmp_path / "driver.log")
    key = Counter(one.key for one in records[:part]).most_common(1)[0][0]
    before = judge(settings)
    batches = path_ledger(home)
    assert holds(settings, key)
    assert f'"{key}"' in decoded_state(settings, definition)

    asked = new_erasure(settings, NAME, key, fields=("k",), why="request 118", by="test", now=utc_now())
    assert plan_erasure(settings, asked, key).refusals == ()

    def cut_off(line: str) -> None:
        if line.startswith("replaying"):
            raise InterruptedError(line)

    with pytest.raises(InterruptedError):  # the tables are rewritten, the restore has decided where it forks
        begin_erasure(settings, asked, key, now=utc_now(), progress=cut_off)
    assert head(home) == "t1"
    done = run_command_warm(settings, "admin", "privacy", "resume", asked.id)

    assert done["outcome"]["savepoints"] == {NAME: [early.id]}
    assert list_savepoints(home) == []
    assert holds(settings, key) == []
    assert head(home) == "t2"
    assert not home.checkpoint("t1").exists()
    state = decoded_state(settings, definition)
    assert f'"{key}"' not in state
    assert f'"{asked.pseudonym}"' in state
    after = judge(settings)
    assert (after["counts"], after["balance"]) == (before["counts"], before["balance"])
    assert [row.batch for row in path_ledger(home)] == [row.batch for row in batches]
    send(settings, definition, [one for one in records[2 * part :] if one.key != key])
    run_to_end(settings, tmp_path / "driver.log")
    assert path_ledger(home)[-1].timeline == "t2"
    judge(settings)
    assert (
        run_command_warm(settings, "admin", "privacy", "resume", asked.id)["outcome"] == done["outcome"]
    )  # nothing is left to do
    assert head(home) == "t2"


def decoded_state(settings: Settings, definition: Definition) -> str:
    """Return what the live checkpoint holds, keys and values as text."""
    home = settings.pipeline(NAME)
    last = path_ledger(home)[-1]
    spark = session_of(settings, definition)
    _ = spark.streams  # the state reader asks a coordinator that only the query manager starts
    reader = spark.read.format("statestore").option("batchId", last.batch)
    return str(reader.load(str(home.checkpoint(str(head(home))))).select("key", "value").collect())


def test_a_pipeline_that_never_ran_is_refused(tmp_path: Path, broker: BrokerInfo, topic: str) -> None:
    settings = make_kind_project(tmp_path, broker, topic, "tumbling")
    with pytest.raises(RequestError, match="never ran here"):
        new_erasure(settings, NAME, "a", fields=("k",), why="x", by="test", now=utc_now())
