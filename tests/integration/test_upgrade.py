"""A definition is changed under a stream on a real broker: refused, planned, carried over; every row is explained, nothing served changes."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.local.broker import BrokerInfo
from rivertwice.savepoint.take import take_savepoint
from rivertwice.timeline.intent import Exit
from rivertwice.timeline.lineage import Timeline, path_ledger
from rivertwice.timeline.sequence import head
from rivertwice.timeline.served import export_sha256, read_served, rebuild_served
from rivertwice.timeline.served_rows import stream_rows
from running.warm_spark import invoke_warm
from streams.synthetic import DriverProcess, flights, make_small_project, produce, run_to_end

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
NAME = "upgrade-cycle"
FIRST, SECOND = 300, 240
BEGINS = datetime(2013, 7, 1, 4, tzinfo=UTC)
REPAIRED = ("2013-07-01T05:00:00Z", "2013-07-01T08:00:00Z")
OLD = "mixed: a publication of an older definition serves the window"


def command(settings: Settings, *words: str, code: int = 0) -> Any:
    """Run a command; return what it printed as JSON, or, if it must fail, its last words."""
    done = invoke_warm(settings, "--output", "json", *words)
    assert done.exit_code == code, done.output[-4000:]
    return json.loads(done.stdout) if done.stdout.strip() else done.stderr


def change(settings: Settings, file: str, old: str, new: str) -> None:
    path = settings.definitions / NAME / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def served_now(settings: Settings) -> str:
    home = settings.pipeline(NAME)
    rebuild_served(home, load_definition(settings.definitions / NAME))
    return export_sha256(home)


@pytest.mark.proves(
    "architecture.md#decisions-that-changed-the-first-design",
    "howto-upgrade.md#how-to-change-a-definition-under-a-running-stream",
    "lab/docs/scenarios.md#scenarios",
    "guarantees.md#upgrade",
)
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.faults)], ids=["once", "twice"])
def test_a_changed_definition_resumes_the_old_state_and_serves_the_same(
    whole: bool, tmp_path: Path, broker: BrokerInfo, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = make_small_project(tmp_path, NAME, bootstrap=broker.bootstrap, batch=30, topic=topic)
    home = settings.pipeline(NAME)
    produce(settings, topic, flights(FIRST, start=BEGINS))
    run_to_end(settings, NAME)
    taken = take_savepoint(settings, NAME, now=utc_now(), reason="before the upgrade")
    command(settings, "savepoint", "prove", NAME, taken.id)
    command(settings, "backfill", "run", NAME, "--yes", "--from", REPAIRED[0], "--to", REPAIRED[1])
    served = served_now(settings)
    published = read_served(home).to_pylist()
    assert any(row["_status"] == "published" for row in published)

    # A change that shapes the state is refused, by the start, by the plan and by the act.
    change(settings, "transform.sql", "max(dep_delay)", "min(dep_delay)")
    driver = DriverProcess(settings, NAME, "--until-end")
    assert driver.process.wait(120) == 1
    found = Exit.load(home)
    assert found is not None
    assert (found.failure, f"rivertwice upgrade {NAME}" in found.message) == ("fingerprint", True)
    plan = command(settings, "upgrade", NAME, "--dry-run", code=1)
    assert (plan["way"], set(plan["obstacles"])) == ("refused", {"transform"})
    assert "transform: it shapes the state" in command(settings, "upgrade", NAME, "--yes", code=1)
    assert (head(home), list(home.operations.glob("restore-*.json"))) == ("t1", [])
    change(settings, "transform.sql", "min(dep_delay)", "max(dep_delay)")
    assert "nothing in the definition" in command(settings, "upgrade", NAME, "--yes", code=1)

    # One that does not is planned, then done; the log has more by now.
    change(settings, "pipeline.yaml", "watermark: 1 hour", "watermark: 90 minutes")
    (settings.definitions / NAME / "rows.sql").write_text("SELECT * FROM flights WHERE origin <> 'LGA'\n")
    produce(settings, topic, flights(SECOND, seed=2, start=BEGINS + timedelta(minutes=2 * FIRST)))
    last = path_ledger(home)[-1].batch
    plan = command(settings, "upgrade", NAME, "--dry-run")
    assert (plan["way"], {one["component"] for one in plan["changes"]}) == ("resume", {"rows", "watermark"})
    assert (plan["timeline"], plan["batch"], plan["publications"]) == ("t1", last, 1)
    assert (plan["savepoint"], plan["origin"], plan["replay"]) == ("checkpoint", taken.id, 0)
    done = command(settings, "upgrade", NAME, "--yes")
    assert done["replayed"] == 0
    assert (done["parent"], done["forked_at"], done["timeline"], sorted(done["changed"])) == (
        "t1",
        last,
        "t2",
        ["rows", "watermark"],
    )
    assert Timeline.load(home, "t2").bundle == done["bundle"] != Timeline.load(home, "t1").bundle
    assert served_now(settings) == served
    run_to_end(settings, NAME)
    rows = path_ledger(home)
    assert {row.timeline for row in rows} == {"t1", "t2"}
    assert sum(row.read for row in rows) == FIRST + SECOND
    now = {(row["window_start"], row["origin"]): row for row in served_rows(settings)}
    assert all(now[row["window_start"], row["origin"]] == row for row in published)

    # The savepoint that the new timeline began from is proved by the old definition, though the new one runs.
    proof = command(settings, "savepoint", "prove", NAME, done["savepoint"])
    assert (proof["proved"], proof["batches"]) == (True, last - taken.manifest.batch)
    assert f"since {taken.id} replayed equal" in proof["reason"]

    # Every row has its cause: of the old definition, of the new one, or of both.
    report = command(settings, "reconcile", NAME)
    balance = report["balance"]
    assert {one["unexplained"] for one in (balance["total"], *balance["partitions"].values())} == {0}
    for pair in ("stream", "served"):
        counts = report["counts"][pair]
        assert counts["DEFECT"] == 0
        assert counts["AGREES"] > 0
        assert counts["NOT_COMPARABLE"] > 0
    by_new = [
        row
        for row in stream_rows(home).to_pylist()
        if row["window_start"] >= BEGINS + timedelta(minutes=2 * FIRST + 60)
    ]
    assert by_new
    assert {row["origin"] for row in by_new} == {"EWR", "JFK"}
    if whole:
        check_another_decoding(settings, topic, taken.id, report, capsys)


def check_another_decoding(
    settings: Settings, topic: str, taken: str, report: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The new timeline is restored and upgraded in its turn, by a definition that rejects what the one before took."""
    home = settings.pipeline(NAME)
    # The new timeline has savepoints of its own; those of the old definition are refused.
    own = take_savepoint(settings, NAME, now=utc_now(), reason="behind the upgrade")
    assert command(settings, "savepoint", "prove", NAME, own.id)["proved"]
    assert "another definition" in command(settings, "savepoint", "restore", NAME, taken, "--yes", code=1)
    assert command(settings, "savepoint", "restore", NAME, "--yes")["savepoint"] == own.id
    assert Timeline.load(home, "t3").fingerprint == Timeline.load(home, "t2").fingerprint

    # Another decoding, which rejects what the old one took: each record counts as the definition that read it took it.
    change(settings, "pipeline.yaml", "max: 2880", "max: 60")
    assert command(settings, "upgrade", NAME, "--savepoint", own.id, "--yes")["changed"] == ["rules"]
    produce(settings, topic, flights(SECOND, seed=3, start=BEGINS + timedelta(minutes=2 * (FIRST + SECOND))))
    run_to_end(settings, NAME)
    rows = path_ledger(home)
    dead = {timeline: sum(row.bad for row in rows if row.timeline == timeline) for timeline in ("t1", "t2", "t4")}
    assert (dead["t1"], dead["t2"]) == (0, 0)
    assert dead["t4"] > 0
    again = command(settings, "reconcile", NAME)
    for one in again["counts"].values():
        assert one["DEFECT"] == 0
    assert again["balance"]["total"]["unexplained"] == 0
    assert again["balance"]["total"]["dead"] == dead["t4"]
    assert again["counts"]["stream"]["NOT_COMPARABLE"] > report["counts"]["stream"]["NOT_COMPARABLE"]
    compared = [again["counts"]["stream"][verdict] for verdict in ("AGREES", "LATE")]
    assert sum(compared) > sum(report["counts"]["stream"][verdict] for verdict in ("AGREES", "LATE"))
    with capsys.disabled():
        told = {pair: {key: value for key, value in one.items() if value} for pair, one in report["counts"].items()}
        sys.stdout.write(f"\n{len(rows)} batches; {told}; {again['counts']}\n")


def served_rows(settings: Settings) -> list[dict[str, Any]]:
    served_now(settings)
    return list(read_served(settings.pipeline(NAME)).to_pylist())
