"""Pitfall P10, as the lint sees a definition that pins its schemas."""

from __future__ import annotations

from pathlib import Path

from homes.orders import copy_orders, orders
from homes.project import replace_text
from rivertwice.definition.definition import load_definition
from rivertwice.definition.lint import LintLevel, _schema_ids


def test_pinned_schemas_are_safe_and_records_without_an_id_are_not(tmp_path: Path) -> None:
    (found,) = _schema_ids(orders())
    assert (found.state, "1, 2, 3" in found.told) == (LintLevel.HOLDS, True)
    folder = copy_orders(tmp_path)
    for path in folder.glob("schemas/orders-*.avsc"):
        path.unlink()
    replace_text(folder / "pipeline.yaml", "framing: confluent", "framing: none")
    assert [one.state for one in _schema_ids(load_definition(folder))] == [LintLevel.NOT_CHECKED]
