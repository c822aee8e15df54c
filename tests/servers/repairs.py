"""Repairs of a real Airflow: which run waits for a person, which alerts last, and how one ended."""

from __future__ import annotations

from playwright.sync_api import Browser, Page, expect

from rivertwice.agent.alert_kinds import body_of
from rivertwice.agent.alert_model import Alert
from rivertwice.agent.alert_store import alerts_of
from rivertwice.core.settings import Settings
from rivertwice.local.airflow import airflow_info
from servers.airflow import PIPELINE, World
from servers.cockpit import data_of, page_of

REPAIR = f"backfill__{PIPELINE}"
VERDICTS = {"defect": "DEFECT", "late_share": "LATE"}


def repairs(world: World) -> list[str]:
    """Return the runs of `backfill__P` that a reconcile started to repair what it found, oldest first."""
    return [run for run in world.airflow.runs(REPAIR) if run.startswith("repair__")]


def waiting(world: World) -> str:
    """Return the newest of them if it waits for a person, else an empty text."""
    runs = repairs(world)
    return runs[-1] if runs and world.airflow.question(REPAIR, runs[-1], "approve") is not None else ""


def known_alerts(world: World) -> list[Alert]:
    """Return the alerts that the home keeps: those that last, and those that ended a short time ago."""
    return list(alerts_of(world.settings).state().alerts)


def lasting(world: World) -> list[Alert]:
    """Return the alerts whose causes last."""
    return [alert for alert in known_alerts(world) if not alert.closed and alert.resolved_at is None]


def resolution_of(world: World, kind: str) -> str:
    """Return how the newest alert of a kind ended, also if the page lists it as over already."""
    ended = [alert.resolution for alert in known_alerts(world) if alert.cause.kind == kind and alert.resolved_at]
    if not ended:
        over = data_of(world.settings, f"p/{PIPELINE}/alerts")["over"]
        ended = [group["resolution"] for group in over if group["kind"] == kind]
    return str(ended[-1])


def clicks_to_its_cure(browser: Browser, settings: Settings, alert: Alert, verb: str = "Run the backfill") -> list[str]:
    """Follow an alert from the link of its message to the backfill that cures it, which is not started; return the clicks.

    Args:
        verb: of the last button; where Kafka cannot be asked it is another one.
    """
    name, root = alert.cause.pipeline, airflow_info(settings).url
    address = str(body_of(settings, alert)["page"])
    assert address.startswith(f"{root}/rivertwice/#/p/{name}/correctness?window=")
    with page_of(browser, settings, address.removeprefix(root)) as page:
        clicks = ["the link of the message"]
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text(VERDICTS[alert.cause.kind])
        dialog.get_by_role("button", name="Plan this backfill").first.click()
        clicks.append("Plan this backfill")
        dialog.get_by_label("Reason, for the log").fill("what the alert says")
        dialog.get_by_label("to confirm").fill(name)
        expect(dialog.get_by_role("button", name=verb)).to_be_enabled()
        clicks.append(verb)
    with page_of(browser, settings, f"/rivertwice/#/p/{name}/alerts") as page:
        card = page.get_by_role("region", name=alert.cause.kind.replace("_", " "))
        cause = card.get_by_role("link", name="Look at its cause")
        expect(cause).to_have_attribute("href", alert.place)  # the same as in the message
    return clicks


def approve_from_link(page: Page, address: str, pipeline: str, reason: str) -> list[str]:
    """Open the link of an alert's message, and approve the repair that waits there; return the clicks, the link as the first."""
    page.goto(address)
    page.get_by_role("dialog").get_by_role("button", name="Approve the repair").click()
    asked = page.get_by_role("dialog", name=f"Approve the repair: {pipeline}")
    asked.get_by_label("Reason, for the log").fill(reason)
    asked.get_by_label("to confirm").fill(pipeline)
    asked.get_by_role("button", name="Approve the repair").click()
    expect(asked).to_have_count(0, timeout=120_000)  # it was taken; a machine that others use, too
    return ["the link of the message", "Approve the repair", "Approve the repair, in the dialog"]
