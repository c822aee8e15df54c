"""What a registration changes, decided from lists: files, columns, snapshots that go."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivertwice.core.errors import ConfigError
from rivertwice.deliver.registered import columns_of, find_change, first_kept, select_dropped, select_expired

NAMES = st.sets(st.sampled_from([f"f{number}" for number in range(12)]))


@given(named=NAMES, live=NAMES)
def test_a_change_leads_from_what_is_named_to_what_is_live_and_says_no_file_twice(
    named: set[str], live: set[str]
) -> None:
    change = find_change(named, live)
    assert (named - set(change.removed)) | set(change.added) == live
    assert set(change.removed) <= named
    assert not set(change.added) & named
    assert len(change.added) + len(change.removed) == len(named ^ live)


def test_columns_have_types_of_iceberg_at_every_depth_and_may_be_null() -> None:
    found = columns_of(
        pa.schema(
            [
                pa.field("small", pa.int8(), nullable=False),
                pa.field("text", pa.large_string()),
                pa.field("at", pa.timestamp("ms", "Europe/Berlin")),
                pa.field("tags", pa.large_list(pa.field("item", pa.string_view(), nullable=False))),
                pa.field("counts", pa.map_(pa.string(), pa.struct([pa.field("n", pa.int16())]))),
            ]
        )
    )
    assert all(field.nullable for field in found)
    assert found.field("small").type == pa.int32()
    assert found.field("text").type == pa.string()
    assert found.field("at").type == pa.timestamp("us", "UTC")
    assert found.field("tags").type == pa.list_(pa.field("element", pa.string()))
    assert found.field("counts").type == pa.map_(pa.string(), pa.struct([pa.field("n", pa.int32())]))


def test_a_type_that_iceberg_lacks_is_named_with_its_column() -> None:
    with pytest.raises(ConfigError, match=r"column gap has type duration\[s\], which no Iceberg column is made for"):
        columns_of(pa.schema([("gap", pa.duration("s"))]))


@pytest.mark.parametrize(
    ("before", "after", "goes"),
    [
        (pa.int32(), pa.int64(), False),
        (pa.float32(), pa.float64(), False),
        (pa.decimal128(9, 2), pa.decimal128(12, 2), False),
        (pa.decimal128(9, 2), pa.decimal128(9, 3), True),
        (pa.int64(), pa.int32(), True),
        (pa.int64(), pa.string(), True),
        (pa.string(), pa.string(), False),
    ],
)
def test_a_column_goes_if_its_values_cannot_be_read_as_the_new_type(
    before: pa.DataType, after: pa.DataType, goes: bool
) -> None:
    held, wanted = pa.schema([("a", before), ("b", pa.string())]), pa.schema([("a", after), ("b", pa.string())])
    assert select_dropped(held, wanted) == (["a"] if goes else [])
    assert select_dropped(held, pa.schema([("a", before)])) == ["b"]


def snapshots(*pairs: tuple[int, int | None]) -> list[Any]:
    return [
        SimpleNamespace(snapshot_id=number, parent_snapshot_id=parent, timestamp_ms=1000 * number)
        for number, parent in pairs
    ]


def test_old_snapshots_go_but_not_the_current_one_nor_those_with_a_tag() -> None:
    refs = {"main": SimpleNamespace(snapshot_id=4), "month-end": SimpleNamespace(snapshot_id=1)}
    metadata: Any = SimpleNamespace(refs=refs, snapshots=snapshots((1, None), (2, 1), (3, 2), (4, 3)))
    assert select_expired(metadata, datetime.fromtimestamp(3, UTC)) == [2]
    assert select_expired(metadata, datetime.fromtimestamp(99, UTC)) == [2, 3]
    assert select_expired(metadata, None) == [2, 3]


@given(st.data())
def test_what_an_expired_snapshot_has_and_no_first_kept_one_no_kept_one_has(data: st.DataObject) -> None:
    """Snapshots are a tree: each keeps some manifests of its parent, and adds its own."""
    tree = snapshots(*((number, data.draw(st.sampled_from([None, *range(1, number)]))) for number in range(1, 9)))
    manifests: dict[int, set[int]] = {}
    for each in tree:
        inherited = manifests.get(each.parent_snapshot_id or 0, set())
        kept = {one for one in inherited if data.draw(st.booleans())}
        manifests[each.snapshot_id] = kept | {each.snapshot_id}
    # expired ones are those of before some instant, as a registrar expires them
    expired = set(range(1, data.draw(st.integers(1, 8))))
    used = {one for each in first_kept(tree, expired) for one in manifests[each.snapshot_id]}
    gone = {one for number in expired for one in manifests[number]} - used
    assert not any(gone & manifests[each.snapshot_id] for each in tree if each.snapshot_id not in expired)
