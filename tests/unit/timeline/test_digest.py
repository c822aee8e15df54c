from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_a_type_without_canonical_form_is_refused():
    with pytest.raises(TypeError, match="no canonical form"):
        canonical_value([1])
