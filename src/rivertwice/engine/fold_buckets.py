"""The state of a stream's fold: for each bucket of keys one text, or, as 0.1 kept it, one text for each key. Pure.

A call of Spark costs far more than an event, so keys are followed in buckets: all events of a bucket in one call. A key's
bucket is the CRC-32 (IEEE 802.3, as in zlib and Java) of its JSON in UTF-8, modulo the number of buckets. This depends on no
engine, no seed and no process.

The text of a bucket has two lines for each key, the key and its state, both JSON, sorted by key. Equal states are equal texts.
JSON has no line break in it. The number of buckets is stored beside the text, so that a state is never read with another one.

The number, like Spark's own settings, is frozen when a timeline begins (`Timeline.fold_buckets`); timelines that leave it inherit
it. A timeline without a number is one of 0.1, or of another kind of windows: a state for each key.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Mapping

from rivertwice.core import CheckpointError
from rivertwice.definition import Definition

PER_KEY = 0
"""The number of buckets that means a separate state for each key."""


def bucket_of(key: str, buckets: int) -> int:
    """Return the bucket of a key, which is the JSON of its fields; Spark computes the same (`folds.bucket_column`)."""
    return zlib.crc32(key.encode()) % buckets


def buckets_at_genesis(definition: Definition) -> int:
    """Return the number of buckets that a timeline without a parent begins with; `PER_KEY` if it is not a fold."""
    return PER_KEY if definition.fold_py is None else definition.stream.fold_buckets


def with_buckets(definition: Definition, buckets: int) -> Definition:
    """Return the definition as a timeline runs it, with the number of buckets that the timeline began with."""
    if definition.fold_py is None or definition.stream.fold_buckets == buckets:
        return definition
    return definition.model_copy(update={"stream": definition.stream.model_copy(update={"fold_buckets": buckets})})


def load_bucket(text: str | None) -> dict[str, str]:
    """Return key to state of a bucket's text, in the order of the keys; empty for None."""
    lines = iter([] if text is None else text.split("\n"))
    return dict(zip(lines, lines, strict=True))


def dump_bucket(states: Mapping[str, str]) -> str | None:
    """Return the text of a bucket; None if it has no key.

    Raises:
        ValueError: a key or a state has a line break, so neither Spark nor this package wrote it.
    """
    return _joined([line for key in sorted(states) for line in (key, states[key])])


class Bucket:
    """The states of a bucket's keys while a batch is folded. Of a large bucket only the keys of the batch are looked at."""

    def __init__(self, text: str | None) -> None:
        """Take the text; None for a bucket that has no key."""
        self._lines = [] if text is None else text.split("\n")
        self._keys = self._lines[::2]
        self._changed: dict[str, str | None] = {}

    def get(self, key: str) -> str | None:
        """Return the state of a key; None if it has none."""
        if key in self._changed:
            return self._changed[key]
        place = self._place(key)
        return None if place is None else self._lines[place]

    def put(self, key: str, state: str | None) -> None:
        """Keep the state of a key; None forgets the key."""
        self._changed[key] = state

    def text(self) -> str | None:
        """Return the text with what was put, as `dump_bucket` does."""
        lines, new, gone = self._lines.copy(), {}, False
        for key, state in self._changed.items():
            place = self._place(key)
            if state is None:
                gone = gone or place is not None
            elif place is None:
                new[key] = state
            else:
                lines[place] = state
        if not new and not gone:
            return _joined(lines)
        states = {key: state for key, state in zip(self._keys, lines[1::2], strict=True) if self._is_kept(key)}
        return dump_bucket(states | new)

    def _place(self, key: str) -> int | None:
        """Return the index of a key's state among the lines."""
        index = bisect_left(self._keys, key)
        return 2 * index + 1 if index < len(self._keys) and self._keys[index] == key else None

    def _is_kept(self, key: str) -> bool:
        return self._changed.get(key, "") is not None


def _joined(lines: list[str]) -> str | None:
    text = "\n".join(lines)
    if lines and text.count("\n") != len(lines) - 1:
        message = "a key or a state of a fold has a line break, so its bucket could not be read again; report this"
        raise ValueError(message)
    return text if lines else None


def require_buckets(name: str, stored: int, buckets: int) -> None:
    """Refuse a bucket's state that was stored with another number of buckets.

    Raises:
        CheckpointError: with this number its keys would not be found, and would begin again without a state.
    """
    if stored != buckets:
        message = (
            f"the state of {name} was stored in {stored} buckets, and its timeline has {buckets}: checkpoint "
            "and timeline do not belong together; restore the newest proved savepoint"
        )
        raise CheckpointError(message)
