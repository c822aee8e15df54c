"""A port is held from its choice on: no process of ours is given it a second time before its server has bound it."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rivertwice.core import ports
from rivertwice.core.errors import ServiceError
from rivertwice.core.ports import FIRST, held_ports, is_free

OTHER_PROCESS = """
import sys
from rivertwice.core import ports
ports._TRIES = 50
ports.FIRST = ports.LAST = int(sys.argv[1])
try:
    with ports.held_ports(1):
        print("given")
except ports.ServiceError:
    print("refused")
"""


@pytest.fixture
def one_port(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let the range be one free port."""
    with held_ports(1) as (port,):
        pass
    monkeypatch.setattr(ports, "FIRST", port)
    monkeypatch.setattr(ports, "LAST", port)
    return port


def ask_other_process(port: int) -> str:
    done = subprocess.run([sys.executable, "-c", OTHER_PROCESS, str(port)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_held_port_is_given_to_no_other_process_until_released(one_port: int) -> None:
    with held_ports(1) as (port,):
        assert port == one_port
        assert ask_other_process(one_port) == "refused"
    assert ask_other_process(one_port) == "given"


def test_a_port_that_is_bound_is_given_to_nobody(one_port: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", one_port))
        with pytest.raises(ServiceError, match="is free; end what listens there"), held_ports(1):
            pass


def test_the_ports_of_the_last_run_are_given_again_while_they_are_free() -> None:
    with held_ports(2) as before:
        pass
    with held_ports(2, before) as again:
        assert again == before
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", before[0]))
        with held_ports(2, before) as (broker, controller):
            assert broker != before[0]
            assert controller == before[1]


def test_who_asks_at_once_is_given_different_ports_of_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "LAST", FIRST + 29)
    monkeypatch.setattr(ports, "_TRIES", 100_000)
    all_hold = threading.Barrier(8)

    def hold_three(_: int) -> tuple[int, ...]:
        with held_ports(3) as numbers:
            all_hold.wait(60)
            return numbers

    with ThreadPoolExecutor(8) as pool:
        taken = [number for numbers in pool.map(hold_three, range(8)) for number in numbers]
    assert len(set(taken)) == 24
    assert all(FIRST <= number <= FIRST + 29 for number in taken)


def test_nothing_is_left_when_the_ports_are_bound() -> None:
    folder = Path(tempfile.gettempdir())
    with held_ports(2) as numbers:
        assert all(is_free(number) for number in numbers)
        assert all(list(folder.glob(f"rivertwice-ports-*/{number}")) for number in numbers)
    assert not any(list(folder.glob(f"rivertwice-ports-*/{number}")) for number in numbers)


def test_the_last_run_s_port_is_waited_for_while_something_listens() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        threading.Timer(0.4, listener.close).start()
        with held_ports(1, [port], patience_s=10.0) as (kept,):
            assert kept == port


def test_a_port_that_stays_taken_is_given_up_for_another() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with held_ports(1, [port], patience_s=0.2) as (other,):
            assert other != port
