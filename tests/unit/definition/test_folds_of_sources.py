"""Folds over several topics: what a definition may say, whose an event is, what is hashed; folds of one source stay as they were."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pytest
import yaml

from rivertwice.core.errors import DefinitionError, FoldError
from rivertwice.definition.definition import Definition, parse_files
from rivertwice.definition.fingerprint import fingerprint_of
from rivertwice.definition.folds import FoldRun
from rivertwice.definition.lint import contract_of, lint_definition
from rivertwice.engine.folds import LINES, PLACE, fold_spec, follow_key, follow_keys

YAML = """
name: p
description: test
sources:
  users:
    topic: users
    partitions: 2
    schema: {id: bigint, name: string, at: timestamp}
    required: [id]
    event_time: at
    max_future: 1 hour
    tombstones: delete
    key_field: id
  orders:
    topic: orders
    partitions: 3
    schema: {order_id: bigint, user_id: bigint, amount: bigint, placed: timestamp}
    required: [order_id, user_id]
    event_time: placed
    max_future: 1 hour
    tombstones: delete
    key_field: [user_id, order_id]
window: {fold: 1 day, at: at}
by: {user_id: {users: id}}
order: any
state: {seen: json}
keys: [user_id]
columns: {at: {}, seen: {}, error: {}}
types: {at: timestamp, seen: string, error: string}
"""
FOLD = """
import json
def fold(state, event):
    fields = {name: str(value) for name, value in event.items()}
    return {"seen": []}, [{"seen": json.dumps(fields, sort_keys=True)}]
"""


def define(*changes: tuple[str, str], fold: str = FOLD) -> Definition:
    text = YAML
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return parse_files({"pipeline.yaml": text.encode(), "fold.py": fold.encode()}, "p")


def test_rows_name_their_source_and_each_source_names_its_own_key() -> None:
    found = define()
    assert found.row_keys == ["source", "record", "row", "user_id"]
    assert found.by_fields("users") == {"user_id": "id"}
    assert found.by_fields("orders") == {"user_id": "user_id"}
    assert found.row_types["user_id"] == "bigint"
    same = define(("{id: bigint", "{user_id: bigint"), ("[id]", "[user_id]"), ("key_field: id", "key_field: user_id"),
                  ("by: {user_id: {users: id}}", "by: [user_id]"))  # fmt: skip
    assert same.by_fields("users") == same.by_fields("orders") == {"user_id": "user_id"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("by: {user_id: {users: id}}", "by: [user_id]"), "by names 'user_id' of source 'users', which is not a field"),
        (("{users: id}", "{users: name}"), "by names 'name' of source 'users', which is not required"),
        (("{users: id}", "{user: id}"), r"by names a field of 'user', but the sources are \['users', 'orders'\]"),
        (("{id: bigint", "{id: int"), "'user_id' is int in source 'users' and bigint in 'orders', where it would be another key"),
        (("keys: [user_id]", "keys: [other]"), "by names 'user_id', which is not among keys"),
        (("key_field: [user_id, order_id]", "key_field: order_id"), "tombstones of source 'orders' are deletes and have nothing but order_id"),
        (("key_field: [user_id, order_id]", "key_field: []"), "key_field is empty"),
        (("key_field: [user_id, order_id]", "key_field: [user_id, amount]"), "key_field 'amount' is not required"),
        (("    event_time: placed\n", "    event_time: placed\n    watermark: 1 minute\n"), "source 'orders' has a watermark"),
        (("    event_time: placed\n", "    event_time: placed\n    role: table\n    table_keys: [order_id, user_id]\n"), "role: table, which is for intervals"),
        (("order: any", "order: any\nwatermark_policy: max"), "watermark_policy is 'max', but a fold has no watermark"),
        (("order: any", "order: any\ncompare: false"), "order: any is what a reconcile checks"),
        (("keys: [user_id]\ncolumns: {at: {}, ", "keys: [user_id, at]\ncolumns: {"), "the keys hold 'at'"),
        (("order: any", "order: log"), "it must be 'read' or 'any'"),
        (("topic: orders", "topic: users"), "both read topic 'users'"),
        (("columns: {at", "columns: {source: {}, at"), "'source' is given twice"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_over_several_sources_is_refused(change: tuple[str, str], words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        define(change)


def test_several_sources_with_windows_are_refused_and_order_is_of_folds() -> None:
    plain = yaml.safe_load(YAML)
    for name in ("by", "order", "state", "types"):
        del plain[name]
    plain |= {"window": {"size": "1 day"}, "columns": {"n": {}}, "count_column": "n"}

    def parse(**changes: Any) -> Definition:
        files = {"pipeline.yaml": yaml.safe_dump({**plain, **changes}).encode(), "transform.sql": b"SELECT 1"}
        return parse_files(files, "p")

    with pytest.raises(DefinitionError, match=r"windows and sessions take exactly one.*or a fold"):
        parse()
    with pytest.raises(DefinitionError, match="order is for folds"):
        parse(sources={"users": plain["sources"]["users"]}, order="read", keys=["id"])


def run(*changes: tuple[str, str], fold: str = FOLD) -> FoldRun:
    return FoldRun(fold_spec(define(*changes, fold=fold)))


def test_an_event_has_its_own_source_s_fields_and_says_whose_it_is() -> None:
    user = json.dumps({"id": 7, "name": "Ann", "at": 1_000_000, "_deleted": False})
    order = json.dumps({"order_id": 1, "user_id": 7, "amount": 3, "placed": 2_000_000, "_deleted": False})
    _, rows = run().step(None, user, 1, 4, 0)
    assert [one[:4] for one in rows] == [(0, 1_000_000, 1 << 44 | 4, 0)]
    row = json.loads(rows[0][4])
    assert (row["user_id"], row["at"]) == (7, 1_000_000)
    assert json.loads(row["seen"]) == {
        "_deleted": "False", "_source": "users", "at": "1970-01-01 00:00:01+00:00", "id": "7", "name": "Ann"
    }  # fmt: skip
    _, rows = run().step(None, order, 2, 0, 1)
    assert [one[:4] for one in rows] == [(1, 2_000_000, 2 << 44, 0)]
    row = json.loads(rows[0][4])
    assert (row["user_id"], row["at"]) == (7, 2_000_000)
    assert set(json.loads(row["seen"])) == {"_deleted", "_source", "order_id", "user_id", "amount", "placed"}


def test_a_failing_fold_names_the_topic_of_its_record() -> None:
    spoilt = "def fold(state, event):\n    return None, [{'seen': event['name'] + ''}]\n"
    order = json.dumps({"order_id": 1, "user_id": 7, "amount": 3, "placed": 0, "_deleted": False})
    without = [("seen: {}, error: {}", "seen: {}"), ("seen: string, error: string", "seen: string")]
    with pytest.raises(FoldError, match="on the record orders/2@9 with KeyError"):
        run(*without, fold=spoilt).step(None, order, 2, 9, 1)
    _, ((_, _, _, _, row),) = run(fold=spoilt).step(None, order, 2, 9, 1)
    assert json.loads(row) == {"user_id": 7, "at": 0, "seen": None, "error": "KeyError: 'name'"}


@pytest.mark.parametrize(
    ("changes", "component", "touches"),
    [
        ([("{users: id}", "{users: ident}"), ("{id:", "{ident:"), ("[id]", "[ident]"), ("key_field: id", "key_field: ident")],
         "fold_by", ("state", "semantics")),
        ([("amount: bigint", "amount: int")], "field_types_used", ("state",)),
        ([("topic: orders", "topic: bought")], "topic", ("semantics",)),
        ([("key_field: [user_id, order_id]", "key_field: [order_id, user_id]")], "tombstones", ("semantics", "decode")),
    ],
)  # fmt: skip
def test_a_change_of_either_source_is_seen(
    changes: list[tuple[str, str]], component: str, touches: tuple[str, ...]
) -> None:
    found = {one.component: one.touches for one in fingerprint_of(define()).changes_to(fingerprint_of(define(*changes)))}  # fmt: skip
    assert found[component] == touches


def test_the_order_of_sources_decides_results_and_its_declaration_does_not() -> None:
    ours = fingerprint_of(define())
    assert "watermark_policy" not in ours.components
    assert fingerprint_of(define(("order: any\n", ""))).hashes() == ours.hashes()
    document = yaml.safe_load(YAML)
    document["sources"] = dict(reversed(document["sources"].items()))
    text = yaml.safe_dump(document, sort_keys=False).encode()
    turned = fingerprint_of(parse_files({"pipeline.yaml": text, "fold.py": FOLD.encode()}, "p"))
    changed = {one.component: one.touches for one in ours.changes_to(turned)}
    assert changed == {"fold_sources": ("state", "semantics")}


ONE = """
name: p
description: test
sources:
  events: {topic: t, partitions: 1, schema: {k: bigint, at: timestamp}, required: [k], event_time: at, max_future: 1 hour,
           tombstones: delete, key_field: k}
window: {fold: 1 day, at: at}
by: [k]
state: {n: bigint}
keys: [k]
columns: {at: {}}
types: {at: timestamp}
"""


def test_fingerprints_of_folds_of_one_source_are_what_they_were() -> None:
    files = {"pipeline.yaml": ONE.encode(), "fold.py": b"def fold(state, event):\n    return None, []\n"}
    found = fingerprint_of(parse_files(files, "p"))
    assert "fold_sources" not in found.components
    assert found.hashes() == GOLDEN
    listed = {**files, "pipeline.yaml": ONE.replace("key_field: k}", "key_field: [k]}").encode()}
    assert fingerprint_of(parse_files(listed, "p")).hashes() == GOLDEN


GOLDEN = {
    "state": "e994ad2bfa4a979f565f5572d16e9edc85cb2b118acd4c67ad0ffccf2cbac5c2",
    "semantics": "8bb9e6e4c64b7a2e1f8338704e4a6450f54c656d166099693be66cb20da001be",
    "decode": "12597f2e9e2e9466fd3797ae2b19f15361b48cd986be5dcae681f1622ee392dc",
}
"""Computed by the version before folds had several sources."""


def test_the_lint_says_what_is_compared_over_several_sources() -> None:
    for changes, words in (([], "twice more"), ([("order: any\n", "")], "topics have no common order")):
        definition = define(*changes)
        found = {one.check: one for one in lint_definition(definition, {})}
        assert words in found["global order assumed"].told
        assert "idle source" not in found
        assert contract_of(definition)["watermark"].startswith("none")


LISTING = """
def fold(state, event):
    seen = [*(state or {"seen": []})["seen"], event["_source"][0] + str(event.get("order_id") or event.get("name"))]
    return {"seen": seen}, [{"seen": " ".join(seen)}]
"""


def packed_rows(*rows: tuple[int, int, int, int, object]) -> pd.DataFrame:
    """Packed events (user, source, partition, offset, order id or name)."""
    plain = []
    for user, source, partition, offset, what in rows:
        event = {"id": user, "name": what, "at": 0} if source == 0 else {"user_id": user, "order_id": what, "placed": 0}
        plain.append((json.dumps({"user_id": user}), source, partition, offset, json.dumps(event)))
    return pd.DataFrame(plain, columns=["_key", *PLACE, "_event"])


def told(emitted: list[Any]) -> list[tuple[Any, ...]]:
    return [(source, record, json.loads(row)["seen"], *number) for source, _, record, _, row, *number in emitted]


@pytest.mark.proves("howto-folds.md#several-topics-tables-as-one-view")
def test_a_batch_is_folded_by_source_then_partition_then_offset() -> None:
    spec = fold_spec(define(fold=LISTING))
    frames = [packed_rows((7, 1, 0, 5, 2), (7, 0, 1, 9, "B")), packed_rows((7, 1, 0, 4, 1), (7, 0, 0, 3, "A"))]
    lines = [
        pd.DataFrame({LINES: [f"{s} {p} {o}\n{key}\n{event}" for key, s, p, o, event in frame.itertuples(index=False)]})
        for frame in frames
    ]
    state, rows = follow_key(spec, '{"seen":["x"]}', lines)
    assert told(rows) == [
        (0, 3, "x uA"),
        (0, 1 << 44 | 9, "x uA uB"),
        (1, 4, "x uA uB o1"),
        (1, 5, "x uA uB o1 o2"),
    ]
    assert state == '{"seen":["x","uA","uB","o1","o2"]}'
    assert follow_key(spec, None, []) == (None, [])


def test_a_recompute_takes_sorted_keys_over_frames_and_numbers_rows() -> None:
    spec = fold_spec(define(fold=LISTING))
    frames = [
        packed_rows((7, 1, 0, 4, 1), (7, 0, 0, 3, "A")),
        packed_rows(),
        packed_rows((7, 1, 0, 5, 2), (8, 0, 0, 4, "C")),
    ]
    found = [told(rows) for rows in follow_keys(spec, frames)]
    assert found == [
        [(1, 4, "o1", 0), (0, 3, "o1 uA", 1)],
        [],
        [(1, 5, "o1 uA o2", 2), (0, 4, "uC", 0)],
    ]
