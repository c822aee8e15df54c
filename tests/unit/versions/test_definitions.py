"""Whether a trial of two definitions can run, whether their rows can be compared, and which batches must be read for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from histories.kinds import definition_files
from homes.backfill import SQL, YAML
from rivertwice.backfill.recompute import decodes_alike, keeps_zones
from rivertwice.definition.definition import Definition, parse_files
from rivertwice.definition.fingerprint import ChangedComponent, fingerprint_of
from rivertwice.versions.try_model import (
    Retyped,
    SchemaChange,
    compare_schemas,
    describe_sameness,
    find_incomparable,
    find_refusal,
    select_effective,
)

RULE = "    rules: [{name: known, rule: in_set, field: k, values: [a]}]\n"
LONGER = SQL.replace("'1 hour'", "'2 hours'")


def parsed(*changes: tuple[str, str], sql: str = SQL) -> Definition:
    text = YAML
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_files({"pipeline.yaml": text.encode(), "transform.sql": sql.encode()}, "test")


def changes_of(old: Definition, new: Definition) -> list[ChangedComponent]:
    return fingerprint_of(old).changes_to(fingerprint_of(new))


OLD = parsed()


@pytest.mark.parametrize(
    ("new", "effective"),
    [
        (parsed(("description: test", "description: other")), ()),
        (parsed(sql=f"-- a comment\n{SQL}"), ()),
        (parsed(("watermark: 1 hour", "watermark: 2 hours")), ()),
        (parsed(("keys: [k]", "late: {policy: side_output}\nkeys: [k]")), ()),
        (parsed(("keys: [k]", "emit: updates\nkeys: [k]")), ()),
        (parsed(sql=SQL.replace("count(*)", "count(k)")), ("transform",)),
        (parsed(("max_future: 1 hour", f"max_future: 1 hour\n{RULE[:-1]}")), ("rules",)),
    ],
)
def test_what_no_row_of_a_batch_depends_on_needs_no_run(new: Definition, effective: tuple[str, ...]) -> None:
    assert select_effective(changes_of(OLD, new)) == effective


def test_a_change_without_effect_is_named_with_what_judges_it() -> None:
    changed = changes_of(OLD, parsed(("watermark: 1 hour", "watermark: 2 hours")))
    assert "only watermark changed" in describe_sameness("p", changed)
    assert "`rivertwice advise p`" in describe_sameness("p", changed)
    assert "is the one that its stream runs" in describe_sameness("p", [])


@pytest.mark.parametrize(
    ("changes", "keeps", "alike"),
    [
        ((), True, True),
        ((("max_future: 1 hour", f"max_future: 1 hour\n{RULE[:-1]}"),), True, False),
        ((("{k: string, at: timestamp}", "{k: string, at: timestamp, v: bigint}"),), True, False),
        (
            (
                ("{k: string, at: timestamp}", "{k: string, at: timestamp, t: timestamp}"),
                ("event_time: at", "event_time: t"),
            ),
            False,
            False,
        ),
    ],
)
def test_event_times_hold_unless_they_are_decoded_otherwise(
    changes: tuple[tuple[str, str], ...], keeps: bool, alike: bool
) -> None:
    new = parsed(*changes, sql=SQL.replace("(at,", "(t,") if "event_time: t" in str(changes) else SQL)
    assert (keeps_zones(OLD, new), decodes_alike(OLD, new)) == (keeps, alike)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (OLD, OLD, None),
        (OLD, parsed(("topic: flights", "topic: others")), "reads others, which its stream does not read"),
    ],
)
def test_another_topic_is_refused(old: Definition, new: Definition, words: str | None) -> None:
    refusal = find_refusal(old, new)
    assert refusal is None if words is None else words in str(refusal)


def test_a_fold_is_refused_with_what_to_do_instead() -> None:
    fold = parse_files({name: text.encode() for name, text in definition_files("fold").items()}, "test")
    refusal = find_refusal(fold, fold)
    assert refusal is not None
    assert "a part of the log does not give them" in refusal
    assert "`rivertwice test histories`" in refusal


def test_columns_are_compared_by_name_and_type() -> None:
    old = {"k": "string", "n": "bigint", "total": "double"}
    new = {"k": "string", "total": "decimal(12,2)", "top": "bigint"}
    assert compare_schemas(old, new) == SchemaChange(
        added={"top": "bigint"}, gone={"n": "bigint"}, retyped={"total": Retyped("double", "decimal(12,2)")}
    )
    assert compare_schemas(old, old).is_empty


@pytest.mark.parametrize(
    ("new", "schema", "words"),
    [
        (OLD, {}, None),
        (parsed(("{size: 1 hour}", "{size: 2 hours}"), sql=LONGER), {}, "the windows changed from"),
        (parsed(("keys: [k]", "keys: [k, j]")), {}, "the keys changed from k to k, j"),
        (OLD, {"retyped": {"k": Retyped("string", "int")}}, "the key k changed from string to int"),
        (OLD, {"retyped": {"n": Retyped("bigint", "int")}}, None),
    ],
)
def test_rows_of_other_windows_or_keys_are_not_compared(
    new: Definition, schema: Mapping[str, Any], words: str | None
) -> None:
    reason = find_incomparable(OLD, new, SchemaChange(**schema))
    assert reason is None if words is None else words in str(reason)
