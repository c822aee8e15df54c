"""What is served of sessions is what a whole build gives, whatever was published; new batches only add rows."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from homes.backfill import HOUR, RESULT, YAML, add_timeline
from homes.ledger import NOW, ledger_row
from homes.project import make_project
from rivertwice.core.errors import TableDamageError
from rivertwice.definition.bundle import build_bundle
from rivertwice.storage.table import Table
from rivertwice.timeline.ledger import LEDGER_KEY, append_ledger
from rivertwice.timeline.lineage import Fork, path_ledger
from rivertwice.timeline.sequence import last_seq, move_head, publish, read_sequence
from rivertwice.timeline.served import Way, read_served, rebuild_served
from rivertwice.timeline.served_rows import export_lines, rows_served_by
from rivertwice.timeline.serving import Publication

SQL = (
    "SELECT session_window.start AS window_start, session_window.end AS window_end, k, count(*) AS n "
    "FROM events GROUP BY session_window(at, '10 minutes'), k\n"
)
Session = tuple[int, int, str, int]


def sessions(*rows: Session) -> pa.Table:
    """Rows (start, end, key, n), times in minutes."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return pa.Table.from_pylist(
        [
            {
                "window_start": epoch + timedelta(minutes=low),
                "window_end": epoch + timedelta(minutes=high),
                "k": key,
                "n": n,
            }
            for low, high, key, n in rows
        ],
        schema=RESULT,
    )


class SessionHome:
    """A pipeline of sessions; batch n emits sessions that end in hour n-1."""

    def __init__(self, folder: Path, seed: int) -> None:
        files = {
            "pipeline.yaml": YAML.replace("{size: 1 hour}", "{session: 10 minutes}"),
            "transform.sql": SQL,
        }
        settings = make_project(folder, {"p": files})
        self.home = settings.pipeline("p")
        self.bundle = build_bundle(settings.definitions / "p")
        self.bundle.save(self.home.bundles)
        add_timeline(self.home, self.bundle, "t1", None, 0)
        move_head(self.home, "t1", reason="first start", expected_seq=0, now=NOW)
        self.definition, self.chance = self.bundle.definition, random.Random(seed)
        self.timeline, self.batch = "t1", 0
        self.commit()

    def commit(self) -> None:
        rows = []
        for key in "abc":
            if self.chance.random() < 0.7:
                end = (self.batch - 1) * 60 + self.chance.randrange(1, 61)
                rows.append((end - self.chance.randrange(10, 150), end, key, self.chance.randrange(9)))
        count = len(rows)
        row = ledger_row(
            self.batch, self.timeline, bundle=self.bundle.id, batch_watermark_ms=self.batch * HOUR, emitted=count
        )
        stamps = {
            "_format": pa.array([1] * count, pa.int32()),
            "_timeline": pa.array([self.timeline] * count, pa.string()),
            "_batch": pa.array([self.batch] * count, pa.int64()),
        }
        table = sessions(*rows)
        Table(self.home.tables.changelog).append(
            pa.table({**stamps, **{name: table[name] for name in table.schema.names}}),
            transactions={f"p#{self.timeline}": self.batch},
            metadata={LEDGER_KEY: row.to_json()},
        )
        append_ledger(self.home, [row])
        self.batch += 1

    def publish(self) -> None:
        """Publish some sessions, also of hours that are not closed yet; some only withdraw."""
        rows, seq = [], last_seq(self.home) + 1
        for _ in range(self.chance.randrange(1, 5)):
            low = self.chance.randrange(max(1, (self.batch - 4) * 60), (self.batch + 2) * 60)
            rows.append((low, low + self.chance.randrange(10, 120), self.chance.choice("abc"), 100 + seq))
        table = sessions(*rows)
        table = table.append_column("_backfill", pa.array([f"bf-{seq}"] * len(rows), pa.string()))
        withdrawn = pa.array([self.chance.random() < 0.3 for _ in rows], pa.bool_())
        Table(self.home.tables.corrections).append(table.append_column("_withdrawn", withdrawn))
        low, high = min(row[0] for row in rows), max(row[1] for row in rows)
        entry = Publication(
            seq, f"bf-{seq}", ((low * 60_000, high * 60_000),), self.bundle.fingerprint.semantics, self.bundle.id, {},
            sessions=True, rows=len(rows),
        )  # fmt: skip
        publish(self.home, entry.to_payload(), expected_seq=seq - 1, now=NOW)

    def fork(self) -> None:
        seq, at = last_seq(self.home), self.batch - 1
        name = f"t{seq + 1}"
        add_timeline(self.home, self.bundle, name, Fork(self.timeline, at), at + 1)
        self.timeline = name
        move_head(self.home, name, reason="test", expected_seq=seq, now=NOW)

    def require_same_as_whole(self) -> None:
        whole = rows_served_by(self.home, self.definition, read_sequence(self.home), path_ledger(self.home))
        shown = read_served(self.home)
        assert whole is not None
        assert shown is not None
        assert export_lines(shown) == export_lines(whole)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 6))])
def test_sessions_kept_by_change_are_those_of_a_whole_build(tmp_path: Path, seed: int) -> None:
    world = SessionHome(tmp_path, seed)
    ways: Counter[tuple[str, Way]] = Counter()
    rebuild_served(world.home, world.definition)
    for _ in range(18):
        act = world.chance.choices([world.commit, world.publish, world.fork], [6, 2, 1])[0]
        act()
        ways[act.__name__, rebuild_served(world.home, world.definition).way] += 1
        world.require_same_as_whole()
    assert ways["commit", Way.APPENDED] > 5
    assert ways["commit", Way.WHOLE] == 0
    assert ways["publish", Way.APPENDED] == 0


def test_a_batch_of_sessions_is_not_served_over_lost_corrections(tmp_path: Path) -> None:
    world = SessionHome(tmp_path, 1)
    world.commit()
    world.publish()
    rebuild_served(world.home, world.definition)
    rows = Table(world.home.tables.corrections).read()
    assert rows is not None
    Table(world.home.tables.corrections).overwrite(rows.slice(1))
    world.commit()
    with pytest.raises(TableDamageError, match="corrections of p have lost rows"):
        rebuild_served(world.home, world.definition)
