"""Great Expectations over the small difference frames: suites are JSON in `expectations/`, loaded completely or not at all.

Great Expectations is imported when the first suite is loaded (seconds), with its logger at WARNING.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rivertwice.errors import SuiteError
from rivertwice.reconcile.gate import CRITICAL, WARNING, GateAlert, SuiteOutcome

if TYPE_CHECKING:
    import pandas as pd

_SEVERITIES = (CRITICAL, WARNING, "info")


def load_suite(folder: Path, name: str) -> Any:
    """Return the suite `folder/name.json` as Great Expectations loaded it.

    Raises:
        SuiteError: the file is missing or damaged, or an expectation in it was not loaded. Great Expectations 1.24.1
            leaves out an expectation whose type it does not know, without an error.
    """
    path = folder / f"{name}.json"
    try:
        document = json.loads(path.read_text())
        declared = document["expectations"]
        severities = {entry["severity"] for entry in declared}
        kinds = [str(entry["type"]) for entry in declared]
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"suite {path.name} cannot be read ({error!r}), so it gates nothing; correct the file"
        raise SuiteError(message) from error
    if not declared or not severities <= set(_SEVERITIES):
        message = f"suite {path.name} declares {len(declared)} expectations with severities {sorted(severities)}; declare at least one, each critical, warning or info"
        raise SuiteError(message)
    gx = _great_expectations()
    try:
        suite = gx.ExpectationSuite(name=document["name"], expectations=declared)
    except Exception as error:  # the library raises its own, pydantic's and plain TypeErrors here
        message = f"suite {path.name} is not accepted by Great Expectations ({error}); correct the named expectation"
        raise SuiteError(message) from error
    loaded = [expectation.expectation_type for expectation in suite.expectations]
    if len(loaded) != len(declared):
        lost = sorted(set(kinds) - set(loaded)) or ["two expectations that are the same"]
        message = (
            f"suite {path.name} declares {len(declared)} expectations but {len(loaded)} were loaded: {', '.join(lost)} is "
            "missing, so it would check nothing; correct the type's spelling"
        )
        raise SuiteError(message)
    return suite


def run_suite(
    folder: Path, name: str, frame: pd.DataFrame, parameters: Mapping[str, Any] | None = None
) -> SuiteOutcome:
    """Judge a frame by a suite in an ephemeral context; failed and errored expectations are kept apart."""
    gx = _great_expectations()
    suite = load_suite(folder, name)
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    batch = (
        context.data_sources.add_pandas(name="frame")
        .add_dataframe_asset(name=name)
        .add_batch_definition_whole_dataframe("all")
        .get_batch(batch_parameters={"dataframe": frame})
    )
    result = batch.validate(
        context.suites.add(suite), result_format="SUMMARY", expectation_parameters=dict(parameters or {})
    )
    failed: list[GateAlert] = []
    errored: list[GateAlert] = []
    for expectation in result.results:
        if expectation.success:
            continue
        severity = str(
            getattr(expectation.expectation_config.severity, "value", expectation.expectation_config.severity)
        )
        what = _described(expectation)
        trouble = _exception(expectation.exception_info)
        if trouble:
            errored.append(GateAlert(CRITICAL, "suite_errored", f"{name}: {what} could not be judged: {trouble}"))
        else:
            failed.append(GateAlert(severity, "suite", f"{name}: {what}"))
    missing = len(suite.expectations) - len(result.results)
    if missing:
        errored.append(GateAlert(CRITICAL, "suite_errored", f"{name}: {missing} expectations gave no result"))
    passed = len(result.results) - len(failed) - len(errored)
    return SuiteOutcome(name, len(suite.expectations), max(0, passed), tuple(failed), tuple(errored))


def _described(result: Any) -> str:
    config = result.expectation_config
    note = (config.meta or {}).get("because") or config.type
    column = config.kwargs.get("column")
    unexpected = (result.result or {}).get("unexpected_count")
    observed = (result.result or {}).get("observed_value")
    observation = (
        f"{unexpected} rows do not"
        if unexpected
        else f"observed {observed}"
        if observed is not None
        else "it does not hold"
    )
    return f"{note} [{config.type}{f' on {column}' if column else ''}: {observation}]"


def _exception(info: Any) -> str | None:
    """Return the message of an engine error; the library keeps it flat or under one key per metric."""
    if not isinstance(info, Mapping):
        return None
    if "raised_exception" in info:
        return str(info.get("exception_message")) if info["raised_exception"] else None
    for value in info.values():
        message = _exception(value)
        if message:
            return message
    return None


def warm_up() -> None:
    """Import Great Expectations; called from a thread, its seconds pass while Spark works."""
    _great_expectations()


def _great_expectations() -> Any:
    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    import great_expectations as gx

    return gx
