"""Windows computed again, audited, published; the first load."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rivertwice.backfill.audit import AuditReport, audit_backfill, read_audit
    from rivertwice.backfill.compute import compute_backfill
    from rivertwice.backfill.late_queue import QueuedWindow, describe_queue
    from rivertwice.backfill.load import (
        LoadedPiece,
        begin_load,
        continue_load,
        look_at_log,
        publish_load,
        require_first_start,
    )
    from rivertwice.backfill.load_plan import LoadPlan, explain_load, find_unloaded, refuse_load
    from rivertwice.backfill.load_state import LoadProgress, find_unfinished_load, has_closed, hold_load
    from rivertwice.backfill.model import BackfillPlan, BackfillRequest, BackfillView, OffsetRuns
    from rivertwice.backfill.observe import observe_backfill, observe_late_queue, stale_ranges
    from rivertwice.backfill.plan import explain_plan, plan_backfill
    from rivertwice.backfill.prepare import find_nothing_stale, make_plan, plan_if_needed
    from rivertwice.backfill.publish import find_refusal, publish_backfill
    from rivertwice.backfill.ranges import HalfOpenRange, coalesce, intersect, merge, subtract
    from rivertwice.backfill.recompute import Recompute, RetainedLog, of_keys
    from rivertwice.backfill.session_plan import BackfillScope
    from rivertwice.backfill.store import (
        BACKFILL_KEY,
        backfill_app,
        backfill_folder,
        chunk_records,
        list_backfills,
        load_backfill_plan,
        note_planned,
        planned_for,
        save_plan,
    )
    from rivertwice.backfill.stream_load import (
        StreamLoadPlan,
        begin_stream_load,
        explain_stream_load,
        plan_stream_load,
        require_never_started,
    )
    from rivertwice.backfill.stream_unread import StreamLoadProgress, find_unread
else:
    from rivertwice.core.face import lazy_names

    __getattr__ = lazy_names(__name__)
