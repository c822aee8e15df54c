"""Publishing: one row of the sequence makes many closed windows serve a backfill's corrections."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from rivertwice.backfill.audit import read_audit
from rivertwice.backfill.model import BackfillPlan, PlannedSession, TopicOffsets
from rivertwice.backfill.ranges import HalfOpenRange, intersect
from rivertwice.backfill.session_observe import spans_of
from rivertwice.core import (
    AuditError,
    FingerprintError,
    LostRaceError,
    PipelineHome,
    RequestError,
    Settings,
    iso_of_ms,
    retry,
    traced,
    utc_now,
)
from rivertwice.definition import load_bundle_definition
from rivertwice.timeline import (
    Entry,
    Publication,
    Timeline,
    key_digest,
    newest_batch,
    path_of,
    publications_of,
    publish,
    read_corrections,
    read_sequence,
    select_head,
)

logger = logging.getLogger(__name__)
ATTEMPTS = 20


@traced("backfill.publish", lambda _settings, plan: {"pipeline": plan.pipeline, "backfill": plan.id})
def publish_backfill(settings: Settings, plan: BackfillPlan) -> Entry:
    """Publish an audited backfill in one exclusive commit.

    1. Read the sequence. 2. Stop if the backfill is published already. 3. Check that the plan still holds: audited,
    the head's semantics are the plan's, its windows are closed on the head's path, and no publication has newer
    records. 4. Append the publication after the last entry that was read; a lost race begins again at 1. After a crash
    before 4 nothing is visible; after a crash later, a second call returns the same entry.

    Raises:
        AuditError: no passed audit is stored.
        FingerprintError: the head's semantics are no longer the plan's.
        RequestError: the windows are not closed on the head's path, or a newer publication covers some of them.
        LostRaceError: the sequence moved at every attempt.
    """
    home = settings.pipeline(plan.pipeline)

    def publish_once() -> Entry:
        # Step 1.
        entries = read_sequence(home)
        # Step 2.
        published = publications_of(entries)
        own_seqs = [entry.seq for entry in published if entry.backfill == plan.id]
        if own_seqs:
            return next(entry for entry in entries if entry.seq == own_seqs[0])
        # Step 3.
        rows = _audited_rows(home, plan)
        refusal = find_refusal(home, plan, entries)
        if refusal is not None:
            raise refusal
        # Step 4.
        last_seq = entries[-1].seq if entries else 0
        publication = Publication(
            seq=last_seq + 1,
            backfill=plan.id,
            ranges=plan.ranges,
            semantics=plan.semantics,
            bundle=plan.bundle,
            as_of=plan.as_of,
            amendments=plan.amendments,
            sessions=plan.sessions is not None,
            rows=rows,
        )
        payload = publication.to_payload()
        entry = publish(home, payload, expected_seq=last_seq, now=utc_now())
        logger.info("backfill %s of %s is published as %s", plan.id, plan.pipeline, entry.seq)
        return entry

    def say(error: BaseException) -> None:
        logger.info("backfill %s lost a race: %s", plan.id, error)

    publishing = retry(LostRaceError, tries=ATTEMPTS, first_wait_s=0.02, longest_wait_s=0.4, spread=True, say=say)
    try:
        return publishing(publish_once)
    except LostRaceError as error:
        message = (
            f"backfill {plan.id} lost {ATTEMPTS} races for the sequence of {plan.pipeline}, the last one with: {error}; "
            "nothing was published; publish it again when fewer writers are at work"
        )
        raise LostRaceError(message) from error


def find_refusal(
    home: PipelineHome, plan: BackfillPlan, entries: list[Entry]
) -> FingerprintError | RequestError | None:
    """Return why a plan cannot be published now, as `publish_backfill` raises it; None: it can.

    Args:
        plan: a plan that is not published.
        entries: the whole sequence.
    """
    published = publications_of(entries)
    try:
        _check_head(home, plan, entries)
        if plan.sessions is None:
            check_not_older(plan, published)
        else:
            _check_sessions_not_older(home, plan, published)
    except (FingerprintError, RequestError) as error:
        return error
    return None


def check_not_older(plan: BackfillPlan, published: list[Publication]) -> None:
    """Refuse a publication that would take records away from a window.

    Two backfills of the same windows may finish in another order than they were planned. The one that read less of the
    log must not replace the other because it finished later.

    Raises:
        RequestError: a publication of the same semantics covers some windows and read more of the log.
    """
    for entry in _that_read_more(plan, published):
        _refuse_as_older(plan, entry.backfill, intersect(entry.ranges, plan.ranges))


def check_sessions_not_older(plan: BackfillPlan, published_sessions: Iterable[tuple[str, PlannedSession]]) -> None:
    """Refuse a publication that would take records away from a session.

    Args:
        published_sessions: backfill and session of each publication that read more.

    Raises:
        RequestError: one of them overlaps a session of the plan, of the same key.
    """
    assert plan.sessions is not None, "only plans of sessions come here"
    by_key: dict[str, list[PlannedSession]] = {}
    for session in plan.sessions.ordered:
        by_key.setdefault(session.key, []).append(session)
    for backfill, published_session in published_sessions:
        for session in by_key.get(published_session.key, ()):
            if session.start_us < published_session.end_us and published_session.start_us < session.end_us:
                _refuse_as_older(
                    plan, backfill, [(published_session.start_us // 1000, -(-published_session.end_us // 1000))]
                )


def _check_sessions_not_older(home: PipelineHome, plan: BackfillPlan, published: Sequence[Publication]) -> None:
    corrections = read_corrections(home, _that_read_more(plan, published))
    if corrections is not None:
        definition = load_bundle_definition(home.bundles, plan.bundle)
        spans = spans_of(corrections, definition)
        published_sessions = ((span.backfill or "", PlannedSession(key_digest(span.key), *span[1:4])) for span in spans)
        check_sessions_not_older(plan, published_sessions)


def _that_read_more(plan: BackfillPlan, published: Iterable[Publication]) -> list[Publication]:
    """Return the publications of the plan's semantics that touch its ranges and read more of the log or of the amendments."""
    return [
        entry
        for entry in published
        if entry.semantics == plan.semantics
        and (_read_more(entry.as_of, plan.as_of) or entry.amendments > plan.amendments)
        and intersect(entry.ranges, plan.ranges)
    ]


def _refuse_as_older(plan: BackfillPlan, backfill: str, shared: Sequence[HalfOpenRange]) -> None:
    message = (
        f"backfill {plan.id} read less of the log, or of the amendments, than {backfill}, which is published and covers "
        f"[{iso_of_ms(shared[0][0])}, {iso_of_ms(shared[-1][1])}) too; publishing it would lose records: plan again"
    )
    raise RequestError(message)


def _read_more(published: TopicOffsets, planned: TopicOffsets) -> bool:
    return any(
        offset > planned.get(topic, {}).get(partition, 0)
        for topic, parts in published.items()
        for partition, offset in parts.items()
    )


def _audited_rows(home: PipelineHome, plan: BackfillPlan) -> int:
    """Return how many rows a passed audit found.

    Raises:
        AuditError: no passed audit is stored.
    """
    audit = read_audit(home, plan.id)
    if audit is None or not audit["passed"]:
        state = "has no finished audit" if audit is None else "failed its audit"
        message = f"backfill {plan.id} {state}, so it is not published; " + (
            "run its compute and audit first"
            if audit is None
            else f"`rivertwice backfill run {plan.pipeline} --id {plan.id}` audits it again and says why"
        )
        raise AuditError(message)
    return int(audit["rows"])


def _check_head(home: PipelineHome, plan: BackfillPlan, entries: list[Entry]) -> None:
    head = select_head(entries)
    line = None if head is None else Timeline.load(home, head)
    last = None if head is None else newest_batch(home, path_of(home, head))
    check_head(plan, line, 0 if last is None else last.batch_watermark_ms)


def check_head(plan: BackfillPlan, line: Timeline | None, closed_ms: int) -> None:
    """Refuse a publication that the head would not serve.

    Args:
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
            f"backfill {plan.id} covers windows until {iso_of_ms(plan.last_end_ms)}, but the path of head {line.timeline} has closed "
            f"windows only until {iso_of_ms(closed_ms)}: the head was moved back; wait until it has caught up, or plan again"
        )
        raise RequestError(message)
