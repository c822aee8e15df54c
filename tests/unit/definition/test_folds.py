"""Folds: what a definition may say of them, what fold.py may not, and what becomes of one event."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homes.one_source import FOLD, FOLD_YAML, define_fold
from rivertwice.core.errors import DefinitionError, FoldError, RequestError
from rivertwice.definition.definition import parse_files
from rivertwice.definition.fingerprint import fingerprint_of
from rivertwice.definition.fold_code import check_fold, normalise_fold
from rivertwice.definition.folds import Fields, FoldRun, FoldValueError, coerce_value
from rivertwice.definition.kinds.stateful import FOREVER_MS
from rivertwice.definition.lint import TopicFacts, contract_of, lint_definition
from rivertwice.engine.folds import fold_spec


def test_rows_of_a_fold_are_kept_apart_by_record_under_its_events_day() -> None:
    found = define_fold()
    assert found.row_keys == ["record", "row", "k"]
    assert found.result_columns == ["window_start", "window_end", "record", "row", "k", "at", "total"]
    assert found.row_types == {"k": "bigint", "at": "timestamp", "total": "bigint"}
    assert (found.window.length, found.window.step, found.window.passes) == (timedelta(days=1), timedelta(days=1), 1)
    assert found.window.text == "fold, by 1 day"


def test_windows_of_a_fold_are_closed_at_once_and_others_by_the_watermark() -> None:
    window = define_fold().window
    assert window.closed_ms(0) == FOREVER_MS
    assert type(window)(size=timedelta(hours=1)).closed_ms(7) == 7


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("by: [k]\n", ""), "a fold needs by"),
        (("by: [k]", "by: [x]"), "by names 'x', which is not a field"),
        (("by: [k]", "by: [v]"), "by names 'v', which is not required"),
        (("by: [k]", "by: [d]"), "by names 'd', which is a double"),
        (("keys: [k]", "keys: [total2]"), "by names 'k', which is not among keys"),
        (("state: {total: bigint}\n", ""), "a fold needs state"),
        (("state: {total: bigint}", "state: {total: array}"), "not a valid state type"),
        (("types: {at: timestamp, total: bigint}", "types: {at: timestamp}"), "'total' has no type"),
        (("types: {at", "types: {x: int, at"), "types names 'x'"),
        (("types: {at", "types: {k: int, at"), "types gives 'k' another type"),
        (("    max_future", "    watermark: 1 minute\n    max_future"), "no record of a fold waits or is late"),
        (("keys: [k]", "count_column: total\nkeys: [k]"), "count_column is 'total'"),
        (("columns: {at", "columns: {record: {}, at"), "'record' is given twice"),
        (("keys: [k]", "deleted: total\nkeys: [k]"), "column 'total' is bigint; it must be boolean"),
        (("keys: [k]", "deleted: gone\nkeys: [k]"), "deleted 'gone' is not a column"),
        (("    max_future", "    tombstones: delete\n    max_future"), "key_field is given exactly with"),
        (("    max_future", "    tombstones: delete\n    key_field: d\n    max_future"), "key_field 'd' is of type double"),
        (("    max_future", "    tombstones: delete\n    key_field: v\n    max_future"), "key_field 'v' is not required"),
        (("    max_future", "    envelope: debezium\n    framing: confluent\n    schema_ids: ['1']\n    max_future"), "plain JSON"),
        (("    max_future", "    envelope: debezium\n    paths: {at: payload.ts_ms}\n    max_future"), "event_time: ts_ms is when it was written; remove paths"),
        (("    max_future", "    format: avro\n    epochs: {at: ms}\n    max_future"), "epochs is for JSON"),
        (("event_time: at", "event_time: ts_ms"), "event_time 'ts_ms' is absent in schema"),
    ],
)  # fmt: skip
def test_a_definition_that_is_no_whole_fold_is_refused(change: tuple[str, str], words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        define_fold(change)


def test_a_number_within_objects_or_a_row_is_a_time_by_its_unit() -> None:
    _, plain = define_fold(
        ("    max_future", "    paths: {at: payload.ts_ms}\n    epochs: {at: ms}\n    max_future")
    ).source
    assert (plain.parts_of("at"), plain.epochs, plain.required_fields) == (["payload", "ts_ms"], {"at": "ms"}, ("k", "at"))  # fmt: skip
    _, row = define_fold(("    max_future", "    envelope: debezium\n    epochs: {at: us}\n    max_future")).source
    assert (row.envelope, row.epochs) == ("debezium", {"at": "us"})


def test_the_time_of_a_change_event_need_not_be_declared() -> None:
    enveloped = "    envelope: debezium\n    event_time: ts_ms"
    short = define_fold(("    event_time: at", enveloped))
    text = FOLD_YAML.replace("    event_time: at", enveloped).replace("d: double}", "d: double, ts_ms: timestamp}")
    long = parse_files({"pipeline.yaml": text.encode(), "fold.py": FOLD.encode()}, "p")
    assert list(short.source[1].schema_) == ["k", "at", "v", "d", "ts_ms"]
    assert fingerprint_of(short).hashes() == fingerprint_of(long).hashes()


def test_what_belongs_to_folds_is_refused_for_other_windows() -> None:
    sql = "SELECT window.start AS window_start, window.end AS window_end, k, count(*) AS n FROM events GROUP BY window(at, '1 day'), k"
    plain = (
        FOLD_YAML[: FOLD_YAML.index("window:")]
        + "window: {size: 1 day}\nkeys: [k]\ncount_column: n\ncolumns: {n: {}}\n"
    )
    with pytest.raises(DefinitionError, match="source 'events' has no watermark"):
        parse_files({"pipeline.yaml": plain.encode(), "transform.sql": sql.encode()}, "p")
    plain = plain.replace("    max_future", "    watermark: 0 s\n    max_future")
    files = {"pipeline.yaml": plain.encode(), "transform.sql": sql.encode()}
    assert parse_files(files, "p").window.closed_ms(5) == 5
    with pytest.raises(DefinitionError, match="by is for folds"):
        parse_files({**files, "pipeline.yaml": (plain + "by: [k]\n").encode()}, "p")
    changed = plain.replace("    max_future", "    envelope: debezium\n    max_future")
    with pytest.raises(DefinitionError, match="envelope of source 'events' is for folds"):
        parse_files({**files, "pipeline.yaml": changed.encode()}, "p")
    with pytest.raises(DefinitionError, match=r"fold\.py is for folds"):
        parse_files({**files, "fold.py": FOLD.encode()}, "p")


def test_a_fold_takes_no_sql_and_is_not_complete_without_its_code() -> None:
    with pytest.raises(DefinitionError, match=r"a fold takes no transform\.sql"):
        define_fold(transform_sql="SELECT 1")
    with pytest.raises(DefinitionError, match=r"a fold takes no rows\.sql"):
        define_fold(rows_sql="SELECT * FROM events")
    with pytest.raises(DefinitionError, match=r"p has no transform\.sql \(or, of a fold, fold\.py\)"):
        define_fold(fold=None)


@pytest.mark.proves("howto-folds.md#what-foldpy-may-use")
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import time\n", "imports time"),
        ("import random\n", "imports random"),
        ("from os import environ\n", "imports os"),
        ("from uuid import uuid4\n", "imports uuid"),
        ("from . import other\n", r"imports \."),
        ("from datetime import datetime\nAT = datetime.now()\n", "reads the clock"),
        ("seen = {}\ndef keep(k):\n    seen[k] = 1\n", "changes seen"),
        ("seen = []\ndef keep(k):\n    seen.append(k)\n", "changes seen"),
        ("n = 0\ndef keep():\n    global n\n    n += 1\n", "global n keeps something"),
        ("def keep(k, seen=[]):\n    return seen\n", "a default that can change"),
        ("def keep(k):\n    keep.last = k\n", "changes keep"),
        ("import itertools\nCOUNT = itertools.count()\n", "only imports, functions, classes and constants"),
        ("def read():\n    return open('x')\n", "open reaches beyond"),
        ("def read(x):\n    return hash(x)\n", "hash reaches beyond"),
        ("def read(x):\n    return x.__class__\n", "__class__ reaches beyond"),
        ("print(1)\n", "at the top level"),
    ],
)
def test_a_visibly_impure_fold_is_refused_unless_nothing_is_compared(code: str, words: str) -> None:
    with pytest.raises(DefinitionError, match=words) as caught:
        check_fold(code + FOLD, "p/fold.py", compared=True)
    assert "compare: false" in str(caught.value)
    check_fold(code + FOLD, "p/fold.py", compared=False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "defines fold 0 times"),
        ("def fold(state):\n    return None, []", "called with two values"),
        ("def fold(state, event, more=1):\n    return None, []", "called with two values"),
        ("def fold(state, event):\n    yield 1", "fold yields"),
        ("def fold(state, event:\n", "is not valid Python"),
    ],
)
def test_a_text_without_a_fold_is_always_refused(text: str, words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        check_fold(text, "p/fold.py", compared=False)


def test_what_a_fold_may_well_use_is_accepted() -> None:
    text = (
        "from __future__ import annotations\nimport re\nfrom datetime import datetime, timedelta\nfrom decimal import Decimal\n"
        "LIMIT = Decimal('10.5')\nNAMES = {'a': 1}\nDAY = timedelta(days=1)\nWORD = re.compile('[a-z]+')\n"
        "class Wrong(ValueError):\n    pass\n"
        "def fold(state, event):\n    seen = []\n    seen.append(event['v'])\n    state = dict(state or {})\n"
        "    state['total'] = max(seen)\n    state.update(total=1)\n    return state, [{'total': 1} for _ in seen]\n"
    )
    check_fold(text, "p/fold.py", compared=True)


def test_only_comments_and_blank_lines_change_no_fingerprint_of_a_fold() -> None:
    ours = fingerprint_of(define_fold())
    assert fingerprint_of(define_fold(fold="# new\n\n" + FOLD.replace("  # the sum", ""))).hashes() == ours.hashes()
    other = ours.changes_to(fingerprint_of(define_fold(fold=FOLD.replace("+ event", "- event"))))
    assert [(one.component, one.touches) for one in other] == [("fold", ("state", "semantics"))]
    text = 'def fold(state, event):\n    """One\n\n    # not a comment"""\n    return None, []  # one\n'
    assert normalise_fold(text) == text.replace("  # one\n", "")


def run(fold: str = FOLD, change: tuple[str, str] = ("", "")) -> FoldRun:
    return FoldRun(fold_spec(define_fold(change, fold)))


def event(**fields: Any) -> str:
    return json.dumps({"k": 1, "at": 5_000_000, "v": 1, "d": None, **fields})


def test_an_event_yields_a_state_and_rows_with_key_and_time_filled_in() -> None:
    state, rows = run().step(None, event(v=2**62), 3, 9)
    assert state == f'{{"total":{2**62}}}'
    assert rows == [(0, 5_000_000, 3 << 44 | 9, 0, f'{{"k":1,"at":5000000,"total":{2**62}}}')]


BAD = {
    "raises": "    raise KeyError('v')\n",
    "overflows": "    return {'total': 2 ** 63}, []\n",
    "no pair": "    return []\n",
    "an unknown field": "    return {'totl': 1}, []\n",
    "an unknown column": "    return None, [{'x': 1}]\n",
    "a text": "    return {'total': '1'}, []\n",
    "another key": "    return None, [{'k': 2}]\n",
    "a float": "    return {'total': 1.0}, []\n",
}


@pytest.mark.proves("guarantees.md#folds-and-views")
@pytest.mark.parametrize("what", BAD)
def test_a_failing_fold_stops_at_the_record_unless_it_has_a_column(what: str) -> None:
    spoilt = "    if state:\n        state['total'] = 99\n"
    text = "def fold(state, event):\n" + spoilt + BAD[what]
    with pytest.raises(FoldError, match=r"record events/1@7 with \w+: .*column `error`"):
        run(text).step('{"total":4}', event(), 1, 7)
    kept = FoldRun(fold_spec(parse_files({"pipeline.yaml": WITH_ERROR.encode(), "fold.py": text.encode()}, "p")))
    state, rows = kept.step('{"total":4}', event(), 1, 7)
    assert state == '{"total":4}'
    assert len(rows) == 1
    row = json.loads(rows[0][4])
    assert (row["k"], row["at"], row["total"]) == (1, 5_000_000, None)
    assert ":" in row["error"]


WITH_ERROR = FOLD_YAML.replace("columns: {", "columns: {error: {}, ").replace("types: {", "types: {error: string, ")


def test_an_error_that_names_a_place_in_memory_says_the_same_in_every_run() -> None:
    text = "def fold(state, event):\n    raise ValueError(fold)\n"
    one = FoldRun(fold_spec(parse_files({"pipeline.yaml": WITH_ERROR.encode(), "fold.py": text.encode()}, "p")))
    assert "at 0x>" in one.step(None, event(), 0, 0)[1][0][4]


def test_sums_of_long_decimals_lose_no_digit() -> None:
    text = "from decimal import Decimal\ndef fold(state, event):\n    return {'total': int(Decimal(10**30 + 1) + 1 - 10**30)}, []\n"
    assert run(text).step(None, event(), 0, 0)[0] == '{"total":2}'


TYPES = {
    "string": st.text(st.characters(exclude_categories=["Cs"])),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False),
    "decimal(12,2)": st.decimals(-9_999_999_999, 9_999_999_999, places=2),
    "decimal(38,0)": st.integers(-(10**38) + 1, 10**38 - 1),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "json": st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner) | st.lists(inner)),
}  # fmt: skip


@pytest.mark.parametrize("kind", TYPES)
def test_a_value_is_the_same_after_it_was_written_and_read(kind: str) -> None:
    @given(st.none() | TYPES[kind])
    def check(value: Any) -> None:
        settled = coerce_value("x", kind, value)
        fields = Fields({"x": kind})
        found = fields.load(fields.dump({"x": settled}))["x"]
        assert found == settled == value
        assert (type(found), repr(found)) == (type(settled), repr(settled))

    check()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("decimal(4,2)", Decimal("1.001")),
        ("decimal(4,2)", Decimal(100)),
        ("decimal(4,2)", Decimal("NaN")),
        ("decimal(4,2)", 1.5),
        ("int", 2**31),
        ("int", True),
        ("bigint", 1.0),
        ("boolean", 1),
        ("string", 1),
        ("timestamp", datetime(2024, 1, 1)),  # noqa: DTZ001
        ("timestamp", "2024-01-01"),
        ("json", {1, 2}),
        ("json", float("nan")),
    ],
)
def test_a_value_that_would_lose_something_is_refused(kind: str, value: Any) -> None:
    with pytest.raises(FoldValueError, match=r"x is .*(;|JSON)"):
        coerce_value("x", kind, value)


def test_a_backfill_refuses_a_fold_by_name() -> None:
    from rivertwice.backfill.late_windows import require_publishable

    with pytest.raises(RequestError, match="p is a fold"):
        require_publishable(define_fold())


def test_the_contract_of_a_fold_knows_no_watermark_and_its_order_is_named() -> None:
    assert contract_of(define_fold())["watermark"] == "none: rows are final when they are emitted"
    assert "excluded (it yielded no row)" in contract_of(define_fold())["guarantee"]
    found = {one.check: one for one in lint_definition(define_fold(), {"events": TopicFacts(3, None, compacted=False)})}
    assert found["global order assumed"].remedy.endswith("let producers key the topic by k, and never add partitions")
    assert "fold that" in found["partitions and keys"].remedy
    assert found["unbounded state"].state == "not checked"
