"""Which changes of a definition leave no rows that can be compared: the table of changes, each with the way by which a version serves."""

from __future__ import annotations

import pytest

from histories.kinds import definition_files
from rivertwice.definition.definition import Definition, parse_files
from rivertwice.definition.upgrade import Way, WayKind, decide_way

Edits = tuple[tuple[str, str], ...]


def parsed(kind: str, edits: Edits = ()) -> Definition:
    """Return a definition of a kind of windows, after texts were replaced in whichever of its files has them."""
    files = definition_files(kind)
    for old, new in edits:
        assert any(old in text for text in files.values()), old
        files = {name: text.replace(old, new) for name, text in files.items()}
    return parse_files({name: text.encode() for name, text in files.items()}, "test")


SIZE: Edits = (("size: 1 minute", "size: 2 minutes"), ("'1 minute'", "'2 minutes'"))
KEY: Edits = (("keys: [k]", "keys: [c]"), (" k, count(*)", " k AS c, count(*)"))
SECOND_KEY: Edits = (("keys: [k]", "keys: [k, c]"), (" k, count(*)", " k, v AS c, count(*)"), ("), k", "), k, v"))
WINDOW_NAMES: Edits = (
    ("{size: 1 minute}", "{size: 1 minute, start_column: s, end_column: e}"), ("AS window_start", "AS s"), ("AS window_end", "AS e"),
)  # fmt: skip
KEY_ORDER: Edits = (("keys: [k, at, id]", "keys: [at, k, id]"),)
COMPARE: Edits = (("emit: final", "emit: final\ncompare: false"),)
TOPIC: Edits = (("topic: events", "topic: others"),)
UPDATES: Edits = (("emit: final", "emit: updates"),)
SIDES: Edits = (("  events:\n    topic: events\n", "  left:\n    topic: events\n"),)

COMPARABLE = {
    "the transform": ("tumbling", (("sum(v)", "sum(abs(v))"),)),
    "a column's type": ("tumbling", (("sum(v)", "CAST(sum(v) AS DOUBLE)"),)),
    "a renamed column": ("tumbling", (("top: {}", "most: {}"), ("AS top", "AS most"))),
    "a column more": ("tumbling", (("top: {}", "top: {}, low: {}"), ("max(v) AS top", "max(v) AS top, min(v) AS low"))),
    "the row filter": ("tumbling", (("v <> 7", "v <> 8"),)),
    "the watermark": ("tumbling", (("watermark: 20 s", "watermark: 40 s"),)),
    "the late policy": ("tumbling", (("side_output", "drop"),)),
    "a field's type": ("tumbling", (("v: bigint", "v: int"),)),
    "the names of the window's columns": ("tumbling", WINDOW_NAMES),
    "the order of keys": ("joined intervals", KEY_ORDER),
    "the fold": ("fold", (("* 31", "* 37"),)),
    "the fold's state": ("fold", (("state: {n: bigint", "state: {m: bigint, n: bigint"),)),
    "a fold's column's type": (
        "fold",
        (("total: bigint, top: bigint}\ncolumns", "total: bigint, top: int}\ncolumns"),),
    ),
}
INCOMPARABLE = {
    "the size": ("tumbling", SIZE, "the windows changed from 1 minute to 2 minutes"),
    "the slide": ("hopping", (("slide: 20 s", "slide: 30 s"), ("'20 s", "'30 s")), "the windows changed from 1 minute every"),
    "the gap": ("session", (("session: 15 s", "session: 25 s"), ("'15 seconds'", "'25 seconds'")), "the windows changed from session, gap 15 seconds to session, gap 25"),
    "the interval": ("joined intervals", (("every: 20 s", "every: 10 s"),), "the windows changed from"),
    "the lookback": ("joined intervals", (("lookback: 20 s", "lookback: 40 s"),), "the windows changed from"),
    "a fold's address": ("fold", (("fold: 1 hour", "fold: 1 day"),), "the windows changed from fold, by 1 hour"),
    "a renamed key": ("tumbling", KEY, "the keys changed from k to c"),
    "a key more": ("tumbling", SECOND_KEY, "the keys changed from k to k, c"),
    "a fold's key's type": ("fold", (("{k: string, at: timestamp, v", "{k: int, at: timestamp, v"),), "the key k changed from string to int"),
    "the topic": ("tumbling", TOPIC, "reads others, which histories does not read"),
    "a fold's topic": ("fold", TOPIC, "reads others, which histories does not read"),
    "no comparison": ("tumbling", COMPARE, "histories says compare: false"),
}  # fmt: skip
OTHER_KINDS = [("tumbling", "hopping"), ("tumbling", "session"), ("session", "joined intervals"), ("tumbling", "fold")]


@pytest.mark.parametrize("change", COMPARABLE)
def test_rows_can_be_compared_after_a_change_of(change: str) -> None:
    kind, edits = COMPARABLE[change]
    assert decide_way(parsed(kind), parsed(kind, edits)) == Way(WayKind.COMPARED)


@pytest.mark.parametrize("change", INCOMPARABLE)
def test_a_person_must_accept_the_rows_after_a_change_of(change: str) -> None:
    kind, edits, why = INCOMPARABLE[change]
    old, new = parsed(kind), parsed(kind, edits)
    for way in (decide_way(old, new), decide_way(new, old)):
        assert way.kind == WayKind.ACCEPTED
    assert why in decide_way(old, new).text
    assert why in decide_way(old, new).explain_accepted("histories@v2")


@pytest.mark.parametrize(("old", "new"), OTHER_KINDS)
def test_windows_of_another_kind_have_no_rows_in_common(old: str, new: str) -> None:
    assert decide_way(parsed(old), parsed(new)).kind == WayKind.ACCEPTED
    assert decide_way(parsed(new), parsed(old)).kind == WayKind.ACCEPTED


def test_rows_of_a_fold_are_named_by_their_source() -> None:
    old = parsed("fold of sources")
    names = list(old.sources)
    renamed = parsed("fold of sources", ((f"  {names[1]}:", "  other:"), ("{k: {others: j}}", "{k: {other: j}}")))
    assert decide_way(old, old).kind == WayKind.COMPARED
    assert "the name other is new or means another topic" in decide_way(old, renamed).text


def test_a_type_that_only_spark_knows_makes_a_key_incomparable_and_no_other_column() -> None:
    old = parsed("tumbling")
    assert (
        decide_way(old, old, {"k": ("string", "int")}).text
        == "the key k changed from string to int, so its values cannot be matched"
    )
    assert decide_way(old, old, {"n": ("bigint", "int")}) == Way(WayKind.COMPARED)


@pytest.mark.parametrize(("old", "new"), [((), UPDATES), (UPDATES, ()), (UPDATES, UPDATES), (UPDATES, SIZE)])
def test_open_windows_in_a_table_of_their_own_are_never_switched(old: Edits, new: Edits) -> None:
    way = decide_way(parsed("tumbling", old), parsed("tumbling", new))
    assert way.kind == WayKind.NEVER
    assert "has emit: updates" in way.text


def test_other_names_of_the_windows_columns_are_the_same_windows() -> None:
    assert parsed("tumbling").window.is_same(parsed("tumbling", WINDOW_NAMES).window)
    assert not parsed("tumbling").window.is_same(parsed("tumbling", SIZE).window)
