"""What stands in the way of an erasure: a running driver, unread records, open windows, savepoints that would bring the value back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from homes.savepoint import TOPIC, row, savepoint
from rivertwice.core.instants import EPOCH
from rivertwice.definition.definition import Definition, parse_files
from rivertwice.log.addresses import Part
from rivertwice.savepoint.catalogue import Savepoint
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.upkeep.erase import Reader, find_refusals, refuse_pseudonym, select_tainted
from rivertwice.upkeep.erasure_record import Erasure

YAML = b"""
name: p
description: x
sources:
  rows:
    topic: flights
    partitions: 1
    schema: {user: string, n: int, at: timestamp}
    required: [user]
    event_time: at
    watermark: 1 s
    max_future: 1 day
    rules: [{name: shape, rule: pattern, field: user, pattern: 'u[0-9]+'}]
window: {size: 1 s}
keys: [user]
count_column: n
columns: {n: {}}
"""
SQL = b"SELECT window.start AS window_start, window.end AS window_end, user, count(*) AS n FROM rows GROUP BY window(at, '1 second'), user"
DEFINITION = parse_files({"pipeline.yaml": YAML, "transform.sql": SQL, "rows.sql": b"SELECT * FROM rows"}, "p")
# Batch n reads offsets [10n, 10n + 10), its newest event is at n seconds, and its watermark is there too.
LEDGER = [row(batch, max_event_ms=1000 * batch) for batch in range(6)]


def reader(
    savepoints: Sequence[Savepoint] = (), protected: dict[str, str] | None = None, driver: int | None = None
) -> Reader:
    return Reader("p", DEFINITION, driver, LEDGER, False, savepoints, protected or {})


def places(*offsets: int) -> dict[Part, list[int]]:
    return {Part(TOPIC, 0): list(offsets)}


def taken(batch: int, *, proved: bool = True, timeline: str = "t1") -> Savepoint:
    found: Savepoint = savepoint(batch, proved=proved)
    manifest = replace(found.manifest, watermark_ms=1000 * batch, timeline=timeline)
    return replace(found, manifest=manifest)


def test_nothing_stands_in_the_way_of_read_records_of_closed_windows() -> None:
    assert find_refusals(reader(), places(0, 41)) == []


@pytest.mark.proves("guarantees.md#erasure")
@pytest.mark.parametrize(
    ("found", "offsets", "said"),
    [
        (reader(driver=7), [0], "p runs (pid 7)"),
        (reader(), [0, 60], "p has not read flights/0@60 yet"),
        (
            reader(),
            [0, 50],
            "windows that are open (read by batch 5): try again when its watermark has passed 1970-01-01T00:00:06Z",
        ),
        (reader([taken(2)]), [0, 35], "1 savepoints that would bring the value back, and no proved one after it"),
        (reader([taken(2), taken(5, proved=False)]), [35], "no proved one after it"),
        (reader([taken(2), taken(5)], {"sp-t1-2-00000002": "pinned"}), [35], "sp-t1-2-00000002 (pinned)"),
    ],
)
def test_each_obstacle_is_named(found: Reader, offsets: list[int], said: str) -> None:
    (text,) = find_refusals(found, places(*offsets))
    assert said in text


@pytest.mark.proves("guarantees.md#erasure")
def test_savepoints_with_the_value_in_state_or_ahead_would_bring_it_back() -> None:
    # Offset 35 is read by batch 3, whose windows are closed at batch 4's watermark, a second on.
    held = reader([taken(2), taken(3), taken(4), taken(5)])
    assert [one.manifest.batch for one in select_tainted(held, places(35))] == [2, 3]
    assert select_tainted(held, places()) == []
    off_path = reader([taken(5, timeline="t9")])
    assert [one.id for one in select_tainted(off_path, places(0))] == ["sp-t1-5-00000005"]


FOLD = parse_files(
    {
        "pipeline.yaml": YAML.replace(b"    watermark: 1 s\n", b"")
        .replace(b"window: {size: 1 s}", b"window: {fold: 1 day, at: at}\nby: [user]\nstate: {n: bigint}")
        .replace(b"count_column: n\ncolumns: {n: {}}", b"columns: {at: {}, n: {}}\ntypes: {at: timestamp, n: bigint}"),
        "fold.py": b'def fold(state, event):\n    n = (state or {"n": 0})["n"] + 1\n    return {"n": n}, [{"n": n}]\n',
    },
    "p",
)


def test_where_the_state_is_made_again_nothing_is_open_and_every_savepoint_goes() -> None:
    held = replace(reader([taken(2), taken(5)]), remakes=True)
    assert find_refusals(held, places(0, 59)) == []
    assert [one.manifest.batch for one in select_tainted(held, places(59))] == [2, 5]


@pytest.mark.parametrize(
    ("definition", "asked", "has_records", "remakes"),
    [
        (FOLD, False, True, True),
        (FOLD, False, False, False),
        (DEFINITION, False, True, False),
        (DEFINITION, True, False, True),
    ],
)
def test_the_state_is_made_again_of_folds_and_if_asked(
    definition: Definition, asked: bool, has_records: bool, remakes: bool
) -> None:
    request = Erasure("er-1", "p", ["user"], ["user"], "x", "why", "by", EPOCH, remake_state=asked)
    assert request.remakes(definition, has_records) is remakes


@pytest.mark.parametrize(
    ("changes", "offsets", "said"),
    [
        ({}, [0, 60], "p has not read flights/0@60 yet"),
        (
            {"obstacle": "restore-1 is not finished"},
            [0],
            "the state of p cannot be made again: restore-1 is not finished",
        ),
        ({"protected": {"sp-t1-5-00000005": "pinned"}}, [0], "sp-t1-5-00000005 (pinned)"),
    ],
)
def test_obstacles_to_making_a_state_again_are_named(changes: dict[str, Any], offsets: list[int], said: str) -> None:
    (text,) = find_refusals(replace(reader([taken(5)]), definition=FOLD, remakes=True, **changes), places(*offsets))
    assert said in text


def test_windows_reach_as_far_as_the_definition_says() -> None:
    assert reader().reach == timedelta(seconds=1)


@pytest.mark.parametrize(
    ("fields", "value", "pseudonym", "said"),
    [
        (("user",), "u42", None, "rule 'shape' judges field 'user'"),
        (("user",), 42, None, "is string, and 42 is not such a value"),
        (("n",), 42, 2**31, "does not fit field 'n'"),
        (("user",), ' {"id": 1}', "u1", "name the fields inside of it"),
        (("other",), "u42", None, "none of its sources has a field other"),
        (("user",), "u42", "u99999", None),
        (("n",), 42, None, None),
    ],
)
def test_a_value_that_the_fields_cannot_hold_is_refused(
    fields: tuple[str, ...], value: Any, pseudonym: Any, said: str | None
) -> None:
    found = refuse_pseudonym(DEFINITION, fields, value, pseudonym)
    assert found is None if said is None else found is not None and said in found


AVRO_YAML = """
name: p
description: x
sources:
  rows:
    topic: flights
    partitions: 1
    format: avro
    schema: {kind: string, n: bigint, at: timestamp}
    event_time: at
    watermark: 10 s
    max_future: 1 day
window: {size: 1 s}
count_column: n
columns: {n: {}}
"""
AVRO_SCHEMA = """{"type": "record", "name": "r", "fields": [
  {"name": "kind", "type": ["null", {"type": "enum", "name": "kinds", "symbols": ["a"]}]}, {"name": "n", "type": "int"},
  {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}]}"""


def test_an_avro_field_that_cannot_hold_a_pseudonym_is_refused() -> None:
    avro = parse_files(
        {
            "pipeline.yaml": AVRO_YAML.encode(),
            "transform.sql": b"SELECT window.start AS window_start, window.end AS window_end, count(*) AS n FROM rows "
            b"GROUP BY window(at, '1 second')",
            "schemas/rows.avsc": AVRO_SCHEMA.encode(),
        },
        "p",
    )
    assert "is an enum" in str(refuse_pseudonym(avro, ("kind",), "a", "b"))
    assert "whose schema says int" in str(refuse_pseudonym(avro, ("n",), 1, 2**31))
    assert refuse_pseudonym(avro, ("n",), 1, 2**31 - 1) is None


def test_rows_of_the_ledger_are_what_the_cases_say() -> None:
    last: LedgerRow = LEDGER[-1]
    assert (last.parts(), last.batch_watermark_ms) == ({Part(TOPIC, 0): (50, 60)}, 5000)
    assert isinstance(DEFINITION, Definition)
