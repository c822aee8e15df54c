"""A definition that changes while a driver starts: what runs is what the ledger names, whichever it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from histories.random_histories import Record
from homes.project import replace_text
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import build_bundle
from rivertwice.definition.definition import load_definition
from rivertwice.local.broker import BrokerInfo
from rivertwice.stream import driver
from rivertwice.timeline.lineage import path_ledger
from running.warm_spark import run_command_warm
from streams.kinds import NAME, check_explained, make_kind_project, run_to_end, send

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def edit_before(settings: Settings, step: str) -> Any:
    """Let a person save another transform right before the driver takes a step."""
    taken = getattr(driver, step)

    def edited(*arguments: Any, **more: Any) -> Any:
        replace_text(settings.definitions / NAME / "transform.sql", "max(v) AS top", "min(v) AS top")
        return taken(*arguments, **more)

    return mock.patch.object(driver, step, edited)


@pytest.mark.proves("guarantees.md#what-everything-needs")
@pytest.mark.parametrize("step", ["acquire_lease", "require_checked", "resolve_timeline"])
def test_rows_are_those_of_the_definition_that_the_ledger_names(
    step: str, tmp_path: Path, broker: BrokerInfo, topic: str
) -> None:
    settings = make_kind_project(tmp_path, broker, topic, "tumbling")
    first = build_bundle(settings.definitions / NAME)
    records = [Record(0, n, "a", 1_000_000 + n, n) for n in range(6)] + [Record(0, 6, "later", 1_009_999, 1)]
    send(settings, load_definition(settings.definitions / NAME), records)
    with edit_before(settings, step):
        run_to_end(settings, tmp_path / "driver.log")
    assert build_bundle(settings.definitions / NAME).id != first.id
    assert {row.bundle for row in path_ledger(settings.pipeline(NAME))} == {first.id}
    run_command_warm(settings, "admin", "rebuild", NAME)
    report = run_command_warm(settings, "reconcile", NAME)
    check_explained(report)
    assert report["counts"]["stream"]["AGREES"] == 1
