"""The report of a week, through the command line and as the task of the DAG makes it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from homes.cockpit import FIRST, OBJECTIVES, Past, keep_samples, make_past
from rivertwice.agent.alert_store import append_line
from rivertwice.cli.main import cli
from rivertwice.core.errors import ServiceError
from rivertwice.core.installed import version_name
from rivertwice.core.settings import Settings
from rivertwice.read.week import WeekReport, sentence_of
from rivertwice.tasks.catalogue import do_work
from rivertwice.tasks.reports import KEPT_REPORTS
from rivertwice.tasks.run import TaskRun, TaskSkippedError

PAST = Past(days=16, keys=3)
END = FIRST + timedelta(days=16, hours=3)
NAMES = ("bills", "orders")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    made = make_past(tmp_path_factory.mktemp("week"), PAST, NAMES, OBJECTIVES)
    keep_samples(made, NAMES, END)
    for number, since in enumerate((END - timedelta(days=8), END - timedelta(days=2), END - timedelta(days=1))):
        line = {"id": f"al-{number // 2}", "pipeline": "orders", "since": since.isoformat(), "status": "firing"}
        append_line(made.home / "alerts.jsonl", line, limit=10_000)
    return made


def ask(settings: Settings, *words: str) -> str:
    places = ["--project", str(settings.project), "--home", str(settings.home)]
    done = CliRunner().invoke(cli, [*places, *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.proves("howto-watch.md#the-report-of-the-week")
def test_the_week_is_counted_and_said_in_a_sentence(settings: Settings) -> None:
    told = json.loads(ask(settings, "--output", "json", "status", "--week", "--until", END.isoformat()))
    (bills, orders) = told["pipelines"]
    # seven days have a reconcile each, and one more follows the repair of the past
    assert (bills["reconciles"], bills["lost"], bills["repairs"], bills["incidents"]) == (8, 0, 1, 0)
    assert bills["rows"] == PAST.closed * 9
    assert bills["agree"] + bills["late"] + bills["wrong"] + bills["not_comparable"] == bills["rows"]
    assert (bills["wrong"], bills["not_comparable"]) == (1, 1)
    assert orders["incidents"] == 2
    assert told["totals"]["rows"] == 2 * bills["rows"]
    assert "0 records are lost. 2 repairs were published" in told["sentence"]
    assert told["sentence"] in ask(settings, "status", "--week", "--until", END.isoformat())


def test_a_week_in_which_nothing_was_compared_claims_nothing(settings: Settings) -> None:
    report = WeekReport.read(settings, NAMES, FIRST - timedelta(days=30))
    assert report.sentence == "Of 2 pipelines nothing was compared this week, so nothing is known of their results."
    assert [each.lost for each in report.pipelines] == [None, None]
    assert not any(each.is_well for each in report.pipelines)
    assert sentence_of(report.pipelines, report.totals) == report.sentence


@pytest.mark.proves("howto-watch.md#the-report-of-the-week")
def test_the_file_has_no_script_and_no_address(settings: Settings) -> None:
    page = ask(settings, "status", "--week", "--until", END.isoformat(), "--html")
    found: list[tuple[str, dict[str, str | None]]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: found.append((tag, dict(attrs)))  # type: ignore[method-assign]
    parser.feed(page)
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in found}
    assert not any({"src", "href"} & attrs.keys() for _, attrs in found)
    assert "bills" in page


def test_html_without_week_says_what_to_write(settings: Settings) -> None:
    done = CliRunner().invoke(cli, ["--home", str(settings.home), "status", "--html"])
    assert done.exit_code == 2
    assert "rivertwice status --week --html > week.html" in done.output


@pytest.mark.proves("howto-watch.md#the-report-of-the-week")
def test_the_task_keeps_the_file_of_a_year_and_tells_the_routes(settings: Settings) -> None:
    run = TaskRun("report__week", "scheduled__1", "write", END, is_scheduled=True)
    (settings.project / "alerts.yaml").write_text(
        f"routes: {{ops: {{to: file, path: {settings.home / 'told.jsonl'}}}, night: {{to: file, path: x, severities: [critical]}}}}"
    )
    for week in range(KEPT_REPORTS + 1):
        folder = settings.home / "reports"
        folder.mkdir(exist_ok=True)
        (folder / f"week-20{week:02}-01-01.html").touch()
    done = do_work(settings, "report_week", run, "week", ())
    assert Path(done["file"]).name == f"week-{END:%Y-%m-%d}.html"
    assert len(list((settings.home / "reports").iterdir())) == KEPT_REPORTS
    (told,) = (settings.home / "told.jsonl").read_text().splitlines()
    assert done["sentence"] in json.loads(told)["message"]
    assert json.loads(told)["run"] == "scheduled__1"
    (settings.project / "alerts.yaml").write_text("routes: {ops: {to: file, path: /proc/nowhere/told}}")
    with pytest.raises(ServiceError, match=r"not all routes took its sentence: ops: .* cannot be written"):
        do_work(settings, "report_week", run, "week", ())


def test_a_new_airflow_s_run_of_the_tick_before_it_tells_nobody(settings: Settings) -> None:
    """A person who asks for it then gets it."""
    before = FIRST - timedelta(days=300)
    run = TaskRun("report__week", "scheduled__0", "write", before, is_scheduled=True)
    with pytest.raises(TaskSkippedError, match="no stream had started by 2025-"):
        do_work(settings, "report_week", run, "week", ())
    file = settings.home / "reports" / f"week-{before:%Y-%m-%d}.html"
    assert not file.exists()
    (settings.project / "alerts.yaml").unlink(missing_ok=True)
    do_work(settings, "report_week", replace(run, is_scheduled=False), "week", ())
    assert "nothing was compared this week" in file.read_text()


def test_a_version_is_not_a_pipeline_more(settings: Settings) -> None:
    shutil.copytree(settings.definitions / "bills", settings.frozen_definitions / version_name("bills", 2))
    run = TaskRun("report__week", "manual__1", "write", END)
    assert "The week of 2 pipelines" in Path(do_work(settings, "report_week", run, "week", ())["file"]).read_text()
    assert len(json.loads(ask(settings, "--output", "json", "status", "--week"))["pipelines"]) == 2
    shutil.rmtree(settings.frozen_definitions)
