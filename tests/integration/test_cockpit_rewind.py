"""A rewind from the page: what it would do, what refuses it, and a stream that is at work again with nothing lost."""

from __future__ import annotations

import os
import re
import signal
import uuid
from collections.abc import Iterator
from itertools import pairwise

import pytest
from playwright.sync_api import expect

from homes.project import TO_RUN, link, make_project
from rivertwice.core.instants import to_ms, utc_now
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.local.airflow import client
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.kafka import ensure_topic
from rivertwice.savepoint.catalogue import list_savepoints
from rivertwice.savepoint.take import take_savepoint
from rivertwice.storage.table import Table
from rivertwice.stream.lease import lease_owner
from rivertwice.timeline.intent import Heartbeat, Intent, write_intent
from rivertwice.timeline.ledger import read_ledger
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.sequence import head
from rivertwice.timeline.served import rebuild_served
from running.waiting import wait_for
from running.warm_spark import run_driver_warm
from servers.airflow import agent_and_airflow
from servers.cockpit import LIVE_MARKS, ask_for_act, axe_findings, chromium, page_of, picture
from streams.amounts import BEGIN_MS, MINUTE_MS, NAME, SQL, WINDOW_MS, YAML, Amount, send, totals

pytestmark = [*LIVE_MARKS, pytest.mark.faults]
TAB = f"/rivertwice/#/p/{NAME}/timelines"
OPERATE = f"operate__{NAME}"
STORY = [Amount(("in", "out")[number % 2], BEGIN_MS + number * MINUTE_MS // 2, 1 + number) for number in range(400)]
"""In the order of time, so that no record is late, however the batches are cut."""
SAVED, READ = 120, 280
"""How many records the savepoint has read, and the first timeline when it is left."""


@pytest.fixture(scope="module")
def settings(broker: BrokerInfo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A stream at work that a savepoint was taken of in the middle, with an agent and Airflow over it."""
    folder, topic = tmp_path_factory.mktemp("rewind"), f"t-{uuid.uuid4().hex[:12]}"
    files = {"pipeline.yaml": YAML.replace("TOPIC", topic), "transform.sql": SQL}
    made = make_project(folder, {NAME: files}, links=TO_RUN, bootstrap=broker.bootstrap)
    link(made.project, ("plugins", "spark_jobs", "dags"))
    ensure_topic(made, topic, 1)
    send(made, topic, STORY[:SAVED])
    run_driver_warm(made, NAME, folder / "first.log")
    take_savepoint(made, NAME, now=utc_now(), reason="before the change")
    send(made, topic, STORY[SAVED:READ])
    write_intent(made.pipeline(NAME), "running", "test", utc_now())
    try:
        with agent_and_airflow(made, NAME, users=("vera:viewer",), verbs=("operate",)):
            wait_for("the driver has read what is there", lambda: has_read(made, READ), 180)
            yield made
    finally:
        owner = lease_owner(made.pipeline(NAME))
        if owner is not None:
            os.kill(owner.pid, signal.SIGKILL)


def has_read(settings: Settings, records: int, timeline: str = "t1") -> bool:
    """Say whether a timeline serves, has read so many records, and its driver is alive."""
    home = settings.pipeline(NAME)
    beat = Heartbeat.load(home)
    (ends,) = path_ledger(home)[-1].end_offsets.values()
    return (
        head(home) == timeline
        and int(ends["0"]) == records
        and lease_owner(home) is not None
        and beat is not None
        and beat.timeline == timeline
    )


def test_a_rewind_is_shown_refused_and_done_and_nothing_is_lost(settings: Settings) -> None:
    home, (savepoint,) = settings.pipeline(NAME), list_savepoints(settings.pipeline(NAME))
    fork = savepoint.manifest.batch
    with chromium() as browser, page_of(browser, settings, TAB) as page:
        row = page.get_by_role("table", name="Savepoints, newest first").get_by_role("row", name=savepoint.id)
        row.get_by_role("button", name="Rewind").click()
        dialog = page.get_by_role("dialog", name=f"Rewind {savepoint.id}")
        expect(dialog).to_contain_text("This would be refused")
        expect(dialog).to_contain_text("was taken and never proved")
        expect(dialog.get_by_label("to confirm")).to_have_count(0)

        dialog.get_by_label("Accept it although it was never proved").check()
        expect(dialog.get_by_role("row", name="fork")).to_contain_text(f"batch {fork} of timeline t1")
        expect(dialog.get_by_role("row", name="would no longer count")).to_contain_text(
            re.compile(r"[1-9]\d* batches, up to batch \d+ of timeline t1")
        )
        expect(dialog.get_by_role("row", name="read again, from Kafka")).to_contain_text(f"{READ - SAVED} records")
        picture(page, "rewind-dialog")
        assert axe_findings(page) == []

        button = dialog.get_by_role("button", name="Rewind", exact=True)
        dialog.get_by_label("Reason").fill("the offsets were set wrongly")
        for typed in ("", NAME[:-1], NAME.upper()):
            dialog.get_by_label("to confirm").fill(typed)
            expect(button).to_be_disabled()
        fields = {"savepoint": savepoint.id, "unproved": True}
        for user, confirm, status in (("admin", NAME[:-1], 400), ("vera", NAME, 403)):
            assert (
                ask_for_act(settings, NAME, "savepoint.rewind", fields, user=user, confirm=confirm).status_code
                == status
            )
        airflow = client(settings)
        assert (airflow.runs(OPERATE), head(home)) == ([], "t1")

        dialog.get_by_label("to confirm").fill(NAME)
        button.click()
        expect(page.locator(".started a").first).to_be_visible()
        (run,) = airflow.runs(OPERATE)
        assert airflow.wait(OPERATE, run, 600) == "success", airflow.failures(OPERATE, run, 60)
        expect(page.get_by_role("region", name="Drawing of the timelines")).to_contain_text("t2 · head", timeout=40_000)

    done = airflow.xcom(OPERATE, run, "act")
    assert (done["head"], done["comparison"]["differs"], done["comparison"]["only_old"]) == ("t2", 0, 0)
    intent = Intent.load(home)
    assert intent is not None
    assert intent.desired == "running"
    old = [batch for batch in read_ledger(home) if batch.timeline == "t1"]
    (topic,) = old[-1].end_offsets
    send(settings, topic, STORY[READ:])
    wait_for("the stream is at work on the new timeline", lambda: has_read(settings, len(STORY), "t2"), 180)
    path = path_ledger(home)
    assert path[: fork + 1] == old[: fork + 1]
    assert {batch.timeline for batch in path[fork + 1 :]} == {"t2"}
    assert (sum(batch.read for batch in path), sum(batch.read for batch in old)) == (len(STORY), READ)
    assert all(before.end_offsets == after.start_offsets for before, after in pairwise(path))
    closed_ms = path[-1].batch_watermark_ms
    rebuild_served(home, load_definition(settings.definitions / NAME))
    served = {
        (to_ms(row["window_start"]), row["k"]): (row["records"], row["total"])
        for row in Table(home.tables.served).read().to_pylist()
    }
    expected = {
        row: (records, total) for row, (records, total, _) in totals(STORY).items() if row[0] + WINDOW_MS <= closed_ms
    }
    assert len(expected) > READ // 20
    assert {row: served[row] for row in expected} == expected
