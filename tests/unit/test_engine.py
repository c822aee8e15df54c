"""The warm engine without Spark: what makes an old one unfit, who uses it, and what a client does with each answer."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from homes.project import REPOSITORY
from rivertwice.cli import engine_server
from rivertwice.cli.engine_server import Basis, look_at_basis
from rivertwice.core.settings import Settings
from rivertwice.engine import session, warm
from rivertwice.engine.jvm import QUICK_BATCHES, QUICK_RECORDS, is_quick
from rivertwice.engine.warm import engine_folder, is_served, listen, run_in_engine, run_program_in_engine

BASIS = Basis("python", (("a.py", 1),), {"SPARK_X": "1"}, {"spark.master": "local"}, (("a.jar", 1, 1),))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(project=tmp_path, home=tmp_path / ("long" * 40) / "home")


@contextmanager
def served(settings: Settings, serve: Callable[[socket.socket], object]) -> Iterator[None]:
    """Answer one client after the other by a function, at the engine's address."""
    folder = engine_folder(settings)
    folder.mkdir(parents=True)
    listener = listen(folder)

    def answer() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                serve(connection)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def requested(connection: socket.socket) -> dict[str, Any]:
    """Greet a client, take its request, and close its files."""
    connection.sendall(json.dumps({"ready": os.getpid()}).encode() + b"\n")
    _, files, _, _ = socket.recv_fds(connection, 1, 3)
    for file in files:
        os.close(file)
    return json.loads(connection.makefile("rb").readline())


def send(connection: socket.socket, answer: dict[str, Any]) -> None:
    connection.sendall(json.dumps(answer).encode() + b"\n")


def test_each_part_of_the_basis_makes_another_engine() -> None:
    assert BASIS.describe_change(dataclasses.replace(BASIS)) is None
    others = {
        "python": "other",
        "code": (("a.py", 2),),
        "env": {},
        "confs": {"spark.master": "local[2]"},
        "jars": (("a.jar", 1, 2),),
    }
    assert others.keys() == {each.name for each in dataclasses.fields(Basis)}
    told = {BASIS.describe_change(dataclasses.replace(BASIS, **{name: value})) for name, value in others.items()}
    assert len(told) == len(others)
    assert None not in told


def test_the_basis_is_what_a_jvm_starts_with(tmp_path: Path) -> None:
    env = {**os.environ, "RIVERTWICE_PROJECT": str(tmp_path)}
    first = look_at_basis(env, "python")
    assert first.describe_change(look_at_basis({**env, "COLUMNS": "80", "AIRFLOW_CTX_TRY": "2"}, "python")) is None
    for changes in ({"AWS_PROFILE": "x"}, {"JAVA_TOOL_OPTIONS": "-Xmx1g"}, {"TZ": "Asia/Tokyo"}):
        assert first.describe_change(look_at_basis({**env, **changes}, "python")) == "the environment has changed"
    master = look_at_basis({**env, "RIVERTWICE_SPARK_MASTER": "local[3]"}, "python")
    assert first.describe_change(master) == "a setting of Spark or Java has changed"


@pytest.mark.parametrize(
    ("master", "is_on", "expected"),
    [
        ("local[*]", True, True),
        ("local", True, True),
        ("local[2]", False, False),
        ("local-cluster[2,1,1024]", True, False),
        ("spark://host:7077", True, False),
        ("k8s://https://host", True, False),
    ],
)
def test_only_verbs_of_this_machine_use_it(settings: Settings, master: str, is_on: bool, expected: bool) -> None:
    assert is_served(dataclasses.replace(settings, spark_master=master, engine=is_on)) is expected


def test_a_process_of_sparks_own_does_not_use_it(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert not is_served(settings)


def test_only_short_runs_have_the_quick_compiler() -> None:
    assert is_quick(records=QUICK_RECORDS, batches=QUICK_BATCHES)
    assert not is_quick(records=QUICK_RECORDS + 1)
    assert not is_quick(batches=QUICK_BATCHES + 1)


def test_the_answer_is_the_exit_code_and_the_request_is_the_call(settings: Settings) -> None:
    asked: list[dict[str, Any]] = []

    def serve(connection: socket.socket) -> None:
        asked.append(requested(connection))
        send(connection, {"code": 3})

    said: list[str] = []
    with served(settings, serve):
        assert run_in_engine(settings, "test p", ["test", "p"], said.append) == 3
    assert said == []
    (request,) = asked
    assert (request["words"], request["verb"], request["cwd"]) == (["test", "p"], "test p", os.getcwd())
    assert request["env"]["RIVERTWICE_HOME"] == str(settings.home)


def test_work_that_does_not_fit_is_done_here(settings: Settings) -> None:
    def serve(connection: socket.socket) -> None:
        requested(connection)
        send(connection, {"cold": "it reads 400000 records"})

    said: list[str] = []
    with served(settings, serve):
        assert run_in_engine(settings, "test", ["test"], said.append) is None
    assert said == []


def test_an_engine_that_ends_during_the_run_is_said(settings: Settings) -> None:
    said: list[str] = []
    with served(settings, requested):
        assert run_in_engine(settings, "test", ["test"], said.append) is None
    (line,) = said
    assert line.startswith(f"the engine (process {os.getpid()}) ended during this run")


def test_a_busy_engine_is_waited_for_and_then_left(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "WAIT_S", 0.1)
    free = threading.Event()
    said: list[str] = []
    with served(settings, lambda _: free.wait(30.0)):
        assert run_in_engine(settings, "test", ["test"], said.append) is None
        free.set()
    assert len(said) == 1
    assert "still busy" in said[0]


def test_two_engines_in_turn_that_do_not_fit_end_in_a_cold_run(settings: Settings) -> None:
    asked: list[dict[str, Any]] = []

    def serve(connection: socket.socket) -> None:
        asked.append(requested(connection))
        send(connection, {"stale": "a jar of Spark has changed"})

    with served(settings, serve):
        assert run_in_engine(settings, "test", ["test"], lambda _: None) is None
    assert len(asked) == 2


def test_a_home_that_cannot_be_written_is_said(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(warm, "start_detached", refuse)
    settings.home.mkdir(parents=True)
    said: list[str] = []
    assert run_in_engine(settings, "test", ["test"], said.append) is None
    assert "no engine can be started" in said[0]


def test_each_line_of_a_program_is_passed_on(settings: Settings, tmp_path: Path) -> None:
    def serve(connection: socket.socket) -> None:
        connection.sendall(json.dumps({"ready": os.getpid()}).encode() + b"\n")
        _, (stdin, stdout, stderr), _, _ = socket.recv_fds(connection, 1, 3)
        request = json.loads(connection.makefile("rb").readline())
        assert (request["program"], request["words"]) == (str(tmp_path / "job.py"), ["--pipeline", "p"])
        assert os.read(stdin, 1) == b""
        os.write(stdout, b"one\n")
        os.write(stderr, b"error: two\n")
        for file in (stdin, stdout, stderr):
            os.close(file)
        send(connection, {"code": 1})

    said: list[str] = []
    with served(settings, serve):
        ran = run_program_in_engine(settings, tmp_path / "job.py", ["--pipeline", "p"], said.append)
    assert ran == (1, "one\nerror: two")
    assert said == ["one", "error: two"]


def test_a_long_run_leaves_the_engine_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_RESIDENT", [object()])
    monkeypatch.setattr("rivertwice.reconcile.count_unsealed", lambda *_, **__: QUICK_RECORDS + 1)
    words = ["--project", str(REPOSITORY), "--home", str(tmp_path), "reconcile", "flight_delays", "--full"]
    answer = engine_server._run({"program": None, "words": words})
    assert answer == {"cold": f"it reads {QUICK_RECORDS + 1} records"}


def test_a_verb_ends_in_the_engine_with_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def code(*words: str) -> Any:
        return engine_server._run({"program": None, "words": ["--home", str(tmp_path), *words]})["code"]

    assert [code("--version"), code("pipelines"), code("lint", "nobody"), code("no such verb")] == [0, 0, 1, 2]
    program = tmp_path / "job.py"
    program.write_text("import sys\nsys.exit('refused: no')\n")
    assert engine_server._run({"program": str(program), "words": []}) == {"code": 1}
    assert capsys.readouterr().err.endswith("refused: no\n")
    program.write_text("1 / 0\n")
    assert engine_server._run({"program": str(program), "words": []}) == {"code": 1}
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize("why", ["idle", "gone"])
def test_an_engine_without_work_or_socket_ends(why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_server, "_LOOK_S", 0.01)
    monkeypatch.setattr(engine_server, "IDLE_S", 0.05 if why == "idle" else 600.0)
    with listen(tmp_path) as listener:
        place = tmp_path / "socket"
        assert oct(place.stat().st_mode & 0o777) == "0o600"
        if why == "gone":
            threading.Timer(0.05, place.unlink).start()
        assert engine_server._accept(listener, place) is None


def test_only_one_engine_serves_a_home(tmp_path: Path) -> None:
    held = engine_server._open_alone(tmp_path)
    assert held is not None
    (tmp_path / "socket").touch()
    assert engine_server._open_alone(tmp_path) is None
    held.close()
    again = engine_server._open_alone(tmp_path)
    assert again is not None
    again.close()
