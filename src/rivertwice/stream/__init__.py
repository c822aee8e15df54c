"""The driver: one micro-batch is one commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rivertwice.stream.begin import (
        added_since,
        check_topics,
        describe_added,
        has_batch,
        has_effect,
        refuse_start,
        require_checked,
    )
    from rivertwice.stream.checkpoint import (
        Goal,
        covers,
        last_number,
        moved_to,
        note_sets,
        partitions_of,
        read_planned,
        read_sets,
        with_partitions,
        with_source_line,
    )
    from rivertwice.stream.damage import find_unfit, newest_rows_of_run
    from rivertwice.stream.dead import read_dead
    from rivertwice.stream.driver import running_partitions
    from rivertwice.stream.failures import classify_failure, condition_of, is_thrown
    from rivertwice.stream.gaps import continued_rows, next_offsets, observe_gaps, read_position
    from rivertwice.stream.heartbeat import LogEnds, lag_of
    from rivertwice.stream.late import read_late
    from rivertwice.stream.lease import (
        Owner,
        at_rest,
        describe_copied_home,
        lease_owner,
        lock_file,
        marker_of,
        require_no_other_host,
    )
    from rivertwice.stream.load_stage import large_limit
    from rivertwice.stream.loaded import begin_after_load
    from rivertwice.stream.result_rows import changelog_rows
    from rivertwice.stream.seal import SEALED, is_sealed, seal_timeline, stream_app
    from rivertwice.stream.side import encode_ranges
    from rivertwice.stream.source import end_query, kafka_stream, steer_source
    from rivertwice.stream.throwing import stretches_that_throw
    from rivertwice.stream.versions import KnownVersions
else:
    from rivertwice.core.face import lazy_names

    __getattr__ = lazy_names(__name__)
