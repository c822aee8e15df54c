"""The windows of `bench.minutes` as PyFlink SQL: run by `bench.flink` in the environment that has Flink, never imported.

Usage: python flink_job.py CONNECTOR_JAR BOOTSTRAP TOPIC FOLDER SLOTS
It reads the topic up to its latest offsets, counts and sums per key and minute, and writes the rows as JSON files to FOLDER/rows.
RocksDB holds the state; a checkpoint is taken every two seconds into FOLDER/checkpoints, and the files are committed by them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

SOURCE = """
CREATE TABLE events (
  k STRING, `at` TIMESTAMP_LTZ(3), v BIGINT,
  WATERMARK FOR `at` AS `at` - INTERVAL '10' SECOND
) WITH (
  'connector' = 'kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{bootstrap}',
  'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = 'latest-offset',
  'format' = 'json', 'json.timestamp-format.standard' = 'ISO-8601'
)
"""
SINK = """
CREATE TABLE minutes (window_start TIMESTAMP_LTZ(3), window_end TIMESTAMP_LTZ(3), k STRING, n BIGINT, total BIGINT)
WITH ('connector' = 'filesystem', 'path' = '{rows}', 'format' = 'json')
"""
QUERY = """
INSERT INTO minutes
SELECT window_start, window_end, k, count(*), sum(v)
FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(`at`), INTERVAL '1' MINUTE))
GROUP BY window_start, window_end, k
"""


def main() -> None:
    jar, bootstrap, topic, folder, slots = sys.argv[1:]
    root = Path(folder).resolve()
    options = {
        "pipeline.jars": Path(jar).resolve().as_uri(),
        "table.local-time-zone": "UTC",
        "parallelism.default": slots,
        "taskmanager.numberOfTaskSlots": slots,
        "taskmanager.memory.managed.size": "512m",
        "state.backend.type": "rocksdb",
        "execution.checkpointing.interval": "2 s",
        "execution.checkpointing.dir": (root / "checkpoints").as_uri(),
        "execution.checkpointing.incremental": "true",
    }
    settings = Configuration()
    for name, value in options.items():
        settings.set_string(name, value)
    environment = TableEnvironment.create(
        EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(settings).build()
    )
    environment.execute_sql(SOURCE.format(topic=topic, bootstrap=bootstrap))
    environment.execute_sql(SINK.format(rows=(root / "rows").as_uri()))
    environment.execute_sql(QUERY).wait()


if __name__ == "__main__":
    main()
