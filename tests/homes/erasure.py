"""A stopped pipeline of tumbling windows on two hosts that share a place, without Spark or a broker: Kafka is a list of keys."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from homes.backfill import HOUR, SQL, YAML, add_timeline, emitted
from homes.ledger import NOW, ledger_row
from homes.project import make_project
from rivertwice.cli.main import cli
from rivertwice.definition.bundle import build_bundle, load_bundle_definition
from rivertwice.log import archive, forks, kafka
from rivertwice.log.archive import extend_archive
from rivertwice.log.archive_table import SCHEMA
from rivertwice.storage.table import Table
from rivertwice.timeline.digest import digest_rows
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.sequence import move_head

SECRET = "user-77"
TOPIC = "flights"
BATCHES = 4


class ErasureWorld:
    """Hosts `one` and `two`; the log has ten records a batch, every fourth of them of SECRET, and a record each second."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = root
        one = make_project(
            root, {"p": {"pipeline.yaml": YAML, "transform.sql": SQL}}, home=root / "one", shared=root / "shared"
        )
        self.hosts = [one, replace(one, home=root / "two")]
        self.home = self.hosts[0].pipeline("p")
        self.log = [SECRET if number % 4 == 0 else f"u{number}" for number in range(10 * BATCHES)]
        patch.setenv("RIVERTWICE_SHARED", str(root / "shared"))
        self._fake_kafka(patch)
        self._stream()
        extend_archive(None, self.hosts[0], TOPIC)

    def _fake_kafka(self, patch: pytest.MonkeyPatch) -> None:
        for name, answer in {
            "cluster_id": lambda *_: "c",
            "topic_id": lambda *_: "id",
            "topic_config": lambda *_: {},
            "begin_offsets": lambda *_: {0: 0},
            "end_offsets": lambda *_: {0: len(self.log)},
            "stable_ends": lambda *_: {0: len(self.log)},
        }.items():
            patch.setattr(kafka, name, answer)
        patch.setattr(
            forks, "read_pieces", lambda _, pieces: [(p, self._record(*r)) for p, rs in pieces.items() for r in rs]
        )
        patch.setattr(archive, "collect_chunk", lambda _spark, _settings, _origin, chunk: self._records(*chunk[0]))

    def _record(self, offset: int, _end: int) -> Any:
        """One record, as the plain client gives it."""
        (row,) = self._records(offset, offset + 1).to_pylist()
        return SimpleNamespace(
            **{name: partial(dict.get, row, name) for name in ("offset", "key", "value")},
            timestamp=lambda: (0, 1000 * row["offset"]),
            leader_epoch=lambda: 0,
        )

    def _records(self, start: int, end: int) -> pa.Table:
        at = datetime(1970, 1, 1, tzinfo=UTC)
        rows: list[dict[str, Any]] = [
            {
                "_format": 1,
                "cluster_id": "c",
                "topic_id": "id",
                "topic": TOPIC,
                "partition": 0,
                "offset": offset,
                "timestamp": at + timedelta(seconds=offset),
                "timestamp_type": 0,
                "key": None,
                "value": json.dumps({"k": self.log[offset], "at": "1970-01-01T00:00:00Z"}).encode(),
                "headers": [],
                "day": "1970-01-01",
            }
            for offset in range(start, end)
        ]
        return pa.Table.from_pylist(rows, schema=SCHEMA)

    def _stream(self) -> None:
        bundle = build_bundle(self.hosts[0].definitions / "p")
        bundle.save(self.home.bundles)
        add_timeline(self.home, bundle, "t1", None, 0)
        move_head(self.home, "t1", reason="first start", expected_seq=0, now=NOW)
        columns = load_bundle_definition(self.home.bundles, bundle.id).result_columns
        batches = [emitted("t1", n, (n, SECRET, 3), (n, "other", 7)) for n in range(BATCHES)]
        append_ledger(
            self.home,
            [
                ledger_row(
                    n,
                    bundle=bundle.id,
                    batch_watermark_ms=(n + 2) * HOUR,
                    min_event_ms=n * HOUR,
                    max_event_ms=n * HOUR,
                    emitted=2,
                    digest=digest_rows(rows, columns),
                )
                for n, rows in enumerate(batches)
            ],
        )
        for n, rows in enumerate(batches):
            Table(self.home.tables.changelog, partition_by=["_day"]).append(rows, transactions={"p#t1": n})

    def rivertwice(self, *words: str, host: int = 0, output: str = "json") -> Result:
        settings = self.hosts[host]
        options = ["--output", output, "--project", str(settings.project), "--home", str(settings.home)]
        return CliRunner().invoke(cli, [*options, *words])

    def erase(self) -> dict[str, Any]:
        """Do it by the command line, and return the outcome."""
        done = self.rivertwice(
            "admin", "privacy", "erase", "p", "--field", "k", "--value", SECRET, "--reason", "x", "--yes"
        )
        assert done.exit_code == 0, (done.output, done.exception)
        outcome: dict[str, Any] = json.loads(done.stdout)["outcome"]
        return outcome

    def archived(self) -> list[tuple[int, str]]:
        """Offset and key of every record that the archive holds."""
        rows = Table(self.hosts[0].archive(TOPIC)).read(columns=["offset", "value"])
        assert rows is not None
        return sorted((row["offset"], json.loads(row["value"])["k"]) for row in rows.to_pylist())
