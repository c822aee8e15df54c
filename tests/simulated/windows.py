"""A pipeline of tumbling or hopping windows in memory: a stream that drops and emits as Spark's does, over two partitions."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

SIZE = 10_000
DELAY = 5_000
START = 1_000_000


@dataclass(frozen=True)
class Record:
    """One record; without a value it cannot be decoded."""

    partition: int
    offset: int
    key: str
    at_ms: int
    value: int | None


@dataclass(frozen=True, order=True)
class Row:
    start_ms: int
    key: str
    n: int
    total: int


@dataclass
class World:
    """What was read, and what the stream emitted and left out; windows begin every `step` milliseconds."""

    step: int = SIZE
    batches: list[list[Record]] = field(default_factory=list)
    watermarks: list[int] = field(default_factory=list)
    emitted: list[tuple[int, Row]] = field(default_factory=list)
    late: list[tuple[int, Record, int]] = field(default_factory=list)
    _state: dict[tuple[int, str], list[int]] = field(default_factory=dict)
    _ends: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})

    def commit(self, records: Iterable[tuple[int, str, int, int | None]]) -> None:
        """Read a batch of (partition, key, time, value)."""
        batch = []
        for partition, key, at_ms, value in records:
            batch.append(Record(partition, self._ends[partition], key, at_ms, value))
            self._ends[partition] += 1
        late_ms = self.watermarks[-1] if self.watermarks else 0
        seen = [one.at_ms for earlier in self.batches for one in earlier if one.value is not None]
        watermark = max([late_ms, max(seen, default=0) - DELAY])
        number = len(self.batches)
        for one in batch:
            for start in self.starts(one.at_ms) if one.value is not None else ():
                if start + SIZE <= late_ms:
                    self.late.append((number, one, start))
                else:
                    self._state.setdefault((start, one.key), []).append(one.value or 0)
        for start, key in sorted(self._state):
            if start + SIZE <= watermark:
                values = self._state.pop((start, key))
                self.emitted.append((number, Row(start, key, len(values), sum(values))))
        self.batches.append(batch)
        self.watermarks.append(watermark)

    def starts(self, at_ms: int) -> list[int]:
        """Return the starts of the windows that hold an instant."""
        last = at_ms - at_ms % self.step
        return list(range(last - SIZE + self.step, last + 1, self.step))

    def truth(self, ends: dict[int, int]) -> list[Row]:
        """Return the rows over all records below these offsets."""
        groups: dict[tuple[int, str], list[int]] = {}
        for one in (one for batch in self.batches for one in batch):
            if one.value is not None and one.offset < ends[one.partition]:
                for start in self.starts(one.at_ms):
                    groups.setdefault((start, one.key), []).append(one.value)
        return [Row(start, key, len(values), sum(values)) for (start, key), values in sorted(groups.items())]


def random_batches(chance: random.Random, count: int) -> Iterator[list[tuple[int, str, int, int | None]]]:
    """Yield batches of records that move on in time; some are late, by seconds or by far, some cannot be decoded."""
    now = START
    for _ in range(count):
        batch = []
        for _ in range(chance.choice([0, 1, 3, 8, 8])):
            now += chance.choice([0, 100, 1000, 3000])
            late = chance.choice([0, 0, 0, 2000, 7000, 20_000, 60_000])
            value = None if chance.random() < 0.05 else chance.randint(1, 9)
            batch.append((chance.randint(0, 1), chance.choice("abc"), max(START, now - late), value))
        yield batch
