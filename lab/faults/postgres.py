"""A real PostgreSQL server for one test or run: a private cluster in a temporary folder, reached by a socket in that folder."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from lab.faults.proxy import Swallow
from rivertwice.core.ports import held_ports

USER = "rivertwice"


def find_binaries() -> Path | None:
    """Return the folder with initdb and pg_ctl, or None."""
    found = shutil.which("initdb")
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    return Path(found).resolve().parent if found else folders[-1] if folders else None


def missing() -> str | None:
    """Return why no server can be started here, or None."""
    if find_binaries() is None:
        return "no PostgreSQL here (initdb); on Debian: apt-get install postgresql"
    if os.geteuid() == 0 and _account() is None:
        return "PostgreSQL does not run as root, and there is no account postgres or nobody"
    return None


def _account() -> str | None:
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in names), None)


@contextmanager
def postgres_server(port: int | None = None) -> Iterator[str]:
    """Run a server and give its connection string; fsync is off, nothing outlives a test.

    Args:
        port: also listen there on loopback, for a password, and keep what logical replication reads.
    """
    binaries = find_binaries()
    assert binaries is not None
    account = _account() if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="rt-pg-"))  # short: a socket's path has at most 107 bytes
    if account is not None:
        shutil.chown(folder, account)

    def run(*command: str) -> None:
        done = subprocess.run(
            command, cwd=folder, user=account, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    data = str(folder / "data")
    try:
        login = ("--auth-local=trust", "--auth-host=scram-sha-256")
        run(str(binaries / "initdb"), "-D", data, "-U", USER, *login, "-E", "UTF8", "--no-sync", "--locale=C")
        reached = (
            "-c listen_addresses=''"
            if port is None
            else f"-c listen_addresses=127.0.0.1 -p {port} -c wal_level=logical"
        )
        options = f"{reached} -k {folder} -c fsync=off -c log_min_messages=fatal"
        run(str(binaries / "pg_ctl"), "-D", data, "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"host={folder} user={USER} dbname=postgres" + ("" if port is None else f" port={port}")
        finally:
            run(str(binaries / "pg_ctl"), "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def loopback_server() -> Iterator[str]:
    """Run a server that also listens on loopback; give the connection string of its socket. `address_at` is the other way in."""
    with held_ports(1) as (port,):
        pass
    with postgres_server(port) as address:
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(f"ALTER ROLE {USER} PASSWORD 'x'")
        yield address


def port_of(address: str) -> int:
    """Return the loopback port of a server that `loopback_server` gave."""
    return int(address.rpartition("port=")[2])


def address_at(port: int) -> str:
    """Return the connection string by a port of loopback: the server's, or a proxy's."""
    return f"host=127.0.0.1 port={port} user={USER} password=x dbname=postgres"


def commit_of_a_step() -> Swallow:
    """Return what waits for the COMMIT of a transaction that has stored a position: other transactions only read, or create."""
    updated = False

    def is_it(piece: bytes) -> bool:
        nonlocal updated
        updated = updated or b"UPDATE" in piece
        return updated and b"COMMIT\x00" in piece

    return Swallow(is_it)
