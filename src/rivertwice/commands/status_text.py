"""What `rivertwice status` prints for people. Pure."""

from __future__ import annotations

from typing import Any

from rivertwice.commands.frame import as_table
from rivertwice.config.versions import base_of


def status_text(view: dict[str, Any]) -> str:
    """Return the services, a table of the streams, and below it what is to be said of each."""
    from rivertwice.supervise.lag_words import lag_text

    lines = [f"home     {view['home']}"]
    for service in ("broker", "agent", "airflow", "engine"):
        service_view = view[service]
        shown = "down" if service_view is None else ", ".join(f"{key} {value}" for key, value in service_view.items())
        lines.append(f"{service:<8} {shown}")
    headers = (
        "pipeline", "wanted", "state", "driver", "epoch", "timeline", "batch", "watermark", "lag", "reconciled", "savepoint",
    )  # fmt: skip
    rows = [
        (
            item["name"],
            item["desired"],
            item["state"],
            (item["driver"] or {}).get("pid"),
            (item["driver"] or {}).get("epoch"),
            item["timeline"],
            item["batch"],
            item["watermark"],
            lag_text(item),
            _reconciled(item["reconcile"]),
            (item["savepoint"] or {}).get("id"),
        )
        for item in view["pipelines"]
    ]
    lines.append(as_table(headers, rows))
    lines += [text for item in view["pipelines"] for text in [*now_texts(item), *unread_texts(item)]]
    lines += [patience for item in view["pipelines"] if (patience := _patience_text(item))]
    lines += [f"{item['name']}: {text}" for item in view["pipelines"] if (text := _quality_text(item["quality"]))]
    lines += [
        f"{item['name']}: catches up by event time: all partitions are read together, next up to {item['placed_until']}"
        for item in view["pipelines"]
        if item["placed_until"]
    ]
    lines += [
        f"{item['name']}: {item[load]['message']}"
        for item in view["pipelines"]
        for load in ("first_load", "stream_load")
        if item[load] and "error" not in item[load]
    ]
    lines += [
        f"{item['name']}: another version serves; `rivertwice version list {base_of(item['name'])}`"
        for item in view["pipelines"]
        if not item["serves"]
    ]
    lines += [text for item in view["pipelines"] for text in version_texts(item)]
    lines += [text for item in view["pipelines"] for text in recovery_texts(item)]
    for item in view["pipelines"]:
        summary = (item["retention"] or {}).get("summary")
        lines += [f"{item['name']}: retention: {summary}"] if summary else []
    return "\n".join(lines)


def now_texts(item: dict[str, Any]) -> list[str]:
    """Return the sentence about a pipeline, and one for each further thing that is wrong. Pure."""
    now = item["now"]
    if now is None:
        return [f"{item['name']}: given up: {item['given_up']}"] if item["given_up"] else []
    return [f"{item['name']}: {now['text']}", *(f"{item['name']}: also: {each['text']}" for each in now["others"])]


def unread_texts(item: dict[str, Any]) -> list[str]:
    """Return why parts of a pipeline cannot be read, each reason once; not what its sentences say already. Pure."""
    views = [value for value in item.values() if isinstance(value, dict) and "error" in value]
    reasons = dict.fromkeys([*filter(None, [item["unread"]]), *(str(view["message"]) for view in views)])
    said = " ".join(now_texts(item))
    return [f"{item['name']}: {reason}" for reason in reasons if reason not in said]


def version_texts(item: dict[str, Any]) -> list[str]:
    """Return what a pipeline's versions wait for. Pure."""
    versions = item["versions"]
    if "error" in versions:
        return []
    waiting = [f"{each['name']}: {each['next']['text']}" for each in versions if each["next"]["text"]]
    accepted = [
        f"{each['name']}: its rows could not be compared; {each['accepted']['by']} accepted them at {each['accepted']['at']}: "
        f"{each['accepted']['reason']}"
        for each in versions
        if each["accepted"]
    ]
    return [*waiting, *accepted]


def recovery_texts(item: dict[str, Any]) -> list[str]:
    """Return what people must know of a pipeline's recovery: its objective, and savepoints that wait for their proof. Pure."""
    recovery = item["recovery"]
    if not recovery or "error" in recovery:
        return []
    texts = [
        f"{item['name']}: {each['savepoint']} waits for its proof; the way back is {each['origin'] or 'not there: none was proved before'}"
        for each in recovery["awaiting"]
    ]
    if recovery["objective_s"] is not None:
        state = "over its objective of" if recovery["over"] else "its objective is"
        texts.append(
            f"{item['name']}: a fall-back would take about {recovery['seconds']:.0f} s ({recovery['batches']} batches to replay), "
            f"{state} {recovery['objective_s']:.0f} s"
        )
    return texts


def _patience_text(item: dict[str, Any]) -> str | None:
    """Return when the lag will be gone, or when the agent tries again; None if neither is expected."""
    from rivertwice.supervise.health import UNRESPONSIVE
    from rivertwice.supervise.lag_words import is_lag_fresh, stale_lag_text

    if item["is_backing_off"]:
        return (
            f"{item['name']}: {item['consecutive_failures']} failures in a row, next attempt at {item['next_attempt']}"
        )
    if not is_lag_fresh(item) or item["state"] == UNRESPONSIVE:
        return stale_lag_text(item)
    if not item["lag"] or item["arriving_per_s"] is None:
        return None
    pace = f"{item['arriving_per_s']:.0f} records a second arrive"
    if item["catch_up_s"] is None:
        return f"{item['name']}: {item['lag']} records wait and the lag does not shrink ({pace})"
    return f"{item['name']}: {item['lag']} records wait, gone in about {item['catch_up_s']:.0f} s at this pace ({pace})"


def _quality_text(quality: dict[str, Any] | None) -> str:
    """Return what fails of a pipeline's own suite; empty if nothing does."""
    if quality is None or not quality.get("found"):
        return ""
    counts = ", ".join(f"{count} {severity}" for severity, count in quality["failing"].items() if count)
    return f"data quality: {counts} of {quality['expectations']} expectations fail: {quality['found'][0]['message']}"


def _reconciled(reconcile: dict[str, Any] | None) -> str | None:
    if reconcile is None or "error" in reconcile:
        return None if reconcile is None else str(reconcile["error"])
    counts = reconcile.get("counts")
    stream = counts.get("stream", counts) if isinstance(counts, dict) else {}
    return " ".join(f"{verdict} {count}" for verdict, count in stream.items() if isinstance(count, int) and count)
