"""History that is in a lake: a first load reads it, and whatever reads the log by offsets reads it, too."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from homes.project import edit_yaml
from rivertwice.backfill import load_plan
from rivertwice.core.instants import to_iso
from rivertwice.core.settings import Settings
from rivertwice.local.broker import BrokerInfo
from rivertwice.reconcile import observe
from rivertwice.timeline.first_load import FirstLoad
from rivertwice.timeline.served import read_served
from running.warm_spark import invoke_warm, run_command_warm, run_driver_warm
from streams.first_load import from_batch, load_whole, reconciled, said_by
from streams.lake import (
    BY_COLUMNS,
    BY_PAYLOAD,
    HOUR,
    NAME,
    UNTIL,
    Visit,
    by_hand,
    make_visits,
    moved,
    past,
    present,
    send,
    write_lake,
    write_lake_again,
)

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def served(settings: Settings) -> dict[tuple[datetime, str], tuple[int, Decimal]]:
    rows = read_served(settings.pipeline(NAME))
    assert rows is not None
    return {(row["window_start"], row["k"]): (row["records"], row["total"]) for row in rows.to_pylist()}


HISTORY = "history: computed from "


def reasons_by_window(settings: Settings) -> dict[datetime, str]:
    """Return start of a window to the reason why its rows agree, of the newest whole reconcile."""
    shown = run_command_warm(settings, "verdicts", NAME, "--pair", "served", "--verdict", "AGREES", "--limit", "10000")
    return {datetime.fromisoformat(row["window_start"]): row["reason"] for row in shown["rows"]}


def rows_named(form: str, parts: list[dict[str, Any]], visit: Visit) -> bool:
    """Say whether a visit is one of the rows of files that are named, by reading these rows there."""
    found = []
    for part in parts:
        with pq.ParquetFile(part["file"]) as file:
            rows = file.read().slice(part["first_row"], part["end"] - part["start"])
        found += zip(rows["visited"].to_pylist(), rows["customer"].to_pylist(), strict=True)
    assert all(form in part["snapshot"].lower() for part in parts)
    return (visit.at, visit.key) in found


def first_window(visits: list[Visit]) -> datetime:
    return visits[0].at.replace(minute=0, second=0, microsecond=0)


def closed(visits: list[Visit]) -> dict[tuple[datetime, str], tuple[int, Decimal]]:
    """Return what is served when all visits are read: windows that end by the watermark, an hour behind the newest."""
    watermark = max(visit.at for visit in visits) - HOUR
    return {where: sums for where, sums in by_hand(visits).items() if where[0] + HOUR <= watermark}


@pytest.mark.proves("guarantees.md#history-in-a-lake")
@pytest.mark.parametrize(("form", "mapping"), [("delta", BY_COLUMNS), ("iceberg", BY_PAYLOAD), ("parquet", BY_COLUMNS)])
def test_years_in_a_lake_and_the_log_after_them_give_what_is_computed_by_hand_over_both(
    tmp_path: Path, broker: BrokerInfo, topic: str, monkeypatch: pytest.MonkeyPatch, form: str, mapping: dict[str, Any]
) -> None:
    monkeypatch.setattr(load_plan, "LEAST_BLOCK", 10)
    old, new = past(1, 200), present(2, 120)
    copied = [*old, *new[:30]]  # the lake has the first hours of the log, too
    history = write_lake(form, tmp_path / "lake", copied, patch=monkeypatch)
    settings = make_visits(tmp_path, broker.bootstrap, topic, {**history, **mapping})
    home = settings.pipeline(NAME)
    send(settings, topic, new)
    refused = invoke_warm(settings, "start", NAME)
    assert refused.exit_code == 1
    assert f"rivertwice start {NAME} --from-batch" in refused.output
    plan = said_by(from_batch(settings, "--dry-run", name=NAME))["plan"]
    assert FirstLoad.load(home) is None
    assert plan["ranges"]["0"][0] == -len(copied)

    log = tmp_path / "driver.log"
    said = load_whole(settings, log, NAME)
    assert said["load"]["rejected"] == {"missing": sum(visit.key is None for visit in old)}
    report = reconciled(settings, NAME)
    assert report["counts"]["served"]["LATE"] == 0
    assert served(settings) == closed([*old, *new])
    reasons = reasons_by_window(settings)
    assert all(HISTORY in reasons[start] for start in reasons if start < UNTIL)
    assert not any(HISTORY in reasons[start] for start in reasons if start > UNTIL)

    # The table is written on, and its newest version is of no matter: the files of the snapshot are.
    write_lake_again(form, tmp_path / "lake", moved(old, HOUR))
    send(settings, topic, more := moved(present(3, 40), HOUR * 40))
    run_driver_warm(settings, NAME, log)
    assert reconciled(settings, NAME, full=False)["increment"] is not None
    with monkeypatch.context() as patch:
        patch.setattr(observe, "MOST_RECORDS", 0)
        assert reconciled(settings, NAME)["counts"]["served"]["LATE"] == 0
    assert reasons_by_window(settings) | reasons == reasons_by_window(settings)
    assert served(settings) == closed([*old, *new, *more])

    # A window of the history is computed again, and one with records of both sides.
    for start in (first_window(old), UNTIL - HOUR / 2):
        span = ("--from", to_iso(start), "--to", to_iso(start + HOUR))
        done = run_command_warm(settings, "backfill", "run", NAME, *span, "--yes")
        assert done["windows"] == 1
    assert reconciled(settings, NAME)["counts"]["served"]["LATE"] == 0
    assert served(settings) == closed([*old, *new, *more])

    # A number of the history is explained down to its row in the lake.
    first, window = old[0], first_window(old)
    explained = run_command_warm(settings, "explain", NAME, to_iso(window), str(first.key), "--with-truth")
    parts = explained["reads"]["lake"]
    assert rows_named(form, parts, first)
    assert HISTORY in explained["reads"]["proof"]
    assert HISTORY in invoke_warm(settings, "explain", NAME, to_iso(window), str(first.key)).output


@pytest.mark.proves("guarantees.md#history-in-a-lake")
def test_a_file_that_a_vacuum_took_is_named_and_once_it_is_put_back_all_is_as_before(
    tmp_path: Path, broker: BrokerInfo, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_plan, "LEAST_BLOCK", 10)
    old, new = past(4, 120), present(5, 100)
    lake, backup = tmp_path / "lake", tmp_path / "backup"
    settings = make_visits(tmp_path, broker.bootstrap, topic, {**write_lake("delta", lake, old), **BY_COLUMNS})
    send(settings, topic, new)
    load_whole(settings, tmp_path / "driver.log", NAME)
    before = reconciled(settings, NAME)
    shutil.copytree(lake, backup)
    write_lake_again("delta", lake, moved(old, HOUR))
    DeltaTable(str(lake)).vacuum(0, dry_run=False, enforce_retention_duration=False)

    span = ("--from", to_iso(first_window(old)), "--to", to_iso(first_window(old) + HOUR))
    refused = invoke_warm(settings, "--output", "json", "backfill", "run", NAME, *span, "--yes")
    assert refused.exit_code != 0
    said = json.loads(refused.output.splitlines()[-1])["error"]["message"]
    gone = re.findall(rf"({lake}\S+) is gone", said)
    assert gone
    assert f"snapshot 2 of delta table {lake}" in said
    assert not any(Path(name).exists() for name in gone)
    done = invoke_warm(settings, "--output", "json", "reconcile", NAME, "--full")
    counts = json.loads(done.stdout)["counts"]
    assert counts["served"]["DEFECT"] == 0
    assert counts["served"]["NOT_COMPARABLE"] > 0
    shown = run_command_warm(settings, "verdicts", NAME, "--verdict", "NOT_COMPARABLE", "--pair", "served")["rows"]
    assert {"cannot be read now" in row["reason"] for row in shown} == {True}

    for file in backup.rglob("*.parquet"):
        back = lake / file.relative_to(backup)
        if not back.exists():
            shutil.copyfile(file, back)
    run_command_warm(settings, "backfill", "run", NAME, *span, "--yes")
    assert reconciled(settings, NAME)["counts"] == before["counts"]
    assert served(settings) == closed([*old, *new])

    # Erasing is refused: the table is not ours, and what it has would be computed again.
    erased = invoke_warm(
        settings,
        *("admin", "privacy", "erase", NAME, "--field", "k", "--value", "k1", "--reason", "asked"),
        "--dry-run",
    )
    assert "has a history in a lake" in erased.output


@pytest.mark.proves("guarantees.md#history-in-a-lake")
def test_a_record_that_may_be_in_the_lake_and_in_the_log_is_refused_and_an_earlier_end_is_the_remedy(
    tmp_path: Path, broker: BrokerInfo, topic: str
) -> None:
    old, new = past(6, 60), present(7, 60)
    early = replace(new[0], at=UNTIL - HOUR * 3)
    settings = make_visits(
        tmp_path, broker.bootstrap, topic, {**write_lake("delta", tmp_path / "lake", old), **BY_COLUMNS}
    )
    send(settings, topic, [*new, early])
    refused = from_batch(settings, "--dry-run", name=NAME)
    assert refused.exit_code == 1
    assert f"{topic}/0@30 of {to_iso(early.at)}; it may be in both" in refused.output
    remedy = re.findall(r"let `until` be (\S+) or earlier", refused.output)
    assert remedy == [to_iso(early.at)]
    edit_yaml(settings.definitions / NAME, lambda it: it["sources"]["records"]["history"].update(until=remedy[0]))
    assert said_by(from_batch(settings, "--dry-run", name=NAME))["plan"]["ranges"]["0"][0] == -len(old)

    # Windows that the log leaves open reach into the history: the stream would have to read it.
    edit_yaml(settings.definitions / NAME, lambda it: it["window"].update(size="60 days"))
    sql = settings.definitions / NAME / "transform.sql"
    sql.write_text(sql.read_text().replace("'1 hour'", "'60 days'"))
    refused = from_batch(settings, "--dry-run", name=NAME)
    assert refused.exit_code == 1
    assert "and a stream reads Kafka alone; wait until the log has records that close" in refused.output
