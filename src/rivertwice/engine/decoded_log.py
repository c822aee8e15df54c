"""Records of the log decoded for a recompute: the one place that decides whether archived bytes are decoded, or were.

A source that says `keep_decoded` has the decoded records of an archived file kept beside the archive (`log.decoded_files`), once
somebody reads at least half of the file: as columns, with everything that `decode` gives except the bytes. The next reader with the same
decoder reads these, which costs a twelfth. What only Kafka has, and a small part of a file, is decoded as ever.

Columns are not trusted for ever: `DecodedAgain` says which files a whole reconcile decodes again, and compares.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from rivertwice import __version__
from rivertwice.core import LostRaceError, SparkVersion
from rivertwice.definition import Definition, fingerprint_of
from rivertwice.engine.compile import row_checks
from rivertwice.engine.decode import HASH, HEAVY, decode
from rivertwice.engine.relations import rows_schema
from rivertwice.engine.session import with_confs
from rivertwice.log import DecodedFiles, LogRead, archive_lock, is_archiving
from rivertwice.storage import Table, encode_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG = logging.getLogger(__name__)
WHOLE_EVERY = 10
"""Every so many whole reconciles all columns are decoded again; each of the others takes as small a share, another one each time."""
_LEAST_SHARE = 0.5
"""A file of which less is asked for is not decoded whole."""
_BESIDE = ("_topic_id", "_file")
_WRITES = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.maxConcurrentOutputFileWriters": "64",  # without it Spark sorts all rows by file
}
_READS = {"datetimeRebaseMode": "CORRECTED", "int96RebaseMode": "CORRECTED"}


@dataclass
class DecodedAgain:
    """What a whole reconcile decodes again of what was kept decoded, and what came of it.

    Attributes:
        run: number of the reconcile; with each `WHOLE_EVERY` of them all files are decoded again.
        found: how many files were kept before, and fit their sums. again: how many of them were decoded again.
        read: of how many of them the columns were read. made: how many were decoded and kept by this run.
        altered: files of columns that are not what the archive's bytes give, with how that was seen.
    """

    run: int
    found: int = 0
    again: int = 0
    read: int = 0
    made: int = 0
    altered: dict[Path, str] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether all files are decoded again."""
        return self.run % WHOLE_EVERY == 0

    def choose(self, names: Collection[str]) -> list[str]:
        """Return the files that this run decodes again: all, or a share, at least one. Pure."""
        ordered = sorted(names)
        if self.is_whole or not ordered:
            return ordered
        turn = self.run % WHOLE_EVERY
        return ordered[turn::WHOLE_EVERY] or [ordered[turn % len(ordered)]]

    def describe(self) -> str:
        """Return in words what was decoded and what was not; empty if nothing is kept."""
        again = f"{self.again} of them were decoded again, {self.read} read as they were"
        parts = [f"{self.found} archived files were decoded before", again] if self.found else []
        parts += [f"{self.made} were decoded and kept"] if self.made else []
        parts += [f"{len(self.altered)} kept ones were altered"] if self.altered else []
        return ", ".join(parts)


class LogDecoder:
    """Decodes what is read of the topic of one view, by one definition."""

    def __init__(self, spark: SparkSession, definition: Definition, view: str) -> None:
        """Take the definition; nothing is read.

        `again` is what a whole reconcile read of kept columns; None: all bytes were decoded.
        """
        self.again: DecodedAgain | None = None
        self._spark = spark
        self._source = definition.sources[view]
        self._checks = row_checks(spark, definition, view)
        self._definition = definition
        self._view = view

    @property
    def id(self) -> str:
        """A hash of all that decides what a record is decoded as: definition, SQL that may throw, and the programs that decode."""
        (java,) = (
            self._spark.sql("SELECT java_method('java.lang.System', 'getProperty', 'java.version')")
            .toArrow()[0]
            .to_pylist()
        )
        parts = {
            "decode": fingerprint_of(self._definition).decode,
            "view": [self._view, self._source.event_time],
            "checks": self._checks.texts,
            "engine": [__version__, self._spark.version, java, pa.__version__],
        }
        return hashlib.sha256(encode_json(parts)).hexdigest()[:32]

    def records(
        self,
        read: LogRead,
        *,
        details: bool = True,
        hashed: bool = False,
        from_bytes: bool = False,
        run: int | None = None,
    ) -> DataFrame:
        """Return the decoded records of what is read: what `decode` gives, without the bytes of dead letters.

        Args:
            details: whether `_detail` is among the columns. hashed: whether `HASH` is.
            from_bytes: whether all bytes are decoded, whatever is kept.
            run: number of a whole reconcile, which decodes a share of what is kept again (`again`); None: nothing is decoded again.
        """
        files = read.decoded_files(self.id) if self._source.keep_decoded and not from_bytes else None
        columns = {} if files is None else self._columns(read, files, run)
        if not columns:
            return self.decoded(read.records(), details=details, hashed=hashed)
        unasked = ["_topic_id", *([] if details else ["_detail"]), *([] if hashed else [HASH])]
        kept = read.decoded_records(columns, self._read).drop(*unasked)
        if read.is_whole_without(columns):
            return kept
        return kept.unionByName(self.decoded(read.records(without=columns), details=details, hashed=hashed))

    def decoded(
        self, raw: DataFrame, *, details: bool = True, hashed: bool = True, beside: Sequence[str] = ()
    ) -> DataFrame:
        """Return raw records decoded, whatever is kept of them; `beside` are further columns of theirs that stay."""
        return decode(raw, self._source, self._checks, details=details, hashed=hashed, beside=beside).drop(*HEAVY)

    def _columns(self, read: LogRead, files: DecodedFiles, run: int | None) -> Mapping[str, Path]:
        """Return file of the archive to the columns that are read instead, after those that are missing were made."""
        before = dict(files.sound)
        missing = [
            name
            for name, share in read.files.items()
            if share >= _LEAST_SHARE and name not in files.sound and name not in files.altered
        ]
        if missing and not is_archiving(read.settings, read.topic):
            self._make(read, files, missing)
        if run is None:
            return files.sound
        again = self.again = DecodedAgain(run)
        again.altered |= dict.fromkeys(files.altered.values(), "its SHA-256 is not that of its name")
        chosen = again.choose(before)
        wrong = self._differing(read, {name: before[name] for name in chosen}) if chosen else []
        again.altered |= {before[name]: "the archive's bytes give other values" for name in wrong}
        doubted = set(wrong) | (before.keys() - set(chosen) if wrong else set())
        trusted = {name: path for name, path in files.sound.items() if name not in doubted}
        again.found, again.again = len(before), len(chosen)
        again.read = len(before.keys() & trusted.keys())
        again.made = len(files.sound.keys() - before.keys())
        return trusted

    def _make(self, read: LogRead, files: DecodedFiles, names: list[str]) -> None:
        """Decode whole files of the archive and keep what they give; without success they are decoded as if nothing was kept."""
        try:
            with files.making() as folder:
                self._write(read.whole_files(names), folder)
                made = {part.name.removeprefix("_file="): _joined(part) for part in folder.glob("_file=*")}
                if is_archiving(read.settings, read.topic):  # it may take long, and its files need not wait for these
                    return
                with archive_lock(read.settings, read.topic) as require_held:
                    table = Table(read.settings.archive(read.topic)).open()
                    live = () if table is None else [name.rpartition("/")[2] for name in table.sizes()]
                    require_held()
                    files.keep(made, live)
        except (LostRaceError, OSError, PySparkException) as error:
            LOG.warning("what was decoded of the archive of %s is not kept: %s", read.topic, error)

    def _write(self, raw: DataFrame, folder: Path) -> None:
        decoded = self.decoded(raw, beside=_BESIDE)
        with with_confs(self._spark, _WRITES):
            decoded.write.mode("append").partitionBy("_file").parquet(SparkVersion.local_path(self._spark, folder))

    def _read(self, paths: Collection[Path]) -> DataFrame:
        ddl = f"{rows_schema(self._source)}, _reason string, _detail string, {HASH} bigint, _topic_id string"
        names = [SparkVersion.local_path(self._spark, path) for path in sorted(paths)]
        return self._spark.read.options(**_READS).schema(ddl).parquet(*names)

    def _differing(self, read: LogRead, columns: Mapping[str, Path]) -> list[str]:
        """Return the files of the archive whose bytes do not give what their columns have."""
        by_path = {path.name: name for name, path in columns.items()}
        kept = self._read(columns.values()).withColumn("_file", F.col("_metadata.file_name"))
        fresh = self.decoded(read.whole_files(columns), beside=_BESIDE)
        has = {by_path[name]: sums for name, sums in _sums(kept).items()}
        gives = _sums(fresh)
        return [name for name in columns if has.get(name) != gives.get(name)]


def _sums(rows: DataFrame) -> dict[str, tuple[int, ...]]:
    """Return file to number and sums of its rows, whatever their order."""
    names = sorted(name for name in rows.columns if name != "_file")
    hashed = F.xxhash64(*(F.col(name) for name in names), *(F.col(name).isNull() for name in names))
    counted = (
        rows.select("_file", hashed.alias("_row"))
        .groupBy("_file")
        .agg(F.count(F.lit(1)), F.bit_xor("_row"), F.sum(F.shiftrightunsigned("_row", 32)))
        .toArrow()
    )
    return {row[0]: row[1:] for row in zip(*(column.to_pylist() for column in counted.columns), strict=True)}


def _joined(folder: Path) -> Path:
    """Return the file of a folder; of a file of the archive that several tasks decoded, their files as one."""
    parts = sorted(folder.glob("*.parquet"))
    if len(parts) == 1:
        return parts[0]
    whole = folder / "whole.parquet"
    with pq.ParquetWriter(whole, pq.read_schema(parts[0]), compression="zstd") as writer:
        for part in parts:
            for batch in pq.ParquetFile(part).iter_batches():
                writer.write_batch(batch)
    return whole
