"""The suites of the judgement itself over its small frames: JSON in `expectations/`, loaded completely or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rivertwice.config import Settings
from rivertwice.errors import SuiteError
from rivertwice.quality.engine import exception_of, judge_pandas, load_expectations, severity_of
from rivertwice.quality.engine import warm_up_beside as warm_up_beside
from rivertwice.reconcile.gate import CRITICAL, WARNING, GateAlert, SuiteOutcome

if TYPE_CHECKING:
    import pandas as pd

_SEVERITIES = (CRITICAL, WARNING, "info")


def suite_folder(settings: Settings) -> Path:
    """Return the folder of the suites: the project's own, as a whole, if it has any of them; else that of rivertwice.

    A project that has one and lacks the other fails: a check that is gone must not look like one that passed. Folders in it are of
    pipelines (`quality.suite_files`), and no suites of the judgement.
    """
    own = settings.project / "expectations"
    return own if any(own.glob("*.json")) else settings.shipped("expectations/verdicts.json").parent


def load_suite(folder: Path, name: str) -> Any:
    """Return the suite `folder/name.json` as Great Expectations loaded it.

    Raises:
        SuiteError: the file is missing or damaged, or an expectation in it was not loaded. Great Expectations 1.24.1
            leaves out an expectation whose type it does not know, without an error.
    """
    path = folder / f"{name}.json"
    try:
        document = json.loads(path.read_text())
        declared, title = document["expectations"], document["name"]
        severities = {entry["severity"] for entry in declared}
        _ = [str(entry["type"]) for entry in declared]
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"suite {path.name} cannot be read ({error!r}), so it gates nothing; correct the file"
        raise SuiteError(message) from error
    if not declared or not severities <= set(_SEVERITIES):
        message = f"suite {path.name} declares {len(declared)} expectations with severities {sorted(severities)}; declare at least one, each critical, warning or info"
        raise SuiteError(message)
    return load_expectations(title, declared, path.name)


def run_suite(
    folder: Path, name: str, frame: pd.DataFrame, parameters: Mapping[str, Any] | None = None
) -> SuiteOutcome:
    """Judge a frame by a suite in an ephemeral context; failed and errored expectations are kept apart."""
    suite = load_suite(folder, name)
    results = judge_pandas(suite, frame, parameters)
    failed: list[GateAlert] = []
    errored: list[GateAlert] = []
    for expectation in results:
        if expectation.success:
            continue
        what = _described(expectation)
        trouble = exception_of(expectation.exception_info)
        if trouble:
            errored.append(GateAlert(CRITICAL, "suite_errored", f"{name}: {what} could not be judged: {trouble}"))
        else:
            repeats = str((expectation.expectation_config.meta or {}).get("repeats", ""))
            failed.append(GateAlert(severity_of(expectation), "suite", f"{name}: {what}", repeats=repeats))
    missing = len(suite.expectations) - len(results)
    if missing:
        errored.append(GateAlert(CRITICAL, "suite_errored", f"{name}: {missing} expectations gave no result"))
    passed = len(results) - len(failed) - len(errored)
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
