"""What is true of one pipeline now. Reads only: the observer never acts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rivertwice.agent.backoff import FailureClass, classify_exit
from rivertwice.agent.decide import DrainMarker, Observed
from rivertwice.agent.memory import DIED, REFUSED, RESTORED, DriverRef, Ended, FallBackEnded, Memory, remember_end
from rivertwice.core import PipelineHome, Settings, is_alive, may_live, same_start
from rivertwice.savepoint import read_fall_back
from rivertwice.storage import LogFile, read_json
from rivertwice.stream import lease_owner, lock_file
from rivertwice.timeline import Exit, Heartbeat

START_LINE = "==== rivertwice agent starts a driver "
TAIL_BYTES = 64_000
MARKER_TRUSTED_S = 600.0  # how long a marker without a process counts as held
RESERVE = 1 << 20
"""Bytes that the agent reserves for a message about a full disk."""


def has_room(folder: Path) -> bool:
    """Say whether the disk of a folder has free space; a released reserve alone does not count as space.

    Raises:
        FileNotFoundError: the folder does not exist.
    """
    return shutil.disk_usage(folder).free > 2 * RESERVE


def observe(
    settings: Settings,
    name: str,
    memory: Memory,
    reap: Callable[[int], int | None],
    now: datetime,
    position_since: datetime | None = None,
) -> tuple[Observed, Ended | None]:
    """Return what is true of a pipeline, with an end that happened since the last pass already counted.

    Args:
        memory: what the agent remembers; its `driver` may be gone meanwhile.
        reap: returns the return code of the agent's own child with that pid once it has ended, else None.
        position_since: when the agent first saw the last committed batch that the heartbeat reports.

    Returns:
        the observation, whose memory the caller must save if there was an end, and that end.
    """
    home = settings.pipeline(name)
    # The known driver first, then the lease: one that dies in between is then still `launched` in this pass and counted
    # in the next. In the other order it would be counted and adopted in one pass, and counted once more.
    known = memory.driver
    known_lives = known is not None and is_alive(known.pid, known.pid_started, lock=lock_file(home))
    owner = lease_owner(home)
    held = None if owner is None else DriverRef(owner.pid, owner.pid_started, owner.epoch, owner.started_at or now)
    ended = None
    if known is not None and not known_lives:
        ended = _end_of(home, known, reap(known.pid))
        memory = remember_end(memory, ended, now)
    launched = known if known_lives and (held is None or known is None or held.pid != known.pid) else None
    observed = Observed(
        owner=held,
        launched=launched,
        heartbeat=Heartbeat.load(home),
        drain=read_drain(home, now),
        defined=(settings.definition_folder(name) / "pipeline.yaml").is_file(),
        memory=memory,
        position_since=position_since,
        restoring=_restoring(memory),
    )
    return observed, ended


def _restoring(memory: Memory) -> int | None:
    known = memory.fall_back
    if known is None or known.outcome or not is_alive(known.pid, known.pid_started):
        return None
    return known.pid


def observe_fall_back(settings: Settings, name: str, memory: Memory) -> FallBackEnded | None:
    """Return how the agent's fall-back ended, once, or None while there is none or it lives."""
    known = memory.fall_back
    if known is None or known.outcome or is_alive(known.pid, known.pid_started):
        return None
    report = read_fall_back(settings.pipeline(name))
    if report is None or report.pid != known.pid or not same_start(report.pid_started, known.pid_started):
        return FallBackEnded(DIED, f"fall-back pid {known.pid} ended without a word; see logs/restore.log", None)
    position = None if report.timeline is None else (report.timeline, report.forked_at or 0)
    return FallBackEnded(RESTORED if report.restored else REFUSED, report.message, position)


def read_drain(home: PipelineHome, now: datetime) -> DrainMarker | None:
    """Return the drain marker, or None.

    The agent's own marker holds nothing. Another marker holds while the process it names lives, or, if it names none,
    for ten minutes: a process that died and left its marker must not stop the stream for ever.
    """
    try:
        since = datetime.fromtimestamp(home.drain.stat().st_mtime, UTC)
        content = read_json(home.drain) if home.drain.stat().st_size else None
    except (FileNotFoundError, ValueError):
        if not home.drain.exists():
            return None
        since, content = now, None
    data = content if isinstance(content, dict) else {}
    by_agent = data.get("by") == "agent"
    if by_agent:
        held = False
    elif "pid" in data and "pid_started" in data:
        held = may_live(data["pid"], data["pid_started"])
    else:
        held = (now - since).total_seconds() < MARKER_TRUSTED_S
    return DrainMarker(since=since, by_agent=by_agent, held=held)


def _end_of(home: PipelineHome, driver: DriverRef, returncode: int | None) -> Ended:
    epoch = driver.epoch if driver.epoch is not None else _epoch_of(home, driver)
    record = Exit.load(home)
    is_of_driver = record is not None and (record.epoch == epoch if epoch is not None else record.at >= driver.since)
    tail = _tail(home.logs / "driver.log")
    full = not has_room(home.root)
    failure = classify_exit(record.failure if is_of_driver and record else None, tail, returncode, full=full)
    beat = Heartbeat.load(home)
    position = None
    if beat is not None and beat.epoch == epoch and beat.batch is not None:
        position = (beat.timeline, beat.batch)
    return Ended(
        driver=replace(driver, epoch=epoch),
        failure=failure,
        clean=bool(is_of_driver and record and record.clean) or failure is FailureClass.DRAINED,
        message=record.message if is_of_driver and record else _last_line(tail, returncode),
        position=position,
        at_end=bool(is_of_driver and record and record.at_end),
    )


def _epoch_of(home: PipelineHome, driver: DriverRef) -> int | None:
    """Return the epoch of a driver that ended before the agent saw its lease."""
    owner = read_json(home.lease / "owner.json")
    if owner is None or owner.get("pid") != driver.pid or not same_start(owner["pid_started"], driver.pid_started):
        return None
    return int(owner["epoch"])


def _tail(path: Path) -> str:
    return LogFile(path).tail(TAIL_BYTES).decode(errors="replace").rpartition(START_LINE)[2]


def _last_line(tail: str, returncode: int | None) -> str:
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    ending = "return code not known" if returncode is None else f"return code {returncode}"
    return f"no exit record; {ending}; last line of its log: {lines[-1][:300] if lines else '(none)'}"
