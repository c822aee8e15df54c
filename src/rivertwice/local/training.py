"""`python -m rivertwice.local.training FILE`: a driver reads a short log to its end; its JVM writes the class archive at exit.

`rivertwice.engine.class_archive` starts this. The project, the broker and the log are made for the run and removed after it; what the
environment says about a user's cluster or tables is not used.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rivertwice.core import (
    Deadline,
    ServiceError,
    Settings,
    end_sessions,
    session_members,
    start_detached,
    to_iso,
    to_ms,
)
from rivertwice.engine import QUICK_JVM, java_env
from rivertwice.local.broker import start_broker, stop_broker
from rivertwice.local.produce import FileRecord
from rivertwice.log import ensure_topic, send_records

NAME = "training"
PARTITIONS = 2
RECORDS = 120
RUN_S, DUMP_S = 300.0, 240.0
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
DEFINITION = {
    "pipeline.yaml": f"""\
name: {NAME}
description: sums of a few records
sources:
  events:
    topic: {NAME}
    partitions: {PARTITIONS}
    schema: {{k: string, at: timestamp, amount: bigint}}
    required: [k, amount]
    event_time: at
    watermark: 20 seconds
    max_future: 60 seconds
window: {{size: 10 seconds}}
keys: [k]
count_column: n
columns:
  n: {{compare: exact}}
  total: {{compare: exact}}
emit: final
late: {{policy: drop, alert_share: 0.5}}
stream: {{max_offsets_per_trigger: 40, trigger: 0 s, shuffle_partitions: 2}}
""",
    "transform.sql": """\
SELECT window.start AS window_start, window.end AS window_end, k, count(*) AS n, sum(amount) AS total
FROM events
GROUP BY window(at, '10 seconds'), k
""",
}


def train(settings: Settings, archive: Path) -> None:
    """Run a driver to the end of a short log and wait until its JVM has written the archive.

    Args:
        settings: where the jars and Java are; nothing else of them is used.

    Raises:
        ServiceError: the broker or the driver failed, or the JVM did not end.
    """
    with tempfile.TemporaryDirectory(prefix="rivertwice-training-") as name:
        folder = Path(name)
        own = Settings(
            project=folder / "project", home=folder / "home", spark_master="local[2]", downloads=settings.build
        )
        definition = own.definitions / NAME
        definition.mkdir(parents=True)
        for file, text in DEFINITION.items():
            (definition / file).write_text(text)
        try:
            start_broker(own)
            ensure_topic(own, NAME, PARTITIONS)
            send_records(own, NAME, [_record(number) for number in range(RECORDS)])
            _run_driver(own, archive, folder / "driver.log")
        finally:
            stop_broker(own)


def _record(number: int) -> FileRecord:
    at = BEGIN + timedelta(seconds=number)
    key = f"k{number % 3}"
    value = json.dumps({"k": key, "at": to_iso(at), "amount": number}).encode()
    return FileRecord(key.encode(), value, to_ms(at), partition=number % PARTITIONS)


def _run_driver(settings: Settings, archive: Path, log: Path) -> None:
    theirs = {name: value for name, value in os.environ.items() if not name.startswith("RIVERTWICE_")}
    options = {"JAVA_TOOL_OPTIONS": QUICK_JVM, "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={archive}"}
    command = [sys.executable, "-m", "rivertwice.stream.driver", "--pipeline", NAME, "--until-end"]
    with log.open("wb") as output:
        driver = start_detached(
            command, env={**theirs, **java_env(settings), **settings.to_env(), **options}, output=output
        )
        try:
            code = driver.wait(RUN_S)
            # The JVM writes at its exit, which comes after the driver's.
            if code == 0 and not Deadline.after(DUMP_S).wait_until(lambda: not session_members([driver.pid])):
                message = f"the JVM of the training driver {driver.pid} did not end within {DUMP_S:.0f} s"
                raise ServiceError(message)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end_sessions([driver.pid])
    if code != 0:
        ending = f"did not end within {RUN_S:.0f} s" if code is None else f"ended with {code}"
        message = f"the training driver {ending}; its log ends: {log.read_text(errors='replace')[-3000:]}"
        raise ServiceError(message)


if __name__ == "__main__":
    train(Settings.from_env(), Path(sys.argv[1]))
