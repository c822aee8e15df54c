"""The end of a log, for the page: bounded, searched, and without control characters. What is older is named, not shown.

Logs hold no secrets: the product does not log passwords and addresses of receivers. The agent's log is about all pipelines of a
home; a user who may not read all of them sees the lines about one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rivertwice.core import RequestError, Settings, printable
from rivertwice.storage import LogFile
from rivertwice.stream import lease_owner
from rivertwice.timeline import Heartbeat

TAIL = 256_000
"""Bytes of a log that are looked at, from its end."""
MOST = 1_000
"""Lines that are shown, the newest."""
LONGEST = 4_000
"""Characters of a line that are shown."""
AGENT = "agent"
OF = ("driver", AGENT, "savepoints", "restore", "rewind", "catch-up", "fast")
LEVELS = ("all", "warning", "error")
_LEVEL = re.compile(r"^(?:\S+ \S+ )(DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b")
_RANK = {"DEBUG": 0, "INFO": 0, "WARN": 1, "WARNING": 1, "ERROR": 2, "CRITICAL": 2, "FATAL": 2}
_WORDS = ("", "warning", "error")


@dataclass(frozen=True)
class LogLine:
    """A line, and its level: empty, `warning` or `error`; a line without one continues the line before it."""

    level: str
    text: str


@dataclass(frozen=True)
class LogView:
    """The end of a log.

    Attributes:
        cut: bytes before the first line that was looked at.
        again: the log began again, so lines shown before may be missing in between.
        end: where it ends, for the next question.
        left_out: lines that fit and are not shown. searched: lines that were looked at.
        whole: whether all of the agent's log may be read. ui: where the Spark UI is; ui_on: whether it is on.
    """

    of: str
    missing: bool
    size: int
    cut: int
    again: bool
    end: str
    left_out: int
    searched: int
    lines: tuple[LogLine, ...]
    whole: bool
    ui: str | None
    ui_on: bool


def describe_log(
    settings: Settings, name: str, of: str, *, q: str = "", level: str = "all", after: str = "", whole: bool = False
) -> LogView:
    """Return the end of a log.

    Args:
        of: one of `OF`.
        q: only lines with this text, whatever its case.
        level: one of `LEVELS`: only lines of this level or a worse one.
        after: where an earlier answer ended (its `end`): only what was written since. Empty: from `TAIL` bytes before the end.
        whole: whether the one who asks may read all pipelines, and so all of the agent's log.

    Raises:
        RequestError: there is no such log or level.
    """
    _require("log", of, OF)
    _require("level", level, LEVELS)
    path = settings.home / "agent" / "log" if of == AGENT else settings.pipeline(name).logs / f"{of}.log"
    size, mark = _size(path)
    begun, known = _read_after(after)
    is_on = bool(after) and known == mark and begun <= size
    data = read_part(path, begun, size) if is_on else _tail(path, size)
    complete = data[: data.rfind(b"\n") + 1]
    if not is_on and len(data) >= TAIL:
        complete = complete[complete.find(b"\n") + 1 :]  # its first line is cut
    lines = list(levelled(complete.decode(errors="replace").splitlines()))
    if of == AGENT and not whole:
        lines = [line for line in lines if _names(line.text, name)]
    rank = LEVELS.index(level)
    fitting = [
        line for line in lines if _WORDS.index(line.level) >= rank and (not q or q.casefold() in line.text.casefold())
    ]
    shown = fitting[-MOST:]
    end = size - (len(data) - (data.rfind(b"\n") + 1))
    return LogView(
        of=of,
        missing=size == 0 and not path.exists(),
        size=size,
        cut=0 if is_on else max(0, size - len(data)),
        again=bool(after) and not is_on,
        end=f"{end}.{mark}",
        left_out=len(fitting) - len(shown),
        searched=len(lines),
        lines=tuple(shown),
        whole=whole,
        ui=spark_ui(settings, name),
        ui_on=settings.spark_ui,
    )


def levelled(lines: Sequence[str]) -> Iterator[LogLine]:
    """Yield lines with their level, safe to show. Pure."""
    level = ""
    for line in lines:
        found = _LEVEL.match(line)
        if found:
            level = _WORDS[_RANK[found.group(1)]]
        elif line.startswith("===="):
            level = ""
        text = printable(line)
        yield LogLine(
            level, text if len(text) <= LONGEST else f"{text[:LONGEST]} … ({len(text) - LONGEST} more characters)"
        )


def spark_ui(settings: Settings, name: str) -> str | None:
    """Return the address of the running driver's Spark UI; None if no driver runs, or its UI is off."""
    home = settings.pipeline(name)
    owner, beat = lease_owner(home), Heartbeat.load(home)
    is_own = owner is not None and beat is not None and beat.epoch == owner.epoch
    return beat.ui if is_own and beat is not None and beat.ui and beat.ui.startswith(("http://", "https://")) else None


def read_part(path: Path, begin: int, end: int) -> bytes:
    """Return what was written between two positions of a log, the last `TAIL` bytes of it; nothing if there is no such log."""
    start = max(begin, end - TAIL)
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(end - start)
    except FileNotFoundError:
        return b""


def _tail(path: Path, size: int) -> bytes:
    """Return the last bytes up to a position, also those that were copied to `NAME.1`."""
    own = read_part(path, 0, size)
    return LogFile(path.with_name(f"{path.name}.1")).tail(TAIL - len(own)) + own if len(own) < TAIL else own


def _names(text: str, name: str) -> bool:
    """Say whether a line is about a pipeline, and not only about one whose name begins alike."""
    return re.search(rf"(?<![\w@.-]){re.escape(name)}(?![\w@-])", text) is not None


def _size(path: Path) -> tuple[int, int]:
    """Return a log's size, and a number that changes when it is copied away and begun again."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return 0, 0
    try:
        return size, os.stat(f"{path}.1").st_ino
    except FileNotFoundError:
        return size, 0


def _read_after(text: str) -> tuple[int, int]:
    parts = text.split(".")
    if not text:
        return 0, -1
    if len(parts) != 2 or not all(part.isdecimal() and len(part) < 20 for part in parts):
        message = f"after={text[:40]!r} is not a valid position of a log; leave it out, or give the `end` of an answer"
        raise RequestError(message)
    return int(parts[0]), int(parts[1])


def _require(what: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        message = f"there is no {what} {value[:40]!r}; choose one of {', '.join(known)}"
        raise RequestError(message)
