"""A pipeline whose archive is kept decoded, through the command line: equal verdicts and rows, and an altered file is named."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from homes.project import edit_yaml, replace_text
from lab.flights.plan import STORM
from lab.flights.replay import ReplayRequest, replay
from rivertwice.core.settings import Settings
from rivertwice.engine import decoded_log
from rivertwice.local.broker import BrokerInfo
from rivertwice.log import decoded_files, kafka
from rivertwice.log.archive import extend_archive
from rivertwice.log.decoded_files import decoded_place, sum_of
from rivertwice.reconcile.results import newest_reconcile
from rivertwice.storage.table import Table
from rivertwice.timeline.served import read_served
from running.warm_spark import invoke_warm, run_command_warm, run_driver_warm
from streams.flights import PIPELINE, StreamedRun, copy_run, make_flights_project

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
FILES = 6


@pytest.fixture(scope="module")
def streamed(broker: BrokerInfo, tmp_path_factory: pytest.TempPathFactory) -> StreamedRun:
    """Two days of flights and one per cent of poison, streamed, served and archived in several files; not reconciled."""
    folder = tmp_path_factory.mktemp("decoded")
    pins = {"max_offsets_per_trigger": 240}
    settings = make_flights_project(folder, bootstrap=broker.bootstrap, topic="decoded", pins=pins)

    def keep(document: dict[str, Any]) -> None:
        document["sources"]["flights"]["keep_decoded"] = True

    edit_yaml(settings.definitions / PIPELINE, keep)
    report = replay(settings, ReplayRequest(topic="decoded", days=STORM, poison_share=0.01))
    run_driver_warm(settings, PIPELINE, folder / "driver.log")
    run_command_warm(settings, "admin", "rebuild", PIPELINE)
    run = StreamedRun(settings, "decoded", report.planned)
    extend_archive(None, settings, run.topic, chunk_records=600)
    return run


@pytest.fixture
def run(streamed: StreamedRun, tmp_path: Path) -> StreamedRun:
    """A copy with its archive."""
    copy = copy_run(streamed, tmp_path)
    shutil.copytree(streamed.settings.home / "archive", copy.settings.home / "archive")
    return copy


def kept(settings: Settings) -> list[Path]:
    place = decoded_place(settings, "decoded")
    assert place is not None
    return sorted(place.glob("[!.]*/*.parquet"))


def judge(settings: Settings) -> dict[str, Any]:
    done: dict[str, Any] = run_command_warm(settings, "reconcile", PIPELINE, "--full")
    return done


def newest(run: StreamedRun) -> dict[str, Any]:
    found = newest_reconcile(run.home)
    assert found is not None
    return found


def no_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if any bytes are decoded."""

    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("bytes were decoded")

    monkeypatch.setattr(decoded_log, "decode", refuse)


@pytest.mark.proves("howto-log.md#keep-archived-records-decoded", "guarantees.md#archive")
@pytest.mark.parametrize("archived", ["all", "half"])
def test_whole_reconciles_give_the_same_from_bytes_and_from_columns(
    run: StreamedRun, monkeypatch: pytest.MonkeyPatch, archived: str
) -> None:
    files = FILES
    if archived == "half":  # what only Kafka has is decoded each time
        shutil.rmtree(run.settings.home / "archive")
        ends = kafka.end_offsets(run.settings, run.topic)
        extend_archive(None, run.settings, run.topic, upto={p: end // 2 for p, end in ends.items()})
        table = Table(run.settings.archive(run.topic)).open()
        assert table is not None
        files = len(table.sizes())
    with monkeypatch.context() as patch:
        patch.setattr("rivertwice.log.records.decoded_place", lambda *_: None)
        from_bytes = judge(run.settings)
    assert kept(run.settings) == []
    told = []
    for _ in range(3):
        again = judge(run.settings)
        assert {name: again[name] for name in ("counts", "balance")} == {
            name: from_bytes[name] for name in ("counts", "balance")
        }
        told.append(newest(run)["gate"]["reason"].partition("; ")[2])
    assert len(kept(run.settings)) == files
    before = f"{files} archived files were decoded before, 1 of them were decoded again, {files} read as they were"
    assert told == [f"{files} were decoded and kept", before, before]


def flip(path: Path) -> Path:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    return path


def forge(path: Path) -> Path:
    """Add a minute to a delay, and give the file the name of its new sum."""
    rows = pq.read_table(path)
    delays = rows["dep_delay"].to_pylist()
    place = next(n for n, delay in enumerate(delays) if delay is not None)
    delays[place] += 60
    changed = rows.set_column(rows.schema.get_field_index("dep_delay"), "dep_delay", pa.array(delays, pa.int32()))
    pq.write_table(changed, path)
    stem = path.name.removesuffix(".parquet").rpartition(".")[0]
    return path.rename(path.with_name(f"{stem}.{sum_of(path)}.parquet"))


@pytest.mark.proves("guarantees.md#verdicts")
@pytest.mark.parametrize("alter", [flip, forge])
def test_an_altered_file_is_a_finding_whose_remedy_can_be_pasted(run: StreamedRun, alter: Any) -> None:
    clean = judge(run.settings)
    victim = alter(kept(run.settings)[1])
    decoded_files.forget_compared()
    found = None
    for _ in range(FILES):  # a forged one in the run that takes it
        done = invoke_warm(run.settings, "reconcile", PIPELINE, "--full")
        if done.exit_code:
            found = done
            break
    assert found is not None
    assert str(victim) in found.output
    assert newest(run)["counts"] == clean["counts"]  # what was altered is not what was judged by
    (remedy,) = set(re.findall(r"`(rm [^`]+)`", found.output.replace("\n", " ")))
    subprocess.run(["bash", "-c", remedy], check=True)
    assert not victim.exists()
    assert judge(run.settings)["counts"] == clean["counts"]
    assert len(kept(run.settings)) == FILES


@pytest.mark.proves("howto-log.md#keep-archived-records-decoded")
def test_a_backfill_and_a_try_read_columns_alone_and_give_the_same_rows(
    run: StreamedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = copy_run(run, tmp_path / "other")
    shutil.copytree(run.settings.home / "archive", other.settings.home / "archive")
    asked = ("--from", "2013-06-30T00:00:00Z", "--to", "2013-07-01T12:00:00Z", "--yes")

    def backfill(settings: Settings) -> list[dict[str, Any]]:
        run_command_warm(settings, "backfill", "run", PIPELINE, *asked)
        rows: list[dict[str, Any]] = read_served(settings.pipeline(PIPELINE)).to_pylist()
        names = ("window_start", "origin", "flights", "cancelled", "delay_sum", "delay_max", "late_15")
        return sorted(({name: row[name] for name in names} for row in rows), key=str)

    with monkeypatch.context() as patch:
        patch.setattr("rivertwice.log.records.decoded_place", lambda *_: None)
        from_bytes = backfill(other.settings)
    judge(run.settings)
    assert len(kept(run.settings)) == FILES
    replace_text(run.settings.definitions / PIPELINE / "transform.sql", "> 15", "> 20")
    try:
        with monkeypatch.context() as patch:
            no_decode(patch)
            assert backfill(run.settings) == from_bytes
            tried = run_command_warm(run.settings, "try", PIPELINE)
        with monkeypatch.context() as patch:
            patch.setattr("rivertwice.log.records.decoded_place", lambda *_: None)
            assert run_command_warm(run.settings, "try", PIPELINE) == tried
    finally:
        replace_text(run.settings.definitions / PIPELINE / "transform.sql", "> 20", "> 15")
