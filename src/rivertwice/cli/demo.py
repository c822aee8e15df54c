"""demo, setup: the whole loop on a small generated stream, and what pip cannot install.

Each step prints the command, does it, checks what it has to show and says what that proves. The first step that does not hold
ends the demo with exit 1; what runs then stays up, so that it can be looked at.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rivertwice.cli.asking import changes_unasked
from rivertwice.cli.frame import Frame, example, pass_frame, say
from rivertwice.core import ConfigError, Deadline, RivertwiceError, Settings, naming_extras, to_plain
from rivertwice.timeline import Verdict

if TYPE_CHECKING:
    from rivertwice.timeline import LedgerRow


# setup: fetch what pip cannot install.


@click.command(epilog=example("rivertwice setup", "rivertwice doctor"))
@click.option("--dev", is_flag=True, help="Also fetch the jars that only the tests of rivertwice need.")
@changes_unasked("downloaded files", because="what is there stays")
@pass_frame
def setup(frame: Frame, dev: bool) -> None:
    """Fetch what pip cannot install: Java and jars.

    These are Java, if the machine has no 17 or 21, and the jars of Spark's Kafka connector and of the broker. At the end a short run
    stores Spark's classes for this Java and these jars, so that each later start takes less time. What is there already stays; each jar is checked by its SHA-256. The network is used only for what is missing. Files go to
    PROJECT/.build, if there is one, else to $RIVERTWICE_DOWNLOADS or the user's cache. MAVEN_REPO_URL names another repository than
    Maven Central.
    """
    done = run_steps(frame, dev=dev)
    frame.emit(
        {
            "steps": [{"step": step, "result": result, "seconds": seconds} for step, result, seconds in done],
            "downloads": frame.settings.build,
        },
        "\n".join(f"setup: {step:<15} {result} ({seconds} s)" for step, result, seconds in done),
    )


def run_steps(frame: Frame, *, dev: bool = False) -> list[tuple[str, str, float]]:
    """Run the steps of set-up, and return each with its result and its seconds."""
    from rivertwice.local import setup_steps

    done = []
    with naming_extras("pyspark"):
        steps = setup_steps(frame.settings, dev=dev, progress=frame.progress)
    for name, step in steps:
        frame.progress(f"{name} ...")
        begun = time.monotonic()
        done.append((name, step(), round(time.monotonic() - begun, 1)))
    return done


FOLDER = "rivertwice-demo"
MARKER = ".made-by-rivertwice-demo"
"""File of a folder that a demo made. Only such a folder's state is ever removed. The demo that runs holds its lock."""
KILL_AFTER = 2
"""The driver is killed once it has reported this batch."""
START_SECONDS = 300


class DemoError(RivertwiceError):
    """Something that the demo shows did not hold."""

    reason = "demo"


def require(holds: object, claim: str) -> None:
    """Raise DemoError unless the claim holds."""
    if not holds:
        message = f"this should hold and does not: {claim}; the services still run, so look with `rivertwice status`"
        raise DemoError(message)


@click.command(epilog=example("rivertwice demo", "rivertwice demo --airflow"))
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(FOLDER),
    show_default=True,
    help="Folder of the project; empty, or made by an earlier demo.",
)
@click.option("--airflow", is_flag=True, help="At the end also start Airflow, which has the page.")
@changes_unasked("a folder with a project and its services", because="a folder that no demo made stays as it is")
@pass_frame
def demo(frame: Frame, folder: Path, airflow: bool) -> None:
    """Show the whole loop on a small generated stream.

    It writes a project into a new folder, starts Kafka, streams 2,000 orders of which 19 come too late, kills the stream's driver, compares the results with
    the log, explains the worst number, repairs it by a backfill and compares again. Each step says what it proves and how long it took. It needs no download
    beyond `rivertwice setup`. What it started stays up. A second run starts clean: it removes the state of the first one.
    """
    from rivertwice.core import lock_or_refuse
    from rivertwice.local import is_set_up

    project = folder.resolve()
    teller = Teller(to_stderr=frame.output == "json")
    settings = demo_settings(frame.settings, project)
    teller.say("One definition, streamed and recomputed; every difference has a name.")
    with naming_extras("pyspark", *(["airflow"] if airflow else [])):
        prepare_folder(project)
    with lock_or_refuse(
        project / MARKER, lambda who: ConfigError(f"{who} runs the demo in {project}; wait for its end")
    ):
        if settings.home.exists():
            teller.say(
                f"{project} holds an earlier demo. This one starts clean: services stop, and the old state is removed."
            )
            Verbs(settings, teller).run("down")
            shutil.rmtree(settings.home)
        if not is_set_up(settings):
            with teller.step("Fetch Java and jars, once"):
                run_steps(dataclasses.replace(frame, settings=settings))
        story = Story(settings, teller, Verbs(settings, teller))
        story.run(airflow=airflow)
    frame.emit(
        {"project": str(project), "seconds": teller.elapsed_s, "steps": teller.steps, "airflow": story.airflow},
        lambda: ending(project, teller, story.airflow),
    )


def demo_settings(settings: Settings, project: Path) -> Settings:
    """Return the settings of the demo: its own project and broker, whatever the environment names, with the downloads of these settings.

    The environment of this process is changed to it, because the services that it starts inherit it.
    """
    downloads = str(settings.build)
    for name in [name for name in os.environ if name.startswith("RIVERTWICE_")]:
        del os.environ[name]
    os.environ.update({"RIVERTWICE_PROJECT": str(project), "RIVERTWICE_DOWNLOADS": downloads})
    return Settings.from_env()


def prepare_folder(project: Path) -> None:
    """Make the folder a demo's, if it is empty.

    Raises:
        ConfigError: it holds files that no demo made, or that somebody changed since.
    """
    from rivertwice.local import sample_files

    marker = project / MARKER
    if not marker.exists():
        if project.exists() and any(project.iterdir()):
            message = (
                f"{project} holds files that no demo made, so the demo leaves it alone; name another folder with --dir"
            )
            raise ConfigError(message)
        project.mkdir(parents=True, exist_ok=True)
        marker.touch()
    _, files = sample_files()
    found = {str(path.relative_to(project)) for path in project.glob("pipelines/*/pipeline.yaml")} | files.keys()
    own = sorted(
        path
        for path in found
        if (project / path).exists() and (project / path).read_text(encoding="utf-8") != files.get(path)
    )
    if own:
        message = (
            f"{project / own[0]} is not what the demo wrote, and a demo that starts clean would remove the state of your pipeline; "
            "name another folder with --dir, or remove this one"
        )
        raise ConfigError(message)


class Teller:
    """Prints the steps, and keeps their seconds."""

    def __init__(self, *, to_stderr: bool) -> None:
        self._to_stderr = to_stderr
        self._begun = time.monotonic()
        self.steps: list[dict[str, Any]] = []

    @property
    def elapsed_s(self) -> float:
        """Seconds since the demo began."""
        return round(time.monotonic() - self._begun, 1)

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Print a step: its title before, its seconds after."""
        begun = time.monotonic()
        self.say(f"\n{len(self.steps) + 1}. {title}")
        yield
        self.steps.append({"step": title, "seconds": round(time.monotonic() - begun, 1)})
        self.say(f"   {self.steps[-1]['seconds']} s")

    def say(self, line: str) -> None:
        """Print a line."""
        say(line, err=self._to_stderr)

    def tell(self, line: str) -> None:
        """Print a fact of the step."""
        self.say(f"   {line}")


@dataclasses.dataclass(frozen=True)
class KeptFrame(Frame):
    """The frame of a command that the demo runs: its result is kept, and not printed."""

    results: list[Any] = dataclasses.field(default_factory=list)

    def emit(self, value: Any, text: Any) -> None:
        """Keep a result."""
        self.results.append(to_plain(value))

    def progress(self, line: str) -> None:
        """Print no progress: the step says how long it took."""


class Verbs:
    """Runs commands in this process, as `rivertwice VERB ...` would: they share one JVM."""

    def __init__(self, settings: Settings, teller: Teller) -> None:
        self._settings, self._teller = settings, teller

    def run(self, *words: str) -> Any:
        """Print a command, run it and return what it would print with `--output json`.

        Raises:
            DemoError: it ended with another exit code than 0.
            RivertwiceError: its own error.
        """
        self._teller.tell(f"$ rivertwice {shlex.join(words)}")
        root = click.get_current_context().find_root()
        assert isinstance(root.command, click.Group)
        command = root.command.get_command(root, words[0])
        assert command is not None, words
        kept = KeptFrame(self._settings, "text", debug=False)
        above = click.Context(root.command, info_name=root.info_name, obj=kept)
        try:
            with command.make_context(words[0], list(words[1:]), parent=above) as context:
                command.invoke(context)
        except SystemExit as end:
            if end.code:
                message = f"`rivertwice {shlex.join(words)}` ended with {end.code}: {str(kept.results)[:1000]}"
                raise DemoError(message) from None
        return kept.results[-1] if kept.results else None


class Story:
    """The steps, in order, on one project."""

    def __init__(self, settings: Settings, teller: Teller, verbs: Verbs) -> None:
        from rivertwice.local import ORDERS, TOPIC

        self._settings, self._teller, self._verbs = settings, teller, verbs
        self._name, self._records = TOPIC, ORDERS
        self._home = settings.pipeline(TOPIC)
        self.airflow: dict[str, Any] | None = None

    def run(self, *, airflow: bool) -> None:
        """Run every step; raise at the first that does not hold."""
        step = self._teller.step
        with step("Write a project with a generated stream"):
            self._verbs.run("init", "--sample")
            self._teller.tell(
                f"pipelines/{self._name}/ has the definition: the SQL of transform.sql is all the logic there is."
            )
        with step(f"Start Kafka and the agent, and put {self._records} orders into the log"):
            sent = self._verbs.run("up", "--sample")["sample"][self._name]
            require(sent.startswith(str(self._records)), f"{self._records} orders are sent, and not: {sent}")
            self._teller.tell(
                "A shop's line was down for a quarter of an hour: its orders of that time arrive hours later."
            )
        with step("Stream them, and kill the driver with SIGKILL on the way"):
            self._stream()
        with step("Compare what the stream emitted and what is served with the log"):
            late = self._compare(stream_late=True, served_late=True)
        with step("Explain the worst number"):
            worst = self._explain()
        with step(f"Recompute the {late} windows that lack orders, audit and publish them"):
            done = self._verbs.run("backfill", "run", self._name, "--yes")
            require(done["windows"] == late and done["sequence"], f"{late} windows are published")
            self._teller.tell(
                f"{done['windows']} windows published in one commit; readers saw the old rows or the new ones, never both."
            )
        with step("Compare again"):
            self._compare(stream_late=True, served_late=False)
            self._after(worst)
        if airflow:
            with step("Start Airflow"):
                self.airflow = self._verbs.run("up", "--airflow")["airflow"]

    def _stream(self) -> None:
        from rivertwice.stream import lease_owner
        from rivertwice.timeline import Exit, Heartbeat

        self._verbs.run("start", self._name)

        def batch() -> int:
            beat = Heartbeat.load(self._home)
            return -1 if beat is None or beat.batch is None else beat.batch

        if not Deadline.after(START_SECONDS).wait_until(lambda: batch() >= KILL_AFTER, every=0.05):
            message = f"the stream committed no batch {KILL_AFTER} within {START_SECONDS} s; its last exit: {Exit.load(self._home)}; see {self._home.logs}"
            raise DemoError(message)
        owner = lease_owner(self._home)
        require(owner is not None, "a driver lives")
        assert owner is not None
        os.kill(owner.pid, signal.SIGKILL)
        before = self._ledger()
        read = sum(row.read for row in before)
        self._teller.tell(
            f"Killed driver {owner.pid} when {read} of {self._records} orders were committed. The agent starts another one."
        )
        result = self._verbs.run("start", self._name, "--wait")
        require(result["epoch"] > owner.epoch, "another driver runs")
        rows = self._ledger()
        ends = [0, *(int(row.end_offsets[self._name]["0"]) for row in rows)]
        starts = [int(row.start_offsets[self._name]["0"]) for row in rows]
        require(starts == ends[:-1], f"each batch begins where the one before it ended: {starts}, {ends}")
        require(sum(row.read for row in rows) == ends[-1] == self._records, f"all {self._records} orders are read once")
        self._teller.tell(
            f"The ledger has {len(rows)} batches of two drivers without a gap or an overlap: {self._records} orders were read, each once."
        )

    def _ledger(self) -> list[LedgerRow]:
        from rivertwice.timeline import path_ledger

        return path_ledger(self._home)

    def _compare(self, *, stream_late: bool, served_late: bool) -> int:
        """Reconcile; return how many served rows are late."""
        run = self._verbs.run("reconcile", self._name)
        for pair, expects_late in (("stream", stream_late), ("served", served_late)):
            counts = {
                verdict: run["counts"][pair].get(verdict, 0)
                for verdict in (Verdict.AGREES, Verdict.LATE, Verdict.OPEN, Verdict.DEFECT, Verdict.NOT_COMPARABLE)
            }
            self._teller.tell(f"{pair}: {', '.join(f'{count} {verdict}' for verdict, count in counts.items())}")
            require(
                not counts[Verdict.DEFECT] and not counts[Verdict.NOT_COMPARABLE],
                f"no row of {pair} is a defect, and all are compared",
            )
            require(bool(counts[Verdict.LATE]) == expects_late, f"rows of {pair} lack late records: {expects_late}")
        total = run["balance"]["total"]
        require(total["unexplained"] == 0, f"no record is unexplained, and {total['unexplained']} are")
        self._teller.tell(
            f"{total['read']} read = {total['emitted']} emitted + {total['open']} in open windows + {total['late']} late; "
            f"{total['unexplained']} unexplained. Every row that differs has a cause."
        )
        return int(run["counts"]["served"].get(Verdict.LATE, 0))

    def _explain(self) -> tuple[str, str]:
        from rivertwice.log import read_exactly

        rows = self._verbs.run("verdicts", self._name, "--pair", "served", "--verdict", Verdict.LATE)["rows"]
        worst = max(rows, key=lambda row: int(row["late"]))
        window, key = str(worst["window_start"]), str(worst["key"])
        found = self._verbs.run("explain", self._name, window, key, "--with-truth")
        columns = {column["name"]: column for column in found["columns"]}
        counted = columns["records"]
        require(
            counted["truth"] - counted["served"] == worst["late"] == found["late_total"],
            "each order that is missing is named",
        )
        self._teller.tell(f"served {_values(columns, 'served')}; the log says {_values(columns, 'truth')}")
        first = found["late"][0]
        topic, _, place = first["place"].partition("/")
        partition, offset = (int(part) for part in place.split("@"))
        (message,) = read_exactly(self._settings, topic, {partition: (offset, offset + 1)})
        self._teller.tell(
            f"{found['late_total']} orders are missing. The first is {first['place']}: {(message.value() or b'').decode()}"
        )
        self._teller.tell(
            f"Batch {first['batch']} read it when the watermark was {first['watermark']}, so its window was closed."
        )
        return window, key

    def _after(self, worst: tuple[str, str]) -> None:
        found = self._verbs.run("explain", self._name, *worst)
        columns = {column["name"]: column for column in found["columns"]}
        require(columns["records"]["served"] > columns["records"]["stream"], "the worst number has its late orders")
        self._teller.tell(f"served {_values(columns, 'served')}; the stream had emitted {_values(columns, 'stream')}")


def _values(columns: Mapping[str, Mapping[str, Any]], side: str) -> str:
    return f"{columns['records'][side]} orders, amount {columns['amount_sum'][side]}"


def ending(project: Path, teller: Teller, airflow: Mapping[str, Any] | None) -> str:
    """Return the last lines: what holds, where the project is, how to see it, how to put other records in its place. Pure."""
    page = (
        f"See it: {airflow['url']}/rivertwice/#/p/orders, user {airflow['user']}, password {airflow['password']}"
        if airflow
        else (
            "To see it: `rivertwice status` there, or `rivertwice up --airflow` for Airflow and the page (uv pip install 'rivertwice[airflow]')."
        )
    )
    return "\n".join(
        (
            f"\nEvery step held, in {teller.elapsed_s} s. AGREES: what is served is what the log says.",
            f"The project is {project}; it still runs, and `rivertwice down` there stops it.",
            page,
            "Your own records: `rivertwice init NAME --from-file FILE`, or `--from-topic TOPIC` with RIVERTWICE_BOOTSTRAP=HOST:PORT.",
        )
    )
