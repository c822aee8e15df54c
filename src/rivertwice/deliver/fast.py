"""The runs of a fast path: a run is a range of the source's offsets with one meaning of the fast path.

They are stored in `HOME/pipelines/NAME/fast/`, format 1: `run-0001.json`, each written once and never changed; `checkpoint/` is
Spark's. The first run begins at the end of the topic, so that old records send no alerts.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TextIO

from rivertwice.core import (
    LeaseLostError,
    LedgerError,
    PipelineHome,
    Started,
    is_alive,
    open_locked,
    own_start,
    parse_iso,
    to_iso,
)
from rivertwice.definition import Definition, fingerprint_of, normalise
from rivertwice.storage import encode_json, put_json_if_absent, read_json, replace_json
from rivertwice.stream import read_planned

FORMAT = 1


@dataclass(frozen=True)
class FastRun:
    """One run.

    Attributes:
        bundle: the definition that made its rows. meaning: hash of everything that shapes them.
        begins: partition of the source to the first offset. sent_from: partition of the fast topic to the offset before which
            there is no row of the run.
    """

    number: int
    bundle: str
    meaning: str
    topic_id: str
    begins: Mapping[int, int]
    sent_from: Mapping[int, int]
    at: datetime


def fast_folder(home: PipelineHome) -> Path:
    """Return the folder with the state of a pipeline's fast path."""
    return home.root / "fast"


def meaning_of(definition: Definition) -> str:
    """Return a hash of everything that shapes a row of the fast path."""
    assert definition.fast is not None
    assert definition.fast_sql is not None
    view, source = definition.source
    parts = [
        fingerprint_of(definition).decode,
        view,
        source.topic,
        normalise(definition.fast_sql),
        definition.fast.topic,
        definition.fast.key,
    ]
    return hashlib.sha256(encode_json(parts)).hexdigest()


def read_runs(home: PipelineHome) -> list[FastRun]:
    """Return all runs, in order.

    Raises:
        LedgerError: a run has a format that this version does not know.
    """
    runs = []
    for path in sorted(fast_folder(home).glob("run-*.json")):
        data = read_json(path)
        if data is None or data.pop("format", None) != FORMAT:
            message = f"{path} is not of format {FORMAT}, which this version reads; use a newer rivertwice"
            raise LedgerError(message)
        offsets = {name: {int(part): int(at) for part, at in data[name].items()} for name in ("begins", "sent_from")}
        runs.append(FastRun(**{**data, **offsets, "at": parse_iso(data["at"])}))
    return runs


def record_run(home: PipelineHome, run: FastRun) -> None:
    """Record a run that is about to begin."""
    folder = fast_folder(home)
    folder.mkdir(parents=True, exist_ok=True)
    offsets = {name: {str(p): at for p, at in getattr(run, name).items()} for name in ("begins", "sent_from")}
    put_json_if_absent(
        folder / f"run-{run.number:04d}.json", {"format": FORMAT, **asdict(run), **offsets, "at": to_iso(run.at)}
    )


def committed_offsets(home: PipelineHome, topic: str) -> dict[int, int] | None:
    """Return the offsets up to which all rows are surely sent: the end of the newest interval that Spark recorded, or None."""
    checkpoint = fast_folder(home) / "checkpoint"
    numbers = sorted((int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")), reverse=True)
    for number in numbers:
        planned = read_planned(checkpoint, number)
        if planned is not None:
            return {int(part): offset for part, offset in planned.end_offsets[topic].items()}
    return None


def plan_run(
    runs: list[FastRun],
    *,
    bundle: str,
    meaning: str,
    topic_id: str,
    committed: Mapping[int, int] | None,
    ends: Mapping[int, int],
    sent_from: Mapping[int, int],
    now: datetime,
) -> FastRun:
    """Return the run to continue: the newest one if its meaning is the same, else a new one after the committed offsets. Pure.

    Args:
        topic_id: the present id of the source's topic.
        committed: the result of `committed_offsets`.
        ends: the source's ends now; the first run begins there.
        sent_from: the fast topic's ends now.

    Raises:
        LedgerError: the topic was deleted and created again, so that its offsets are other records.
    """
    last = runs[-1] if runs else None
    if last is not None and last.topic_id != topic_id:
        message = (
            f"the source's topic was created again since fast run {last.number} began (id {last.topic_id}, now {topic_id}): its "
            "offsets are other records; give the pipeline another name"
        )
        raise LedgerError(message)
    if last is not None and last.meaning == meaning:
        return last
    begins = ends if last is None else {**last.begins, **(committed or {})}
    return FastRun(
        1 if last is None else last.number + 1, bundle, meaning, topic_id, dict(begins), dict(sent_from), now
    )


# One process per fast path on a host: a lock that the operating system releases with the process, and its holder.

OWNER_FORMAT = 1


@dataclass(frozen=True)
class FastOwner:
    """The process that runs a fast path."""

    pid: int
    pid_started: Started


def read_fast_owner(home: PipelineHome) -> FastOwner | None:
    """Return the process that runs the fast path, or None if there is none."""
    folder = fast_folder(home)
    data = read_json(folder / "owner.json")
    if data is None or not is_alive(data["pid"], data["pid_started"], lock=folder / "lock"):
        return None
    return FastOwner(data["pid"], data["pid_started"])


def take_fast_lock(home: PipelineHome) -> TextIO:
    """Return the held lock; it is released when it is closed, or when the process ends.

    Raises:
        LeaseLostError: another process holds it.
    """
    folder: Path = fast_folder(home)
    file = open_locked(folder / "lock")
    if file is None:
        owner = read_fast_owner(home)
        holder = "another process" if owner is None else f"pid {owner.pid}"
        message = f"the fast path of {home.root.name} is run by {holder} already; `rivertwice stop` ends it, or wait"
        raise LeaseLostError(message)
    replace_json(folder / "owner.json", {"format": OWNER_FORMAT, "pid": os.getpid(), "pid_started": own_start()})
    return file
