"""A query in a separate process with hard bounds: time, memory, bytes, no file that it could write, no secret that it could read.

    python -P -m rivertwice.read.query_process

reads one request from standard input, and writes one line of JSON (what came of it) and the bytes of the answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa

from rivertwice.core import RequestError, RivertwiceError, ServiceError, Settings, is_remote, to_iso
from rivertwice.read.export import FORMATS
from rivertwice.read.query import Answer, QueryBounds, run_query
from rivertwice.timeline import PROVISIONAL, SERVED, json_value, key_text

MOST_BODY = 16 << 20
"""Bytes of an answer as JSON or as a file."""
_MOST_HEAD = 64 << 10
_START_S = 10.0
"""How long a process may take to begin; then its own clock runs, which ends it."""
_MOST_EXACT = 1 << 53  # a browser's numbers lose digits above
_SETTINGS = tuple(f"RIVERTWICE_{name}" for name in ("PROJECT", "HOME", "SHARED", "SAVEPOINTS", "LEASES"))
_PROCESS = ("HOME", "LD_LIBRARY_PATH", "PYTHONPATH")
_REMOTE = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE")
_LOGIN = {"s3": ("AWS_",), "gs": ("GOOGLE_", "STORAGE_EMULATOR_HOST"), "abfss": ("AZURE_",), "az": ("AZURE_",)}
"""Variables of a store's login begin with these."""


@dataclass(frozen=True)
class ProcessAnswer:
    """The answer of a query: its bytes, as JSON or as a file, how many rows it has, and how long it took."""

    body: bytes
    rows: int
    seconds: float


async def run_apart(
    bounds: QueryBounds, settings: Settings, sql: str, limit: int, pipeline: str, form: str
) -> ProcessAnswer:
    """Do what `QueryBounds.run_apart` says."""
    asked = {"bounds": asdict(bounds), "sql": sql, "limit": limit, "pipeline": pipeline, "form": form}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "rivertwice.read.query_process",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        env=environment(settings, os.environ),
    )  # fmt: skip
    try:
        async with asyncio.timeout((bounds.seconds or 0) + _START_S):
            reply = await _exchange(process, json.dumps(asked).encode())
            code = await process.wait()
    except TimeoutError:
        raise RequestError(bounds.too_slow) from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    head, _, body = reply.partition(b"\n")
    if code < 0:  # a signal ended it: its own clock, or the kernel when it asked for more memory
        raise RequestError(bounds.too_slow if code == -signal.SIGALRM else bounds.too_large)
    if code or not head:
        message = f"the query's process ended with code {code}; the log of the server has its error"
        raise ServiceError(message)
    said = json.loads(head)
    if "refused" in said:
        raise (ServiceError if said["is_service"] else RequestError)(said["refused"])
    return ProcessAnswer(body, said["rows"], said["seconds"])


def environment(settings: Settings, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return all variables of the process: the places of the tables, and the login of the store if there is one. Pure."""
    begins: tuple[str, ...] = ()
    if settings.shared is not None and is_remote(settings.shared):
        begins = (*_REMOTE, *_LOGIN[str(settings.shared).partition("://")[0]])
    kept = {name: value for name, value in inherited.items() if name in _PROCESS or name.upper().startswith(begins)}
    return kept | {name: value for name, value in settings.to_env().items() if name in _SETTINGS}


async def _exchange(process: asyncio.subprocess.Process, asked: bytes) -> bytes:
    """Send the request and return the reply, of which more than an answer may have is not read."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(ConnectionError):  # it has ended: its code says why
        process.stdin.write(asked)
        await process.stdin.drain()
    process.stdin.close()
    parts, size = [], 0
    while size <= MOST_BODY + _MOST_HEAD and (part := await process.stdout.read(1 << 16)):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


# In the process.


def bind(bounds: QueryBounds) -> None:
    """Take from this process what a query must not have, for good."""
    assert bounds.seconds is not None
    assert bounds.memory is not None
    # SIGALRM ends it, whatever it does, and also if the parent is gone
    signal.setitimer(signal.ITIMER_REAL, bounds.seconds)
    # beside what DuckDB counts: what pyarrow reads ahead, the answer, and texts that a function makes
    _limit(resource.RLIMIT_DATA, 2 * bounds.memory)
    # the answer's own file in memory; no other is opened to be written
    _limit(resource.RLIMIT_FSIZE, MOST_BODY)
    _limit(resource.RLIMIT_CORE, 0)
    os.nice(5)  # the server answers others meanwhile
    pa.set_cpu_count(1)
    pa.set_io_thread_count(2)


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (most, most) if hard == resource.RLIM_INFINITY else (min(most, hard),) * 2)


def reply_to(settings: Settings, asked: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Return what came of a request, and the bytes of the answer."""
    began = perf_counter()
    bounds = QueryBounds(**asked["bounds"])
    try:
        answer = run_query(settings, asked["sql"], asked["limit"], bounds=bounds)
        seconds = round(perf_counter() - began, 3)
        body = (
            _as_page(answer, asked["pipeline"], seconds) if asked["form"] == "json" else _as_file(answer, asked["form"])
        )
    except MemoryError:
        return {"refused": bounds.too_large, "is_service": False}, b""
    except RivertwiceError as error:
        return {"refused": str(error)[: _MOST_HEAD // 8], "is_service": isinstance(error, ServiceError)}, b""
    return {"rows": answer.rows.num_rows, "seconds": seconds}, body


def _as_page(answer: Answer, pipeline: str, seconds: float) -> bytes:
    rows, names = answer.rows, answer.rows.schema.names
    columns = [[_value(value) for value in column.to_pylist()] for column in rows.columns]
    body = json.dumps(
        {
            "columns": [{"name": name, "type": kind} for name, kind in zip(names, answer.types, strict=True)],
            "rows": list(zip(*columns, strict=True)),
            "places": _places(answer, pipeline),
            "is_whole": answer.is_whole,
            "seconds": seconds,
            "statuses": [status.describe() for status in answer.statuses],
        },
        ensure_ascii=False,
        separators=(",", ":"),
    ).encode("utf-8", "replace")
    if len(body) > MOST_BODY:
        message = f"the answer has more than {MOST_BODY >> 20} MiB as text; choose fewer columns or rows"
        raise RequestError(message)
    return body


def _value(value: Any) -> Any:
    plain = json_value(value)
    return str(plain) if isinstance(plain, int) and abs(plain) > _MOST_EXACT else plain


def _places(answer: Answer, pipeline: str) -> list[tuple[str, str]]:
    """Return window and key of each row if these are rows of what the pipeline serves, else nothing."""
    if len(answer.views) != 1:
        return []
    (opened,) = answer.views.values()
    if opened.table.pipeline != pipeline or opened.table.kind.name not in (SERVED, PROVISIONAL):
        return []
    names, found = (opened.table.time, *opened.table.keys), answer.rows.schema
    if not all(name in found.names and found.field(name).type == opened.schema.field(name).type for name in names):
        return []
    rows = answer.rows.select(names).to_pylist()
    if any(row[opened.table.time] is None for row in rows):
        return []
    keys = opened.table.keys
    return [(to_iso(row[opened.table.time]), key_text(keys, [row[name] for name in keys])) for row in rows]


def _as_file(answer: Answer, form: str) -> bytes:
    with os.fdopen(os.memfd_create("answer"), "rb") as file:
        try:
            writer = FORMATS[f".{form}"](Path(f"/proc/self/fd/{file.fileno()}"), answer.rows.schema)
            writer.write(answer.rows)
            writer.close()
        except (pa.ArrowException, OSError) as error:
            message = f"these rows cannot be a {form} file: {error}; convert the column, for instance CAST(x AS VARCHAR), or choose fewer rows"
            raise RequestError(message) from error
        return file.read()


def main() -> None:
    """Answer one request."""
    asked = json.load(sys.stdin)
    bind(QueryBounds(**asked["bounds"]))
    head, body = reply_to(Settings.from_env(), asked)
    sys.stdout.buffer.write(json.dumps(head).encode() + b"\n" + body)
    sys.stdout.buffer.flush()
    os._exit(0)  # threads of libraries must not hold the answer up


if __name__ == "__main__":
    main()
