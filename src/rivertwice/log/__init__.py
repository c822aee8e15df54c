"""Kafka and its longer copy, the archive: records by exact range, gaps, claims on retention."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rivertwice.log.addresses import (
        OffsetRanges,
        Part,
        Parts,
        StoredOffsets,
        between,
        count,
        decode_ends,
        describe,
        describe_parts,
        drop_empty,
        encode_ends,
        encode_offsets,
        intersect,
        key_parts,
        name_parts,
        of_topic,
        parts_of,
        plan_chunks,
        subtract,
    )
    from rivertwice.log.archive import ArchiveReport, archive_lock, archived_ends, extend_archive, is_archiving
    from rivertwice.log.archive_batch import ArchiveBatch, archive_stream, plan_archive_batch
    from rivertwice.log.archive_rows import (
        PLAIN,
        Origin,
        collect_chunk,
        observe_archive_forks,
        plain_row,
        require_followed,
    )
    from rivertwice.log.archive_table import (
        PARTITION_BY,
        BrokenFile,
        archived_ranges,
        archived_segments,
        find_broken,
        note_sums,
        read_archived,
        read_sums,
        require_sound,
        turn_name,
    )
    from rivertwice.log.decoded_files import DecodedFiles, forget_compared
    from rivertwice.log.forks import LastRecords, observe_forks
    from rivertwice.log.gaps import (
        REPAIRABLE,
        Acceptance,
        Gap,
        GapReason,
        accepted_gaps,
        bound_event_time,
        find_gap,
        record_acceptance,
    )
    from rivertwice.log.history import LakeHistory, LakeTable
    from rivertwice.log.kafka import ensure_topic, spark_options, stable_ends
    from rivertwice.log.leases import (
        Clock,
        LogState,
        RaceLevel,
        RangeLease,
        RetentionClaim,
        view_leases,
    )
    from rivertwice.log.marks import (
        Fork,
        LastRecord,
        Marks,
        StoredMarks,
        fork_message,
        marks_from_plain,
        marks_to_plain,
        require_no_fork,
    )
    from rivertwice.log.outbox import Outbox
    from rivertwice.log.reach import asked_by_a_person, find_silence, require_broker
    from rivertwice.log.reader import (
        TopicSample,
        absent_runs,
        count_runs,
        explain_holes,
        first_stamps,
        read_exactly,
        read_pieces,
        read_to,
        sample_topic,
    )
    from rivertwice.log.records import LogRead, numbered_columns, read_ranges
    from rivertwice.log.retention import kept_for, observe_log, parse_limit, unarchived_claim
    from rivertwice.log.send import (
        OFFSET_HEADER,
        ask_cluster_id,
        await_kafka,
        feed_replay_topic,
        replay_topic,
        send_records,
    )
    from rivertwice.log.topic_sets import TopicSets
else:
    from rivertwice.core.face import lazy_names

    __getattr__ = lazy_names(__name__)
