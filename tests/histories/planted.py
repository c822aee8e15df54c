"""Twenty kinds of change, planted on copies of a finished run of the lab: what each touches, and what a reconcile must say of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from lab.faults.lab_project import PIPELINE
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import parse_iso, to_iso
from rivertwice.core.settings import Settings
from rivertwice.reconcile.model import DefectFinding, RowId
from rivertwice.reconcile.report import ReconcileReport
from rivertwice.storage.table import Table
from rivertwice.timeline.ledger import LedgerRow, from_table, to_table
from rivertwice.timeline.served_stamp import read_served_stamp

WINDOW = timedelta(seconds=10)
Rows = list[dict[str, Any]]
Starts = frozenset[str]
CLOSED, UNKNOWN_BATCH = 5, 9999
"""Batch whose watermark is moved, and a number that no batch has."""


@dataclass
class Marks:
    """What a reconcile must say of a change, and what it may.

    Attributes:
        findings: (kind, words that stand in its message); each must be found.
        rows: windows in which a row must be a DEFECT of itself.
        ledger: windows that may be blamed by the ledger. served: windows of which a finding about served rows may speak.
    """

    findings: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    rows: set[str] = field(default_factory=set)
    ledger: set[str] = field(default_factory=set)
    served: set[str] = field(default_factory=set)

    def missed(self, report: ReconcileReport) -> list[str]:
        """Return what the report does not say."""
        defects = {
            to_iso_ms(one.row) for one in report.verdicts if any(cause == "unexplained" for cause, _ in one.defects)
        }
        lost = [f"no row of {start} is a DEFECT" for start in sorted(self.rows - defects)]
        return lost + [f"no finding {one}" for one in self.findings if not any(says(f, one) for f in report.findings)]


def says(finding: DefectFinding, wanted: tuple[str, tuple[str, ...]]) -> bool:
    """Say whether a finding is of a kind and holds all words."""
    return finding.kind == wanted[0] and all(word in finding.message for word in wanted[1])


def to_iso_ms(row: RowId) -> str:
    """Return the start of a row's window."""
    from rivertwice.core.instants import from_ms

    return to_iso(from_ms(row.start_ms))


@dataclass(frozen=True)
class World:
    """A copy of the run, and the rows that each kind may change: no two kinds share a window or a batch.

    Attributes:
        windows: starts of windows served from the stream that nothing else touches; `published`: served by the publication.
        late: places of late rows in their table. batches: numbers of ledger rows in the middle.
    """

    settings: Settings
    topic: str
    windows: Sequence[str]
    published: Sequence[str]
    touched: Callable[[int], Starts]

    @property
    def home(self) -> PipelineHome:
        return self.settings.pipeline(PIPELINE)


def change(path: Any, act: Callable[[Rows], None], metadata: dict[str, Any] | None = None) -> None:
    """Rewrite a table's rows."""
    table = Table(path).read()
    assert table is not None
    rows = table.to_pylist()
    act(rows)
    Table(path).overwrite(pa.Table.from_pylist(rows, schema=table.schema), metadata=metadata)


def at(rows: Rows, start: str) -> dict[str, Any]:
    """Return the first row of a window."""
    return next(
        row for row in sorted(rows, key=lambda row: str(row.get("k"))) if row["window_start"] == parse_iso(start)
    )


def _result(number: int, act: Callable[[Rows, dict[str, Any]], None]) -> Callable[[World], Marks]:
    def plant(world: World) -> Marks:
        start = world.windows[number]
        change(world.home.tables.changelog, lambda rows: act(rows, at(rows, start)))
        return Marks([("changelog", ())], {start})

    return plant


def _raise_total(_: Rows, row: dict[str, Any]) -> None:
    row["total"] += 1


def _served(number: int, column: str) -> Callable[[World], Marks]:
    def plant(world: World) -> Marks:
        start = world.windows[number]
        stamp = read_served_stamp(world.home)
        assert stamp is not None

        def act(rows: Rows) -> None:
            at(rows, start)[column] += 1

        change(world.home.tables.served, act, {"served": vars(stamp)})
        return Marks([], {start}) if column == "total" else Marks([("served", (start, f"{column} "))])

    return plant


def _correction(number: int, act: Callable[[Rows, dict[str, Any]], None]) -> Callable[[World], Marks]:
    def plant(world: World) -> Marks:
        start = world.published[number]
        change(world.home.tables.corrections, lambda rows: act(rows, at(rows, start)))
        return Marks([("corrections", (start,))])

    return plant


def _publication(name: str, act: Callable[[Any], Any]) -> Callable[[World], Marks]:
    def plant(world: World) -> Marks:
        def rewrite(rows: Rows) -> None:
            row = next(one for one in rows if one["kind"] == "publication")
            payload = json.loads(row["payload"])
            payload[name] = act(payload[name])
            row["payload"] = json.dumps(payload)

        change(world.home.tables.sequence, rewrite)
        covered = {world.published[-1]} if name == "ranges" else set()
        return Marks([("publications", (f"{name} is",))], served=covered)

    return plant


ONE_SECOND = timedelta(seconds=1)
LATE_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "window_end": lambda value: value + ONE_SECOND,
    "event_time": lambda value: value + timedelta(milliseconds=1),
    "late_watermark": lambda value: value - timedelta(milliseconds=1),
    "cluster_id": lambda value: value + "x",
    "topic_id": lambda value: value + "x",
    "record_time": lambda value: value + timedelta(milliseconds=1),
    "fields": lambda value: value.replace('"amount":', '"amount":1'),
}
LATE_ADDRESS: dict[str, Callable[[Any], Any]] = {
    "window_start": lambda value: value - WINDOW,
    "topic": lambda value: value + "x",
    "partition": lambda value: value + 7,
    "offset": lambda value: value + 100_000,
}


def _late_columns(world: World) -> Marks:
    marks = Marks()

    def act(rows: Rows) -> None:
        assert len(rows) > 20, "the last ones are changed otherwise"
        for row, (name, alter) in zip(rows, {**LATE_COLUMNS, **LATE_ADDRESS}.items(), strict=False):
            place = f"{row['topic']}/{row['partition']}@{row['offset']}"
            row[name] = alter(row[name])
            if name in LATE_COLUMNS:
                marks.findings.append(("late_rows", (place, f"{name} is")))
            else:
                moved = f"{row['topic']}/{row['partition']}@{row['offset']}"
                marks.findings.append(("late_rows", (place, "is not in the late rows as it must be")))
                marks.findings.append(("late_rows", (moved, "was not late")))

    change(world.home.tables.late_rows, act)
    return marks


def _late(act: Callable[[Rows], dict[str, Any]], words: str) -> Callable[[World], Marks]:
    def plant(world: World) -> Marks:
        marks = Marks()

        def rewrite(rows: Rows) -> None:
            row = act(rows)
            marks.findings.append(("late_rows", (f"/{row['partition']}@{row['offset']}", words)))

        change(world.home.tables.late_rows, rewrite)
        return marks

    return plant


def _repeat_last(rows: Rows) -> dict[str, Any]:
    rows.append(dict(rows[-1]))
    return rows[-1]


def _dead(world: World) -> Marks:
    """Change the reason of one dead letter, the origin of another, delete one and invent one."""
    marks = Marks()

    def place(row: dict[str, Any]) -> str:
        return f"{row['topic']}/{row['partition']}@{row['offset']}"

    def act(rows: Rows) -> None:
        rows[0]["reason"] = "rule" if rows[0]["reason"] != "rule" else "json"
        rows[1]["topic_id"] += "x"
        rows[1]["record_time"] += ONE_SECOND
        rows.append({**rows[1], "topic_id": rows[1]["topic_id"][:-1], "offset": rows[1]["offset"] + 1})
        marks.findings += [
            ("dead_letters", (place(rows[0]), "is not in the dead letters as it must be")),
            ("dead_letters", (place(rows[0]), "must not be")),
            ("dead_letters", (place(rows[1]), "topic_id is")),
            ("dead_letters", (place(rows[1]), "record_time is")),
            ("dead_letters", (place(rows[-1]), "must not be")),
            ("dead_letters", (place(rows[2]), "is not in the dead letters as it must be")),
        ]
        del rows[2]

    change(world.home.tables.dead_letters, act)
    return marks


def _ledger(fields: dict[int, dict[str, Callable[[Any], Any]]], blames: bool) -> Callable[[World], Marks]:
    """Change fields of batches; with `blames` the log contradicts them, so the windows of the batch are in doubt."""

    def plant(world: World) -> Marks:
        table = Table(world.home.tables.ledger).read()
        assert table is not None
        marks = Marks()
        rows: list[LedgerRow] = []
        for row in from_table(table):
            mine = fields.get(row.batch, {})
            rows.append(replace(row, **{name: alter(getattr(row, name)) for name, alter in mine.items()}))
            for name in mine:
                kind = "changelog" if name in ("emitted", "digest") else "ledger"
                words = {"emitted": "the ledger recorded", "digest": "recorded d1:", "by_topic": "by_topic."}.get(
                    name, f"{name} is"
                )
                where = f"batch {row.batch}"
                if name in ("timeline", "batch"):
                    where, words = f"batch {row.batch} of", "no row for"
                marks.findings.append((kind, (where, words)))
            if mine and blames:
                marks.ledger |= world.touched(row.batch) | world.touched(row.batch + 1)
        Table(world.home.tables.ledger).overwrite(to_table(rows))
        return marks

    return plant


def _plus_one(value: Any) -> Any:
    return value + 1


def _moved(offsets: Any) -> Any:
    return {topic: {part: end + (part == "0") for part, end in parts.items()} for topic, parts in offsets.items()}


def _moved_text(text: str) -> str:
    head, _, last = text.rstrip().rpartition("\n")
    return f"{head}\n{json.dumps(_moved(json.loads(last)))}"


def _more_read(by_topic: Any) -> Any:
    return {topic: replace(one, read=one.read + 1) for topic, one in by_topic.items()}


DERIVED_FIELDS: dict[int, dict[str, Callable[[Any], Any]]] = {
    2: dict.fromkeys(("read", "bad", "accepted", "min_event_ms", "max_event_ms", "emitted"), _plus_one),
    4: {"by_topic": _more_read, "digest": lambda value: value[:-1] + ("0" if value[-1] != "0" else "1")},
    6: {"batch_watermark_ms": _plus_one, "start_offsets": _moved},
    8: {"end_offsets": _moved},
    10: {"offsets_text": _moved_text},
}
IDENTITY_FIELDS: dict[int, dict[str, Callable[[Any], Any]]] = {
    1: {"pipeline": lambda value: value + "x", "epoch": _plus_one, "bundle": lambda value: value[::-1]},
    3: {
        "cluster_id": lambda value: value + "x",
        "topic_ids": lambda value: {topic: one + "x" for topic, one in value.items()},
        "batch_timestamp_ms": _plus_one,
        "references": lambda _: {"a": 1},
        "committed_at": lambda value: value + ONE_SECOND,
    },
    5: {"timeline": lambda value: value + "x"},
    7: {"batch": lambda value: value + UNKNOWN_BATCH},
}


def _archive(world: World) -> Marks:
    """Raise the amount of one record of a window by one."""
    start = world.windows[6]
    low = parse_iso(start)

    def act(rows: Rows) -> None:
        for row in sorted(rows, key=lambda row: (row["partition"], row["offset"])):
            fields = decoded(row["value"])
            if fields is not None and low <= parse_iso(fields["at"]) < low + WINDOW and 0 <= fields["amount"] < 500:
                fields["amount"] += 1
                row["value"] = json.dumps(fields, separators=(",", ":")).encode()
                return
        raise AssertionError(start)

    change(world.settings.archive(world.topic), act)
    return Marks([], {start})


def decoded(value: bytes | None) -> dict[str, Any] | None:
    """Return a record's fields, None of one that is no event."""
    try:
        fields = json.loads(value or b"")
        parse_iso(fields["at"])
        return {**fields, "amount": int(fields["amount"])}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None


def _bundle(world: World) -> Marks:
    (folder,) = (path for path in Path(world.home.bundles).iterdir() if path.is_dir())
    (folder / "transform.sql").write_bytes((folder / "transform.sql").read_bytes() + b" ")
    return Marks([("bundle", ("was altered",))])


PLANTS: dict[str, Callable[[World], Marks]] = {
    "changelog/alter": _result(0, _raise_total),
    "changelog/drop": _result(1, lambda rows, row: rows.remove(row)),
    "changelog/invent": _result(2, lambda rows, row: rows.append({**row, "k": "ghost"})),
    "changelog/batch": _result(3, lambda _, row: row.update(_batch=row["_batch"] + 1)),
    "served/value": _served(4, "total"),
    "served/origin": _served(5, "_batch"),
    "corrections/alter": _correction(0, _raise_total),
    "corrections/drop": _correction(1, lambda rows, row: rows.remove(row)),
    "corrections/invent": _correction(2, lambda rows, row: rows.append({**row, "k": "ghost"})),
    "publications/bundle": _publication("bundle", lambda value: value[::-1]),
    "publications/as_of": _publication("as_of", _moved),
    "publications/ranges": _publication("ranges", lambda pairs: [[pairs[0][0], pairs[-1][1] - 10_000]]),
    "late rows/each column": _late_columns,
    "late rows/repeat": _late(_repeat_last, "2 times"),
    "late rows/drop": _late(lambda rows: rows.pop(-4), "is not in the late rows as it must be"),
    "dead letters": _dead,
    "ledger/each derived field": _ledger(DERIVED_FIELDS, blames=True),
    "ledger/each other field": _ledger(IDENTITY_FIELDS, blames=False),
    "archive/value": _archive,
    "bundle/file": _bundle,
}
"""By name, in an order in which all can be planted on one copy: the late row that is dropped is not the one that is repeated."""


def copies(settings: Settings, folder: Path, topic: str) -> Settings:
    """Return settings of a copy of a run's pipeline and archive, without its checkpoint."""
    copied = replace(settings, home=folder)
    ignore = shutil.ignore_patterns("checkpoint", "*.lock", "logs")
    shutil.copytree(settings.pipeline(PIPELINE).root, copied.pipeline(PIPELINE).root, ignore=ignore)
    shutil.copytree(Path(settings.archive(topic)), Path(copied.archive(topic)))
    return copied


def blamed_beside(report: ReconcileReport, marks: Sequence[Marks]) -> Iterator[str]:
    """Yield what the report blames that none of the changes explains."""
    rows = set().union(*(one.rows for one in marks))
    ledger = set().union(*(one.ledger for one in marks))
    served = rows | set().union(*(one.served for one in marks))
    wanted = [finding for one in marks for finding in one.findings]
    for verdict in report.verdicts:
        start = to_iso_ms(verdict.row)
        for cause, detail in verdict.defects:
            if start not in (ledger if cause == "ledger" else rows):
                yield f"{verdict.pair} {start} {verdict.row.key}: {detail}"
        if verdict.verdict == "NOT_COMPARABLE":
            yield f"{verdict.pair} {start}: {verdict.reason}"
    for finding in report.findings:
        about_served = finding.kind in ("served", "corrections") and any(start in finding.message for start in served)
        if not about_served and not any(says(finding, one) for one in wanted) and not _follows(finding, wanted):
            yield f"{finding.kind}: {finding.message}"


def _follows(finding: DefectFinding, wanted: Sequence[tuple[str, tuple[str, ...]]]) -> bool:
    """Say whether a finding is the other half of a wanted one: a ledger row under a wrong name is a row too many as well."""
    is_stray = finding.kind == "ledger" and "the ledger holds batch" in finding.message
    by_text = "offsets_text.batchWatermarkMs" in finding.message
    return (is_stray and ("ledger", ("batch 5 of", "no row for")) in wanted) or by_text
