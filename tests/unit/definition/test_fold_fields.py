"""The quick way through a fold's values gives what the plain one gives: the same values, the same texts, the same errors."""

from __future__ import annotations

import decimal
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rivertwice.definition.folds import Fields, FoldValueError, coerce_value

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KINDS = ["string", "boolean", "int", "bigint", "double", "decimal(12,2)", "decimal(38,0)", "decimal(3,3)", "timestamp", "json"]  # fmt: skip


class Level(IntEnum):
    LOW = 3


def plain_json(kind: str, value: Any) -> Any:
    """Return the JSON form of a settled value, as the first release wrote it."""
    if value is None:
        return None
    if kind == "timestamp":
        return (value - EPOCH) // timedelta(microseconds=1)
    if kind == "double":
        return repr(value)
    return str(value) if kind.startswith("decimal") else value


def plain_dump(types: Mapping[str, str], values: Mapping[str, Any]) -> str:
    return json.dumps({name: plain_json(kind, values[name]) for name, kind in types.items()}, separators=(",", ":"))


def plain_settle(types: Mapping[str, str], values: Any) -> dict[str, Any]:
    return {name: coerce_value(name, kind, values.get(name)) for name, kind in types.items()}


def result(act: Callable[[], Any]) -> tuple[str, Any]:
    try:
        return "value", act()
    except FoldValueError as error:
        return "error", str(error)
    except OverflowError as error:
        return "overflow", str(error)


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 3), inner, max_size=3)
    ),
    max_leaves=6,
)
VALUES = st.one_of(
    JSONS,
    st.integers(-(2**65), 2**65),
    st.decimals(),
    st.decimals(-999, 999, places=2),
    st.decimals(-1, 1, places=3),
    st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=2)), None])),
    st.sampled_from([Level.LOW, b"x", {1}, Decimal("-0.00"), Decimal("1E+3"), Decimal("0E-10"), 10**400]),
)


@given(st.sampled_from(KINDS), st.sampled_from(KINDS), VALUES, VALUES)
@example("decimal(12,2)", "string", Decimal("-0.00"), "")
@example("decimal(3,3)", "double", Decimal("1.000"), -0.0)
@example("json", "json", {"b": 1, "a": (1.5, "\u2028\ud800")}, {2: 1, 10: 2})
@example("timestamp", "json", datetime(2024, 1, 1, fold=1, tzinfo=UTC), [float("nan")])
def test_the_quick_way_settles_and_writes_as_the_plain_one(first: str, second: str, left: Any, right: Any) -> None:
    types = {"one": first, 'a "name"': second, "left out": "json"}
    given_values = {'a "name"': right, "one": left}
    fields = Fields(types)
    settled = result(lambda: plain_settle(types, given_values))
    found = result(lambda: fields.settle("state", given_values))
    assert repr(found) == repr(settled)
    if settled[0] == "value":
        text = plain_dump(types, settled[1])
        assert fields.dump(settled[1]) == text
        assert fields.save("state", given_values) == text
        assert repr(fields.load(text)) == repr(settled[1])
    else:
        assert result(lambda: fields.save("state", given_values)) == settled


def test_what_is_no_dict_of_the_declared_names_is_refused() -> None:
    fields = Fields({"a": "int", "b": "json"})
    for act in (fields.settle, fields.save):
        with pytest.raises(FoldValueError, match=r"the row is list, not a dict of a, b; return a dict"):
            act("row", [])
        with pytest.raises(FoldValueError, match=r"the row has 'c', which is not declared; .* use one of a, b"):
            act("row", {"a": 1, "c": 2, "d": 3})


def test_a_text_with_fewer_or_other_names_gives_null_for_the_rest() -> None:
    fields = Fields({"a": "int", "t": "timestamp"})
    assert fields.load('{"t":1,"z":2}') == {"a": None, "t": EPOCH + timedelta(microseconds=1)}
    assert list(fields.load('{"t":1,"a":2}')) == ["a", "t"]


def test_the_users_decimal_context_changes_no_settled_value() -> None:
    with decimal.localcontext() as context:
        context.prec = 2
        context.traps[decimal.InvalidOperation] = False
        assert coerce_value("x", "decimal(12,2)", 123456) == Decimal("123456.00")
        with pytest.raises(FoldValueError, match="does not fit decimal"):
            coerce_value("x", "decimal(3,2)", Decimal("12.34"))
