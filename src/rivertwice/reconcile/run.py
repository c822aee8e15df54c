"""One reconcile from end to end: look, observe, re-derive, judge, gate, store, seal.

A run that passes ends with a seal (`reconcile.seals`). The next run starts there: it judges the windows that were not settled,
and settled ones that changed. With nothing new, no log is read and no Spark job runs.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rivertwice.core import PipelineHome, Progress, Settings, SuiteError, TimeRange, absence_of, to_ms, traced
from rivertwice.engine import with_confs
from rivertwice.log import name_parts
from rivertwice.quality import (
    exception_of,
    judge_pandas,
    load_expectations,
    require_judges,
    severity_of,
    warm_up_beside,
)
from rivertwice.reconcile.acknowledgements import read_acknowledgements, reasons_of, select_acknowledged
from rivertwice.reconcile.frames import balance_frame, verdict_frame
from rivertwice.reconcile.gaps import FORKED
from rivertwice.reconcile.gate import (
    CRITICAL,
    WARNING,
    Gate,
    GateAlert,
    GateInput,
    SuiteOutcome,
    decide_gate,
    warn_of_foreign,
)
from rivertwice.reconcile.judge_head import judge_head
from rivertwice.reconcile.judged import JudgedHead, Totals, add_up, count_presence
from rivertwice.reconcile.model import OLDER, DefectFinding, RowId, RowVerdict
from rivertwice.reconcile.observe import confs_of, observe_head
from rivertwice.reconcile.recorded import dead_causes, finding_causes, row_causes, touched_causes
from rivertwice.reconcile.report import Phases, QualityCheck, ReconcileReport, check_windows
from rivertwice.reconcile.results import (
    Stamp,
    StoredVerdict,
    newest_reconcile,
    reconcile_runs,
    store_run,
    stored_verdicts,
)
from rivertwice.reconcile.seals.look import (
    FULL,
    INCREMENT,
    UNCHANGED,
    ChangesSinceSeal,
    Decision,
    NotIncrementalError,
    decide_mode,
    find_foreign,
    look_at_changes,
    require_files,
)
from rivertwice.reconcile.seals.model import read_seals, store_seal
from rivertwice.reconcile.seals.observe import observe_part
from rivertwice.reconcile.seals.settle import (
    check_seals,
    check_served_total,
    make_seal,
    read_settled_rows,
    why_not_sealed,
)
from rivertwice.reconcile.seals.touched import SettledRows, TouchedRows, judge_touched
from rivertwice.reconcile.unchanged import keep_as_sealed, new_run_name
from rivertwice.reconcile.view import HeadView
from rivertwice.timeline import Range, read_newest_dead

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession


# The suites of the judgement itself over its small frames: JSON in `expectations/`, loaded completely or not at all.

_SEVERITIES = (CRITICAL, WARNING, "info")


def suite_folder(settings: Settings) -> Path:
    """Return the folder of the suites: the project's own, as a whole, if it has any of them; else that of rivertwice.

    A project that has one and lacks the other fails: a check that is gone must not look like one that passed. Folders in it are of
    pipelines (`quality.suite_files`), and no suites of the judgement.
    """
    own = settings.project / "expectations"
    return own if any(own.glob("*.json")) else settings.shipped("expectations/verdicts.json").parent


def load_suite(folder: Path, name: str) -> Any:
    """Return the suite `folder/name.json` as Great Expectations loaded it.

    Raises:
        SuiteError: the file is missing or damaged, or an expectation in it was not loaded. Great Expectations 1.24.1
            leaves out an expectation whose type it does not know, without an error.
    """
    path = folder / f"{name}.json"
    try:
        document = json.loads(path.read_text())
        declared, title = document["expectations"], document["name"]
        severities = {entry["severity"] for entry in declared}
        _ = [str(entry["type"]) for entry in declared]
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"suite {path.name} cannot be read ({error!r}), so it gates nothing; correct the file"
        raise SuiteError(message) from error
    if not declared or not severities <= set(_SEVERITIES):
        message = f"suite {path.name} declares {len(declared)} expectations with severities {sorted(severities)}; declare at least one, each critical, warning or info"
        raise SuiteError(message)
    return load_expectations(title, declared, path.name)


def run_suite(
    folder: Path, name: str, frame: pd.DataFrame, parameters: Mapping[str, Any] | None = None
) -> SuiteOutcome:
    """Judge a frame by a suite in an ephemeral context; failed and errored expectations are kept apart."""
    suite = load_suite(folder, name)
    results = judge_pandas(suite, frame, parameters)
    failed: list[GateAlert] = []
    errored: list[GateAlert] = []
    for expectation in results:
        if expectation.success:
            continue
        what = _described(expectation)
        trouble = exception_of(expectation.exception_info)
        if trouble:
            errored.append(GateAlert(CRITICAL, "suite_errored", f"{name}: {what} could not be judged: {trouble}"))
        else:
            repeats = str((expectation.expectation_config.meta or {}).get("repeats", ""))
            failed.append(GateAlert(severity_of(expectation), "suite", f"{name}: {what}", repeats=repeats))
    missing = len(suite.expectations) - len(results)
    if missing:
        errored.append(GateAlert(CRITICAL, "suite_errored", f"{name}: {missing} expectations gave no result"))
    passed = len(results) - len(failed) - len(errored)
    return SuiteOutcome(name, len(suite.expectations), max(0, passed), tuple(failed), tuple(errored))


def _described(result: Any) -> str:
    config = result.expectation_config
    note = (config.meta or {}).get("because") or config.type
    column = config.kwargs.get("column")
    unexpected = (result.result or {}).get("unexpected_count")
    observed = (result.result or {}).get("observed_value")
    observation = (
        f"{unexpected} rows do not"
        if unexpected
        else f"observed {observed}"
        if observed is not None
        else "it does not hold"
    )
    return f"{note} [{config.type}{f' on {column}' if column else ''}: {observation}]"


_log = logging.getLogger(__name__)
WHOLE_RUN = "whole_run"
"""In a stored gate: the number of a run that read what is kept decoded of the archive."""


@traced(
    "reconcile",
    lambda _spark, _settings, pipeline, **_: {"pipeline": pipeline},
    lambda report: {"run": report.stamp.run, "passed": report.gate.passed},
)
def reconcile(
    spark: SparkSession,
    settings: Settings,
    pipeline: str,
    *,
    range: TimeRange | None = None,  # noqa: A002 (the word of every request)
    full: bool = False,
    now: datetime,
    progress: Progress = print,
    run: str | None = None,
) -> ReconcileReport:
    """Compare what the stream emitted and what is served with the log, and store the verdicts.

    Without a seal, with `full` or for a `range`, the whole log of the head's path is read and re-derived: a watermark depends on
    every batch before it. `range` limits which windows are judged (by their start).

    Args:
        spark: a session with the Kafka connector.
        range: windows to judge; None judges all.
        full: judge everything, and compare it with the seals.
        progress: gets one line per phase.
        run: name of the run; the same name stores its rows only once.

    Raises:
        SuiteError: a suite needs Great Expectations, which is not installed; nothing was computed.
    """
    if absence_of("great_expectations"):
        for name in ("verdicts", "balance"):
            load_suite(suite_folder(settings), name)
        require_judges(settings, pipeline, "windows")
    phases = Phases(progress)
    home = settings.pipeline(pipeline)
    look = look_at_changes(home)
    decision = decide_mode(look, full=full, has_range=range is not None)
    if decision.mode != FULL:
        require_files(home)
    phases.done("look", decision.reason)
    if decision.mode == UNCHANGED:
        return keep_as_sealed(settings, home, look, decision, now=now, run=run, phases=phases)
    warm_up_beside()
    view, why = _observe(home, settings, look, decision)
    seal = None if view.prefix is None else look.seal
    phases.done("observe", f"{len(view.rows)} batches up to {view.last.timeline}/{view.last.batch}")
    wanted = None if range is None else (to_ms(range.start), to_ms(range.end))
    whole_run = None if view.prefix is not None else _number_of(home, view)
    with with_confs(spark, confs_of(view)):
        judged = judge_head(spark, settings, view, phases.done, wanted, whole_run)
    why = "; ".join([why, *judged.decoded])
    settled, touched = _judge_touched(home, look, view, judged)
    verdicts = [*judged.verdicts, *touched.verdicts]
    if range is not None:
        verdicts = [verdict for verdict in verdicts if _inside(verdict.row, range)]
    findings = list(judged.findings)
    findings += check_seals(view, read_seals(home)) if seal is None else check_served_total(view, seal)
    totals = add_up(view, judged, verdicts, seal, settled, touched)
    dirty = judged.dirty
    judged_rows = sum(sum(by.values()) for by in totals.counts.values())
    phases.done("judge", f"{judged_rows} verdicts, {dirty} windows with differing digests")
    gate = _decide(home, settings, view, judged, verdicts, findings, totals, now)
    gate = warn_of_foreign(gate, None if range is not None else find_foreign(look.tables), newest_reconcile(home))
    phases.done("gate", f"{'passed' if gate.passed else 'failed'} with {len(gate.alerts)} alerts")
    stamp = _stamp(view, run, now)
    proved = gate  # what a seal says: rows that are exact stay so, however bad their data are
    quality = _judge_quality(settings, view, spark, wanted, stamp, phases)
    gate = gate if quality is None else gate.with_alerts(quality.alerts)
    increment = None if seal is None or view.prefix is None else view.prefix.scope.increment(seal.run)
    own = [verdict for verdict in judged.verdicts if range is None or _inside(verdict.row, range)]
    causes = [*row_causes(own, judged.evidence, judged.served), *touched_causes(touched.verdicts, touched.late)]
    causes += [*dead_causes(view, judged.dead), *finding_causes(findings)]
    stored = [*stored_verdicts(verdicts), *_remaining(touched)]
    stored += judged.sieved.stored()
    unsealed = "a range was asked for" if range is not None else why_not_sealed(judged, view, proved, totals)
    if not unsealed and quality is not None and not quality.is_judged:
        unsealed = "the suite of the pipeline judged nothing"
    summary = _summary(totals, gate, findings, why, phases.seconds, whole_run)
    is_own = store_run(home, stamp, stored, causes, summary, increment, partial(judged.sieved.write, home, stamp))
    judged.sieved.release()
    if not is_own:
        unsealed = "an earlier attempt of its name stored rows, which stay"
    if not unsealed and not store_seal(home, make_seal(stamp, view, judged, verdicts, totals, look), look.forgotten):
        unsealed = "rows were erased while it ran"
    phases.done("store", f"run {stamp.run}{f'; no seal: {unsealed}' if unsealed else ', sealed'}")
    _log.info("reconcile %s of %s: %s", stamp.run, pipeline, totals.counts)
    return ReconcileReport(
        stamp,
        verdicts,
        totals.counts,
        totals.total,
        totals.partitions,
        judged.late,
        findings,
        gate,
        dirty,
        dict(phases.seconds),
        increment,
        sealed=not unsealed,
        why=why,
    )


def _number_of(home: PipelineHome, view: HeadView) -> int | None:
    """Return the number of a whole run among those that may read what is kept decoded of the archive; None: nothing is kept."""
    if not any(source.keep_decoded for source in view.newest.definition.sources.values()):
        return None
    counted = (run["gate"].get(WHOLE_RUN) for run in reconcile_runs(home))
    return 1 + max((number for number in counted if number is not None), default=-1)


def _observe(
    home: PipelineHome, settings: Settings, look: ChangesSinceSeal, decision: Decision
) -> tuple[HeadView, str]:
    """Return what the run looks at, and why it is that much."""
    definitions = settings.definition_folder(home.root.name).parent
    if decision.mode != INCREMENT:
        return observe_head(home, definitions), decision.reason
    try:
        return observe_part(home, look, definitions), decision.reason
    except NotIncrementalError as error:
        return observe_head(home, definitions), str(error)


def _judge_touched(
    home: PipelineHome, look: ChangesSinceSeal, view: HeadView, judged: JudgedHead
) -> tuple[SettledRows | None, TouchedRows]:
    """Return what is known of settled windows that changed, and the verdicts of their rows that late records came for."""
    if view.prefix is None or look.seal is None:
        return None, TouchedRows()
    settled = read_settled_rows(home, look, view, look.seal, sorted(judged.touched), view.prefix.scope.ranges)
    return settled, judge_touched(judged.touched, settled)


def _remaining(touched: TouchedRows) -> list[StoredVerdict]:
    """Return what is stored again of the agreeing rows of windows that late records came for."""
    return [
        StoredVerdict(
            stored["pair"],
            to_ms(stored["window_start"]),
            to_ms(stored["window_end"]),
            None,
            stored["verdict"],
            stored["reason"],
            rows=rows,
        )
        for stored, rows in touched.remaining
    ]


def _decide(
    home: PipelineHome,
    settings: Settings,
    view: HeadView,
    judged: JudgedHead,
    verdicts: Sequence[RowVerdict],
    findings: Sequence[DefectFinding],
    totals: Totals,
    now: datetime,
) -> Gate:
    definition = view.newest.definition
    alert_share = definition.late.alert_share
    folder = suite_folder(settings)
    frame = balance_frame(totals.total, totals.partitions)
    outcomes = [
        run_suite(folder, "verdicts", verdict_frame(verdicts, judged.sieved.rows)),
        run_suite(folder, "balance", frame, {"alert_share": alert_share}),
    ]
    doubts = (doubt.reason for doubt in judged.derived.doubts.doubts if not doubt.reason.startswith(FORKED))  # findings
    gaps = list(dict.fromkeys([*doubts, *judged.evidence.doubts.filled.values()]))
    reasons = reasons_of((verdict.pair, verdict.verdict, verdict.presence, verdict.reason) for verdict in verdicts)
    return decide_gate(
        GateInput(
            totals.counts,
            totals.total,
            totals.partitions,
            alert_share,
            findings,
            outcomes,
            gaps,
            count_presence(verdicts, OLDER),
            definition.compare,
            select_acknowledged(read_acknowledgements(home), view.last.timeline, reasons, now),
            read_newest_dead(home, definition).describe(definition.alerts.dead_share),
        )
    )


def _judge_quality(
    settings: Settings, view: HeadView, spark: SparkSession, wanted: Range | None, stamp: Stamp, phases: Phases
) -> QualityCheck | None:
    """Judge the served rows of the windows in scope by the user's suite; None if there is none."""
    if wanted is not None:
        ranges: Sequence[Range] | None = (wanted,)
    else:
        ranges = None if view.prefix is None else view.prefix.scope.cover
    check = check_windows(
        settings, view.home, view.newest.definition, lambda: spark, ranges, stamp.run, stamp.created_at
    )
    if check is not None:
        phases.done("quality", check.described)
    return check


def _stamp(view: HeadView, run: str | None, now: datetime) -> Stamp:
    return Stamp(
        run=run or new_run_name(now),
        pipeline=view.home.root.name,
        created_at=now,
        timeline=view.last.timeline,
        batch=view.last.batch,
        bundle=view.last.bundle,
        sequence=view.sequence,
        as_of=view.last.end_offsets,
    )


def _inside(row: RowId, wanted: TimeRange) -> bool:
    return to_ms(wanted.start) <= row.start_ms < to_ms(wanted.end)


def _summary(
    totals: Totals,
    gate: Gate,
    findings: Sequence[DefectFinding],
    why: str,
    phases: Mapping[str, float],
    whole_run: int | None,
) -> dict[str, object]:
    partitions = totals.partitions
    named = {name: partitions[part].to_json() for part, name in name_parts(partitions).items()}
    return {
        "counts": totals.counts,
        "balance": {"total": totals.total.to_json(), "partitions": named},
        "late_by_partition": {name: account["late_share"] for name, account in named.items()},
        "gate": {
            **gate.to_json(),
            "findings": [finding.message for finding in findings],
            "phases": dict(phases),
            "reason": why,
            **({} if whole_run is None else {WHOLE_RUN: whole_run}),
        },
        "duration_s": sum(phases.values()),
    }
