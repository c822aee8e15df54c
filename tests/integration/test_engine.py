"""The warm engine: what a verb stores and prints is what it stores and prints with its own Spark; it ends with its client, and its client survives it."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from histories.kinds import KINDS
from histories.random_histories import random_batches
from homes.project import EXAMPLES, REPOSITORY, make_project
from rivertwice.core.instants import utc_now
from rivertwice.core.processes import session_members
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Deadline
from rivertwice.definition.definition import load_definition
from rivertwice.engine.warm import engine_folder, engine_status, run_in_engine, stop_engine
from rivertwice.local.broker import BrokerInfo
from rivertwice.savepoint.take import take_savepoint
from rivertwice.storage.table import Table
from rivertwice.timeline.served import rebuild_served
from running.tiers import in_turn
from streams.kinds import NAME, make_kind_project, run_to_end, send

pytestmark = [pytest.mark.spark, pytest.mark.faults]

CLOCK = {
    "created_at",
    "committed_at",
    "duration_s",
    "made_at",
    "at",
    "seconds",
    "replay_seconds",
    "batch_s",
    "phases",
    "_at",
    "_created_at",
}
"""Columns and keys that hold when a run was, or how long it took."""
RUN = re.compile(r"rc-\d{8}-\d{6}-[0-9a-f]{8}")
INSTANT = re.compile(r"20[2-9]\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?")
PATIENCE_S = 600.0


def run(settings: Settings, *words: str, output: str = "json") -> subprocess.CompletedProcess[str]:
    """Run a verb in its own process, as a shell does."""
    return subprocess.run(
        command(*words, output=output), env=env_of(settings), capture_output=True, text=True, check=False
    )


def command(*words: str, output: str = "json") -> list[str]:
    return [sys.executable, "-m", "rivertwice.cli.main", "--output", output, *words]


def env_of(settings: Settings, **changes: str) -> dict[str, str]:
    return {**os.environ, **settings.to_env(), "RIVERTWICE_ENGINE": "on", **changes}


@contextmanager
def engine_of(settings: Settings) -> Iterator[None]:
    """Leave no engine behind."""
    try:
        yield
    finally:
        stop_engine(settings)


def plain(value: Any) -> Any:
    """Return a value without clocks, and with one name for all runs."""
    if isinstance(value, dict):
        return {
            key: plain(item) for key, item in sorted(value.items(), key=lambda pair: str(pair[0])) if key not in CLOCK
        }
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, str):
        if value[:1] in "{[":
            try:
                return plain(json.loads(value))
            except ValueError:
                pass
        return INSTANT.sub("NOW", RUN.sub("RUN", value)) if INSTANT.search(value) or RUN.search(value) else value
    return value


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def stored(settings: Settings) -> dict[str, str]:
    """Return the SHA-256 of the rows of each table of a home, sorted, and of each small record."""
    found = {}
    for log in sorted(settings.home.rglob("_delta_log")):
        table = Table(log.parent).read()
        rows = sorted(json.dumps(plain(row), default=str, sort_keys=True) for row in table.to_pylist())
        found[str(log.parent.relative_to(settings.home))] = f"{len(rows)} rows {digest(rows)}"
    for file in sorted(settings.home.rglob("*.json")):
        name = str(file.relative_to(settings.home))
        if "_delta_log" in name or name.startswith(("engine/", "broker/", "agent/")) or "/checkpoints/" in name:
            continue
        if "/.sums/" in name:
            continue  # sums of the archive's files by their random names; its rows are compared
        found[RUN.sub("RUN", name)] = digest(plain(json.loads(file.read_text())))
    return found


def story(settings: Settings, verbs: Sequence[Sequence[str]], *, cold: bool) -> tuple[list[Any], dict[str, str]]:
    """Run verbs one after the other; return what each printed, and what the home holds then."""
    said = []
    for words in verbs:
        done = run(settings, *words, *(["--cold"] if cold else []))
        assert done.returncode in (0, 3), (words, done.stdout[-2000:], done.stderr[-3000:])
        said.append((words[0], done.returncode, plain(json.loads(done.stdout))))
    return said, stored(settings)


def compare(settings: Settings, verbs: Sequence[Sequence[str]], folder: Path) -> None:
    """Run verbs cold and warm from the same home, and compare."""
    before = folder / "before"
    shutil.copytree(settings.home, before)
    cold = story(settings, verbs, cold=True)
    assert engine_status(settings) is None
    shutil.rmtree(settings.home)
    shutil.copytree(before, settings.home)
    with engine_of(settings):
        warm = story(settings, verbs, cold=False)
        assert engine_status(settings) is not None
    assert warm[0] == cold[0]
    assert warm[1] == cold[1]


WINDOWED = ("tumbling", "hopping", "tumbling updates", "hopping updates", "session")


@pytest.mark.kafka
def test_a_warm_run_stores_what_a_cold_one_does(tmp_path: Path, broker: BrokerInfo, topic: str) -> None:
    (kind,) = in_turn(KINDS)
    settings = make_kind_project(tmp_path, broker, topic, kind)
    definition = load_definition(settings.definitions / NAME)
    send(settings, definition, [record for batch in random_batches(random.Random(kind), 12) for record in batch])
    run_to_end(settings, tmp_path / "driver.log")
    rebuild_served(settings.pipeline(NAME), definition)
    verbs = [["reconcile", NAME], ["admin", "archive", NAME], ["reconcile", NAME, "--full"], ["reconcile", NAME]]
    if kind in WINDOWED:
        verbs.insert(
            2, ["backfill", "run", NAME, "--yes", "--from", "1970-01-02T03:47:40Z", "--to", "1970-01-02T03:49:40Z"]
        )
    compare(settings, verbs, tmp_path)


def test_every_definition_of_the_repository_is_judged_alike(tmp_path: Path) -> None:
    """Plan checks and cases, each as a stream and as a batch; of the examples four in turn, all of them are minutes."""
    settings = Settings(project=REPOSITORY, home=tmp_path / "home")
    settings.home.mkdir()
    names = sorted(path.parent.name for path in EXAMPLES.glob("*/pipeline.yaml"))
    examples = [["test", name, "--examples"] for name in in_turn(names, 4)]
    compare(settings, [["test"], *examples, ["lint"]], tmp_path)


JOBS = (
    ("archive",),
    ("reconcile", "--run", "rc-20260101-000000-00000001"),
    ("reconcile", "--run", "rc-20260101-000000-00000002", "--full"),
)


@pytest.mark.kafka
@pytest.mark.proves("cli.md#the-warm-engine")
def test_a_warm_job_of_airflow_stores_what_a_submitted_one_does(tmp_path: Path, broker: BrokerInfo, topic: str) -> None:
    settings = make_kind_project(tmp_path, broker, topic, "tumbling")
    definition = load_definition(settings.definitions / NAME)
    batches = random_batches(random.Random(5), 12)
    send(settings, definition, [record for batch in batches[:6] for record in batch])
    run_to_end(settings, tmp_path / "driver.log")
    savepoint = take_savepoint(settings, NAME, now=utc_now(), reason="test").id
    send(settings, definition, [record for batch in batches[6:] for record in batch])
    run_to_end(settings, tmp_path / "driver.log")  # so that the proof has micro-batches to replay
    rebuild_served(settings.pipeline(NAME), definition)
    jobs = (*JOBS, ("prove", "--savepoint", savepoint))
    shutil.copytree(settings.home, tmp_path / "before")
    for job, *words in jobs:
        path = settings.shipped(f"spark_jobs/{job}.py")
        done = subprocess.run(
            [sys.executable, str(path), "--pipeline", NAME, *words],
            env=env_of(settings),
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()[-3000:]
    cold = stored(settings)
    shutil.rmtree(settings.home)
    shutil.copytree(tmp_path / "before", settings.home)
    said: list[str] = []
    with engine_of(settings), (tmp_path / "printed").open("w+b") as printed:
        for job, *words in jobs:
            path = settings.shipped(f"spark_jobs/{job}.py")
            words = ["--pipeline", NAME, *words]
            code = run_in_engine(settings, job, words, said.append, program=path, output=printed.fileno())
            assert code == 0, (said, (tmp_path / "printed").read_text())
    warm = stored(settings)
    assert said == []
    assert {name for name in cold.keys() | warm.keys() if cold.get(name) != warm.get(name)} == set()
    assert "recorded batches replayed equal" in (tmp_path / "printed").read_text()


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    """A project with the example of the repository, whose engine is stopped after the test."""
    files = {
        path.name: path.read_text()
        for path in (REPOSITORY / "pipelines" / "flight_delays").glob("*.*")
        if path.is_file()
    }
    made = make_project(tmp_path / "project", {"flight_delays": files}, links=(".build", "expectations"))
    shutil.copytree(REPOSITORY / "pipelines" / "flight_delays" / "cases", made.definitions / "flight_delays" / "cases")
    with engine_of(made):
        yield made


def start(settings: Settings, *words: str, **changes: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*words),
        env=env_of(settings, **changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a run in the background ignores it
    )


def jvm_of(pid: int) -> psutil.Process | None:
    """Return the JVM of an engine's Spark, not the one that makes its command line."""
    for process in session_members([pid]):
        try:
            if "org.apache.spark.deploy.SparkSubmit" in process.cmdline():
                return process
        except psutil.NoSuchProcess:
            continue
    return None


def wait_for(settings: Settings, running: str) -> int:
    """Wait until the engine runs this verb and its JVM has started; return its pid."""

    def runs() -> bool:
        status = engine_status(settings)
        return status is not None and status.running == running and jvm_of(status.pid) is not None

    assert Deadline.after(PATIENCE_S).wait_until(runs, every=0.05), (engine_folder(settings) / "log").read_text()
    status = engine_status(settings)
    assert status is not None
    return status.pid


def passed(done: tuple[str, str]) -> list[str]:
    """Return the cases that passed, by what `test` printed last; a run that begins again prints again."""
    return [result["case"] for result in json.loads(done[0].splitlines()[-1])["cases"] if not result["differences"]]


def test_the_second_run_is_in_the_same_engine(settings: Settings) -> None:
    first = run(settings, "test", "flight_delays")
    engine = engine_status(settings)
    second = run(settings, "test", "flight_delays")
    assert first.returncode == 0, first.stderr
    assert (second.returncode, second.stdout) == (0, first.stdout)
    assert engine is not None
    assert engine.running is None
    after = engine_status(settings)
    assert after is not None
    assert after.pid == engine.pid
    folder = engine_folder(settings)
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in (folder, folder / "socket", folder / "log")} == {
        "engine": "0o700",
        "socket": "0o600",
        "log": "0o600",
    }
    shown = json.loads(run(settings, "status").stdout)["engine"]
    assert (shown["pid"], shown["running"]) == (engine.pid, "nothing")


def test_a_killed_client_ends_the_engine_and_all_it_started(settings: Settings) -> None:
    client = start(settings, "test", "flight_delays")
    pid = wait_for(settings, "test flight_delays")
    members = session_members([pid])
    client.kill()
    client.wait()
    gone, alive = psutil.wait_procs(members, timeout=PATIENCE_S)
    assert len(gone) > 1
    assert not alive
    assert engine_status(settings) is None
    again = run(settings, "test", "flight_delays")
    assert again.returncode == 0, again.stderr


def test_an_interrupted_client_ends_as_its_own_process_would(settings: Settings) -> None:
    client = start(settings, "test", "flight_delays")
    pid = wait_for(settings, "test flight_delays")
    client.send_signal(signal.SIGINT)
    _, err = client.communicate(timeout=PATIENCE_S)
    assert client.returncode == 1
    assert "Aborted!" in err
    assert Deadline.after(PATIENCE_S).wait_until(lambda: not session_members([pid]), every=0.05)


def test_a_start_of_spark_that_is_interrupted_leaves_no_jvm(settings: Settings) -> None:
    client = start(settings, "test", "flight_delays", "--cold")
    assert Deadline.after(PATIENCE_S).wait_until(lambda: jvm_of(client.pid) is not None, every=0.05)
    client.send_signal(signal.SIGINT)
    client.communicate(timeout=PATIENCE_S)
    assert client.returncode == 1
    assert Deadline.after(60).wait_until(lambda: not session_members([client.pid]), every=0.05)


def test_a_killed_engine_is_said_and_the_verb_runs_without_it(settings: Settings) -> None:
    client = start(settings, "test", "flight_delays")
    pid = wait_for(settings, "test flight_delays")
    os.kill(pid, signal.SIGKILL)
    out, err = client.communicate(timeout=PATIENCE_S)
    assert client.returncode == 0, err
    assert f"rivertwice: the engine (process {pid}) ended during this run" in err
    assert len(passed((out, err))) == 4


def test_a_killed_jvm_is_said_and_the_verb_runs_without_it(settings: Settings) -> None:
    client = start(settings, "test", "flight_delays")
    pid = wait_for(settings, "test flight_delays")
    jvm = jvm_of(pid)
    assert jvm is not None
    jvm.kill()
    out, err = client.communicate(timeout=PATIENCE_S)
    assert client.returncode == 0, err
    assert f"rivertwice: the engine (process {pid}) ended during this run" in err
    assert len(passed((out, err))) == 4


def test_a_second_client_waits_for_the_first(settings: Settings) -> None:
    clients = [start(settings, "test", "flight_delays")]
    wait_for(settings, "test flight_delays")
    clients.append(start(settings, "lint", "flight_delays"))
    ended = [client.communicate(timeout=PATIENCE_S) for client in clients]
    assert [client.returncode for client in clients] == [0, 0], ended
    assert "waiting for the engine" in ended[1][1]
    assert len(passed(ended[0])) == 4


def test_what_an_engine_began_with_is_compared_with_each_client(settings: Settings) -> None:
    assert run(settings, "lint", "flight_delays").returncode == 0
    first = engine_status(settings)
    changed = subprocess.run(
        command("lint", "flight_delays"),
        env=env_of(settings, SPARK_TESTING_BASIS="another"),
        capture_output=True,
        text=True,
        check=False,
    )
    second = engine_status(settings)
    assert changed.returncode == 0, changed.stderr
    assert first is not None
    assert second is not None
    assert second.pid != first.pid
    assert "ends: the environment has changed" in (engine_folder(settings) / "log").read_text()


def test_a_changed_definition_is_read_again(settings: Settings) -> None:
    before = run(settings, "test", "flight_delays")
    sql = settings.definitions / "flight_delays" / "transform.sql"
    sql.write_text(sql.read_text().replace("count(*)", "count(*) + 1"))
    after = run(settings, "test", "flight_delays")
    assert (before.returncode, after.returncode) == (0, 3)


def test_down_stops_the_engine(settings: Settings) -> None:
    assert run(settings, "lint", "flight_delays").returncode == 0
    status = engine_status(settings)
    assert status is not None
    stopped = json.loads(run(settings, "down").stdout)
    assert stopped["engine"] == status.pid
    assert engine_status(settings) is None
    assert not session_members([status.pid])


def test_cold_and_off_start_no_engine(settings: Settings) -> None:
    assert run(settings, "lint", "flight_delays", "--cold").returncode == 0
    off = subprocess.run(
        command("lint", "flight_delays"),
        env=env_of(settings, RIVERTWICE_ENGINE="off"),
        capture_output=True,
        check=False,
    )
    assert off.returncode == 0
    assert not engine_folder(settings).exists()
