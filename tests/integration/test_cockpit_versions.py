"""An upgrade through the cockpit: versions side by side, the question with its figures, approve, reject, roll back."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from rivertwice.timeline.served_stamp import serving_by_stamp
from rivertwice.versions.serve import read_switches
from servers.airflow import PIPELINE, World, agent_and_airflow, copy_world, run_dag
from servers.airflow_versions import BESIDE, begin_beside
from servers.cockpit import LIVE_MARKS, axe_findings, chromium, page_of
from streams.flights import StreamedRun

pytestmark = [*LIVE_MARKS, pytest.mark.faults]
WAIT_MS = 300_000


@pytest.fixture(scope="module")
def world(streamed_two_days: StreamedRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """An Airflow over a copy of the streamed days and a version beside, both proved by a reconcile."""
    folder = tmp_path_factory.mktemp("versions")
    made = copy_world(streamed_two_days, folder)
    begin_beside(made.settings, folder / "driver.log")
    with agent_and_airflow(made.settings):
        for dag in (f"reconcile__{PIPELINE}", f"reconcile__{PIPELINE}.v2"):
            run_dag(made.airflow, dag, timeout=900)
        yield made


def ask_for(page: Page, version: str, reason: str) -> Locator:
    """Ask for a switch to a version from its row, and return the question once it is there."""
    row = page.get_by_role("table", name="Versions side by side").get_by_role("row", name=version).first
    row.get_by_role("button").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill(reason)
    dialog.get_by_role("button", name="Compare and ask", exact=True).click()
    question = page.get_by_role("region", name="A run waits for an answer")
    expect(question).to_be_visible(timeout=WAIT_MS)
    return question


def answer(page: Page, question: Locator, button: str, reason: str) -> None:
    """Answer a question, and wait until it is gone."""
    question.get_by_role("button", name=button).click()
    dialog = page.get_by_role("dialog")
    submit = dialog.get_by_role("button", name=button, exact=True)
    dialog.get_by_label("Reason").fill(reason)
    if button == "Approve":
        dialog.get_by_label("to confirm").fill(BESIDE)
        expect(submit).to_be_disabled()
        dialog.get_by_label("to confirm").fill(PIPELINE)
    submit.click()
    expect(question).to_be_hidden(timeout=WAIT_MS)


def expect_serves(page: Page, version: str) -> None:
    row = page.get_by_role("table", name="Versions side by side").locator("tbody tr").filter(has_text="serves")
    named = re.compile(rf"{re.escape(version)}(?!@)")  # the name of a pipeline begins those of its versions
    expect(row.filter(has=page.locator(".tag", has_text="serves"))).to_contain_text(named, timeout=WAIT_MS)


def test_a_version_is_compared_approved_and_rolled_back_from_the_page(world: World) -> None:
    with chromium() as browser, page_of(browser, world.settings, f"/rivertwice/#/p/{PIPELINE}/timelines") as page:
        question = ask_for(page, BESIDE, "delays were too small")
        expect(question).to_contain_text(f"Let {BESIDE} serve in place of {PIPELINE}?")
        expect(question.get_by_role("row", name="as declared").first).to_be_visible()
        assert axe_findings(page) == []
        answer(page, question, "Approve", "every row has a cause")
        expect_serves(page, BESIDE)
        assert serving_by_stamp(world.home) == BESIDE
        record = read_switches(world.home)[-1]
        assert (record["by"], record["reason"]) == ("admin in Airflow", "delays were too small")

        question = ask_for(page, PIPELINE, "too early")
        expect(question).to_contain_text("is not compared")
        answer(page, question, "Reject", "not yet")
        assert serving_by_stamp(world.home) == BESIDE

        answer(page, ask_for(page, PIPELINE, "too early"), "Approve", "it is time")
        expect_serves(page, PIPELINE)
        assert serving_by_stamp(world.home) == PIPELINE
