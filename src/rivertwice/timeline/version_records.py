"""The versions of a pipeline: definitions that run beside the first one, each with a home of its own.

Records of the pipeline's place, format 1: `versions/v2.json` is written once when a version begins, and `versions/v2-dropped.json`
when it is given up. A number is never used again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from rivertwice.config import PipelineHome, Place, below
from rivertwice.config.versions import FIRST, split_version
from rivertwice.errors import LostRaceError, RequestError
from rivertwice.instants import parse_iso, to_iso
from rivertwice.locks import lock_or_refuse
from rivertwice.store.small_records import list_keys, put_record_if_absent, read_record

FORMAT = 1
_DROPPED = "-dropped.json"


@dataclass(frozen=True)
class Version:
    """A definition that runs beside the one that serves.

    Attributes:
        name: of the version, `NAME@v2`; it names its home, too.
        beside: name of the version that served when it began.
        bundle: id of its definition; drawn_from: id of the same files under the pipeline's own name, as the project had them.
        fingerprint: {"state", "semantics", "decode"} of its definition.
        changed: components of the definition that differ from the one that served.
        by, noted_at: who asked, and when.
        dropped_at: when it was given up; None: it was not.
    """

    name: str
    beside: str
    bundle: str
    drawn_from: str
    fingerprint: Mapping[str, str]
    changed: tuple[str, ...]
    by: str
    noted_at: datetime
    dropped_at: datetime | None = None

    @property
    def number(self) -> int:
        """Number of the version; the pipeline's first definition is 1."""
        return split_version(self.name)[1]

    @property
    def is_open(self) -> bool:
        """Whether it was not given up."""
        return self.dropped_at is None


@contextmanager
def hold_versions(home: PipelineHome) -> Iterator[None]:
    """Let one process of this host at a time begin, drop or switch versions of the pipeline whose home is given.

    Raises:
        LostRaceError: another one does.
    """

    def refuse(name: str) -> LostRaceError:
        message = (
            f"{name} begins, drops or switches a version of {home.root.name}, so nothing was done; run it again when that has ended: "
            f"`rivertwice version list {home.root.name}` shows what it did"
        )
        return LostRaceError(message)

    with lock_or_refuse(home.root / "versions.lock", refuse):
        yield


def record_version(home: PipelineHome, version: Version) -> bool:
    """Record a version of the pipeline whose home is given; return False if its number is taken."""
    record = {"format": FORMAT, **asdict(version), "noted_at": to_iso(version.noted_at)}
    del record["dropped_at"]
    return put_record_if_absent(_place(home), f"v{version.number}.json", record)


def record_dropped(home: PipelineHome, version: Version, by: str, now: datetime) -> bool:
    """Record that a version was given up; return False if it was already."""
    record = {"format": FORMAT, "by": by, "dropped_at": to_iso(now)}
    return put_record_if_absent(_place(home), f"v{version.number}{_DROPPED}", record)


def read_versions(home: PipelineHome) -> list[Version]:
    """Return the versions of the pipeline whose home is given, those that were given up too, by number; the first is not among them.

    Raises:
        RequestError: a record has a format that is not known.
    """
    numbers = sorted({int(key[1:].partition("-")[0].partition(".")[0]) for key in _keys(home)})
    versions = (_read(home, number) for number in numbers)
    return [version for version in versions if version is not None]


def next_number(versions: list[Version]) -> int:
    """Return the number of a further version. Pure."""
    return max((version.number for version in versions), default=FIRST) + 1


def _read(home: PipelineHome, number: int) -> Version | None:
    data = _require_format(home, read_record(_place(home), f"v{number}.json"), number)
    if data is None:
        return None
    dropped = _require_format(home, read_record(_place(home), f"v{number}{_DROPPED}"), number)
    dropped_at = None if dropped is None else parse_iso(dropped["dropped_at"])
    values = {**data, "changed": tuple(data["changed"]), "noted_at": parse_iso(data["noted_at"])}
    return Version(**values, dropped_at=dropped_at)


def _place(home: PipelineHome) -> Place:
    return below(home.place, "versions")


def _keys(home: PipelineHome) -> list[str]:
    return [key for key in list_keys(_place(home)) if key.startswith("v")]


def _require_format(home: PipelineHome, data: dict[str, Any] | None, number: int) -> dict[str, Any] | None:
    if data is not None and data.pop("format", None) != FORMAT:
        message = f"the record of version {number} of {home.root.name} is not of format {FORMAT}, which this version reads; use a newer rivertwice"
        raise RequestError(message)
    return data
