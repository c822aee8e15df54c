"""A collector gets the batches of a stream, the phases of a reconcile and the steps of a backfill, of commands as a user runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rivertwice.local.broker import BrokerInfo
from running.warm_spark import run_command_warm, run_driver_warm
from servers.otlp import attributes, collecting
from streams.keyed import NAME, keyed_backlog, make_keyed_project, send

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
PHASES = ("look", "observe", "re-derive", "judge", "gate", "store")
MORNING = ("--from", "2026-01-01T01:00Z", "--to", "2026-01-01T05:00Z")


def test_a_stream_its_reconcile_and_its_backfill_are_spans(
    tmp_path: Path, broker: BrokerInfo, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_keyed_project(tmp_path, broker.bootstrap, topic, max_offsets_per_trigger=200, shuffle_partitions=1)
    send(settings, topic, keyed_backlog(3, 400, days=1))
    with collecting(monkeypatch) as collector:
        run_driver_warm(settings, NAME, tmp_path / "driver.log")
        run_command_warm(settings, "reconcile", NAME)
        done = run_command_warm(settings, "backfill", "run", NAME, *MORNING, "--yes")
        reconciled = collector.named("rivertwice.reconcile")
        batches = [attributes(span) for span in collector.spans if span.name == "rivertwice.batch"]
        assert len(batches) > 1
        assert {each["rivertwice.pipeline"] for each in batches} == {NAME}
        assert sum(each["rivertwice.read"] for each in batches) == 400
        phases = {span.name: span for span in collector.spans if span.name.startswith("rivertwice.reconcile.")}
        assert {f"rivertwice.reconcile.{phase}" for phase in PHASES} <= set(phases)
        assert {span.parent_span_id for span in phases.values()} == {reconciled.span_id}
        for step in ("compute", "audit", "publish"):
            assert attributes(collector.named(f"rivertwice.backfill.{step}"))["rivertwice.backfill"] == done["backfill"]
