"""A backfill's rows are judged by the user's suite in its audit; severity decides whether they may be published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from homes.backfill import asked, make_home, write_chunk
from homes.quality import HOUR, between, write_suite
from rivertwice.backfill.audit import audit_backfill, read_audit
from rivertwice.backfill.model import BackfillPlan
from rivertwice.backfill.observe import observe_backfill
from rivertwice.backfill.plan import plan_backfill
from rivertwice.backfill.publish import publish_backfill
from rivertwice.backfill.store import save_plan
from rivertwice.cli.main import cli
from rivertwice.core.errors import AuditError, SuiteError
from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.quality.table import read_newest, read_results
from rivertwice.timeline.sequence import read_sequence

pytestmark = pytest.mark.long
Made = tuple[Settings, PipelineHome, BackfillPlan]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """A computed backfill of hours [0, 2): the numbers 10, 1 and 11."""
    settings, home, _ = make_home(tmp_path)
    monkeypatch.setattr("rivertwice.backfill.observe._in_kafka", lambda *_: {0: (0, 100)})
    plan = save_plan(home, plan_backfill(asked(0, 2), observe_backfill(settings, "p")))
    write_chunk(home, plan, 0, (0, "a", 10), (0, "b", 1), (1, "a", 11))
    return settings, home, plan


def failure(made: Made) -> str:
    with pytest.raises(AuditError) as caught:
        audit_backfill(made[0], made[2])
    return str(caught.value)


def test_a_failing_critical_expectation_blocks_the_publication(made: Made) -> None:
    settings, home, plan = made
    write_suite(settings, "corrections", between(max_value=10, min_value=0))
    text = failure(made)
    assert "expect_column_values_to_be_between on n]: 1 rows are not so" in text
    assert "window_start=1970-01-01T01:00:00Z k=a" in text
    assert "k=a" not in json.dumps(read_audit(home, plan.id))  # it is stored where no erasure looks
    assert f"`rivertwice backfill run p --id {plan.id} --accept-quality " in text
    with pytest.raises(AuditError, match="failed its audit"):
        publish_backfill(settings, plan)
    assert [entry.kind for entry in read_sequence(home)] == ["head"]
    newest = read_newest(home, "corrections")
    assert newest is not None
    assert (newest.run, newest.judgements[0].failing) == (plan.id, ((HOUR, 2 * HOUR),))


def test_a_corrected_suite_lets_the_same_backfill_pass(made: Made) -> None:
    settings, _, plan = made
    write_suite(settings, "corrections", between(max_value=10))
    failure(made)
    write_suite(settings, "corrections", between(max_value=11))
    report = audit_backfill(settings, plan)
    assert (report.checks[-1].name, report.checks[-1].passed) == ("quality", True)
    assert publish_backfill(settings, plan).seq == 2


def test_a_warning_is_stored_and_blocks_nothing(made: Made) -> None:
    settings, home, plan = made
    write_suite(settings, "corrections", between("warning", max_value=10), between("info", min_value=2))
    report = audit_backfill(settings, plan)
    assert "warning: expect_column_values_to_be_between" in report.checks[-1].detail
    assert [(row["severity"], row["state"]) for row in read_results(home)] == [
        ("warning", "failed"),
        ("info", "failed"),
    ]
    publish_backfill(settings, plan)


def test_a_reason_publishes_what_fails_and_is_recorded(made: Made) -> None:
    settings, home, plan = made
    write_suite(settings, "corrections", between(max_value=10))
    failure(made)
    assert audit_backfill(settings, plan, accepted="a strike").passed
    stored = read_audit(home, plan.id)
    assert stored is not None
    assert (stored["passed"], stored["accepted"]) == (True, "a strike")
    assert {row["reason"] for row in read_results(home)} == {None, "a strike"}
    publish_backfill(settings, plan)
    assert audit_backfill(settings, plan).passed  # what is published is not taken back by looking again


def test_an_audit_that_is_repeated_stores_nothing_twice(made: Made) -> None:
    settings, home, plan = made
    write_suite(settings, "corrections", between(min_value=0))
    assert audit_backfill(settings, plan) == audit_backfill(settings, plan)
    assert len(read_results(home)) == 1


def test_a_suite_that_cannot_be_read_publishes_nothing(made: Made) -> None:
    settings, home, plan = made
    write_suite(settings, "corrections").write_text("{")
    with pytest.raises(SuiteError, match=r"expectations/p/corrections.json is not valid JSON"):
        audit_backfill(settings, plan)
    assert read_audit(home, plan.id) is None


def call(settings: Settings, *arguments: str) -> Result:
    where = ["--output", "json", "--project", str(settings.project), "--home", str(settings.home)]
    return CliRunner().invoke(cli, [*where, *arguments])


def test_the_command_shows_what_was_found(made: Made) -> None:
    settings, _, plan = made
    write_suite(settings, "corrections", between("warning", max_value=10), between(min_value=0))
    audit_backfill(settings, plan)
    shown = json.loads(call(settings, "quality", "p").stdout)
    assert {(row["run"], row["severity"], row["state"]) for row in shown["rows"]} == {
        (plan.id, "warning", "failed"),
        (plan.id, "critical", "passed"),
    }
    assert json.loads(call(settings, "quality", "p", "--failing").stdout)["total"] == 1
    assert json.loads(call(settings, "quality", "p", "--subject", "windows").stdout)["total"] == 0
    outside = call(settings, "quality", "p", "--from", "1970-01-01T05:00:00Z", "--to", "1970-01-01T06:00:00Z")
    assert json.loads(outside.stdout)["total"] == 0
    rows = json.loads(call(settings, "show", "p", "--table", "quality").stdout)["rows"]
    assert len(rows) == 2


def test_nothing_to_accept_and_no_reason_are_refused(made: Made) -> None:
    settings = made[0]
    done = call(settings, "quality", "p", "--accept", "0123", "--reason", "why")
    assert (done.exit_code, "nothing to accept" in done.stderr) == (1, True)
    done = call(settings, "quality", "p", "--accept", "0123")
    assert (done.exit_code, "--reason is not given" in done.stderr) == (1, True)
    done = call(settings, "backfill", "run", "p", "--accept-quality", " ")
    assert (done.exit_code, "gives no reason" in done.stderr) == (1, True)
