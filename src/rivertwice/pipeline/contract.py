"""What a definition promises and depends on, with the definition's own numbers. Pure."""

from __future__ import annotations

from rivertwice.pipeline.durations import format_duration
from rivertwice.pipeline.model import Definition


def contract_of(definition: Definition) -> dict[str, str]:
    """Return what a pipeline promises and depends on, as the terms of a contract."""
    limits = definition.alerts
    compared = "reconciled against a recompute, every differing row with a named cause"
    return {
        "guarantee": definition.window.kind.guarantee(),
        "boundary": _boundary(definition),
        "idempotence": "one commit per batch, known by (timeline, batch) and its offset range",
        "window": definition.window.kind.contract_text(definition.window),
        **_waiting(definition),
        "emit": definition.emit,
        "comparison": compared if definition.compare else "none (compare: false)",
        "recovery": "from the checkpoint; if it is damaged, from the newest proved savepoint; no batch is lost or published twice",
        "backpressure": f"at most {definition.stream.max_offsets_per_trigger} records a batch; the rest waits in Kafka",
        "monitors": f"backpressure {format_duration(limits.backpressure)}, savepoint {format_duration(limits.savepoint_age)}, "
        f"lag {limits.lag or 'no limit'}, latency {format_duration(limits.latency) if limits.latency else 'no limit'}",
        "backend": f"RocksDB, changelog checkpoints, {definition.stream.shuffle_partitions} partitions",
    }


def _waiting(definition: Definition) -> dict[str, str]:
    if not definition.window.kind.has_watermark:
        return {"watermark": "none: rows are final when they are emitted", "lateness": "no event is late"}
    return {
        "watermark": _watermark_text(definition),
        "lateness": f"{definition.late.policy}; alert above a share of {definition.late.alert_share:g}",
    }


def _boundary(definition: Definition) -> str:
    """Return the boundary of the guarantee, and the promise of each sink beyond it."""
    tables = "from the Kafka log's offsets to the Delta tables"
    if not definition.deliver:
        return f"{tables}; nothing is promised beyond the tables"
    sinks = [f"{name} ({sink.place}): {sink.guarantee}" for name, sink in sorted(definition.deliver.items())]
    return f"{tables}; beyond them, per sink: {'; '.join(sinks)}"


def _watermark_text(definition: Definition) -> str:
    delays = [format_duration(source.watermark) for source in definition.streams.values()]
    if len(delays) == 1:
        return f"{delays[0]} behind the largest event time; it rises between batches"
    each = ", ".join(f"{view} {delay}" for view, delay in zip(definition.streams, delays, strict=True))
    which = "slowest" if definition.watermark_policy == "min" else "fastest"
    return (
        f"each source has its own, behind its largest event time ({each}); the {which} counts; it rises between batches"
    )
