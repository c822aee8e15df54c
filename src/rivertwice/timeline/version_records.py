"""The versions of a pipeline: definitions that run beside the first one, each with its own home.

Records of the pipeline's place, format 1: `versions/v2.json` is written once when a version begins, and `versions/v2-dropped.json`
when it is dropped. A number is never used again. `versions/v2-accepted-MS.json` is written once right before the commit of a switch
to a version whose rows could not be compared: who accepted that, when and why. MS is that time, in epoch milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from rivertwice.core import (
    LostRaceError,
    PipelineHome,
    Place,
    RequestError,
    base_of,
    below,
    lock_or_refuse,
    parse_iso,
    split_version,
    to_iso,
    to_ms,
    to_plain,
    version_name,
)
from rivertwice.storage import RecordStore

FORMAT = 1
_DROPPED = "-dropped.json"
_ACCEPTED = "-accepted-"


@dataclass(frozen=True)
class Extent:
    """What a version serves, in figures.

    Attributes:
        version: its name; rows: of its closed windows; windows: their different starts.
        start, end: of the first and the last window, half-open, ISO 8601; None: there is no row.
    """

    version: str
    rows: int
    windows: int
    start: str | None
    end: str | None


@dataclass(frozen=True)
class Acceptance:
    """That a version serves although its rows cannot be compared with those that were served.

    Attributes:
        different: why they could not be compared, one sentence each.
        before, after: what was served before the switch, and after it.
    """

    by: str
    at: datetime
    reason: str
    different: tuple[str, ...]
    before: Extent
    after: Extent

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Acceptance:
        """Return it from its stored form."""
        sides = {name: Extent(**data[name]) for name in ("before", "after")}
        return cls(**{**data, **sides, "at": parse_iso(data["at"]), "different": tuple(data["different"])})


@dataclass(frozen=True)
class Version:
    """A definition that runs beside the one that serves.

    Attributes:
        name: of the version, `NAME@v2`; it names its home, too.
        beside: name of the version that served when it began.
        bundle: id of its definition; drawn_from: id of the same files under the pipeline's own name, as the project had them.
        fingerprint: {"state", "semantics", "decode"} of its definition.
        changed: components of the definition that differ from the one that served.
        dropped_at: when it was dropped; None: it was not.
        accepted: the newest acceptance of rows that could not be compared; None: no acceptance was needed.
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
    accepted: Acceptance | None = None

    @property
    def number(self) -> int:
        """Number of the version; the pipeline's first definition is 1."""
        return split_version(self.name)[1]

    @property
    def is_open(self) -> bool:
        """Whether it was not dropped."""
        return self.dropped_at is None


@contextmanager
def hold_versions(home: PipelineHome) -> Iterator[None]:
    """Let one process of this host at a time begin, drop or switch versions of the pipeline whose home is given.

    Raises:
        LostRaceError: another one does.
    """

    def refuse(name: str) -> LostRaceError:
        message = (
            f"{name} begins, drops or switches a version of {home.root.name}; run it again when that has ended: "
            f"`rivertwice version list {home.root.name}` shows what it did"
        )
        return LostRaceError(message)

    with lock_or_refuse(home.root / "versions.lock", refuse):
        yield


def record_version(home: PipelineHome, version: Version) -> bool:
    """Record a version of the pipeline whose home is given; return False if its number is taken."""
    record = {"format": FORMAT, **asdict(version), "noted_at": to_iso(version.noted_at)}
    del record["dropped_at"], record["accepted"]
    return RecordStore(_place(home)).put_if_absent(f"v{version.number}.json", record)


def record_dropped(home: PipelineHome, version: Version, by: str, now: datetime) -> bool:
    """Record that a version was dropped; return False if it was already."""
    record = {"format": FORMAT, "by": by, "dropped_at": to_iso(now)}
    return RecordStore(_place(home)).put_if_absent(f"v{version.number}{_DROPPED}", record)


def record_accepted(home: PipelineHome, version: str, accepted: Acceptance) -> None:
    """Record that a person accepts rows of a version that cannot be compared; the same acceptance is recorded once."""
    key = f"v{split_version(version)[1]}{_ACCEPTED}{to_ms(accepted.at):013d}.json"
    RecordStore(_place(home)).put_if_absent(key, {"format": FORMAT, **to_plain(accepted)})


def next_name(home: PipelineHome) -> str:
    """Return the name that a further version of the pipeline whose home is given would have."""
    name = base_of(home.root.name)
    return version_name(name, next_number(read_versions(home)))


def read_versions(home: PipelineHome) -> list[Version]:
    """Return the versions of the pipeline whose home is given, those that were dropped too, by number; the first is not among them.

    Raises:
        RequestError: a record has a format that is not known.
    """
    keys = _keys(home)
    numbers = sorted({int(key[1:].partition("-")[0].partition(".")[0]) for key in keys})
    versions = (_read(home, number) for number in numbers)
    return [
        replace(version, accepted=_read_accepted(home, version.number, keys))
        for version in versions
        if version is not None
    ]


def next_number(versions: list[Version]) -> int:
    """Return the number of a further version. Pure."""
    return max((version.number for version in versions), default=1) + 1


def _read(home: PipelineHome, number: int) -> Version | None:
    data = _require_format(home, RecordStore(_place(home)).read(f"v{number}.json"), number)
    if data is None:
        return None
    dropped = _require_format(home, RecordStore(_place(home)).read(f"v{number}{_DROPPED}"), number)
    dropped_at = None if dropped is None else parse_iso(dropped["dropped_at"])
    values = {**data, "changed": tuple(data["changed"]), "noted_at": parse_iso(data["noted_at"])}
    return Version(**values, dropped_at=dropped_at)


def _read_accepted(home: PipelineHome, number: int, keys: list[str]) -> Acceptance | None:
    own = sorted(key for key in keys if key.startswith(f"v{number}{_ACCEPTED}"))
    data = _require_format(home, RecordStore(_place(home)).read(own[-1]), number) if own else None
    return None if data is None else Acceptance.from_plain(data)


def _place(home: PipelineHome) -> Place:
    return below(home.place, "versions")


def _keys(home: PipelineHome) -> list[str]:
    return [key for key in RecordStore(_place(home)).list() if key.startswith("v")]


def _require_format(home: PipelineHome, data: dict[str, Any] | None, number: int) -> dict[str, Any] | None:
    if data is not None and data.pop("format", None) != FORMAT:
        message = f"the record of version {number} of {home.root.name} is not of format {FORMAT}, which this version reads; use a newer rivertwice"
        raise RequestError(message)
    return data
