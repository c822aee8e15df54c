"""A broker that is down is known at once; one that answers anything is not called down."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from homes.project import FLIGHTS, make_project
from rivertwice.core.errors import ServiceError
from rivertwice.core.kafka_security import KafkaSecurity
from rivertwice.core.settings import Settings
from rivertwice.log import kafka, reach
from rivertwice.log.reach import asked_by_a_person, find_silence, require_broker


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "_REACHED", set())


def closed_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@contextmanager
def listening(answer: Callable[[socket.socket], None] | None = None) -> Iterator[str]:
    """A socket that accepts connections, and leaves them as they are or answers each one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        if answer is not None:

            def serve() -> None:
                while True:
                    try:
                        connection, _ = server.accept()
                    except OSError:
                        return
                    with connection:
                        answer(connection)

            threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"


def at(tmp_path: Path, bootstrap: str, **security: object) -> Settings:
    settings = Settings(tmp_path, tmp_path / "home", bootstrap=bootstrap)
    return replace(settings, kafka=KafkaSecurity(**security)) if security else settings


def like_kafka(connection: socket.socket) -> None:
    size = int.from_bytes(connection.recv(4), "big")
    request = connection.recv(size)
    assert request[:4] == b"\x00\x12\x00\x00", "ApiVersions, version 0"
    connection.sendall(b"\x00\x00\x00\x0a" + request[4:8] + b"\x00\x00" + b"\x00" * 4)


def test_a_closed_port_is_named(tmp_path: Path) -> None:
    address = closed_port()
    assert find_silence(at(tmp_path, address)) == f"{address}: connection refused"


def test_a_name_that_nobody_knows_is_named(tmp_path: Path) -> None:
    found = find_silence(at(tmp_path, "no-such-host.invalid:9092"))
    assert found is not None
    assert found.startswith("no-such-host.invalid:9092: ")


def test_what_accepts_and_never_answers_is_told_from_what_is_closed(tmp_path: Path) -> None:
    with listening() as address:
        found = find_silence(at(tmp_path, address), within_s=0.2)
    assert found == f"{address}: it accepts connections, but answers nothing within 0.2 s"


def test_what_takes_no_connection_and_refuses_none_is_told_from_what_is_closed(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):  # the queue is full then, and Linux drops every further SYN
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        address = f"127.0.0.1:{server.getsockname()[1]}"
        found = find_silence(at(tmp_path, address), within_s=0.2)
    assert found == f"{address}: no connection within 0.2 s"


def test_what_ends_the_connection_is_no_broker(tmp_path: Path) -> None:
    with listening(lambda connection: connection.shutdown(socket.SHUT_RDWR)) as address:
        assert find_silence(at(tmp_path, address)) is not None


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x03\x00\x02\x02\x28", b"\x00\x00\x00\x0a\x00\x00\x00\x07"],
)
def test_what_answers_and_is_no_broker_is_named_at_once(tmp_path: Path, answer: bytes) -> None:
    """A port of a web server, or one that wants TLS: Kafka's client would wait twenty seconds for it."""

    def serve(connection: socket.socket) -> None:
        connection.recv(1024)
        connection.sendall(answer)

    with listening(serve) as address:
        found = find_silence(at(tmp_path, address))
    assert found is not None
    assert "is not a Kafka broker" in found


def test_one_living_address_of_several_is_enough(tmp_path: Path) -> None:
    dead = closed_port()
    with listening(like_kafka) as alive, listening() as silent:
        assert find_silence(at(tmp_path, f"{dead},{silent},{alive}")) is None


def test_a_slow_broker_is_not_called_down(tmp_path: Path) -> None:
    may_answer = threading.Event()

    def late(connection: socket.socket) -> None:
        may_answer.wait(5)
        like_kafka(connection)

    with listening(late) as address:
        threading.Timer(0.2, may_answer.set).start()
        assert find_silence(at(tmp_path, address)) is None


def test_a_broker_with_tls_answers_a_handshake_that_goes_no_further(tmp_path: Path) -> None:
    def alert(connection: socket.socket) -> None:
        assert connection.recv(3)[:1] == b"\x16", "a handshake record"
        connection.sendall(b"\x15\x03\x03\x00\x02\x02\x28")  # what a server says that refuses it: it lives all the same

    with listening(alert) as address:
        assert find_silence(at(tmp_path, address, protocol="SSL")) is None
    assert ssl.HAS_TLSv1_2


def test_a_command_names_the_broker_that_is_down_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "is_one_command", lambda: True)
    with pytest.raises(ServiceError, match="connection refused; start it, or correct RIVERTWICE_BOOTSTRAP"):
        kafka.cluster_id(at(tmp_path, closed_port()))


def test_a_stream_is_never_refused_by_the_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "is_one_command", lambda: False)
    require_broker(at(tmp_path, closed_port()))


def test_a_verb_in_the_engine_asks_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "is_one_command", lambda: False)
    down = at(tmp_path, closed_port())
    reach._REACHED.add(down.bootstrap_servers())  # by an earlier verb
    with asked_by_a_person(), pytest.raises(ServiceError, match="connection refused"):
        require_broker(down)
    require_broker(down)  # nobody waits any more


def test_what_answered_once_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "is_one_command", lambda: True)
    with listening(like_kafka) as address:
        require_broker(at(tmp_path, address))
    require_broker(at(tmp_path, address))  # it is closed by now: Kafka's own client tells that, with its patience


def test_the_command_line_says_it_by_itself(tmp_path: Path) -> None:
    address = closed_port()
    made = make_project(tmp_path, {"flight_delays": FLIGHTS})
    command = [
        sys.executable,
        "-m",
        "rivertwice.cli.main",
        "--project",
        str(made.project),
        "admin",
        "archive",
        "flight_delays",
    ]
    env = {**os.environ, "RIVERTWICE_BOOTSTRAP": address, "RIVERTWICE_HOME": str(made.home)}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"{address}: connection refused" in done.stderr
