"""The kinds of windows that random histories are made of: one definition for each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rivertwice.definition.definition import Definition, parse_files

_YAML = """
name: histories
description: random histories
sources:
  events:
    topic: events
    partitions: 2
    schema: {k: string, at: timestamp, v: bigint}
    required: [k, v]
    event_time: at
    watermark: 20 s
    max_future: 10000 days
window: WINDOW
keys: [k]
count_column: n
columns: {n: {}, total: {}, top: {}}
late: {policy: side_output}
"""
_GROUPED = """
SELECT FUNCTION.start AS window_start, FUNCTION.end AS window_end, k, count(*) AS n, sum(v) AS total, max(v) AS top
FROM events GROUP BY CALL, k
"""
_COMPUTED = """
SELECT window.start AS window_start, window.end AS window_end, concat('x', k) AS k, minute(window.end) AS m, count(*) AS n,
  sum(v) AS total, max(v) AS top
FROM events GROUP BY window(at, '1 minute'), concat('x', k), minute(window.end)
"""
_RENAMED = """
WITH named AS (SELECT at, k AS name, v FROM events)
SELECT window.start AS window_start, window.end AS window_end, upper(name) AS name, count(*) AS n, sum(v) AS total, max(v) AS top
FROM named GROUP BY window(at, '1 minute', '20 seconds'), upper(name)
"""
_JOINED = """
SELECT a.window_start, a.window_end, a.k, a.at, a.record AS id, count(b.v) AS n, coalesce(sum(b.v), 0) AS total, max(b.v) AS top
FROM events AS a
LEFT JOIN events AS b
  ON b.window_start = a.window_start AND b.k = a.k AND b.v < a.v
  AND b.at BETWEEN a.at - INTERVAL 20 SECONDS AND a.at + INTERVAL 40 SECONDS
WHERE a.v <> 7
GROUP BY a.window_start, a.window_end, a.k, a.at, a.record
"""
_FIRST = """
SELECT window_start, window_end, k, at, record AS id, n, total, coalesce(top, 0) AS top
FROM (
  SELECT
    *,
    count(*) OVER (PARTITION BY window_start, k ORDER BY at RANGE BETWEEN INTERVAL 60 SECONDS PRECEDING AND CURRENT ROW) AS n,
    sum(v) OVER (PARTITION BY window_start, k ORDER BY at RANGE BETWEEN INTERVAL 60 SECONDS PRECEDING AND CURRENT ROW) AS total,
    lag(v) OVER (PARTITION BY window_start, k, v ORDER BY at, record) AS top
  FROM events
)
WHERE n > 1
"""
_OTHERS = """  others:
    topic: others
    partitions: 1
    schema: {k: string, at: timestamp, v: bigint}
    required: [k, v]
    event_time: at
    watermark: 20 s
    max_future: 10000 days
"""
_NAMES = """  names:
    topic: names
    role: table
    envelope: debezium
    table_keys: [k]
    partitions: 1
    schema: {k: string, at: timestamp, v: bigint}
    required: [k, v]
    event_time: at
    max_future: 10000 days
"""
_AS_OF = """
SELECT e.window_start, e.window_end, e.k, e.at, e.record AS id, coalesce(n.v, -1) AS n, e.v AS total, n.valid_from AS top
FROM events AS e
LEFT JOIN names AS n
  ON n.window_start = e.window_start AND n.k = e.k AND n.valid_from <= e.at AND (n.valid_to IS NULL OR e.at < n.valid_to)
"""
_FOLD = """
def fold(state, event):
    state = state or {"n": 0, "total": 0, "top": None}
    if event["v"] == 7:
        return state, []
    if event["v"] == 11 and state["n"] > 9:
        return None, [{"n": 0, "total": state["total"]}]
    top = max(event["v"], state["top"] or 0)
    state = {"n": state["n"] + 1, "total": (state["total"] * 31 + event["v"]) % 1_000_003, "top": top}
    return state, [dict(state)] * (2 if event["v"] == 5 else 1)
"""
_SIDES = """  others:
    topic: others
    partitions: 1
    schema: {j: string, at: timestamp, w: bigint}
    required: [j, w]
    event_time: at
    max_future: 10000 days
"""
_FOLD_OF_SOURCES = """
def fold(state, event):
    state = state or {"n": 0, "total": 0, "top": None}
    mine = event["_source"] == "events"
    v = event["v"] if mine else event["w"]
    if v == 7:
        return state, []
    if v == 11 and state["n"] > 9:
        return None, [{"n": 0, "total": state["total"]}]
    total = (state["total"] * 31 + (v if mine else 100 - v)) % 1_000_003
    state = {"n": state["n"] + 1, "total": total, "top": max(v, state["top"] or 0)}
    return state, [dict(state)] * (2 if v == 5 else 1)
"""
_VIEW_OF_SOURCES = """
def fold(state, event):
    mine = event["_source"] == "events"
    side, v = ("left", event["v"]) if mine else ("right", event["w"])
    known = state or {"left": None, "right": None, "first": mine}
    if v == 11:
        v = None
    if v == known[side]:
        return state, []
    known = {**known, side: v}
    left, right = known["left"] or 0, known["right"] or 0
    row = {"n": left, "total": 100 * left + right, "top": FIRST, "gone": not (left or right)}
    return None if row["gone"] else known, [row]
"""
_ROWS = "SELECT * FROM events WHERE v <> 7"
_KEYS = "keys: [k]\ncount_column: n"
_INTERVALS = "keys: [k, at, id]"
_FOLDED = """keys: [k, at]
by: [k]
state: {n: bigint, total: bigint, top: bigint}
types: {at: timestamp, n: bigint, total: bigint, top: bigint}"""
_FOLDED_BY_EACH = _FOLDED.replace("by: [k]", "by: {k: {others: j}}")
_COLUMNS = "columns: {n: {}, total: {}, top: {}}"
_VIEWED = """keys: [k]
by: {k: {others: j}}
order: any
deleted: gone
state: {left: bigint, right: bigint, first: boolean}
types: {at: timestamp, n: bigint, total: bigint, top: bigint, gone: boolean}"""
_VIEWED_COLUMNS = "columns: {n: {}, total: {}, top: {}, at: {}, gone: {}}"


@dataclass(frozen=True)
class Kind:
    """A kind of windows: what is written under `window`, the transform or the fold, what else it is, further sources, what is said of a fold, the keys."""

    window: str
    sql: str
    is_interval: bool = False
    more: str = ""
    folded: str = ""
    emit: str = "final"
    keys: str = "k"


def _grouped(window: str, call: str) -> Kind:
    return Kind(window, _GROUPED.replace("FUNCTION", call.partition("(")[0]).replace("CALL", call))


KINDS = {
    "tumbling": _grouped("{size: 1 minute}", "window(at, '1 minute')"),
    "hopping": _grouped("{size: 60 s, slide: 20 s}", "window(at, '1 minute', '20 seconds')"),
    "tumbling updates": replace(_grouped("{size: 1 minute}", "window(at, '1 minute')"), emit="updates"),
    "hopping updates": replace(
        _grouped("{size: 60 s, slide: 20 s}", "window(at, '1 minute', '20 seconds')"), emit="updates"
    ),
    "tumbling computed keys": Kind("{size: 1 minute}", _COMPUTED, keys="k, m"),
    "hopping renamed key": Kind("{size: 60 s, slide: 20 s}", _RENAMED, keys="name"),
    "session": _grouped("{session: 15 s}", "session_window(at, '15 seconds')"),
    "joined intervals": Kind("{every: 20 s, lookback: 20 s, lookahead: 40 s, at: at}", _JOINED, is_interval=True),
    "joined sources": Kind(
        "{every: 20 s, lookback: 20 s, lookahead: 40 s, at: at}",
        _JOINED.replace("JOIN events", "JOIN others"),
        True,
        _OTHERS,
    ),
    "as-of intervals": Kind("{every: 1 minute, at: at}", _AS_OF, True, _NAMES),
    "rolling intervals": Kind("{every: 30 s, lookback: 60 s, at: at}", _FIRST, is_interval=True),
    "fold": Kind("{fold: 1 hour, at: at}", _FOLD, folded=_FOLDED),
    "fold of sources": Kind("{fold: 1 hour, at: at}", _FOLD_OF_SOURCES, more=_SIDES, folded=_FOLDED_BY_EACH),
    "view of sources": Kind(
        "{fold: 1 hour, at: at}",
        _VIEW_OF_SOURCES.replace("FIRST", "max(left, right)"),
        more=_SIDES,
        folded=_VIEWED,
    ),
}
LYING = replace(KINDS["view of sources"], sql=_VIEW_OF_SOURCES.replace("FIRST", 'int(known["first"])'))
"""A view that says that nothing depends on the order, and tells which side came first."""


def definition_files(kind: str | Kind) -> dict[str, str]:
    """Return the files of a definition with windows of a kind; some records do not pass the row filter, where there is one."""
    one = KINDS[kind] if isinstance(kind, str) else kind
    yaml = _YAML.replace("WINDOW", one.window).replace("window:", f"{one.more}window:", 1)
    yaml = yaml.replace("keys: [k]", f"keys: [{one.keys}]") + f"emit: {one.emit}\n"
    if one.folded:
        yaml = (
            yaml.replace(_KEYS, one.folded)
            .replace(_COLUMNS, _VIEWED_COLUMNS if "gone" in one.folded else _COLUMNS)
            .replace("    watermark: 20 s\n", "")
            .replace("late: {policy: side_output}\n", "")
        )
        return {"pipeline.yaml": yaml, "fold.py": one.sql}
    files = {"pipeline.yaml": yaml.replace(_KEYS, _INTERVALS) if one.is_interval else yaml, "transform.sql": one.sql}
    return files if one.is_interval else {**files, "rows.sql": _ROWS}


def make_definition(kind: str | Kind) -> Definition:
    """Return that definition."""
    return parse_files({name: text.encode() for name, text in definition_files(kind).items()}, "histories")
