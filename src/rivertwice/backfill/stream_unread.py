"""How far a load by the stream in large batches is: for `status`, the page and the claims on retention."""

from __future__ import annotations

from dataclasses import dataclass

from rivertwice.core import PipelineHome
from rivertwice.log import StoredOffsets
from rivertwice.timeline import StreamLoad, Timeline, head


def find_unread(home: PipelineHome) -> tuple[StreamLoad, int] | None:
    """Return a load of a pipeline by its stream that is not done, and how many of its records are not read; else None.

    Raises:
        DamagedFileError: its record is not what was written.
    """
    load = StreamLoad.load(home)
    if load is None:
        return None
    from rivertwice.stream import read_position

    name = head(home)
    position: StoredOffsets = load.genesis
    if name is not None:
        line = Timeline.load(home, name)
        position = read_position(home.checkpoint(name), line, list(load.until))
    left = load.count_left(position)
    return (load, left) if left else None


@dataclass(frozen=True)
class StreamLoadProgress:
    """How far a load by the stream is: its id, how many records it has and how many are not read, and the same in words."""

    load: str
    records: int
    records_left: int
    message: str

    @classmethod
    def of(cls, load: StreamLoad, left: int) -> StreamLoadProgress:
        """Return how far a load is of which so many records are not read. Pure."""
        text = (
            f"first load {load.id}: the stream has read {load.records - left} of {load.records} records in large batches; it continues as "
            f"long as it runs"
        )
        return cls(load.id, load.records, left, text)
