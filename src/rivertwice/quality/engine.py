"""Great Expectations itself: a suite loaded completely or not at all, and its results on a frame of pandas or of Spark.

The library is imported when the first suite is loaded (seconds), with its logger at WARNING.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rivertwice.errors import SuiteError

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

SQL_ONLY = frozenset({
    "unexpected_rows_expectation", "expect_query_results_to_match_comparison", "expect_table_row_count_to_equal_other_table",
})  # fmt: skip
"""Expectations that ask an SQL database; there is none here."""

_PLACE = "rivertwice_place"


def warm_up_beside() -> None:
    """Begin to import Great Expectations in a thread, so that its seconds pass while Spark works.

    PySpark and Great Expectations both import IPython where it is installed, PySpark at the first column that is named. Two threads
    that import it at one time end in a deadlock (seen on a busy machine), so it is there before the thread begins.
    """
    for name in ("IPython", "ipykernel"):
        with suppress(ImportError):
            importlib.import_module(name)
    threading.Thread(target=_great_expectations, daemon=True).start()


def known_types() -> list[str]:
    """Return the types of all expectations that can be judged here."""
    _great_expectations()
    from great_expectations.expectations.registry import list_registered_expectation_implementations

    return sorted(set(list_registered_expectation_implementations()) - SQL_ONLY)


def arguments_of(kind: str) -> list[str]:
    """Return the names of the arguments that an expectation takes."""
    _great_expectations()
    from great_expectations.expectations.registry import get_expectation_impl

    own = {
        "id",
        "meta",
        "notes",
        "description",
        "catch_exceptions",
        "rendered_content",
        "severity",
        "windows",
        "batch_id",
        "result_format",
    }
    return sorted(set(get_expectation_impl(kind).__fields__) - own)


def find_mistakes(kind: str, kwargs: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what an expectation of a known type refuses in its arguments: (argument, why); the argument is empty if it is all of them."""
    _great_expectations()
    from great_expectations.expectations.registry import get_expectation_impl

    try:
        get_expectation_impl(kind)(**kwargs)
    except Exception as error:  # pydantic's own, and plain TypeErrors and ValueErrors
        listed = getattr(error, "errors", None)
        if listed is None:
            return [("", str(error))]
        return [
            (".".join(str(each) for each in item["loc"] if each != "__root__"), str(item["msg"])) for item in listed()
        ]
    return []


def load_expectations(name: str, declared: Sequence[Mapping[str, Any]], file: str) -> Any:
    """Return the suite as Great Expectations loaded it. Each of its results names its place in `declared` (`place_of`).

    Args:
        name: of the suite.
        declared: its expectations, as in the file.
        file: name of the file, for messages.

    Raises:
        SuiteError: an expectation was not loaded. Great Expectations 1.24.1 leaves out an expectation whose type it does not
            know, without an error.
    """
    gx = _great_expectations()
    try:
        suite = gx.ExpectationSuite(name=name, expectations=[_placed(entry, at) for at, entry in enumerate(declared)])
    except Exception as error:  # the library raises its own, pydantic's and plain TypeErrors here
        message = f"suite {file} is not accepted by Great Expectations ({error}); correct the named expectation"
        raise SuiteError(message) from error
    loaded = [expectation.expectation_type for expectation in suite.expectations]
    if len(loaded) != len(declared):
        lost = sorted({str(entry["type"]) for entry in declared} - set(loaded)) or [
            "two expectations that are the same"
        ]
        message = (
            f"suite {file} declares {len(declared)} expectations but {len(loaded)} were loaded: {', '.join(lost)} is "
            "missing, so it would check nothing; correct the type's spelling"
        )
        raise SuiteError(message)
    return suite


def place_of(result: Any) -> int:
    """Return which of the declared expectations a result is about: those that could not be judged come first."""
    return int(result.expectation_config.meta[_PLACE])


def _placed(entry: Mapping[str, Any], at: int) -> dict[str, Any]:
    return {**entry, "meta": {**(entry.get("meta") or {}), _PLACE: at}}


def judge_pandas(
    suite: Any,
    frame: pd.DataFrame,
    parameters: Mapping[str, Any] | None = None,
    *,
    index: Sequence[str] = (),
    most: int = 20,
    whole: bool = False,
) -> list[Any]:
    """Return Great Expectations' results on a frame in memory, one for each expectation.

    Args:
        suite: as `load_expectations` returned it.
        frame: the rows.
        parameters: values for `$PARAMETER`.
        index: columns that name a row; with them a result names unexpected rows.
        most: so many unexpected values and rows are listed.
        whole: all unexpected rows are named, which takes seconds for tens of thousands.
    """
    context = _context()
    batch = (
        context.data_sources.add_pandas(name="frame")
        .add_dataframe_asset(name=suite.name)
        .add_batch_definition_whole_dataframe("all")
        .get_batch(batch_parameters={"dataframe": frame})
    )
    form = _format("COMPLETE" if whole else "BASIC", index, most)
    done = batch.validate(context.suites.add(suite), result_format=form, expectation_parameters=dict(parameters or {}))
    return list(done.results)


def judge_spark(suite: Any, frame: DataFrame, *, index: Sequence[str], most: int) -> list[Any]:
    """Return Great Expectations' results on a frame of Spark, which names at most `most` unexpected rows."""
    context = _context()
    batch = (
        context.data_sources.add_spark(
            name="frame", persist=False
        )  # by default it keeps the frame and never releases it
        .add_dataframe_asset(name=suite.name)
        .add_batch_definition_whole_dataframe("all")
        .get_batch(batch_parameters={"dataframe": frame})
    )
    return list(batch.validate(context.suites.add(suite), result_format=_format("SUMMARY", index, most)).results)


def severity_of(result: Any) -> str:
    """Return the severity of the expectation that a result is about."""
    severity = result.expectation_config.severity
    return str(getattr(severity, "value", severity))


def exception_of(info: Any) -> str | None:
    """Return the message of an engine error; the library keeps it flat or under one key per metric."""
    if not isinstance(info, Mapping):
        return None
    if "raised_exception" in info:
        return str(info.get("exception_message")) if info["raised_exception"] else None
    for value in info.values():
        message = exception_of(value)
        if message:
            return message
    return None


def _format(form: str, index: Sequence[str], most: int) -> dict[str, Any]:
    named = {"unexpected_index_column_names": list(index)} if index else {}
    return {"result_format": form, "partial_unexpected_count": most, **named}


def _context() -> Any:
    """Return a context in memory. Its own default makes a folder for a site of documents at each call, and leaves it there."""
    gx = _great_expectations()
    from great_expectations.data_context.types.base import DataContextConfig, InMemoryStoreBackendDefaults

    config = DataContextConfig(store_backend_defaults=InMemoryStoreBackendDefaults(init_temp_docs_sites=False))
    context = gx.get_context(mode="ephemeral", project_config=config)
    context.variables.progress_bars = {"globally": False}
    return context


def _great_expectations() -> Any:
    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    import great_expectations as gx

    return gx
