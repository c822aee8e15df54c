"""Damage of the archive: files that are not what was written, records that are in no sound file. Kafka gives them again."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rivertwice.backfill import HalfOpenRange, intersect, merge, subtract
from rivertwice.core import (
    DamagedFileError,
    PipelineHome,
    Progress,
    RivertwiceError,
    ServiceError,
    Settings,
    TableDamageError,
)
from rivertwice.log import (
    PARTITION_BY,
    BrokenFile,
    Origin,
    archive_lock,
    collect_chunk,
    drop_empty,
    find_broken,
    kafka,
    note_sums,
    observe_archive_forks,
    plan_chunks,
    read_archived,
    read_sums,
    require_followed,
    turn_name,
)
from rivertwice.storage import Table, TableCare, TornEntry
from rivertwice.timeline import Timeline, head, head_definition
from rivertwice.upkeep.damage import Damage

Runs = Mapping[int, Sequence[HalfOpenRange]]
"""Partition to half-open ranges of offsets."""
CHUNK_RECORDS = 20_000
_MEANING = (
    "what is served does not change; a backfill, a reconcile or a proof that needs its records stops and names it"
)


@dataclass(frozen=True)
class ArchiveDamage:
    """What is damaged of one topic's archive.

    Attributes:
        broken: data files that are not what was written, each with the offsets it may have held.
        missing: records that are in no sound file. lost: those of them that Kafka does not have.
        erased: erasures that replaced records of the topic: Kafka has them as they were before.
    """

    topic: str
    topic_id: str
    torn: Sequence[TornEntry]
    broken: Sequence[tuple[BrokenFile, Runs]]
    missing: Runs
    lost: Runs
    erased: Sequence[str] = ()

    @property
    def kept(self) -> list[Runs]:
        """Bounds of files that stay, because they may hold records that are nowhere else: no record is written there."""
        return [bounds for _, bounds in self.broken if self.erased or overlaps(bounds, self.lost)]

    @property
    def dropped(self) -> list[Path]:
        """The files that are taken out."""
        return [file.path for file, bounds in self.broken if not self.erased and not overlaps(bounds, self.lost)]

    @property
    def wanted(self) -> Runs:
        """The records that are written again."""
        if self.erased:
            return {}
        wanted: dict[int, Sequence[HalfOpenRange]] = {}
        for partition, runs in self.missing.items():
            excluded = [
                *self.lost.get(partition, ()),
                *(run for bounds in self.kept for run in bounds.get(partition, ())),
            ]
            wanted[partition] = subtract(runs, excluded)
        return {partition: runs for partition, runs in wanted.items() if runs}


def overlaps(left: Runs, right: Runs) -> bool:
    """Say whether two sets of runs have an offset in common. Pure."""
    return any(intersect(runs, right.get(partition, ())) for partition, runs in left.items())


def find_archive_damage(
    settings: Settings, home: PipelineHome, now: datetime, erased: Mapping[str, Sequence[str]]
) -> list[ArchiveDamage]:
    """Return what is damaged of the archives of a pipeline's topics; changes nothing.

    Args:
        erased: topic to the erasures that replaced records of it.
    """
    name, definition = head(home), head_definition(home)
    if name is None or definition is None:
        return []
    ids = Timeline.load(home, name).topic_ids
    damages = [_look(settings, topic, ids[topic], now, erased.get(topic, ())) for topic in definition.topics]
    return [damage for damage in damages if damage is not None and (damage.torn or damage.broken or damage.missing)]


def look_at_archives(
    settings: Settings, home: PipelineHome, now: datetime, erased: Mapping[str, Sequence[str]]
) -> tuple[list[ArchiveDamage], list[Damage]]:
    """Return what is damaged of a pipeline's archives, and the same in words.

    Which topics it reads is in its tables: if these cannot be read, that is the damage.
    """
    try:
        damaged = find_archive_damage(settings, home, now, erased)
    except TableDamageError as error:
        what = f"the archives were not looked at, because it is not known which topics are read: {error}"
        cure = f"repair that table first, then run `rivertwice admin repair {home.root.name}` again"
        return [], [Damage("archive", what, "it is not known whether an archive is damaged", cure, curable=False)]
    return damaged, [each for one in damaged for each in describe_archive_damage(home.root.name, one)]


def _look(settings: Settings, topic: str, topic_id: str, now: datetime, erased: Sequence[str]) -> ArchiveDamage | None:
    place = settings.archive(topic)
    if not isinstance(place, Path) or not place.exists():
        return None
    torn = TableCare(place).find_torn(decode=True)
    with tempfile.TemporaryDirectory(prefix="rivertwice-repair-") as folder:
        view = place
        if torn:
            view = Path(folder) / place.name
            TableCare(place).copy_as_mended(torn, [], view, now)
        table = Table(view).open()
        if table is None:
            return None
        broken = find_broken(place, table.sizes(), _sums(settings, topic))
        bad = {file.path for file in broken}
        sound_runs = held_runs((place / name for name in table.sizes() if place / name not in bad), topic_id)
        bounds = _bounds(place, table.actions().to_pylist())
        segments = read_archived(table, topic_id).segments
    wanted = {
        p: merge(segment[p] for segment in segments if p in segment)
        for p in {p for segment in segments for p in segment}
    }
    missing = {p: subtract(runs, sound_runs.get(p, ())) for p, runs in sorted(wanted.items())}
    missing = {p: runs for p, runs in missing.items() if runs}
    lost = _not_in_kafka(settings, topic, topic_id, missing)
    files = [(file, bounds.get(file.path, missing)) for file in broken]
    return ArchiveDamage(topic, topic_id, torn, files, missing, lost, erased)


def _sums(settings: Settings, topic: str) -> dict[str, str]:
    try:
        return read_sums(settings, topic)
    except DamagedFileError:  # noted again when the archive is written
        return {}


def held_runs(files: Iterable[Path], topic_id: str) -> dict[int, tuple[HalfOpenRange, ...]]:
    """Return the offsets of a topic that files hold, by partition; three columns of one file at a time."""
    by_partition: dict[int, list[HalfOpenRange]] = {}
    for file in files:
        rows = pq.ParquetFile(file).read(columns=["topic_id", "partition", "offset"])
        rows = rows.cast(pa.schema([("topic_id", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]))
        topic_rows = rows.filter(pc.equal(rows["topic_id"], topic_id))
        for partition in pc.unique(topic_rows["partition"]).to_pylist():
            offsets = np.unique(topic_rows.filter(pc.equal(topic_rows["partition"], partition))["offset"].to_numpy())
            cuts = np.flatnonzero(np.diff(offsets) != 1) + 1
            runs = ((int(part[0]), int(part[-1]) + 1) for part in np.split(offsets, cuts))
            by_partition[partition] = list(merge([*by_partition.get(partition, ()), *runs]))
    return {partition: tuple(runs) for partition, runs in by_partition.items()}


def _bounds(place: Path, actions: Sequence[Mapping[str, Any]]) -> dict[Path, Runs]:
    """Return the offsets that each file may hold, as far as the table's log has them."""
    bounds: dict[Path, Runs] = {}
    names = ("min.partition", "max.partition", "min.offset", "max.offset")
    for action in actions:
        values = [action.get(name) for name in names]
        if None not in values:
            first, last, low, high = (int(str(value)) for value in values)
            bounds[place / unquote(str(action["path"]))] = {p: [(low, high + 1)] for p in range(first, last + 1)}
    return bounds


def _not_in_kafka(settings: Settings, topic: str, topic_id: str, missing: Runs) -> Runs:
    """Return the missing records that Kafka lacks; all if it does not answer, or has another topic of that name."""
    if not missing:
        return {}
    try:
        if not kafka.topic_exists(settings, topic) or kafka.topic_id(settings, topic) != topic_id:
            return missing
        begin, end = kafka.begin_offsets(settings, topic), kafka.end_offsets(settings, topic)
    except ServiceError:
        return missing
    lost = {p: subtract(runs, [(begin.get(p, 0), end.get(p, 0))]) for p, runs in missing.items()}
    return {p: runs for p, runs in lost.items() if runs}


def describe_archive_damage(pipeline: str, damage: ArchiveDamage) -> list[Damage]:
    """Return the damages of an archive in words. Pure."""
    table = f"archive of {damage.topic}"
    if damage.erased:
        cure = (
            f"not repaired: {', '.join(damage.erased[:5])} replaced records of this topic, and Kafka may have them as they were before; put the "
            "file back from a backup that was made after it"
        )
    elif damage.lost:
        cure = (
            f"cannot be repaired: {_describe_runs(damage.lost)} is in no sound file, and Kafka does not have it or does not answer; put the file back from "
            "a backup; what needs none of these records continues"
        )
    else:
        cure = f"set aside; {_describe_runs(damage.missing) or 'no record'} is read from Kafka again"
    kept_paths = {path for path, bounds in damage.broken if damage.erased or overlaps(bounds, damage.lost)}
    damages = [Damage(table, f"log {entry.text}", _MEANING, cure, not damage.erased) for entry in damage.torn]
    damages += [
        Damage(table, f"data file {file.path} {file.how}", _MEANING, cure, file not in kept_paths)
        for file, _ in damage.broken
    ]
    if damage.missing and not damages:
        damages.append(
            Damage(
                table,
                f"{_describe_runs(damage.missing)} is in no data file",
                _MEANING,
                cure,
                not damage.erased and not damage.lost,
            )
        )
    return damages


def _describe_runs(runs: Runs) -> str:
    return ", ".join(f"partition {p} [{start}, {end})" for p, pairs in sorted(runs.items()) for start, end in pairs)


def repair_archives(
    settings: Settings,
    home: PipelineHome,
    aside: Path,
    now: datetime,
    erased: Mapping[str, Sequence[str]],
    progress: Progress,
) -> tuple[list[str], list[str]]:
    """Set damaged files of the archives aside and write their records again from Kafka.

    If killed between the two, the records are in no file: readers count and stop, and the next repair finds them missing.

    Returns:
        What was done, and what was not done and why.
    """
    done: list[str] = []
    failed: list[str] = []
    for topic in sorted({archive_damage.topic for archive_damage in find_archive_damage(settings, home, now, erased)}):
        try:
            with archive_lock(settings, topic) as check:
                for damage in find_archive_damage(settings, home, now, erased):  # as it is now, under the lock
                    if damage.topic == topic:
                        done += _repair(settings, damage, aside / f"archive-{topic}", now, check, progress)
        except RivertwiceError as error:
            failed.append(f"the archive of {topic} could not be repaired: {error}")
    return done, failed


def _repair(
    settings: Settings,
    damage: ArchiveDamage,
    aside: Path,
    now: datetime,
    check: Callable[[], None],
    progress: Progress,
) -> list[str]:
    place = settings.archive(damage.topic)
    assert isinstance(place, Path), "archives in an object store are not checked"
    if damage.erased:
        return []
    done = []
    check()
    if damage.torn:
        done.append(f"archive of {damage.topic}: {TableCare(place).mend_log(damage.torn, aside, now)}")
    origin = Origin(kafka.cluster_id(settings), damage.topic_id, damage.topic) if damage.wanted else None
    if origin is not None:  # Kafka's records would be written where the archive had others
        now_archived = read_archived(Table(place).open(), damage.topic_id)
        require_followed(observe_archive_forks(settings, origin, now_archived))
    if damage.dropped:
        kept_paths = [file.path for file, _ in damage.broken if file.path not in damage.dropped]
        done.append(
            f"archive of {damage.topic}: {TableCare(place).drop_files(damage.dropped, aside, kept_paths)} data files taken out"
        )
    count = 0
    for ranges in passes(damage.wanted):
        for chunk in plan_chunks(ranges, CHUNK_RECORDS):
            assert origin is not None, "there are requested records"
            rows = collect_chunk(None, settings, origin, chunk)
            check()
            turn = read_archived(Table(place).open(), damage.topic_id).turn
            metadata = {"archive": {"topic_id": damage.topic_id, "records": rows.num_rows, "repaired": True}}
            transactions = {turn_name(damage.topic_id): turn + 1}
            Table(place, partition_by=PARTITION_BY).append(rows, transactions=transactions, metadata=metadata)
            count += rows.num_rows
    note_sums(settings, damage.topic)
    if count:
        done.append(
            f"archive of {damage.topic}: {count} records written again from Kafka ({_describe_runs(damage.wanted)})"
        )
    for line in done:
        progress(line)
    return done


def passes(wanted: Runs) -> list[dict[int, HalfOpenRange]]:
    """Return runs as several sets of ranges, each with at most one range of a partition. Pure."""
    depth = max((len(runs) for runs in wanted.values()), default=0)
    return [
        drop_empty({partition: runs[number] for partition, runs in wanted.items() if number < len(runs)})
        for number in range(depth)
    ]
