"""Spans reach a collector that speaks OTLP over HTTP; without an endpoint nothing is done, and without the SDK it is said."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pytest

from rivertwice.core import tracing
from rivertwice.core.waits import report_nothing
from rivertwice.reconcile.report import Phases
from servers.otlp import Collector, attributes, collecting


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting(monkeypatch) as made:
        yield made


@tracing.traced("step", lambda pipeline, count: {"pipeline": pipeline, "count": count}, lambda rows: {"rows": rows})
def step(pipeline: str, count: int) -> int:
    if count < 0:
        message = "no such count"
        raise ValueError(message)
    return inner(count)


@tracing.traced("inner", lambda count: {"count": count})
def inner(count: int) -> int:
    return 2 * count


def test_a_call_is_a_span_with_what_it_was_given_and_what_it_gave(collector: Collector) -> None:
    assert step("orders", 3) == 6
    outer, below = collector.named("rivertwice.step"), collector.named("rivertwice.inner")
    assert attributes(outer) == {"rivertwice.pipeline": "orders", "rivertwice.count": 3, "rivertwice.rows": 6}
    assert (below.parent_span_id, below.trace_id) == (outer.span_id, outer.trace_id)
    assert collector.services == {"rivertwice"}


def test_a_call_that_raises_is_a_span_that_failed(collector: Collector) -> None:
    with pytest.raises(ValueError, match="no such count"):
        step("orders", -1)
    failed = collector.named("rivertwice.step")
    assert failed.status.code == 2
    assert "no such count" in failed.status.message
    assert [event.name for event in failed.events] == ["exception"]


def test_a_phase_of_a_reconcile_is_a_span_as_long_as_the_phase(collector: Collector) -> None:
    phases = Phases(report_nothing)
    time.sleep(0.05)
    phases.done("look", "nothing new")
    span = collector.named("rivertwice.reconcile.look")
    assert attributes(span) == {"rivertwice.detail": "nothing new"}
    assert span.end_time_unix_nano - span.start_time_unix_nano == pytest.approx(phases.seconds["look"] * 1e9, rel=0.01)


def test_the_parent_is_that_of_the_environment(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEPARENT", f"00-{'ab' * 16}-{'cd' * 8}-01")
    step("orders", 1)
    assert collector.named("rivertwice.step").trace_id.hex() == "ab" * 16
    assert collector.named("rivertwice.step").parent_span_id.hex() == "cd" * 8
    assert collector.named("rivertwice.inner").parent_span_id == collector.named("rivertwice.step").span_id


@pytest.mark.parametrize("disabled", [False, True])
def test_without_an_endpoint_or_disabled_no_span_is_made(disabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if disabled:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setattr(tracing, "_provider", lambda: pytest.fail("nobody collects spans"))
    assert step("orders", 2) == 4
    tracing.record_span("phase", 1.0)
    tracing.flush()


def test_without_the_sdk_it_is_said_once_and_nothing_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    tracing._provider.cache_clear()
    assert (step("orders", 2), step("orders", 3)) == (4, 6)
    tracing._provider.cache_clear()
    (said,) = [record.getMessage() for record in caplog.records]
    assert "pip install 'rivertwice[otel]'" in said


def test_a_collector_that_is_gone_fails_nothing_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    tracing._provider.cache_clear()
    assert step("orders", 2) == 4
    began = time.monotonic()
    tracing.flush()
    assert time.monotonic() - began < tracing.FLUSH_S + 2
    tracing._provider().shutdown()
    tracing._provider.cache_clear()
