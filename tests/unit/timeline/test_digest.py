from datetime import UTC, datetime
from decimal import Decimal
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivertwice.timeline import digest
from rivertwice.timeline.digest import canonical_value, digest_rows, digest_values

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.decimals(allow_nan=False, allow_infinity=False, places=3),
    st.datetimes(timezones=st.just(UTC)),
)
ROWS = st.lists(st.tuples(SCALARS, SCALARS), max_size=12)


@given(ROWS, st.randoms(use_true_random=False))
def test_order_of_rows_does_not_matter(rows, random):
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert digest_values(rows) == digest_values(shuffled)


@given(ROWS.filter(bool))
def test_a_row_repeated_changes_the_digest(rows):
    assert digest_values([*rows, rows[0], rows[0]]) != digest_values(rows)


def test_two_equal_rows_do_not_cancel_as_exclusive_or_would():
    assert digest_values([(1,), (1,)]) != digest_values([(2,), (2,)])


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, True), ("1", 1), (None, "n"), (1.0, 1), (b"a", "a"), (("a|", "b"), ("a", "|b")), (0, None)],
)
def test_different_values_have_different_bytes(one, other):
    one, other = [value if isinstance(value, tuple) else (value,) for value in (one, other)]
    assert digest_values([one]) != digest_values([other])


def test_equal_numbers_of_one_type_are_equal():
    assert canonical_value(Decimal("1.50")) == canonical_value(Decimal("1.5"))
    assert canonical_value(0.0) == canonical_value(-0.0)


def test_a_digest_names_its_version_and_count():
    table = pa.table({"t": pa.array([datetime(2013, 6, 30, tzinfo=UTC)], pa.timestamp("us", "UTC")), "n": [3]})
    assert digest_rows(table, ["t", "n"]).startswith("d1:1:")
    assert digest_rows(table, ["n", "t"]) != digest_rows(table, ["t", "n"])


COLUMNS = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.decimal128(20, 3): st.decimals(-(10**9), 10**9, places=3),
    pa.string(): st.text(),
    pa.binary(): st.binary(),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(UTC)),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("s"): st.datetimes().map(lambda at: at.replace(microsecond=0)),
    pa.null(): st.none(),
}


@st.composite
def tables(draw):
    kinds = draw(st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=5))
    count = draw(st.integers(0, 8))
    values = [draw(st.lists(st.one_of(st.none(), COLUMNS[kind]), min_size=count, max_size=count)) for kind in kinds]
    arrays = [pa.array(column, kind) for column, kind in zip(values, kinds, strict=True)]
    return pa.table(arrays, names=[str(number) for number in range(len(arrays))])


@given(tables(), st.integers(1, 4))
def test_a_column_at_a_time_gives_the_digest_of_single_values(table, at_once):
    rows = [tuple(row.values()) for row in table.to_pylist()]
    parts = pa.concat_tables([table.slice(0, at_once), table.slice(at_once)])
    with patch.object(digest, "_AT_ONCE", at_once):
        assert digest_rows(parts, table.column_names) == digest_values(rows)


def test_a_type_without_canonical_form_is_refused():
    with pytest.raises(TypeError, match="no canonical form"):
        canonical_value([1])
