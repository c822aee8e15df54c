"""Publishing: one row of the sequence makes many closed windows serve a backfill's corrections."""

from __future__ import annotations

import logging
import random
import time

from rivertwice.backfill.audit import read_audit
from rivertwice.backfill.intervals import intersect
from rivertwice.backfill.model import BackfillPlan, Offsets
from rivertwice.config import PipelineHome, Settings
from rivertwice.errors import AuditError, FingerprintError, LostRaceError, RequestError
from rivertwice.instants import from_ms, to_iso, utc_now
from rivertwice.timeline.ledger import read_ledger
from rivertwice.timeline.lineage import Timeline, load_timeline, path_of, select_on_path
from rivertwice.timeline.sequence import Entry, publish, read_sequence, select_head
from rivertwice.timeline.served import publications_of
from rivertwice.timeline.serving import Publication

logger = logging.getLogger(__name__)
ATTEMPTS = 20


def publish_backfill(settings: Settings, plan: BackfillPlan) -> Entry:
    """Publish an audited backfill in one exclusive commit.

    1. Read the sequence. 2. Stop if the backfill is published already. 3. Check that the plan still holds: audited,
    the head's semantics are the plan's, its windows are closed on the head's path, and nobody published newer
    records. 4. Append the publication after the entry seen; a lost race begins again at 1. A crash before 4 leaves
    nothing visible; after it, a second call returns the same entry.

    Raises:
        AuditError: no passed audit is stored.
        FingerprintError: the head's semantics are no longer the plan's.
        RequestError: the windows are not closed on the head's path, or a newer publication covers some of them.
        LostRaceError: the sequence moved at every attempt.
    """
    home = settings.pipeline(plan.pipeline)
    for attempt in range(1, ATTEMPTS + 1):
        # Step 1.
        entries = read_sequence(home)
        # Step 2.
        published = publications_of(entries)
        mine = [entry.seq for entry in published if entry.backfill == plan.id]
        if mine:
            return next(entry for entry in entries if entry.seq == mine[0])
        # Step 3.
        _check_audited(home, plan)
        _check_head(home, plan, entries)
        check_not_older(plan, published)
        # Step 4.
        seen = entries[-1].seq if entries else 0
        entry_of = Publication(seen + 1, plan.id, plan.ranges, plan.semantics, plan.bundle, plan.as_of, plan.amendments)
        payload = entry_of.to_payload()
        try:
            entry = publish(home, payload, expected_seq=seen, now=utc_now())
        except LostRaceError as error:
            logger.info("backfill %s: attempt %s lost a race: %s", plan.id, attempt, error)
            time.sleep(random.uniform(0.0, 0.02 * attempt))  # noqa: S311 (spreads writers, no secret)
            continue
        logger.info("backfill %s of %s is published as %s", plan.id, plan.pipeline, entry.seq)
        return entry
    message = (
        f"backfill {plan.id} lost {ATTEMPTS} races for the sequence of {plan.pipeline}; nothing was published; "
        "publish it again when fewer writers are at work"
    )
    raise LostRaceError(message)


def check_not_older(plan: BackfillPlan, published: list[Publication]) -> None:
    """Refuse a publication that would take records away from a window.

    Two backfills of the same windows may finish in another order than they were planned; the one that read less of
    the log must not win by being late.

    Raises:
        RequestError: a publication of the same semantics covers some windows and read more of the log.
    """
    for entry in published:
        shared = intersect(entry.ranges, plan.ranges)
        knew_more = _read_more(entry.as_of, plan.as_of) or entry.amendments > plan.amendments
        if shared and entry.semantics == plan.semantics and knew_more:
            message = (
                f"backfill {plan.id} read less of the log, or of the amendments, than {entry.backfill}, which is published and covers "
                f"[{_iso(shared[0][0])}, {_iso(shared[-1][1])}) too; publishing it would lose records: plan again"
            )
            raise RequestError(message)


def _read_more(theirs: Offsets, ours: Offsets) -> bool:
    return any(
        offset > ours.get(topic, {}).get(partition, 0)
        for topic, parts in theirs.items()
        for partition, offset in parts.items()
    )


def _check_audited(home: PipelineHome, plan: BackfillPlan) -> None:
    audit = read_audit(home, plan.id)
    if audit is None or not audit["passed"]:
        found = "has no finished audit" if audit is None else "failed its audit"
        message = f"backfill {plan.id} {found}, so it is not published; " + (
            "run its compute and audit first" if audit is None else "plan the same windows again: it starts afresh"
        )
        raise AuditError(message)


def _check_head(home: PipelineHome, plan: BackfillPlan, entries: list[Entry]) -> None:
    head = select_head(entries)
    line = None if head is None else load_timeline(home, head)
    ledger = [] if head is None else select_on_path(read_ledger(home), path_of(home, head))
    check_head(plan, line, ledger[-1].batch_watermark_ms if ledger else 0)


def check_head(plan: BackfillPlan, line: Timeline | None, closed_ms: int) -> None:
    """Refuse a publication that the head would not serve.

    Args:
        plan: what is to be published.
        line: the head timeline; None before the first start.
        closed_ms: watermark of the last committed batch on its path.

    Raises:
        FingerprintError: the head's semantics are not the plan's.
        RequestError: a window of the plan is not closed on the head's path.
    """
    if line is None or line.fingerprint["semantics"] != plan.semantics:
        now = (
            "no head"
            if line is None
            else f"the head {line.timeline} with semantics {line.fingerprint['semantics'][:12]}"
        )
        message = (
            f"backfill {plan.id} was computed with semantics {plan.semantics[:12]}, but {plan.pipeline} has {now}: "
            "what it published would not be served; plan again"
        )
        raise FingerprintError(message)
    if plan.last_end_ms > closed_ms:
        message = (
            f"backfill {plan.id} covers windows until {_iso(plan.last_end_ms)}, but the path of head {line.timeline} has closed "
            f"windows only until {_iso(closed_ms)}: the head was moved back; wait until it has caught up, or plan again"
        )
        raise RequestError(message)


def _iso(epoch_ms: int) -> str:
    return to_iso(from_ms(epoch_ms))
