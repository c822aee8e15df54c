"""What a person sees when something breaks, and does about it: four faults on the running demo, with seconds and clicks.

`python -m lab.bench.alarms OUT [--only driver defect late disk]`. Report only: a table, and pictures of the page in the folder OUT.

The demo runs with its home on a small file system of its own, so that a disk can be full; broker and Airflow lie on another one.
A webhook on loopback takes the alerts. For each fault:

- page: seconds until the page's sentence, asked for each half second as the page would, says something else than before.
- alert: seconds until the webhook has the alert. resolved: until it has the word that it is over.
- clicks: what was pressed, in a browser, from the link of the alert's message to the last button. A page is left open from then on,
  or from before the fault where nobody has to press anything. well: seconds until that page says so, without being touched.

A defect and a late record are found by a reconcile; it is started right after the fault, and its time is part of the figure. Before
them the flights pause, and what came late by then is repaired: an hour of July ends each minute, and one in seven flights is late.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import httpx

from homes.project import REPOSITORY
from lab.demo.stage import PIPELINE, LiveFlights, kill_driver, start_services, take_down
from lab.faults.cases_store import fill, small_disk
from lab.faults.foreign import commit_by_another, first_value_changed
from lab.flights.replay import ReplayRequest, replay, send_on
from rivertwice.airflow.airflow_api import AirflowClient
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Deadline
from rivertwice.definition.definition import load_definition
from rivertwice.local.airflow import airflow_info, client
from rivertwice.log import kafka
from rivertwice.timeline.intent import Heartbeat, write_intent
from rivertwice.upkeep import RepairOutcome, Repairs
from servers.alert_receivers import Hook
from servers.cockpit import ask_for_act, chromium, page_of, token_of
from servers.repairs import approve_from_link

DISK_MB = 1024
BURST = 300
PATIENCE_S = 600.0
DIGITS = re.compile(r"\d+")  # a sentence that counts batches is the same sentence
DAYS = (date(2013, 6, 30), date(2013, 7, 1))


@dataclass
class Watched:
    """What was seen of one fault.

    Attributes:
        fault: its name.
        done: what was done to the demo.
        said: seconds after the fault, and the sentence of the page, each time it changed.
        alerts: seconds after the fault, kind, status, text and link of each message that the webhook took.
        clicks: what was pressed in the browser, the link of the alert's message first.
        mended_s: seconds after the fault at which it was mended; None if the product mends it alone.
        well_s: seconds after the fault at which the open page said again that all is well.
    """

    fault: str
    done: str
    said: list[tuple[float, str]] = field(default_factory=list)
    alerts: list[tuple[float, str, str, str, str]] = field(default_factory=list)
    clicks: list[str] = field(default_factory=list)
    mended_s: float | None = None
    well_s: float | None = None

    @property
    def link(self) -> str:
        """The address in the newest message of an alert that lasts."""
        return next(page for _, _, status, _, page in reversed(self.alerts) if status == "firing")

    def is_over(self) -> bool:
        """Say whether every alert that was sent is resolved."""
        newest = {kind: status for _, kind, status, *_ in self.alerts}
        return all(status == "resolved" for status in newest.values())

    def row(self) -> str:
        """Return the row of the table."""
        said = "<br>".join(f"{after:.1f} s: {text}" for after, text in self.said[1:])
        alerts = "<br>".join(f"{after:.1f} s: {kind} {status}" for after, kind, status, *_ in self.alerts)
        mended = "by itself" if self.mended_s is None else f"{self.mended_s:.0f} s"
        well = "never" if self.well_s is None else f"{self.well_s:.1f} s"
        clicks = f"{len(self.clicks)}: {'; '.join(self.clicks)}" if self.clicks else "0"
        return f"| {self.fault} | {self.done} | {said} | {alerts or 'none'} | {clicks} | {mended} | {well} |"


class Demo:
    """The demo at work and repaired, and what a person sees of it."""

    def __init__(self, settings: Settings, live: LiveFlights, hook: Hook, out: Path, page: Any) -> None:
        """Take what runs.

        Args:
            settings: of the demo.
            live: sends the flights of July.
            hook: the receiver of its alerts.
            out: folder for pictures.
            page: the page, open in a browser.
        """
        self.settings = settings
        self.live = live
        self.filler = threading.Thread()
        self.hook = hook
        self.page = page
        self._out = out
        self._token = token_of(settings, "admin")

    @property
    def airflow(self) -> AirflowClient:
        return client(self.settings)

    def now(self) -> dict[str, Any]:
        """Return the page's sentence and its light, as its own poll gets them."""
        url = f"{self.airflow_url}/rivertwice/api/p/{PIPELINE}/summary"
        answer = httpx.get(url, headers={"Authorization": f"Bearer {self._token}"}, trust_env=False, timeout=30)
        found: dict[str, Any] = answer.raise_for_status().json()["now"]
        return found

    @property
    def airflow_url(self) -> str:
        return airflow_info(self.settings).url

    def open_page(self) -> None:
        """Open the pipeline's page as somebody does who looks at it by chance, and leave it open."""
        self.page.goto(f"{self.airflow_url}/rivertwice/#/p/{PIPELINE}")

    def page_says(self, now: Mapping[str, Any]) -> bool:
        """Say whether the page that is open shows a sentence, of the pipeline or in its row of the overview; it is not touched."""
        tone = f"t-{now['tone']}"
        shown: list[str] = self.page.locator(f".now.{tone} .now-sentence, .row-words.{tone}").all_text_contents()
        return shown == [now["sentence"].replace("`", "")]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The alerts that the webhook received; the weekly report is not an alert, and nothing resolves it."""
        return [message for message in self.hook.taken if message["kind"] != "week"]

    def hook_is_calm(self) -> bool:
        """Say whether the newest word on each alert is that it is resolved."""
        newest = {(message["kind"], message["subject"]): message["status"] for message in self.messages}
        return all(status == "resolved" for status in newest.values())

    def picture(self, name: str) -> None:
        self.page.wait_for_timeout(6000)  # a poll, and what it draws
        self.page.screenshot(path=self._out / f"{name}.png")

    def run(self, verb: str, conf: dict[str, Any] | None = None) -> None:
        dag = f"{verb}__{PIPELINE}"
        state = self.airflow.wait(dag, self.airflow.trigger(dag, conf), PATIENCE_S)
        print(f"  {dag}: {state}", flush=True)

    def watch(self, watched: Watched, until: Callable[[dict[str, Any]], bool], began: float, seen: int) -> bool:
        """Note what page and webhook say, its first `seen` messages left out; return whether a condition came to hold."""
        deadline = Deadline.after(PATIENCE_S)
        while True:
            said, after = self.now(), time.monotonic() - began
            if not watched.said or DIGITS.sub("", watched.said[-1][1]) != DIGITS.sub("", said["sentence"]):
                watched.said.append((after, said["sentence"]))
                print(f"  {after:6.1f} s  {said['sentence']}", flush=True)
            for message in self.messages[seen + len(watched.alerts) :]:
                kind, status, text = message["kind"], message["status"], message["message"]
                watched.alerts.append((after, kind, status, text, message["page"]))
                print(f"  {after:6.1f} s  alert {kind} {status}: {text}; {message['page']}", flush=True)
            if until(said):
                return True
            if deadline.is_over():
                print(f"  not seen within {PATIENCE_S:.0f} s", flush=True)
                return False
            time.sleep(0.5)


def kill(demo: Demo) -> str:
    """Kill the driver; the agent brings it back."""
    pid, epoch = kill_driver(demo.settings.pipeline(PIPELINE))
    return f"SIGKILL to driver {pid} (epoch {epoch})"


def send_late(demo: Demo) -> str:
    """Send flights of hours that are long closed."""
    _, source = load_definition(demo.settings.definitions / PIPELINE).source
    early = ReplayRequest(topic=source.topic, partitions=source.partitions, days=DAYS, limit=BURST)
    sent = send_on(demo.settings, early, threading.Event())
    ends = kafka.end_offsets(demo.settings, source.topic)
    Deadline.after(PATIENCE_S).wait_until(lambda: _has_read(demo, source.topic, ends))
    return f"{sent} flights of 30 June, after July had been read"


def _has_read(demo: Demo, topic: str, ends: Mapping[int, int]) -> bool:
    beat = Heartbeat.load(demo.settings.pipeline(PIPELINE))
    read = {} if beat is None else beat.end_offsets.get(topic, {})
    return all(int(read.get(str(partition), 0)) >= end for partition, end in ends.items())


def change_a_row(demo: Demo) -> str:
    """Change one value of what is served, in a commit of another program."""
    return commit_by_another(Path(str(demo.settings.pipeline(PIPELINE).tables.served)), first_value_changed("flights"))


def fill_disk(demo: Demo) -> str:
    """Let another program fill the disk of the home, and take each byte that becomes free, until `free_disk`."""
    filler = demo.settings.home / ".filler"
    filler.touch()

    def take_all() -> None:
        fill(demo.settings.home, 0)
        with contextlib.suppress(FileNotFoundError), (demo.settings.home / ".more").open("ab", buffering=0) as more:
            while filler.stat():
                with contextlib.suppress(OSError):
                    more.write(bytes(4096))
                time.sleep(0.05)
        (demo.settings.home / ".more").unlink()

    demo.filler = threading.Thread(target=take_all, daemon=True)
    demo.filler.start()
    return "another program fills the disk of the home and takes each byte that becomes free"


def free_disk(demo: Demo) -> None:
    """Make room again."""
    (demo.settings.home / ".filler").unlink()
    demo.filler.join()


def free_disk_by_hand(demo: Demo, watched: Watched) -> None:
    """Open the link of the alert, which says what is full, and make room as a person does in a shell; no more is pressed."""
    demo.page.goto(watched.link)
    watched.clicks.append("the link of the message")
    demo.picture(f"{watched.fault}-link")
    free_disk(demo)


def approve_in_page(demo: Demo, watched: Watched) -> None:
    """Open the link of the alert, and approve the repair that its page offers."""
    watched.clicks += approve_from_link(demo.page, watched.link, PIPELINE, "the alert says it")
    demo.picture(f"{watched.fault}-approved")


@dataclass(frozen=True)
class Fault:
    """A fault, and what mends it.

    Attributes:
        finds: it starts what has to look before the fault can be known.
        alone: flights pause before it, and what came late is repaired, so that what is found is the fault's.
    """

    name: str
    do: Callable[[Demo], str]
    finds: bool = False
    mend: Callable[[Demo, Watched], None] | None = None
    alone: bool = False


FAULTS = {
    one.name: one
    for one in (
        Fault("driver", kill),
        Fault("disk", fill_disk, mend=free_disk_by_hand),
        Fault("late", send_late, finds=True, mend=approve_in_page, alone=True),
        Fault("defect", change_a_row, finds=True, mend=approve_in_page, alone=True),
    )
}


def repair_all(demo: Demo) -> None:
    """Reconcile, and repair what lacks late records, until no alert is open: flights that come meanwhile may be late, too."""

    def is_calm() -> bool:
        for record in Repairs(demo.settings.pipeline(PIPELINE)).read():
            if record.outcome is RepairOutcome.WAITING:
                ask_for_act(demo.settings, PIPELINE, "repair.approve", {"run": record.id}, confirm=PIPELINE)
        return demo.hook_is_calm()

    demo.run("reconcile")
    Deadline.after(PATIENCE_S).wait_until(is_calm, every=2)


def strike(demo: Demo, fault: Fault) -> Watched:
    """Do a fault, note what is said until it is over, and take pictures while it lasts and after it."""
    print(f"{fault.name}:", flush=True)
    if fault.alone:
        demo.live.stop()
        repair_all(demo)
    demo.open_page()
    demo.picture(f"{fault.name}-before")
    seen, usual = len(demo.messages), demo.now()["kind"]
    began = time.monotonic()
    watched = Watched(fault.name, fault.do(demo))
    print(f"  {time.monotonic() - began:6.1f} s  {watched.done}", flush=True)
    looking = threading.Thread(target=lambda: demo.run("reconcile"), daemon=True)
    if fault.finds:
        looking.start()
    demo.watch(watched, lambda now: now["kind"] not in (usual, "well") and now["tone"] in ("bad", "warn"), began, seen)
    demo.picture(f"{fault.name}-said")
    if fault.mend is not None:
        demo.watch(watched, lambda _: bool(watched.alerts), began, seen)
        fault.mend(demo, watched)
        watched.mended_s = time.monotonic() - began

    def is_well(now: Mapping[str, Any]) -> bool:
        return now["kind"] in (usual, "well") and demo.page_says(now)

    if demo.watch(watched, is_well, began, seen):
        watched.well_s = time.monotonic() - began
    demo.watch(watched, lambda now: is_well(now) and watched.is_over(), began, seen)
    demo.picture(f"{fault.name}-after")
    if fault.finds:
        looking.join()
    return watched


def begin(settings: Settings) -> LiveFlights:
    """Bring the demo to where it is at work and repaired."""
    airflow = start_services(settings, print)
    home, definition = settings.pipeline(PIPELINE), load_definition(settings.definitions / PIPELINE)
    _, source = definition.source
    write_intent(home, "running", "bench", utc_now())
    replay(settings, ReplayRequest(topic=source.topic, partitions=source.partitions, days=DAYS))
    airflow.info()
    verbs = ("care", "reconcile", "backfill")
    client(settings).wait_for_dags({f"{verb}__{PIPELINE}" for verb in verbs}, timeout=180)
    Deadline.after(PATIENCE_S).wait_until(
        lambda: (beat := Heartbeat.load(home)) is not None and beat.lag == 0 and beat.state == "idle"
    )
    live = LiveFlights(settings, source.topic, source.partitions)
    live.start()
    return live


def main() -> None:
    """Run the faults and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for the pictures")
    parser.add_argument("--only", nargs="+", default=list(FAULTS), choices=list(FAULTS))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # so that what was started is taken down
    with ExitStack() as at_end:
        folder = Path(at_end.enter_context(tempfile.TemporaryDirectory(prefix="rivertwice-alarms-")))
        home = at_end.enter_context(small_disk(folder / "home", DISK_MB))
        for service in ("broker", "airflow"):
            (folder / service).mkdir()
            (home / service).symlink_to(folder / service)
        hook = Hook()
        at_end.callback(hook.close)
        os.environ["RIVERTWICE_ALERT_WEBHOOK"] = hook.url
        settings = Settings(project=REPOSITORY, home=home, spark_master="local[2]")
        os.environ.update(settings.to_env())
        at_end.callback(take_down, settings)
        live = begin(settings)
        at_end.callback(live.stop)
        browser = at_end.enter_context(chromium())
        page = at_end.enter_context(page_of(browser, settings, f"/rivertwice/#/p/{PIPELINE}"))
        demo = Demo(settings, live, hook, arguments.out, page)
        for act in ("savepoint.take", "archive"):
            demo.run("care", {"act": act})
        repair_all(demo)
        found = [strike(demo, fault) for name, fault in FAULTS.items() if name in arguments.only]
    print(
        "\n| fault | done | the page said, after | the alert, after | clicks | mended | well again |\n|---|---|---|---|---|---|---|"
    )
    for one in found:
        print(one.row())


if __name__ == "__main__":
    main()
