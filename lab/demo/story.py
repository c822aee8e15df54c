"""The demo's story: each step does one thing for real, checks what must hold, and prints it."""

from __future__ import annotations

from datetime import date
from typing import Any
from urllib.parse import urlencode

from lab.demo.ending import Ending
from lab.demo.figures import count_verdicts, late_addresses, mean_delay
from lab.demo.narrate import Narrator
from lab.demo.stage import PIPELINE, AirflowStart, LiveFlights, kill_driver, run_verb, start_services, wait_for
from lab.flights.replay import ReplayRequest, replay
from rivertwice.airflow.airflow_api import AirflowClient
from rivertwice.core.errors import RivertwiceError
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import to_iso, utc_now
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.quality.table import standing
from rivertwice.reconcile.results import cause_rows, newest_reconcile, verdict_rows
from rivertwice.savepoint.catalogue import ProofState, load_savepoint
from rivertwice.stream.lease import lease_owner
from rivertwice.timeline.intent import Heartbeat, write_intent
from rivertwice.timeline.lineage import Timeline, path_ledger
from rivertwice.timeline.sequence import head, last_seq
from rivertwice.timeline.served import export_sha256, read_served, wait_served
from rivertwice.timeline.served_rows import stream_rows
from rivertwice.timeline.served_stamp import read_served_stamp
from rivertwice.timeline.verdicts import Verdict

DAYS = (date(2013, 6, 30), date(2013, 7, 1))
FIRST = 600
"""The flights that are sent before Airflow is up. The others are sent as a savepoint is taken, so that its proof has batches to replay."""
KILL_AT = 3
POLL_S = 1.0


class StoryError(RivertwiceError):
    """A claim of the demo did not hold."""

    reason = "demo"


def require(holds: object, claim: str) -> None:
    """Raise StoryError unless the claim holds."""
    if not holds:
        message = f"this should hold and does not: {claim}"
        raise StoryError(message)


def live_flights(settings: Settings) -> LiveFlights:
    """Return the flights that follow the story; `start` begins to send them."""
    _, source = load_definition(settings.definitions / PIPELINE).source
    return LiveFlights(settings, source.topic, source.partitions)


class Story:
    """Runs the steps in order on one home."""

    def __init__(self, settings: Settings, tell: Narrator) -> None:
        """Create a story; nothing happens yet."""
        self._settings = settings
        self._tell = tell
        self._home: PipelineHome = settings.pipeline(PIPELINE)
        self._sent = 0

    def run(self) -> Ending:
        """Run it from the first step to the last; raise at the first that does not hold."""
        tell = self._tell
        with tell.step(
            "Start Kafka and the agent",
            "All services start by one call, and each runs on without it; Airflow is starting beside the next steps.",
        ):
            airflow = start_services(self._settings, tell.say)
        with tell.step(
            f"Ask for the stream to run, and send the first {FIRST} flights of 30 June 2013",
            "The agent keeps what was asked for: nobody started the driver by hand.",
        ):
            self._begin()
        with tell.step(
            "Kill the driver with SIGKILL while it reads",
            "A killed driver comes back by itself and continues where it stopped.",
        ):
            self._kill()
        with tell.step(
            "Wait for Airflow", "Airflow knows a DAG for each verb of the pipeline; it was given none by hand."
        ):
            ending, client = self._airflow(airflow)
        with tell.step(
            f"Airflow rotates a savepoint while the flights of the storm come in, and proves it (care__{PIPELINE})",
            "A savepoint is taken without a pause, and a replay of what the stream did next gave the same rows and state.",
        ):
            archive = self._rotate(client)
        with tell.step(
            f"Wait until the stream has read everything, and the archive has it too (care__{PIPELINE})",
            "The log outlives Kafka's retention.",
        ):
            self._drain_log(ending)
            reconcile = client.trigger(f"reconcile__{PIPELINE}")  # it compares once the archive's job has ended
            self._await_dag(client, "care", archive)
        with tell.step(
            f"Compare stream, served and truth (reconcile__{PIPELINE})",
            "Each flight that the stream dropped is named, and nothing is unexplained.",
        ):
            self._await_dag(client, "reconcile", reconcile)
            self._first_reconcile(ending)
        with tell.step(
            f"Approve the repair that the reconcile proposed: recompute, publish, compare again (backfill__{PIPELINE})",
            "What is served is what the log says: no window lacks a flight.",
        ):
            self._repair(client)
            self._second_reconcile(ending)
        with tell.step(
            "Restore into a second timeline and move the head to it",
            "A restore loses nothing: the rows that are served are the same, byte for byte, and the stream runs on.",
        ):
            again = self._restore(client)
        with tell.step(
            f"Compare once more, on the new head (reconcile__{PIPELINE}), and read what the page says",
            "The verdicts hold on the new timeline, and the page says that nothing has to be done at once.",
        ):
            self._await_dag(client, "reconcile", again)
            self._page(client, ending)
        return ending

    def _begin(self) -> None:
        write_intent(self._home, "running", "demo", utc_now())
        sent = self._send(FIRST)
        self._tell.say(
            f"{sent} flights in the log, in the order in which they really left; each belongs to the hour it should have left"
        )

    def _send(self, limit: int | None = None) -> int:
        """Send what the log lacks of the first `limit` flights, or of all; return how many were sent."""
        _, source = load_definition(self._settings.definitions / PIPELINE).source
        request = ReplayRequest(topic=source.topic, partitions=source.partitions, days=DAYS, limit=limit)
        report = replay(self._settings, request, progress=self._tell.progress)
        self._sent = sum(report.ends.values())
        require(
            self._sent == report.planned >= (limit or 1800),
            f"{report.planned} flights are in the log, not {self._sent}",
        )
        return report.sent

    def _airflow(self, start: AirflowStart) -> tuple[Ending, AirflowClient]:
        info = start.info()
        client = AirflowClient(info.url, info.user, info.password)
        verbs = ("care", "reconcile", "backfill")
        client.wait_for_dags({f"{verb}__{PIPELINE}" for verb in verbs}, timeout=120.0)
        self._tell.say(f"Airflow at {info.url}, user {info.user}")
        return Ending(airflow=info), client

    def _await_dag(self, client: AirflowClient, verb: str, run_id: str) -> None:
        dag_id = f"{verb}__{PIPELINE}"
        state = client.wait(dag_id, run_id, timeout=600.0, progress=self._tell.progress, interval=POLL_S)
        if state != "success":
            failed = [task.task_id for task in client.tasks(dag_id, run_id) if task.state == "failed"]
            message = f"{dag_id} ended {state}; failed tasks: {failed}; see {self._settings.home / 'airflow'}"
            raise StoryError(message)

    def _batch(self) -> int:
        beat = Heartbeat.load(self._home)
        return -1 if beat is None or beat.batch is None else beat.batch

    def _rotate(self, client: AirflowClient) -> str:
        """Rotate, and send the other flights meanwhile; return the run of the archive, whose job follows the proof."""
        dag_id, before = f"care__{PIPELINE}", self._batch()
        run_id = client.trigger(dag_id, {"reason": "demo"})

        def begins() -> bool:
            states = {task.task_id: task.state for task in client.tasks(dag_id, run_id)}
            return states.get("take") in {"running", "success"}

        wait_for("the task that takes the savepoint", begins, self._home, 240.0)
        self._tell.say(
            f"{self._send()} more flights are in the log, and the stream reads them while the savepoint is taken"
        )
        archive = client.trigger(dag_id, {"act": "archive"})
        self._await_dag(client, "care", run_id)
        report = client.xcom(dag_id, run_id, "report")
        savepoint = load_savepoint(self._home, report["savepoint"])
        require(savepoint.status == ProofState.PROVED, f"savepoint {savepoint.id} is proved")
        require(self._batch() > before, "the stream continued while the savepoint was proved")
        proof = savepoint.proof or {}
        self._tell.say(f"{savepoint.id} taken at batch {savepoint.manifest.batch}, {proof.get('reason', '')}")
        self._tell.say(f"the stream did not pause: batch {before} when asked, batch {self._batch()} when proved")
        return archive

    def _kill(self) -> None:
        wait_for(f"batch {KILL_AT}", lambda: self._batch() >= KILL_AT, self._home, 240.0)
        pid, epoch = kill_driver(self._home)
        self._tell.say(f"killed driver {pid} (epoch {epoch}) at batch {self._batch()}")

        def back() -> bool:
            beat = Heartbeat.load(self._home)
            return beat is not None and beat.epoch > epoch and self._has_read_all()

        wait_for("the driver's return", back, self._home, 180.0)
        ledger = path_ledger(self._home)
        owner, last, read = lease_owner(self._home), ledger[-1], sum(row.read for row in ledger)
        require(read == FIRST, f"the ledger has each of the {FIRST} flights once, not {read}")
        did = f"committed batch {last.batch}" if last.epoch > epoch else "found that all had been read before the kill"
        self._tell.say(
            f"driver {owner.pid if owner else '?'} (epoch {epoch + 1}) {did}; {read} flights read, each once"
        )

    def _has_read_all(self) -> bool:
        """Say whether a driver lives and waits for records."""
        beat = Heartbeat.load(self._home)
        return beat is not None and beat.lag == 0 and beat.state == "idle"

    def _drain_log(self, ending: Ending) -> None:
        def has_read() -> bool:
            return self._has_read_all() and sum(row.read for row in path_ledger(self._home)) == self._sent

        wait_for("the end of the log", has_read, self._home, 600.0)
        ending.batches = self._batch() + 1
        self._tell.say(f"{ending.batches} batches committed, lag 0")

    def _verdicts(self, ending: Ending) -> dict[str, Any]:
        """Print and check what the newest reconcile says; return it."""
        newest = newest_reconcile(self._home)
        if newest is None:
            raise StoryError("a reconcile ran, but none is recorded")
        rows = verdict_rows(self._home, newest["run"])
        ending.verdicts = {pair: count_verdicts(rows, pair) for pair in ("stream", "served")}
        for pair, counts in ending.verdicts.items():
            verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
            self._tell.say(f"{pair} against truth: {verdicts}")
            require(counts[Verdict.DEFECT] == 0, f"no window of {pair} is a defect")
            require(counts[Verdict.NOT_COMPARABLE] == 0, f"no window of {pair} is NOT_COMPARABLE")
        require(newest["gate"]["passed"], "the gate of Great Expectations passes")
        self._tell_quality()
        return newest

    def _tell_quality(self) -> None:
        """Print what the pipeline's own suite says of what is served, if the project has one."""
        known = standing(self._settings, self._home)
        if known is not None:
            failing = [each.describe() for each in known.judgements if each.fails]
            said = (
                f"{len(known.judgements) - len(failing)} of {len(known.judgements)} expectations hold over served hours"
            )
            self._tell.say("; ".join([f"data quality: {said}", *failing]))

    def _first_reconcile(self, ending: Ending) -> None:
        newest = self._verdicts(ending)
        counts = ending.verdicts["stream"]
        closed = sum(counts.values()) - counts[Verdict.OPEN]
        require(closed >= 0.9 * sum(counts.values()), f"at least 90 % of the windows are closed, not {closed}")
        causes = cause_rows(self._home, newest["run"])
        late = late_addresses(causes)
        ending.late = len(late)
        require(ending.late >= 100, f"at least 100 flights are named as dropped, not {ending.late}")
        first = next(row for row in causes if row["cause"] == "late" and row["pair"] == "stream")
        worst = max(
            (row for row in verdict_rows(self._home, newest["run"]) if row["pair"] == "served" and row["key"]),
            key=lambda row: int(row["late"]),
        )
        ending.worst = {"window": to_iso(worst["window_start"]), "key": str(worst["key"])}
        self._tell.say(
            f"{ending.late} flights were dropped as late, each named; for instance {first['topic']}/{first['partition']} "
            f"offset {first['offset']}, scheduled {first['event_time']:%d %B %H:%M} UTC, in batch {first['batch']}"
        )
        total = newest["balance"]["total"]
        require(total["unexplained"] == 0, f"nothing is unexplained, but {total['unexplained']} records are")
        self._tell.say(
            f"balance: {total['read']} read = {total['emitted']} emitted + {total['open']} open + {total['late']} late + "
            f"{total['dead']} dead + {total['excluded']} excluded; {total['unexplained']} unexplained"
        )

    def _repair(self, client: AirflowClient) -> None:
        before, dag_id = last_seq(self._home), f"backfill__{PIPELINE}"
        asked: dict[str, Any] = {}

        def asks() -> bool:
            for run in reversed(client.runs(dag_id)):
                asked.update({"run": run, **(client.question(dag_id, run, "approve") or {})})
            return "subject" in asked

        wait_for("the question of the repair", asks, self._home, 180.0, every=POLL_S)
        self._tell.say(f"Airflow asks: {asked['subject']} The demo approves it, as you would on the page")
        client.answer(dag_id, asked["run"], "approve", "Approve")
        self._await_dag(client, "backfill", asked["run"])
        require(last_seq(self._home) > before, "the repair was published")
        wait_served(self._home, last_seq(self._home), 60.0)

    def _page(self, client: AirflowClient, ending: Ending) -> None:
        path = f"/rivertwice/api/p/{PIPELINE}/summary"

        def is_new() -> bool:
            stream = client.page(path)["now"]["lights"]["stream"]
            return bool(stream["tone"] == "good")

        wait_for("a green light of the stream on the page", is_new, self._home, 60.0, every=POLL_S)
        summary = client.page(path)
        for name, light in summary["now"]["lights"].items():
            self._tell.say(f"{name}: {light['word']}")
        self._tell.say(str(summary["now"]["sentence"]))
        require(summary["now"]["tone"] != "bad", "the page says that nothing has to be done at once")
        base = f"{ending.airflow.url}/rivertwice/#/p/{PIPELINE}"
        ending.page = f"{base}/correctness?{urlencode(ending.worst)}" if ending.worst else base

    def _second_reconcile(self, ending: Ending) -> None:
        """Look at the reconcile with which the repair ended."""
        self._verdicts(ending)
        served = ending.verdicts["served"]
        require(served[Verdict.LATE] == 0, f"no served window lacks flights any more, but {served['LATE']} do")
        emitted, now = stream_rows(self._home), read_served(self._home)
        if emitted is None or now is None:
            raise StoryError("the stream has emitted nothing")
        ending.stream, ending.served = mean_delay(emitted), mean_delay(now)
        self._tell.say(
            f"mean delay of closed hours: the stream showed {ending.stream.mean} min, served now shows "
            f"{ending.served.mean} min"
        )

    def _restore(self, client: AirflowClient) -> str:
        """Restore what is taken of the drained stream; return the reconcile that was started on the new head."""
        before = export_sha256(self._home)
        parent = head(self._home)
        run_verb(self._settings, ["savepoint", "restore", PIPELINE, "--planned", "--yes"], self._tell.progress)
        reconcile = client.trigger(f"reconcile__{PIPELINE}")
        child = Timeline.load(self._home, str(head(self._home)))
        fork = child.parent
        if fork is None or fork.timeline != parent:
            message = f"this should hold and does not: the head {child.timeline} is a child of {parent}"
            raise StoryError(message)
        sequence = last_seq(self._home)
        wait_for(
            "served on the new head",
            lambda: (stamp := read_served_stamp(self._home)) is not None and stamp.sequence >= sequence,
            self._home,
            60.0,
        )
        after = export_sha256(self._home)
        require(before == after, f"what is served did not change: {before} before, {after} after")

        def runs_on_child() -> bool:
            beat = Heartbeat.load(self._home)
            return beat is not None and beat.timeline == child.timeline and beat.state in {"running", "idle"}

        wait_for(f"the stream on {child.timeline}", runs_on_child, self._home, 120.0)
        self._tell.say(
            f"{child.timeline} forked from {parent} at batch {fork.batch}; the stream runs on {child.timeline}"
        )
        self._tell.say(f"SHA-256 of everything served, before and after: {after}")
        return reconcile
