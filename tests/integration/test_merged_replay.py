"""Many recorded batches in one batch of Spark: the state, the logs and what follows are those of a replay one by one."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from histories.random_histories import PARTITIONS, Record, random_batches
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.local.broker import BrokerInfo
from rivertwice.log import kafka
from rivertwice.log.archive import extend_archive
from rivertwice.savepoint import merged, replay
from rivertwice.savepoint.feed import session_of
from rivertwice.savepoint.proof import read_state
from rivertwice.savepoint.take import make_empty_checkpoint
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.sequence import head
from rivertwice.timeline.served import rebuild_served
from running.tiers import in_turn
from running.warm_spark import own_session, run_command_warm
from streams.kinds import NAME, check_explained, make_kind_project, run_killed, run_to_end, send

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
BATCH = 50


def stream(folder: Path, broker: BrokerInfo, topic: str, kind: str) -> Settings:
    """Run a driver over a random history with late and broken records; the one of tumbling windows is killed once."""
    chance = random.Random(f"merged {kind}")
    settings = make_kind_project(folder, broker, topic, kind, batch=BATCH)
    definition = load_definition(settings.definitions / NAME)
    send(settings, definition, [record for one in random_batches(chance, 20) for record in one])
    if kind == "tumbling":
        run_killed(settings, chance.randint(3, 9), folder / "driver.log")
    else:
        run_to_end(settings, folder / "driver.log")
    return settings


@pytest.fixture(scope="module")
def streamed(broker: BrokerInfo, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A stream of tumbling windows that ran to its end; only the last test of the file changes it."""
    return stream(tmp_path_factory.mktemp("merged"), broker, "merged-tumbling", "tumbling")


@pytest.fixture
def spark(streamed: Settings) -> Iterator[SparkSession]:
    with own_session():
        yield session_of(streamed, load_definition(streamed.definitions / NAME))


def replayed(
    spark: SparkSession, settings: Settings, folder: Path, rows: Sequence[LedgerRow], *, merge: bool = True
) -> list[str]:
    """Replay rows over a checkpoint, which is made if there is none; return the lines that were told."""
    if not folder.exists():
        make_empty_checkpoint(folder)
    lines: list[str] = []
    kept: dict[int, int] = {}
    done = replay.replay_recorded(
        spark,
        settings,
        load_definition(settings.definitions / NAME),
        folder,
        rows,
        progress=lines.append,
        merge=merge,
        keep=lambda row, table: kept.update({row.batch: table.num_rows}),
    )
    assert [(one.batch, one.digest, one.emitted, one.read) for one in done] == [
        (row.batch, row.digest, row.emitted, row.read) for row in rows
    ]
    assert kept == {row.batch: row.emitted for row in rows}
    assert [entry.name for entry in folder.parent.iterdir() if ".merged" in entry.name] == []
    return lines


def is_merged(lines: Sequence[str]) -> bool:
    return any("Spark replays them in" in line for line in lines) and not any("one by one" in x for x in lines)


def check_same(spark: SparkSession, one: Path, other: Path, rows: Sequence[LedgerRow]) -> None:
    """Require that two checkpoints are equal for all that comes after the last of `rows`."""
    last = rows[-1].batch
    assert read_state(spark, one, last) == read_state(spark, other, last)
    for folder in (one, other):
        for row in rows:
            assert (folder / "offsets" / str(row.batch)).read_text() == row.offsets_text
        for log in ("offsets", "commits"):
            assert max(int(path.name) for path in (folder / log).iterdir() if path.name.isdigit()) == last
    commits = [(each / "commits" / str(last)).read_text().split("\n") for each in (one, other)]
    assert commits[0][0] == commits[1][0]
    assert len({json.loads(lines[1])["nextBatchWatermarkMs"] for lines in commits}) == 1
    assert (one / "sources/0/0").read_bytes() == (other / "sources/0/0").read_bytes()


@pytest.mark.parametrize("kind", ["tumbling", "hopping", *in_turn(["tumbling computed keys", "hopping renamed key"])])
@pytest.mark.proves("howto-savepoints.md#what-a-replay-costs")
def test_a_merged_replay_leaves_what_a_replay_one_by_one_leaves(
    tmp_path: Path, broker: BrokerInfo, topic: str, kind: str, request: pytest.FixtureRequest
) -> None:
    settings = request.getfixturevalue("streamed") if kind == "tumbling" else stream(tmp_path, broker, topic, kind)
    rows = path_ledger(settings.pipeline(NAME))
    assert any(row.read == 0 for row in rows), "no batch that only a watermark made"
    assert min(sum(row.bad for row in rows), sum(row.late_rows or 0 for row in rows)) > 0
    cut = random.Random(f"cut {kind}").randint(9, len(rows) - 9)
    slow, quick, after = tmp_path / "slow", tmp_path / "quick", tmp_path / "after"
    with own_session():
        spark = session_of(settings, load_definition(settings.definitions / NAME))
        replayed(spark, settings, slow, rows[:cut], merge=False)
        assert is_merged(replayed(spark, settings, quick, rows[:cut]))
        check_same(spark, quick, slow, rows[:cut])
        shutil.copytree(quick, after)
        replayed(spark, settings, slow, rows[cut:], merge=False)
        replayed(spark, settings, after, rows[cut:], merge=False)  # the batches that follow are the recorded ones
        assert is_merged(replayed(spark, settings, quick, rows[cut:]))  # over a state that is not empty
        for folder in (after, quick):
            check_same(spark, folder, slow, rows[cut:])
        live = settings.pipeline(NAME).checkpoint(head(settings.pipeline(NAME)) or "")
        assert read_state(spark, quick, rows[-1].batch) == read_state(spark, live, rows[-1].batch)


def test_whatever_is_unexpected_the_batches_are_replayed_one_by_one_over_a_fresh_copy(
    streamed: Settings, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = path_ledger(streamed.pipeline(NAME))[:12]
    slow = tmp_path / "slow"
    replayed(spark, streamed, slow, rows, merge=False)
    counted = next(index for index, row in enumerate(rows) if row.bad)
    changed = [*rows[:counted], replace(rows[counted], bad=0), *rows[counted + 1 :]]
    told = replayed(spark, streamed, tmp_path / "counts", changed)
    assert [line for line in told if "one by one" in line and f"batch {rows[counted].batch} " in line]
    check_same(spark, tmp_path / "counts", slow, rows)
    with monkeypatch.context() as patch:
        patch.setattr(replay, "SNAPSHOTS", {})
        told = replayed(spark, streamed, tmp_path / "changelog", rows)
    assert [line for line in told if "one by one" in line and "has no snapshot" in line]
    check_same(spark, tmp_path / "changelog", slow, rows)


def test_a_merged_replay_that_was_killed_is_repeated_with_the_same_result(
    streamed: Settings, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = path_ledger(streamed.pipeline(NAME))[:12]
    slow, killed = tmp_path / "slow", tmp_path / "killed"
    replayed(spark, streamed, slow, rows, merge=False)

    def half(checkpoint: Path, *arguments: object, **more: object) -> None:
        merged.renumber(checkpoint, *arguments, **more)  # type: ignore[arg-type]
        (checkpoint / "commits" / str(rows[-1].batch)).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(replay, "renumber", half)
        with pytest.raises(KeyboardInterrupt):
            replayed(spark, streamed, killed, rows)
    (tmp_path / ".killed.merged" / "commits").mkdir(parents=True)  # a kill leaves its copy
    (tmp_path / ".killed.merged" / "commits" / "99").write_text("of the attempt before")
    assert is_merged(replayed(spark, streamed, killed, rows))
    check_same(spark, killed, slow, rows)


@pytest.mark.proves("guarantees.md#restore-fall-back-rewind")
def test_a_stream_runs_on_after_a_merged_restore_from_replay_topics(streamed: Settings, spark: SparkSession) -> None:
    # Last in the file: it empties the topic and moves the head.
    home, definition = streamed.pipeline(NAME), load_definition(streamed.definitions / NAME)
    before = path_ledger(home)
    topic = definition.topics[0]
    extend_archive(spark, streamed, topic)
    kafka.delete_records(streamed, topic, {int(p): end for p, end in before[-1].end_offsets[topic].items()})
    report = run_command_warm(streamed, "savepoint", "restore", NAME, "--from-beginning", "--yes")
    assert (report["replayed"], head(home)) == (len(before), "t2")
    checkpoint = home.checkpoint("t2")
    assert [path.name for path in (checkpoint / "commits").iterdir()] == [str(before[-1].batch)], "it was not merged"
    records = [Record(number % PARTITIONS, 1_000_000 + number, "last", 200_000 + number, 1) for number in range(150)]
    send(streamed, definition, records)
    run_to_end(streamed, streamed.home / "driver.log")
    assert [row.timeline for row in path_ledger(home)[len(before) :]].count("t2") > 2
    rebuild_served(home, definition)
    check_explained(run_command_warm(streamed, "reconcile", NAME))
    taken = run_command_warm(streamed, "savepoint", "take", NAME)
    assert run_command_warm(streamed, "savepoint", "prove", NAME, taken["id"])["proved"]
