"""What the folds of `histories.kinds` over two topics come to, worked out by loops of their own, in any order of the records."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from histories.random_histories import Batch, Record

Row = tuple[str, int, int, dict[str, Any]]
"""(view, offset, number of the row, key and values)."""
Loop = Callable[[Iterable[Record]], Iterator[Row]]
VIEWS = ("events", "others")


def loop_of_fold(records: Iterable[Record]) -> Iterator[Row]:
    """Yield the rows of "fold of sources"."""
    states: dict[str, tuple[int, int, int]] = {}
    for one in records:
        if one.value == 7:
            continue
        n, total, top = states.get(one.key, (0, 0, 0))
        times = 2 if one.value == 5 else 1
        if one.value == 11 and n > 9:
            del states[one.key]
            shown = {"n": 0, "total": total, "top": None}
            times = 1
        else:
            by = one.value if one.partition == 0 else 100 - one.value
            states[one.key] = (n + 1, (total * 31 + by) % 1_000_003, max(one.value, top))
            shown = dict(zip(("n", "total", "top"), states[one.key], strict=True))
        for number in range(times):
            yield VIEWS[one.partition], one.offset, number, {"k": one.key, **shown}


def loop_of_view(records: Iterable[Record], *, lying: bool = False) -> Iterator[Row]:
    """Yield the rows of "view of sources", or of the one that tells which side came first."""
    known: dict[str, list[int | None]] = {}
    began: dict[str, int] = {}
    for one in records:
        value = None if one.value == 11 else one.value
        sides = known.get(one.key, [None, None])
        if sides[one.partition] == value:
            continue
        first = began.get(one.key, 1 - one.partition)
        sides = [value if number == one.partition else side for number, side in enumerate(sides)]
        left, right = sides[0] or 0, sides[1] or 0
        gone = sides == [None, None]
        if gone:
            known.pop(one.key)
            began.pop(one.key)
        else:
            known[one.key], began[one.key] = sides, first
        top = first if lying else max(left, right)
        values = {"n": left, "total": 100 * left + right, "top": top, "gone": gone}
        yield VIEWS[one.partition], one.offset, 0, {"k": one.key, **values}


def as_read(batches: Sequence[Batch]) -> list[Record]:
    """Return the records that can be read in the order in which a stream reads them: of each batch the first topic's before the other's."""
    return [
        one
        for batch in batches
        for one in sorted(batch, key=lambda r: (r.partition, r.offset))
        if one.event_s is not None
    ]


def topic_by_topic(batches: Sequence[Batch], *, turned: bool = False) -> list[Record]:
    """Return the records one topic after the other, the last one first (`turned`)."""
    return sorted(as_read(batches), key=lambda one: (-one.partition if turned else one.partition, one.offset))


def shuffled(chance: random.Random, batches: Sequence[Batch]) -> list[Record]:
    """Return the records in a random order that keeps each topic's own."""
    left = [[one for one in topic_by_topic(batches) if one.partition == number] for number in (0, 1)]
    places = [0] * len(left[0]) + [1] * len(left[1])
    chance.shuffle(places)
    following = [iter(records) for records in left]
    return [next(following[place]) for place in places]


def last(rows: Iterable[Row]) -> dict[str, dict[str, Any]]:
    """Return key to the values of its newest row, be it gone or not."""
    return {values["k"]: values for _, _, _, values in rows}


def newest(rows: Iterable[Row]) -> dict[str, dict[str, Any]]:
    """Return key to the values of its newest row, of those that are not gone."""
    return {key: values for key, values in last(rows).items() if not values.get("gone")}
