"""Whether a live checkpoint agrees with the ledger; checked before every start. No Spark here.

Spark notices a file that is cut short or fails its checksum. It does not notice files that are gone: for Spark a checkpoint
without its newest batches is a shorter checkpoint, and one without any batch is a new query. The ledger shows the loss: it
contains `offsets/N` verbatim, and the watermark of the next batch follows from it.
"""

from __future__ import annotations

import json
import secrets
import shutil
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rivertwice.core import CheckpointError, LeaseLostError, LedgerError, PipelineHome, RivertwiceError
from rivertwice.storage import Table, is_temporary
from rivertwice.stream.checkpoint import parse_offsets, read_sets
from rivertwice.stream.gaps import continued_rows
from rivertwice.stream.seal import check_sealed, stream_app
from rivertwice.timeline import (
    CommittedBatches,
    LedgerRow,
    Segment,
    Timeline,
    WatermarkRule,
    newest_batches,
    watermarks_after,
)

_SMALL = ("", "sources/*/", "state/*/_metadata/", "state/*/*/_metadata/")
_CRC_MAGIC = b"crc\0"
_CRC_HEADER = 8  # magic, and the number of bytes that each sum covers
RuleOfRow = Callable[[LedgerRow], WatermarkRule]
_READ = 4  # newest files of each log that are read; a start needs two
_LOGS = ("offsets", "commits")


@dataclass(frozen=True)
class CheckpointView:
    """The small files of a checkpoint; undecodable bytes are replaced, so that they differ from any good text.

    Attributes:
        metadata: content of `metadata`, or None.
        offsets, commits: the batch numbers of the existing files.
        texts: content of the newest of them, by path.
        bereft: missing files whose checksum file exists, by path. Spark renames the file first, so no crash leaves this.
    """

    metadata: str | None
    offsets: frozenset[int]
    commits: frozenset[int]
    texts: Mapping[str, str]
    bereft: frozenset[str] = frozenset()


def read_view(checkpoint: Path) -> CheckpointView:
    """Read a checkpoint's small files; for a missing folder the view is empty."""
    numbers: dict[str, frozenset[int]] = {}
    texts: dict[str, str] = {}
    sets = read_sets(checkpoint)
    bereft: set[str] = set()
    for log in _LOGS:
        folder = checkpoint / log
        names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
        numbers[log] = frozenset(int(name) for name in names if name.isdigit())
        newest = max(numbers[log], default=-1)
        checked = [name[1:-4] for name in names if name.startswith(".") and name.endswith(".crc")]
        bereft |= {f"{log}/{name}" for name in checked if name.isdigit() and int(name) > newest}
        for number in sorted(numbers[log])[-_READ:]:
            text = (folder / str(number)).read_text(errors="replace")
            texts[f"{log}/{number}"] = sets.text_to_log(text) if log == "offsets" else text
    path = checkpoint / "metadata"
    metadata = path.read_text(errors="replace") if path.is_file() else None
    return CheckpointView(metadata, numbers["offsets"], numbers["commits"], texts, frozenset(bereft))


def fits_checksum(data: bytes, checksum: bytes) -> bool:
    """Say whether a file's content agrees with Hadoop's checksum file beside it: a CRC-32 of each block of bytes."""
    if len(checksum) < _CRC_HEADER or not checksum.startswith(_CRC_MAGIC):
        return False
    (size,) = struct.unpack_from(">i", checksum, len(_CRC_MAGIC))
    if size <= 0:
        return False
    sums = [zlib.crc32(data[at : at + size]) for at in range(0, len(data), size)]
    return checksum[_CRC_HEADER:] == struct.pack(f">{len(sums)}I", *sums)


def find_bad_checksum(checkpoint: Path) -> str | None:
    """Return which small file differs from its checksum, or is missing although its checksum exists; None if all are right.

    For the logs the newest files are compared: a batch that was planned and never committed is not in the ledger, so only the
    checksum can show that its range was changed. Spark itself checks the files of the state when it loads them.
    """
    for pattern in _SMALL:
        for path in sorted(checkpoint.glob(f"{pattern}.*.crc")):
            name = path.with_name(path.name[1:-4])
            if is_temporary(path.name):
                continue
            if not name.exists():
                return f"{name.relative_to(checkpoint)} is gone, though its checksum is there"
            if not fits_checksum(name.read_bytes(), path.read_bytes()):
                return f"{name.relative_to(checkpoint)} is not what its checksum says"
    for log in _LOGS:
        numbers = [int(path.name) for path in (checkpoint / log).glob("*") if path.name.isdigit()]
        for number in sorted(numbers)[-_READ:]:
            path = checkpoint / log / str(number)
            checksum = path.with_name(f".{number}.crc")
            if checksum.exists() and not fits_checksum(path.read_bytes(), checksum.read_bytes()):
                return f"{log}/{number} is not what its checksum says"
    return None


def find_damage(view: CheckpointView, rows: Sequence[LedgerRow], rule_of_row: RuleOfRow) -> str | None:
    """Return what in a checkpoint contradicts the ledger, or None. Pure.

    Before the first committed batch there is nothing to compare: such a checkpoint is planned again (`sweep_unplanned`).

    Args:
        rows: the committed batches of the path that the checkpoint continues, in order.
        rule_of_row: gives the watermark rule of the definition that made a batch.
    """
    if not rows:
        return None
    last = rows[-1]
    if view.metadata is None or not _is_metadata(view.metadata):
        return "its file metadata is missing or unreadable"
    finished, planned = max(view.commits, default=-1), max(view.offsets, default=-1)
    if view.bereft:  # otherwise the next write of that name would fail as if another query ran
        return f"{min(view.bereft)} is gone, though its checksum is there"
    if finished < last.batch - 1:
        return f"it has finished batch {finished} (commits), but batch {last.batch} is committed in the changelog"
    if planned < last.batch:
        return f"it has planned batch {planned} (offsets), but batch {last.batch} is committed in the changelog"
    if planned > finished + 1:
        return f"it has planned batch {planned} (offsets), but finished only batch {finished} (commits)"
    if planned > 0 and planned - 1 not in view.offsets:
        return f"offsets/{planned - 1} is missing"
    return _find_changed(view, rows, planned, finished, rule_of_row)


def _find_changed(
    view: CheckpointView, rows: Sequence[LedgerRow], planned: int, finished: int, rule_of_row: RuleOfRow
) -> str | None:
    at = {rows[index].batch: index for index in range(max(0, len(rows) - _READ), len(rows))}
    for batch, index in at.items():
        text = view.texts.get(f"offsets/{batch}")
        if text is not None and text != rows[index].offsets_text:
            return f"offsets/{batch} is not what the ledger recorded for that batch"
    if planned not in at:
        before = at[planned - 1]
        wanted = watermarks_after(rows, rule_of_row(rows[before]), before)
        problem = _find_misplanned(view.texts[f"offsets/{planned}"], planned, rows[before], wanted)
        if problem is not None:
            return problem
    if finished in at:
        next_watermark = _next_watermark(view.texts[f"commits/{finished}"])
        wanted = watermarks_after(rows, rule_of_row(rows[at[finished]]), at[finished])
        if next_watermark not in wanted:
            return (
                f"commits/{finished} gives the next batch the watermark {next_watermark}, the ledger {_either(wanted)}"
            )
    return None


def _either(watermarks: Sequence[int]) -> str:
    return " or ".join(str(watermark) for watermark in watermarks)


def _find_misplanned(text: str, batch: int, before: LedgerRow, wanted: Sequence[int]) -> str | None:
    try:
        plan = parse_offsets(text, batch)
    except (RivertwiceError, ValueError, KeyError, TypeError):
        return f"offsets/{batch} cannot be read"
    if plan.batch_watermark_ms not in wanted:
        return f"offsets/{batch} has the watermark {plan.batch_watermark_ms}, the ledger gives {_either(wanted)}"
    for topic, ends in before.end_offsets.items():
        planned_ends = plan.end_offsets.get(topic, {})
        if any(int(planned_ends.get(partition, -1)) < int(end) for partition, end in ends.items()):
            return f"offsets/{batch} ends at {planned_ends} of topic {topic}, before the end of batch {before.batch}"
    return None


def _is_metadata(text: str) -> bool:
    try:
        return bool(json.loads(text)["id"])
    except (ValueError, KeyError, TypeError):
        return False


def _next_watermark(text: str) -> int | None:
    try:
        return int(json.loads(text.split("\n")[1])["nextBatchWatermarkMs"])
    except (ValueError, KeyError, TypeError, IndexError):
        return None


def is_unplanned(view: CheckpointView, line: Timeline, rows: Sequence[LedgerRow]) -> bool:
    """Say whether a checkpoint has nothing from which a start could continue: no batch of the path was ever planned. Pure."""
    return line.parent is None and not rows and not view.offsets and not view.commits


def sweep_unplanned(
    home: PipelineHome, line: Timeline, rows: Sequence[LedgerRow], check_lease: Callable[[], None]
) -> bool:
    """Remove a checkpoint in which no batch was ever planned; return whether there was one.

    A driver that is killed while it writes its first plan leaves `offsets/.0.*.tmp`, and Spark refuses to begin beside it
    (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY, tried). All other files are made again from the timeline's record: the source begins
    at its genesis, and there is no state before the first plan.

    A driver that slept after its look may find the checkpoint of another one there. So what is removed is moved first, then looked at
    again, and put back if it is in use.

    Raises:
        LeaseLostError: another driver owns the pipeline by now; its checkpoint stays.
    """
    checkpoint = home.checkpoint(line.timeline)
    if not checkpoint.exists() or not is_unplanned(read_view(checkpoint), line, rows):
        return False
    aside = checkpoint.with_name(f"{checkpoint.name}.{secrets.token_hex(4)}.unplanned")
    checkpoint.rename(aside)
    try:
        check_lease()
        if not is_unplanned(read_view(aside), line, rows):
            message = f"another driver has planned a batch of timeline {line.timeline} of {line.pipeline} since this one looked; this one ends"
            raise LeaseLostError(message)
    except BaseException:
        aside.rename(checkpoint)
        raise
    shutil.rmtree(aside)
    return True


def newest_rows_of_run(home: PipelineHome, committed: CommittedBatches, path: Sequence[Segment]) -> list[LedgerRow]:
    """Return the ledger rows that a checkpoint is compared with: the newest, and for several sources those of their runs.

    With several sources the watermark follows from all batches since the query started (`timeline.watermarks`).

    Args:
        committed: the batches of the path that the checkpoint continues.
        path: its segments from the root.
    """
    if not len(committed):
        return []
    first = max(0, len(committed) - _READ)
    if committed.has_several_topics:
        epochs = committed.table["epoch"].to_numpy()
        others = np.flatnonzero(epochs[:first] != epochs[first])
        first = int(others[-1]) if len(others) else 0
    first = max(0, first - 1)  # a driver may have run the last batch of the one before it again
    return newest_batches(home, committed, path, len(committed) - first)


def find_unfit(home: PipelineHome, line: Timeline, rows: Sequence[LedgerRow], rule_of_row: RuleOfRow) -> str | None:
    """Return why a timeline's checkpoint at rest cannot be continued as it is, or None if it is whole.

    It is compared as at a start. The timeline may be sealed.

    Args:
        rows: the batches of its path that the changelog has, or their end (`newest_rows_of_run`).
        rule_of_row: gives the watermark rule of the definition that made a batch.
    """
    checkpoint = home.checkpoint(line.timeline)
    view = read_view(checkpoint)
    finished, committed = max(view.commits, default=-1), rows[-1].batch if rows else -1
    if finished > committed:
        return f"it has finished batch {finished} (commits), but the changelog ends at batch {committed}"
    return find_damage(view, continued_rows(home, rows, line), rule_of_row) or find_bad_checksum(checkpoint)


def check_checkpoint(home: PipelineHome, line: Timeline, rows: Sequence[LedgerRow], rule_of_row: RuleOfRow) -> None:
    """Refuse to start on a checkpoint or a changelog that contradicts the ledger.

    Args:
        rows: the ledger of its path, or its end (`newest_rows_of_run`).
        rule_of_row: gives the watermark rule of the definition that made a batch.

    Raises:
        CheckpointError: the checkpoint is damaged; the agent falls back to the newest proved savepoint.
        LedgerError: the changelog has lost commits that the ledger recorded.
        LeaseLostError: a restore has sealed the timeline and is about to move the head.
    """
    own = [row.batch for row in rows if row.timeline == line.timeline]
    applied = Table(home.tables.changelog).applied_version(stream_app(line.pipeline, line.timeline))
    check_sealed(applied, line.timeline)
    if applied != (own[-1] if own else None):
        message = (
            f"the changelog of {line.pipeline} is at batch {applied} of timeline {line.timeline}, the ledger at "
            f"{own[-1] if own else None}: the table lost commits, and rows that were emitted are gone; the stream does not "
            f"start; `rivertwice admin repair {line.pipeline}` writes them again from the recorded ranges, or `rivertwice savepoint restore "
            f"{line.pipeline}` continues from the changelog's own last batch and reads what follows again"
        )
        raise LedgerError(message)
    view = read_view(home.checkpoint(line.timeline))
    finished, committed = max(view.commits, default=-1), rows[-1].batch if rows else -1
    if finished > committed:
        message = (
            f"the checkpoint of timeline {line.timeline} of {line.pipeline} has finished batch {finished}, but the newest batch "
            f"of the changelog and the ledger is {committed}: both lost rows that were emitted; the stream does not start, because "
            f"it would continue after them; `rivertwice savepoint restore {line.pipeline}` continues from batch {committed} on a new "
            "timeline, which reads what follows again"
        )
        raise LedgerError(message)
    checkpoint = home.checkpoint(line.timeline)
    problem = find_damage(view, continued_rows(home, rows, line), rule_of_row) or find_bad_checksum(checkpoint)
    if problem is not None:
        message = (
            f"the checkpoint of timeline {line.timeline} of {line.pipeline} is damaged: {problem}; continuing with it would "
            "lose or double records, so the stream does not start; the agent falls back to the newest proved savepoint, "
            f"or do it by hand: `rivertwice savepoint restore {line.pipeline}`"
        )
        raise CheckpointError(message)
