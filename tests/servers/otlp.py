"""A collector of OpenTelemetry's spans: a server that takes OTLP over HTTP, as exporters send it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rivertwice.core import tracing


class Collector:
    """A server that takes what exporters of OpenTelemetry send."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = ExportTraceServiceRequest()
                request.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
                for sent in request.resource_spans:
                    outer.services |= {
                        each.value.string_value for each in sent.resource.attributes if each.key == "service.name"
                    }
                    outer.spans += [span for scope in sent.scope_spans for span in scope.spans]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def named(self, name: str) -> Any:
        tracing.flush()
        (span,) = [span for span in self.spans if span.name == name]
        return span


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


@contextmanager
def collecting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Give a collector to which this process sends its spans meanwhile."""
    made = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
    tracing._provider.cache_clear()
    try:
        yield made
    finally:
        provider = tracing._provider()
        assert provider is not None
        provider.shutdown()
        tracing._provider.cache_clear()
        made.server.shutdown()
        made.server.server_close()
