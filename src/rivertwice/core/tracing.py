"""Spans of OpenTelemetry, where somebody collects them: `OTEL_EXPORTER_OTLP_ENDPOINT` is set and the SDK is installed.

A batch of a stream, each phase of a reconcile, and the steps of a backfill are spans. Without an endpoint nothing is imported and
nothing costs. All other settings are the SDK's own variables (`OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER`, ...). A `TRACEPARENT` in the
environment is the parent, so that a job is a part of what started it.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from rivertwice.core.errors import ConfigError
from rivertwice.core.extras import naming_extras

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

P = ParamSpec("P")
R = TypeVar("R")
Attributes = Mapping[str, str | int | float | bool]
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
PREFIX = "rivertwice."
FLUSH_S = 3.0
"""Seconds that the end of a process waits for a collector that does not answer."""
_log = logging.getLogger(__name__)


def traced(
    name: str, attributes: Callable[..., Attributes], result: Callable[[Any], Attributes] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make each call of a function a span `rivertwice.NAME`; one that raises is marked as failed, with the exception.

    Args:
        attributes: of the call; gets its arguments.
        result: further attributes, of what was returned.
    """

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            tracer = _tracer()
            if tracer is None:
                return function(*args, **kwargs)
            with tracer.start_as_current_span(
                PREFIX + name, context=_parent(), attributes=_named(attributes(*args, **kwargs))
            ) as span:
                returned = function(*args, **kwargs)
                if result is not None:
                    span.set_attributes(_named(result(returned)))
                return returned

        return called

    return wrap


def record_span(name: str, seconds: float, **attributes: str | int | float | bool) -> None:
    """Record a span that ends now and took this number of seconds."""
    tracer = _tracer()
    if tracer is None:
        return
    end = time.time_ns()
    span = tracer.start_span(
        PREFIX + name, context=_parent(), attributes=_named(attributes), start_time=end - int(seconds * 1e9)
    )
    span.end(end)


def flush() -> None:
    """Send what is not sent yet: before a process ends without Python's own end."""
    if _is_wanted() and (provider := _provider()) is not None:
        # The SDK waits as long as its exporter tries again, whatever limit it is given.
        sending = threading.Thread(target=provider.force_flush, daemon=True)
        sending.start()
        sending.join(FLUSH_S)


def _is_wanted() -> bool:
    return any(os.environ.get(name) for name in ENDPOINTS) and os.environ.get("OTEL_SDK_DISABLED", "").lower() != "true"


def _tracer() -> Tracer | None:
    if not _is_wanted():
        return None
    provider = _provider()
    return None if provider is None else provider.get_tracer("rivertwice")


@functools.cache
def _provider() -> TracerProvider | None:
    """Return what sends spans, one for a process; None without the SDK."""
    try:
        with naming_extras():
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import SERVICE_NAME, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except (ConfigError, ImportError) as error:
        _log.warning("OTEL_EXPORTER_OTLP_ENDPOINT is set, and no spans are sent: %s, or unset it", error)
        return None
    own = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: "rivertwice"}
    provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
    atexit.register(flush)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _parent() -> Context | None:
    """Return the context of what started this process, if this process has no open span; None: the current one."""
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    parent = os.environ.get("TRACEPARENT")
    if not parent or get_current_span().get_span_context().is_valid:
        return None
    return TraceContextTextMapPropagator().extract({"traceparent": parent})


def _named(attributes: Attributes) -> dict[str, str | int | float | bool]:
    return {PREFIX + name: value for name, value in attributes.items()}
