"""The plain expectations, judged without Great Expectations: those of the platform's own suites, and of the suites that `init` writes.

Each gives what Great Expectations 1.24 gives for it: the same outcome, counts and named rows. `rivertwice.quality.engine` takes these
where that library is not installed; `tests/expectations/test_checks.py` compares the two.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rivertwice.core import SuiteError, absence_of

if TYPE_CHECKING:
    import pandas as pd

_BOUNDS = ("min_value", "max_value")
ARGUMENTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "expect_column_values_to_not_be_null": (("column",), ()),
    "expect_column_values_to_be_between": (("column",), _BOUNDS),
    "expect_column_values_to_be_in_set": (("column", "value_set"), ()),
    "expect_column_values_to_not_be_in_set": (("column", "value_set"), ()),
    "expect_column_values_to_be_unique": (("column",), ()),
    "expect_compound_columns_to_be_unique": (("column_list",), ()),
    "expect_table_row_count_to_be_between": ((), _BOUNDS),
    "expect_table_columns_to_match_set": (("column_set", "exact_match"), ()),
}
"""Expectation to the arguments that it must have, and to those that it may have."""


@dataclass(frozen=True)
class CheckConfig:
    """What was expected, under the names of Great Expectations' `ExpectationConfiguration`."""

    type: str
    kwargs: Mapping[str, Any]
    severity: str
    meta: Mapping[str, Any]

    @property
    def expectation_type(self) -> str:
        """Its type, as the expectations of a suite name it."""
        return self.type


@dataclass(frozen=True)
class CheckResult:
    """What was found, under the names of Great Expectations' `ExpectationValidationResult`."""

    success: bool
    expectation_config: CheckConfig
    result: Mapping[str, Any] = field(default_factory=dict)
    exception_info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckSuite:
    """Expectations that can be judged here."""

    name: str
    expectations: tuple[CheckConfig, ...]

    def judge(
        self, frame: pd.DataFrame, parameters: Mapping[str, Any], index: Sequence[str], most: int, *, whole: bool
    ) -> list[CheckResult]:
        """Return a result for each expectation, those that could not be judged first; arguments as of `engine.judge_pandas`."""
        results = [_judge(config, frame, parameters, index, None if whole else most) for config in self.expectations]
        return sorted(results, key=lambda each: not each.exception_info)


def find_need(kind: str, kwargs: Any) -> str:
    """Return why an expectation cannot be judged here, with the extra that judges it; empty: it can. Pure."""
    must, may = ARGUMENTS.get(kind, ((), ()))
    if kind in ARGUMENTS and isinstance(kwargs, dict) and set(must) <= set(kwargs) <= {*must, *may}:
        has_bound = not may or any(kwargs.get(name) is not None for name in may)
        if has_bound and all(_is_plain(name, value) for name, value in kwargs.items()):
            return ""
    return f"{kind} with {json.dumps(kwargs, default=str)[:200]} is not among the built-in checks: {absence_of('great_expectations')}"


def load_checks(name: str, declared: Sequence[Mapping[str, Any]], file: str) -> CheckSuite:
    """Return a suite.

    Raises:
        SuiteError: an expectation needs Great Expectations, or is there twice.
    """
    needs = [need for entry in declared if (need := find_need(str(entry["type"]), entry.get("kwargs", {})))]
    if needs:
        message = f"suite {file}: {'; '.join(needs)}"
        raise SuiteError(message)
    if len({json.dumps([entry["type"], entry.get("kwargs", {})], sort_keys=True) for entry in declared}) < len(
        declared
    ):
        message = f"suite {file} declares two expectations that are the same; remove one"
        raise SuiteError(message)
    return CheckSuite(
        name,
        tuple(
            CheckConfig(
                entry["type"], entry.get("kwargs", {}), entry.get("severity", "critical"), entry.get("meta") or {}
            )
            for entry in declared
        ),
    )


def _is_plain(argument: str, value: Any) -> bool:
    if argument == "column":
        return isinstance(value, str)
    if argument in _BOUNDS:
        return value is None or _is_number(value) or (isinstance(value, dict) and set(value) == {"$PARAMETER"})
    if argument == "exact_match":
        return value is True
    if argument == "value_set":
        return (
            isinstance(value, list) and bool(value) and all(isinstance(each, str) or _is_number(each) for each in value)
        )
    return isinstance(value, list) and bool(value) and all(isinstance(each, str) for each in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _judge(
    config: CheckConfig, frame: pd.DataFrame, parameters: Mapping[str, Any], index: Sequence[str], most: int | None
) -> CheckResult:
    kwargs = {
        name: parameters[value["$PARAMETER"]] if isinstance(value, dict) else value
        for name, value in config.kwargs.items()
    }
    if config.type == "expect_table_row_count_to_be_between":
        return CheckResult(bool(_inside(len(frame), kwargs)), config, {"observed_value": len(frame)})
    if config.type == "expect_table_columns_to_match_set":
        names = sorted(map(str, frame.columns))
        return CheckResult(names == sorted(set(kwargs["column_set"])), config, {"observed_value": names})
    columns = kwargs.get("column_list") or [kwargs["column"]]
    try:
        absent = [name for name in columns if name not in frame.columns]
        if absent:
            raise KeyError(absent[0])
        unexpected = _ROWS[config.type](frame[columns], kwargs)
    except KeyError as error:
        return _failed(config, f'Error: The column "{error.args[0]}" in BatchData does not exist.')
    except TypeError as error:
        return _failed(config, str(error))
    count = int(unexpected.sum())
    named = [*columns, *(name for name in index if name not in columns)]
    rows = frame.loc[unexpected, named].head(most) if most is not None else frame.loc[unexpected, named]
    listed = rows.to_dict("records") if index else []
    details = {"element_count": len(frame), "unexpected_count": count, "unexpected_index_list": listed}
    return CheckResult(count == 0, config, details)


def _failed(config: CheckConfig, message: str) -> CheckResult:
    return CheckResult(
        success=False,
        expectation_config=config,
        exception_info={"raised_exception": True, "exception_message": message},
    )


def _inside(value: Any, kwargs: Mapping[str, Any]) -> Any:
    """Return whether a number lies between the bounds, or for a column which of its numbers do."""
    low, high = (kwargs.get(name) for name in _BOUNDS)
    inside: Any = True
    if low is not None:
        inside = value >= low
    if high is not None:
        inside = inside & (value <= high)
    return inside


def _not_between(values: pd.DataFrame, kwargs: Mapping[str, Any]) -> pd.Series[bool]:
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    column = values.iloc[:, 0]
    if column.isna().all():
        return column.notna()
    if not is_numeric_dtype(column) or is_bool_dtype(column):
        message = "Column values, min_value, and max_value must either be None or of the same type."
        raise TypeError(message)
    outside: pd.Series[bool] = column.notna() & ~_inside(column, kwargs)
    return outside


def _in_set(values: pd.DataFrame, kwargs: Mapping[str, Any]) -> pd.Series[bool]:
    from pandas.api.types import is_datetime64_any_dtype

    column = values.iloc[:, 0]
    if is_datetime64_any_dtype(column):
        message = f"the column {column.name} has instants: {absence_of('great_expectations')}"
        raise TypeError(message)
    found: pd.Series[bool] = column.isin(kwargs["value_set"])
    return found


def _not_in_set(values: pd.DataFrame, kwargs: Mapping[str, Any]) -> pd.Series[bool]:
    return values.iloc[:, 0].notna() & ~_in_set(values, kwargs)


def _repeated(values: pd.DataFrame, _kwargs: Mapping[str, Any]) -> pd.Series[bool]:
    """Return which rows have the values of another one; rows without any value are left out."""
    return values.duplicated(keep=False) & ~values.isna().all(axis=1)


_ROWS: dict[str, Callable[[pd.DataFrame, Mapping[str, Any]], pd.Series[bool]]] = {
    "expect_column_values_to_not_be_null": lambda values, _: values.iloc[:, 0].isna(),
    "expect_column_values_to_be_between": _not_between,
    "expect_column_values_to_be_in_set": _not_in_set,
    "expect_column_values_to_not_be_in_set": _in_set,
    "expect_column_values_to_be_unique": _repeated,
    "expect_compound_columns_to_be_unique": _repeated,
}
"""Expectation to what says which rows are not as expected."""
