"""A ring of samples per pipeline: the last hour, six hours, day, week and 30 days, in a file whose size stays the same.

The agent writes it, every few seconds and at the same cost each time. The file has five levels of slots. A slot is one step of its
level (12 s to 144 min) and holds the least, largest and mean figure of that step. The place of a slot follows from its start alone, so
there is no pointer that a crash could leave wrong, and two agents that write at the same moment write the same place. A slot has a
checksum: one that was written in part counts as one where nothing is known. The file is made whole, so a disk that is full later
takes nothing from it. It holds numbers alone: no key, no value and no text of a record.
"""

from __future__ import annotations

import errno
import math
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rivertwice.agent.observe import has_room
from rivertwice.core import PipelineHome

MAGIC = b"rivertwice samples 2\n"
HEAD = 64
SLOTS = 304
"""A range is 300 slots; the others keep a reader of its beginning apart from the writer of its end."""
MISSED = "missed_"
CURVES = (
    "lag", "read_per_s", "emitted_per_s", "watermark_delay_s", "batch_s", "state_bytes", "cpu_cores", "memory_bytes",
    "missed_freshness", "missed_late_share", "missed_agreement", "missed_recovery",
)  # fmt: skip
"""A figure `missed_X` is 1 while the objective X is missed and 0 while it holds: the mean of a step is the share of its time."""
STATES = (
    "", "stopped", "idle", "running", "draining", "starting", "restoring", "failed", "unresponsive", "down", "given_up",
)  # fmt: skip
"""States of a stream by their stored number, the worst last. A slot keeps the worst; new ones are added at the end of a format."""
PARTS = 32
"""Partitions whose lag is stored separately; further ones are summed in the last place, whose id is `REST`."""
REST = 0

Slots = npt.NDArray[np.void]
SLOT = np.dtype(
    [
        ("start", "<i8"),  # epoch s
        ("samples", "<u2"),
        ("state", "u1"),
        ("wanted", "u1"),
        ("known", "<u2", (len(CURVES),)),  # samples that the mean is of
        ("least", "<f8", (len(CURVES),)),
        ("most", "<f8", (len(CURVES),)),
        ("mean", "<f8", (len(CURVES),)),
        ("part", "<u4", (PARTS,)),
        ("part_lag", "<f4", (PARTS,)),
        ("crc", "<u4"),
    ]
)


@dataclass(frozen=True)
class RingLevel:
    """One range that can be looked at: 300 slots of `step_s` seconds."""

    name: str
    step_s: int
    position: int

    @property
    def span(self) -> timedelta:
        """The time that it covers."""
        return timedelta(seconds=300 * self.step_s)

    def start_of(self, at: datetime) -> int:
        """Return the start of the step that an instant is in, epoch s."""
        return int(at.timestamp()) // self.step_s * self.step_s

    def offset_of(self, start: int) -> int:
        """Return where the slot of a step is in the file."""
        return HEAD + (self.position * SLOTS + start // self.step_s % SLOTS) * SLOT.itemsize

    def read(self, home: PipelineHome, now: datetime) -> Slots:
        """Return the slots of a pipeline that began within the span before `now`, as `read_level` does."""
        return read_level(ring_file(home), self, now)


LEVELS = tuple(
    RingLevel(name, step, place)
    for place, (name, step) in enumerate((("1h", 12), ("6h", 72), ("24h", 288), ("7d", 2016), ("30d", 8640)))
)
SIZE = HEAD + len(LEVELS) * SLOTS * SLOT.itemsize
"""Bytes of the file, whatever the pipeline does."""


@dataclass(frozen=True)
class RingSample:
    """What was true of a stream at one moment.

    Attributes:
        state: one of `STATES`.
        wanted: whether its desired state was running.
        values: curve to figure; one that is not known is left out.
        parts: name of a partition, `topic/0`, to the records that wait there.
    """

    at: datetime
    state: str
    wanted: bool
    values: Mapping[str, float] = field(default_factory=dict)
    parts: Mapping[str, int] = field(default_factory=dict)


def ring_file(home: PipelineHome) -> Path:
    """Return the file of a pipeline's samples."""
    return home.root / "samples.ring"


def id_of(part: str) -> int:
    """Return the id of a partition's name in a slot, never `REST`. Pure."""
    return zlib.crc32(part.encode()) or 1


def merge(slot: npt.NDArray[Any], start: int, sample: RingSample) -> None:
    """Add a sample to the slot of a step, which begins empty if it holds another step."""
    if not _is_whole(slot) or slot["start"] != start:
        slot[...] = np.zeros((), SLOT)
        slot["start"] = start
        slot["least"] = slot["most"] = slot["mean"] = math.nan
    slot["samples"] = min(int(slot["samples"]) + 1, 0xFFFF)
    state = STATES.index(sample.state) if sample.state in STATES else 0
    slot["state"], slot["wanted"] = max(int(slot["state"]), state), int(sample.wanted)
    for place, curve in enumerate(CURVES):
        value = sample.values.get(curve)
        if value is not None:
            known = int(slot["known"][place])
            slot["known"][place] = min(known + 1, 0xFFFF)
            before = slot["mean"][place] if known else value
            slot["least"][place] = min(slot["least"][place], value) if known else value
            slot["most"][place] = max(slot["most"][place], value) if known else value
            slot["mean"][place] = before + (value - before) / (known + 1)
    for part, lag in _lags_by_id(sample.parts).items():
        _raise_lag(slot, part, lag)
    slot["crc"] = _checksum(slot.tobytes())


def _lags_by_id(parts: Mapping[str, int]) -> dict[int, float]:
    names = sorted(parts)
    own = names if len(names) <= PARTS else names[: PARTS - 1]
    lags = {id_of(name): float(parts[name]) for name in own}
    if len(own) < len(names):
        lags[REST] = float(sum(parts[name] for name in names[len(own) :]))
    return lags


def _raise_lag(slot: npt.NDArray[Any], part: int, lag: float) -> None:
    """Keep the largest lag of a partition; an entry without an id is free, but the last one."""
    ids, lags = slot["part"], slot["part_lag"]
    for place in range(PARTS):
        is_free = ids[place] == REST and place < PARTS - 1
        if part == REST:
            place = PARTS - 1
        if part == REST or ids[place] == part or is_free:
            ids[place], lags[place] = part, max(float(lags[place]), lag)
            return


def _checksum(slot: bytes) -> int:
    return zlib.crc32(slot[:-4])


def _is_whole(slot: npt.NDArray[Any]) -> bool:
    return bool(slot["samples"]) and int(slot["crc"]) == _checksum(slot.tobytes())


def write_sample(path: Path, sample: RingSample) -> None:
    """Add a sample to each level of a file, which is made if it is missing or of another format: a read and a write for each.

    Raises:
        OSError: the file cannot be made or written; what it holds stays.
    """
    with _opened(path) as file:
        for level in LEVELS:
            start = level.start_of(sample.at)
            offset = level.offset_of(start)
            read = os.pread(file.fileno(), SLOT.itemsize, offset)
            slot = np.frombuffer(bytearray(read.ljust(SLOT.itemsize, b"\0")), SLOT)[0:1].reshape(())
            merge(slot, start, sample)
            os.pwrite(file.fileno(), slot.tobytes(), offset)


def _opened(path: Path) -> Any:
    try:
        file = path.open("r+b", buffering=0)
    except FileNotFoundError:
        return _made(path)
    if os.fstat(file.fileno()).st_size == SIZE and os.pread(file.fileno(), len(MAGIC), 0) == MAGIC:
        return file
    file.close()
    return _made(path)


def _made(path: Path) -> Any:
    """Make an empty file and give it its name at once; all its space is taken now."""
    if not has_room(path.parent):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    file = open(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "r+b", buffering=0)  # noqa: SIM115
    try:
        os.posix_fallocate(file.fileno(), 0, SIZE)
        os.pwrite(file.fileno(), MAGIC, 0)
        temporary.replace(path)
    except OSError:
        file.close()
        temporary.unlink(missing_ok=True)
        raise
    return file


def read_level(path: Path, level: RingLevel, now: datetime) -> Slots:
    """Return the slots of a level that began within its span before `now`, in order; steps where nothing is known are left out.

    A file that is missing, or of another format, has none.
    """
    size = SLOTS * SLOT.itemsize
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != SIZE or file.read(len(MAGIC)) != MAGIC:
                return np.empty(0, SLOT)
            data = os.pread(file.fileno(), size, HEAD + level.position * size)
    except FileNotFoundError:
        return np.empty(0, SLOT)
    slots = np.frombuffer(data.ljust(size, b"\0"), SLOT)
    last = level.start_of(now)
    first = last - 299 * level.step_s
    chosen = slots[(slots["start"] >= first) & (slots["start"] <= last)]
    each, raw = SLOT.itemsize, chosen.tobytes()
    sums = [_checksum(raw[at : at + each]) for at in range(0, len(raw), each)]
    whole: Slots = chosen[(chosen["samples"] > 0) & (chosen["crc"] == np.array(sums, np.uint32))]
    return whole[np.argsort(whole["start"])]


def lags_of(slots: Slots, names: Iterable[str]) -> dict[str, npt.NDArray[np.float64]]:
    """Return the largest lag per slot of each named partition that some slot has, NaN where a slot has none; `others`: of the rest."""
    found: dict[str, npt.NDArray[np.float64]] = {}
    for name, part in [*((name, id_of(name)) for name in sorted(names)), ("others", REST)]:
        here = slots["part"] == part
        if part == REST:
            here &= slots["part_lag"] > 0
            here[:, : PARTS - 1] = False
        if here.any():
            rows = np.where(here, slots["part_lag"], -1.0).max(axis=1)
            found[name] = np.where(here.any(axis=1), rows, math.nan).astype(np.float64)
    return found
