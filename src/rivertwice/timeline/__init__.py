"""What happened and what counts: lineage, ledger, sequence, dead letters, `served`, and the result tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rivertwice.timeline.batch_times import BatchTimes
    from rivertwice.timeline.committed import (
        CommittedBatches,
        bundles_of,
        committed_batches,
        every_batch,
        newest_batch,
        newest_batches,
    )
    from rivertwice.timeline.counts import BatchCounts, total_of
    from rivertwice.timeline.dead_cure import amended_rows, problem_with, with_cures
    from rivertwice.timeline.dead_letters import (
        Cure,
        DeadLetter,
        DeadLetterSummary,
        Decision,
        LetterState,
        count_states,
        cure_applies,
        newest_by_address,
        parse_address,
        select_discards,
    )
    from rivertwice.timeline.dead_summary import (
        BRIEF,
        RECENT,
        amend,
        amendments_app,
        dead_share,
        discard,
        fields_of,
        find_letter,
        last_amendment,
        read_amendments,
        read_brief,
        read_cures,
        read_newest_dead,
        select_valid,
        summarise_dead_letters,
        with_bytes,
    )
    from rivertwice.timeline.digest import (
        NO_ROWS,
        add_digests,
        canonical_value,
        digest_rows,
        digest_values,
        key_digest,
        key_text,
        key_texts,
    )
    from rivertwice.timeline.first_load import RECORD, FirstLoad, LogZone, load_place, read_zones, record_load
    from rivertwice.timeline.intact import (
        StreamTable,
        check_committed,
        check_corrections,
        expected_rows,
        find_holes,
        forget_cursor,
        require_rows,
        require_whole_logs,
        stream_tables,
    )
    from rivertwice.timeline.intent import Exit, Heartbeat, Intent, write_intent
    from rivertwice.timeline.judgements import (
        Chain,
        Increment,
        Range,
        causes_of,
        chain_of,
        read_causes,
        read_verdicts,
        rows_of,
        run_chain,
        verdicts_of,
    )
    from rivertwice.timeline.key_view import as_folded, folded_views, read_view
    from rivertwice.timeline.ledger import (
        LEDGER_KEY,
        MOST,
        SIDE_STATISTICS,
        LedgerRow,
        StoredKeys,
        append_ledger,
        by_table,
        commits_missing,
        from_table,
        heal_ledger,
        of_changelog,
        parts_between,
        read_keys,
        read_ledger,
        to_table,
    )
    from rivertwice.timeline.lineage import (
        Fork,
        Segment,
        Timeline,
        create_timeline,
        find_move_off,
        head_definition,
        head_path,
        last_in_common,
        late_watermarks_ms,
        path_ledger,
        path_of,
        path_semantics,
        path_until,
        select_on_path,
    )
    from rivertwice.timeline.requests import StoredRequest
    from rivertwice.timeline.result_kinds import BY_NAME, KINDS, PROVISIONAL, SERVED, Kind, Scope, kind_named
    from rivertwice.timeline.result_rows import ResultTable, Rows, condition_of_key, require_columns
    from rivertwice.timeline.result_status import ServedEnd, Status, served_end, status_of
    from rivertwice.timeline.sequence import (
        Entry,
        EntryKind,
        head,
        last_seq,
        move_head,
        publish,
        read_sequence,
        select_head,
        sequence_app,
    )
    from rivertwice.timeline.served import export_sha256, rebuild_served, serving_lock, wait_served
    from rivertwice.timeline.served_ranges import Ranges, is_inside, joined, merged
    from rivertwice.timeline.served_rows import (
        COLUMNS,
        is_on_path,
        json_lines,
        json_value,
        newest_by,
        newest_rows,
        publications_of,
        read_corrections,
        read_late_rows,
        rows_served_by,
    )
    from rivertwice.timeline.served_stamp import (
        SERVED_KEY,
        ServedStamp,
        follow_stamp,
        mark_of,
        provisional_stamp,
        read_served_stamp,
        serving_by_stamp,
        stamp_of,
    )
    from rivertwice.timeline.serving import (
        FORMAT,
        STREAM_SEQ,
        WITHDRAWN,
        Publication,
        select_replaced,
        select_served,
        select_serving,
        select_winners,
        to_epoch_ms,
        withdrawn_rows,
    )
    from rivertwice.timeline.stream_load import StreamLoad
    from rivertwice.timeline.upkeep import UpkeepState, keep_up, keep_up_if_due, no_upkeep, renew_properties, tables_of
    from rivertwice.timeline.verdicts import LATE_RECORD, Verdict
    from rivertwice.timeline.version_records import (
        Acceptance,
        Extent,
        Version,
        hold_versions,
        next_name,
        next_number,
        read_versions,
        record_accepted,
        record_dropped,
        record_version,
    )
    from rivertwice.timeline.watermarks import WatermarkRule, next_watermarks, rule_of, watermarks_after
else:
    from rivertwice.core.face import lazy_names

    __getattr__ = lazy_names(__name__)
