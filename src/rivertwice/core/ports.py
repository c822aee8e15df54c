"""Ports on loopback for servers whose port is chosen before they bind it.

Between the choice and the bind, another process could take the port. Our own processes exclude each other with a lock on a file per
port. Connections of other programs do not use the range: it is below the ports that systems assign to clients (from 32768 on
Linux, from 49152 elsewhere), and below those of Kubernetes' services.
"""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from rivertwice.core.errors import ServiceError
from rivertwice.core.locks import try_lock
from rivertwice.core.waits import Deadline

FIRST, LAST = 15_000, 29_999
_TRIES = 1_000
PATIENCE_S = 3.0


@contextmanager
def held_ports(
    count: int, before: Sequence[int] | None = None, patience_s: float = PATIENCE_S
) -> Iterator[tuple[int, ...]]:
    """Give free ports that no other process of ours gets meanwhile; hold them until their server has bound them.

    Args:
        before: the `count` ports of the last run; each is given again if it is free.
        patience_s: how long to wait for those: a child of a server that was killed may listen a moment longer.

    Raises:
        ServiceError: no free port was found.
    """
    with ExitStack() as locks:
        held: list[int] = []
        waiting = Deadline.after(patience_s)
        for number in range(count):
            kept = None if before is None else _hold_again(before[number], locks, waiting)
            held.append(_hold_any(locks) if kept is None else kept)
        yield tuple(held)


def is_free(port: int) -> bool:
    """Say whether a server could bind the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _hold_again(port: int, locks: ExitStack, waiting: Deadline) -> int | None:
    return port if waiting.wait_until(lambda: _hold(port, locks), every=0.1) else None


def _hold_any(locks: ExitStack) -> int:
    for _ in range(_TRIES):
        port = FIRST + secrets.randbelow(LAST - FIRST + 1)
        if _hold(port, locks):
            return port
    message = f"none of {_TRIES} ports between {FIRST} and {LAST} on 127.0.0.1 is free; end what listens there"
    raise ServiceError(message)


def _hold(port: int, locks: ExitStack) -> bool:
    """Lock a port, and say whether it is ours and free. The file is deleted with the lock."""
    folder = Path(tempfile.gettempdir()) / f"rivertwice-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / str(port)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if try_lock(handle, 0.0) and _is_at(path, handle) and is_free(port):
        locks.callback(_release, path, handle)
        return True
    os.close(handle)
    return False


def _is_at(path: Path, handle: int) -> bool:
    """Say whether the locked file is still the one at the path: its last holder may have removed it before we locked it."""
    with suppress(FileNotFoundError):
        return path.stat().st_ino == os.fstat(handle).st_ino
    return False


def _release(path: Path, handle: int) -> None:
    path.unlink(missing_ok=True)
    os.close(handle)
