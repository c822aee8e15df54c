"""A fold's keys followed in buckets give what each key followed by itself gives; the layout is one of the timeline, for ever."""

from __future__ import annotations

import json
import random
from collections import Counter

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivertwice.core.errors import CheckpointError, DefinitionError
from rivertwice.definition.definition import Definition, parse_files
from rivertwice.definition.fingerprint import fingerprint_of
from rivertwice.definition.folds import Emitted
from rivertwice.engine.fold_buckets import (
    PER_KEY,
    Bucket,
    bucket_of,
    buckets_at_genesis,
    dump_bucket,
    load_bucket,
    require_buckets,
    with_buckets,
)
from rivertwice.engine.folds import LINES, fold_spec, follow_bucket, follow_key
from rivertwice.stream.failures import CHECKPOINT, classify_failure

SOURCE = """
    partitions: 2
    schema: {k: string, at: timestamp, v: bigint, m: "decimal(20,4)"}
    required: [k]
    event_time: at
    max_future: 1 hour
"""
YAML = f"""
name: p
description: test
sources:
  one:
    topic: one{SOURCE}
  two:
    topic: two{SOURCE}
window: {{fold: 1 day, at: at}}
by: [k]
state: {{total: "decimal(20,4)", last: timestamp, seen: json}}
keys: [k]
columns: {{at: {{}}, total: {{}}, seen: {{}}, error: {{}}}}
types: {{at: timestamp, total: "decimal(20,4)", seen: string, error: string}}
"""
FOLD = """
from decimal import Decimal
def fold(state, event):
    state = state or {"total": Decimal(0), "last": None, "seen": {}}
    if event["v"] == 0:
        state["seen"]["spoilt"] = True
        raise ValueError(event["k"])
    if event["v"] == 1:
        return None, []
    state["total"] += event["m"]
    state["last"] = event["at"]
    state["seen"][event["_source"]] = [*state["seen"].get(event["_source"], [])[-2:], event["v"]]
    times = 2 if event["v"] == 2 else 1
    return state, [{"total": state["total"], "seen": str(sorted(state["seen"].items()))}] * times
"""
Event = tuple[str, int, int, int, str]
"""(key, source, partition, offset, event), the keys and the event as JSON."""


def define(*changes: tuple[str, str]) -> Definition:
    text = YAML
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return parse_files({"pipeline.yaml": text.encode(), "fold.py": FOLD.encode()}, "p")


SPEC = fold_spec(define())


def packed(events: list[Event]) -> pd.DataFrame:
    return pd.DataFrame(
        {LINES: [f"{source} {part} {offset}\n{key}\n{event}" for key, source, part, offset, event in events]}
    )


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[list[Event]], int, random.Random]:
    """Return micro-batches of packed events, a number of buckets, and a source of chance for the order in which Spark gives them."""
    names = draw(st.lists(st.text(max_size=5), min_size=1, max_size=6, unique=True))
    values = st.tuples(
        st.sampled_from(names), st.integers(0, 1), st.integers(0, 1), st.integers(0, 6), st.integers(-9, 9**9)
    )
    offsets: Counter[tuple[int, int]] = Counter()
    batches: list[list[Event]] = [[] for _ in range(draw(st.integers(1, 4)))]
    for name, source, partition, value, cents in draw(st.lists(values, max_size=30)):
        offset = offsets[source, partition]
        offsets[source, partition] += 1
        event = {"k": name, "at": cents, "v": value, "m": f"{cents}.0001"}
        place = draw(st.integers(0, len(batches) - 1))
        batches[place].append((json.dumps({"k": name}), source, partition, offset, json.dumps(event)))
    return batches, draw(st.sampled_from([1, 2, 3, 256])), draw(st.randoms(use_true_random=False))


@given(logs())
def test_buckets_give_the_rows_and_states_of_keys_followed_alone(
    log: tuple[list[list[Event]], int, random.Random],
) -> None:
    batches, buckets, chance = log
    states: dict[str, str] = {}
    texts: dict[int, str] = {}
    for batch in batches:
        alone: list[Emitted] = []
        for key in {event[0] for event in batch}:
            state, rows = follow_key(SPEC, states.pop(key, None), [packed([one for one in batch if one[0] == key])])
            states |= {} if state is None else {key: state}
            alone += rows
        together: list[Emitted] = []
        for bucket in {bucket_of(event[0], buckets) for event in batch}:
            own = [one for one in batch if bucket_of(one[0], buckets) == bucket]
            chance.shuffle(own)
            half = chance.randint(0, len(own))
            text, rows = follow_bucket(SPEC, texts.pop(bucket, None), [packed(own[:half]), packed(own[half:])])
            texts |= {} if text is None else {bucket: text}
            together += rows
        assert Counter(together) == Counter(alone)
        held = [load_bucket(text) for text in texts.values()]
        assert {key: state for one in held for key, state in one.items()} == states
        assert sum(map(len, held)) == len(states)


@given(st.dictionaries(st.text().map(lambda name: json.dumps({"k": name}, ensure_ascii=False)), st.just('{"n":1}')))
def test_equal_states_of_a_bucket_are_equal_texts(states: dict[str, str]) -> None:
    text = dump_bucket(states)
    assert dump_bucket(dict(reversed(states.items()))) == text
    assert load_bucket(text) == states
    assert list(load_bucket(text)) == sorted(states)
    assert (text is None) == (not states)


def test_a_bucket_is_the_crc_of_its_keys_json() -> None:
    """Values of the CRC-32 that RFC 1952 names; a stored state depends on them."""
    assert bucket_of("123456789", 2**32) == 0xCBF43926
    assert [bucket_of(key, 256) for key in ('{"k":"a"}', '{"k":"é"}', '{"id":1}')] == [139, 109, 197]


def test_a_text_with_a_line_break_is_not_stored() -> None:
    with pytest.raises(ValueError, match="line break"):
        dump_bucket({'{"k":1}': "{\n}"})


def test_a_state_of_another_number_of_buckets_is_not_read() -> None:
    require_buckets("p", 256, 256)
    with pytest.raises(CheckpointError, match=r"stored in 256 buckets, and its timeline has 64: .*restore") as caught:
        require_buckets("p", 256, 64)
    worker = f"Traceback ...\nrivertwice.errors.CheckpointError: {caught.value}\n"
    assert classify_failure(RuntimeError(worker)) == CHECKPOINT


def test_the_number_of_buckets_is_no_part_of_a_fingerprint() -> None:
    definition = define()
    assert (definition.stream.fold_buckets, buckets_at_genesis(definition)) == (64, 64)
    chosen = define(("keys: [k]", "stream: {fold_buckets: 0}\nkeys: [k]"))
    assert buckets_at_genesis(chosen) == PER_KEY
    assert fingerprint_of(chosen).hashes() == fingerprint_of(definition).hashes()
    frozen = with_buckets(definition, 8)
    assert frozen.stream.fold_buckets == 8
    assert with_buckets(frozen, 64) == definition
    assert with_buckets(frozen, 8) is frozen


def test_windows_that_are_no_fold_have_no_buckets() -> None:
    sql = "SELECT window.start AS window_start, window.end AS window_end, k, count(*) AS n FROM e GROUP BY window(at, '1 day'), k"
    text = (
        "name: p\ndescription: t\nsources: {e: {topic: e, partitions: 1, schema: {k: string, at: timestamp}, event_time: at, "
        "watermark: 0 s, max_future: 1 hour}}\nwindow: {size: 1 day}\nkeys: [k]\ncount_column: n\ncolumns: {n: {}}\n"
    )

    def parse(text: str) -> Definition:
        return parse_files({"pipeline.yaml": text.encode(), "transform.sql": sql.encode()}, "p")

    plain = parse(text)
    assert buckets_at_genesis(plain) == PER_KEY
    assert with_buckets(plain, PER_KEY) is plain
    with pytest.raises(DefinitionError, match=r"stream\.fold_buckets is for folds"):
        parse(text + "stream: {fold_buckets: 64}\n")


def test_a_failed_event_changes_nothing_of_its_bucket() -> None:
    key = '{"k":"a"}'
    first = {"k": "a", "at": 1, "v": 5, "m": "1.0000"}
    text, _ = follow_bucket(SPEC, None, [packed([(key, 0, 0, 0, json.dumps(first))])])
    again, rows = follow_bucket(SPEC, text, [packed([(key, 0, 0, 1, json.dumps({**first, "v": 0}))])])
    assert again == text
    assert "ValueError: a" in rows[0][4]


KEYS = [f'{{"k":{number}}}' for number in range(12)]


@given(
    st.dictionaries(st.sampled_from(KEYS), st.sampled_from(['{"n":1}', '{"n":2}'])),
    st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.sampled_from(['{"n":3}', '{"n":4}'])), max_size=8),
)
def test_a_bucket_holds_what_was_put_and_forgets_what_is_none(
    states: dict[str, str], puts: list[tuple[str, str | None]]
) -> None:
    bucket = Bucket(dump_bucket(states))
    for key, state in puts:
        assert bucket.get(key) == states.get(key)
        bucket.put(key, state)
        states = {name: value for name, value in {**states, key: state}.items() if value is not None}
    assert [bucket.get(key) for key in KEYS] == [states.get(key) for key in KEYS]
    assert bucket.text() == bucket.text() == dump_bucket(states)
