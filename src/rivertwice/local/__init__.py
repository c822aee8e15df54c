"""What runs on one machine: setup, a broker and an Airflow for trying, `init` from sample data."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rivertwice.local.airflow import airflow_status, start_airflow, stop_airflow
    from rivertwice.local.broker import broker_status, start_broker, stop_broker
    from rivertwice.local.guess import Guess, Overrides, make_guess, view_name
    from rivertwice.local.install import (
        compare_jars,
        direct_pins,
        is_set_up,
        normalized,
        select_mismatched,
        select_unfit,
        setup_steps,
    )
    from rivertwice.local.look import Look
    from rivertwice.local.produce import SAMPLE_FILE, ClosingHeartbeat, plan_file, send_sample
    from rivertwice.local.read_file import FileOptions, field_name, sample_file
    from rivertwice.local.read_topic import sample_from_topic
    from rivertwice.local.sample import ORDERS, TOPIC, RecordSample
    from rivertwice.local.write import (
        WrittenFile,
        example_files,
        finding_rows,
        pipeline_files,
        sample_files,
        write_project,
    )
else:
    from rivertwice.core.face import lazy_names

    __getattr__ = lazy_names(__name__)
