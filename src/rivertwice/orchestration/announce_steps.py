"""Tasks that tell other DAGs what is served: an event per passed reconcile and per publication, and one per reconciled day.

Airflow stores a task's events when the task has succeeded, so a task that is tried again gives them once. What was announced is in
Airflow's own store of the asset: it is about what Airflow's DAGs have seen, and another Airflow begins with the first day.
"""

from __future__ import annotations

import logging
from typing import Any

from airflow.sdk import Asset, get_current_context
from airflow.sdk.exceptions import AirflowSkipException

from rivertwice.config import PipelineHome, Settings
from rivertwice.config.versions import base_of
from rivertwice.orchestration.assets import reconciled_asset, served_asset
from rivertwice.orchestration.reconciled_days import Announced, DaysToAnnounce, range_text, select_days
from rivertwice.orchestration.refusals import refusals

log = logging.getLogger(__name__)

STORED = "announced"


def announce_reconcile(pipeline: str, passed: dict[str, Any]) -> dict[str, Any]:
    """Give the event of `served.PIPELINE` that a reconcile passed.

    Args:
        pipeline: its name, or that of a version.
        passed: what the task `gate` returned.
    """
    settings = Settings.from_env()
    _skip_unless_serving(settings.pipeline(pipeline), pipeline)
    said = {"reconcile": passed["run"], "counts": passed["counts"]}
    _outlet(served_asset(pipeline)).extra = {"kind": "reconciled", **said}
    return said


def announce_publication(pipeline: str, sequence: int) -> dict[str, Any]:
    """Give the event of `served.PIPELINE` that a backfill was published: its entry of the sequence, and the windows that it covers."""
    from rivertwice.instants import iso_of_ms
    from rivertwice.timeline.sequence import read_sequence
    from rivertwice.timeline.served import publications_of

    home = Settings.from_env().pipeline(pipeline)
    _skip_unless_serving(home, pipeline)
    publication = next(each for each in publications_of(read_sequence(home)) if each.seq == sequence)
    ranges = [{"from": iso_of_ms(start), "to": iso_of_ms(end)} for start, end in publication.ranges]
    said = {"backfill": publication.backfill, "sequence": sequence, "ranges": ranges, "rows": publication.rows}
    _outlet(served_asset(pipeline)).extra = {"kind": "published", **said}
    return said


def announce_days(pipeline: str, passed: dict[str, Any]) -> list[str]:
    """Give an event of `reconciled.PIPELINE` for each day that was reconciled since the last time; return them.

    A run that is tried again announces what it announced before: the days are stored with its name.
    """
    settings, context = Settings.from_env(), get_current_context()
    asset = reconciled_asset(pipeline)
    store: Any = context["asset_state_store"][asset]
    run = context["dag_run"].run_id
    stored: dict[str, Any] = store.get(STORED) or {}
    if stored.get("run") == run:
        keys, spanned = stored["keys"], stored["range"]
    else:
        with refusals():
            days = find_days(settings.pipeline(pipeline), pipeline, passed["run"], _known(stored))
        keys, spanned = days.keys, range_text((*days.new, *days.again))
        store.set(STORED, {"run": run, "keys": keys, "range": spanned, "after": days.after.plain()})
    if not keys:
        message = f"no day of {pipeline} was reconciled since the last time, and none of those that were has changed"
        raise AirflowSkipException(message)
    event = _outlet(asset)
    event.extra = {"reconcile": passed["run"], "range": spanned, "counts": passed["counts"], "days": len(keys)}
    event.add_partitions(keys)
    log.info("announced %s days of %s: %s", len(keys), pipeline, ", ".join(keys))
    return list(keys)


def find_days(home: PipelineHome, pipeline: str, run: str, announced: Announced) -> DaysToAnnounce:
    """Return the days that a passed reconcile announces.

    Args:
        home: of the pipeline, or of a version.
        pipeline: its name.
        run: name of the reconcile.
        announced: what was announced so far.

    Raises:
        AirflowSkipException: another version serves, or the rows are final at once, so that no day is ever complete.
    """
    from rivertwice.pipeline.bundle import load_bundle_definition
    from rivertwice.reconcile.results import reconcile_runs
    from rivertwice.timeline.ledger import read_ledger
    from rivertwice.timeline.lineage import load_timeline
    from rivertwice.timeline.sequence import read_sequence
    from rivertwice.timeline.served import publications_of

    _skip_unless_serving(home, pipeline)
    judged = next(each for each in reconcile_runs(home) if each["run"] == run)
    line = load_timeline(home, judged["timeline"])
    window = load_bundle_definition(home.bundles, line.bundle).window
    if window.last_end_ms(0) is None:
        message = f"rows of {pipeline} have no watermark that says when a day is complete; wait for {served_asset(pipeline).name}"
        raise AirflowSkipException(message)
    place = (judged["timeline"], judged["batch"])
    batch = next(row for row in read_ledger(home, judged["batch"]) if (row.timeline, row.batch) == place)
    is_first = announced.until is None or announced.version != pipeline
    return select_days(
        announced,
        version=pipeline,
        sequence=judged["sequence"],
        first_ms=_first_served(home, window.start_column) if is_first else None,
        closed_ms=window.closed_ms(batch.batch_watermark_ms),
        last_end_ms=lambda before_ms: window.last_end_ms(before_ms) or 0,
        first_open_ms=_first_open(home, run),
        publications=publications_of(read_sequence(home)),
    )


def _known(stored: dict[str, Any]) -> Announced:
    return Announced(**stored["after"]) if "after" in stored else Announced()


def _first_served(home: PipelineHome, start_column: str) -> int | None:
    from rivertwice.store import delta
    from rivertwice.timeline.serving import to_epoch_ms

    rows = delta.read(home.public_served, columns=[start_column])
    return None if rows is None or rows.num_rows == 0 else int(to_epoch_ms(rows[start_column]).min())


def _first_open(home: PipelineHome, run: str) -> int | None:
    """Return the start of the earliest window that the judging run called open (epoch ms)."""
    from rivertwice.instants import to_ms
    from rivertwice.store import delta
    from rivertwice.timeline.judgements import run_chain
    from rivertwice.verdicts import OPEN

    judging = next(
        name for name, increment in run_chain(home, run) if increment is None or increment.settled_ms is not None
    )
    rows = delta.read(home.tables.verdicts, columns=["run", "verdict", "window_start"], only=("run", judging))
    starts = [] if rows is None else [row["window_start"] for row in rows.to_pylist() if row["verdict"] == OPEN]
    return min(map(to_ms, starts), default=None)


def _skip_unless_serving(home: PipelineHome, pipeline: str) -> None:
    from rivertwice.timeline.served_stamp import serving_by_stamp

    serving = serving_by_stamp(home)
    if serving != pipeline:
        message = f"{serving} serves {base_of(pipeline)}, so what {pipeline} has is announced to nobody"
        raise AirflowSkipException(message)


def _outlet(asset: Asset) -> Any:
    return get_current_context()["outlet_events"][asset]
