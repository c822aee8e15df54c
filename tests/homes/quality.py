"""Suites of a test's project, and served rows of hours that they judge."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from homes.backfill import emitted
from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.storage.table import Table

HOUR = 3_600_000


def expect(kind: str, severity: str = "critical", because: str = "", **kwargs: Any) -> dict[str, Any]:
    """Return an expectation as a suite has it."""
    meta = {"meta": {"because": because}} if because else {}
    return {"type": kind, "severity": severity, "kwargs": kwargs, **meta}


def between(severity: str = "critical", column: str = "n", **bounds: Any) -> dict[str, Any]:
    """Return the expectation that a column's values lie between bounds."""
    return expect("expect_column_values_to_be_between", severity, column=column, **bounds)


def write_suite(settings: Settings, subject: str, *expectations: Mapping[str, Any], pipeline: str = "p") -> Path:
    """Write the suite of a pipeline into a project."""
    path = settings.project / "expectations" / pipeline / f"{subject}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"name": f"{pipeline} {subject}", "expectations": list(expectations)}))
    return path


def serve(home: PipelineHome, *rows: tuple[int, str, int]) -> None:
    """Let rows (hour, key, n) be all that is served."""
    Table(home.tables.served).overwrite(emitted("t1", 0, *rows))
