"""The files of the state in a checkpoint at rest: names by which Spark reads them, and the state in another number of partitions.

Spark's own offline tool (`core.spark_versions` says since when) reads the state after the last batch N, writes each new partition as one snapshot, and records
that as a batch N+1 without records. The ledger has no such batch: it would shift the numbers of all later ones. So the result takes the
place of batch N. The snapshots get the version of N, `offsets/N` gets the new number, `commits/N` names the new snapshots, and the files
of the old layout are removed. Everything that Spark derives from N (offsets, watermarks) stays as it was.

It works on a copy that nothing else uses; an interrupted one is thrown away.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from rivertwice.core import CheckpointError, SparkVersion
from rivertwice.stream import partitions_of, with_partitions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_METADATA = "_metadata"
_LOGS = ("offsets", "commits")


def repartition_state(spark: SparkSession, checkpoint: Path, batch: int, partitions: int) -> bool:
    """Rewrite the state after `batch`, the checkpoint's last one; return False if it has this number already, or none.

    Args:
        spark: a session; it starts no query.
        checkpoint: a copy at rest, planned and finished up to `batch`.
        partitions: the new number, at least 1.

    Raises:
        RequestError: this version of Spark has no such tool.
        CheckpointError: Spark cannot rewrite this state; the copy must not be used.
    """
    planned = checkpoint / "offsets" / str(batch)
    text = planned.read_text()
    if partitions_of(text) in (None, partitions):
        return False
    before = state_files(checkpoint)
    _run_tool(spark, checkpoint, batch, partitions)
    for path in before:
        path.unlink()
    for path in state_files(checkpoint):
        renamed = name_of_version(path.name, batch + 2, batch + 1)  # a batch N makes the version N+1
        if renamed is not None:
            path.rename(path.with_name(renamed))
    put_text(planned, with_partitions(text, partitions))
    put_text(checkpoint / "commits" / str(batch), (checkpoint / "commits" / str(batch + 1)).read_text())
    for log in _LOGS:
        for name in (str(batch + 1), f".{batch + 1}.crc"):
            (checkpoint / log / name).unlink(missing_ok=True)
    return True


def name_of_version(name: str, version: int, wanted: int) -> str | None:
    """Return the name that a file of a state's version has as another version, or None if it is not such a file. Pure."""
    hidden = "." if name.startswith(".") else ""
    number, mark, rest = name.removeprefix(".").partition("_")
    return f"{hidden}{wanted}_{rest}" if mark and number == str(version) else None


def _run_tool(spark: SparkSession, checkpoint: Path, batch: int, partitions: int) -> None:
    wanted = f"rewriting the state after batch {batch} into {partitions} partitions"
    SparkVersion(spark.version).require("repartition", wanted, "install pyspark 4.2.0, then do this again")
    from pyspark.sql.streaming.query import StreamingCheckpointManager

    session: object = spark._jsparkSession
    try:
        manager = StreamingCheckpointManager(session.streamingCheckpointManager())  # type: ignore[attr-defined]
        manager.repartition(str(checkpoint), partitions)
    except (Py4JError, PySparkException) as error:
        first_line = str(error).strip().partition("\n")[0][:400]
        message = (
            f"Spark cannot rewrite the state after batch {batch} into {partitions} partitions ({first_line}); nothing that is served "
            "changed; give the operation up (`rivertwice upgrade NAME --abandon`), then put stream.shuffle_partitions back, or run a "
            "changed definition as a new version, which begins with its own number (`rivertwice upgrade NAME --new-version`)"
        )
        raise CheckpointError(message) from error


@contextmanager
def readable_state(spark: SparkSession, checkpoint: Path) -> Iterator[Path]:
    """Give a checkpoint whose state Spark's reader of states finds: the one that is passed, or a folder of links to its files.

    A file of a state is named by version and id (`3_b2c7...changelog`), because a batch that runs again writes another one. Where
    the reader does not know ids it looks for `3.changelog`. What is in the file is the same, so links have that name: those to the
    files that `commits/` names, or to the only one of a version that is older than all commits.
    """
    if SparkVersion(spark.version).has("state read by ids"):
        yield checkpoint
        return
    with tempfile.TemporaryDirectory(prefix=f".{checkpoint.name}.read-", dir=checkpoint.parent) as folder:
        committed = {int(path.name) + 1: path.read_text() for path in (checkpoint / "commits").glob("[0-9]*")}
        for inner, _, names in os.walk(checkpoint):
            links = Path(folder) / Path(inner).relative_to(checkpoint)
            links.mkdir(exist_ok=True)
            for name in names:
                plain = name_without_id(name, committed, names)
                if plain is not None:
                    (links / plain).symlink_to(Path(inner).resolve() / name)
        yield Path(folder)


_BY_ID = re.compile(r"(?P<hidden>\.?)(?P<version>[0-9]+)_(?P<id>[0-9a-f-]{36})(?P<rest>\.(?:changelog|zip)(?:\.crc)?)")


def name_without_id(name: str, committed: Mapping[int, str], beside: Collection[str]) -> str | None:
    """Return the name of a file of a checkpoint where states have no ids; None: it is not of a committed batch. Pure.

    Args:
        committed: version to the text of the commit that has the ids of its files; a batch N makes the version N+1.
        beside: names of all files of its folder.
    """
    found = _BY_ID.fullmatch(name)
    if found is None:
        return name
    version = int(found["version"])
    others = [each for each in beside if each.startswith(f"{version}_") and f"_{found['id']}." not in each]
    is_of_it = found["id"] in committed[version] if version in committed else not others
    return f"{found['hidden']}{version}{found['rest']}" if is_of_it else None


def state_files(checkpoint: Path) -> list[Path]:
    """Return the files of the state itself, without the descriptions of its operators and schemas."""
    state = checkpoint / "state"
    files = (path for path in state.rglob("*") if path.is_file())
    return [path for path in files if _METADATA not in path.relative_to(state).parts]


def put_text(path: Path, text: str) -> None:
    """Replace a small file; an existing checksum file belongs to other bytes and is deleted."""
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    path.write_text(text)
