from __future__ import annotations

import random
import struct

from hypothesis import given
from hypothesis import strategies as st

from rivertwice.savepoint.proof import StateDigest, buffer_entries, canonical_state, describe_difference, digest_state


def percentile_buffer(entries):
    return b"".join(struct.pack(">i", len(data)) + data for data in entries) + struct.pack(">i", -1)


VALUES = st.recursive(
    st.none() | st.integers() | st.text() | st.binary(max_size=40) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.fixed_dictionaries({"partition_id": st.integers(0, 3), "key": VALUES, "value": VALUES}), max_size=8))
def test_the_order_of_state_rows_does_not_matter(rows):
    shuffled = random.Random(1).sample(rows, len(rows))
    assert digest_state(rows) == digest_state(shuffled)


@given(st.lists(st.binary(min_size=1, max_size=9), max_size=8))
def test_the_order_of_a_map_buffers_entries_does_not_matter(entries):
    shuffled = random.Random(1).sample(entries, len(entries))
    assert canonical_state({"buf": percentile_buffer(entries)}) == canonical_state({"buf": percentile_buffer(shuffled)})


@given(st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=8))
def test_a_map_buffer_with_one_entry_less_differs(entries):
    assert canonical_state(percentile_buffer(entries)) != canonical_state(percentile_buffer(entries[1:]))


@given(st.binary(max_size=60))
def test_bytes_that_are_no_map_buffer_are_taken_as_they_are(data):
    entries = buffer_entries(data)
    assert entries is None or percentile_buffer([entry[4:] for entry in entries]) == data


def test_a_changed_value_an_added_row_and_another_partition_differ():
    row = {"partition_id": 0, "key": {"k": 1}, "value": {"n": 2}}
    seen = {
        digest_state([row]),
        digest_state([{**row, "value": {"n": 3}}]),
        digest_state([{**row, "partition_id": 1}]),
        digest_state([row, row]),
        digest_state([]),
    }
    assert len(seen) == 5


def test_the_difference_names_the_store_and_both_digests():
    left, right = StateDigest(7, 1, {"0/default": "d1:1:a"}), StateDigest(7, 1, {"0/default": "d1:1:b"})
    assert describe_difference(left, left) is None
    said = describe_difference(left, right)
    assert said is not None
    assert all(part in said for part in ("0/default", "batch 7", "d1:1:a", "d1:1:b"))
