"""What `rivertwice status` says is served: what the table has, not what the watermark would allow."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from homes.backfill import HOUR, NOW, emitted, make_home
from homes.ledger import ledger_row
from homes.versions import leave_reconcile
from rivertwice.cli.main import cli
from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import Bundle
from rivertwice.storage.table import Table
from rivertwice.timeline.intent import Heartbeat, write_intent
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.result_status import served_end
from rivertwice.timeline.served import rebuild_served
from running.waiting import wait_for

Made = tuple[Settings, PipelineHome, Bundle]
SERVED, LEFT = "Windows that ended by 1970-01-01 08:00:00 UTC are served", "those that ended by 1970-01-01 10:00:00 UTC"


def run(settings: Settings, *words: str) -> Result:
    done = CliRunner().invoke(cli, list(words), env=settings.to_env())
    assert done.exit_code == 0, (done.output, done.exception)
    return done


def said(settings: Settings) -> str:
    """Return the sentences about the pipeline."""
    return "\n".join(line for line in run(settings, "status").stdout.splitlines() if line.startswith("p: "))


def go_on(made: Made) -> None:
    """Commit two batches that close two more windows, as a driver does; nobody builds what is served."""
    _, home, bundle = made
    for n in (10, 11):
        rows = emitted("t1", n, (n - 2, "a", 10))
        Table(home.tables.changelog, partition_by=["_day"]).append(rows, transactions={"p#t1": n})
        append_ledger(home, [ledger_row(n, bundle=bundle.id, batch_watermark_ms=(n - 1) * HOUR, emitted=1)])
    Heartbeat(1, 1, "t1", "idle", NOW, batch=11, watermark_ms=10 * HOUR).save(home)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    settings, home, bundle = make_home(tmp_path)
    write_intent(home, "stopped", "test", NOW)
    leave_reconcile(home)  # so that nothing worse is to be said
    return settings, home, bundle


@pytest.mark.proves("cli.md#what-status-shows")
def test_what_is_served_ends_where_the_table_ends_and_what_would_serve_the_rest_is_said(made: Made) -> None:
    settings, home, bundle = made
    rebuild_served(home, bundle.definition)
    assert f"{SERVED}. Next" in said(settings)
    go_on(made)
    text = said(settings)
    assert (
        f"{SERVED}; {LEFT} are closed and not served yet, because no agent is running: `rivertwice agent start`" in text
    )
    value = json.loads(run(settings, "--output", "json", "status").stdout)["pipelines"][0]
    assert value["served"] == {
        "timeline": "t1", "batch": 9, "until": "1970-01-01T08:00:00Z", "closed": "1970-01-01T10:00:00Z", "is_current": False,
    }  # fmt: skip
    command = next(part for part in text.split("`")[1::2] if part.startswith("rivertwice admin"))
    run(settings, *shlex.split(command)[1:])
    assert "windows that ended by 1970-01-01 10:00:00 UTC are served. Next" in said(settings).replace(
        "Windows", "windows"
    )


def test_an_agent_serves_the_rest(made: Made) -> None:
    settings, home, bundle = made
    rebuild_served(home, bundle.definition)
    go_on(made)
    command = next(part for part in said(settings).split("`")[1::2] if part.startswith("rivertwice agent"))
    try:
        run(settings, *shlex.split(command)[1:])
        wait_for("the agent builds what is served", lambda: served_end(home).is_current, 60)
        assert "windows that ended by 1970-01-01 10:00:00 UTC are served" in said(settings).replace(
            "Windows", "windows"
        )
    finally:
        run(settings, "agent", "stop")


def test_nothing_is_called_served_before_the_table_is_built(made: Made) -> None:
    settings, home, bundle = made
    text = said(settings)
    assert "Nothing is served yet; those that ended by 1970-01-01 08:00:00 UTC are closed and not served yet" in text
    rebuild_served(home, bundle.definition)
    assert SERVED in said(settings)


def test_a_stream_without_a_driver_and_an_agent_adds_no_window(made: Made) -> None:
    settings, home, bundle = made
    rebuild_served(home, bundle.definition)
    go_on(made)
    write_intent(home, "running", "test", NOW)
    text: Any = said(settings)
    assert "No agent is running; no driver runs" in text
    assert f"gets older: {SERVED.replace('Windows', 'windows')}; {LEFT} are closed and not served yet" in text
