"""Great Expectations itself: a suite loaded completely or not at all, and its results on a frame of pandas or of Spark.

The library is imported when the first suite is loaded, with its logger at WARNING, and without what the judging of rows does not need
(`_LATER`, `_LEFT_OUT`): half of the seconds that its import takes. Where it is not installed, `rivertwice.quality.checks` judges the
suites that need no more than that.
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rivertwice.core import SuiteError, absence_of
from rivertwice.quality.checks import CheckSuite, load_checks

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

SQL_ONLY = frozenset({
    "unexpected_rows_expectation", "expect_query_results_to_match_comparison", "expect_table_row_count_to_equal_other_table",
})  # fmt: skip
"""Expectations that ask an SQL database; there is none here."""

_PLACE = "rivertwice_place"
_LATER = ("altair", "scipy", "scipy.stats")
"""Modules that Great Expectations imports and uses for few expectations, or for pictures: each is loaded when it is first used."""
_LEFT_OUT = frozenset({"boto3", "botocore", "pyspark.ml", "pyspark.sql.connect", "sqlalchemy"})
"""Modules without which Great Expectations can be installed. For its import they count as absent, unless they are loaded already."""
_SPARK_NAMES = {
    "Bucketizer": ("pyspark.ml.feature", "Bucketizer"),
    "ConnectDataFrame": ("pyspark.sql.connect.dataframe", "DataFrame"),
    "SparkConnectSession": ("pyspark.sql.connect.session", "SparkSession"),
}
"""What Great Expectations would have taken from PySpark's modules among them, by the names that it gives it."""
_LOCK = threading.Lock()


def warm_up_beside() -> None:
    """Begin to import Great Expectations in a thread, so that its seconds pass while Spark works.

    PySpark imports IPython where it is installed, at the first column that is named. Two threads that import it at one time end in a
    deadlock (seen on a busy machine). Of what Great Expectations imports only altair would import it, and that is in `_LATER`.
    """
    if not absence_of("great_expectations"):
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
        declared: its expectations, as in the file.
        file: name of the file, for messages.

    Raises:
        SuiteError: an expectation was not loaded. Great Expectations 1.24.1 leaves out an expectation whose type it does not
            know, without an error. Without that library: one of them needs it.
    """
    if absence_of("great_expectations"):
        return load_checks(name, [_placed(entry, at) for at, entry in enumerate(declared)], file)
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
        parameters: values for `$PARAMETER`.
        index: columns that name a row; with them a result names unexpected rows.
        most: maximum number of unexpected values and rows that are listed.
        whole: all unexpected rows are named, which takes seconds for tens of thousands.
    """
    if isinstance(suite, CheckSuite):
        return list(suite.judge(frame, parameters or {}, index, most, whole=whole))
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
    _complete_spark()
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


def _format(form: str, index: Sequence[str], most: int) -> dict[str, str | int | list[str]]:
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
    with _LOCK, _spared():
        import great_expectations as gx

    return gx


@contextmanager
def _spared() -> Iterator[None]:
    """For the block, which imports Great Expectations, let modules of `_LATER` have stand-ins, and those of `_LEFT_OUT` be absent."""
    if "great_expectations" in sys.modules:
        yield
        return
    stand_ins = {name: _StandIn(name) for name in _LATER if name not in sys.modules}
    for name, stand_in in stand_ins.items():
        parent, _, own = name.rpartition(".")
        if parent in stand_ins:
            setattr(stand_ins[parent], own, stand_in)
    finder = _Absent()
    sys.modules.update(stand_ins)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for stand_in in stand_ins.values():
            stand_in.leave()


class _StandIn(ModuleType):
    """Stands for a module while Great Expectations is imported, and stays in its modules: its first use imports the real one."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._thread = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        if name == "__path__" and threading.get_ident() == self._thread and sys.modules.get(self.__name__) is self:
            raise AttributeError(name)  # so `from scipy import stats` takes what is there
        self.leave()
        return getattr(importlib.import_module(self.__name__), name)

    def leave(self) -> None:
        """Make room for the real module."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]


class _Absent(MetaPathFinder):
    """Finds no module of `_LEFT_OUT` for the thread that made it; other threads find them, and so do all once it is gone."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname in _LEFT_OUT and threading.get_ident() == self._thread:
            message = f"{fullname} is left out while Great Expectations is imported"
            raise ModuleNotFoundError(message, name=fullname)


def _complete_spark() -> None:
    """Give Great Expectations what it lacks of PySpark: a frame may be of Spark Connect, and a histogram needs a Bucketizer."""
    from great_expectations.compatibility import pyspark as names
    from great_expectations.datasource.fluent import spark_datasource

    for own, (module, name) in _SPARK_NAMES.items():
        with suppress(ImportError):  # Spark Connect has further requirements
            found = getattr(importlib.import_module(module), name)
            for holder in (names, spark_datasource):
                if hasattr(holder, own):
                    setattr(holder, own, found)
