"""The intent of a pipeline's stream, and what its driver last reported. Small JSON files, format 1."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Any

from rivertwice.core import PipelineHome, RequestError, parse_iso, to_iso
from rivertwice.storage import read_json, replace_json

FORMAT = 1
DESIRED = ("running", "stopped")


@dataclass(frozen=True)
class Intent:
    """What a person or a DAG wants: the stream running or stopped.

    Attributes:
        run_asked_at: of a stream by schedule: when a run to the log's end was last asked for; None: never.
    """

    desired: str
    by: str
    updated_at: datetime
    run_asked_at: datetime | None = None

    @classmethod
    def load(cls, home: PipelineHome) -> Intent | None:
        """Return the intent, or None if none was ever recorded."""
        data = read_json(home.intent)
        if data is None:
            return None
        asked = read_json(home.asked_run)
        return cls(
            desired=data["desired"],
            by=data["by"],
            updated_at=parse_iso(data["updated_at"]),
            run_asked_at=None if asked is None else parse_iso(asked["at"]),
        )

    @staticmethod
    def ask_run(home: PipelineHome, by: str, now: datetime) -> None:
        """Ask for a run of a stream by schedule; the agent starts it once the desired state is running."""
        replace_json(home.asked_run, {"format": FORMAT, "at": to_iso(now), "by": by})

    @property
    def asked_at(self) -> datetime:
        """When a start or a run was last asked for."""
        return self.updated_at if self.run_asked_at is None else max(self.updated_at, self.run_asked_at)


@dataclass(frozen=True)
class Heartbeat:
    """What the driver last reported; `at` is by its own clock.

    Attributes:
        state: starting, running, idle, draining, stopped or failed.
        batch: last batch committed to the changelog, or None.
        end_offsets: topic to partition to the offset after the last committed record.
        lag: records in the log beyond `end_offsets`.
        lag_at: when the log's end was last read; None in heartbeats of versions that did not store it.
        rows_per_s: records of the last batch per second of its time.
        arriving_per_s: records added to the log, per second of the last minute.
        catch_up_s: seconds until the lag is gone at the last minute's pace; None if it is not known, or never.
        placed_until_ms: event time up to which the running batch reads all partitions, epoch ms, while the stream catches up
            by event time; else None.
        read, emitted: records that this driver has committed, and result rows that it has emitted, since it started.
        batch_s: seconds of the last batch, from its plan to its commit.
        slowest_s: seconds of the slowest batch that was committed in the last 15 s; None if there was none.
        lag_parts: topic to partition to the records of `lag` in it.
        ui: address of the driver's own Spark UI; None if it is off.
        waits: what the driver waits for before it can compute anything, as no executor of its cluster; empty: nothing.
    """

    epoch: int
    pid: int
    timeline: str
    state: str
    at: datetime
    batch: int | None = None
    watermark_ms: int | None = None
    end_offsets: dict[str, dict[str, int]] = field(default_factory=dict)
    lag: int | None = None
    rows_per_s: float | None = None
    arriving_per_s: float | None = None
    catch_up_s: float | None = None
    lag_at: datetime | None = None
    placed_until_ms: int | None = None
    read: int | None = None
    emitted: int | None = None
    batch_s: float | None = None
    slowest_s: float | None = None
    lag_parts: dict[str, dict[str, int]] = field(default_factory=dict)
    ui: str | None = None
    waits: str = ""

    def save(self, home: PipelineHome) -> None:
        """Replace the heartbeat."""
        lag_at = None if self.lag_at is None else to_iso(self.lag_at)
        replace_json(home.heartbeat, {"format": FORMAT, **asdict(self), "at": to_iso(self.at), "lag_at": lag_at})

    @classmethod
    def load(cls, home: PipelineHome) -> Heartbeat | None:
        """Return the last heartbeat, or None if no driver ever ran."""
        data = _fields(read_json(home.heartbeat))
        if data is None:
            return None
        lag_at = data.get("lag_at")
        instants = {"at": parse_iso(data["at"]), "lag_at": None if lag_at is None else parse_iso(lag_at)}
        known = {each.name for each in fields(cls)}  # the driver of a newer version may report more fields
        return cls(**{**{key: value for key, value in data.items() if key in known}, **instants})


@dataclass(frozen=True)
class Exit:
    """Why a driver ended; `failure` is one of the classes in `stream.failures`, `drained` when clean.

    Attributes:
        at_end: it ended by itself, once it had read what the log had at its start.
    """

    epoch: int
    at: datetime
    failure: str
    message: str
    clean: bool
    at_end: bool = False

    def save(self, home: PipelineHome) -> None:
        """Record why the driver ended."""
        replace_json(
            home.exit,
            {
                "format": FORMAT,
                "epoch": self.epoch,
                "at": to_iso(self.at),
                "class": self.failure,
                "message": self.message,
                "clean": self.clean,
                **({"at_end": True} if self.at_end else {}),
            },
        )

    @classmethod
    def load(cls, home: PipelineHome) -> Exit | None:
        """Return why the last driver ended, or None; a driver that was killed leaves an older epoch's record."""
        data = _fields(read_json(home.exit))
        if data is None:
            return None
        return cls(
            epoch=data["epoch"],
            at=parse_iso(data["at"]),
            failure=data["class"],
            message=data["message"],
            clean=data["clean"],
            at_end=data.get("at_end", False),
        )


def write_intent(home: PipelineHome, desired: str, by: str, now: datetime) -> Intent:
    """Record the intent; the agent acts on it.

    Raises:
        RequestError: `desired` is neither running nor stopped.
    """
    if desired not in DESIRED:
        message = f"a stream cannot be {desired!r}; ask for one of {', '.join(DESIRED)}"
        raise RequestError(message)
    intent = Intent(desired=desired, by=by, updated_at=now)
    replace_json(
        home.intent,
        {"format": FORMAT, "desired": desired, "by": by, "bundle": None, "updated_at": to_iso(now)},
    )
    return intent


def _fields(data: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if data is None else {key: value for key, value in data.items() if key != "format"}
